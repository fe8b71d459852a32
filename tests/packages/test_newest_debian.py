"""The wheel of dist/ on the Debian to come, whose CPython, PyPy, bubblewrap and libraries are newer than this machine's."""
import sys
import unittest

from clean_root import ROOT, CleanRoot

sys.path.insert(0, str(ROOT / "tests/wheel"))
from installation import WHEEL, built

# What pip builds for PyPy, because PyPI has no binaries for it, takes a compiler.
SYSTEM = ("ca-certificates", "python3-venv", "bubblewrap", "pypy3-venv", "pypy3-dev", "gcc", "libc6-dev")
WHAT_RUNS = "import sys; print(sys.implementation.name, *sys.version_info[:2])"
SCRIPT = f"""
import asyncio, ipybox
async def main():
    async with ipybox.CodeExecutor(sandbox=True) as executor:
        print((await executor.execute({WHAT_RUNS!r})).text)
asyncio.run(main())
"""


class NewestDebianTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = CleanRoot("forky", *SYSTEM)
        cls.addClassCleanup(cls.root.remove)
        cls.root.do("update-ca-certificates")
        cls.root.do("useradd", "--create-home", "ada")
        cls.ada("mkdir", "work")
        wheel = built(WHEEL)
        cls.root.copy(cls.root.path / "packages", wheel)
        cls.wheel = f"/packages/{wheel.name}"

    @classmethod
    def ada(cls, *words, directory="/home/ada", **how):
        return cls.root.do(*words, user="ada", directory=directory, timeout=900, **how)

    def installed(self, python, *packages):
        place = f"/home/ada/{python}"
        self.ada(python, "-m", "venv", place)
        self.ada(f"{place}/bin/python", "-m", "pip", "install", "--quiet", "--prefer-binary", *packages)
        return f"{place}/bin"

    def test_kernels_are_forked_from_the_newest_cpython(self):
        programs = self.installed("python3", f"{self.wheel}[kernel]", "pandas")
        doctor = self.ada(f"{programs}/ipybox", "doctor", directory="/home/ada/work")
        self.assertRegex(doctor, r"(?m)^ok +Python: 3\.1[4-9]")
        self.assertRegex(doctor, r"(?m)^ok +forked kernels: .*matplotlib.*numpy.*pandas")
        version = self.ada(f"{programs}/python", "-c", WHAT_RUNS)
        self.assertIn("cpython 3 1", version)
        for words in (["ipybox", "run", "-c", WHAT_RUNS], ["ipybox", "run", "--kernel", "zmq", "-c", WHAT_RUNS], ["python", "-c", SCRIPT]):
            self.assertEqual(self.ada(f"{programs}/{words[0]}", *words[1:], directory="/home/ada/work"), version, words)

    def test_pypy_has_kernels_of_zmq(self):
        programs = self.installed("pypy3", self.wheel, "ipykernel", "pydantic>=2.7")
        version = self.ada(f"{programs}/python", "-c", WHAT_RUNS)
        self.assertIn("pypy 3 1", version)
        run = self.root.run(f"{programs}/ipybox", "run", "-c", WHAT_RUNS, user="ada", directory="/home/ada/work")
        self.assertEqual((run.returncode, run.stdout), (0, version), run.stderr)
        self.assertRegex(run.stderr, "kernels of zmq are used: .*is pypy")
        self.assertEqual(self.ada(f"{programs}/python", "-c", SCRIPT, directory="/home/ada/work"), version)
        refused = self.root.run(f"{programs}/ipybox", "run", "--kernel", "fork", "-c", "1", user="ada", directory="/home/ada/work")
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("take --kernel zmq, or name a CPython with --python", refused.stderr)


if __name__ == "__main__":
    unittest.main()
