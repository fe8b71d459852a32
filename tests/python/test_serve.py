"""`ipybox serve` as clients see it: the Python SDK's client on standard input and output, in both eras."""
import asyncio
import base64
import contextlib
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import unittest
from pathlib import Path
from urllib.parse import urlsplit

try:
    import mcp
    from mcp import Client, StdioServerParameters, types
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client
except ImportError as error:
    raise unittest.SkipTest(f"the Python MCP SDK is not installed ({error}); scripts/setup --tests does that")

PROGRAM = os.environ["IPYBOX_TEST_PROGRAM"]
PYTHON = os.environ["IPYBOX_TEST_PYTHON"]
SUPPORT = Path(os.environ["IPYBOX_TEST_SUPPORT"])
sys.path.insert(0, str(SUPPORT))
from workspace import make_directory  # noqa: E402

OWN = {"command": "python3", "args": [str(SUPPORT / "mcp_server.py")]}
ERAS = ("legacy", "2026-07-28")
IMAGE = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"


def text(result):
    return "\n".join(block.text for block in result.content if block.type == "text")


class ServeTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.directory = make_directory("ipybox-serve-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.workspace = self.directory / "workspace"
        self.errors = (self.directory / "stderr").open("w+")
        self.addCleanup(self.errors.close)

    def parameters(self, *flags, env=None):
        arguments = [*flags, "--workspace", str(self.workspace), "--kernel-init-timeout", "60"]
        return StdioServerParameters(
            command="sh", args=["-c", 'exec "$0" "$@" 2>>"$ERRORS"', PROGRAM, *arguments], cwd=str(self.directory),
            env={"PATH": os.environ["PATH"], "IPYBOX_PYTHON": PYTHON, "HOME": str(self.directory),
                 "ERRORS": self.errors.name, **(env or {})})

    @contextlib.asynccontextmanager
    async def client(self, *flags, mode="legacy", env=None, **callbacks):
        async with Client(self.parameters(*flags, env=env), mode=mode, **callbacks) as client:
            yield client

    async def until(self, path):
        async with asyncio.timeout(30):
            while not path.exists():
                await asyncio.sleep(0.02)

    def said(self):
        """What the program wrote to standard error."""
        return Path(self.errors.name).read_text()

    async def run_cell(self, client, code, **arguments):
        result = await client.call_tool("execute_ipython_cell", {"code": code, **arguments})
        self.assertFalse(result.is_error, text(result))
        return text(result)


class OriginalTest(ServeTest):
    """What clients written for the original rely on: seen by running both side by side."""

    async def test_parameters_and_defaults(self):
        async with self.client() as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        schemas = {name: tools[name].input_schema for name in
                   ("register_mcp_server", "install_package", "execute_ipython_cell", "reset")}
        parameters = {name: {key: (value["type"], value.get("default")) for key, value in schema["properties"].items()}
                      for name, schema in schemas.items()}
        self.assertEqual(parameters, {
            "register_mcp_server": {"server_name": ("string", None), "server_params": ("object", None)},
            "install_package": {"package_name": ("string", None)},
            "execute_ipython_cell": {"code": ("string", None), "timeout": ("number", 120), "max_output_chars": ("integer", 5000),
                                     "check": ("boolean", False)},
            "reset": {}})
        self.assertEqual({name: schema.get("required", []) for name, schema in schemas.items()}, {
            "register_mcp_server": ["server_name", "server_params"], "install_package": ["package_name"],
            "execute_ipython_cell": ["code"], "reset": []})
        self.assertTrue(all(tool.output_schema is None for tool in tools.values()))

    async def test_texts(self):
        (self.workspace / ".env").write_text("KERNEL_ENV_FROM_FILE=file\nKERNEL_ENV_BOTH=file\nONLY_FOR_SERVERS=1\n")
        env = {"KERNEL_ENV_BOTH": "environment"}
        async with self.client("--tool-server-host", "localhost", "--tool-server-port", "8900",
                               "--kernel-gateway-port", "8901", "--log-level", "DEBUG", env=env) as client:
            self.assertEqual(await self.run_cell(client, "print('one')\n2"), "one\n2")
            nothing = await client.call_tool("execute_ipython_cell", {"code": "x = 41"})
            self.assertEqual([block.model_dump(exclude_none=True) for block in nothing.content], [{"type": "text", "text": ""}])
            self.assertEqual(await self.run_cell(client, "x + 1"), "42")
            self.assertEqual(await self.run_cell(client, "print('é' * 11)", max_output_chars=10),
                             "é" * 10 + "\n\n[Output truncated: exceeded 10 character limit]")
            self.assertEqual(await self.run_cell(client, "print('é' * 10)", max_output_chars=10), "é" * 10)
            self.assertEqual(await self.run_cell(
                client, "import os\nprint(os.getcwd() == %r, *map(os.environ.get, ['FROM_FILE', 'BOTH', 'ONLY_FOR_SERVERS']))"
                % str(self.workspace)), "True file environment None")
            bad = await client.call_tool("execute_ipython_cell", {"code": "print('before')\n1/0"})
            self.assertTrue(bad.is_error)
            self.assertEqual(text(bad).splitlines()[0], "Error executing tool execute_ipython_cell: ZeroDivisionError: division by zero")
            self.assertIn("----> 2 1/0", text(bad))
            self.assertIn("before", text(bad))
            late = await client.call_tool("execute_ipython_cell", {
                "code": "print('early', flush=True)\nimport time; time.sleep(60)", "timeout": 0.5})
            self.assertTrue(late.is_error)
            self.assertIn("0.50s", text(late))
            self.assertIn("early", text(late))
            self.assertEqual(await self.run_cell(client, "x"), "41")
            for code, first in (("def (", "SyntaxError: invalid syntax"), ("import sys; sys.exit(3)", "SystemExit: 3")):
                wrong = await client.call_tool("execute_ipython_cell", {"code": code})
                self.assertEqual(text(wrong).splitlines()[0], "Error executing tool execute_ipython_cell: " + first)
            missing = await client.call_tool("install_package", {"package_name": "./no-such-directory"})
            self.assertFalse(missing.is_error)
            self.assertTrue(text(missing).startswith("ERROR: "), text(missing))
            gone = await client.call_tool("reset", {})
            self.assertEqual((gone.is_error, gone.content), (False, []))
            self.assertIn("NameError", text(await client.call_tool("execute_ipython_cell", {"code": "x"})))

    async def test_arguments_may_be_strings(self):
        async with self.client() as client:
            async def cell(**arguments):
                return await client.call_tool("execute_ipython_cell", {"code": "print('x' * 7)", **arguments})
            for arguments in ({"timeout": "60"}, {"timeout": " 1e2 "}, {"timeout": ".5e2"}, {"max_output_chars": "100"},
                              {"max_output_chars": "100.0"}, {"max_output_chars": 100.0}, {"max_output_chars": "+7"}, {"other": 1}):
                with self.subTest(arguments):
                    self.assertEqual(text(await cell(**arguments)), "xxxxxxx")
            self.assertEqual(text(await cell(max_output_chars="5")), "xxxxx\n\n[Output truncated: exceeded 5 character limit]")
            self.assertEqual(text(await cell(code="[1, 2]")), "[1, 2]")
            self.assertEqual(text(await cell(code="3")), "3")
            for arguments in ({"timeout": None}, {"timeout": "abc"}, {"timeout": ""}, {"timeout": "[1]"}, {"max_output_chars": 100.5},
                              {"max_output_chars": "100.5"}, {"code": 5}, {"code": ["1"]}):
                with self.subTest(arguments):
                    refused = await cell(**arguments)
                    self.assertTrue(refused.is_error)
                    self.assertTrue(text(refused).startswith("Error executing tool execute_ipython_cell: "), text(refused))
                    self.assertIn(next(iter(arguments)), text(refused))
            for params in (json.dumps(OWN), json.dumps(OWN, indent=2)):
                done = await client.call_tool("register_mcp_server", {"server_name": "own", "server_params": params})
                self.assertFalse(done.is_error, text(done))
            for params in ("{bad", "[1]", [1], "text"):
                refused = await client.call_tool("register_mcp_server", {"server_name": "own", "server_params": params})
                self.assertTrue(text(refused).startswith("Error executing tool register_mcp_server: "), text(refused))
            unknown = await client.call_tool("nosuch", {})
            self.assertEqual((unknown.is_error, text(unknown)), (True, "Unknown tool: nosuch"))

    async def test_a_kernel_that_died_is_replaced_and_said_so(self):
        async with self.client() as client:
            await self.run_cell(client, "x = 1")
            died = await client.call_tool("execute_ipython_cell", {"code": "print('so far', flush=True)\nimport os; os._exit(3)"})
            self.assertTrue(died.is_error)
            for words in ("exit code 3", "so far", "The next cell runs in a new kernel"):
                self.assertIn(words, text(died))
            after = await client.call_tool("execute_ipython_cell", {"code": "'x' in globals()"})
            self.assertFalse(after.is_error, text(after))
            self.assertIn("had ended", after.content[0].text)
            self.assertEqual(after.content[1].text, "False")
            # Between two cells, too.
            pid = int(await self.run_cell(client, "import os; os.getpid()"))
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(30):
                while Path(f"/proc/{pid}").exists():  # ipybox has collected it
                    await asyncio.sleep(0.02)
            after = await client.call_tool("execute_ipython_cell", {"code": "6 * 7"})
            self.assertEqual([block.text for block in after.content][-1], "42")
            self.assertIn("had ended", after.content[0].text)
            self.assertEqual(await self.run_cell(client, "1"), "1")

    async def test_what_a_cell_started_ends_with_ipybox(self):
        """Without a sandbox, too: a daemon that has left its session and its parent."""
        leaving = ("import subprocess, sys\n"
                   "inner = 'import subprocess; p = subprocess.Popen([\"sleep\", \"1023\"], start_new_session=True, stdout=-3, stderr=-3); print(p.pid)'\n"
                   "print(subprocess.run([sys.executable, '-c', inner], capture_output=True, text=True).stdout)")

        async def goes(pid):
            async with asyncio.timeout(20):
                while Path(f"/proc/{pid}").exists():
                    await asyncio.sleep(0.02)

        process = subprocess.Popen(
            [PROGRAM, "--workspace", str(self.workspace), "--kernel-init-timeout", "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.errors, text=True, cwd=self.directory, env=self.parameters().env)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)

        def call(number, method, params):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                message = json.loads(line)
                if message.get("id") == number:
                    return message["result"]
            self.fail(self.said())

        call(1, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}})
        process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        for number, end in ((2, lambda: call(3, "tools/call", {"name": "reset", "arguments": {}})),
                            (4, lambda: process.kill())):
            result = call(number, "tools/call", {"name": "execute_ipython_cell", "arguments": {"code": leaving}})
            self.assertFalse(result.get("isError"), result)
            daemon = int(result["content"][0]["text"])
            self.assertTrue(Path(f"/proc/{daemon}").exists())
            end()
            await goes(daemon)

    async def test_servers(self):
        async with self.client(env={"SECRET_OF_TEST": "hidden-value"}) as client:
            done = await client.call_tool("register_mcp_server", {
                "server_name": "own", "server_params": {**OWN, "env": {"TOKEN": "${SECRET_OF_TEST}"}}})
            self.assertFalse(done.is_error, text(done))
            # In the order of the server, as in the original.
            self.assertEqual([block.text for block in done.content][:4], ["echo", "add", "slow", "big"])
            use = "from mcptools.own import echo\nprint(echo.run(echo.Params(text='hello')))"
            self.assertEqual(await self.run_cell(client, use), "hello")
            await client.call_tool("reset", {})
            self.assertEqual(await self.run_cell(client, use), "hello")
            failed = await client.call_tool("execute_ipython_cell", {
                "code": "from mcptools.own import error\nerror.run(error.Params())"})
            self.assertIn("it went wrong", text(failed))
            for params, word in (({"command": "/nonexistent"}, "/nonexistent"), ({"comand": "x"}, "command"),
                                 ({"command": "python3", "args": ["${NOT_SET_ANYWHERE}"]}, "NOT_SET_ANYWHERE")):
                refused = await client.call_tool("register_mcp_server", {"server_name": "bad", "server_params": params})
                self.assertTrue(refused.is_error)
                self.assertTrue(text(refused).startswith("Error executing tool register_mcp_server: "))
                self.assertIn(word, text(refused))
        # Packages of an earlier process still work, as long as the policy lets them.
        async with self.client(env={"SECRET_OF_TEST": "hidden-value"}) as client:
            self.assertEqual(await self.run_cell(client, use), "hello")
        (file,) = (self.directory / ".config/ipybox/registered").iterdir()
        self.assertEqual((file.stat().st_mode & 0o777, "hidden-value" in file.read_text()), (0o600, False))
        (self.directory / "policy.json").write_text(json.dumps({"first_match": [
            {"rules": [{"when": {"origin": "register"}, "then": "ask"}]}, "allow"]}))
        async with self.client("--policy", "policy.json") as client:
            self.assertIn("own", text(await client.call_tool("execute_ipython_cell", {"code": use})))
            self.assertIn("not registered", text(await client.call_tool("list_tools", {})))

    async def test_images(self):
        async with self.client() as client:
            result = await client.call_tool("execute_ipython_cell", {"code": IMAGE + "; print('after')"})
            self.assertFalse(result.is_error, text(result))
            (file,) = (self.workspace / "images").iterdir()
            self.assertEqual(result.content[0].text, f"after\n\nGenerated images:\n\n- [{file.stem}]({file})\n")
            self.assertRegex(file.name, r"^[0-9a-f]{8}\.png$")
            self.assertEqual((result.content[1].type, result.content[1].mime_type), ("image", "image/png"))
            self.assertEqual(base64.b64decode(result.content[1].data), file.read_bytes())
            (listed,) = (await client.list_resources()).resources
            read = await client.read_resource(listed.uri)
            self.assertEqual(base64.b64decode(read.contents[0].blob), file.read_bytes())


class BeyondTest(ServeTest):
    async def test_both_eras(self):
        for era in ERAS:
            with self.subTest(era):
                async with self.client("serve", mode=era) as client:
                    self.assertEqual(await self.run_cell(client, "6 * 7"), "42")
                    seen = []

                    async def progress(done, total, message):
                        seen.append((done, message))
                    await client.call_tool("execute_ipython_cell", {
                        "code": "import time\nfor i in range(3): print('step', i, flush=True); time.sleep(.2)"},
                        progress_callback=progress)
                    self.assertEqual("".join(message for _, message in seen), "step 0\nstep 1\nstep 2\n")
                    self.assertEqual([done for done, _ in seen], sorted({done for done, _ in seen}))

    async def test_cancellation_and_interrupt(self):
        async with self.client() as client:
            await self.run_cell(client, "x = 1")
            cell = asyncio.create_task(client.call_tool("execute_ipython_cell", {
                "code": "open('running', 'w').close()\nimport time; time.sleep(60)"}))
            await self.until(self.workspace / "running")
            cell.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cell
            self.assertEqual(await self.run_cell(client, "x"), "1")
            (self.workspace / "running").unlink()
            cell = asyncio.create_task(client.call_tool("execute_ipython_cell", {
                "code": "print('so far', flush=True); open('running', 'w').close()\nimport time; time.sleep(60)"}))
            await self.until(self.workspace / "running")
            self.assertIn("interrupted", text(await client.call_tool("interrupt", {})))
            result = await cell
            self.assertTrue(result.is_error)
            self.assertIn("so far", text(result))
            self.assertIn("No cell", text(await client.call_tool("interrupt", {})))

    async def test_finding_tools(self):
        (self.workspace / "gentools/reports/longest").mkdir(parents=True)
        (self.workspace / "gentools/reports/longest/api.py").write_text('"""Finds the longest report."""\n')
        (self.directory / "mcp.json").write_text(json.dumps({"mcpServers": {
            "own": OWN, "broken": {"command": "/nonexistent/server"}}}))
        async with self.client("--config", "mcp.json") as client:
            self.assertEqual(await self.run_cell(client, "from mcptools.own import add; add.run(a=1, b=2).sum"), "3")
            every = text(await client.call_tool("list_tools", {}))
            self.assertRegex(every, r"(?m)^mcptools\.own: \d+ tools$")
            self.assertIn("gentools.reports: 1 tool\n", every)
            self.assertIn("broken could not be started", every)
            self.assertIn("broken could not be started", self.said())
            stubs = text(await client.call_tool("list_tools", {"server_name": "own"}))
            self.assertTrue(stubs.startswith("from mcptools.own import TOOL"), stubs)
            self.assertIn("\nadd(a: float, b: float) -> {sum}  # Adds two numbers.\n", stubs)
            self.assertIn("register_mcp_server", text(await client.call_tool("list_tools", {"server_name": "nobody"})))
            self.assertIn("class Params", text(await client.call_tool("list_tools", {"server_name": "own", "tool_name": "add"})))
            for outside in ("../../etc", "own/../own"):
                refused = await client.call_tool("list_tools", {"server_name": outside, "tool_name": "add"})
                self.assertTrue(refused.is_error)
            found = text(await client.call_tool("search_tools", {"query": "what is the weather\nsum of numbers"}))
            self.assertEqual(found.splitlines()[0], "own.add(a, b) – Adds two numbers.")
            found = text(await client.call_tool("search_tools", {"query": "longest report", "limit": 1}))
            self.assertEqual(found.splitlines()[0], "gentools.reports.longest – Finds the longest report.")
            told = text(await client.call_tool("describe_tool", {"name": "own.add\nreports.longest"}))
            self.assertTrue(told.startswith("mcptools.own.add.run(a: float, b: float) -> {sum}  (reads only)\n"), told)
            self.assertIn("from gentools.reports.longest import api", told)
            refused = await client.call_tool("describe_tool", {"name": "own.ad"})
            self.assertTrue(refused.is_error)
            self.assertIn("nearest: own.add", text(refused))
            self.assertEqual(await self.run_cell(client, "from ipybox_kernel import tools; tools.describe('own.add')"),
                             told.split("\n\n")[0])

    async def test_files_of_a_kernel_elsewhere(self):
        elsewhere = self.directory / "elsewhere"
        elsewhere.mkdir()
        server = subprocess.Popen(
            [PYTHON, str(SUPPORT / "start_jupyter.py"), "gateway", "--KernelGatewayApp.auth_token=secret"], cwd=elsewhere,
            env={"HOME": str(elsewhere), "TMPDIR": str(elsewhere), "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        port = int(await asyncio.to_thread(server.stdout.readline))
        options = {"url": f"http://127.0.0.1:{port}", "token": "secret", "cwd": str(elsewhere)}
        async with self.client("--sandbox", "none", "--kernel", "gateway", "--kernel-options", json.dumps(options)) as client:
            done = await client.call_tool("upload_file", {"path": "data/in.txt", "content": "täxt\n"})
            self.assertFalse(done.is_error, text(done))
            self.assertEqual((elsewhere / "data" / "in.txt").read_text(), "täxt\n")
            self.assertFalse((self.workspace / "data").exists())
            await self.run_cell(client, "open('out.txt', 'w').write(open('data/in.txt').read().upper());")
            self.assertEqual(text(await client.call_tool("download_file", {"path": "out.txt"})), "TÄXT\n")
            read = await client.read_resource("ipybox://workspace/out.txt")
            self.assertEqual(read.contents[0].text, "TÄXT\n")
            for path in ("missing", "../x", ".env"):
                self.assertTrue((await client.call_tool("download_file", {"path": path})).is_error, path)
            # An image that a cell made lies on this side.
            await self.run_cell(client, IMAGE)
            images = [r.uri for r in (await client.list_resources()).resources]
            self.assertEqual(len(images), 1)
            image = await client.read_resource(images[0])
            self.assertTrue(base64.b64decode(image.contents[0].blob).startswith(b"\x89PNG"))

    async def test_files(self):
        (self.workspace / ".env").write_text("SECRET=1")
        outside = self.directory / "outside"
        outside.write_text("secret")
        os.symlink(outside, self.workspace / "link")
        os.link(outside, self.workspace / "hard")
        os.mkfifo(self.workspace / "pipe")
        async with self.client() as client:
            async def call(tool, **arguments):
                return await client.call_tool(tool, arguments)
            done = await call("upload_file", path="data/in.txt", content="täxt\n")
            self.assertFalse(done.is_error, text(done))
            self.assertEqual(text(await call("download_file", path="data/in.txt")), "täxt\n")
            self.assertTrue((await call("upload_file", path="data/in.txt", content="x", overwrite=False)).is_error)
            await call("upload_file", path="raw", content=base64.b64encode(b"\0\1\2").decode(), encoding="base64")
            raw = await call("download_file", path="raw")
            self.assertEqual(base64.b64decode(raw.content[0].resource.blob), b"\0\1\2")
            part = await call("download_file", path="data/in.txt", max_bytes=2)  # in the middle of ä
            self.assertEqual(part.content[0].text, "t")
            self.assertIn("offset 1 ", part.content[1].text)
            for path in ("link", "pipe", "../outside", str(outside), ".env", "data/../.env", "", ".", "data", "missing"):
                self.assertTrue((await call("download_file", path=path)).is_error, path)
            for path in ("../outside", str(outside), ".env", ".git/hooks/pre-commit", ".claude/commands/x", "sandbox-config.json", ""):
                self.assertTrue((await call("upload_file", path=path, content="planted")).is_error, path)
            for path in ("link", "hard", "pipe"):  # replaced, not written through
                self.assertFalse((await call("upload_file", path=path, content="new")).is_error, path)
                self.assertEqual((self.workspace / path).read_text(), "new")
            self.assertEqual(outside.read_text(), "secret")
            read = await client.read_resource("ipybox://workspace/data/in.txt")
            self.assertEqual(read.contents[0].text, "täxt\n")
            with self.assertRaises(mcp.MCPError):
                await client.read_resource("ipybox://workspace/.env")
            prompt = await client.get_prompt("code_action", {"task": "count the words"})
            self.assertIn("count the words", prompt.messages[0].content.text)

    async def test_files_that_the_host_runs_are_told_in_the_result(self):
        async with self.client("--sandbox", "bubblewrap") as client:
            self.assertEqual(await self.run_cell(client, "open('data.txt', 'w').write('x')"), "1")
            told = await self.run_cell(client, "open('Makefile', 'w').write('all:')\nprint('done')")
            self.assertIn("done\n[Files that programs of the host run or obey", told)
            self.assertIn("\n- Makefile is new: make runs it]", told)
            self.assertEqual(await self.run_cell(client, "1"), "1")

    async def test_results_have_a_limit_and_structure(self):
        async with self.client("--structured-output") as client:
            result = await client.call_tool("execute_ipython_cell", {
                "code": "print('\\x01' * 1_500_000)", "max_output_chars": 100_000_000})
            self.assertIn("[Output truncated: exceeded", text(result)[-80:])
            self.assertLess(len(result.model_dump_json()), 8 << 20)
            result = await client.call_tool("execute_ipython_cell", {
                "code": "from IPython.display import Image, display\nimport os\n"
                        "for i in range(4): display(Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(2_500_000), format='png'))"})
            self.assertLess(len(result.model_dump_json()), 8 << 20)
            self.assertIn("[Image omitted", text(result))
            self.assertEqual(len([block for block in result.content if block.type == "image"]), 2)
            result = await client.call_tool("execute_ipython_cell", {
                "code": "display({'image/png': 'bm90IGFuIGltYWdl'}, raw=True)"})
            self.assertEqual([block.type for block in result.content], ["text"])

            result = await client.call_tool("execute_ipython_cell", {"code": "1 + 1"})
            self.assertEqual(result.structured_content, {"status": "ok", "text": "2", "images": []})
            self.assertEqual(text(result), "2")


class TasksTest(ServeTest):
    """Long cells as tasks, as a client of the stateless revision sees them; the SDK has none."""
    TAKES = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}

    def setUp(self):
        super().setUp()
        (self.directory / "mcp.json").write_text(json.dumps({"mcpServers": {"own": OWN}}))

    @contextlib.asynccontextmanager
    async def server(self, *flags):
        """A function that makes a request and returns its result."""
        parameters = self.parameters("serve", "--config", "mcp.json", *flags)
        process = await asyncio.create_subprocess_exec(
            parameters.command, *parameters.args, cwd=parameters.cwd, env=parameters.env, limit=1 << 24,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        count = 0

        async def ask(method, capabilities=self.TAKES, **params):
            nonlocal count
            count += 1
            params["_meta"] = {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                               "io.modelcontextprotocol/clientCapabilities": capabilities}
            process.stdin.write(json.dumps(
                {"jsonrpc": "2.0", "id": count, "method": method, "params": params}).encode() + b"\n")
            while True:
                line = await asyncio.wait_for(process.stdout.readline(), 90)
                self.assertTrue(line, "the server ended: " + self.said())
                answer = json.loads(line)
                if answer.get("id") == count:
                    return answer.get("result") or answer
        try:
            yield ask
        finally:
            process.stdin.close()
            await process.wait()

    async def cell(self, ask, code, **more):
        return await ask("tools/call", name="execute_ipython_cell", arguments={"code": code}, **more)

    async def until_status(self, ask, task, status):
        async with asyncio.timeout(60):
            while True:
                told = await ask("tasks/get", taskId=task)
                if told["status"] == status:
                    return told
                self.assertEqual(told["status"], "working", told)
                await asyncio.sleep(0.05)

    async def test_a_long_cell_becomes_a_task(self):
        wait = "import os, time\nprint('so far', flush=True)\nwhile not os.path.exists('go'): time.sleep(.05)\nprint('end')"
        async with self.server("--task-after", "0.5") as ask:
            await self.cell(ask, "the_kernel = 'is there'", capabilities={})
            quick = await self.cell(ask, "6 * 7")
            self.assertEqual((quick["resultType"], quick["content"][0]["text"]), ("complete", "42"))
            created = await self.cell(ask, wait)
            self.assertEqual(created["resultType"], "task")
            (self.workspace / "go").touch()
            told = await self.until_status(ask, created["taskId"], "completed")
            self.assertEqual(told["result"]["content"][0]["text"], "so far\nend")
            # A client that takes no tasks waits, as ever.
            (self.workspace / "go").unlink()
            code = "import time\ntime.sleep(1)\nprint('done')"
            waited = await self.cell(ask, code, capabilities={})
            self.assertEqual((waited["resultType"], waited["content"][0]["text"]), ("complete", "done"))

    async def test_cancelling_a_task_interrupts_its_cell(self):
        async with self.server("--task-after", "0.2") as ask:
            await self.cell(ask, "x = 1", capabilities={})
            created = await self.cell(ask, "import time; time.sleep(60)")
            self.assertEqual(await ask("tasks/cancel", taskId=created["taskId"]), {"resultType": "complete"})
            await self.until_status(ask, created["taskId"], "cancelled")
            self.assertEqual((await self.cell(ask, "x", capabilities={}))["content"][0]["text"], "1")

    async def test_a_task_asks_for_approval(self):
        code = "import time; time.sleep(1)\nfrom mcptools.own import echo\nprint(echo.run(text='hello'))"
        async with self.server("--approve", "ask", "--task-after", "0.2") as ask:
            for decision, expected in ("allow once", "hello"), ("deny", "ApprovalRejectedError"):
                created = await self.cell(ask, code)
                told = await self.until_status(ask, created["taskId"], "input_required")
                (key, request), = told["inputRequests"].items()
                self.assertIn("own.echo", request["params"]["message"])
                # Neither nonsense nor silence is a yes.
                for refused in {"action": "accept"}, {"action": "accept", "content": {"decision": "yes"}}:
                    answer = await ask("tasks/update", taskId=created["taskId"], inputResponses={key: refused})
                    self.assertIn("error", answer)
                await ask("tasks/update", taskId=created["taskId"], inputResponses={
                    "other": {"action": "accept", "content": {"decision": "allow once"}}})
                self.assertEqual((await ask("tasks/get", taskId=created["taskId"]))["status"], "input_required")
                await ask("tasks/update", taskId=created["taskId"], inputResponses={
                    key: {"action": "accept", "content": {"decision": decision}}})
                told = await self.until_status(ask, created["taskId"], "completed")
                self.assertIn(expected, told["result"]["content"][0]["text"])

    async def test_no_cell_becomes_a_task_if_none_is_to(self):
        async with self.server("--task-after", "0") as ask:
            self.assertNotIn("extensions", (await ask("server/discover"))["capabilities"])
            done = await self.cell(ask, "import time; time.sleep(1)")
            self.assertEqual(done["resultType"], "complete")


class ApprovalTest(ServeTest):
    CODE = "from mcptools.own import echo\ntry: print(echo.run(text='hello'))\nexcept Exception as error: print(type(error).__name__, error)"

    async def answered(self, *flags, mode="legacy", answers, code=CODE, cells=1):
        """What cells print when the person answers so, and the questions they got."""
        questions, self.forms = [], []

        async def answer(context, params):
            questions.append(params.message)
            self.forms.append(params.requested_schema)
            given = answers[min(len(questions), len(answers)) - 1]
            if isinstance(given, str):
                return types.ElicitResult(action=given)
            return types.ElicitResult(action="accept", content=given)
        callbacks = {"elicitation_callback": answer} if answers else {}
        (self.directory / "mcp.json").write_text(json.dumps({"mcpServers": {"own": OWN}}))
        async with self.client("--config", "mcp.json", *flags, mode=mode, **callbacks) as client:
            return [await self.run_cell(client, code) for _ in range(cells)], questions

    async def test_everything_is_allowed_without_a_policy_and_said_so(self):
        (printed,), _ = await self.answered(answers=[])
        self.assertEqual(printed, "hello")
        self.assertIn("every tool call is allowed (--approve ask or --policy FILE changes that)", self.said())
        self.assertIn("sandbox none", self.said())

    async def test_the_person_is_asked_in_the_client(self):
        for era in ERAS:
            with self.subTest(era):
                (printed,), questions = await self.answered("--approve", "ask", mode=era, answers=[{"decision": "allow once"}])
                self.assertEqual(printed, "hello")
                self.assertEqual(questions, ["Code wants to call a tool:\n\n```\nown.echo\n  'text': 'hello'\n```"])

    async def test_nothing_but_a_deliberate_choice_is_a_yes(self):
        answers = [{"decision": "deny"}, {"decision": "Allow once"}, {"decision": ""}, {}, {"reason": "yes"}]
        printed, _ = await self.answered("--approve", "ask", cells=len(answers), answers=answers)
        for line in printed:
            self.assertIn("ApprovalRejectedError", line)
        self.assertEqual(self.forms[0]["required"], ["decision"])
        self.assertNotIn("default", self.forms[0]["properties"]["decision"])
        self.assertEqual(self.forms[0]["properties"]["decision"]["enum"], ["deny", "allow once", "allow this tool for the session"])

    async def test_tasks_of_an_earlier_cell_call_nothing(self):
        (self.directory / "mcp.json").write_text(json.dumps({"mcpServers": {"own": OWN}}))
        async with self.client("--config", "mcp.json") as client:
            await self.run_cell(client, "import asyncio\nfrom ipybox_kernel.client import send_async\nstart = asyncio.Event()\n"
                                        "async def call():\n    await start.wait()\n    return await send_async('own', 'echo', {'text': 'hi'})\n"
                                        "task = asyncio.create_task(call())\nawait asyncio.sleep(0)")
            printed = await self.run_cell(client, "start.set()\ntry: print(await task)\nexcept Exception as error: print(error)\n"
                                                  "print(await asyncio.create_task(call()))")
            self.assertIn("the cell in which this was begun has ended", printed)
            self.assertTrue(printed.endswith("\nhi"), printed)

    async def test_a_question_is_inert_and_whole(self):
        """Markdown stays in a fence, blanks are counted, what is long is folded and what does not fit is not asked."""
        code = ("from ipybox_kernel.client import send\n"
                "for arguments in ({' ' * 3600 + 'x': '```\\n# [link](https://evil) ![image](https://evil) <b>'},\n"
                "                  {'content': 'x' * 5000, 'path': '/etc/shadow'}, {'command': 'x' * 9000}):\n"
                "    try:\n        print(send('own', 'echo', {'text': '', **arguments}))\n"
                "    except Exception as error:\n        print(type(error).__name__, error)")
        (printed,), questions = await self.answered("--approve", "ask", answers=[{"decision": "deny"}], code=code)
        self.assertEqual(questions[0], "Code wants to call a tool:\n\n````\nown.echo\n  'text': ''\n  '\\[3600 blanks]x': "
                                       "'```\\n# [link](https://evil) ![image](https://evil) <b>'\n````")
        self.assertRegex(questions[1], r"^Code wants to call a tool:\n\n```\nown\.echo\n  'text': ''\n  'path': '/etc/shadow'\n"
                                       r"  'content': 'x{100}' … 'x{100}' \[folded: 5000 characters, 5000 bytes, 1 line, sha256 \w{32}\]\n"
                                       r"  all of it: '/\S+/arguments\.txt'\n```$")
        self.assertEqual(len(questions), 2)
        self.assertIn("the call cannot be put before a person", printed.splitlines()[2])

    async def test_answers(self):
        printed, questions = await self.answered("--approve", "ask", cells=6, answers=[
            "decline", "cancel", {"decision": "deny", "reason": "not today"}, {"decision": "allow once"},
            {"decision": "allow this tool for the session"}])
        for line, word in zip(printed, ("declined", "dismissed", "not today")):
            self.assertIn("ApprovalRejectedError", line)
            self.assertIn(word, line)
        self.assertEqual(printed[3:], ["hello", "hello", "hello"])
        self.assertEqual(len(questions), 5)

    async def test_nobody_to_ask_means_no(self):
        (printed,), _ = await self.answered("--approve", "ask", answers=[])
        self.assertIn("ApprovalRejectedError", printed)
        self.assertIn("elicitation", printed)

    async def test_a_persons_time_is_on_no_clock_and_progress_says_what_is_waited_for(self):
        async def late(context, params):
            await asyncio.sleep(3)
            return types.ElicitResult(action="accept", content={"decision": "allow once"})
        (self.directory / "mcp.json").write_text(json.dumps({"mcpServers": {"own": OWN}}))
        for flags, printed in (((), "hello"), (("--timeout-includes-approval",), "timed out after 2.00s")):
            said = []

            async def progress(done, total, message):
                said.append(message or "")
            async with self.client("--config", "mcp.json", "--approve", "ask", *flags, elicitation_callback=late) as client:
                result = await client.call_tool("execute_ipython_cell", {"code": self.CODE, "timeout": 2},
                                                progress_callback=progress)
            self.assertIn(printed, text(result))
            self.assertIn("[ipybox] waiting for a yes or no to own.echo\n", "".join(said))

    async def test_late_answers_mean_no(self):
        for era in ERAS:
            with self.subTest(era):
                async def late(context, params):
                    await asyncio.sleep(1)
                    return types.ElicitResult(action="accept", content={"decision": "allow once"})
                (self.directory / "mcp.json").write_text(json.dumps({"mcpServers": {"own": OWN}}))
                async with self.client("--config", "mcp.json", "--approve", "ask", "--approval-timeout", "0.3", mode=era,
                                       elicitation_callback=late) as client:
                    self.assertIn("ApprovalTimeoutError", await self.run_cell(client, self.CODE))

    async def test_policies(self):
        policy = {"first_match": [{"rules": [
            {"when": {"tool": "echo"}, "then": {"deny": "no echo here"}},
            {"when": {"origin": "register", "schema": {"properties": {"command": {"const": "python3"}}}},
             "then": {"deny": "no servers of yours"}},
            {"when": {"origin": "package"}, "then": "ask"}]}, "allow"]}
        (self.directory / "policy.json").write_text(json.dumps(policy))
        audit = self.directory / "audit.jsonl"
        flags = ("--policy", "policy.json", "--audit", str(audit), "--approve", "deny")
        (printed,), _ = await self.answered(*flags, answers=[])
        self.assertIn("no echo here", printed)
        async with self.client(*flags) as client:
            refused = await client.call_tool("register_mcp_server", {
                "server_name": "mine", "server_params": {
                    **OWN, "env": {"TOKEN": "${SECRET_NAME}", "OTHER": "private"}, "cwd": "${WORKSPACE}", "trust_cwd": True,
                    "user": "somebody"}})
            self.assertTrue(refused.is_error)
            self.assertIn("no servers of yours", text(refused))
            package = await client.call_tool("install_package", {"package_name": "six"})
            self.assertIn("install_package was denied", text(package))
        records = [json.loads(line) for line in audit.read_text().splitlines()]
        (record,) = [record for record in records if record.get("origin") == "register"]
        self.assertEqual((record["server"], record["verdict"]), ("mine", "deny"))
        self.assertEqual(record["arguments"], {"command": "python3", "args": OWN["args"], "env": ["TOKEN", "OTHER"],
                                               "cwd": "${WORKSPACE}", "trust_cwd": True, "user": "somebody",
                                               "variables": ["SECRET_NAME", "WORKSPACE"]})
        self.assertNotIn("private", audit.read_text())


class ProcessTest(ServeTest):
    def start(self, *flags):
        parameters = self.parameters(*flags)
        return subprocess.Popen([parameters.command, *parameters.args], cwd=parameters.cwd, env=parameters.env, text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1, start_new_session=True)

    def ask(self, process, method, params, number):
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
        while True:
            answer = json.loads(process.stdout.readline())
            if answer.get("id") == number:
                return answer["result"]

    def kernel_of(self, process):
        self.ask(process, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {},
                                         "clientInfo": {"name": "test", "version": "1"}}, 1)
        result = self.ask(process, "tools/call", {"name": "execute_ipython_cell", "arguments": {
            "code": "import os, subprocess\nchild = subprocess.Popen(['sleep', '1000'])\nprint(os.getpid(), child.pid)"}}, 2)
        return [int(pid) for pid in result["content"][0]["text"].split()]

    def test_it_ends_with_its_client_and_leaves_nothing_behind(self):
        ends = {"end of input": lambda process: process.stdin.close(),
                "SIGTERM": lambda process: process.send_signal(signal.SIGTERM),
                "SIGHUP": lambda process: process.send_signal(signal.SIGHUP)}
        for name, end in ends.items():
            with self.subTest(name):
                process = self.start()
                with process:
                    pids = self.kernel_of(process)
                    process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {
                        "name": "execute_ipython_cell", "arguments": {"code": "import time; time.sleep(600)"}}}) + "\n")
                    end(process)
                    self.assertEqual(process.wait(30), 0, self.said())
                for pid in pids:
                    self.assertFalse(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes(), pid)

    def test_it_ends_with_its_parent_though_its_input_stays_open(self):
        parameters = self.parameters()
        process = subprocess.Popen(["sh", "-c", 'exec 3<&0; "$0" "$@" <&3 & wait', parameters.command, *parameters.args],
                                   cwd=parameters.cwd, env=parameters.env, text=True, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, bufsize=1, start_new_session=True)
        with process:
            pids = self.kernel_of(process)
            process.kill()
            self.assertTrue(select.select([process.stdout], [], [], 30)[0], "it goes on")
            self.assertEqual(process.stdout.read(), "")
        for pid in pids:
            self.assertFalse(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes(), pid)

    def test_mistakes_are_one_line(self):
        (self.directory / "bad.json").write_text('{"first_match": [\n{"deny": {"reason": 5}}]}')
        (self.directory / "twice.json").write_text('{"rules": [\n{"when": {"tool": "x",\n"tool": "y"}, "then": "ask"}]}')
        for file, words in (("bad.json", "bad.json/first_match/0"), ("twice.json", "line 3")):
            said = set()
            for command in (["serve"], ["run", "-c", "1", "--sandbox", "none"]):
                run = subprocess.run([PROGRAM, *command, "--policy", file], cwd=self.directory, stdin=subprocess.DEVNULL,
                                     capture_output=True, text=True, timeout=60,
                                     env={"PATH": os.environ["PATH"], "IPYBOX_PYTHON": PYTHON})
                self.assertEqual(run.returncode, 2)
                self.assertIn(words, run.stderr)
                said.add(run.stderr)
            self.assertEqual(len(said), 1, said)
        for flags, word in ((["--bogus"], "--bogus"), (["serve", "--policy", "missing.json"], "missing.json"),
                            (["--sandbox", "nosuch"], "--sandbox=NAME"), (["serve", "--sandbox=nosuch"], "nosuch"), (["--python", "/nonexistent/python"], "/nonexistent/python")):
            run = subprocess.run([PROGRAM, *flags], cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                 env={"PATH": os.environ["PATH"], "IPYBOX_PYTHON": PYTHON}, timeout=60)
            self.assertEqual((run.returncode, run.stdout, len(run.stderr.strip().splitlines())), (2, "", 1), run.stderr)
            self.assertIn(word, run.stderr)


