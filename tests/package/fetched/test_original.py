"""What counts as done: the original's own tests, with this package in the place of it."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from original import IPYBOX, MCPYGEN, PACKAGES, fetch  # noqa: E402
from support import PACKAGE, PROGRAM, environment, run, virtual_environment  # noqa: E402


class OriginalTest(unittest.TestCase):
    maxDiff = None

    def check(self, repository):
        tree = fetch(repository)
        venv = self.environment_with_the_package()
        report = tree / "report.xml"
        env = environment(PATH=f"{venv / 'bin'}:{os.environ['PATH']}", XDG_CONFIG_HOME=str(tree / "settings"),
                          PYTHONPATH=str(tree))
        del env["IPYBOX_PYTHON"], env["IPYBOX_PROGRAM"]
        left_out = [word for beginning in repository.left_out for word in ("--deselect", beginning)]
        done = subprocess.run(
            [venv / "bin/python", "-m", "pytest", "--quiet", "--rootdir", tree, "-p", "no:cacheprovider", "--timeout", "120",
             "--junit-xml", report, "--import-mode", "importlib", *left_out, *self.ignored(repository), "tests"],
            cwd=tree, env=env, capture_output=True, text=True, timeout=1500, check=False, stdin=subprocess.DEVNULL)
        said = done.stdout[-20000:] + done.stderr[-4000:]
        self.assertTrue(report.exists(), said)
        counts = Counter()
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            outcomes = [part.tag for part in case if part.tag in ("failure", "error", "skipped")]
            counts[outcomes[0] if outcomes else "passed"] += 1
        print(f"\n{repository.name}: {dict(counts)}, left out: {len(repository.left_out)} places")
        self.assertEqual((counts["failure"], counts["error"]), (0, 0), said)
        self.assertEqual(counts["skipped"], repository.skipped, said)  # those of macOS
        self.assertEqual(done.returncode, 0, said)
        return counts["passed"], tree

    @staticmethod
    def environment_with_the_package():
        """As pip would install it: a client of MCP servers gives them no environment of its own."""
        venv = virtual_environment("original", PACKAGES)
        [packages] = venv.glob("lib/python*/site-packages")
        (packages / "ipybox.pth").write_text(f"{PACKAGE}\n")
        program = venv / "bin/ipybox"
        program.unlink(missing_ok=True)
        program.symlink_to(PROGRAM)
        return venv

    @staticmethod
    def ignored(repository):
        """Files that are left out as a whole are not even imported."""
        return [word for place in repository.left_out if place.endswith(".py") for word in ("--ignore", place)]

    def check_left_out(self, repository, tree):
        """Each place that is left out is one of its tests."""
        for place in repository.left_out:
            file, *names = place.split("::")
            text = (tree / file).read_text()
            for name in names:
                self.assertRegex(text, rf"(class|def) {re.escape(name)}", place)

    def test_ipybox(self):
        passed, tree = self.check(IPYBOX)
        self.assertGreaterEqual(passed, 100)
        self.check_left_out(IPYBOX, tree)

    def test_mcpygen(self):
        passed, tree = self.check(MCPYGEN)
        self.assertGreaterEqual(passed, 40)
        self.check_left_out(MCPYGEN, tree)


class BesideTest(unittest.TestCase):
    def test_the_import_refuses_with_the_remedy(self):
        place = Path(tempfile.mkdtemp(prefix="ipybox-original-"))
        self.addCleanup(shutil.rmtree, place)
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
             "--dest", place, "ipybox==0.9.2"])
        run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place / "site",
             *place.glob("*.whl")])
        paths = os.pathsep.join([str(PACKAGE), str(place / "site")])
        done = subprocess.run([sys.executable, "-c", "import ipybox"], capture_output=True, text=True, check=False,
                              env=environment(PYTHONPATH=paths))
        self.assertIn("ImportError: the distributions ipybox 0.9.2 and ipybox-cpp are both installed", done.stderr)
        self.assertIn("pip uninstall ipybox ipybox-cpp", done.stderr)


if __name__ == "__main__":
    unittest.main()
