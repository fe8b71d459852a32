"""What ships ipybox to others, as far as it can be checked without Claude Code, a registry or a Docker
engine: the plugin marketplace, server.json, man pages and completions, the Dockerfile and the script that builds it.
tests/packages/ installs the Debian packages and does the Dockerfile's steps."""
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ["IPYBOX_TEST_PROGRAM"]
MARKETPLACE = json.loads((ROOT / ".claude-plugin/marketplace.json").read_text())
SERVER = json.loads((ROOT / "server.json").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
SETUP = (ROOT / "scripts/setup").read_text()
CONTROL = (ROOT / "packaging/debian/control").read_text()
REGISTRY_PACKAGES = json.loads((ROOT / "packaging/server-packages.json").read_text())
VERSION = re.search(r"version: '([0-9.]+)'", (ROOT / "meson.build").read_text())[1]


def words_of(variable):
    """The words of a shell array in scripts/setup."""
    return set(re.search(rf"^{variable}=\((.*?)\)", SETUP, re.M | re.S)[1].replace("'", "").split())


class MarketplaceTest(unittest.TestCase):
    def test_three_variants_of_one_plugin(self):
        plugins = {plugin["name"]: plugin for plugin in MARKETPLACE["plugins"]}
        self.assertEqual(set(plugins), {"codeact-default", "codeact-sandbox", "codeact-docker"})
        for plugin in plugins.values():
            self.assertTrue((ROOT / plugin["source"] / "skills/codeact/SKILL.md").is_file())
            # The entry says all: there is no plugin.json beside it.
            self.assertIs(plugin["strict"], False)
            self.assertFalse((ROOT / plugin["source"] / ".claude-plugin").exists())
            self.assertEqual(list(plugin["mcpServers"]), ["ipybox"])  # the skill names it
            self.assertIn("${PWD}", " ".join(plugin["mcpServers"]["ipybox"]["args"]))
        self.assertNotIn("--sandbox", plugins["codeact-default"]["mcpServers"]["ipybox"]["args"])
        self.assertIn("--sandbox", plugins["codeact-sandbox"]["mcpServers"]["ipybox"]["args"])
        docker = plugins["codeact-docker"]["mcpServers"]["ipybox"]
        self.assertEqual((docker["command"], docker["args"][-1]), ("docker", "ipybox"))
        self.assertIn("${PWD}:" + re.search(r"^WORKDIR (/app\S*)$", DOCKERFILE, re.M)[1], docker["args"])

    def test_their_flags_are_those_of_the_program(self):
        known = subprocess.run([PROGRAM, "serve", "--help"], check=True, capture_output=True, text=True, timeout=30)
        commands = [plugin["mcpServers"]["ipybox"]["args"] for plugin in MARKETPLACE["plugins"][:2]]
        commands.append(json.loads(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.M)[1])[1:])
        commands.append(["serve"] + [argument["name"] for argument in REGISTRY_PACKAGES[0]["packageArguments"]])
        for arguments in commands:
            self.assertEqual(arguments[0], "serve")
            for argument in arguments:
                if argument.startswith("-"):
                    self.assertRegex(known.stdout, rf"(^|\s){argument}\b")


