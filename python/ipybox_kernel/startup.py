"""What IPython needs to be told once, before the first cell. Called in the kernel only."""
from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import sys
from typing import Any

import zmq
from jupyter_client.jsonutil import json_default

from .output import adopt


def prepare(shell: Any) -> None:
    """Makes the shell quiet, lossless and quick."""
    _no_colours(shell)
    shell.autoawait = True
    streams = (sys.stdout, sys.stderr)
    tape = adopt(*streams)
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        _publish_losslessly(shell, kernel)
        _hurry(kernel)
        _interrupt_awaits(kernel)
    if tape is not None:
        # The host keeps what arrives there and shows it when the kernel dies: a crash's stack, and
        # the traceback of whatever fails in the rest of the start.
        original = getattr(sys.stderr, "_original_stdstream_copy", None)
        if original is not None:
            faulthandler.enable(original)
        atexit.register(streams[1].drain)
    _honour_semicolon(shell.displayhook)
    # IPython 9 keeps a copy of every cell's output, for ever when cells are not numbered.
    shell._tee = lambda channel: contextlib.nullcontext()
    kept = getattr(shell.history_manager, "outputs", {})
    working_dir = os.environ.get("IPYBOX_WORKING_DIR")

    def before() -> None:
        if tape is not None:
            tape.in_cell = True

    def after() -> None:
        if tape is not None:
            for stream in streams:
                stream.drain()
            tape.in_cell = False
        kept.clear()
        if working_dir:
            _restore(working_dir)

    shell.events.register("pre_execute", before)
    shell.events.register("post_execute", after)


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


def _interrupt_awaits(kernel: Any) -> None:
    """A cell that awaits is cancelled from a signal handler that does not wake its event loop."""
    handle = kernel.control_handlers["interrupt_request"]

    async def interrupt(*request: Any) -> None:
        await handle(*request)
        kernel.io_loop.add_callback(lambda: None)

    kernel.control_handlers["interrupt_request"] = interrupt


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
