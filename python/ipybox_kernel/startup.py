"""What IPython needs to be told once, before the first cell. Called in the kernel only."""
from __future__ import annotations

import asyncio
import atexit
import contextlib
import faulthandler
import functools
import json
import os
import signal
import sys
import threading
from typing import Any

import zmq

try:
    from jupyter_client.jsonutil import json_default
except ImportError:  # before jupyter_client 7
    from jupyter_client.jsonutil import date_default as json_default

from .client import begin_cell, end_cell
from .output import adopt


def prepare(shell: Any) -> None:
    """Makes the shell quiet, lossless, quick and exactly interruptible."""
    _no_colours(shell)
    _show_what_was_written(shell)
    _hide_own_frames(shell)
    shell.events.register("pre_execute", _forget_rewritten)
    _honour_semicolon(shell.displayhook)
    shell.autoawait = True
    sys.meta_path.append(_Original())
    # IPython 9 keeps a copy of every cell's output, forever when cells are not numbered.
    shell._tee = lambda channel: contextlib.nullcontext()
    kernel = getattr(shell, "kernel", None)
    tape = adopt(sys.stdout, sys.stderr)
    if kernel is None or tape is None:
        raise RuntimeError("ipybox_kernel prepares the shells of ipykernel only")
    # The host keeps what arrives there and shows it when the kernel dies: a crash's stack, and the
    # traceback of whatever fails in the rest of the start.
    original = getattr(sys.stderr, "_original_stdstream_copy", None)
    if original is not None:
        faulthandler.enable(original)
    atexit.register(tape.drain)
    _publish_losslessly(shell, kernel)
    _hurry(kernel)
    global cells
    if mode := os.environ.get("IPYBOX_SHELL"):
        from .shell import guard

        guard(shell, only=mode == "only")
    cells = _Cells(kernel, tape, os.environ.get("IPYBOX_WORKING_DIR"))


class _Cells:
    """Surrounds every execution, so that an interrupt hits the cell it was meant for, or none."""

    def __init__(self, kernel: Any, tape: Any, working_dir: str | None) -> None:
        self._kernel, self._tape, self._working_dir = kernel, tape, working_dir
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
            if self._working_dir:
                _restore(self._working_dir)
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


def _forget_rewritten() -> None:
    models = sys.modules.get("ipybox_kernel.models")
    if models is not None:  # nothing generated was imported yet
        models.forget_rewritten()


cells: _Cells | None = None


class _Original:
    """Says what to do about packages that the original ipybox generated. Asked where nobody knows a module."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name not in ("mcpygen", "mcpy", "ipybox"):
            return
        importing = sys._getframe(1).f_back
        while importing and importing.f_code.co_filename.startswith("<frozen importlib"):
            importing = importing.f_back
        package = importing.f_globals.get("__name__", "") if importing else ""
        if package.startswith("mcptools."):
            server = package.split(".")[1]
            raise ModuleNotFoundError(
                f"mcptools.{server} was generated by the original ipybox, whose module {name} is not used here: "
                f"register the MCP server {server} or name it in --config, and its package is written again",
                name=name,
            )


def _no_colours(shell: Any) -> None:
    import IPython

    shell.colors = "nocolor" if IPython.version_info >= (9,) else "NoColor"
    # ipykernel asks child processes for colours.
    for name in ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
        os.environ.pop(name, None)
    os.environ["TERM"] = "dumb"
    os.environ["NO_COLOR"] = "1"


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


def _lines_as_written(raw: str, transformed: str) -> list[str] | None:
    """The lines of a cell that IPython has transformed, with what it rewrote (`!command`, magics, `?`) as it was
    written; None where nothing was rewritten, or the lines are not the same ones, as after a `!` over several.
    """
    lines = transformed.splitlines()
    written = raw.splitlines()
    while written and not written[0].strip():
        del written[0]
    if len(lines) == 1 and written and written[0].startswith("%%"):
        return written[:1]
    rewritten = [number for number, line in enumerate(lines) if "get_ipython()" in line]
    if not rewritten or len(lines) != len(written):
        return None
    shown = list(lines)
    for number, (line, own) in enumerate(zip(lines, written)):
        if number in rewritten:
            shown[number] = line[: len(line) - len(line.lstrip())] + own.strip()
        elif line.strip() != own.strip():
            return None
    return shown


def _show_what_was_written(shell: Any) -> None:
    """A traceback shows `!command`, not the call that IPython makes of it."""
    cells: dict[str, list[str]] = {}  # by the name of the file that a cell was compiled as
    cache, find = shell.compile.cache, shell.InteractiveTB.get_records

    @functools.wraps(cache)
    def remember(transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        name = cache(transformed_code, number, raw_code)
        # Another cell may have had the name: one of the same text.
        cells.pop(name, None)
        if raw_code is not None and (shown := _lines_as_written(raw_code, transformed_code)) is not None:
            if len(cells) == 1000:  # functions of older ones are rarely in a traceback
                del cells[next(iter(cells))]
            cells[name] = shown
        return name

    def get_records(*arguments: Any, **named: Any) -> list[Any]:
        records = find(*arguments, **named)
        for record in records:
            if (shown := cells.get(getattr(record, "filename", None) or "")) is not None:
                _replace_lines(record, shown)
        return records

    shell.compile.cache = remember
    shell.InteractiveTB.get_records = get_records


def _replace_lines(record: Any, shown: list[str]) -> None:
    """Of a frame of a traceback, in each of the forms that versions of IPython have."""
    source = getattr(getattr(record, "_sd", None) or record, "source", None)
    if source is not None and len(getattr(source, "lines", ())) == len(shown):
        source.lines = shown  # what is shown of it; what Python parses stays
    lines = getattr(record, "raw_lines", None)
    if lines and record.code is not None:
        # Of a function its own lines, else all.
        start = 0 if record.code.co_name == "<module>" else record.code.co_firstlineno - 1
        own = shown[start : start + len(lines)]
        if len(own) == len(lines):
            record.raw_lines = [line + "\n" for line in own]


def _hide_own_frames(shell: Any) -> None:
    """A traceback shows the user's code, not the way a tool call takes from there."""
    own = os.path.dirname(__file__) + os.sep
    find = shell.InteractiveTB.get_records

    def get_records(*arguments: Any, **named: Any) -> list[Any]:
        records = find(*arguments, **named)
        shown = [r for r in records if not str(getattr(r, "filename", "")).startswith(own)]
        return shown or records

    shell.InteractiveTB.get_records = get_records


def _honour_semicolon(hook: Any) -> None:
    """A trailing semicolon hides a result; IPython looks for it in the history, which we have not."""
    ends = getattr(hook, "semicolon_at_end_of_expression", None)
    if ends is not None:
        hook.quiet = lambda: hook.exec_result is not None and ends(hook.exec_result.info.raw_cell)


def _restore(working_dir: str) -> None:
    try:
        here = os.getcwd()
    except OSError:  # somebody removed it
        here = ""
    if here != working_dir:
        os.chdir(working_dir)
        print(f"[ipybox] cwd reset to {working_dir}")
