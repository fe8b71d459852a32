"""The steps of the Dockerfile, done one after the other in a system that debootstrap made, where the server answers.

This is no Docker: layers and what the images of Debian leave out are not looked at.
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from clean_root import ROOT, CleanRoot, packages

sys.path.insert(0, os.environ["IPYBOX_TEST_SUPPORT"])
from mcp_lines import code_action, serve


def stages():
    """The instructions of each stage: its name and what follows the word."""
    text = re.sub(r"\\\n(?:#.*\n)*", " ", (ROOT / "Dockerfile").read_text())
    found = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        word, rest = line.split(None, 1)
        if word == "FROM":
            found.append((rest, []))
        else:
            found[-1][1].append((word, rest.strip()))
    return found


class Replay:
    """One stage in a system of its own."""

    def __init__(self, root):
        self.root, self.environment, self.user, self.directory, self.entry = root, {}, "root", "/", None

    def step(self, word, rest):
        if word == "RUN":
            self.root.do("sh", "-c", rest, user=self.user, directory=self.directory, environment=self.environment,
                         timeout=1500)
        elif word in ("ARG", "ENV"):
            name, _, value = rest.partition("=")
            self.environment[name] = value
        elif word == "USER":
            self.user = rest
        elif word == "WORKDIR":
            self.root.do("mkdir", "--parents", rest)
            self.directory = rest
        elif word == "ENTRYPOINT":
            self.entry = json.loads(rest)
        elif word == "COPY":
            self.copy(*shlex.split(rest))
        elif word != "LABEL":
            raise AssertionError(f"{word}: this test does not know that instruction")

    def copy(self, *words):
        source, target = words[-2:]
        inside = self.root.path / target.lstrip("/")
        if words[0] == "--from=build":
            self.root.copy(inside, *packages().values())
            return
        listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", source], cwd=ROOT,
                                check=True, capture_output=True, text=True).stdout.splitlines()
        with tempfile.NamedTemporaryFile() as archive:
            within = ROOT if source == "." else ROOT / source
            names = [str((ROOT / name).relative_to(within)) for name in listed if (ROOT / name).is_file()]
            subprocess.run(["tar", "--create", "--file", archive.name, "--files-from=-"], cwd=within, check=True,
                           input="\n".join(names), text=True)
            self.root.copy(inside)
            self.root.copy(self.root.path / "tmp", archive.name)
            self.root.do("tar", "--extract", "--no-same-owner", "--directory", target, "--file",
                         f"/tmp/{Path(archive.name).name}")


class DockerfileTest(unittest.TestCase):
    def replay(self, number, cached=False):
        root = CleanRoot()
        self.addCleanup(root.remove)
        if cached:
            root.share_compiler_cache()
        replay = Replay(root)
        for word, rest in stages()[number][1]:
            replay.step(word, rest)
        return replay

    def test_the_image_serves(self):
        replay = self.replay(1)
        self.assertNotEqual(replay.root.run("sh", "-c", "command -v g++").returncode, 0)
        for flags in ((), ("--sandbox",)):
            command = replay.root.command(*replay.entry, *flags, user=replay.user, directory=replay.directory,
                                          environment=replay.environment)
            answers = serve(command, code_action("import os\nprint(6 * 7, os.getuid())"))
            self.assertIn("42 1000", json.dumps(answers[2]["result"]["content"]), flags)

    def test_the_build_stage_makes_the_package(self):
        replay = self.replay(0, cached=True)
        made = replay.root.do("ls", "/packages").split()
        self.assertEqual(sorted(name.split("_")[0] for name in made), ["ipybox", "libipybox-dev"])
        self.assertIn("/usr/bin/ipybox", replay.root.do("sh", "-c", "dpkg-deb --contents /packages/ipybox_*.deb"))
