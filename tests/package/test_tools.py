"""ipybox.tools and ipybox.kernel_mgr: tool calls without a kernel, and kernels alone."""
import asyncio
import datetime
import os
import socket
import subprocess
import sys
import textwrap
import unittest
from pathlib import Path

from support import OWN_SERVER, PYTHON, Workspace, environment, run

import ipybox
from ipybox import CodeExecutor, HostDiedError, IpyboxError, generate_mcp_sources
from ipybox.kernel_mgr.client import ExecutionError, KernelClient
from ipybox.kernel_mgr.server import KernelGateway
from ipybox.tools import (ApprovalClient, ApprovalRejectedError, ApprovalRequest, ApprovalRequestor,
                          ApprovalTimeoutError, MCPClient, ToolRunner, ToolRunnerError, ToolServer)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def accept(request: ApprovalRequest):
    await request.accept()


class ToolsTest(Workspace):
    async def test_calls_without_approval(self):
        async with ToolServer(port=0) as server:
            runner = ToolRunner("own", OWN_SERVER, port=server.port)
            self.assertEqual(await runner.run("add", {"a": 2, "b": 3}), {"sum": 5})
            self.assertEqual(await asyncio.to_thread(runner.run_sync, "echo", {"text": "x"}), "x")
            self.assertEqual(await runner.run("echo", {"text": datetime.date(2024, 1, 15)}), "2024-01-15")
            self.assertEqual([entry.state for entry in await server.servers()], ["running"])
            self.assertIn("add", [tool.name for tool in await server.list_tools("own")])
            await runner.reset()
            self.assertEqual([entry.state for entry in await server.servers()], ["stopped"])
            with self.assertRaises(ToolRunnerError):
                await runner.run("nothing", {})
            for arguments in ({"text": float("nan")}, {"text": "\ud800"}):
                with self.subTest(arguments), self.assertRaisesRegex(ValueError, "no JSON"):
                    await asyncio.wait_for(runner.run("echo", arguments), 20)
            with self.assertRaisesRegex(RuntimeError, "already running"):
                await server.start()
        with self.assertRaisesRegex(ToolRunnerError, "no ToolServer of this process"):
            await runner.run("echo", {"text": "x"})

    async def test_approval(self):
        async with ToolServer(port=0, approval_required=True) as server:
            runner = ToolRunner("own", OWN_SERVER, port=server.port)
            with self.assertRaisesRegex(ToolRunnerError, "failed: no ApprovalClient"):
                await runner.run("echo", {"text": "x"})
            seen = []

            async def judge(request: ApprovalRequest):
                seen.append(str(request))
                await (request.accept() if request.tool_name == "echo" else request.reject("no"))

            async with ApprovalClient(judge, port=server.port):
                self.assertEqual(await runner.run("echo", {"text": "x"}), "x")
                with self.assertRaisesRegex(ApprovalRejectedError, "rejected"):
                    await runner.run("add", {"a": 1, "b": 1})
                with self.assertRaisesRegex(ConnectionError, "another"):
                    await ApprovalClient(accept, port=server.port).connect()
            self.assertEqual(seen, ["own.echo(text='x')", "own.add(a=1, b=1)"])

            async def ignore(_request: ApprovalRequest):
                pass

            client = ApprovalClient(ignore, port=server.port)
            await client.connect()
            task = asyncio.ensure_future(runner.run("echo", {"text": "x"}))
            await asyncio.sleep(0.3)
            await client.disconnect()
            with self.assertRaisesRegex(ToolRunnerError, "disconnected"):
                await task
        async with ToolServer(port=0, approval_required=True, approval_timeout=0.2) as server:
            runner = ToolRunner("own", OWN_SERVER, port=server.port)
            async with ApprovalClient(ignore, port=server.port):
                with self.assertRaisesRegex(ApprovalTimeoutError, "expired"):
                    await runner.run("echo", {"text": "x"})
        with self.assertRaises(ConnectionError):
            await ApprovalClient(accept, port=server.port).connect()

    async def test_requestor(self):
        async with ToolServer(port=0, approval_required=True, approval_timeout=5) as server:
            requestor = ApprovalRequestor("desk", port=server.port)
            with self.assertRaisesRegex(ToolRunnerError, "failed"):
                await requestor.request("open", {})
            async with ApprovalClient(accept, port=server.port):
                await requestor.request("open", {"drawer": 1})
                await asyncio.to_thread(requestor.request_sync, "open", {"drawer": 1})

            async def reject(request: ApprovalRequest):
                await request.reject()

            async with ApprovalClient(reject, port=server.port):
                with self.assertRaises(ApprovalRejectedError):
                    await requestor.request("open", {})

    async def test_policies_judge_before_people(self):
        policy = {"first_match": [{"rules": [{"when": {"tool": "add"}, "then": "deny"}]}, "ask"]}
        async with ToolServer(port=0, approval=policy) as server:
            runner = ToolRunner("own", OWN_SERVER, port=server.port)
            async with ApprovalClient(accept, port=server.port):
                self.assertEqual(await runner.run("echo", {"text": "x"}), "x")
                with self.assertRaises(ApprovalRejectedError):
                    await runner.run("add", {"a": 1, "b": 1})
            with self.assertRaisesRegex(ToolRunnerError, "judges calls"):
                await ApprovalRequestor("own", port=server.port).request("add", {})

    async def test_another_process_needs_the_control_token(self):
        async with ToolServer(port=0) as server:
            program = textwrap.dedent(f"""
                from ipybox.tools import ToolRunner
                print(ToolRunner("own", {OWN_SERVER!r}, port={server.port}).run_sync("echo", {{"text": "there"}}))
                """)

            async def attempt(**more):
                return await asyncio.to_thread(run, [sys.executable, "-c", program], 60, env=environment(**more))

            done = await attempt(IPYBOX_TOOL_SERVER_TOKEN=server.control_token)
            self.assertEqual(done.stdout, "there\n")
            for more in ({}, {"IPYBOX_TOOL_SERVER_TOKEN": server.token},
                         {"IPYBOX_TOOL_SERVER_TOKEN": "0123456789abcdef"}):
                with self.subTest(more), self.assertRaisesRegex(AssertionError, "ToolRunnerError|ApprovalRejectedError"):
                    await attempt(**more)

    async def test_cancelling_withdraws_the_call(self):
        async with ToolServer(port=0, approval_required=True) as server:
            runner = ToolRunner("own", OWN_SERVER, port=server.port)
            asked = asyncio.Event()
            requests = []

            async def note(request: ApprovalRequest):
                requests.append(request)
                asked.set()

            async with ApprovalClient(note, port=server.port):
                task = asyncio.ensure_future(runner.run("echo", {"text": "x"}))
                await asyncio.wait_for(asked.wait(), 30)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                self.assertFalse(await asyncio.wait_for(requests[0].response(), 5))

    async def test_mcp_client(self):
        async with MCPClient(OWN_SERVER) as client:
            self.assertIn("echo", [tool.name for tool in await client.list_tools()])
            self.assertEqual(await client.run("echo", {"text": "x"}), "x")
            with self.assertRaises(ToolRunnerError):
                await client.run("nothing", {})
            with self.assertRaisesRegex(RuntimeError, "already started"):
                await client.start()
            ipybox.shutdown()
            with self.assertRaises(HostDiedError):
                await client.list_tools()
            await client.start()
            self.assertEqual(await client.run("echo", {"text": "x"}), "x")
        with self.assertRaises(IpyboxError):
            await MCPClient({"command": "/nowhere/server"}).start()


