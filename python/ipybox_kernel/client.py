"""The tool client: one HTTP/1.1 request over the socket that the host gave to this kernel, or TLS.

Written on plain sockets because http.client alone costs more than the rest of a call.
"""
from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from .results import Parts, from_content, parts_of

_MAX_HEAD = 64 * 1024


class ToolRunnerError(Exception):
    """A tool call failed: the tool said so, the server is unavailable, or the call was refused."""

    content: Parts
    """What the tool returned besides its message; empty in most cases. `content.structured` too."""

    def __init__(self, *args: Any, content: Parts | None = None) -> None:
        super().__init__(*args)
        self.content = Parts() if content is None else content


class ApprovalRejectedError(ToolRunnerError):
    """The call was not approved."""


class ApprovalTimeoutError(ToolRunnerError):
    """Nobody answered the approval request in time."""


class _NotTaken(OSError):
    """The host has not read the request to its end, and so has carried out nothing."""


_ERRORS = {"rejected": ApprovalRejectedError, "timeout": ApprovalTimeoutError}


class _Idle(threading.local):
    connection: socket.socket | None = None
    owner = 0  # pid: a forked child must not write to its parent's connection
    since = 0.0
    brisk = False  # the newest call was answered within _BRISK


_idle = _Idle()
_BRISK = 0.0005  # seconds
_GLANCES = 300  # for an answer, in about that time


def _pinned() -> Any:
    """A TLS context that trusts the tool server's own certificate and nothing else, if it has one."""
    file = os.environ.get("IPYBOX_TOOL_CERTIFICATE")
    if not file:
        return None
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which checks the name as well
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= 0x80000  # X509_V_FLAG_PARTIAL_CHAIN: whoever has signed it
    context.load_verify_locations(file)
    return context


_context: Any = None
_REUSABLE = 20  # seconds; what is on the way forgets connections that are idle


def _tls_address() -> tuple[str, int]:
    host, _, port = os.environ["IPYBOX_TOOL_SOCKET"][len("https://") :].rpartition(":")
    return host.strip("[]"), int(port)


def _connect_tls() -> socket.socket:
    host, port = _tls_address()
    connection = socket.create_connection((host, port), timeout=10)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(connection)
        wrapped = _context.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise
    wrapped.settimeout(None)
    return wrapped


