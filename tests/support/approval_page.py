"""The program with an approval page, and what a browser sends to it, sent by hand."""
import concurrent.futures
import http.client
import json
import os
import queue
import re
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlsplit

PROGRAM = os.environ["IPYBOX_TEST_PROGRAM"]
LINK = re.compile(r"^approval page: (http://\S+)$", re.MULTILINE)


class Program:
    """`ipybox run` or `ipybox serve` with --approval-page, in a directory with `workspace` in it. Close it."""

    def __init__(self, command, directory, *arguments, env=None, page="127.0.0.1:0"):
        self.process = subprocess.Popen(
            [PROGRAM, command, "--workspace", "workspace", "--kernel-init-timeout", "60", *arguments,
             "--approval-page", page], cwd=directory, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "IPYBOX_PYTHON": os.environ["IPYBOX_TEST_PYTHON"],
                 "XDG_CONFIG_HOME": str(Path(directory) / "settings"), **(env or {})})
        self.lines = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        try:
            self.link = self.said(LINK).group(1)
        except BaseException:
            self.close()
            raise
        self.address = urlsplit(self.link).netloc

    def read(self):
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()
        with self.changed:
            self.lines.append(None)
            self.changed.notify_all()

    def errors(self):
        return "".join(line for line in self.lines if line)

    def said(self, pattern):
        """Waits until standard error has it."""
        with self.changed:
            self.changed.wait_for(lambda: re.search(pattern, self.errors()) or None in self.lines, 90)
            found = re.search(pattern, self.errors())
        if not found:
            raise AssertionError(f"it did not say {pattern}: {self.errors()}")
        return found

    def end(self):
        """Of `run`: exit code, standard output, standard error."""
        output = self.process.stdout.read()
        status = self.process.wait(timeout=90)
        self.reader.join(10)
        return status, output, self.errors()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.reader.join(10)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


class Served(Program):
    """`ipybox serve` and its client on standard input and output."""

    def __init__(self, directory, *arguments, capabilities=None, **more):
        super().__init__("serve", directory, "--sandbox", "bubblewrap", *arguments, **more)
        self.waiting = {}
        self.asked = queue.Queue()  # what the server asks the client
        self.number = 0
        threading.Thread(target=self.listen, daemon=True).start()
        self.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": capabilities or {},
                                    "clientInfo": {"name": "test", "version": "1"}}).result(60)
        self.send({"method": "notifications/initialized"})

    def listen(self):
        try:
            for line in self.process.stdout:
                message = json.loads(line)
                if "method" in message:
                    if "id" in message:
                        self.asked.put(message)
                else:
                    self.waiting.pop(message["id"]).set_result(message)
        except ValueError:
            pass  # it was closed

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def request(self, method, params):
        self.number += 1
        future = self.waiting[self.number] = concurrent.futures.Future()
        self.send({"id": self.number, "method": method, "params": params})
        return future

    def tool(self, name, **arguments):
        return self.request("tools/call", {"name": name, "arguments": arguments})

    def cell(self, code):
        """A future of what the cell gives; see text_of()."""
        return self.tool("execute_ipython_cell", code=code, timeout=120)


def text_of(future):
    result = future.result(100)["result"]
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")


class Reply:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()

    @property
    def json(self):
        return json.loads(self.text)


class Visitor:
    """What sends requests to the page, with a browser's headers unless others are given (None: without it)."""

    def __init__(self, address, cookie=None):
        self.address = address
        self.cookie = cookie

    def send(self, method, target, body=None, **headers):
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            sent = {"Host": self.address, "Cookie": self.cookie, "Sec-Fetch-Site": "same-origin" if body else "none",
                    **({"Origin": f"http://{self.address}", "Content-Type": "application/json"} if body is not None else {}),
                    **{name.replace("_", "-"): value for name, value in headers.items()}}
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            data = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
            if data is not None:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def get(self, target, **headers):
        return self.send("GET", target, **headers)

    def post(self, target, body, **headers):
        return self.send("POST", target, body, **headers)

    def answer(self, call, verdict, **more):
        return self.post("/answer", {"answers": [{"id": call["id"], "verdict": verdict, **more}]}).json["results"][0]


def sign_in(program, link=None):
    """Somebody who has used the link."""
    parts = urlsplit(link or program.link)
    reply = Visitor(parts.netloc).get(f"{parts.path}?{parts.query}")
    if reply.status != 200:
        raise AssertionError(f"{reply.status}: {reply.text}")
    return Visitor(parts.netloc, reply.headers["Set-Cookie"].partition(";")[0])


class Events:
    """The stream of events of somebody who is signed in, and what a page makes of it."""

    def __init__(self, visitor):
        self.connection = http.client.HTTPConnection(visitor.address, timeout=90)
        self.connection.request("GET", "/events", headers={"Cookie": visitor.cookie, "Sec-Fetch-Site": "same-origin"})
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.seen = []

    def next(self):
        for line in self.response:
            if line.startswith(b"data: "):
                self.seen.append(json.loads(line[len(b"data: "):]))
                return self.seen[-1]
        raise AssertionError(f"the stream has ended after {self.seen}")

    def until(self, holds):
        while not holds(event := self.next()):
            pass
        return event

    def call(self, number=0):
        """The call that waits, the first or a later one."""
        def calls():
            for event in self.seen:
                if event["type"] == "state":
                    yield from event["pending"]
                elif event["type"] == "pending":
                    yield event["call"]
        while len(found := list(calls())) <= number:
            self.next()
        return found[number]

    def settled(self, call):
        return self.until(lambda event: event["type"] == "settled" and event["id"] == call["id"])["done"]

    def close(self):
        self.connection.close()
