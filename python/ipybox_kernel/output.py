"""Standard output and error of a kernel: complete, in order, and slowed down by a slow reader.

ipykernel collects what is printed and publishes it from its IOPub thread. As it comes, that
drops messages when the reader lags, gives up waiting after ten seconds, breaks characters that
straddle two reads of file descriptor 1, and returns from a cell before the last output of its
child processes was read. `adopt()` turns its two streams into ones that do none of this.
"""
from __future__ import annotations

import codecs
import fcntl
import io
import os
import select
import termios
import threading
from contextvars import ContextVar
from typing import Any

from ipykernel.iostream import OutStream

CHUNK = 1 << 20  # characters in one message
HELD = 32 << 20  # characters that wait before the one who prints waits as well

_no_header: ContextVar[dict[str, Any]] = ContextVar("ipybox_no_header")


def _sendable(text: str) -> str:
    """The text with what UTF-8 cannot express, lone surrogates, written as escapes."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


class Output(OutStream):
    """An OutStream that waits instead of losing. Created by `adopt()` only."""

    # Soon enough for a person, seldom enough for a million lines.
    flush_interval = 0.02
    in_cell = False
    forked = False

    def _adopt(self) -> None:
        self._lock = threading.RLock()
        self._header = getattr(self, "_parent_header", None)
        if not isinstance(self._header, ContextVar):
            self._header = _no_header
        self._waiting = 0  # characters not yet handed to ZeroMQ
        self._start_runs()
        os.register_at_fork(after_in_child=self._after_fork)
        self._take_lock = threading.RLock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._watcher = None
        if getattr(self, "_fid", None) is not None and getattr(self, "watch_fd_thread", None):
            self._should_watch = False
            os.write({"stdout": 1, "stderr": 2}[self.name], b"\0")
            self.watch_fd_thread.join(1)
            os.set_blocking(self._fid, False)
            self._watcher = threading.Thread(target=self._watch, name=self.name, daemon=True)
            self._watcher.start()

    def _after_fork(self) -> None:
        self.forked = True
        self._lock = self._buffer_lock = threading.RLock()

    # Consecutive output with the same parent header is a run; runs keep the order of writing.
    def _start_runs(self) -> list[tuple[Any, io.StringIO]]:
        runs = getattr(self, "_runs", [])
        self._runs: list[tuple[Any, io.StringIO]] = []
        self._run_header: Any = self
        return runs

    def _put(self, string: str, header: Any) -> int:
        with self._lock:
            if header is not self._run_header:
                self._run_header = header
                self._runs.append((header, io.StringIO(newline="")))
                self._run = self._runs[-1][1].write
            size = self._run(string)
            self._waiting += size
        if not self._flush_pending:
            self._schedule_flush()
        if self._waiting > HELD:
            self._publish(wait=True)
        return size

    def write(self, string: str) -> int:  # type: ignore[override]
        if self.forked:
            return super().write(string)
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string).__name__}")
        if self.pub_thread is None:
            raise ValueError("I/O operation on closed file")
        return self._put(string, self._header.get(None) or self.parent_header)

    def _schedule_flush(self) -> None:
        if self.forked:
            return super()._schedule_flush()
        if not self._flush_pending:
            self._flush_pending = True
            self.pub_thread.schedule(self._flush_later)

    def _flush_later(self) -> None:
        self._io_loop.call_later(self.flush_interval, self._flush_in_turn)

    def _flush_in_turn(self) -> None:
        # Behind everything that was published before, displays for instance.
        if self.pub_thread is not None:
            self.pub_thread.schedule(self._flush)

    def flush(self) -> None:
        if self.forked:
            return super().flush()
        if self.pub_thread is not None and self._waiting:
            # Waiting protects output from what the cell does next, a crash perhaps. Between cells
            # and on the control thread it would only delay; the order is kept without it.
            self._publish(wait=self.in_cell and threading.current_thread().name != "Control")

    def _publish(self, wait: bool) -> None:
        thread = self.pub_thread.thread
        if not thread.is_alive() or thread is threading.current_thread():
            self._flush()
            return
        if not wait:
            self.pub_thread.schedule(self._flush)
            return
        done = threading.Event()

        def flush() -> None:
            try:
                self._flush()
            finally:
                done.set()

        self.pub_thread.schedule(flush)
        while not done.wait(1) and thread.is_alive():
            pass

    def _flush(self) -> None:
        """Runs on the IOPub thread; blocks there while the reader is behind."""
        if self.forked:
            return super()._flush()
        self._flush_pending = self._subprocess_flush_pending = False
        with self._lock:
            runs = self._start_runs()
        for header, run in runs:
            text = run.getvalue()
            run.close()
            for at in range(0, len(text), CHUNK):
                part = text[at : at + CHUNK]
                content = {"name": self.name, "text": _sendable(part)}
                self.session.send(
                    self.pub_thread.socket, "stream", content, parent=header, ident=self.topic
                )
                with self._lock:
                    self._waiting -= len(part)

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
                header = getattr(self, "_parent_header_global", None)
                self._put(text, self.parent_header if header is None else header)
        if self.name == "stderr":
            # The host shows the last of it when the kernel dies.
            try:
                os.write(self._original_stdstream_copy, data)
            except OSError:
                pass
        return len(data)

    def drain(self) -> None:
        """Takes what child processes and libraries have written to the file descriptor so far."""
        try:
            with self._take_lock:
                left = self._unread()
                while left > 0:
                    count = self._take()
                    left -= count if count > 0 else left
        except OSError:
            pass

    def _unread(self) -> int:
        if self._watcher is None:
            return 0
        count = bytearray(4)
        fcntl.ioctl(self._fid, termios.FIONREAD, count)
        return int.from_bytes(count, "little")


def adopt(*streams: Any) -> list[Output]:
    """Makes the kernel's own streams lossless; others (somebody replaced them) stay as they are."""
    adopted = []
    for stream in streams:
        if type(stream) is OutStream:
            stream.__class__ = Output
            stream._adopt()
            adopted.append(stream)
    return adopted
