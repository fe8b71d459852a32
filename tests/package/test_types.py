"""The package as type checkers and other versions of Python see it."""
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

from support import NODE_MODULES, PACKAGE, PYTHON, ROOT, environment, interpreters, run

SOURCES = sorted((PACKAGE / "ipybox").rglob("*.py"))
# What programs write, as a checker has to understand it.
PROGRAM = """
import asyncio
from pathlib import Path
from typing import assert_type
from ipybox import (ApprovalRequest, BlockingApprovalRequest, BlockingCodeExecutor, CodeExecutionChunk, CodeExecutionDisplay, CodeExecutionResult, CodeExecutor,
                    Decision, InputRequest, ToolCall, generate_mcp_sources)

async def judge(call: ToolCall) -> Decision | None:
    return None

async def main() -> None:
    names = await generate_mcp_sources("own", {"command": "python"}, Path("mcptools"))
    assert_type(names, list[str])
    async with CodeExecutor(sandbox=True, approval=judge) as executor:
        assert_type(executor, CodeExecutor)
        assert_type((await executor.execute("1")).text, str | None)
        async for item in executor.stream("1", chunks=True):
            match item:
                case ApprovalRequest():
                    await item.accept()
                case CodeExecutionChunk():
                    print(item.text)
                case CodeExecutionResult():
                    assert_type(item.images, list[Path])
                case CodeExecutionDisplay() | InputRequest():
                    pass
    with BlockingCodeExecutor(sandbox=True) as blocking:
        assert_type(blocking.execute("1", timeout=1).text, str | None)
        for event in blocking.stream("1", chunks=True):
            if isinstance(event, BlockingApprovalRequest):
                assert_type(event.accept(), bool)
    CodeExecutor(approval=lambda call: call.tool == "add")
    CodeExecutor(approval={"first_match": [judge, "ask"]})

asyncio.run(main())
"""


class TypesTest(unittest.TestCase):
    def setUp(self):
        self.program = Path(tempfile.mkdtemp(prefix="ipybox-types-")) / "program.py"
        self.addCleanup(shutil.rmtree, self.program.parent)
        self.program.write_text(PROGRAM)

    def pyright(self, where, **settings):
        config = where / "pyrightconfig.json"
        if settings:
            config.write_text(json.dumps(settings))
        return subprocess.run([NODE_MODULES / ".bin/node", NODE_MODULES / "pyright/index.js", "--project", where],
                              capture_output=True, text=True, timeout=300, check=False)

    def test_pyright_strict(self):
        done = self.pyright(PACKAGE)
        self.assertRegex(done.stdout, r"\b0 errors, 0 warnings", done.stdout)
        settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(PACKAGE)]}
        self.assertRegex(self.pyright(self.program.parent, **settings).stdout, r"\b0 errors, 0 warnings")
        for right, wrong in (('"mcptools"', "5"), ("timeout=1", "timeout='1'")):  # the check checks
            self.program.write_text(PROGRAM.replace(right, wrong))
            self.assertRegex(self.pyright(self.program.parent, **settings).stdout, r"\b[1-9]\d* errors?")

    def test_the_pages_are_right(self):
        blocks = []
        for page in (ROOT / "README.md", ROOT / "docs/python.md"):
            blocks += re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.M | re.S)
        self.assertGreaterEqual(len(blocks), 4)
        for number, block in enumerate(blocks):
            (self.program.parent / f"block_{number}.py").write_text(block)
        self.program.unlink()
        settings = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "extraPaths": [str(PACKAGE)]}
        said = self.pyright(self.program.parent, **settings).stdout
        self.assertRegex(said, r"\b0 errors, 0 warnings", said)

    def test_mypy_strict(self):
        command = [PYTHON, "-m", "mypy", "--strict", "--cache-dir", str(self.program.parent / "cache"),
                   "--python-version"]
        run([*command, "3.10", "ipybox"], cwd=PACKAGE)
        run([*command, "3.11", str(self.program)], env={**os.environ, "MYPYPATH": str(PACKAGE)})

    def test_the_package_is_marked_as_typed(self):
        self.assertTrue((PACKAGE / "ipybox/py.typed").exists())

    def test_only_the_standard_library_is_imported(self):
        for source in SOURCES:
            for node in ast.walk(ast.parse(source.read_text())):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module]
                for name in names:
                    self.assertIn(name.split(".")[0], sys.stdlib_module_names, source)

    def test_every_public_thing_is_documented(self):
        for source in SOURCES:
            tree = ast.parse(source.read_text())
            self.assertTrue(ast.get_docstring(tree), source)
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    for part in [node, *node.body]:
                        named = isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                        if named and not part.name.startswith("_"):
                            self.assertTrue(ast.get_docstring(part), f"{source}: {node.name}.{part.name}")

    def test_lines_and_sizes(self):
        for source in [*SOURCES, *(ROOT / "examples/python").glob("*.py")]:
            lines = source.read_text().splitlines()
            self.assertLessEqual(max(map(len, lines)), 100, source)
            self.assertLessEqual(len(lines), 800, source)

    def test_the_version_is_that_of_the_program(self):
        meson = (ROOT / "meson.build").read_text()
        version = re.search(r"version: '([^']+)'", meson)[1]
        self.assertIn(f'"{version}"', (PACKAGE / "ipybox/_version.py").read_text())


