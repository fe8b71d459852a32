"""The link to a host that is reached through a Jupyter server only. Called in the kernel only.

Servers drop output that comes too fast, and a broken connection takes along what was on its way.
So every message that is published here is numbered and kept until the host has acknowledged it,
and published again when the host asks for it; whoever prints more than WINDOW ahead of the host
waits. All but `status` travels as `comm_open`, which no server's rate limit counts.

A host on another machine shares no files or sockets with this kernel: sockets of the host appear
here as sockets in a private directory, and what goes through them travels in messages as well, from
the host in `input_reply` on the stdin channel, which a running cell does not delay. So do the files
that the host wants to write or to read.
"""
from __future__ import annotations

import atexit
import fcntl
import importlib
import os
import shutil
import socket
import stat
import threading
import time
from collections import deque
from typing import Any

import zmq

from . import kernel as ipykernel
from .files import Files

WINDOW = 16 << 20  # bytes that the host has not acknowledged
PIECE = 1 << 18  # bytes of a tunnel in one message
_DELIMITER = b"<IDS|MSG>"


def start(shell: Any, settings: dict[str, Any]) -> None:
    """Links the kernel to the host that sent `settings`."""
    kernel = shell.kernel
    # Servers take a kernel that is never busy for an idle one, and may end it.
    kernel.__dict__.pop("_publish_status", None)
    link = _Link(kernel, settings)
    threading.Thread(target=link.run, name="ipybox link", daemon=True).start()
    if directory := settings.get("directory"):
        threading.Thread(target=remove_abandoned, args=os.path.split(directory), daemon=True).start()
    atexit.register(link.close)


class _Message:
    """One published message, as frames without metadata and signature."""

    __slots__ = ("again", "content", "head", "kind", "number", "parent", "rest", "size", "topics")

    def __init__(self, number: int, frames: list[Any], session: Any) -> None:
        at = frames.index(_DELIMITER)
        self.number, self.again = number, 0
        self.topics, self.rest = frames[: at + 1], frames[at + 6 :]
        self.head, self.parent, _, self.content = frames[at + 2 : at + 6]
        header = session.unpack(self.head)
        self.kind = header["msg_type"]
        if self.kind != "status":
            header["msg_type"] = "comm_open"
            self.head = session.pack(header)
            self.content = b'{"comm_id":"ipybox","target_name":"ipybox","data":%b}' % self.content
        self.size = len(self.content) + sum(map(len, self.rest))

    def frames(self, session: Any) -> list[Any]:
        # Receivers drop a message whose signature they have seen already.
        metadata = b'{"ipybox":%d,"type":"%b","again":%d}' % (
            self.number, self.kind.encode(), self.again,
        )
        parts = [self.head, self.parent, metadata, self.content]
        return [*self.topics, session.sign(parts), *parts, *self.rest]


class _Publisher:
    """Takes the place of the IOPub socket. Publishes on the IOPub thread."""

    def __init__(self, publisher_socket: Any, session: Any, describe: Any) -> None:
        self._socket, self._session, self._describe = publisher_socket, session, describe
        self._kept: deque[_Message] = deque()
        self._size = 0
        self._last = 0  # number of the newest message
        self._linked = False
        self._wanted: dict[str, Any] | None = None  # what the host wants to be published again
        self._changed = threading.Condition()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send_multipart(self, frames: list[Any], *_: Any, **__: Any) -> None:
        message = _Message(self._last + 1, list(frames), self._session)
        with self._changed:
            self._last = message.number
            if self._linked:
                self._kept.append(message)
                self._size += message.size
        self._socket.send_multipart(message.frames(self._session))
        while True:
            self.replay()
            with self._changed:
                if not self._linked or self._size <= WINDOW:
                    return
                if self._wanted is None:
                    self._changed.wait()

    def acknowledge(self, number: int) -> None:
        with self._changed:
            while self._kept and self._kept[0].number <= number:
                self._size -= self._kept.popleft().size
            self._changed.notify_all()

    def want(self, request: dict[str, Any]) -> None:
        """The host has everything up to request["after"], and wants what came later."""
        with self._changed:
            self._linked = True
            self._wanted = request
            self._changed.notify_all()

    def replay(self) -> None:
        with self._changed:
            request, self._wanted = self._wanted, None
        if request is None:
            return
        after = request["after"]
        if after is None:  # a host that just begins
            after = self._last
        self.acknowledge(after)
        with self._changed:
            kept = list(self._kept)
        first = kept[0].number if kept else self._last + 1
        answer = {"token": request["token"], "after": after, "whole": first == after + 1}
        answer.update(self._describe())
        # Not a message of the sequence: it says where that goes on.
        message = self._session.msg("comm_open", {
            "comm_id": "ipybox", "target_name": "ipybox", "data": answer,
        }, metadata={"ipybox": 0, "type": "resume"})
        self._socket.send_multipart([b"ipybox", *self._session.serialize(message)])
        for message in kept:
            message.again += 1
            self._socket.send_multipart(message.frames(self._session))

    def close(self) -> None:
        with self._changed:
            self._linked = False
            self._kept.clear()
            self._size = 0
            self._changed.notify_all()