class OwnEnvironmentTest(Workspace):
    """A project with its environment in it, as programs of the original have them."""

    def setUp(self):
        super().setUp()
        for name in (".venv", "venv"):
            run([PYTHON, "-m", "venv", "--without-pip", self.workspace / name])
            [packages] = (self.workspace / name).glob("lib/python*/site-packages")
            outer = next((Path(PYTHON).parent.parent / "lib").glob("python*/site-packages"))
            (packages / "outer.pth").write_text(f"{outer}\n")
        os.environ["XDG_STATE_HOME"], before = str(self.directory / "state"), os.environ.get("XDG_STATE_HOME")
        self.addCleanup(lambda: os.environ.update(XDG_STATE_HOME=before) if before else os.environ.pop("XDG_STATE_HOME"))

    def program(self, venv, sandbox, **options):
        """Generates an API for a server that the environment's own interpreter runs, before and after code."""
        text = textwrap.dedent(f"""
            import asyncio
            from ipybox import CodeExecutor, IpyboxError, generate_mcp_sources
            async def main():
                params = {{"command": "python", "args": {OWN_SERVER["args"]!r}}}
                await generate_mcp_sources("own", params, "mcptools")
                async with CodeExecutor(sandbox={sandbox!r}, kernel_init_timeout=60, **{options!r}) as box:
                    print((await box.execute("1")).text)
                await generate_mcp_sources("own", params, "mcptools")
                print("again")
            asyncio.run(main())
            """)
        bin = self.workspace / venv / "bin"
        env = environment(PATH=f"{bin}:{os.environ['PATH']}")
        del env["IPYBOX_PYTHON"]
        return subprocess.run([bin / "python", "-c", text], capture_output=True, text=True, timeout=120, check=False,
                              env=env, stdin=subprocess.DEVNULL)

    def test_what_runs_unconfined_runs_again(self):
        for _ in range(2):
            done = self.program(".venv", False)
            self.assertEqual(done.stdout, "1\nagain\n", done.stderr)

    def test_what_code_could_write_meanwhile_is_refused(self):
        done = self.program(".venv", True)
        self.assertEqual(done.stdout, "1\nagain\n", done.stderr)
        done = self.program("venv", True, python=PYTHON)  # a name under which none is protected
        self.assertEqual(done.stdout, "1\n", done.stderr)
        self.assertIn("where code in a sandbox could write", done.stderr)


