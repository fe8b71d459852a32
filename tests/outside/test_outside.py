"""What an author of other software does with an installed ipybox, by the documentation alone.

`meson install` of the build puts it into a directory of its own, at another place than it was made
for; nothing of the checkout is on the include path, and nothing of the build is run.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD = Path(os.environ["IPYBOX_TEST_PROGRAM"]).parent
PYTHON = os.environ["IPYBOX_TEST_PYTHON"]
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIELD = "    std::filesystem::path cwd;\n    NetworkPolicy network;\n"
CHANGES = {"changed_field": "    int another = 0;\n" + FIELD, "changed_comment": "    // A word more.\n" + FIELD}


def command(*arguments, **options):
    """Runs it; its output, or an error with all it said."""
    run = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, timeout=600, **options)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, arguments))}:\n{run.stdout}{run.stderr}")
    return run.stdout


class OutsideTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Path(tempfile.mkdtemp(prefix="ipybox-outside-"))
        cls.addClassCleanup(shutil.rmtree, cls.place, ignore_errors=True)
        os.chmod(cls.place, 0o755)
        command("meson", "install", "-C", BUILD, "--quiet", "--no-rebuild", "--destdir", cls.place / "installed")
        cls.prefix = next((cls.place / "installed").rglob("bin/ipybox")).parents[1]
        cls.plugins = next(cls.prefix.rglob("ipybox/plugins"))
        changed = cls.place / "changed"
        for name, text in CHANGES.items():
            cls.change_headers(changed / name, text)
        cls.build = cls.place / "build"
        command("cmake", "-G", "Ninja", "-S", HERE, "-B", cls.build, "-D", f"CMAKE_PREFIX_PATH={cls.prefix}",
                "-D", f"EXAMPLES={cls.prefix / 'share/doc/ipybox/examples'}", "-D", f"CHANGED={changed}")
        command("ninja", "-C", cls.build)

    @classmethod
    def change_headers(cls, include, text):
        """The headers of another version of ipybox, with the hash that its build would have made."""
        shutil.copytree(cls.prefix / "include/ipybox", include / "ipybox")
        version, declarations = include / "ipybox/version.hpp", include / "ipybox/detail/declarations.hpp"
        header = include / "ipybox/sandbox.hpp"
        old = header.read_text()
        assert old.count(FIELD) == 1, "SandboxPolicy is another one: adapt FIELD"
        header.write_text(old.replace(FIELD, text))
        kept = version.read_text()
        for generated in (version, declarations, include / "ipybox/detail/kernel_package.hpp"):
            generated.unlink()  # the hash is of what a checkout has
        command(sys.executable, ROOT / "scripts/hash_declarations.py", include, declarations)
        version.write_text(kept)

    def setUp(self):
        self.workspace = Path(tempfile.mkdtemp(prefix="ipybox-outside-"))
        self.addCleanup(shutil.rmtree, self.workspace, ignore_errors=True)
        os.chmod(self.workspace, 0o755)
        if os.geteuid() == 0:  # the sandbox drops root
            os.chown(self.workspace, 65534, 65534)

    def run_outside(self, *arguments):
        environment = {"PATH": os.environ["PATH"], "IPYBOX_PYTHON": PYTHON, "IPYBOX_PLUGIN_PATH": str(self.plugins)}
        return subprocess.run(list(map(str, arguments)), cwd=self.workspace, env=environment, capture_output=True,
                              text=True, timeout=300)

    def ipybox(self, name, *arguments, directory="plugins"):
        return self.run_outside(self.prefix / "bin/ipybox", name, "--plugin-dir", self.build / directory, *arguments)

    def test_an_application(self):
        spans = self.place / "spans.jsonl"
        run = self.run_outside(self.build / "desk", self.workspace, spans)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        said = dict(line.split(": ", 1) for line in run.stdout.splitlines())
        for what, part in {
            "too early": "call start() first",
            "nobody to ask": "execute() has nobody to ask: set approvers",
            "denied": "ApprovalRejectedError",
            "thrown": "ZeroDivisionError",
            "input": "hello Ada",
            "no input": "nobody answers input() here",
            "chat": '"tool_use_id":"c1"',
            "unregistered": "crm",
            "display": "shown",
        }.items():
            self.assertIn(part, said[what], what)
        expected = {
            "all approved": "'customer Ada'", "asked": "crm.find_customer(name='Ada')", "accepted": "'customer Ada'",
            "stdout": r'"out\n"', "stderr": r'"err\n"', "value": "42", "error": "ZeroDivisionError division by zero",
            "variable": "int 42", "server": "crm local", "tool": "find_customer reads",
        }
        shown = {what: said[what].strip() for what in expected}
        self.assertEqual(shown, expected)
        told = [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for line in spans.read_text().splitlines()]
        by_id = {span["spanId"]: span for span in told}
        call = next(span for span in told if span["name"] == "call crm.find_customer")
        self.assertEqual(by_id[call["parentSpanId"]]["name"], "execution")
        self.assertTrue(any(span["parentSpanId"] == call["spanId"] for span in told), told)

    def test_plugins_of_every_kind(self):
        listed = self.ipybox("plugins")
        self.assertEqual((listed.returncode, listed.stderr), (0, ""))
        for name in ("approval office_hours", "transport greeter", "kernel patient_zmq", "sandbox logging",
                     "sandbox bubblewrap"):
            self.assert_listed(name, listed)
        config, policy = self.workspace / "mcp.json", self.workspace / "policy.json"
        config.write_text(json.dumps({"mcpServers": {"hall": {"type": "greeter", "address": "the hall"}}}))
        policy.write_text(json.dumps({"office_hours": {"open": True}}))
        arguments = ("--sandbox=logging", "--kernel", "patient_zmq", "--config", config, "--policy", policy,
                     "--log-level", "info", "-c", "from mcptools.hall import greet\nprint(greet.run())")
        run = self.ipybox("run", *arguments)
        self.assertEqual((run.returncode, run.stdout), (0, "hello from the hall\n"), run.stderr)
        self.assertIn("launches ", run.stderr)
        self.assertIn("a kernel with ", run.stderr)
        policy.write_text(json.dumps({"office_hours": {"open": False}}))
        run = self.ipybox("run", *arguments)
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertIn("nobody is at work", run.stderr)

    def test_mistakes_in_a_configuration_are_one_line(self):
        config, policy = self.workspace / "mcp.json", self.workspace / "policy.json"
        config.write_text(json.dumps({"mcpServers": {"hall": {"type": "greeter", "adress": "the hall"}}}))
        policy.write_text(json.dumps({"office_hours": {"open": "yes"}}))
        self.assert_refused(self.ipybox("run", "--config", config, "-c", "1"), "MCP server hall", "transport greeter", "/address: is required")
        self.assert_refused(self.ipybox("run", "--policy", policy, "-c", "1"), "policy.json", "approval office_hours", "open")
        self.assert_refused(self.ipybox("run", "--kernel", "patent_zmq", "-c", "1"), '"patent_zmq"', "patient_zmq",
                            str(self.build / "plugins"), "--plugin-dir")

    def assert_listed(self, name, listed):
        self.assertRegex(listed.stdout, f"(?m)^{name.replace(' ', ' +')} ")

    def assert_refused(self, run, *words):
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual(len(run.stderr.strip().splitlines()), 1, run.stderr)
        for word in words:
            self.assertIn(word, run.stderr)

    def test_mistakes_in_plugins_are_one_line_each(self):
        remedies = {
            "forgotten": ("IPYBOX_PLUGIN(name, descriptor)",),
            "absent": ("undefined symbol", "link the plugin with what defines it"),
            "malformed": ("approval malformed", 'malformed "properties"', "correct it"),
            "other_version": ("it was built for API 1", "rebuild it against the headers"),
            "changed_field": ("built for [ipybox ", "this program is [ipybox ", "rebuild it"),
        }
        listed = self.ipybox("plugins", directory="mistakes")
        self.assertEqual(listed.returncode, 2)
        lines = listed.stderr.strip().splitlines()
        self.assertEqual(len(lines), len(remedies), listed.stderr)
        for name, words in remedies.items():
            line = next(line for line in lines if f"/{name}.so: " in line)
            for word in words:
                self.assertIn(word, line)
        # The others are there nevertheless: of these the mistakes show when they are used.
        for name in ("sandbox bubblewrap", "approval null", "approval throwing", "approval changed_comment"):
            self.assert_listed(name, listed)
        examined = self.ipybox("doctor", directory="mistakes")
        for name in remedies:
            self.assertIn(f"FAILED  plugins: {self.build}/mistakes/{name}.so: ", examined.stdout)
        policy = self.workspace / "policy.json"
        for name, fault in (("null", "its factory returned null"), ("throwing", "its factory failed: no such hour")):
            policy.write_text(json.dumps(name))
            run = self.ipybox("run", "--policy", policy, "-c", "1", directory="mistakes")
            self.assert_refused(run, f"approval {name}", f"{name}.so", fault, "correct the")
        policy.write_text('{"first_match": ["changed_comment", "deny"]}')
        run = self.ipybox("run", "--policy", policy, "-c", "print('loaded')", directory="mistakes")
        self.assertEqual((run.returncode, run.stdout), (0, "loaded\n"), run.stderr)


if __name__ == "__main__":
    unittest.main()
