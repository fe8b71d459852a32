"""sys.stdout and sys.stderr of a kernel of ipybox's own: written by C, collected on the tape."""
from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from .frames import TAPE, os_write, protect


class Raw(io.BufferedIOBase):
    """Where text goes, 8 KiB at a time."""

    def __init__(self, kind: str, fd: int) -> None:
        self.kind, self.fd, self.name = kind, fd, ("<stdout>", "<stderr>")[fd - 1]

    def fileno(self) -> int:
        return self.fd

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if TAPE.gone:
            return os_write(self.fd, data)
        if data:
            TAPE.add(self.kind, bytes(data))
        TAPE.settle(sys._getframe(1))
        return len(data)


class Out(io.TextIOWrapper):
    """Only the first write after a quiet moment is ours, to wake the helper."""

    def __init__(self, kind: str, fd: int) -> None:
        super().__init__(Raw(kind, fd), "utf-8", "backslashreplace", newline="\n")  # type: ignore[type-var]
        self.expect()

    def expect(self) -> None:
        self.write = self.first  # type: ignore[method-assign]

    def push(self) -> None:
        if TAPE.gone:
            super().flush()
            return
        # Held over both, so that what another thread takes from the buffer later is not put on the tape earlier.
        with TAPE.lock:
            super().flush()

    def first(self, text: str, /) -> int:
        size = io.TextIOWrapper.write(self, text)
        self.__dict__.pop("write", None)
        TAPE.arm()
        return size

    def flush(self) -> None:
        self.push()
        TAPE.flush()
        TAPE.settle(sys._getframe(1))


class Err(Out):
    """Each write is on the tape at once, behind what stdout had."""

    def first(self, text: str, /) -> int:
        TAPE.streams[0].push()
        size = io.TextIOWrapper.write(self, text)
        self.push()
        TAPE.arm()
        TAPE.settle(sys._getframe(1))
        return size


def install() -> None:
    """Before the first cell, and before a fork."""
    kinds = (type(TAPE), Raw, Out, Err)
    protect(*(f for kind in kinds for f in vars(kind).values() if hasattr(f, "__code__")))
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = TAPE.streams = Out("o", 1), Err("e", 2)  # type: ignore[misc]
    _keep_order()
    os.register_at_fork(before=TAPE.push, after_in_child=TAPE.leave)


def _around(holder: Any, name: str, before: bool = True, after: bool = True, when: Callable[..., bool] | None = None) -> None:
    """What Python prints and what is written below it come out in order."""
    original = getattr(holder, name, None)
    if original is None:
        return

    def call(*arguments: Any, **named: Any) -> Any:
        ours = when is None or when(*arguments)
        if ours and before:
            TAPE.push()
        try:
            return original(*arguments, **named)
        finally:
            if ours and after:
                TAPE.drain()

    call.__name__, call.__qualname__, call.__doc__ = name, name, original.__doc__
    setattr(holder, name, call)


def _keep_order() -> None:
    _around(os, "write", when=lambda fd, *_: fd in (1, 2))
    _around(os, "system")
    for holder, name in ((os, "posix_spawn"), (subprocess, "_fork_exec")):
        _around(holder, name, after=False)
    for holder, name in ((os, "wait"), (os, "waitpid"), (subprocess.Popen, "wait"), (subprocess.Popen, "communicate")):
        _around(holder, name, before=False)
