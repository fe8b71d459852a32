"""What code, and MCP servers, send costs the program no more memory than it allows them."""
from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import unittest
from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from hashlib import sha1
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import PROGRAM, PYTHON, SUPPORT, InSandbox, Outcome, Place, ability, as_guest, environment, kernel_flags  # noqa: E402

MORE = 256 << 20  # bytes that the program may take beyond what it takes when idle

# Writes to the host past everything in between: on the connections that ZeroMQ has accepted. Nothing else may
# follow half a frame, so the kernel's own messages are over.
RAW = """
import os, select, socket, threading, time
def connections():
    for number in range(3, 200):
        try:
            one = socket.socket(fileno=os.dup(number))
            name = one.getsockname()
            if one.family == socket.AF_UNIX and one.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM:
                one.getpeername()
                if name and "s-" in str(name):
                    yield one
            elif one.family == socket.AF_INET and one.getpeername() and name[1] >= 27_000:
                yield one
        except OSError:
            pass
def send_all(start, piece, limit=4 << 30):
    def send(one):
        one.settimeout(None)
        try:
            one.sendall(start)
            sent = 0
            while sent < limit:
                one.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
    found = list(connections())
    print("connections:", len(found), flush=True)
    time.sleep(0.3)
    for one in found:
        threading.Thread(target=send, args=(one,), daemon=True).start()
    time.sleep(40)
"""

POST = """
import json, os, threading
def post(body, times=1):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with to_tools() as connection:
        connection.settimeout(60)
        head = (f"POST /run HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {os.environ['IPYBOX_TOOL_TOKEN']}\\r\\n"
                f"Content-Length: {len(data)}\\r\\n\\r\\n")
        try:
            connection.sendall(head.encode() + data)
        except OSError:
            pass  # refused by its head
        answer = b""
        while piece := connection.recv(1 << 20):
            answer += piece
            start, blank, body = answer.partition(b"\\r\\n\\r\\n")
            if blank and len(body) >= int(start.lower().partition(b"content-length:")[2].split()[0]):
                break
        return body.decode(errors="replace")
def with_arguments(text, server="own"):
    return ('{"server_name":"%s","tool_name":"echo","tool_args":{"text":%s}}' % (server, text)).encode()
"""

# An MCP server whose answers are as large as its only argument says.
SERVER = """
import json, sys
kind = sys.argv[1]
def large(size):
    return {"numbers": "[" + "0," * (size // 2) + "0]", "text": json.dumps("x" * size),
            "endless": json.dumps("x" * 1000)}[kind]
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    head = '{"jsonrpc":"2.0","id":%s,"result":' % json.dumps(request["id"])
    if request["method"] == "initialize":
        print(head + json.dumps({"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                                 "serverInfo": {"name": "large", "version": "1"}}) + "}", flush=True)
    elif request["method"] == "tools/list":
        print(head + json.dumps({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}) + "}", flush=True)
    elif request["method"] == "tools/call" and kind == "endless":
        while True:
            sys.stdout.write("x" * 1000000)
    elif request["method"] == "tools/call":
        answer = large(25_000_000)
        print(head + ('{"content":[{"type":"text","text":%s}]}}' % answer if kind == "text" else
                      '{"content":[],"structuredContent":{"x":%s}}}' % answer), flush=True)
    else:
        print('{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}' % json.dumps(request["id"]), flush=True)
"""


@cache
def idle(sandbox: str) -> int:
    with Place() as place:
        outcome = place.run("print('idle')", sandbox=sandbox)
        assert outcome.output == "idle\n", outcome
        return outcome.peak_memory


class Base(InSandbox):
    def run_code(self, code: str, options: Iterable[str] = (), place: Place | None = None) -> Outcome:
        with place or Place() as where:
            outcome = where.run(where.prepared(code), [*kernel_flags(self.kernel, self.sandbox), *options], self.sandbox, 200)
        self.assertLess(outcome.peak_memory - idle(self.sandbox), MORE, outcome)
        return outcome


class OfMessages(Base):
    """What only ipykernel sends."""

    def test_large_messages_of_all_kinds(self) -> None:
        outcome = self.run_code("""
from IPython.display import display
kernel = get_ipython().kernel
text = "\\n" * 14_000_000  # two bytes each on the wire
for _ in range(3):
    kernel.session.send(kernel.iopub_socket, "status", {"execution_state": "busy", "more": text}, parent=kernel.get_parent())
    kernel.session.send(kernel.iopub_socket, "no_such_type", {"more": [0] * 9_000_000}, parent=kernel.get_parent())
    kernel.session.send(kernel.iopub_socket, "comm_msg", {"data": {}}, metadata={"x": text}, parent=kernel.get_parent())
print("goes on")
""")
        self.assertEqual((outcome.status, outcome.output), (0, "goes on\n"), outcome.errors)