class SandboxTest(ServeTest):
    async def test_sandbox_without_a_value_is_bubblewrap(self):
        (self.workspace / ".env").write_text("SECRET=1")
        (self.workspace / "sandbox-config.json").write_text(json.dumps({"filesystem": {
            "denyRead": ["./private"], "allowWrite": ["."], "denyWrite": []}, "network": {"allowedDomains": [], "deniedDomains": []}}))
        (self.workspace / "private").mkdir()
        (self.workspace / "private/file").write_text("x")
        async with self.client("--sandbox", "--sandbox-config", "sandbox-config.json") as client:
            self.assertEqual(await self.run_cell(client, "open('out.txt', 'w').write('x')"), "1")
            kept = await client.call_tool("execute_ipython_cell", {"code": "open('sandbox-config.json', 'w')"})
            self.assertTrue(kept.is_error)
            hidden = await client.call_tool("execute_ipython_cell", {"code": "open('private/file').read()"})
            self.assertTrue(hidden.is_error)
            # What the sandbox hides, the tools for files do not show.
            self.assertTrue((await client.call_tool("download_file", {"path": "private/file"})).is_error)
            self.assertFalse((await client.call_tool("download_file", {"path": "out.txt"})).is_error)
        self.assertIn("sandbox bubblewrap", self.said())


