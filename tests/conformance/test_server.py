"""The server library against the MCP conformance suite and against clients that people use."""
import asyncio
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import warnings
from pathlib import Path

import suite

PACKAGES = Path(os.environ["IPYBOX_TEST_NODE_MODULES"])
SERVER = str(suite.program("conformance_server"))
HERE = Path(__file__).parent
NODE = PACKAGES / "node/bin/node"
ENVIRONMENT = {**os.environ, "PATH": f"{NODE.parent}:{os.environ['PATH']}"}

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(*command, environment=None):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120,
                          env={**ENVIRONMENT, **(environment or {})})


def node(script, *arguments):
    return run(NODE, script, *arguments)


class ServerTest(unittest.TestCase):
    def serve(self, *arguments):
        """Starts a server on a free port; its URL."""
        server = subprocess.Popen([SERVER, "--port", "0", *arguments], stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        return server.stdout.readline().strip()


class LegacyConformanceTest(suite.ConformanceCase, ServerTest):
    role = "server"
    unscored = frozenset({"server-session-lifecycle", "json-schema-2020-12", "server-sse-polling"})

    def test_2025_11_25(self):
        self.check("2025-11-25", "--url", self.serve())


class ModernConformanceTest(suite.ConformanceCase, ServerTest):
    role = "server"
    # The suite skips tasks-status-notifications itself, for want of a harness.
    unscored = frozenset({
        "json-schema-2020-12", "http-header-validation", "http-custom-header-server-validation",
        "tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal",
        "tasks-mrtr-input", "tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-required-task-error",
        "tasks-mrtr-composition"})

    def test_2026_07_28(self):
        self.check("2026-07-28", "--url", self.serve())


class TypeScriptTest(ServerTest):
    def check(self, sdk, mode):
        runs = {}
        targets = {"stdio": SERVER, "http": self.serve()}
        if sdk == "sdk":
            targets["sse"] = targets["http"].replace("/mcp", "/sse")

        def use(name, target):
            runs[name] = node(HERE / "typescript_client.mjs", PACKAGES, sdk, mode, target)
        threads = [threading.Thread(target=use, args=item) for item in targets.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, ran in runs.items():
            with self.subTest(name):
                self.assertEqual(ran.returncode, 0, ran.stderr)
                result = json.loads(ran.stdout)
                self.assertGreater(result.pop("tools"), 25)
                self.assertEqual(result, {
                    "text": "This is a simple text response for testing.",
                    "image": "image/png",
                    "structured": {"value": 42},
                    "failed": True,
                    "progress": [0, 50, 100],
                    "elicited": 'User response: action=accept, content={"username":"ann","email":"ann@example.org"}',
                    "reconnected": "Reconnection test completed" if mode == "legacy" else None,
                    "resource": '{"id":"7","templateTest":true,"data":"Data for ID: 7"}',
                    "prompt": 1,
                    "many": True,
                    "cancelled": True,
                    "after": True,
                })

    def test_version_1(self):
        self.check("sdk", "legacy")

    def test_version_2_in_the_legacy_era(self):
        self.check("client", "legacy")

    def test_version_2_in_the_modern_era(self):
        self.check("client", "2026-07-28")


class PythonTest(ServerTest):
    async def use(self, target, mode):
        from mcp import Client, types

        async def elicit(context, params):
            return types.ElicitResult(action="accept", content={
                "username": "ann", "email": "a@example.org", "name": "ann", "color": "blue"})

        async def sample(context, params):
            return types.CreateMessageResult(
                role="assistant", model="m", content=types.TextContent(type="text", text="Paris"))

        progress, logs, tools_changed = [], [], asyncio.Event()

        async def report(done, total, message):
            progress.append((done, total))

        async def log(params):
            logs.append(params.data)

        modern = mode != "legacy"
        async with Client(target, mode=mode, elicitation_callback=elicit, sampling_callback=sample,
                          logging_callback=log, log_level="info" if modern else None) as client:
            self.assertGreater(len((await client.list_tools()).tools), 25)
            result = await client.call_tool("test_multiple_content_types", {})
            self.assertEqual([block.type for block in result.content], ["text", "image", "resource"])
            await client.call_tool("test_tool_with_progress", {}, progress_callback=report)
            self.assertEqual(progress, [(0, 100), (50, 100), (100, 100)])
            await client.call_tool("test_tool_with_logging", {})
            self.assertEqual(len(logs), 3)
            asked = await client.call_tool("test_elicitation", {"message": "who?"})
            self.assertIn('"username":"ann"', asked.content[0].text)
            sampled = await client.call_tool("test_sampling", {"prompt": "capital?"})
            self.assertEqual(sampled.content[0].text, "LLM response: Paris")
            read = await client.read_resource("test://static-text")
            self.assertIn("static text resource", read.contents[0].text)
            failed = await client.call_tool("test_elicitation", {})
            self.assertTrue(failed.is_error)
            self.assertIn("message", failed.content[0].text)
            many = await asyncio.gather(*(
                client.call_tool("json_schema_2020_12_tool", {"name": f"n{i}", "email": "e"}) for i in range(50)))
            for i, one in enumerate(many):
                self.assertEqual(json.loads(one.content[0].text)["name"], f"n{i}")
            if modern:
                async with client.listen(tools_list_changed=True) as changes:
                    await client.call_tool("test_trigger_tool_change", {})
                    await asyncio.wait_for(anext(changes), 10)
                rounds = await client.call_tool("test_input_required_result_multi_round", {})
                self.assertTrue(rounds.content)

    def check(self, mode):
        from mcp import StdioServerParameters
        from mcp.client.sse import sse_client
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            url = self.serve()
            asyncio.run(self.use(StdioServerParameters(command=SERVER), mode))
            asyncio.run(self.use(url, mode))
            if mode == "legacy":
                asyncio.run(self.use(sse_client(url.replace("/mcp", "/sse")), mode))

    def test_legacy_era(self):
        self.check("legacy")

    def test_modern_era(self):
        self.check("2026-07-28")

    def test_era_is_found_out(self):
        self.check("auto")


class InspectorTest(ServerTest):
    launcher = PACKAGES / "@modelcontextprotocol/inspector"

    def inspect(self, *arguments):
        entry = json.loads((self.launcher / "package.json").read_text())["bin"]
        entry = entry if isinstance(entry, str) else entry["mcp-inspector"]
        with tempfile.TemporaryDirectory() as home:
            return run(NODE, self.launcher / entry, "--cli", *arguments, "--format", "json", "--quiet",
                       environment={"HOME": home})

    def test_three_eras(self):
        url = self.serve()
        for era in "legacy", "auto", "modern":
            for target in [SERVER], ["--server-url", url, "--transport", "http"]:
                with self.subTest(era=era, target=target[0]):
                    ran = self.inspect(*target, "--protocol-era", era, "--method", "tools/call",
                                       "--tool-name", "test_structured_content")
                    self.assertEqual(ran.returncode, 0, ran.stderr)
                    self.assertIn('"value":42', ran.stdout.replace(" ", ""))

    def test_load(self):
        ran = self.inspect("--server-url", self.serve(), "--transport", "http", "--method", "tools/call",
                           "--tool-name", "test_simple_text", "--load", "--load-requests", "500",
                           "--load-concurrency", "20")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        print(ran.stdout.strip()[:400])


class OwnClientTest(ServerTest):
    """Code actions that wait for tools which answer with tasks."""
    CODE = """
from mcptools.jobs import confirm_delete, failing_job, greet, protocol_error_job, slow_compute
print(greet.run(name="ann"))
print(slow_compute.run(seconds=1))
for job in confirm_delete, failing_job, protocol_error_job:
    try:
        job.run()
    except Exception as error:
        print(error)
"""

    PROGRESS = """
from ipybox_kernel import progress
from mcptools.jobs import test_tool_with_progress as tool
told = []
with progress(lambda *report: told.append(report)):
    print(tool.run(), told[-1])
    told.clear()
    print(await tool.run_async(), told[-1])
    told.clear()
tool.run()
print(told)

def stop(*report):
    raise KeyError("enough")

try:
    with progress(stop):
        tool.run()
except KeyError:
    print("stopped")
print(tool.run())
"""

    def test_progress_reaches_the_code(self):
        printed = self.printed({"command": SERVER}, self.PROGRESS)
        self.assertEqual(printed, ["done (100.0, 100.0, '')"] * 2 + ["[]", "stopped", "done"])

    def printed(self, target, code):
        with tempfile.TemporaryDirectory() as workspace:
            config = Path(workspace, "mcp.json")
            config.write_text(json.dumps({"mcpServers": {"jobs": target}}))
            ran = run(os.environ["IPYBOX_TEST_PROGRAM"], "run", "--workspace", workspace, "--sandbox", "none",
                      "--approve", "allow", "--config", config, "-c", code,
                      environment={"IPYBOX_PYTHON": os.environ["IPYBOX_TEST_PYTHON"]})
            self.assertEqual(ran.returncode, 0, ran.stderr)
            return ran.stdout.splitlines()

    def test_tasks_are_awaited(self):
        for target in {"command": SERVER}, {"url": self.serve()}:
            with self.subTest(target):
                printed = self.printed(target, self.CODE)
                self.assertEqual(printed[:2], ["Hello, ann!", "computed for 1 s"])
                self.assertIn("capability \"elicitation.form\" (code -32021)", printed[2])
                self.assertIn("This job always fails", printed[3])
                self.assertIn("This job breaks the protocol (code -32603)", printed[4])


class BridgeTest(ServerTest):
    """Programs that carry MCP between standard streams and HTTP."""

    def converse(self, bridge):
        """Calls a tool through a bridge that speaks on its standard streams."""
        process = subprocess.Popen([str(word) for word in bridge], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT)
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        try:
            def ask(message, wants_answer=True):
                process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
                process.stdin.flush()
                while wants_answer:
                    line = process.stdout.readline()
                    self.assertTrue(line, "the bridge ended")
                    answer = json.loads(line)
                    if answer.get("id") == message["id"] and "method" not in answer:
                        return answer["result"]
            told = ask({"id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}})
            self.assertEqual(told["serverInfo"]["name"], "ipybox-conformance")
            ask({"method": "notifications/initialized"}, wants_answer=False)
            self.assertGreater(len(ask({"id": 2, "method": "tools/list"})["tools"]), 25)
            result = ask({"id": 3, "method": "tools/call", "params": {
                "name": "test_tool_with_progress", "arguments": {}, "_meta": {"progressToken": 1}}})
            self.assertEqual(result["content"][0]["text"], "done")
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def test_mcp_remote(self):
        entry = json.loads((PACKAGES / "mcp-remote/package.json").read_text())["bin"]["mcp-remote"]
        self.converse([NODE, PACKAGES / "mcp-remote" / entry, self.serve(), "--allow-http", "--transport", "http-only"])

    def test_mcp_remote_with_a_token(self):
        entry = json.loads((PACKAGES / "mcp-remote/package.json").read_text())["bin"]["mcp-remote"]
        self.converse([NODE, PACKAGES / "mcp-remote" / entry, self.serve("--token", "sesame"), "--allow-http",
                       "--transport", "http-only", "--header", "Authorization: Bearer sesame"])

    def test_supergateway_to_http(self):
        gateway = PACKAGES / "supergateway/dist/index.js"
        self.converse([NODE, gateway, "--streamableHttp", self.serve(), "--logLevel", "none"])

    def test_supergateway_from_stdio(self):
        port = free_port()
        gateway = subprocess.Popen(
            [NODE, PACKAGES / "supergateway/dist/index.js", "--stdio", SERVER, "--outputTransport", "streamableHttp",
             "--stateful", "--port", str(port), "--logLevel", "none"], env=ENVIRONMENT)
        self.addCleanup(gateway.wait)
        self.addCleanup(gateway.terminate)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        ran = node(HERE / "typescript_client.mjs", PACKAGES, "sdk", "stdio", f"http://127.0.0.1:{port}/mcp")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertTrue(json.loads(ran.stdout)["many"])


if __name__ == "__main__":
    unittest.main()