class ReleaseTest(unittest.TestCase):
    def test_one_version_and_one_name(self):
        self.assertEqual({MARKETPLACE["version"], SERVER["version"], *(p["version"] for p in MARKETPLACE["plugins"])},
                         {VERSION})
        self.assertNotIn("packages", SERVER)  # nobody has pushed one
        self.assertEqual([package["registryType"] for package in REGISTRY_PACKAGES], ["oci"])
        # The registry takes the label as proof that the image belongs to the entry.
        self.assertIn(f'LABEL io.modelcontextprotocol.server.name="{SERVER["name"]}"', DOCKERFILE)
        self.assertLessEqual(len(SERVER["description"]), 100)
        self.assertRegex(SERVER["name"], r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$")

    def clone(self):
        place = Path(tempfile.mkdtemp(prefix="ipybox-release-"))
        self.addCleanup(shutil.rmtree, place)
        for name in ("SECURITY_CONTACT", "CHANGELOG.md", "meson.build", "server.json", ".claude-plugin/marketplace.json",
                     "README.md", *(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")),
                     "bindings/python/ipybox/_version.py", "scripts/release", "scripts/common.sh", "scripts/llms.py",
                     "packaging/server-packages.json"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
        (place / ".gitignore").write_text("build*/\n")
        self.git(place, "init", "--quiet")
        return place

    def git(self, place, *arguments):
        subprocess.run(["git", "-c", "user.name=Tester", "-c", "user.email=tester@example.com", *arguments], cwd=place,
                       check=True, capture_output=True, timeout=30)

    def release(self, place, *arguments):
        self.git(place, "add", "--all")
        self.git(place, "commit", "--allow-empty", "--quiet", "--message", "as it is")
        return subprocess.run([place / "scripts/release", *arguments], capture_output=True, text=True, timeout=60)

    def test_nothing_is_released_without_a_private_channel(self):
        place = self.clone()
        (place / "SECURITY_CONTACT").write_text("# nobody\n\n")
        refused = self.release(place)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("SECURITY_CONTACT names nobody", refused.stderr)
        self.assertFalse((place / "build").exists())

        (place / "SECURITY_CONTACT").write_text("# them\nsecurity@example.com\n")
        refused = self.release(place)
        self.assertIn("docs/security.md does not name security@example.com", refused.stderr)

        (place / "docs/security.md").write_text("Write to security@example.com.\n")
        (place / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION}, 2026-12-01\n\nNew.\n\n## 0.0.9, 2026-01-01\n\nOld.\n")
        made = self.release(place, "--no-packages", "--image", "ghcr.io/somebody/ipybox")
        self.assertEqual(made.returncode, 0, made.stderr)
        release = place / "build/release"
        archive = release / f"ipybox-{VERSION}.tar.gz"
        with tarfile.open(archive) as content:
            self.assertIn(f"ipybox-{VERSION}/meson.build", content.getnames())
        self.assertEqual((release / "SHA256SUMS").read_text(),
                         f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive.name}\n")
        self.assertEqual((release / "notes.md").read_text().strip(), "New.")
        entry = json.loads((release / "server.json").read_text())
        self.assertEqual(entry["packages"][0]["identifier"], f"ghcr.io/somebody/ipybox:{VERSION}")
        self.release(place, "--no-packages")
        self.assertEqual(json.loads((release / "server.json").read_text()), SERVER)

        (place / "server.json").write_text("{}")
        refused = self.release(place, "--check")
        self.assertIn(f"server.json does not say version {VERSION}", refused.stderr)

    def test_the_wheel_and_the_package_have_this_version(self):
        pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        names = {name for page in pages for name in re.findall(r"ipybox_cpp-(.+?)-py3-none-", page.read_text())}
        self.assertEqual(names, {VERSION})
        self.assertIn(f'VERSION = "{VERSION}"\n', (ROOT / "bindings/python/ipybox/_version.py").read_text())

    def test_a_version_is_set_in_all_places(self):
        place = self.clone()
        self.assertEqual(self.release(place, "--set-version", "new").returncode, 2)
        self.assertEqual(self.release(place, "--set-version", "7.8.9").returncode, 0)
        self.assertIn("version: '7.8.9'", (place / "meson.build").read_text())
        for name in ("server.json", ".claude-plugin/marketplace.json"):
            text = (place / name).read_text()
            self.assertNotIn(VERSION, text)
            self.assertEqual(text.count('"7.8.9"'), (ROOT / name).read_text().count(f'"{VERSION}"'))
        self.assertIn('VERSION = "7.8.9"', (place / "bindings/python/ipybox/_version.py").read_text())
        for name in ("README.md", "docs/getting-started.md", "llms-full.txt"):
            self.assertIn("ipybox_cpp-7.8.9-py3", (place / name).read_text())
            self.assertNotIn(f"ipybox_cpp-{VERSION}", (place / name).read_text())

    def test_the_docs_tell_where_to_report(self):
        lines = (ROOT / "SECURITY_CONTACT").read_text().splitlines()
        contact = [line for line in lines if line.strip() and not line.startswith("#")]
        expected = contact[0] if contact else "There is no private channel yet"
        self.assertIn(expected, (ROOT / "docs/security.md").read_text())


class CommandLineTest(unittest.TestCase):
    """Man pages and completions; test_packages.py uses them as a shell does."""

    @classmethod
    def setUpClass(cls):
        cls.place = Path(tempfile.mkdtemp(prefix="ipybox-pages-"))
        cls.addClassCleanup(shutil.rmtree, cls.place)
        cls.text = subprocess.run([PROGRAM, "--describe"], check=True, capture_output=True, text=True, timeout=30).stdout
        cls.described = json.loads(cls.text)
        for what in ("man", "bash", "zsh"):
            cls.make(what, cls.place / what)

    @classmethod
    def make(cls, what, output):
        subprocess.run([ROOT / "scripts/command_line.py", what, output], input=cls.text, check=True, text=True, timeout=30,
                       env=os.environ | {"SOURCE_DATE_EPOCH": "86400"})

    def commands(self, command=None, path=()):
        command = command or self.described
        yield path, command
        for inner in command["commands"]:
            yield from self.commands(inner, (*path, inner["name"]))

    def test_all_that_help_names_is_described(self):
        for path, command in self.commands():
            shown = subprocess.run([PROGRAM, *path, "--help"], check=True, capture_output=True, text=True, timeout=30).stdout
            named = set(re.findall(r"^ +(?:-\w,)?(--[\w-]+)", shown, re.M))
            described = {name for option in command["options"] for name in option["names"] if name.startswith("--")}
            self.assertEqual(described, named, path)

    def test_pages_name_every_option(self):
        pages = {page.name: page.read_text() for page in (self.place / "man").iterdir()}
        self.assertEqual(set(pages), {"ipybox.1", *(f"ipybox-{path[0]}.1" for path, _ in self.commands() if path)})
        for path, command in self.commands():
            page = pages["-".join(("ipybox", *path[:1])) + ".1"]
            self.assertIn(f'"1970-01-02" "ipybox {VERSION}"', page)
            for option in command["options"]:
                for name in option["names"] or [option["positional"]]:
                    self.assertIn("\\fB" + name.replace("-", "\\-") + "\\fR", page, path)

    def complete(self, *words):
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _ipybox\n'
                  "printf '%s\\n' \"${COMPREPLY[@]}\"")
        return set(subprocess.run(["bash", "-c", script, "bash", self.place / "bash", *words], check=True,
                                  capture_output=True, text=True, timeout=30, cwd=self.place).stdout.split())

    def test_bash_completes(self):
        for path, command in self.commands():
            inner = {one["name"] for one in command["commands"]}
            if inner:
                self.assertEqual(self.complete("ipybox", *path, ""), inner)
            for option in command["options"]:
                long = [name for name in option["names"] if name.startswith("--")]
                for name in long:
                    self.assertIn(name, self.complete("ipybox", *path, name))
                if long and option.get("choices") and not option["value_optional"]:
                    for words in ((long[0], ""), (long[0], "="), (long[0], "=", "")):
                        self.assertEqual(self.complete("ipybox", *path, *words), set(option["choices"]), long)
        self.assertEqual(self.complete("ipybox", "run", "--workspace", ""), {"man"})
        self.assertEqual(self.complete("ipybox", "run", "--config", ""), {"man", "bash", "zsh"})
        self.assertEqual(self.complete("ipybox", "run", "--timeout", ""), set())


class DockerfileTest(unittest.TestCase):
    def stages(self):
        return DOCKERFILE.split("\nFROM ")[1:]

    def test_it_installs_the_package_and_what_kernels_need(self):
        build, runtime = self.stages()
        self.assertIn("scripts/package deb --out /packages", build)
        self.assertIn("/packages/ipybox_*.deb", runtime)
        for name in words_of("python_packages"):
            self.assertIn(f"'{name}'", runtime)

    def test_what_the_package_is_built_with_is_what_setup_installs(self):
        build_depends = re.search(r"^Build-Depends:\n((?: .*\n)+)", CONTROL, re.M)[1]
        for name in words_of("packages"):
            if name.endswith("-dev") or name in ("meson", "ninja-build", "pkg-config"):
                self.assertRegex(build_depends, rf"(?m)^ {re.escape(name)}\b")
        for part in re.findall(r'"libboost-(\w+)\$version-dev"', SETUP):
            if part not in ("test", "process"):  # for tests; a library from 1.86 on
                for package in (build_depends, CONTROL.partition("Package: libipybox-dev")[2]):
                    self.assertRegex(package, rf"libboost-{part}(1\.81|\$\{{boost:Version\}})-dev")

    def test_the_script_passes_the_ids_of_the_host(self):
        directory = Path(tempfile.mkdtemp(prefix="ipybox-docker-"))
        self.addCleanup(shutil.rmtree, directory)
        recorder = directory / "docker"
        recorder.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        recorder.chmod(0o755)

        def docker(*arguments):
            return subprocess.run([ROOT / "scripts/docker", *arguments], capture_output=True, text=True, timeout=30,
                                  env={"PATH": f"{directory}:{os.environ['PATH']}"})

        run = docker("--user", "1234:567", "--tag", "mine", "--", "--pull")
        self.assertEqual(run.stdout.split(), ["build", "--build-arg", "UID=1234", "--build-arg", "GID=567",
                                              "--tag", "mine", "--pull", "."], run.stderr)
        for argument in ("UID", "GID"):
            self.assertIn(f"\nARG {argument}=", DOCKERFILE)
        if os.geteuid() == 0:
            run = docker()
            self.assertEqual(run.returncode, 1)
            self.assertIn("--user", run.stderr)
        else:
            self.assertIn(f"UID={os.getuid()}", docker().stdout.split())
