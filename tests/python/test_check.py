"""Cells that are checked before they run, as clients of `ipybox serve` and users of `ipybox run` see them."""
import json
import os
import re
import subprocess
import unittest
from pathlib import Path

from test_serve import PROGRAM, PYTHON, SUPPORT, ServeTest, text

CHECKER = Path(PYTHON).parent / "ty"
NOT_RUN = "Nothing was executed. A line that ends with `# ty: ignore` is not checked."


@unittest.skipUnless(CHECKER.exists(), "needs ty beside the kernel's python; scripts/setup --tests installs it")
class CheckTest(ServeTest):
    maxDiff = None

    def setUp(self):
        super().setUp()
        seen = self.directory / "seen"
        seen.mkdir()
        seen.chmod(0o777)  # root starts servers as somebody else
        self.calls = seen / "calls"
        self.config = self.directory / "mcp.json"
        self.config.write_text(json.dumps({"mcpServers": {"own": {
            "command": "python3", "args": [str(SUPPORT / "mcp_server.py"), "--calls", str(self.calls)]}}}))

    def served(self, *flags, **more):
        return self.client("--config", "mcp.json", "--sandbox", "bubblewrap", *flags, **more)

    async def checked(self, client, code):
        result = await client.call_tool("execute_ipython_cell", {"code": code, "check": True})
        return result.is_error, text(result).removeprefix("Error executing tool execute_ipython_cell: ")

    async def assert_refused(self, client, code, *faults):
        """Exactly these, and nothing has run."""
        wrong, said = await self.checked(client, code + "\nopen('ran', 'w')")
        self.assertEqual(said.splitlines(), [*("check: " + fault for fault in faults), NOT_RUN])
        self.assertTrue(wrong)
        self.assertFalse((self.workspace / "ran").exists())
        self.assertFalse(self.calls.exists())

    async def assert_runs(self, client, code, printed=""):
        self.assertEqual(await self.checked(client, code), (False, printed))


