"""The link of a kernel of ipybox's own to its host: frames on a stream, and all output in its order.

A frame is its length (u32, little endian), one byte of kind, and as many bytes. To the kernel, all
of JSON: `i` {env, extensions, allow_input} before anything else; `x` {id, code, silent, input}
a cell; `a` {value} what input() was answered; `c` {id} an interrupt, sent before its signal; `w`,
without more, that a cell will come soon. From it: `h` {protocol, pid, python} when it is there; `o` and `e`, bytes of stdout and stderr; `d` a
display, `r` a result, `x` an error, `q` {prompt, password} a question; `k` {id, ok} ends a cell.
The host's side is plugins/kernel/fork/link.cpp.
"""
from __future__ import annotations

import _thread
import contextlib
import ctypes
import fcntl
import itertools
import json
import operator
import os
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

HEAD = struct.Struct("<IB")
LINK = 3
PIPES = {4: "o", 5: "e"}  # reading ends of what is written to descriptors 1 and 2
TEXT = "oe"
PIECE = 1 << 16  # bytes of text that are sent together
PAUSE = 4_000_000  # nanoseconds in which text is collected; the first line still arrives within 10 ms
# When a signal has not ended a system call, it is sent again after so many seconds.
REPEATS = (0.01, 0.05, 0.25, 1.0, 2.0)

MAIN = threading.get_ident()  # the same in every fork
get_ident = threading.get_ident
_libc = ctypes.PyDLL(None)
_IN_A_PAUSE = struct.pack("@4l", 0, 0, 0, PAUSE)  # struct itimerspec
_TIMER_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK  # TFD_CLOEXEC | TFD_NONBLOCK
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def to_json(value: Any) -> bytes:
    try:
        return _encode(value).encode("utf-8", "replace")
    except ValueError:
        return _encode(_finite(value)).encode("utf-8", "replace")


def _finite(value: Any) -> Any:
    """What JSON has no number for becomes a text."""
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


DELICATE: set[CodeType] = set()


def protect(*functions: Any) -> None:
    """None of these may be left by an interrupt."""
    DELICATE.update(function.__code__ for function in functions)


def is_delicate(frame: FrameType | None) -> bool:
    """Whether an exception here would tear a frame apart or lose text."""
    while frame is not None and frame.f_code not in DELICATE:
        frame = frame.f_back
    return frame is not None