class HttpTest(ServeTest):
    TOKEN = "a-token-of-the-tests"

    @contextlib.contextmanager
    def serving(self, *flags, open_files=None):
        """A server, which may have that many files open; gives its URL."""
        environment = {"PATH": os.environ["PATH"], "IPYBOX_PYTHON": PYTHON, "HOME": str(self.directory),
                       "IPYBOX_HTTP_TOKEN": f"{self.TOKEN}, {self.TOKEN}-of-another"}
        process = subprocess.Popen([PROGRAM, "serve", "--http", "127.0.0.1:0", "--workspace", str(self.workspace), *flags],
                                   cwd=self.directory, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if open_files:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (open_files, open_files))
        try:
            said = process.stderr.readline()
            self.assertNotIn(self.TOKEN, said)
            found = re.search(r"serving at (http://127\.0\.0\.1:\d+/mcp)(?: and /sse)?;", said)
            self.assertTrue(found, said + (process.stderr.read() if process.poll() is not None else ""))
            yield found[1]
        finally:
            process.terminate()
            self.assertEqual(process.wait(30), 0)
            process.stderr.close()

    @contextlib.asynccontextmanager
    async def connected(self, url, mode="legacy", token=TOKEN, **callbacks):
        http = create_mcp_http_client(headers={"Authorization": f"Bearer {token}"})
        async with http, Client(streamable_http_client(url, http_client=http), mode=mode, **callbacks) as client:
            yield client

    async def test_connections_without_a_token_keep_nobody_out(self):
        with self.serving("--legacy-sse") as url, contextlib.ExitStack() as stack:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            address = ("127.0.0.1", urlsplit(url).port)
            async with self.connected(url) as before:
                await self.run_cell(before, "x = 1")
                for i in range(1100):
                    stranger = stack.enter_context(socket.create_connection(address, 30))
                    with contextlib.suppress(OSError):  # sent away already
                        stranger.sendall((b"", b"POST /mcp HTTP/1.1\r\nHost: 127", b"GET /sse HTTP/1.1\r\nAuthorization: Bearer x\r\n")[i % 3])
                async with self.connected(url) as client:
                    self.assertEqual(await self.run_cell(client, "print('there is room')"), "there is room")
                self.assertEqual(await self.run_cell(before, "print(x)"), "1")

    async def test_every_legacy_session_has_a_kernel_and_a_directory_of_its_own(self):
        with self.serving() as url:
            async with self.connected(url) as one, self.connected(url) as two:
                await self.run_cell(one, "x = 1; open('file', 'w').write('one')")
                self.assertEqual(await self.run_cell(two, "import os; 'x' in globals(), os.path.exists('file')"), "(False, False)")
                self.assertEqual(await self.run_cell(one, "x"), "1")
                named = await one.call_tool("execute_ipython_cell", {"code": "'x' in globals()", "session": "second"})
                self.assertEqual(text(named), "False")
                directory = Path(eval(await self.run_cell(one, "import os; os.getcwd()")))
                self.assertEqual(directory.parent, self.workspace / "sessions")
                refused = await one.call_tool("register_mcp_server", {"server_name": "own", "server_params": OWN})
                self.assertTrue(refused.is_error)
                self.assertIn("--allow-register", text(refused))

    async def test_sessions_to_come_wait_with_their_kernels(self):
        directories = self.workspace / "sessions"

        async def waiting(*taken):
            """The directory of the one that waits, and its kernel."""
            async with asyncio.timeout(60):
                while True:
                    for path in directories.iterdir() if directories.exists() else ():
                        for process in Path("/proc").glob("[0-9]*/cwd"):
                            with contextlib.suppress(OSError):
                                command = (process.parent / "cmdline").read_bytes()
                                if path not in taken and process.readlink() == path and command.startswith(PYTHON.encode()):
                                    return path, int(process.parent.name)
                    await asyncio.sleep(0.1)

        code = "import os; print(os.getcwd(), os.getpid(), 'x' in globals()); x = 1"
        with self.serving("--spare-sessions", "1") as url:
            first, kernel = await waiting()
            async with self.connected(url) as one:
                self.assertEqual(await self.run_cell(one, code), f"{first} {kernel} False")
                second, kernel = await waiting(first)
                # Who has died meanwhile is not missed.
                os.kill(kernel, signal.SIGKILL)
                async with self.connected(url) as two:
                    self.assertRegex(await self.run_cell(two, code), f"^{second} [0-9]+ False$")
                    self.assertEqual(await self.run_cell(one, "x"), "1")
                    third, kernel = await waiting(first, second)
            # Files of a client are found again, so that it gets none of these.
            async with self.connected(url, mode="2026-07-28") as modern:
                self.assertNotIn(str(third), await self.run_cell(modern, code))
                self.assertTrue(Path(f"/proc/{kernel}").exists())
        self.assertEqual(list(directories.iterdir()), [])

    async def test_clients_of_old_have_an_address_of_their_own(self):
        with self.serving("--legacy-sse") as url:
            headers = {"Authorization": f"Bearer {self.TOKEN}"}
            address = url.replace("/mcp", "/sse")
            async with Client(sse_client(address, headers=headers), mode="legacy") as client, self.connected(url) as other:
                self.assertEqual(await self.run_cell(client, "x = 6 * 7; x"), "42")
                self.assertEqual(await self.run_cell(other, "'x' in globals()"), "False")
                self.assertEqual(await self.run_cell(client, "x"), "42")

    async def test_modern_sessions_are_a_token_and_a_name(self):
        async def x(token, **arguments):
            async with self.connected(url, mode="2026-07-28", token=token) as client:
                return text(await client.call_tool("execute_ipython_cell", {"code": "x = globals().get('x', 0) + 1; x", **arguments}))
        with self.serving("--shared-workspace") as url:
            self.assertEqual([await x(self.TOKEN), await x(self.TOKEN), await x(self.TOKEN, session="b"),
                              await x(self.TOKEN + "-of-another"), await x(self.TOKEN)], ["1", "2", "1", "1", "3"])
            with self.assertRaises(Exception):
                await x("a-token-of-nobody")

    async def test_interrupted_and_cancelled_cells(self):
        busy = "print('so far', flush=True); open('running', 'w').close()\nimport time; time.sleep(60)"
        with self.serving("--shared-workspace") as url:
            for era in ERAS:
                with self.subTest(era):
                    async with self.connected(url, mode=era) as client, self.connected(url, mode=era) as other:
                        await self.run_cell(client, "x = 1")
                        cell = asyncio.create_task(client.call_tool("execute_ipython_cell", {"code": busy}))
                        await self.until(self.workspace / "running")
                        (self.workspace / "running").unlink()
                        # In the stateless era the kernel is the token's, whichever connection it comes by.
                        interrupting = client if era == "legacy" else other
                        self.assertIn("interrupted", text(await interrupting.call_tool("interrupt", {})))
                        result = await asyncio.wait_for(cell, 30)
                        self.assertTrue(result.is_error)
                        self.assertEqual(text(result).split("\n")[0], "Error executing tool execute_ipython_cell: the execution was cancelled")
                        self.assertIn("so far", text(result))
                        # The client gives up: the cell ends, and the kernel goes on.
                        cell = asyncio.create_task(client.call_tool("execute_ipython_cell", {"code": busy}))
                        await self.until(self.workspace / "running")
                        (self.workspace / "running").unlink()
                        cell.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await cell
                        self.assertEqual(await asyncio.wait_for(self.run_cell(client, "x"), 30), "1")
                        self.assertIn("No cell", text(await client.call_tool("interrupt", {})))

    async def test_images(self):
        with self.serving() as url:
            for era in ERAS:
                with self.subTest(era):
                    async with self.connected(url, mode=era) as client, self.connected(url, mode=era, token=self.TOKEN + "-of-another") as other:
                        result = await client.call_tool("execute_ipython_cell", {"code": IMAGE + "; print('after')"})
                        self.assertFalse(result.is_error, text(result))
                        place = Path(await self.run_cell(client, "import os; print(os.getcwd())"))
                        (file,) = (place / "images").iterdir()
                        self.assertEqual(place.parent, self.workspace / "sessions")
                        self.assertEqual(result.content[0].text, f"after\n\nGenerated images:\n\n- [{file.stem}]({file})\n")
                        self.assertEqual((result.content[1].type, result.content[1].mime_type), ("image", "image/png"))
                        self.assertEqual(base64.b64decode(result.content[1].data), file.read_bytes())
                        # The link is a path of the server's machine; this is how the client gets the file.
                        read = await client.read_resource(f"ipybox://workspace/images/{file.name}")
                        self.assertEqual(base64.b64decode(read.contents[0].blob), file.read_bytes())
                        loaded = await client.call_tool("download_file", {"path": f"images/{file.name}"})
                        self.assertEqual(base64.b64decode(loaded.content[0].data), file.read_bytes())
                        # One list is for all clients: none of them learns of another's.
                        self.assertEqual((await client.list_resources()).resources, [])
                        for path in (f"images/{file.name}", str(file)):
                            self.assertTrue((await other.call_tool("download_file", {"path": path})).is_error)
                        named = await client.call_tool("execute_ipython_cell", {"code": IMAGE, "session": "second"})
                        (image,) = re.findall(r"- \[(\w+)\]", named.content[0].text)
                        read = await client.read_resource(f"ipybox://sessions/second/images/{image}.png")
                        self.assertEqual(read.contents[0].blob, named.content[1].data)

    async def test_limits_and_idle_time(self):
        with self.serving("--max-sessions", "2", "--session-idle", "1") as url:
            async with self.connected(url, mode="2026-07-28") as client:
                async def call(code, session):
                    return await client.call_tool("execute_ipython_cell", {"code": code, "session": session})
                self.assertEqual(text(await call("import os; print(os.getpid())", "a")).strip().isdigit(), True)
                pid = int(text(await call("x = 1; print(os.getpid())", "a")))
                busy = asyncio.create_task(call("import time; time.sleep(1.5)", "a"))
                second = asyncio.create_task(call("import time; time.sleep(1.5)", "b"))
                await asyncio.sleep(0.5)
                self.assertIn("sessions are in use", text(await call("1", "c")))
                await busy
                await second
                async with asyncio.timeout(30):
                    while Path(f"/proc/{pid}").exists():
                        await asyncio.sleep(0.1)
                again = await call("'x' in globals()", "a")
                self.assertEqual(again.content[-1].text, "False")

    async def test_a_result_after_progress_is_no_more_than_a_client_takes(self):
        code = "import time\nfor i in range(3): print('x' * 700_000, flush=True); time.sleep(0.3)"
        with self.serving() as url:
            async with self.connected(url) as client:
                seen = []

                async def progress(done, total, message):
                    seen.append(message)
                arguments = {"code": code, "max_output_chars": 10_000_000}
                # Nothing comes before it: JSON, of any size.
                whole = await client.call_tool("execute_ipython_cell", arguments)
                self.assertEqual(len(text(whole)), 2_100_002)
                result = await client.call_tool("execute_ipython_cell", arguments, progress_callback=progress)
                self.assertTrue(seen)
                self.assertIn("[Output truncated: exceeded", text(result)[-80:])
                self.assertLess(len(result.model_dump_json()), 1 << 20)
                picture = "from IPython.display import Image, display\nimport os, time\nprint('first', flush=True); time.sleep(0.5)\n" \
                          "display(Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(1_500_000), format='png'))"
                result = await client.call_tool("execute_ipython_cell", {"code": picture}, progress_callback=progress)
                self.assertIn("[Image omitted", text(result))
                self.assertEqual(await self.run_cell(client, "6 * 7"), "42")

    async def test_large_messages_do_not_end_the_session(self):
        async with self.client("serve", "--max-message", "1M") as client:
            await self.run_cell(client, "x = 1")
            with self.assertRaisesRegex(mcp.MCPError, "longer than the limit of 1048576 bytes"):
                await client.call_tool("execute_ipython_cell", {"code": "#" * 2_000_000})
            self.assertEqual(await self.run_cell(client, "x"), "1")

    async def test_sessions_are_refused_before_files_run_out(self):
        with self.serving(open_files=300) as url:
            async with self.connected(url, mode="2026-07-28") as client:
                await self.run_cell(client, "x = 1", session="first")
                for number in range(30):
                    result = await client.call_tool("execute_ipython_cell", {"code": "1", "session": str(number)})
                    if result.is_error:
                        break
                self.assertRegex(text(result), r"this process may open only \d+ more files, .*\(ulimit -n\)")
                self.assertGreater(number, 0)
                self.assertEqual(await self.run_cell(client, "x", session="first"), "1")

    async def test_sessions_leave_no_more_than_their_files(self):
        directories = self.workspace / "sessions"

        def left():
            return len(list(directories.iterdir())) if directories.exists() else 0

        with self.serving("--max-sessions", "3") as url:
            async with self.connected(url) as client:
                for number in range(20):
                    gone = await client.call_tool("download_file", {"path": "x", "session": str(number)})
                    self.assertTrue(gone.is_error)
                    self.assertIn("no files yet", text(gone))
                self.assertEqual(left(), 0)
                # A name that may not be written, so that nothing is there either.
                for number in range(20):
                    refused = await client.call_tool("upload_file", {"path": ".env", "content": "", "session": str(number)})
                    self.assertIn("is protected", text(refused))
                self.assertLessEqual(left(), 3)
                await self.run_cell(client, "open('kept', 'w').write('here')", session="files")
                self.assertEqual(text(await client.call_tool("download_file", {"path": "kept", "session": "files"})), "here")
            async with asyncio.timeout(60):
                while left() > 1:
                    await asyncio.sleep(0.1)
        self.assertEqual([path.name for path in directories.glob("*/*") if path.is_file()], ["kept"])

    async def test_many_at_once(self):
        """Every cell waits for all the others: they run at the same time, or not at all."""
        count = int(os.environ.get("IPYBOX_TEST_SESSIONS", "6"))
        code = ("import os, time\nopen('at-%d' % NUMBER, 'w').close()\n"
                f"while sum(name.startswith('at-') for name in os.listdir()) < {count}: time.sleep(0.1)\nNUMBER")
        with self.serving("--shared-workspace", "--max-sessions", str(count)) as url:
            async def one(number):
                async with self.connected(url, mode=ERAS[number % 2]) as client:
                    return text(await client.call_tool("execute_ipython_cell", {
                        "code": code.replace("NUMBER", str(number)), "session": str(number), "timeout": 300}))
            self.assertEqual(await asyncio.gather(*map(one, range(count))), [str(number) for number in range(count)])

    def test_mistakes(self):
        for flags, word in ((["--http", "localhost"], "HOST:PORT"), (["--http", "0.0.0.0:0"], "--http-name"), (["--legacy-sse"], "--http")):
            run = subprocess.run([PROGRAM, "serve", *flags], cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True,
                                 text=True, env={"PATH": os.environ["PATH"], "IPYBOX_PYTHON": PYTHON}, timeout=60)
            self.assertEqual((run.returncode, len(run.stderr.strip().splitlines())), (2, 1), run.stderr)
            self.assertIn(word, run.stderr)


if __name__ == "__main__":
    unittest.main()