class VersionsTest(unittest.TestCase):
    USE = textwrap.dedent(f"""
        import asyncio, sys
        from ipybox import ApprovalRequest, BlockingCodeExecutor, CodeExecutionError, CodeExecutor
        async def main():
            async with CodeExecutor(python={PYTHON!r}, kernel_init_timeout=60, approve_shell_cmds=True) as box:
                assert (await box.execute("6 * 7")).text == "42"
                events = []
                async for event in box.stream("!echo hello"):
                    events.append(event)
                    if isinstance(event, ApprovalRequest): await event.accept()
                assert len(events) == 2 and events[1].text == "hello", events
                try: await box.execute("1/0")
                except CodeExecutionError as error: assert "ZeroDivisionError" in str(error)
                else: raise AssertionError
                try: await box.execute("while True: pass", timeout=0.3)
                except asyncio.TimeoutError as error: assert "0.30s" in str(error)
                else: raise AssertionError
        asyncio.run(main())
        with BlockingCodeExecutor(python={PYTHON!r}, kernel_init_timeout=60) as box:
            assert box.execute("1").text == "1"
        import ipybox.tools, ipybox.kernel_mgr.client, ipybox.kernel_mgr.server
        print("%d.%d" % sys.version_info[:2])
        """)

    def test_oldest_and_newest(self):
        found = interpreters()
        self.assertGreaterEqual(len(found), 2)
        for version, python in found.items():
            with self.subTest(version):
                # Unconfined code could write the workspace: nothing there is started any more.
                place = tempfile.mkdtemp(prefix="ipybox-versions-")
                self.addCleanup(shutil.rmtree, place)
                done = run([python, "-W", "error", "-c", self.USE], env=environment(), timeout=120, cwd=place)
                self.assertEqual(done.stdout.strip(), version)


class ProgramTest(unittest.TestCase):
    def test_a_program_that_is_missing_is_one_error(self):
        for variable, words in (("/nowhere/ipybox", "is no program"), ("", "was not found")):
            done = subprocess.run(
                [sys.executable, "-c", "import ipybox; ipybox.find_program()"], capture_output=True, text=True,
                check=False, env={**environment(IPYBOX_PROGRAM=variable), "PATH": "/nowhere"})
            self.assertRegex(done.stderr, f"ProgramNotFoundError: .*{words}")

    def test_a_program_of_the_current_directory_is_none(self):
        place = Path(tempfile.mkdtemp(prefix="ipybox-path-"))
        self.addCleanup(shutil.rmtree, place)
        shutil.copy("/bin/true", place / "ipybox")
        program = [sys.executable, "-c", "import ipybox; print(ipybox.find_program())"]
        for path, found in ((str(place), True), (".:", False), ("", False)):
            done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=place,
                                  env={**environment(IPYBOX_PROGRAM=""), "PATH": path})
            self.assertEqual(done.returncode == 0, found, path)


if __name__ == "__main__":
    unittest.main()