class Tape:
    """All output in the order in which it was made; what waits here is sent by whoever has time."""

    def __init__(self) -> None:
        # Reentrant: a destructor may print wherever memory is allocated.
        self.lock = threading.RLock()
        self.link: Any = None  # none while the zygote warms up, and when the host is gone
        self.gone = False  # in a process that the code has forked
        self.pending = False  # an interrupt that came while a frame was on its way
        self.resent = False  # and is sent again by the helper
        self.cell = 0  # the one that runs, for the helper
        self._items: list[tuple[str, bytes]] = []
        self._size = 0
        self._armed = self._told = False
        self.rehearses = False
        self._wake = -1  # the writing end of what the helper waits for
        self._woken = -1
        self._timer = -1  # and this
        self._pipes = select.poll()

    def start(self, link: Any) -> None:
        self.link, self.gone = link, False
        for fd in PIPES:
            self._pipes.register(fd, select.POLLIN)
        for stream in self.streams:
            stream.expect()
        self.help()

    def leave(self) -> None:
        """In a process that the code has forked: its output goes through the pipes, the link is its parent's."""
        self.lock, self._items, self._size = threading.RLock(), [], 0
        self.link, self.gone = None, True

    # ---- the helper, a thread: without it, code that prints below Python would fill a pipe and wait

    def arm(self) -> None:
        """Something waits: has it sent within PAUSE. By a timer: most cells have ended by then, and wake nobody."""
        if self.link is None or self._armed:
            return
        self._armed = True
        self.help()
        _libc.timerfd_settime(self._timer, 0, _IN_A_PAUSE, None)

    def help(self) -> None:
        """Starts the helper, if it is not there, and has it told of signals."""
        if self._wake < 0:
            self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._timer = _libc.timerfd_create(time.CLOCK_MONOTONIC, _TIMER_FLAGS)
            if self._timer < 0:
                raise OSError("the kernel gets no timer: it may have too few open files")
            _thread.start_new_thread(self._help, ())  # Thread.start() waits until it runs
        if not self._told and get_ident() == MAIN:
            # The number of each signal is written there.
            signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
            self._told = True

    def _help(self) -> None:
        poll = select.poll()
        for fd in (self._woken, self._timer, *PIPES):
            poll.register(fd, select.POLLIN)
        cell, pauses, at = 0, iter(REPEATS), 0.0
        while self.link is not None:
            left = max(at - time.monotonic(), 0) * 1000 if cell else None
            for fd, event in poll.poll(left):
                if not event & select.POLLIN:  # the code has closed its end
                    poll.unregister(fd)
                elif fd == self._woken:
                    if signal.SIGINT in os.read(fd, 4096):
                        cell, pauses = self.cell, iter(REPEATS)
                        at = time.monotonic() + next(pauses)
                    self.arm()
                elif fd == self._timer:
                    os.read(fd, 8)
                    self._collect()
            if cell and time.monotonic() >= at:
                # Python notes a signal that arrives between its last look and a system call, and looks again when the
                # call returns: after an hour, if that is what the cell sleeps. Another signal ends the call.
                pause = next(pauses, None) if self.cell == cell else None
                if self.cell == cell and signal.getsignal(signal.SIGURG) is ignore:
                    signal.pthread_kill(MAIN, signal.SIGURG)
                cell, at = (cell, at + pause) if pause else (0, 0.0)
            self._drain()
            self.flush()

    def _collect(self) -> None:
        self._armed = False
        for stream in self.streams:
            stream.expect()
            stream.push()
        if self.pending:
            self.resent = True
            signal.pthread_kill(MAIN, signal.SIGINT)

    # ---- what is sent

    streams: tuple[Any, ...] = ()  # Python's own, whose buffers are emptied before anything else is sent

    def add(self, kind: str, data: bytes) -> None:
        with self.lock:
            self._items.append((kind, data))
            self._size += len(data) + HEAD.size
            if self._size >= PIECE:
                self.flush()

    def drain(self) -> None:
        """What C code and child processes have written to descriptors 1 and 2 so far."""
        self._drain()
        if self._items:
            self.arm()

    def _drain(self) -> None:
        if self.link is None:
            return
        with self.lock:
            for fd, event in self._pipes.poll(0):
                if not event & select.POLLIN:
                    self._pipes.unregister(fd)
                    continue
                count = bytearray(4)
                fcntl.ioctl(fd, termios.FIONREAD, count)
                left = int.from_bytes(count, "little")
                while left > 0:
                    data = os.read(fd, min(left, PIECE))
                    self.add(PIPES[fd], data)
                    left -= len(data) or left

    def flush(self) -> None:
        with self.lock:
            if self._items:
                self._send(b"".join(self._frames()))

    def _frames(self) -> list[bytes]:
        """What waits, which waits no more."""
        items, self._items, self._size = self._items, [], 0
        parts: list[bytes] = []
        for kind, run in itertools.groupby(items, operator.itemgetter(0)):
            if kind not in TEXT:
                for _, data in run:
                    parts += (HEAD.pack(len(data), ord(kind)), data)
                continue
            data = b"".join([part for _, part in run])
            for at in range(0, len(data), PIECE):
                piece = data[at : at + PIECE]
                parts += (HEAD.pack(len(piece), ord(kind)), piece)
        return parts

    def push(self) -> None:
        for stream in self.streams:
            stream.push()

    def send(self, kind: str, message: Any) -> None:
        """After everything that was printed before."""
        payload = to_json(message)
        with self.lock:
            self.push()
            self._drain()
            frame = HEAD.pack(len(payload), ord(kind)) + payload
            self._send(b"".join((*self._frames(), frame)) if self._items else frame)
        self.settle(sys._getframe(1))

    def keep(self, kind: str, message: Any) -> None:
        """The same for what probably is the last: it goes along with the end of the cell, or after PAUSE."""
        if self.link is None:  # a zygote's: no kernel is to have it
            return
        payload = to_json(message)
        with self.lock:
            self.push()
            self._drain()
            if self.rehearses:
                return
            self.add(kind, payload)
        self.arm()
        self.settle(sys._getframe(1))

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Nobody is to have what is kept meanwhile."""
        self.rehearses = True
        try:
            yield
        finally:
            self.rehearses = False

    def settle(self, frame: FrameType) -> None:
        """Raises an interrupt that had to wait, unless whoever called this cannot bear it either."""
        if self.pending and get_ident() == MAIN and not is_delicate(frame):
            self.pending = False
            raise KeyboardInterrupt

    def _send(self, frames: bytes) -> None:
        if self.link is None:
            return
        try:
            self.link.sendall(frames)
        except OSError:  # the host is gone, or the code has closed it
            self.link = None


def ignore(*_: Any) -> None:
    pass


os_write = os.write  # streams.py puts its own in the place of it
TAPE = Tape()