class OfZeroMq(OfMessages):
    kernel = "zmq"

    def attack_raw(self, start: str, piece: str, says: str) -> None:
        outcome = self.run_code(RAW + f"send_all({start}, {piece})")
        self.assertRegex(outcome.output, "connections: [1-9]")
        self.assertRegex(outcome.errors, says)
        self.assertIn("broke the protocol", outcome.errors)

    def test_frames_without_end_in_one_message(self) -> None:
        self.attack_raw("b''", "b'\\x01\\x00' * 100_000", "a wrong number of frames")

    def test_large_frames_without_end_in_one_message(self) -> None:
        self.attack_raw("b''", "b'\\x03' + (1 << 20).to_bytes(8, 'big') + b'\\x01' * (1 << 20)",
                        # What the kernel itself sends may come in between.
                        "a message over the size limit|a wrong number of frames")

    def test_a_frame_without_end(self) -> None:
        self.attack_raw("b'\\x02' + (1 << 62).to_bytes(8, 'big')", "bytes(1 << 20)", "a message over the size limit")

    def test_commands_without_end(self) -> None:
        self.attack_raw("b''", "b'\\x04\\x05\\x04PING' * 100_000", "a malformed ZMTP frame")


# Writes to the host past the tape, on the link.
LINK = """
import json, os, socket, struct
link = socket.socket(fileno=os.dup(3))
def frame(kind, payload): return struct.pack("<IB", len(payload), ord(kind)) + payload
def flood(kind, payload, times):
    piece = frame(kind, payload) * 1000
    for _ in range(times // 1000): link.sendall(piece)
"""


class OfTheLink(Base):
    """A kernel of ipybox's own."""

    kernel = "fork"

    def breach(self, code: str, says: str) -> None:
        outcome = self.run_code(LINK + code + "\nimport time; time.sleep(40)")
        self.assertIn("broke the protocol", outcome.errors)
        self.assertRegex(outcome.errors, says)

    def test_frames_larger_than_they_may_be(self) -> None:
        for kind in "oexqk":
            with self.subTest(kind):
                self.breach(f"link.sendall(struct.pack('<IB', 0xffffffff, ord({kind!r})) + bytes(1 << 20))", "a frame over the size limit")

    def test_errors_that_grow_when_they_are_decoded(self) -> None:
        self.breach("link.sendall(frame('x', b'{\"traceback\":[' + b'[],' * 9_000_000 + b'0]}'))", "takes more than|nested|memory|size")

    def test_a_display_that_is_left_out_and_does_not_end(self) -> None:
        outcome = self.run_code(LINK + """
link.sendall(struct.pack("<IB", 400 << 20, ord("d")))
for _ in range(400): link.sendall(bytes(1 << 20))
print("goes on")
""")
        self.assertEqual((outcome.status, outcome.output), (0, "goes on\n"), outcome.errors)
        self.assertIn("a display was left out", outcome.errors)

    def test_ends_of_cells_that_nobody_waits_for_and_questions_that_nobody_answers(self) -> None:
        outcome = self.run_code(LINK + """
flood("k", b'{"id":99,"ok":true}', 1_000_000)
flood("q", b'{"prompt":"x","password":false}', 1_000_000)
flood("d", b'{"data":{},"update":7,"transient":[]}', 1000)
print("goes on")
""")
        self.assertEqual((outcome.status, outcome.output), (0, "goes on\n"), outcome.errors)

    def test_a_second_hello_and_frames_of_no_kind(self) -> None:
        self.breach("link.sendall(frame('h', b'{\"protocol\":1}'))", "a frame of no known kind")

    def test_half_a_frame(self) -> None:
        outcome = self.run_code(LINK + "link.sendall(frame('x', bytes(1000))[:500])\nos._exit(3)")
        self.assertIn("exit code 3", outcome.errors)


