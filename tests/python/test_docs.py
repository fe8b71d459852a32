"""What docs/ and examples/ promise and no other test covers."""
import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ["IPYBOX_TEST_PROGRAM"])
QUOTA = PROGRAM.parent / "examples/quota.so"
SUPPORT = Path(os.environ["IPYBOX_TEST_SUPPORT"])
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@unittest.skipUnless(QUOTA.exists(), f"plugins are linked in: no {QUOTA}")
class WritingAPluginTest(unittest.TestCase):
    def ipybox(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60,
                              env={"PATH": os.environ["PATH"], "IPYBOX_PLUGIN_PATH": str(QUOTA.parent)})

    def test_it_is_found_by_its_name(self):
        run = self.ipybox("plugins")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, r"quota\b.*example: denies a tool")

    def verdict(self, policy):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(policy, file)
            file.flush()
            return self.ipybox("policy", "test", file.name, "--call", '{"server": "files", "tool": "read_text_file"}')

    def test_it_decides_and_its_configuration_is_checked(self):
        used_up = self.verdict({"first_match": [{"quota": {"calls": 0}}, "allow"]})
        self.assertEqual(used_up.returncode, 1)
        self.assertIn("the quota of read_text_file is used up", used_up.stdout)
        self.assertEqual(self.verdict({"first_match": [{"quota": {"calls": 1}}, "allow"]}).returncode, 0)
        for mistake in ({}, {"calls": -1}, {"calls": "many"}, {"calls": 1, "cals": 2}):
            refused = self.verdict({"quota": mistake})
            self.assertEqual(refused.returncode, 2, refused.stdout)
            self.assertIn("quota", refused.stderr)


class ComposedPoliciesTest(unittest.TestCase):
    def test_it_says_what_the_policies_say(self):
        plugins = PROGRAM.parent / "plugins"
        run = subprocess.run([PROGRAM.parent / "examples/composed_policies"], capture_output=True, text=True, timeout=60,
                             env={"IPYBOX_PLUGIN_PATH": str(plugins)} if plugins.is_dir() else {})
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.splitlines(), [
            "files.read_text_file: allowed",
            "files.delete_file: denied, nothing is deleted here",
            "files.write_file: denied, the person said no",
            "mail.send_mail: allowed",
            "shop.list_orders: denied, the server shop is not known"])


class TraceTest(unittest.TestCase):
    def test_it_answers_input_and_writes_spans(self):
        with tempfile.TemporaryDirectory(prefix="ipybox-trace-") as directory:
            os.chmod(directory, 0o755)
            if os.geteuid() == 0:  # the sandbox drops root
                os.chown(directory, 65534, 65534)
            run = subprocess.run(
                [PROGRAM.parent / "examples/trace", "name = input('Who? ')\nprint('hello', name)"], cwd=directory,
                input="Ada\n", capture_output=True, text=True, timeout=120,
                env={"PATH": os.environ["PATH"], "IPYBOX_PYTHON": os.environ["IPYBOX_TEST_PYTHON"],
                     "IPYBOX_PLUGIN_PATH": os.environ["IPYBOX_TEST_PLUGINS"]})
        self.assertEqual((run.returncode, run.stdout), (0, "Who? hello Ada\n"), run.stderr)
        spans = [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for line in run.stderr.splitlines()]
        self.assertEqual([(span["name"], span["status"]["code"]) for span in spans], [("execution", 1)])


class ToolCallsTest(unittest.TestCase):
    def test_server_channel_approver_and_runner_work_together(self):
        plugins = PROGRAM.parent / "plugins"
        run = subprocess.run([PROGRAM.parent / "examples/tool_calls", "python3", SUPPORT / "mcp_server.py"], capture_output=True,
                             text=True, timeout=60, env={"PATH": os.environ["PATH"]} | (
                                 {"IPYBOX_PLUGIN_PATH": str(plugins)} if plugins.is_dir() else {}))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.splitlines(), [
            "asked: own.echo(text='hello')", 'result: "hello"', "asked: own.add(a=1, b=2)",
            "denied: approval request for own.add rejected: not this one"])

    def test_the_reference_shows_it(self):
        source = (ROOT / "examples/tool_calls/main.cpp").read_text()
        for header in ("tools/tool_server", "tools/tool_runner", "approval/channel"):
            named = re.findall(r"^// Example: (\S+) \[(\w+)\]$", (ROOT / f"include/ipybox/{header}.hpp").read_text(), re.M)
            self.assertTrue(named, header)
            for file, part in named:
                self.assertEqual(file, "tool_calls/main.cpp")
                self.assertEqual(source.count(f"//! [{part}]\n"), 2, part)


