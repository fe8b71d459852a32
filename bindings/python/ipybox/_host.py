"""The process `ipybox host`, and what is said to it: JSON-RPC 2.0, one message a line.

One process serves a whole program, however many event loops it has: kernels are forked from one
warm template, and its limits of memory hold for all of them.
"""

from __future__ import annotations

import asyncio
import atexit
import decimal
import json
import logging
import os
import select
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ._errors import HostDiedError, IpyboxError
from ._program import find_program
from ._version import VERSION

JsonObject = dict[str, Any]
Sink = Callable[[str, JsonObject], None]
"""Gets the notifications of a request, a session or a tool server; called on the reading thread."""
Resolve = Callable[[Any, "Exception | None"], None]
"""Gets the answer of a request, once; called on the reading thread, or on the caller's."""

PROTOCOL = 1
# A host that nobody uses ends after so many seconds; the next one would start its template anew.
IDLE_SECONDS = 10.0
# How long a host whose input has ended may take to end by itself.
GRACE_SECONDS = 5.0

# Of integers: Python converts none with more than 640 if somebody set it to the least, and takes
# very long for those of many more if somebody set it to none.
MOST_DIGITS = 640

logger = logging.getLogger("ipybox")
_levels = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class Connection:
    """One host process. All methods may be called from any thread."""

    def __init__(self, log_level: str) -> None:
        self.environment = dict(os.environ)
        self._owner = os.getpid()
        self._lock = threading.RLock()  # a finalizer may release() wherever it runs
        self._last_id = 0
        self._calls: dict[int, tuple[Resolve, Sink | None]] = {}
        self._sinks: dict[str, Sink] = {}  # of sessions and tool servers
        self._questions: dict[str, Sink] = {}  # those that were asked, by the name of the question
        self._unsent: deque[memoryview] = deque()
        self._orphans: deque[tuple[str, JsonObject]] = deque()
        self._users = 0
        self._idle_since = time.monotonic()
        self._closing = False
        self._warned = False
        self.ended = False
        self._last_words: deque[str] = deque(maxlen=20)

        command = [find_program(), "host", "--log-level", _host_level(log_level)]
        child_in, self._to_host = os.pipe()
        self._from_host, child_out = os.pipe()
        self._log, child_log = os.pipe()
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in (
            self._to_host,
            self._from_host,
            self._log,
            self._wake_read,
            self._wake_write,
        ):
            os.set_blocking(descriptor, False)
        try:
            # In a session of its own: Ctrl-C at the terminal is for the application to handle.
            self._process = subprocess.Popen(
                command,
                stdin=child_in,
                stdout=child_out,
                stderr=child_log,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            self._close_descriptors()
            raise IpyboxError(f"cannot start {command[0]}: {error.strerror}", "io_error") from error
        finally:
            for descriptor in (child_in, child_out, child_log):
                os.close(descriptor)
        self.send(
            "initialize",
            {"protocol_version": PROTOCOL, "client": {"name": "ipybox-python", "version": VERSION}},
            self._initialized,
        )
        _connections.add(self)
        self._thread = threading.Thread(target=self._serve, name="ipybox-host", daemon=True)
        self._thread.start()

    # What callers do.

    async def request(self, method: str, params: JsonObject) -> Any:
        """Sends a request and returns its result; cancelling the task withdraws the request."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        number = self.send(
            method, params, lambda result, error: call_soon(loop, settle, result, error)
        )
        try:
            return await answer
        except asyncio.CancelledError:
            self.notify("$/cancel", {"id": number})
            raise

    def send(
        self, method: str, params: JsonObject, resolve: Resolve, sink: Sink | None = None
    ) -> int:
        """Sends a request whose answer goes to `resolve`, and notifications about it to `sink`."""
        with self._lock:
            if not self.ended and self._owner == os.getpid():
                self._last_id += 1
                number = self._last_id
                self._calls[number] = (resolve, sink)
                self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
                return number
        resolve(None, self._gone())
        return 0

    def notify(self, method: str, params: JsonObject) -> None:
        """Sends a notification, if there is still somebody to get it."""
        with self._lock:
            if not self.ended and self._owner == os.getpid():
                self._write({"jsonrpc": "2.0", "method": method, "params": params})

    def forget(self, method: str, params: JsonObject) -> None:
        """Sends a request whose answer nobody waits for. Takes no lock, so that finalizers may call
        it wherever they run."""
        self._orphans.append((method, params))
        self._wake()

    def listen(self, handle: str, sink: Sink) -> None:
        """Notifications of a session or tool server that belong to no request go to `sink`."""
        with self._lock:
            self._sinks[handle] = sink

    def unlisten(self, handle: str) -> None:
        """Undoes listen()."""
        self._sinks.pop(handle, None)

    def hold(self) -> None:
        """Somebody uses the host, until release()."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """Somebody uses it no more."""
        with self._lock:
            self._users -= 1
            self._idle_since = time.monotonic()
        self._wake()

    @property
    def is_stale(self) -> bool:
        """Whether nobody uses it, and its environment is no longer that of this process."""
        return self._users == 0 and self.environment != dict(os.environ)

    def retire(self) -> None:
        """Ends the host process; does not wait for that."""
        with self._lock:
            self._closing = True
        self._wake()

    def close(self) -> None:
        """Ends the host process, and kernels and MCP servers with it; returns when it has ended."""
        self.retire()
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * GRACE_SECONDS)

    def abandon(self) -> None:
        """In the child of a fork: the host belongs to the parent, and must see its input end when
        the parent does."""
        self.ended = True
        self._lock = threading.RLock()
        self._calls.clear()
        self._close_descriptors()
        self._process.returncode = 0  # it is no child of this process

    # What is said, and heard.

    def _gone(self) -> IpyboxError:
        if self._owner != os.getpid():
            return IpyboxError(
                "this object belongs to the process that this one was forked from: "
                "make a new one here",
                "bad_argument",
            )
        words = "".join("\n" + line for line in self._last_words)
        status = self._process.returncode
        how = ""
        if status is not None:
            how = f" by signal {-status}" if status < 0 else f" with status {status}"
        return HostDiedError(
            f"the process of ipybox that holds kernels and MCP servers has ended{how}, "
            f"and their state is lost; start() begins anew{words}"
        )

    def _initialized(self, result: Any, error: Exception | None) -> None:
        if error is not None:
            self._last_words.append(f"it refused this package: {error}")
            self._closing = True

    def _write(self, message: JsonObject) -> None:
        """With the lock held."""
        try:
            text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            data = memoryview(text.encode("utf-8", "strict") + b"\n")
        except (TypeError, ValueError) as error:
            self._calls.pop(message.get("id", 0), None)
            raise ValueError(
                f"{message['method']}: what is no JSON cannot be sent: {error}"
            ) from error
        if not self._unsent:
            try:
                data = data[os.write(self._to_host, data) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the end is noticed by the reader
        if data:
            self._unsent.append(data)
            self._wake()

    def _flush(self) -> None:
        with self._lock:
            while self._unsent:
                data = self._unsent[0]
                try:
                    data = data[os.write(self._to_host, data) :]
                except BlockingIOError:
                    return
                except OSError:
                    self._unsent.clear()
                    return
                if data:
                    self._unsent[0] = data
                else:
                    self._unsent.popleft()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except OSError:
            pass  # it is awake, or gone

    def _serve(self) -> None:
        """The reading thread."""
        try:
            self._pump()
        except Exception:
            logger.exception("reading from the host failed")
        finally:
            self._finish()

    def _pump(self) -> None:
        poll = select.poll()
        for descriptor in (self._from_host, self._log, self._wake_read):
            poll.register(descriptor, select.POLLIN)
        partial = bytearray()
        log = bytearray()
        writing = False
        while True:
            for method, params in self._taken_orphans():
                try:
                    self.send(method, params, lambda _result, _error: None)
                except ValueError:
                    pass
            if self._closing or self._is_idle():
                return
            if bool(self._unsent) != writing:
                writing = not writing
                if writing:
                    poll.register(self._to_host, select.POLLOUT)
                else:
                    poll.unregister(self._to_host)
            for descriptor, _event in poll.poll(1000 if self._users == 0 else None):
                if descriptor == self._wake_read:
                    _read(self._wake_read)
                elif descriptor == self._to_host:
                    self._flush()
                elif descriptor == self._log:
                    data = _read(self._log)
                    if data == b"":
                        poll.unregister(self._log)
                    for line in _lines(log, data or b""):
                        self._logged(line)
                else:
                    data = _read(self._from_host)
                    if data == b"":
                        return
                    for line in _lines(partial, data or b""):
                        self._heard(line)

    def _taken_orphans(self) -> list[tuple[str, JsonObject]]:
        taken: list[tuple[str, JsonObject]] = []
        while self._orphans:
            taken.append(self._orphans.popleft())
        return taken

    def _is_idle(self) -> bool:
        with self._lock:
            if self._users > 0 or self._calls or time.monotonic() - self._idle_since < IDLE_SECONDS:
                return False
            self.ended = True  # nobody begins anything with it from here on
            return True

    def _logged(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        self._last_words.append(text)
        if text.startswith('warning: sandbox "none"'):
            if self._warned:
                return  # every unconfined executor has it
            self._warned = True
        word, colon, _ = text.partition(":")
        logger.log(_levels.get(word, logging.WARNING) if colon else logging.WARNING, "%s", text)

    def _heard(self, line: bytes) -> None:
        message = _parsed(line)
        number = message.get("id")
        if "method" not in message:
            if number is None:
                logger.error("the host did not understand a message: %s", message.get("error"))
                return
            with self._lock:
                resolve, _ = self._calls.pop(number, (None, None))
                if not self._users:
                    self._idle_since = time.monotonic()
            if resolve is not None:
                error = message.get("error")
                resolve(message.get("result"), None if error is None else _error(error))
            return
        method: str = message["method"]
        params: JsonObject = message.get("params", {})
        sink = self._sink(method, params)
        if sink is not None:
            sink(method, params)

    def _sink(self, method: str, params: JsonObject) -> Sink | None:
        """Whom a notification is for."""
        if method in ("approval/settled", "input/settled"):
            return self._questions.pop(params.get("approval") or params.get("input") or "", None)
        with self._lock:
            _, sink = self._calls.get(params.get("request") or 0, (None, None))
            if sink is None:
                sink = self._sinks.get(params.get("session") or params.get("tools") or "")
        if sink is not None and method in ("approval/requested", "execution/input"):
            self._questions[params.get("approval") or params["input"]] = sink
        return sink

    def _finish(self) -> None:
        with self._lock:
            self.ended = True
        os.close(self._to_host)  # its input ends, and so does the host
        self._to_host = -1
        self._await_end()
        with self._lock:
            calls = list(self._calls.values())
            self._calls.clear()
            self._sinks.clear()
            self._close_descriptors()
        for resolve, _ in calls:
            resolve(None, self._gone())

    def _await_end(self) -> None:
        """Reads the last words of the host, and kills one that does not end."""
        deadline = time.monotonic() + GRACE_SECONDS
        log = bytearray()
        while self._process.poll() is None and time.monotonic() < deadline:
            ready, _, _ = select.select([self._from_host, self._log], [], [], 0.02)
            if self._from_host in ready and _read(self._from_host) == b"":
                time.sleep(0.005)
            for line in _lines(log, (_read(self._log) or b"") if self._log in ready else b""):
                self._logged(line)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for line in _lines(log, (_read(self._log) or b"")):
            self._logged(line)

    def _close_descriptors(self) -> None:
        for name in ("_to_host", "_from_host", "_log", "_wake_read", "_wake_write"):
            descriptor = getattr(self, name)
            setattr(self, name, -1)
            if descriptor >= 0:
                try:
                    os.close(descriptor)
                except OSError:
                    pass


def _host_level(name: str) -> str:
    """As `ipybox host --log-level` calls it."""
    level = {"CRITICAL": "error", "WARN": "warning"}.get(name.upper(), name.lower())
    if level not in ("debug", "info", "warning", "error"):
        raise ValueError(
            f"log_level: expected DEBUG, INFO, WARNING, ERROR or CRITICAL, got {name!r}"
        )
    return level


def _error(error: JsonObject) -> IpyboxError:
    data: JsonObject = error.get("data") or {}
    message = str(error.get("message", ""))
    field = data.get("field")
    if field and field not in message:
        message = f"{field}: {message}"
    return IpyboxError(message, str(data.get("code", "internal")))


def _parsed(line: bytes) -> Any:
    # Code can call a tool with such an integer.
    return json.loads(line) if len(line) <= MOST_DIGITS else json.loads(line, parse_int=_integer)


def _integer(text: str) -> int | decimal.Decimal:
    return int(text) if len(text) <= MOST_DIGITS else decimal.Decimal(text)


def _read(descriptor: int) -> bytes | None:
    """What is there; empty at the end, None if nothing is there now."""
    try:
        return os.read(descriptor, 1 << 18)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _lines(partial: bytearray, data: bytes) -> list[bytes]:
    """The lines that `data` completes; the rest stays in `partial`."""
    end = data.rfind(b"\n")
    if end < 0:
        partial += data
        return []
    whole = bytes(partial) + data[:end]
    partial[:] = data[end + 1 :]
    return whole.split(b"\n")


def call_soon(
    loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any
) -> None:
    """Has the loop call something; does nothing when the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        pass


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()
_current: Connection | None = None
_current_lock = threading.Lock()


def connection(log_level: str = "WARNING") -> Connection:
    """The host of this program, which is started if there is none; held until release()."""
    global _current
    with _current_lock:
        if _current is not None and _current.is_stale:
            _current.retire()
            _current = None
        if _current is None or _current.ended:
            _current = Connection(log_level)
        _current.hold()
        return _current


def shutdown() -> None:
    """Ends the host process at once, with all kernels and MCP servers; a later start() begins a new
    one. The end of the program does this by itself."""
    global _current
    with _current_lock:
        old, _current = _current, None
    if old is not None and not old.ended:
        old.close()


def _after_fork() -> None:
    global _current, _current_lock
    _current = None
    _current_lock = threading.Lock()
    for old in list(_connections):
        if not old.ended:
            old.abandon()


atexit.register(shutdown)
os.register_at_fork(after_in_child=_after_fork)