class FaultsTest(CheckTest):
    async def test_faults_are_the_answer_and_nobody_is_asked(self):
        asked = []

        async def elicit(context, params):
            asked.append(params)
            raise AssertionError("nobody is asked")

        async with self.served("--approve", "ask", elicitation_callback=elicit) as client:
            await self.assert_refused(
                client, "from mcptools.own import echo, add, eco\necho.run(txt='a')\nadd.run(a=1, b='2')\nadd.run(a=1)\n"
                        "echo.run('a')\nawait echo.run_async(text=1)\nimport mcptools.won\necho.rn(text='')\n"
                        "add.run(add.Params(a=1))\nadd.Params(a=1, b='2', c=3)",
                "line 1: mcptools.own has no module eco; did you mean echo?",
                'line 2: run() of own.echo has no argument "txt"; did you mean text?',
                'line 3: run() of own.add: b must be float, not "2"',
                "line 4: run() of own.add needs b",
                'line 5: run() of own.echo takes its arguments by name, or one Params object or dict, not "a"',
                "line 6: run_async() of own.echo: text must be str, not 1",
                "line 7: mcptools has no package won; did you mean own?",
                "line 8: mcptools.own.echo has no rn; did you mean run?",
                "line 9: Params() of own.add needs b",
                'line 10: Params() of own.add has no argument "c"',
                'line 10: Params() of own.add: b must be float, not "2"')
        self.assertEqual(asked, [])

    async def test_what_runs_well_is_not_told(self):
        async with self.served() as client:
            await self.assert_runs(
                client, "%matplotlib inline\nimport numpy, pathlib\nfrom mcptools.own import echo, add\nimport mcptools.own.structured as s\n"
                "d = {'a': 1, 'b': 2}\nx = !echo 7\n"
                "print(echo.run(text=pathlib.Path('/a')), echo.run(echo.Params(text='b')), echo.run({'text': 'c'}),\n"
                "      add.run(**d).sum, add.run(a=numpy.int64(1), b=1.5).sum, (await add.run_async(a=1, b=2.5)).sum,\n"
                "      *x, getattr(echo, '__doc__'))\n"
                "class Result: pass\nr = Result(); r.contnt = 1; r.contnt += 1", "/a b c 3 2.5 3.5 7 None")

    async def test_the_kernel_s_names_are_known(self):
        async with self.served() as client:
            await self.run_cell(client, "from mcptools.own import add as plus\nfrom mcptools.own.echo import run as say, Params\n"
                                        "import mcptools\nimport mcptools.own as own\nr = plus.run(a=1, b=2)\nn = 5")
            self.calls.unlink()
            await self.assert_refused(
                client, "n.anything if False else plus.run(c=1)\nsay(1)\nmcptools.own.echo.run(x=1)\nown.add.run(a=1)\nr.smu",
                'line 1: run() of own.add has no argument "c"; it takes a, b',
                "line 2: run() of own.echo takes its arguments by name, or one Params object or dict, not 1",
                'line 3: run() of own.echo has no argument "x"; it takes text',
                "line 4: run() of own.add needs b",
                "line 5: Result of own.add has no field smu; did you mean sum?")
            await self.assert_runs(client, "print(say(Params(text='x')), r.sum, n)", "x 3 5")

    async def test_what_was_imported_stays_imported(self):
        async with self.served() as client:
            await self.run_cell(client, "from mcptools.own import add\nimport sys\nfirst = add.run(a=1, b=2)")
            for _ in range(3):
                self.assertEqual(await self.run_cell(client, "print(sys.modules.get('mcptools.own.add') is add)"), "True")

    async def test_code_of_the_workspace_s_own_is_there(self):
        async with self.served() as client:
            await self.run_cell(client, "open('mcptools/own/echo.py', 'a').write('def twice(t): return t * 2\\n')\n"
                                        "open('mcptools/own/mine.py', 'w').write('x = 1\\n')\nimport os\n"
                                        "os.makedirs('mcptools/owm', exist_ok=True); open('mcptools/owm/__init__.py', 'w')")
            await self.assert_runs(client, "from mcptools.own import echo, mine\nimport mcptools.owm\n"
                                           "print(echo.twice('a'), mine.x)", "aa 1")
            # A name that the own code has somewhere is not looked at more closely.
            await self.assert_refused(client, "from mcptools.own import echo\necho.thrice('a')",
                                      "line 2: mcptools.own.echo has no thrice")

    async def test_tools_that_change_are_checked_as_they_are_now(self):
        async with self.served() as client:
            await self.assert_refused(client, "from mcptools.own import more", "line 1: mcptools.own has no module more")
            await self.run_cell(client, "from mcptools.own import change_tools\nchange_tools.run(add='more')")
            await self.until(self.workspace / "mcptools/own/more.py")
            await self.assert_runs(client, "from mcptools.own import more")

    async def test_registered_later(self):
        async with self.client("--sandbox", "bubblewrap") as client:
            await self.assert_runs(client, "print(1)", "1")
            await client.call_tool("register_mcp_server", {"server_name": "own", "server_params": {
                "command": "python3", "args": [str(SUPPORT / "mcp_server.py")]}})
            await self.assert_refused(client, "from mcptools.own import echo\necho.run(x=1)",
                                      'line 2: run() of own.echo has no argument "x"; it takes text')

    async def test_without_a_sandbox(self):
        async with self.client("--config", "mcp.json") as client:
            await self.assert_refused(client, "from mcptools.own import echo\necho.run(x=1)",
                                      'line 2: run() of own.echo has no argument "x"; it takes text')


