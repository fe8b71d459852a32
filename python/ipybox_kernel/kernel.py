"""ipykernel: made lossless, quick and exactly interruptible. Called in its kernels only."""
from __future__ import annotations

import asyncio
import atexit
import faulthandler
import functools
import json
import signal
import sys
import threading
from typing import Any, Callable

import zmq
from IPython.core.error import StdinNotImplementedError

try:
    from jupyter_client.jsonutil import json_default
except ImportError:  # before jupyter_client 7
    from jupyter_client.jsonutil import date_default as json_default

from .client import begin_cell, end_cell
from .output import adopt
from .startup import INPUT_REFUSED, NOBODY_ANSWERS

cells: Cells | None = None


def prepare(shell: Any, restore: Callable[[], None]) -> None:
    """restore: called after every cell, before its reply."""
    kernel = shell.kernel
    tape = adopt(sys.stdout, sys.stderr)
    if tape is None:
        raise RuntimeError("ipybox_kernel needs ipykernel's own sys.stdout and sys.stderr, which something has replaced")
    # The host keeps what arrives there and shows it when the kernel dies: a crash's stack, and the
    # traceback of whatever fails in the rest of the start.
    original = getattr(sys.stderr, "_original_stdstream_copy", None)
    if original is not None:
        faulthandler.enable(original)
    atexit.register(tape.drain)
    _publish_losslessly(shell, kernel)
    _hurry(kernel)
    _explain_input(kernel)
    global cells
    cells = Cells(kernel, tape, restore)


class Cells:
    """Surrounds every execution, so that an interrupt hits the cell it was meant for, or none."""

    def __init__(self, kernel: Any, tape: Any, restore: Callable[[], None]) -> None:
        self._kernel, self._tape, self._restore = kernel, tape, restore
        self._lock = threading.Lock()
        self._running: str | None = None  # msg_id of the execution
        self._unwanted: str | None = None  # msg_id of one that was interrupted before it began
        self._finished: str | None = None  # msg_id of the one before
        self._reply: dict[str, Any] = {}  # and what it was answered
        self._waiting = False  # the execution has begun, its code has not
        self._missed = False  # and was interrupted meanwhile
        self._kept = getattr(kernel.shell.history_manager, "outputs", {})
        self._run = kernel.do_execute
        self._interrupt = kernel.control_handlers["interrupt_request"]
        # The signature tells ipykernel what it may pass.
        @functools.wraps(self._run)
        async def do_execute(*arguments: Any, **named: Any) -> dict[str, Any]:
            return await self._do_execute(*arguments, **named)

        kernel.do_execute = do_execute
        shell = kernel.shell
        run_code = shell.run_code

        async def begin(*arguments: Any, **named: Any) -> Any:
            self._begin_code()
            return await run_code(*arguments, **named)

        shell.run_code = begin
        kernel.control_handlers["interrupt_request"] = self._interrupt_request
        self._main = threading.main_thread().ident
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGURG, _ignore)

    async def _do_execute(self, code: str, *rest: Any, **named: Any) -> dict[str, Any]:
        # What runs before the cell's code swallows a KeyboardInterrupt, IPython's event callbacks
        # above all: it is kept until there is code that it can end.
        self._set_handler(self._keep_interrupt)
        self._missed, self._waiting = False, True
        with self._lock:
            self._running = self._kernel.get_parent("shell")["header"]["msg_id"]
            if self._running == self._unwanted:
                code = "raise KeyboardInterrupt"
            cell = self._running
        begin_cell(cell)
        self._tape.in_cell = True
        # After the cell, before its reply: without this there would be none.
        reply: dict[str, Any] = {
            "status": "error", "ename": "KeyboardInterrupt", "evalue": "", "traceback": [],
            "execution_count": 0, "user_expressions": {}, "payload": [],
        }
        try:
            try:
                reply = await self._run(code, *rest, **named)
            finally:
                self._set_handler(self._keep_interrupt)
        except KeyboardInterrupt:
            self._set_handler(self._keep_interrupt)
        finally:
            end_cell(cell)
            with self._lock:
                self._finished, self._reply = self._running, reply
                self._running = None
            self._waiting = False
            self._tape.drain()
            self._tape.in_cell = False
            self._kept.clear()
            self._restore()
        return reply

    def state(self) -> dict[str, Any]:
        """For a host that may have missed a reply."""
        with self._lock:
            state: dict[str, Any] = {"running": self._running, "finished": self._finished}
            names = ("status", "ename", "evalue", "traceback")
            state["reply"] = {name: self._reply[name] for name in names if name in self._reply}
        return state

    @staticmethod
    def _set_handler(handler: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)

    def _keep_interrupt(self, *_: Any) -> None:
        self._missed = True

    def _begin_code(self) -> None:
        if not self._waiting:
            return
        self._waiting = False
        # A cell that awaits has a handler of ipykernel's, which cancels it.
        if signal.getsignal(signal.SIGINT) == self._keep_interrupt:
            self._set_handler(signal.default_int_handler)
        if self._missed:
            raise KeyboardInterrupt

    async def _interrupt_request(self, stream: Any, ident: Any, request: dict[str, Any]) -> None:
        # Ours names the execution it is meant for; others mean what is running.
        wanted = request["content"].get("msg_id")
        with self._lock:
            meant = wanted is None or wanted == self._running
            if meant:
                # With the lock, so that it cannot end meanwhile and leave the signal to the next.
                await self._interrupt(stream, ident, request)
            else:
                self._unwanted = wanted
        if meant:
            # A cell that awaits is cancelled by a handler that does not wake its event loop.
            self._kernel.io_loop.add_callback(lambda: None)
            self._wake_later(self._running, 0.01, 0.05, 0.25, 1.0, 2.0)
        else:
            session = self._kernel.session
            session.send(stream, "interrupt_reply", {"status": "ok"}, request, ident=ident)

    def _wake_later(self, cell: str | None, pause: float, *pauses: float) -> None:
        """Ends a system call that the interrupt did not.

        Python notes a signal that arrives between its last look and the call, and looks again when
        the call returns: after an hour, if that is what the cell sleeps.
        """
        def wake() -> None:
            with self._lock:
                if cell is None or self._running != cell or self._main is None:
                    return
                # A handler of the cell's own is not ours to call.
                if signal.getsignal(signal.SIGURG) is _ignore:
                    signal.pthread_kill(self._main, signal.SIGURG)
            if pauses:
                self._wake_later(cell, *pauses)

        asyncio.get_running_loop().call_later(pause, wake)