class _Connection:
    """One connection to a socket that stands for one of the host's."""

    def __init__(self, connection: socket.socket, number: int, channel: str) -> None:
        connection.setblocking(False)
        self.socket, self.number, self.channel = connection, number, channel
        self.told = False  # the host knows of it
        self.pending = bytearray()
        self.ended = False  # by the host, once `pending` is written


class _Link:
    """What the host sends, and the sockets that stand for its own. All on one thread."""

    def __init__(self, kernel: Any, settings: dict[str, Any]) -> None:
        self._pid = os.getpid()
        self._cells = ipykernel.cells
        self._directory = settings.get("directory")
        self._files = Files()
        self._stdin = kernel.stdin_socket
        # Of its own, because a session's memory of signatures is not made for several threads.
        self._receiver = kernel.session.clone()
        self._session = kernel.session
        self._thread = kernel.iopub_thread
        self._received = 0  # number of the newest message from the host
        self._unreported = 0  # bytes of those it was not told of
        self._connections: dict[int, _Connection] = {}
        self._by_socket: dict[int, _Connection] = {}
        self._count = 0
        self._poller = zmq.Poller()
        self._poller.register(self._stdin, zmq.POLLIN)
        self._listeners: dict[int, tuple[str, socket.socket]] = {}
        for name, address in settings.get("channels", {}).items():
            own = self._listen(name)
            for variable, value in list(os.environ.items()):
                if value == address:
                    os.environ[variable] = own
        self.publisher = _Publisher(self._thread.socket, kernel.session, self._describe)
        self._thread.socket = self.publisher

    def _listen(self, name: str) -> str:
        path = os.path.join(self._directory, name)
        try:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(path)
            address = path
        except OSError:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % listener.getsockname()[1]
        listener.listen(128)
        listener.setblocking(False)
        self._listeners[listener.fileno()] = name, listener
        self._poller.register(listener, zmq.POLLIN)
        return address

    def _describe(self) -> dict[str, Any]:
        state = {"received": self._received}
        state.update(self._cells.state() if self._cells is not None else {})
        return state

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        self.publisher.close()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def run(self) -> None:
        while True:
            for place, events in self._poller.poll():
                if place is self._stdin:
                    self._take_messages()
                elif place in self._listeners:
                    self._accept(*self._listeners[place])
                elif place in self._by_socket:
                    connection = self._by_socket[place]
                    if events & ~zmq.POLLOUT:
                        self._read(connection)
                    if events & zmq.POLLOUT:
                        self._write(connection)

    # ---- from the host ----

    def _take_messages(self) -> None:
        while True:
            try:
                _, message = self._receiver.recv(self._stdin, zmq.NOBLOCK)
            except Exception:  # not ours, or repeated
                continue
            if message is None:
                return
            request = message["content"].get("ipybox")
            if isinstance(request, dict):
                self._take(request, message["buffers"])

    def _take(self, request: dict[str, Any], buffers: list[Any]) -> None:
        number = request.get("number")
        if number is not None:
            if number != self._received + 1:
                return  # it comes again after what is missing
            self._received = number
            self._unreported += 1024 + sum(map(len, buffers))
        operation = request["op"]
        if operation == "ack":
            self.publisher.acknowledge(request["number_seen"])
        elif operation == "resume":
            self.publisher.want(request)
            self._schedule(self.publisher.replay)
        elif operation == "data":
            connection = self._connections.get(request["stream"])
            if connection is not None:
                for buffer in buffers:
                    connection.pending += buffer
                connection.ended = connection.ended or request["end"]
                self._write(connection)
        elif operation == "files":
            self._write_files(request["files"])
        elif operation == "write":
            answer = self._files.write(request, buffers)
            if answer is not None:
                self._report({"op": "file", "id": request["id"], **answer})
        elif operation == "read":
            answer, data = self._files.read(request)
            self._report({"op": "file", "id": request["id"], **answer}, data)
        elif operation == "abandon":
            self._files.abandon(request["id"])
        elif operation == "bye":
            self.publisher.close()
        if operation == "files" or self._unreported > PIECE:
            self._report({"op": "received"})

    def _write_files(self, files: dict[str, str]) -> None:
        write_files(os.path.join(self._directory, "lib"), files)
        importlib.invalidate_caches()

    # ---- to the host ----

    def _schedule(self, function: Any, *arguments: Any) -> None:
        try:
            # Not the thread's schedule(): that may wait for it, and it may wait for us.
            self._thread.io_loop.add_callback(function, *arguments)
        except RuntimeError:  # the kernel ends
            pass

    def _report(self, content: dict[str, Any], data: bytes | None = None) -> None:
        content["received"], self._unreported = self._received, 0
        self._schedule(self._publish, content, [data] if data else None)

    def _publish(self, content: dict[str, Any], buffers: list[bytes] | None) -> None:
        self._session.send(self.publisher, "tunnel", content, ident=b"ipybox", buffers=buffers)

    # ---- connections ----

    def _accept(self, channel: str, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        self._count += 1
        connection = _Connection(accepted, self._count, channel)
        self._connections[connection.number] = connection
        self._by_socket[accepted.fileno()] = connection
        self._poller.register(accepted, zmq.POLLIN)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            if connection.told:
                self._report({"op": "close", "stream": connection.number})
            return
        content = {"op": "data", "stream": connection.number}
        if not connection.told:
            connection.told = True
            content["channel"] = connection.channel
        self._report(content, data)

    def _write(self, connection: _Connection) -> None:
        try:
            while connection.pending:
                written = connection.socket.send(connection.pending)
                del connection.pending[:written]
        except BlockingIOError:
            self._poller.register(connection.socket, zmq.POLLIN | zmq.POLLOUT)
            return
        except OSError:
            pass  # reading tells
        if connection.ended:
            self._drop(connection)
        else:
            self._poller.register(connection.socket, zmq.POLLIN)

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.number, None) is not None:
            self._by_socket.pop(connection.socket.fileno())
            self._poller.unregister(connection.socket)
            connection.socket.close()


def remove_abandoned(parent: str, own: str) -> None:
    """Removes what kernels left in `parent` that were killed; `own` is the name of ours."""
    start = own[: own.rindex("-") + 1]
    try:
        entries = list(os.scandir(parent))
    except OSError:  # somebody removed it
        return
    for entry in entries:
        if entry.name == own or not entry.name.startswith(start):
            continue
        try:
            handle = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            found = os.fstat(handle)
            private = found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700
            # A kernel has the lock before it puts anything there.
            fresh = not os.listdir(handle) and abs(time.time() - found.st_mtime) < 60
            if private and not fresh:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
        except OSError:  # it is alive
            pass
        finally:
            os.close(handle)


def write_files(directory: str, files: dict[str, str]) -> None:
    """Writes files that are named relative to a directory; a cell that imports meanwhile sees each whole or not."""
    for name, text in files.items():
        path = os.path.join(directory, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = path + ".part"
        with open(part, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.replace(part, path)