class Memory(Base):
    # ---- kernels

    def test_a_display_of_numbers(self) -> None:
        outcome = self.run_code("""
from IPython.display import display
display({"application/x": [0] * 100_000}, raw=True)
print("shown")
display({"application/x": [0] * 9_000_000}, raw=True)
display({"application/x": [[]] * 6_000_000}, raw=True)
print("goes on")
display({"text/plain": "x" * 100_000_000}, raw=True)
print("to its end")
""")
        if self.kernel == "gateway":  # a WebSocket's message is taken whole or not at all
            self.assertEqual((outcome.status, outcome.output), (1, "shown\ngoes on\n"))
            self.assertIn("broke the protocol (a message over the size limit)", outcome.errors)
        else:
            self.assertEqual((outcome.status, outcome.output), (0, "shown\ngoes on\nto its end\n"))
        left_out = 2 if self.kernel == "gateway" else 3
        self.assertEqual(outcome.errors.count("a display was left out: it takes more than the"), left_out, outcome.errors)

    # ---- tool calls

    def test_arguments_that_grow_when_they_are_decoded(self) -> None:
        with Place() as place:
            outcome = self.run_code(POST + """
for part in ("0,", "[],", "{},", '"",', "[[[[]]]],"):
    print(post(with_arguments("[" + part * (30_000_000 // len(part)) + "0]"))[:200])
print(post(with_arguments('"small"')))
""", self.servers(place), place)
        self.assertEqual(outcome.output.count("more than the 96 MiB of memory"), 5, outcome)
        self.assertIn('{"result":"small"}', outcome.output)

    def test_large_arguments_at_once(self) -> None:
        with Place() as place:
            outcome = self.run_code(POST + """
answers = []
body = with_arguments('"' + "x" * 20_000_000 + '"')
threads = [threading.Thread(target=lambda: answers.append(post(body)[:200])) for _ in range(30)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(answers), "answers,", sum("too much data in tool calls at once" in one for one in answers), "refused")
print(post(with_arguments('"small"')))
""", self.servers(place), place)
        self.assertRegex(outcome.output, "30 answers, ([1-9]|1[0-9]|2[0-9]) refused")
        self.assertIn('{"result":"small"}', outcome.output)

    # ---- MCP servers

    def servers(self, place: Place, **more: str) -> list[str]:
        own = {"own": {"command": sys.executable, "args": [str(SUPPORT / "mcp_server.py")]}}
        for name in more:
            script = place.file("outside/large.py", SERVER)
            own[name] = {"command": PYTHON, "args": [str(script), more[name]]}
        return ["--config", str(place.file("servers.json", json.dumps({"mcpServers": own}))), "--approve", "allow"]

    def answers_of(self, kind: str, code: str) -> str:
        with Place() as place:
            return self.run_code(POST + code, self.servers(place, large=kind), place).output

    def test_answers_that_grow_when_they_are_decoded(self) -> None:
        printed = self.answers_of("numbers", "print(post(with_arguments('0', 'large'))[:500])")
        self.assertIn("takes more memory than is left for messages", printed)

    def test_an_answer_without_end(self) -> None:
        printed = self.answers_of("endless", "print(post(with_arguments('0', 'large'))[:500])")
        self.assertIn("sent a message that does not end within", printed)

    def test_large_answers_that_nobody_reads(self) -> None:
        printed = self.answers_of("text", """
print(len(post(with_arguments("0", "large"))) > 25_000_000)
held = []
for _ in range(12):
    body = with_arguments("0", "large")
    connection = to_tools()
    connection.sendall((f"POST /run HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {os.environ['IPYBOX_TOOL_TOKEN']}\\r\\n"
                        f"Content-Length: {len(body)}\\r\\n\\r\\n").encode() + body)
    held.append(connection)
import time
time.sleep(5)
print(post(with_arguments('"small"')))
""")
        self.assertEqual(printed, 'True\n{"result":"small"}\n')


class Instances(unittest.TestCase):
    """Of inotify a user has few (128, as a rule), for all kernels and the program together."""

    def test_a_kernel_starts_while_another_process_of_its_user_holds_all(self) -> None:
        take_all = """
import ctypes, sys
count = 0
while ctypes.CDLL(None).inotify_init() >= 0:
    count += 1
print(count, flush=True)
sys.stdin.read()
"""
        for sandbox in ("bubblewrap", "srt"):
            if sandbox == "srt" and ability("srt"):
                continue
            with self.subTest(sandbox), Place() as place:
                # Where nobody else's work depends on them: of the guest's user, as whom the program runs here as well.
                holder = subprocess.Popen([sys.executable, "-c", take_all], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **as_guest())
                try:
                    self.assertGreater(int(holder.stdout.readline()), 0)
                    started = subprocess.run([PROGRAM, "run", "--sandbox", sandbox, "--python", PYTHON, "-c", "print('started')"],
                                             cwd=place.workspace, env=environment(XDG_STATE_HOME=str(place.directory("state"))),
                                             capture_output=True, text=True, timeout=100, **as_guest())
                finally:
                    holder.communicate()
                self.assertEqual((started.stdout, started.returncode), ("started\n", 0), started.stderr)


