"""No code in the kernel gets a call carried out that the policy did not allow: eight ways to try, in every sandbox.

One server with two sessions. The attacker's code knows more than it could: all tokens, ports and addresses, the victim's
as well. The MCP server itself tells which calls were carried out.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import socket
import sys
import time
import unittest
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

try:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client
except ImportError as missing:
    raise unittest.SkipTest(f"the Python MCP SDK is not installed ({missing}); scripts/setup --tests does that")

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import KERNEL, PRELUDE, SUPPORT, InSandbox, Place, got_through, kernel_flags  # noqa: E402

APPROVAL_TOKEN, HTTP_TOKEN = "approval-token-" + "a" * 25, "http-token-" + "b" * 25

# Of echo's texts, "allowed" may come any time, "late" as well: where that must not be carried out, it is not the policy
# that stops it. About all others approvers are asked, of whom there are none unless an attacker gets to be one.
POLICY = {"first_match": [
    {"rules": [{"when": {"server": "own", "tool": "echo", "arguments": {"/text": {"one_of": ["allowed", "late"]}}}, "then": "allow"},
               {"when": {"server": "own", "tool": "echo", "arguments": {"/text": {"equals": "once"}}}, "budget": {"calls": 1}, "then": "allow"}]},
    "ask"]}

# What all of the attacker's cells use, besides prelude.py.
TOOLS = PRELUDE + r"""
import json
from mcptools.own import echo