class EveryCellTest(CheckTest):
    async def test_serve(self):
        async with self.served("--check", "--structured-output") as client:
            tool = next(one for one in (await client.list_tools()).tools if one.name == "execute_ipython_cell")
            self.assertNotIn("check", tool.input_schema["properties"])
            self.assertIn("code with a fault does not run", tool.description)
            result = await client.call_tool("execute_ipython_cell", {"code": "from mcptools.own import echo\necho.run(x=1)"})
            self.assertTrue(result.is_error)
            self.assertEqual(result.structured_content["status"], "refused")
            self.assertEqual(await self.run_cell(client, "print(echo) if False else print(2)"), "2")

    def run_program(self, code, *flags, env=None):
        return subprocess.run(
            [PROGRAM, "run", "--config", "mcp.json", "--workspace", str(self.workspace), "--approve", "allow", *flags, "-c", code],
            cwd=self.directory, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "IPYBOX_PYTHON": PYTHON, "HOME": str(self.directory), **(env or {})})

    def test_run(self):
        audit = self.directory / "audit"
        wrong = "from mcptools.own import echo\nprint('ran')\necho.run(x=1)"
        run = self.run_program(wrong, "--check", "--audit", str(audit))
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertIn('check: line 3: run() of own.echo has no argument "x"; it takes text\n' + NOT_RUN, run.stderr)
        self.assertFalse(self.calls.exists())
        self.assertEqual(audit.read_text() if audit.exists() else "", "")
        run = self.run_program(wrong + "  # ty: ignore", "--check")
        self.assertEqual((run.returncode, run.stdout), (1, "ran\n"), run.stderr)
        run = self.run_program(wrong)
        self.assertEqual((run.returncode, run.stdout), (1, "ran\n"), run.stderr)
        run = self.run_program("from mcptools.own import echo\nprint(echo.run(text='x'))", "--check", "--audit", str(audit))
        self.assertEqual((run.returncode, run.stdout), (0, "x\n"), run.stderr)
        self.assertIn('"execution_end"', audit.read_text())

    def test_a_missing_checker_is_named(self):
        bare = self.directory / "bare"
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(bare)], check=True)
        packages = subprocess.run([PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                                  check=True, capture_output=True, text=True).stdout.strip()
        found = next((bare / "lib").glob("python*/site-packages"))
        (found / "more.pth").write_text("\n".join({packages, *map(str.strip, self.more_paths(packages))}) + "\n")
        env = {"IPYBOX_PYTHON": str(bare / "bin/python")}
        run = self.run_program("print('ran')", "--check", env=env)
        self.assertEqual((run.returncode, run.stdout), (2, ""), run.stderr)
        self.assertIn(f"{bare}/bin/ty is missing", run.stderr)
        self.assertIn("-m pip install ty==", run.stderr)
        run = self.run_program("print('ran')", env=env)
        self.assertEqual((run.returncode, run.stdout), (0, "ran\n"), run.stderr)

    @staticmethod
    def more_paths(packages):
        for file in Path(packages).glob("*.pth"):
            for line in file.read_text().splitlines():
                if line.startswith("/"):
                    yield line


class HostileTest(CheckTest):
    WRONG = "from mcptools.own import echo\necho.run(x=1)"
    FAULT = 'line 2: run() of own.echo has no argument "x"; it takes text'

    async def test_files_of_the_workspace_silence_nothing(self):
        async with self.served() as client:
            await self.run_cell(client, """
import os
for name, text in {
    'ty.toml': '[rules]\\nall = "ignore"\\n', 'pyproject.toml': '[tool.ty.rules]\\nall = "ignore"\\n',
    'mcptools/own/echo.pyi': 'def run(**more): ...\\n', 'mcptools/own/__init__.pyi': 'echo: object\\n',
    'mcptools/__init__.pyi': 'own: object\\n', 'ipybox_kernel.pyi': 'run: object\\n', 'ty': '#!/bin/sh\\ntouch ran\\n',
    '.config/ty/ty.toml': '[rules]\\nall = "ignore"\\n',
}.items():
    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)
    open(name, 'w').write(text)
os.chmod('ty', 0o755)
""")
            await self.assert_refused(client, self.WRONG, self.FAULT)

    async def test_a_checker_that_stalls_or_dies_is_replaced(self):
        slow = "def f(x):\n" + "".join(f"    if x == {i}: x = {i + 1}\n" for i in range(4000))
        async with self.served() as client:
            await self.assert_refused(client, self.WRONG, self.FAULT)
            wrong, said = await self.checked(client, slow + "print('ran')")
            self.assertEqual((wrong, said), (
                False, "[ipybox] this cell was not checked: the type checker did not answer in time\nran"))
            await self.assert_refused(client, self.WRONG, self.FAULT)
            # What makes it overflow its stack is too much for Python as well.
            wrong, said = await self.checked(client, "x = " + "[" * 3000 + "]" * 3000)
            self.assertTrue(wrong)
            self.assertIn("[ipybox] this cell was not checked: the type checker failed: it has ended", said)
            self.assertIn("SyntaxError", said)
            await self.assert_refused(client, self.WRONG, self.FAULT)
            wrong, said = await self.checked(client, "'" + "x" * (300 << 10) + "'; print('ran')")
            self.assertEqual((wrong, said), (False, "[ipybox] this cell was not checked: it is longer than 256 KiB\nran"))

    async def test_what_the_kernel_says_of_its_names_is_bounded(self):
        async with self.served() as client:
            for lie in ("{'x\\nimport os': 'mcptools.own', 'echo': 'mcptools.own.add', 'a' * 10**6: 'b', 'c': 5, 'd': None}",
                        "{f'n{i}': 'mcptools.own.echo:run' for i in range(100_000)}",
                        "[1, 2]", "5", "1 / 0", "__import__('time').sleep(60)"):
                await self.run_cell(client, f"import ipybox_kernel.names\nipybox_kernel.names.known = lambda *_: {lie}")
                await self.assert_refused(client, self.WRONG, self.FAULT)

    async def test_output_meanwhile_is_not_lost_and_calls_are_refused(self):
        async with self.served() as client:
            await self.run_cell(client, """
import ipybox_kernel.names, threading
from mcptools.own import echo as e
inner = ipybox_kernel.names.known
def known(*arguments):
    print('meanwhile')
    try:
        e.run(text='x')
    except Exception as error:
        print(type(error).__name__)
    return inner(*arguments)
ipybox_kernel.names.known = known
""")
            wrong, said = await self.checked(client, "print('ran')")
            self.assertFalse(wrong, said)
            self.assertEqual(said.splitlines()[0], "meanwhile")
            self.assertEqual(said.splitlines()[-1], "ran")
            self.assertFalse(self.calls.exists())


class VersionTest(unittest.TestCase):
    def test_one_version_is_tested_and_named(self):
        root = SUPPORT.parent.parent
        header = (root / "include/ipybox/executor/code_checker.hpp").read_text()
        version = re.search(r'checker_version = "([^"]+)"', header)[1]
        for page in ("scripts/setup", "docs/mcp-server.md"):
            self.assertIn(f"ty=={version}", (root / page).read_text())


class KnownNamesTest(unittest.TestCase):
    """The part of it that runs in the kernel."""

    def test_no_code_of_the_user_s_runs(self):
        import sys
        import types

        sys.path.insert(0, os.environ["IPYBOX_TEST_PYTHON_PACKAGE"])
        self.addCleanup(sys.path.remove, os.environ["IPYBOX_TEST_PYTHON_PACKAGE"])
        from ipybox_kernel.names import known

        class Trap:
            def __getattribute__(self, name):
                raise AssertionError(name)

            def __eq__(self, other):
                raise AssertionError

            __hash__ = None

        package, module = types.ModuleType("mcptools.own"), types.ModuleType("mcptools.own.tool")
        exec("class Result: pass\ndef run(): pass\ndef other(): pass", module.__dict__)
        module.trap = Trap()
        for one in (types.ModuleType("mcptools"), package, module):
            sys.modules[one.__name__] = one
            self.addCleanup(sys.modules.pop, one.__name__)
        names = {"t": module, "p": package, "m": sys.modules["mcptools"], "r": module.run, "o": module.other,
                 "R": module.Result, "i": module.Result(), "trap": Trap(), "os": os, "n": 5, 7: module}
        self.assertEqual(known(names, ["mcptools.own"]), {
            "t": "mcptools.own.tool", "p": "mcptools.own", "m": "mcptools", "r": "mcptools.own.tool:run",
            "R": "mcptools.own.tool:Result", "i": "mcptools.own.tool:Result()"})
        self.assertEqual(known(names, []), {})


if __name__ == "__main__":
    unittest.main()
