"""Standard output and error of a kernel: complete, in order, and slowed down by a slow reader.

ipykernel collects what is printed and publishes it from its IOPub thread. As it comes, that
drops messages when the reader lags, gives up waiting after ten seconds, mixes the order of the
two streams, breaks characters that straddle two reads of file descriptor 1, and returns from a
cell before the last output of its child processes was read. `adopt()` turns the two streams into
ones that do none of this.
"""
from __future__ import annotations

import codecs
import fcntl
import io
import os
import select
import termios
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from ipykernel.iostream import OutStream

CHUNK = 1 << 20  # characters in one message
HELD = 8 << 20  # characters that wait before the one who prints waits as well
RUN = 512  # characters that a message costs besides its own: each change of the stream makes one
DELAY = 0.02  # seconds: soon enough for a person, rarely enough for a million lines


def _sendable(text: str) -> str:
    """The text with what UTF-8 cannot express, lone surrogates, written as escapes."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


class _Tape:
    """What was printed to either stream and is not yet published, in the order of printing."""

    def __init__(self, publisher: Any) -> None:
        self.publisher = publisher  # ipykernel's IOPubThread
        self.in_cell = False
        self.waiting = 0  # characters not yet handed to ZeroMQ, with RUN for each run
        # Reentrant: a destructor may print wherever memory is allocated.
        self.lock = threading.RLock()
        self.armed = False
        self.streams: list[Output] = []
        self._take()

    # Consecutive text of one stream with one parent header is a run.
    def _take(self) -> list[tuple[Output, Any, io.StringIO]]:
        runs = getattr(self, "_runs", [])
        self._runs: list[tuple[Output, Any, io.StringIO]] = []
        self.stream = self.header = None
        return runs

    def _begin(self, stream: Output, header: Any) -> None:
        run = io.StringIO(newline="")
        self._runs.append((stream, header, run))
        self.waiting += RUN
        self.stream, self.header, self.append = stream, header, run.write

    def writer(self, stream: Output, find_header: Callable[[None], Any]) -> Callable[[str], int]:
        """The stream's write(); a closure, because a million prints call it two million times."""
        tape, lock = self, self.lock

        def write(string: str) -> int:
            header = find_header(None) or stream.parent_header
            with lock:
                if header is not tape.header or stream is not tape.stream:
                    tape._begin(stream, header)
                size = tape.append(string)
                tape.waiting += size
            if not tape.armed:
                tape.armed = True
                tape.publisher.schedule(tape._arm)
            if tape.waiting > HELD:
                tape.publish(wait=True)
            return size

        return write

    def _arm(self) -> None:
        self.publisher.io_loop.call_later(DELAY, self._expired)

    def _expired(self) -> None:
        self.armed = False
        self.publish(wait=False)

    def publish(self, wait: bool) -> None:
        """Queues what has been printed so far; nothing that is printed later overtakes what is
        queued after this call, a display for instance."""
        thread = self.publisher.thread
        if not thread.is_alive():
            return self._send(self._take(), None)
        done = threading.Event() if wait and thread is not threading.current_thread() else None
        with self.lock:
            # Not schedule(): that may wait for the IOPub thread, which may wait for the lock.
            self.publisher._events.append(partial(self._send, self._take(), done))
        self.publisher._event_pipe.send(b"")
        while done is not None and not done.wait(1) and thread.is_alive():
            pass

    def drain(self) -> None:
        """Takes what child processes and libraries have written to the file descriptors so far."""
        for stream in self.streams:
            stream.drain()

    def _send(self, runs: list[tuple[Output, Any, io.StringIO]], done: Any) -> None:
        """Runs on the IOPub thread, which stops here while the reader is behind."""
        try:
            for stream, header, run in runs:
                text = run.getvalue()
                run.close()
                for at in range(0, len(text), CHUNK):
                    part = text[at : at + CHUNK]
                    stream._send(_sendable(part), header)
                    with self.lock:
                        self.waiting -= len(part)
                with self.lock:
                    self.waiting -= RUN
        finally:
            if done is not None:
                done.set()


class Output(OutStream):
    """An OutStream that waits instead of losing. Made by `adopt()` only."""

    def _adopt(self, tape: _Tape) -> None:
        self._tape: _Tape | None = tape
        header = getattr(self, "_parent_header", None)  # absent before ipykernel 6.29
        self.write = tape.writer(self, header.get if isinstance(header, ContextVar) else {}.get)
        os.register_at_fork(after_in_child=self._leave)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._take_lock = threading.RLock()
        self._watcher = None
        if getattr(self, "_should_watch", False):
            # One byte ends the thread that reads the file descriptor for ipykernel.
            self._should_watch = False
            os.write({"stdout": 1, "stderr": 2}[self.name], b"\0")
            self.watch_fd_thread.join(1)
            os.set_blocking(self._fid, False)
            self._watcher = threading.Thread(target=self._watch, name=self.name, daemon=True)
            self._watcher.start()

    def _leave(self) -> None:
        # In a forked child: what the parent had not published is the parent's, and ipykernel's
        # own methods know the way there.
        self._tape = self._watcher = None
        self._buffer_lock = threading.RLock()
        self.__dict__.pop("write", None)

    def close(self) -> None:
        self.__dict__.pop("write", None)
        super().close()

    def flush(self) -> None:
        tape = self._tape
        if tape is None or self.pub_thread is None:
            super().flush()
        elif tape.waiting:
            # Waiting protects output from what the cell does next, a crash perhaps. Between cells
            # and on the control thread it would only delay; the order is kept without it.
            tape.publish(wait=tape.in_cell and threading.current_thread().name != "Control")

    def _send(self, text: str, header: Any) -> None:
        content = {"name": self.name, "text": text}
        socket = self.pub_thread.socket
        self.session.send(socket, "stream", content, parent=header, ident=self.topic)

    def _watch(self) -> None:
        """Turns into output what code outside Python writes to the file descriptor."""
        poll = select.poll()
        poll.register(self._fid, select.POLLIN)
        try:
            while poll.poll() and self._take() != 0:
                pass
        except OSError:
            pass

    def _take(self) -> int:
        """Returns the number of bytes, 0 at the end, -1 when there is nothing now."""
        # Under the lock, so that nothing is ever read but not yet output for drain().
        with self._take_lock:
            try:
                data = os.read(self._fid, 1 << 16)
            except BlockingIOError:
                return -1
            text = self._decoder.decode(data, not data)
            if text and self.pub_thread is not None:
                self.write(text)
        if self.name == "stderr":
            # The host shows the last of it when the kernel dies.
            try:
                os.write(self._original_stdstream_copy, data)
            except OSError:
                pass
        return len(data)

    def drain(self) -> None:
        if self._watcher is None:
            return
        try:
            with self._take_lock:
                count = bytearray(4)
                fcntl.ioctl(self._fid, termios.FIONREAD, count)
                left = int.from_bytes(count, "little")
                while left > 0:
                    taken = self._take()
                    left -= taken if taken > 0 else left
        except OSError:
            pass


def adopt(*streams: Any) -> _Tape | None:
    """Makes the kernel's own streams lossless; None when somebody has replaced them."""
    if any(type(stream) is not OutStream for stream in streams):
        return None
    tape = _Tape(streams[0].pub_thread)
    for stream in streams:
        stream.__class__ = Output
        tape.streams.append(stream)
        stream._adopt(tape)
    return tape