class KernelsTest(Workspace):
    async def test_gateway_and_client(self):
        port = free_port()
        async with KernelGateway(port=port, env={"GREETING": "hello"}, python=PYTHON, log_level="WARNING") as gateway:
            with self.assertRaisesRegex(RuntimeError, "already running"):
                await gateway.start()
            async with KernelClient(port=port, images_dir=Path("pictures"), kernel_init_timeout=60) as client:
                self.assertTrue(client.kernel_id)
                self.assertEqual((await client.execute("import os; print(os.environ['GREETING'])")).text, "hello")
                with self.assertRaisesRegex(ExecutionError, "ZeroDivisionError"):
                    await client.execute("1/0")
                items = [item async for item in client.stream("print('a')")]
                self.assertEqual((items[:-1], items[-1].text), (["a\n"], "a"))
                with self.assertRaises(asyncio.TimeoutError):
                    await client.execute("x = 1\nimport time; time.sleep(30)", timeout=0.5)
                self.assertEqual((await client.execute("x")).text, "1")
                await client.reset()
                with self.assertRaisesRegex(ExecutionError, "NameError"):
                    await client.execute("x")
                ipybox.shutdown()
                with self.assertRaises(HostDiedError):
                    await client.execute("1")
                await gateway.start()
                await client.connect()
                self.assertEqual((await client.execute("1")).text, "1")
                with self.assertRaisesRegex(RuntimeError, "connected already"):
                    await client.connect()
            with self.assertRaises(RuntimeError):
                await client.execute("1")
            with self.assertRaises((RuntimeError, IpyboxError)):
                await KernelClient(port=port, token="wrong").connect(retries=1)
        with self.assertRaisesRegex(RuntimeError, "after 2 tries"):
            await KernelClient(port=port).connect(retries=2, retry_interval=0.1)

    async def test_executors_reach_kernels_elsewhere(self):
        port = free_port()
        await generate_mcp_sources("own", OWN_SERVER, "mcptools")
        async with KernelGateway(port=port, python=PYTHON, log_level="WARNING") as gateway:
            where = {"url": f"http://localhost:{port}", "token": gateway.token}
            async with CodeExecutor(kernel="gateway", kernel_options=where, kernel_init_timeout=60) as box:
                await box.upload("data.txt", b"there")
                self.assertEqual((await box.execute("print(open('data.txt').read())")).text, "there")
                events = []
                async for event in box.stream("from mcptools.own import add\nprint(add.run(a=2, b=3).sum)"):
                    events.append(str(event) if isinstance(event, ApprovalRequest) else event.text)
                    if isinstance(event, ApprovalRequest):
                        await event.accept()
                self.assertEqual(events, ["own.add(a=2, b=3)", "5"])

    async def test_what_would_be_unconfined_is_refused(self):
        with self.assertRaisesRegex(ValueError, "unconfined"):
            KernelGateway(sandbox=True)
        with self.assertRaisesRegex(ValueError, "nobody to ask"):
            KernelClient(approve_shell_cmds=True)


if __name__ == "__main__":
    unittest.main()