class Elsewhere(unittest.TestCase):
    """A Jupyter server on another machine that means it: what it sends in place of a kernel's messages."""

    GROWS = '{"x":[' + "0," * 1_000_000 + "0]}"

    @staticmethod
    def message(metadata: str = "{}", content: str = "{}", header: str = '"' + "x" * 100 + '"', more: str = "") -> bytes:
        """One for the host, in one frame; header: what else stands in it."""
        text = (f'{{"channel":"shell","header":{{"msg_type":"t","msg_id":"i","x":{header}}},"parent_header":{{}},'
                f'"metadata":{metadata},"content":{content}{more}}}').encode()
        short = len(text) < 1 << 16
        return b"\x81" + (b"\x7e" if short else b"\x7f") + len(text).to_bytes(2 if short else 8, "big") + text

    def against(self, says: str, start: bytes = b"", piece: bytes = b"", limit: int = 1 << 30, created: bytes = b'{"id":"one"}',
                patience: int = 5) -> None:
        """Starts a kernel there. created: the answer to that; then `start` comes on its WebSocket, and `piece` again and again."""
        attacked = threading.Event()

        def answer(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(65536) or b"\r\n\r\n"
                if key := re.search(rb"(?i)sec-websocket-key: *(\S+)", head):
                    accept = b64encode(sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
                    connection.sendall(b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
                    attacked.set()
                    connection.sendall(start)
                    for _ in range(limit // max(len(piece), 1)):
                        connection.sendall(piece)
                    connection.recv(1)
                else:
                    body = created if head.startswith(b"POST") else b"{}"
                    connection.sendall(b"HTTP/1.1 201 x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

        with socket.create_server(("127.0.0.1", 0)) as listener, Place() as place:
            threading.Thread(target=accept, daemon=True).start()
            there = json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}", "token": "x", "reconnect_timeout": 1, "connect_retries": 1})
            outcome = place.run("print(1)", ["--kernel", "gateway", "--kernel-options", there, "--kernel-init-timeout", str(patience)],
                                "none", 100)
            listener.shutdown(socket.SHUT_RDWR)
        self.assertLess(outcome.peak_memory - idle("none"), MORE, outcome)
        self.assertRegex(outcome.errors, says)
        self.assertEqual(outcome.output, "")
        self.assertTrue(attacked.is_set() or not piece)

    def test_frames_without_end_in_one_message(self) -> None:
        self.against("a message over the size limit|did not start in time", b"\x02\x01x", b"\x00\x01x" * 100_000, patience=2)

    def test_large_frames_without_end_in_one_message(self) -> None:
        self.against("a message over the size limit", b"\x02\x01x", b"\x00\x7f" + (1 << 20).to_bytes(8, "big") + bytes(1 << 20))

    def test_a_frame_without_end(self) -> None:
        self.against("a message over the size limit", b"\x82\x7f" + (1 << 62).to_bytes(8, "big"), bytes(1 << 20))

    def test_messages_that_grow_when_they_are_decoded(self) -> None:
        for grown, patience in (({"metadata": self.GROWS}, 10), ({"content": self.GROWS}, 10), ({"header": self.GROWS}, 2),
                                ({"more": ',"y":' + self.GROWS}, 2)):
            with self.subTest(*grown):
                self.against("broke the protocol|did not start in time", piece=self.message(**grown), limit=400 << 20, patience=patience)

    if "IPYBOX_TEST_FULL" in os.environ:  # takes 20 s
        def test_small_messages_that_nobody_reads(self) -> None:
            self.against("it sends without waiting|more than there is memory", piece=self.message() * 10_000, patience=90)

    def test_an_answer_that_grows_when_it_is_decoded(self) -> None:
        self.against("is no Jupyter server", created=b"[" + b"[0]," * 2_000_000 + b"0]")


class InBubblewrap(Memory, OfTheLink, unittest.TestCase):
    sandbox, kernel = "bubblewrap", "fork"


class InSrt(Memory, OfTheLink, unittest.TestCase):
    sandbox, kernel = "srt", "fork"


class ZeroMqInBubblewrap(OfZeroMq, unittest.TestCase):
    sandbox = "bubblewrap"


class ZeroMqInSrt(OfZeroMq, unittest.TestCase):
    sandbox = "srt"


class OfAGateway(Memory, OfMessages, unittest.TestCase):
    """Code in there has no connection to the host that it could write to past the gateway."""

    sandbox, kernel = "bubblewrap", "gateway"
    # What MCP servers send meets no kernel.
    test_answers_that_grow_when_they_are_decoded = test_an_answer_without_end = None


if __name__ == "__main__":
    unittest.main()