class ServerLinesTest(unittest.TestCase):
    """Servers start in an empty directory: lines that people copy name what they mean."""

    ARGUMENTS = re.compile(r'"args"\s*[:,]\s*[\[{]\s*((?:"(?:[^"\\\\]|\\\\.)*"\s*,?\s*)+)')

    def test_no_argument_of_a_server_is_relative(self):
        found = 0
        for page in [*PAGES, *(p for folder in ("examples", "claude", "scripts") for p in (ROOT / folder).rglob("*")
                               if p.suffix in (".md", ".json", ".cpp", ".py"))]:
            for line in self.ARGUMENTS.findall(page.read_text(errors="replace")):
                found += 1
                for argument in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
                    with self.subTest(page=page.name, line=line):
                        self.assertNotRegex(argument, r"^(--?\w[\w-]*=)?\.{1,2}(/|$)|^\w[\w-]*\.(py|js|mjs|ts|sh)$")
        self.assertGreaterEqual(found, 8)

    def test_the_filesystem_server_of_the_readme_lists_the_workspace(self):
        line = re.search(r'\{"args", \{(.*)\}\}\}\);$', PAGES[0].read_text(), re.M)[1]
        self.assertEqual(json.loads(f"[{line}]")[-1], "${WORKSPACE}")


def anchors(page):
    """The anchors that hosts of Markdown make of headings."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", re.sub(r"[`*]", "", title).lower()).replace(" ", "-") for title in titles}


class VersionTest(unittest.TestCase):
    """One version, that of meson.build, for the program, the preprocessor and the package."""

    def compile(self, standard, text):
        return subprocess.run(["c++", f"-std=c++{standard}", "-fsyntax-only", f"-I{ROOT}/include", f"-I{PROGRAM.parent}/include",
                               "-x", "c++", "-"], input=text, capture_output=True, text=True, timeout=120)

    def test_macros_and_program_agree_with_the_build(self):
        version = re.search(r"^  version: '(.*)',$", (ROOT / "meson.build").read_text(), re.M)[1]
        run = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.stdout, f"ipybox {version}\n")
        major, minor, patch = version.split("-")[0].split(".")
        check = (f'#include <ipybox/error.hpp>\n#include <string_view>\nstatic_assert(std::string_view(IPYBOX_VERSION) == "{version}");\n'
                 f"#if IPYBOX_VERSION_MAJOR != {major} || IPYBOX_VERSION_MINOR != {minor} || IPYBOX_VERSION_PATCH != {patch}\n"
                 "#error the numbers differ\n#endif\n")
        compiled = self.compile(20, check)
        self.assertEqual(compiled.returncode, 0, compiled.stderr)

    def test_an_older_standard_is_refused_in_words(self):
        refused = self.compile(17, "#include <ipybox/error.hpp>\n")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("ipybox needs C++20: compile with -std=c++20", refused.stderr)


class LinksTest(unittest.TestCase):
    def test_every_link_leads_somewhere(self):
        for page in PAGES:
            text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
            for link in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"https?:", link):
                    continue
                file, _, anchor = link.partition("#")
                target = (page.parent / file).resolve() if file else page
                with self.subTest(page=page.name, link=link):
                    self.assertTrue(target.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(target))

    def test_json_in_the_docs_is_json(self):
        for page in PAGES:
            for text in re.findall(r"^```json\n(.*?)^```$", page.read_text(), re.M | re.S):
                with self.subTest(page=page.name, text=text[:60]):
                    json.loads(text)
