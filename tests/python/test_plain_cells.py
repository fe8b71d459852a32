"""Cells that a kernel of ipybox's own takes as they are, because IPython would: the two agree, or IPython is asked."""
from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

PYTHON = os.environ["IPYBOX_TEST_PYTHON"]
PACKAGE = Path(os.environ["IPYBOX_TEST_PYTHON_PACKAGE"])

COMPARE = """
import json, sys
from ipybox_kernel.interactive import Plain, build_shell
shell = build_shell()
plain = Plain(shell)
shell.user_ns["exit_alias"] = shell.user_ns.get("exit")
taken, wrong = 0, []
for code in json.load(sys.stdin):
    if not plain.is_plain(code):
        continue
    taken += 1
    cell = plain.transform(code)[0]
    try:
        expected = shell.transform_cell(code)
    except Exception as error:
        expected = repr(type(error))
        try:
            compile(cell, "cell", "exec")
        except Exception as other:
            cell = repr(type(other))
    if cell != expected:
        wrong.append((code, expected))
print(json.dumps([taken, wrong]))
"""

LINES = (
    "x = 1", "x", "x?", "?x", "x??", "!ls", "files = !ls", "%time x", "%%bash\nls", "ls", "cd ..", "time x", "exit", "exit_alias",
    "  x = 1", "\tx", "    if x:\n        y", "", "\n", "\n\nx = 1", "x = 1\n\n", "x = 1\n# %magic", "s = '%d' % 3", "a = b != c",
    ">>> x = 1\n>>> y = 2", "... x", "In [1]: x = 1", "/f 1 2", ",f a b", ";f a b", "def f():\n    return 1", "def f():\n    !ls",
    "for i in range(3):\n    print(i)", "await x", "async def f(): pass", "x = '''\n%time\n'''", "x = 1; y", "x # ?", "print('a'\\\n 'b')",
    "if True:\n  pass\n%time x", "class A:\n    x: int = 1\n", "é = 1", "λ = lambda x: x", "x\r\ny", "x\f", "@d\ndef f(): ...", "f'{x!r}'",
    "print 1", "autocall 1", "history", "pinfo x", "macro", "with open('x') as f:\n    pass", "match x:\n    case 1: pass", "import os",
)


class Plain(unittest.TestCase):
    def compare(self, cells: list[str]) -> int:
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run([PYTHON, "-c", COMPARE], input=json.dumps(cells), capture_output=True, text=True, timeout=120,
                                  env={"PYTHONPATH": str(PACKAGE), "PATH": "/usr/bin:/bin", "HOME": home})
        self.assertEqual(done.returncode, 0, done.stderr)
        taken, wrong = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(wrong, [])
        return taken

    def test_single_lines_and_their_combinations(self) -> None:
        cells = [*LINES, *(f"{one}\n{two}" for one in LINES for two in LINES)]
        self.assertGreater(self.compare(cells), 100)

    def test_whole_modules(self) -> None:
        modules = [path.read_text() for path in sorted(PACKAGE.glob("ipybox_kernel/*.py"))]
        standard = [path.read_text(errors="replace") for path in sorted(Path(os.__file__).parent.glob("*.py"))[:60]]
        self.assertGreater(self.compare(modules + standard), 0)


if __name__ == "__main__":
    unittest.main()
