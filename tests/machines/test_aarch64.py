"""What scripts/cross built for aarch64, under qemu-user: its filters, its launcher and its program.

qemu-user has neither seccomp, Landlock nor openat2: neither sandboxes nor kernels are started here.
"""
import json
import os
import subprocess
import tempfile
import unittest
import zipfile
from pathlib import Path

from filters import ROOT, FilterCases

CROSS = ROOT / "build-cross"
BUILT = CROSS / "aarch64"
NATIVE = os.environ["IPYBOX_TEST_PROGRAM"]
EMULATED = ("qemu-aarch64-static", "-L", CROSS / "sysroot")


def emulated(program, *words, **how):
    return subprocess.run([*EMULATED, BUILT / program, *words], capture_output=True, text=True, timeout=300, **how)


class FilterTest(FilterCases, unittest.TestCase):
    machine = "aarch64"
    compiler = ("aarch64-linux-gnu-gcc", f"--sysroot={CROSS / 'sysroot'}")

    @classmethod
    def setUpClass(cls):
        made = emulated("print_filters")
        assert made.returncode == 0, made.stderr
        cls.output = made.stdout
        cls.read()


class LauncherTest(unittest.TestCase):
    LAUNCHER = "launcher/ipybox-launcher"

    def test_it_is_a_static_program_of_that_machine(self):
        header = (BUILT / self.LAUNCHER).read_bytes()[:20]
        self.assertEqual((header[:5], header[18]), (b"\x7fELF\x02", 183))
        shown = subprocess.run(["readelf", "--program-headers", BUILT / self.LAUNCHER], check=True, capture_output=True,
                               text=True).stdout
        self.assertNotIn("INTERP", shown)

    def test_it_limits_what_it_becomes(self):
        run = emulated(self.LAUNCHER, "--rlimit-nofile", "64", "--", "/bin/sh", "-c", "ulimit -n; exit 3")
        self.assertEqual((run.returncode, run.stdout), (3, "64\n"), run.stderr)

    def test_without_its_filter_it_starts_nothing(self):
        # The emulator cannot install one.
        for words in (("--seccomp-file", "/dev/stdin"), ("--no-exec",)):
            run = emulated(self.LAUNCHER, *words, "--", "/bin/sh", "-c", "echo started", input="\x06\0\0\0\0\0\xff\x7f")
            self.assertEqual((run.returncode, run.stdout), (126, ""), words)
            self.assertIn("ipybox-launcher: ", run.stderr)

    def test_mistakes_are_named(self):
        run = emulated(self.LAUNCHER, "--rlimit-nofile", "many", "--", "/bin/true")
        self.assertEqual(run.returncode, 2)
        self.assertIn("an option needs a whole number", run.stderr)


class ProgramTest(unittest.TestCase):
    def same(self, *words):
        """What both programs print; that of this machine is what is expected."""
        native = subprocess.run([NATIVE, *words], capture_output=True, text=True, timeout=60)
        other = emulated("ipybox", *words)
        self.assertEqual((other.returncode, other.stdout), (native.returncode, native.stdout), other.stderr)
        return other.stdout

    def test_it_has_the_same_commands(self):
        self.assertIn('"name":"serve"', self.same("--describe"))

    def test_its_plugins_are_linked_in(self):
        listed = emulated("ipybox", "plugins", "--json")
        self.assertEqual((listed.returncode, listed.stderr), (0, ""))
        found = {(plugin["kind"], plugin["name"]) for plugin in json.loads(listed.stdout)}
        shown = subprocess.run([NATIVE, "plugins", "--json"], check=True, capture_output=True, text=True).stdout
        self.assertEqual(found, {(plugin["kind"], plugin["name"]) for plugin in json.loads(shown)})

    def test_it_generates_the_same_modules(self):
        tools = {"tools": [{"name": "add", "description": "Adds", "inputSchema": {
            "type": "object", "required": ["a"], "properties": {
                "a": {"type": "number", "minimum": 0}, "b": {"enum": ["x", 1, None]},
                "c": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}}}}}]}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(json.dumps(tools))
            file.flush()
            self.assertIn("def run(", self.same("apigen", "--tools-json", file.name, "--stdout", "add", "server"))

    def test_it_refuses_a_sandbox_that_it_cannot_make(self):
        with tempfile.TemporaryDirectory() as workspace:
            run = emulated("ipybox", "run", "--sandbox", "--workspace", workspace, "-c", "open('ran', 'w')",
                           env=os.environ | {"IPYBOX_PYTHON": os.environ["IPYBOX_TEST_PYTHON"]})
            self.assertEqual((run.returncode, run.stdout), (2, ""), run.stderr)
            self.assertEqual(os.listdir(workspace), [])


class WheelTest(unittest.TestCase):
    """What `scripts/wheel --arch aarch64` made."""

    def test_its_program_is_of_that_machine(self):
        wheels = list((ROOT / "dist").glob("ipybox_cpp-*_aarch64.whl"))
        self.assertEqual(len(wheels), 1, "run scripts/wheel --arch aarch64")
        self.assertRegex(wheels[0].name, r"-py3-none-manylinux_2_\d+_aarch64\.whl$")
        with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(wheels[0]) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".data/scripts/ipybox"))
            program = Path(wheel.extract(name, place))
            program.chmod(0o755)
            self.assertEqual(program.read_bytes()[18], 183)
            shown = subprocess.run([*EMULATED, program, "--version"], capture_output=True, text=True, timeout=60)
            native = subprocess.run([NATIVE, "--version"], capture_output=True, text=True, timeout=60)
            self.assertEqual((shown.returncode, shown.stdout), (0, native.stdout), shown.stderr)
            linked = wheel.read(next(name for name in wheel.namelist() if name.endswith("LINKED.md"))).decode()
            self.assertIn("openssl", linked)