def _keep_alive(connection: socket.socket) -> None:
    """An answer may take as long as a person thinks, and the host may be gone by then."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), 15)


def _open() -> tuple[socket.socket, Any]:
    """A fresh socket, and what to connect it to: a path, or HOST:PORT where Unix sockets cannot be made."""
    address = os.environ.get("IPYBOX_TOOL_SOCKET")
    if not address:
        raise ToolRunnerError("tool calls are not available: this kernel was started without a tool server")
    try:
        if address.startswith("/"):
            return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), address
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise ToolRunnerError(f"cannot reach the tool server: {error}") from None
    # The end of a large request must not wait for an acknowledgement of its beginning.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    host, _, port = address.rpartition(":")
    return connection, (host, int(port))


class _HasDecimals(Exception):
    """What is to be sent has numbers that json cannot write."""


def _unknown(value: Any) -> Any:
    decimal = sys.modules.get("decimal")
    if decimal is not None and isinstance(value, decimal.Decimal):
        raise _HasDecimals
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _encoder(default: Any) -> Any:
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default).encode


_encode_plain = _encoder(_unknown)


def _encode(call: dict[str, Any]) -> str:
    """JSON; decimals with all their digits, which json has no way to write."""
    try:
        return _encode_plain(call)
    except _HasDecimals:
        pass
    mark, digits = os.urandom(16).hex(), []  # no text of the call can have it

    def kept(value: Any) -> Any:
        try:
            _unknown(value)
        except _HasDecimals:
            if not value.is_finite():
                raise ValueError(f"{value!r} is no number in JSON; pass None or a text instead") from None
            digits.append(str(value))
            return f"{mark}{len(digits) - 1}"

    return re.sub(f'"{mark}(\\d+)"', lambda found: digits[int(found[1])], _encoder(kept)(call))


exact_numbers = False
"""Whether the numbers of results that are no integers become decimal.Decimal, with the digits that were sent."""


def decode(text: str | bytes | bytearray) -> Any:
    """The value of a JSON text that came from a tool."""
    if not exact_numbers:
        return json.loads(text)
    from decimal import Decimal

    return json.loads(text, parse_float=Decimal)


_HEAD = b""


def configure() -> None:
    """Reads what the environment says, before the first cell runs; after a fork again."""
    global _context, exact_numbers, _HEAD
    _context = _pinned()
    exact_numbers = os.environ.get("IPYBOX_EXACT_NUMBERS") == "1"
    _HEAD = (
        "POST /run HTTP/1.1\r\nHost: ipybox\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {os.environ.get('IPYBOX_TOOL_TOKEN', '')}\r\nContent-Length: "
    ).encode()


configure()


# Coroutines and tasks keep the cell they were begun in; threads know of none, and belong to the cell that runs.
_begun_in: ContextVar[str | None] = ContextVar("ipybox_cell", default=None)
_running: set[str] = set()  # subshells run cells beside others


def begin_cell(cell: str) -> None:
    """The code that follows in this context is that of `cell`, until end_cell()."""
    _running.add(cell)
    _begun_in.set(cell)


def end_cell(cell: str) -> None:
    _running.discard(cell)


_source = ""  # the name of the file that the newest cell was compiled as


def source_is(name: str) -> None:
    """The code that runs next has this name in its frames."""
    global _source
    _source = name


def _line() -> int:
    """The line of the cell that is making a call; 0 where no frame of the cell is on the way to it."""
    line, frame = 0, sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == _source:
            line = frame.f_lineno or 0
        frame = frame.f_back
    return line


_told: ContextVar[Callable[[float, float | None, str], object] | None] = ContextVar("ipybox_progress", default=None)


@contextlib.contextmanager
def progress(callback: Callable[[float, float | None, str], object]) -> Iterator[None]:
    """The calls made within it tell how far they are: callback(done, total or None, message).

    Not those of other threads. What the callback raises ends the call.
    """
    before = _told.set(callback)
    try:
        yield
    finally:
        _told.reset(before)


def _request(server: str, tool: str, arguments: dict[str, Any]) -> bytes:
    cell = _begun_in.get()
    if cell is not None and cell not in _running:
        raise ToolRunnerError(
            "the cell in which this was begun has ended: its tasks can call tools while it runs, "
            "not during a later one; await them in it"
        )
    call = {"server_name": server, "tool_name": tool, "tool_args": arguments}
    if (line := _line()) > 0:
        call["line"] = line
    body = _encode(call).encode("utf-8", "surrogatepass")
    wish = b"Ipybox-Progress: 1\r\n" if _told.get() else b""
    return b"%b%d\r\n%b\r\n%b" % (_HEAD, len(body), wish, body)


class _Response:
    """Collects one response from chunks of bytes."""

    def __init__(self) -> None:
        self._told = _told.get()
        self._begun = False
        self._data = bytearray()
        self._body_at = -1
        self._end = -1
        self.keep_alive = True
        self.not_taken = False

    def feed(self, chunk: bytes) -> bool:
        """Adds a chunk; true when the response is whole."""
        if not chunk:
            raise ToolRunnerError("the tool server closed the connection before it answered; the call may have been carried out")
        self._data += chunk
        self._begun = True
        while self._end < 0:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if len(self._data) > _MAX_HEAD:
                    raise ToolRunnerError("the tool server's answer is not HTTP")
                return False
            head = bytes(self._data[:end])
            if head.startswith(b"HTTP/1.1 102 "):
                del self._data[: end + 4]
                self._report(head)
            else:
                self._read_head(head, end + 4)
        return len(self._data) >= self._end

    def _read_head(self, head: bytes, body_at: int) -> None:
        length = None
        status, *lines = head.split(b"\r\n")
        self.not_taken = status.startswith(b"HTTP/1.1 408 ")
        for line in lines:
            name, _, value = line.partition(b":")
            name = name.strip().lower()
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and value.strip().lower() == b"close":
                self.keep_alive = False
        if length is None:
            raise ToolRunnerError("the tool server's answer has no Content-Length")
        self._body_at, self._end = body_at, body_at + length

    def _report(self, head: bytes) -> None:
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name == b"Ipybox-Progress" and self._told is not None:
                report = json.loads(value)
                self._told(report["progress"], report.get("total"), report.get("message", ""))

    def begun(self) -> bool:
        return self._begun

    def missing(self) -> int:
        return max(self._end - len(self._data), 0)

    def value(self) -> Any:
        try:
            reply = decode(self._data[self._body_at : self._end])
        except ValueError as error:  # an integer of too many digits
            raise ToolRunnerError(f"the tool's result cannot be read: {error}") from None
        if "error" in reply:
            content = parts_of(reply.get("content", []), reply.get("result"))
            raise _ERRORS.get(reply.get("type"), ToolRunnerError)(reply["error"], content=content)
        if "content" in reply:
            return from_content(reply["content"], reply.get("result"))
        return reply.get("result")


def _flush() -> None:
    """What was printed before a call is shown before the call is put to a person."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # somebody replaced or closed it; the call goes on
            pass


def _poller(connection: socket.socket) -> select.poll:
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return poller


def _is_open(connection: socket.socket) -> bool:
    """False when the host has closed it: it does so to those that are idle longest, when they are too many."""
    return not _poller(connection).poll(0)