def post(call, token=None, address=None, head="", target="/run"):
    data = call if isinstance(call, bytes) else json.dumps(call).encode()
    token = os.environ["IPYBOX_TOOL_TOKEN"] if token is None else token
    with to_tools(address) as connection:
        connection.sendall(f"POST {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{head}"
                           f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = connection.recv(65536).decode(errors="replace")
    status, _, rest = answer.partition("\r\n")
    value = rest.rpartition("\r\n")[2]
    if status.startswith("HTTP/1.1 200") and '"result"' in value:
        return value
    raise ConnectionRefusedError(f"{status} {value}" if answer else "closed")

def call_of(text, **more):
    return {"server_name": "own", "tool_name": "echo", "tool_args": {"text": text}, **more}

def note(text, action):
    "What comes of it when nobody looks; one line each."
    try:
        outcome = "ESCAPED " + str(action())
    except BaseException as error:
        outcome = "refused " + why(error)
    with open("late.txt", "a") as file:
        file.write(f"{text}: {' '.join(outcome.split())}\n")

def environments():
    "Of every process that can be looked into."
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", errors="replace") as file:
                yield dict(entry.split("=", 1) for entry in file.read().split("\0") if "=" in entry)
        except OSError:
            pass
"""


class Calls(InSandbox):
    settings = True  # whether a settings file shows the disk

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        with contextlib.ExitStack() as stack:
            cls.place = place = stack.enter_context(Place())
            cls.calls = place.outside / "calls"
            own = {"command": sys.executable, "args": [str(SUPPORT / "mcp_server.py"), "--calls", str(cls.calls)]}
            # Where people keep them.
            cls.own_files = {place.file("workspace/" + name, json.dumps(value)): json.dumps(value) for name, value in (
                ("servers.json", {"mcpServers": {"own": own}}), ("policy.json", POLICY),
                ("sandbox.json", {"filesystem": {"allowWrite": ["."], "denyRead": [str(place.outside)]}}))}
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                channel = free.getsockname()[1]
            arguments = ["--shared-workspace", "--sandbox", cls.sandbox, *kernel_flags(cls.kernel, cls.sandbox), "--config", "servers.json", "--policy", "policy.json",
                         *(["--sandbox-config", "sandbox.json"] if cls.settings else []), "--approval-channel", f"127.0.0.1:{channel}",
                         "--env", f"IPYBOX_TEST_MARK={place.mark}"]
            cls.url = stack.enter_context(place.serving(*arguments, IPYBOX_HTTP_TOKEN=HTTP_TOKEN, IPYBOX_APPROVAL_TOKEN=APPROVAL_TOKEN))
            cls.errors = place.root / "errors"
            cls.facts = {"approval_port": channel, "approval_token": APPROVAL_TOKEN, "server_port": urlsplit(cls.url).port,
                         "server_token": HTTP_TOKEN, "calls": str(cls.calls), "workspace": str(place.workspace)}
            cls.stack = stack.pop_all()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.stack.close()

    def setUp(self) -> None:
        self.calls.unlink(missing_ok=True)
        self.calls.touch()
        self.calls.chmod(0o666)  # root starts the server as a user of its own
        (self.place.workspace / "late.txt").unlink(missing_ok=True)

    def tearDown(self) -> None:
        for path, text in self.own_files.items():
            self.assertTrue(path.is_file() and not path.is_symlink())
            self.assertEqual(path.read_text(), text)
        self.assertEqual({p.name for p in self.place.outside.iterdir()}, {"secret", "calls"})

    @contextlib.asynccontextmanager
    async def client(self):
        http = create_mcp_http_client(headers={"Authorization": f"Bearer {HTTP_TOKEN}"})
        async with http, Client(streamable_http_client(self.url, http_client=http), mode="2026-07-28") as client:
            yield client

    async def cell(self, client: Client, code: str, session: str = "attacker") -> str:
        """What it prints; it must run to its end."""
        code = f"if 'host' not in globals():\n    exec({TOOLS!r})\n    host.update({self.facts!r})\n{code}"
        result = await client.call_tool("execute_ipython_cell", {"code": code, "session": session, "max_output_chars": 100_000})
        printed = "\n".join(block.text for block in result.content if block.type == "text")
        self.assertFalse(result.is_error, printed)
        return printed

    async def refused(self, client: Client, code: str, at_least: int, by: str = ".*") -> None:
        """All that attempt() tries in it is refused, and for these reasons."""
        printed = await self.cell(client, code)
        self.assertFalse(got_through(printed), printed)
        reasons = re.findall(r"^refused: (.*)$", printed, re.MULTILINE)
        self.assertGreaterEqual(len(reasons), at_least, printed)
        for reason in reasons:
            self.assertRegex(reason, f"^({by})$")

    def carried_out(self) -> Counter:
        return Counter(json.loads(line)[1].get("text") for line in self.calls.read_text().splitlines())

    def modules(self) -> dict[Path, str]:
        return {path: path.read_text() for path in (self.place.workspace / "mcptools/own").glob("*.py")}

    async def victim(self, client: Client) -> dict:
        """What the other session's code would have to give away."""
        return json.loads(await self.cell(client, """
from ipykernel.kernelapp import IPKernelApp
app = IPKernelApp.instance()
connection = {name: getattr(app, name) for name in ("transport", "ip", "shell_port", "control_port")}
connection["key"] = app.session.key.decode()
print(json.dumps({"token": os.environ["IPYBOX_TOOL_TOKEN"], "socket": os.environ["IPYBOX_TOOL_SOCKET"],
                  "connection": connection}))""", "victim"))

    async def test_attach_to_the_approval_channel(self) -> None:
        async with self.client() as client:
            await self.refused(client, r"""
proxies = [None]
for variables in environments():
    for name in ("HTTP_PROXY", "http_proxy"):
        if "@" in variables.get(name, ""):
            proxies.append(variables[name].split("//")[1].split("@")[0])
upgrade = (f"GET /approval HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
           f"Authorization: Bearer {host['approval_token']}\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
def attach(address, through=None, login=None):
    with socket.create_connection(through or (address, host["approval_port"]), 2) as connection:
        if through:
            login = f"Proxy-Authorization: Basic {__import__('base64').b64encode(login.encode()).decode()}\r\n" if login else ""
            connection.sendall(f"CONNECT {address}:{host['approval_port']} HTTP/1.1\r\nHost: x\r\n{login}\r\n".encode())
            answer = connection.recv(1000)
            if b" 200 " not in answer.split(b"\r\n")[0]:
                raise ConnectionRefusedError(answer.split(b"\r\n")[0].decode())
        connection.sendall(upgrade.encode())
        answer = connection.recv(1000)
        if not answer:
            raise ConnectionRefusedError("closed")
        return answer
for address in ("127.0.0.1", "localhost", "0.0.0.0", "::1", "10.0.2.2", "host.docker.internal"):
    attempt(attach, address)
    for port in (3128, 1080):
        for login in proxies:
            attempt(attach, address, ("127.0.0.1", port), login)
attempt(lambda: echo.run(text="unapproved"))
""", 19)
        self.assertEqual(self.carried_out(), {})

    async def test_crowd_out_the_calls_of_a_session(self) -> None:
        """No way in, but one to lock others out: connections that never come to a call, with the token and without."""
        async with self.client() as client:
            # By a connection of its own: one that this code keeps idle may be what made room for another.
            await self.cell(client, """
import threading
def fresh():
    thread = threading.Thread(target=lambda: print(echo.run(text="allowed")))
    thread.start()
    thread.join()""")
            for head in ("", "POST /run HTTP/1.1\\r\\nHost: x\\r\\nAuth",
                         "POST /run HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {token}\\r\\nContent-Length: 9\\r\\n\\r\\n"):
                printed = await self.cell(client, f"""
kept = []
for i in range(500):
    try:
        kept.append(to_tools())
        kept[-1].sendall("{head}".format(token=os.environ["IPYBOX_TOOL_TOKEN"]).encode())
    except OSError:  # sent away already
        pass
print(len(kept) >= 100)
fresh()""")
                self.assertEqual(printed.split(), ["True", "allowed"])
                self.assertEqual((await self.cell(client, "fresh()")).strip(), "allowed")
                self.assertEqual((await self.cell(client, "print(echo.run(text='allowed'))", "victim")).strip(), "allowed")
        self.assertEqual(self.carried_out(), {"allowed": 9})

    async def test_crowd_out_those_who_have_a_token(self) -> None:
        """Connections of this machine without one, to the MCP server and to the approval channel."""
        def upgrade(connection: socket.socket) -> bytes:
            connection.sendall(f"GET /approval HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                               f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                               f"Authorization: Bearer {APPROVAL_TOKEN}\r\n\r\n".encode())
            return connection.recv(1000)

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.ExitStack() as stack:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            async with self.client() as client:
                await self.cell(client, "print(1)")
                for port in (self.facts["server_port"], self.facts["approval_port"]):
                    watched = select.poll()
                    for number in range(1100):
                        one = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
                        watched.register(one, select.POLLIN)
                        with contextlib.suppress(OSError):  # sent away already
                            one.sendall((b"", b"POST /mcp HTTP/1.1\r\nHost: 127", b"GET /approval HTTP/1.1\r\nAuthorization: Bearer x\r\n")[number % 3])
                    deadline = time.monotonic() + 9  # before it is their silence for which they are sent away
                    while len(gone := watched.poll(100)) < 500 and time.monotonic() < deadline:
                        time.sleep(0.05)
                    self.assertGreaterEqual(len(gone), 500)  # or there was room for all of them
                approver = stack.enter_context(socket.create_connection(("127.0.0.1", self.facts["approval_port"]), 30))
                self.assertIn(b" 101 ", upgrade(approver).split(b"\r\n")[0])
                self.assertEqual((await self.cell(client, "print(echo.run(text='allowed'))")).strip(), "allowed")
                async with self.client() as late:
                    self.assertEqual((await self.cell(late, "print(echo.run(text='allowed'))", "late")).strip(), "allowed")
        self.assertEqual(self.carried_out(), {"allowed": 2})

    async def test_replay_tokens(self) -> None:
        async with self.client() as client:
            victim = await self.victim(client)
            # A session that is over leaves its token behind.
            before = await self.cell(client, "print(os.environ['IPYBOX_TOOL_TOKEN'], os.environ['IPYBOX_TOOL_SOCKET'])", "gone")
            await client.call_tool("reset", {"session": "gone"})
            await self.refused(client, f"""
for token, address in ({(victim["token"], victim["socket"])}, {tuple(before.split())}):
    attempt(post, call_of("allowed"), token)
    attempt(post, call_of("unapproved"), token)
    attempt(post, call_of("unapproved"), address=address)
    if address != os.environ["IPYBOX_TOOL_SOCKET"]:  # in a network of one's own the same port is one's own
        attempt(post, call_of("allowed"), token, address)
for token in ("", "0" * 64, host["server_token"], host["approval_token"], os.environ["IPYBOX_TOOL_TOKEN"][:-1]):
    attempt(post, call_of("allowed"), token)
# What was allowed once, sent again byte for byte.
print("first", post(call_of("once")))
for _ in range(3):
    attempt(post, call_of("once"))
""", 14)
        self.assertEqual(self.carried_out(), {"once": 1})

    async def test_call_during_another_session_s_execution(self) -> None:
        async with self.client() as client:
            await self.victim(client)
            await self.cell(client, """
import time
def hammer():
    while not os.path.exists("go"):
        time.sleep(0.01)
    while not os.path.exists("stop"):
        note("thread", lambda: echo.run(text="late"))
        note("raw", lambda: post(call_of("late")))
        time.sleep(0.02)
    open("stopped", "w").close()  # the next case reads what late.txt has by then
threading.Thread(target=hammer).start()
""")
            seen = await self.cell(client, """
import time
print(echo.run(text="allowed"))
open("go", "w").close()
time.sleep(0.6)
print(open("late.txt").read())
open("stop", "w").close()
while not os.path.exists("stopped"):
    time.sleep(0.01)""", "victim")
        self.assertRegex(seen, r"^allowed\n(.|\n)*thread: refused .*\nraw: refused ")
        self.assertNotIn("ESCAPED", (self.place.workspace / "late.txt").read_text())
        self.assertEqual(self.carried_out(), {"allowed": 1})

    async def test_call_from_threads_after_the_cell(self) -> None:
        async with self.client() as client:
            await self.cell(client, """
import time
def later():
    while not os.path.exists("over"):  # the host makes it when it has the cell's end
        time.sleep(0.01)
    for _ in range(10):
        note("thread", lambda: echo.run(text="late"))
        note("raw", lambda: post(call_of("late")))
    os.rename("late.txt", "done.txt")
threading.Thread(target=later).start()
if os.fork() == 0:
    while not os.path.exists("done.txt"):
        time.sleep(0.01)
    note("process", lambda: post(call_of("late")))
    os.rename("late.txt", "forked.txt")
    os._exit(0)
""")
            self.place.file("workspace/over")
            outcomes = ""
            for name in ("done.txt", "forked.txt"):
                path, deadline = self.place.workspace / name, time.monotonic() + 60
                while not path.exists():
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.02)
                outcomes += path.read_text()
        self.assertEqual(len(outcomes.splitlines()), 21, outcomes)
        self.assertNotIn("ESCAPED", outcomes)
        self.assertEqual(self.carried_out(), {})

    async def test_go_through_the_sockets_of_zmq_and_of_the_gateway(self) -> None:
        async with self.client() as client:
            victim = await self.victim(client)
            # Messages as the host would send them, to the kernel's own sockets and to the victim's; then what passes
            # between kernel and gateway. Whatever they make run, runs here, and calls as this kernel or not at all.
            await self.refused(client, f"victim = {victim['connection']!r}\nis_gateway = {self.kernel == 'gateway'}" + r"""
import ipykernel, stat, time, zmq
from ipykernel.kernelapp import IPKernelApp
from jupyter_client.session import Session
app = IPKernelApp.instance()
own = {name: getattr(app, name) for name in ("transport", "ip", "shell_port", "control_port")}
own["key"] = app.session.key.decode()

def forge(connection, port, kind, content, **header):
    if connection["transport"] == "ipc":
        if not os.path.exists(f"{connection['ip']}-{connection[port]}"):
            raise FileNotFoundError(2, "no socket")
        address = f"ipc://{connection['ip']}-{connection[port]}"
    else:
        address = f"tcp://{connection['ip']}:{connection[port]}"
    session = Session(key=connection["key"].encode(), signature_scheme="hmac-sha256")
    client = zmq.Context.instance().socket(zmq.DEALER)
    client.linger = 1000
    client.connect(address)
    message = session.msg(kind, content)
    message["header"].update(header)
    session.send(client, message)
    got = session.recv(client, 0)[1] if client.poll(2000) else None
    client.close()
    return got

def execute(code):
    return {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False, "stop_on_error": False}

# A second thread of this kernel runs them beside this cell: the policy judges.
session = Session(key=own["key"].encode(), signature_scheme="hmac-sha256")
try:
    created = forge(own, "control_port", "create_subshell_request", {})
    subshell = (created or {}).get("content", {}).get("subshell_id")
    for text in ("unapproved", "allowed"):
        note_text = f"note('{text}', lambda: echo.run(text='{text}'))"
        print("forged", (forge(own, "shell_port", "execute_request", execute(note_text), subshell_id=subshell) or {}).get("content"))
    # Queued behind this cell: it runs when no execution does, and waits until the host knows that.
    forge_late = execute("time.sleep(0.5); note('queued', lambda: echo.run(text='late'))")
    kept = zmq.Context.instance().socket(zmq.DEALER)
    kept.connect(f"ipc://{own['ip']}-{own['shell_port']}" if own["transport"] == "ipc" else f"tcp://{own['ip']}:{own['shell_port']}")
    session.send(kept, session.msg("execute_request", forge_late))
except FileNotFoundError:
    write("sealed")  # the host has taken the names of the sockets away

def planted():
    got = forge(victim, "shell_port", "execute_request", execute("open('victim.txt', 'w').close()"))
    if got is None or os.path.exists("victim.txt"):
        raise ConnectionRefusedError("no answer")
    return got
attempt(planted)

# As the kernel's end of a gateway: tunnels to what the host has not given, and to what it has.
kernel = get_ipython().kernel
raw = b"POST /run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
body = json.dumps(call_of("unapproved")).encode()
for stream, channel in enumerate(("tools", "approval", "kernel", "python", "../tools.sock", "", "x" * 5000), 7000):
    kernel.session.send(kernel.iopub_socket, "tunnel", {"op": "data", "stream": stream, "channel": channel, "received": 0},
                        ident=b"ipybox", buffers=[raw % (os.environ["IPYBOX_TOOL_TOKEN"].encode(), len(body), body)])
# And as the gateway's client, by the token that its process was started with.
def frame(content):
    message = {**session.msg("execute_request", content), "channel": "shell", "buffers": []}
    data = json.dumps(message, default=str).encode()
    return struct.pack(">BBH", 0x81, 0xFE, len(data)) + bytes(4) + data  # masked with zeros

def is_socket(path):
    return stat.S_ISSOCK(os.stat(path).st_mode)

def join(address, token):
    path = address.startswith("/")
    with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as connection:
        connection.settimeout(3)
        connection.connect(address if path else ("127.0.0.1", int(address)))
        kernel_id = os.path.basename(ipykernel.get_connection_file())[len("kernel-"):-len(".json")]
        connection.sendall((f"GET /api/kernels/{kernel_id}/channels HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            f"Authorization: token {token}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n").encode())
        status = connection.recv(4096).split(b"\r\n")[0].decode()
        if " 101 " not in status:
            raise ConnectionRefusedError(status)
        connection.sendall(frame(execute("time.sleep(0.5); note('joined', lambda: echo.run(text='late'))")))
        time.sleep(0.5)
        print("joined the gateway")

if is_gateway:
    paths = [os.path.join(at, name) for at, _, files in os.walk("/run/ipybox") for name in files]
    for place in list(filter(is_socket, paths)) + [str(port) for port in range(27_000, 27_008)]:
        for token in {v.get("IPYBOX_GATEWAY_TOKEN", "") for v in environments()}:
            try:
                join(place, token)
            except OSError as error:
                print("no gateway at", place, why(error))
attempt(lambda: echo.run(text="unapproved"))
print("own work goes on:", echo.run(text="allowed"))
""", 2)
            # Of Unix sockets nobody else finds those by which the host talks to kernel or gateway. Ports can be found.
            sealed = {"joined"} if self.kernel == "gateway" else {"unapproved", "allowed", "queued"}
            expected = {"unapproved", "allowed", "queued"} | ({"joined"} if self.kernel == "gateway" else set())
            if not self.settings:
                expected -= sealed
            self.assertEqual((self.place.workspace / "sealed").exists(), not expected)
            outcomes, deadline = {}, time.monotonic() + 30
            while set(outcomes) != expected and time.monotonic() < deadline:
                time.sleep(0.05)
                late = self.place.workspace / "late.txt"
                lines = late.read_text().splitlines() if late.exists() else []
                outcomes = dict(line.split(": ", 1) for line in lines)
            self.assertEqual(await self.cell(client, "print(os.path.exists('victim.txt'), echo.run(text='allowed'))", "victim"), "False allowed")
        self.assertEqual(set(outcomes), expected)
        if "allowed" in expected:
            self.assertIn("ApprovalRejectedError", outcomes.pop("unapproved"))
            self.assertEqual(outcomes.pop("allowed"), "ESCAPED allowed")  # as it would in the cell itself
        for outcome in outcomes.values():
            self.assertRegex(outcome, "^refused .*")
        self.assertEqual(set(self.carried_out()), {"allowed"})

    async def test_write_policy_and_configuration_in_the_workspace(self) -> None:
        async with self.client() as client:
            await self.refused(client, """
evil = {"servers.json": {"mcpServers": {"own": {"command": "touch", "args": [host["calls"] + "-pwned"]}}}, "policy.json": "allow",
        "sandbox.json": {"filesystem": {"allowWrite": ["/"]}}}
for name, value in evil.items():
    attempt(write, name, json.dumps(value))
    write("evil-" + name, json.dumps(value))
    attempt(os.rename, "evil-" + name, name)
    attempt(os.unlink, name)
    attempt(os.rename, name, "moved-" + name)
    attempt(os.truncate, name, 0)
    attempt(os.chmod, name, 0o666)
    attempt(call, "renameat2", -100, b"evil-" + name.encode(), -100, name.encode(), 2)
for name in (".env", ".mcp.json"):
    attempt(write, name, "X=1")
attempt(lambda: echo.run(text="unapproved"))
""", 24, by="E(ROFS|BUSY|ACCES|PERM|XDEV|NOENT|ISDIR|EXIST|NOTDIR|INVAL)|ApprovalRejectedError.*")
            # A kernel that starts afterwards goes by what the host wrote.
            await client.call_tool("reset", {"session": "attacker"})
            await self.refused(client, "attempt(lambda: echo.run(text='unapproved'))\nprint(echo.run(text='allowed'))", 1)
        self.assertEqual(self.carried_out(), {"allowed": 1})

    async def test_rewrite_generated_modules(self) -> None:
        async with self.client() as client:
            await self.victim(client)
            before = self.modules()
            self.addCleanup(lambda: [path.write_text(code) for path, code in before.items()])
            await self.refused(client, r"""
import glob, ipybox_kernel, ipybox_kernel.client as client
# In this process everything is Python's to change: the request is made by hand.
for change in ({"origin": "host"}, {"approved": True}, {"session": "victim"}, {"annotations": {"readOnlyHint": True}}):
    attempt(post, call_of("unapproved", **change))
attempt(post, {**call_of("unapproved"), "tool_name": "echo\0allowed"})
client._request = lambda server, tool, arguments, made=client._request: made(server, tool, {"text": "unapproved"})
attempt(lambda: echo.run(text="allowed"))
# On the disk the module may be the attacker's to change; then the victim runs it.
for path in glob.glob("mcptools/own/*.py"):
    try:
        with open(path, "a") as file:
            file.write("\nfrom ipybox_kernel import client as _c\n_c._request = lambda s, t, a, m=_c._request: m(s, t, {'text': 'unapproved'})\n")
    except OSError as error:
        print("kept:", why(error))
try:
    package = os.path.dirname(ipybox_kernel.__file__)
    attempt(write, package + "/client.py", "")
    attempt(write, package + "/planted.py", "")
except Exception:
    pass
""", 8)
            await client.call_tool("reset", {"session": "victim"})
            self.assertNotEqual(self.modules(), before)
            seen = await self.cell(client, "attempt(lambda: echo.run(text='unapproved'))", "victim")
            self.assertRegex(seen, "^refused: ApprovalRejectedError")
            await self.cell(client, "try:\n    print(echo.run(text='allowed'))\nexcept Exception as error:\n    print(why(error))", "victim")
        self.assertLessEqual(set(self.carried_out()), {"allowed"})

    async def test_register_a_server(self) -> None:
        async with self.client() as client:
            await self.refused(client, r"""
evil = {"command": "touch", "args": [host["calls"] + "-pwned"]}
for target in ("/register", "/servers", "/mcp", "/run/../register", "/approve", "/reset"):
    attempt(post, {"server_name": "evil", "server_params": evil}, target=target)
attempt(post, call_of("allowed", server_params=evil))
for name in ("evil", "ipybox", "own\0", "../own"):
    attempt(post, {"server_name": name, "tool_name": "register_mcp_server", "tool_args": {"server_name": "evil", "server_params": evil}})
# The program's own MCP server takes what a client asks for, and the attacker has its token.
request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_ipython_cell", "arguments": {
    "code": "from mcptools.own import echo; echo.run(text='late')", "session": "third"}}})
def ask(address):
    with socket.create_connection((address, host["server_port"]), 2) as connection:
        connection.sendall((f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {host['server_token']}\r\nContent-Type: application/json\r\n"
                            f"Accept: application/json, text/event-stream\r\nContent-Length: {len(request)}\r\n\r\n{request}").encode())
        return connection.recv(1000)
for address in ("127.0.0.1", "localhost", "0.0.0.0", "::1"):
    attempt(ask, address)
# Where it is remembered which servers were registered.
for home in {os.path.expanduser("~"), "/nonexistent", "/root"}:
    try:
        os.makedirs(home + "/.config/ipybox/registered", exist_ok=True)
        write(home + "/.config/ipybox/registered/" + "0" * 64, json.dumps({"mcpServers": {"evil": evil}}))
    except OSError:
        pass  # where it works, it is a home of the kernel's own
attempt(post, {"server_name": "evil", "tool_name": "x", "tool_args": {}})
""", 16)
            await client.call_tool("reset", {"session": "attacker"})
            await self.refused(client, "attempt(post, {'server_name': 'evil', 'tool_name': 'x', 'tool_args': {}})", 1)
        self.assertEqual(self.carried_out(), {})


def _cases(sandbox: str, kernel: str, settings: bool) -> dict:
    """On the gateway and in the minimal view the sockets are others; all else is alike, and left to scripts/test --full."""
    brief = not settings or kernel == "gateway" and "IPYBOX_TEST_FULL" not in os.environ
    left = [name for name in vars(Calls) if name.startswith("test_") and "gateway" not in name] if brief else []
    if kernel == "zmq" and kernel != KERNEL:  # the rest is alike
        left = [name for name in vars(Calls) if name.startswith("test_") and "sockets_of_zmq" not in name]
    elif kernel not in ("zmq", "gateway"):
        left.append("test_go_through_the_sockets_of_zmq_and_of_the_gateway")
    if (sandbox, kernel) != ("bubblewrap", KERNEL):
        left.append("test_crowd_out_those_who_have_a_token")  # who is no kernel's code meets no sandbox
    return {"sandbox": sandbox, "kernel": kernel, "settings": settings, **dict.fromkeys(left)}


for _sandbox, _settings in (("bubblewrap", True), ("bubblewrap", False), ("srt", True)):
    for _kernel in dict.fromkeys((KERNEL, "zmq", "gateway")):
        _name = f"{_sandbox.capitalize()}{_kernel.capitalize()}{'' if _settings else 'Minimal'}"
        globals()[_name] = type(_name, (Calls, unittest.IsolatedAsyncioTestCase), _cases(_sandbox, _kernel, _settings))


if __name__ == "__main__":
    unittest.main()
