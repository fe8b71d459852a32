"""A client of `ipybox host` for tests: every message, both ways, is checked against protocol.json."""
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
from pathlib import Path

import jsonschema

PROGRAM = os.environ["IPYBOX_TEST_PROGRAM"]
PROTOCOL = json.loads(Path(__file__).parents[2].joinpath("app/host/protocol.json").read_text())
LIMIT = 1 << 30  # bytes of one line


class HostError(Exception):
    def __init__(self, error):
        super().__init__(error["message"])
        self.number = error["code"]
        self.code = error["data"]["code"]
        self.field = error["data"].get("field")


def validator(schema):
    document = {"$schema": PROTOCOL["$schema"], "$defs": PROTOCOL["$defs"], **schema}
    return jsonschema.Draft202012Validator(document)


VALIDATORS = {}


def check(message_part, *place):
    """Refuses what does not fit the schema at that place of protocol.json."""
    if place not in VALIDATORS:
        schema = PROTOCOL
        for key in place:
            schema = schema[key]
        VALIDATORS[place] = validator(schema)
    VALIDATORS[place].validate(message_part)


class HostClient:
    """Speaks over a reader and a writer of asyncio."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.numbers = itertools.count(1)
        self.waiting = {}  # method and future by id
        self.notifications = []
        self.strays = []  # answers to no request of ours
        self.heard = asyncio.Event()
        self.handlers = []
        self.listening = asyncio.create_task(self.listen())

    async def listen(self):
        """What a message breaks is the fault of whoever waits for one."""
        fault = ConnectionError("the host has ended")
        try:
            await self.take_messages()
        except Exception as error:
            fault = error
        for _, answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(fault)
        self.heard.set()

    async def take_messages(self):
        while line := await self.reader.readline():
            message = json.loads(line)
            assert message["jsonrpc"] == "2.0", message
            if "method" in message:
                check(message["params"], "notifications", message["method"], "params")
                self.notifications.append((message["method"], message["params"]))
                for handler in self.handlers:
                    handler(message["method"], message["params"])
            else:
                method, answer = self.waiting.pop(message["id"], (None, None))
                if "error" in message:
                    check(message["error"], "errors", "error")
                elif method:
                    check(message["result"], "methods", method, "result")
                if answer is None:
                    self.strays.append(message)
                elif not answer.done():
                    answer.set_result(message)
            self.heard.set()

    def send(self, message):
        self.writer.write(json.dumps(message).encode() + b"\n")

    def begin(self, method, params=None, *, checked=True):
        """Sends a request; the id of it and the future of its answer."""
        number = next(self.numbers)
        if checked:
            check(params or {}, "methods", method, "params")
        answer = asyncio.get_running_loop().create_future()
        self.waiting[number] = method, answer
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})
        return number, answer

    async def finish(self, answer):
        message = await answer
        if "error" in message:
            raise HostError(message["error"])
        return message["result"]

    async def call(self, method, *, checked=True, **params):
        _, answer = self.begin(method, params, checked=checked)
        return await self.finish(answer)

    def cancel(self, number):
        params = {"id": number}
        check(params, "client_notifications", "$/cancel", "params")
        self.send({"jsonrpc": "2.0", "method": "$/cancel", "params": params})

    def stop_reading(self):
        """Leaves what comes in the pipe, so that this is full soon."""
        self.process._transport.get_pipe_transport(1).pause_reading()

    def go_on_reading(self):
        self.process._transport.get_pipe_transport(1).resume_reading()

    async def initialize(self):
        return await self.call("initialize", protocol_version=1, client={"name": "tests", "version": "1"})

    async def notification(self, method, **wanted):
        """The first one of that name with these members, now or later; it is taken out."""
        async with asyncio.timeout(60):
            while True:
                for index, (name, params) in enumerate(self.notifications):
                    if name == method and all(params.get(key) == value for key, value in wanted.items()):
                        del self.notifications[index]
                        return params
                if self.listening.done():
                    raise ConnectionError(f"the host has ended before {method}")
                self.heard.clear()
                await self.heard.wait()


@contextlib.asynccontextmanager
async def started(*flags, env=None, cwd=None, stderr=subprocess.DEVNULL):
    """A running host and its client, which did not say `initialize` yet."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "host", *flags, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env, cwd=cwd,
        limit=LIMIT)
    client = HostClient(process.stdout, process.stdin)
    client.process = process
    try:
        yield client
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            raise
        client.listening.cancel()