def _kept() -> socket.socket | None:
    connection, _idle.connection = _idle.connection, None
    if connection is not None:
        fresh = _context is None or time.monotonic() - _idle.since < _REUSABLE
        if _idle.owner == os.getpid() and fresh and _is_open(connection):
            return connection
        connection.close()
    return None


def _fresh() -> socket.socket:
    if _context is not None:
        try:
            return _connect_tls()
        except OSError as error:
            raise ToolRunnerError(f"cannot reach the tool server: {error}") from None
    connection, address = _open()
    try:
        connection.connect(address)
    except OSError as error:
        connection.close()
        raise ToolRunnerError(f"cannot reach the tool server: {error}") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _is_soon(poller: select.poll) -> bool:
    """Whether there is something before as many looks are over; others go first. Not by the clock, which code may stop."""
    poll, give_way = poller.poll, os.sched_yield
    for _ in range(_GLANCES):
        if poll(0):
            return True
        give_way()
    return False


def _wait(connection: socket.socket) -> None:
    """Until there is an answer, or a part of it.

    To sleep and to be woken can take longer than all else of a call: a processor without work may halt, above all that
    of a virtual machine. So after a call that was quick this does not sleep at once. In recv() it would be woken when
    the host takes the request, too.
    """
    if _context is not None:  # which may hold what came already
        return
    poller, began = _poller(connection), time.monotonic()
    if _idle.brisk and _is_soon(poller):
        return
    poller.poll()
    _idle.brisk = time.monotonic() - began < _BRISK


def _exchange(connection: socket.socket, request: bytes, response: _Response) -> None:
    """Raises _NotTaken where that is certain. Silence is no sign: the host reads a request before it answers."""
    try:
        connection.sendall(request)
    except OSError as error:
        raise _NotTaken(*error.args) from None
    try:
        whole = False
        while not whole:
            _wait(connection)
            whole = response.feed(connection.recv(max(65536, min(response.missing(), 1 << 20))))
    except ConnectionResetError as error:
        # On this machine that is how a connection ends of which not all was read; on a way over the
        # network anything may reset it.
        if _context is None and not response.begun():
            raise _NotTaken(*error.args) from None
        raise
    if response.not_taken:
        raise _NotTaken("it was given away before the call was read; call again")


def send(server: str, tool: str, arguments: dict[str, Any]) -> Any:
    """Calls a tool and waits for its result; raises ToolRunnerError or one of its kinds."""
    request = _request(server, tool, arguments)
    _flush()
    kept = _kept()
    connection = kept or _fresh()
    response = _Response()
    try:
        try:
            _exchange(connection, request, response)
        except _NotTaken:
            # The host has given its place away in this moment.
            if kept is None:
                raise
            connection.close()
            connection, response = _fresh(), _Response()
            _exchange(connection, request, response)
    except BaseException as error:  # an interrupted call must not leave half an answer behind
        connection.close()
        if isinstance(error, OSError):
            raise ToolRunnerError(f"the connection to the tool server broke: {error}") from None
        raise
    if response.keep_alive:
        _idle.connection, _idle.owner, _idle.since = connection, os.getpid(), time.monotonic()
    else:
        connection.close()
    return response.value()


async def _connect(connection: socket.socket, path: str) -> None:
    # sock_connect() takes EAGAIN, a full queue of the listener, for a connection under way.
    while True:
        try:
            return connection.connect(path)
        except BlockingIOError:
            await asyncio.sleep(0.005)


async def send_async(server: str, tool: str, arguments: dict[str, Any]) -> Any:
    """send() for coroutines: many calls may wait at once."""
    request = _request(server, tool, arguments)
    _flush()
    loop = asyncio.get_running_loop()
    response = _Response()
    if _context is not None:
        await _exchange_tls(request, response)
        return response.value()
    connection, address = _open()
    with connection:
        connection.setblocking(False)
        try:
            if isinstance(address, str):
                await _connect(connection, address)
            else:
                await loop.sock_connect(connection, address)
            await loop.sock_sendall(connection, request)
            while not response.feed(await loop.sock_recv(connection, 1 << 18)):
                pass
        except OSError as error:
            raise ToolRunnerError(f"the connection to the tool server broke: {error}") from None
    return response.value()


async def _exchange_tls(request: bytes, response: _Response) -> None:
    host, port = _tls_address()
    opening = asyncio.open_connection(host, port, ssl=_context, server_hostname=host)
    try:
        reader, writer = await asyncio.wait_for(opening, 30)
    except (OSError, asyncio.TimeoutError) as error:
        raise ToolRunnerError(f"cannot reach the tool server: {error}") from None
    try:
        _keep_alive(writer.get_extra_info("socket"))
        writer.write(request)
        await writer.drain()
        while not response.feed(await reader.read(1 << 18)):
            pass
    except OSError as error:
        raise ToolRunnerError(f"the connection to the tool server broke: {error}") from None
    finally:
        writer.transport.abort()