def _ignore(*_: Any) -> None:
    pass


def _publish_losslessly(shell: Any, kernel: Any) -> None:
    """Makes the IOPub socket wait for a slow reader; ipykernel's own setting drops messages."""
    thread = kernel.iopub_thread
    # A ZeroMQ socket belongs to one thread.
    thread.schedule(lambda: thread.socket.setsockopt(zmq.XPUB_NODROP, 1))

    def limit_queue() -> None:
        # Few messages, because each may hold a million characters. Only a reader that has come
        # already is affected, so this waits for the first cell.
        shell.events.unregister("pre_execute", limit_queue)
        thread.schedule(lambda: thread.socket.setsockopt(zmq.SNDHWM, 64))

    shell.events.register("pre_execute", limit_queue)


def _hurry(kernel: Any) -> None:
    """Leaves out what only other front ends need."""
    # A pause for clients that could see a reply before the output; ours waits for both.
    kernel._execute_sleep = 0
    # Nobody needs to be told what was asked, nor that it begins.
    kernel._publish_execute_input = lambda *_: None
    publish = kernel._publish_status
    kernel._publish_status = lambda status, *rest, **named: (
        None if status == "busy" else publish(status, *rest, **named)
    )

    pack = kernel.session.pack
    encode = json.JSONEncoder(default=json_default, ensure_ascii=False, allow_nan=False).encode

    def quick_pack(message: Any) -> bytes:
        try:
            return encode(message).encode()
        except UnicodeEncodeError:
            return encode(message).encode("utf-8", "replace")
        except (TypeError, ValueError):
            return pack(message)

    kernel.session.pack = quick_pack


def _explain_input(kernel: Any) -> None:
    """What input() and getpass() ask is not dropped, and what they raise says what to do instead."""
    def explaining(ask: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(ask)
        def explain(*arguments: Any, **named: Any) -> str:
            # A full socket waits for its reader instead of dropping the question. Where nobody may
            # ask, it is another thread's (link.py).
            if kernel._allow_stdin:
                kernel.stdin_socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            try:
                return ask(*arguments, **named)
            except StdinNotImplementedError:
                raise StdinNotImplementedError(NOBODY_ANSWERS) from None
            except EOFError:
                raise EOFError(INPUT_REFUSED) from None

        return explain

    for name in ("raw_input", "getpass"):
        setattr(kernel, name, explaining(getattr(kernel, name)))
