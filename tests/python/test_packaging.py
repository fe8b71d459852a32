"""What ships ipybox to others, as far as it can be checked without Claude Code, a registry or a Docker
engine: the plugin marketplace, server.json, the Dockerfile and the script that builds it."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ["IPYBOX_TEST_PROGRAM"]
MARKETPLACE = json.loads((ROOT / ".claude-plugin/marketplace.json").read_text())
SERVER = json.loads((ROOT / "server.json").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
SETUP = (ROOT / "scripts/setup").read_text()
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
        known = subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True, timeout=30)
        if known.returncode != 0:
            self.skipTest("this ipybox has no command serve")
        commands = [plugin["mcpServers"]["ipybox"]["args"] for plugin in MARKETPLACE["plugins"][:2]]
        commands.append(json.loads(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.M)[1])[1:])
        commands.append(["serve"] + [argument["name"] for argument in SERVER["packages"][0]["packageArguments"]])
        for arguments in commands:
            self.assertEqual(arguments[0], "serve")
            for argument in arguments:
                if argument.startswith("-"):
                    self.assertRegex(known.stdout, rf"(^|\s){argument}\b")


class ReleaseTest(unittest.TestCase):
    def test_one_version_and_one_name(self):
        self.assertEqual({MARKETPLACE["version"], SERVER["version"], *(p["version"] for p in MARKETPLACE["plugins"])},
                         {VERSION})
        package = SERVER["packages"][0]
        self.assertEqual(package["registryType"], "oci")
        self.assertTrue(package["identifier"].endswith(":" + VERSION))
        # The registry takes the label as proof that the image belongs to the entry.
        self.assertIn(f'LABEL io.modelcontextprotocol.server.name="{SERVER["name"]}"', DOCKERFILE)
        self.assertLessEqual(len(SERVER["description"]), 100)
        self.assertRegex(SERVER["name"], r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$")


    def clone(self):
        place = Path(tempfile.mkdtemp(prefix="ipybox-release-"))
        self.addCleanup(shutil.rmtree, place)
        for name in ("SECURITY_CONTACT", "CHANGELOG.md", "meson.build", "server.json", ".claude-plugin/marketplace.json",
                     "docs/security.md", "scripts/release", "scripts/common.sh"):
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
        (place / "CHANGELOG.md").write_text(f"## {VERSION}, 2026-12-01\n")
        made = self.release(place)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertTrue((place / f"build/release/ipybox-{VERSION}.tar.gz").stat().st_size > 0)

        (place / "server.json").write_text("{}")
        refused = self.release(place, "--check")
        self.assertIn(f"server.json does not say version {VERSION}", refused.stderr)

    def test_the_wheel_and_the_package_have_this_version(self):
        pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        names = {name for page in pages for name in re.findall(r"ipybox_cpp-(.+?)-py3-none-", page.read_text())}
        self.assertEqual(names, {VERSION})
        self.assertIn(f'VERSION = "{VERSION}"\n', (ROOT / "bindings/python/ipybox/_version.py").read_text())

    def test_the_docs_tell_where_to_report(self):
        lines = (ROOT / "SECURITY_CONTACT").read_text().splitlines()
        contact = [line for line in lines if line.strip() and not line.startswith("#")]
        expected = contact[0] if contact else "There is no private channel yet"
        self.assertIn(expected, (ROOT / "docs/security.md").read_text())


class DockerfileTest(unittest.TestCase):
    def stages(self):
        return DOCKERFILE.split("\nFROM ")[1:]

    def test_what_it_builds_with_is_what_setup_installs(self):
        build, runtime = self.stages()
        needed = {name for name in words_of("packages") if name.endswith("-dev") or name in ("g++", "meson")}
        self.assertLessEqual(needed, set(build.split()))
        for part in re.findall(r'"libboost-(\w+)\$version-dev"', SETUP):
            if part not in ("test", "process"):  # for tests; a library from 1.86 on
                self.assertIn(f"libboost-{part}1.81-dev", build)
                self.assertIn(f"libboost-{part}1.81.0", runtime)
        for name in words_of("python_packages"):
            self.assertIn(f"'{name}'", runtime)

    def test_what_runs_in_it_is_installed_in_it(self):
        release = Path("/etc/os-release").read_text()
        if 'VERSION_ID="12"' not in release or "ID=debian" not in release or not shutil.which("readelf"):
            self.skipTest("packages of Debian 12 are known on Debian 12 only")
        build = Path(PROGRAM).parent
        files = [PROGRAM, *map(str, build.glob("plugins/*/*.so"))]
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", subprocess.run(
            ["readelf", "--dynamic", *files], check=True, capture_output=True, text=True).stdout))
        # Those of a sanitized build; the image's is none.
        needed = {library for library in needed if not re.match(r"lib(a|l|t|ub)san\.", library)}
        places = dict(re.findall(r"^\s*(\S+) => (/\S+)", subprocess.run(
            ["ldd", *files], check=True, capture_output=True, text=True).stdout, re.M))
        of_every_image = {"libc6", "libgcc-s1", "libstdc++6"}
        installed = set(self.stages()[1].split()) | of_every_image
        for library in needed - {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}:
            paths = {os.path.realpath(places[library])} | {re.sub("^/usr/", "/", os.path.realpath(places[library]))}
            owners = subprocess.run(["dpkg", "--search", *paths], capture_output=True, text=True).stdout
            self.assertTrue({line.split(":")[0] for line in owners.splitlines()} & installed, f"{library}: {owners}")

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
