"""An IPython session over one stream socket: no ZeroMQ, no tornado, one helper thread."""
from __future__ import annotations

import _signal  # without the enumerations of signal, which take their time
import asyncio
import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import getpass
import importlib
import json
import os
import resource
import select
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from .client import configure
from .frames import HEAD, LINK, MAIN, PIPES, TAPE, get_ident, ignore, is_delicate, os_write, protect
from .interactive import Plain, Shell, StdinNotImplementedError, build_shell, forgotten, rehearse
from .interrupts import Interrupts
from .startup import INPUT_REFUSED, NOBODY_ANSWERS
from .streams import install

PROTOCOL = 1
_LARGEST_READ = 1 << 16
_LATEST_NAME = 1.0  # seconds by which the host's word of an interrupt comes later than the signal
_LATEST_KILL = 1.0  # seconds after the goodbye, by which the host has killed who says it
_libc = ctypes.PyDLL(None)
_fflush = _libc.fflush
_SIGINT = int(signal.SIGINT)


class Run:
    """The cells, interrupts and questions of one session, on one event loop."""

    def __init__(self, widen: Callable[[], None] | None = None) -> None:
        """widen: called before the first cell that imports something."""
        self.cancelled = False  # the interrupted cell was awaiting
        self._interrupts = Interrupts()
        self._in_code = False  # the cell's own code has begun
        self._task: asyncio.Task[Any] | None = None
        self._frames: deque[tuple[int, bytes]] = deque()
        self._rest = bytearray()  # of a frame that has begun
        self._taking = self._struck = False  # a signal came while frames were taken
        self._hit = self._shown = False  # the cell was interrupted; its error was shown
        self._answers: deque[str | None] = deque()
        self._allow_input = self._allow_now = False
        self._use_all_cores: Callable[[], None] | None = widen
        self._ended = False  # the host is gone, or has closed the link; or the code wants it
        self._dismissed = False  # the first of these
        self._gone = select.poll()  # says whether the host is

    def prepare(self, shell: Shell, link: socket.socket) -> None:
        """All that can be done before a fork. link: any socket object with the number LINK."""
        self._shell, self._link, self._plain = shell, link, Plain(shell)
        shell.run = self
        self._loop: Any = asyncio.new_event_loop()
        # Which a fork must not share.
        self._loop._close_self_pipe()
        self._loop._selector.close()
        asyncio.set_event_loop(self._loop)
        run_code = shell.run_code

        async def begin(*arguments: Any, **named: Any) -> Any:
            if TAPE.rehearses and wait_for(self._link, 0):
                return False  # the cell is there, and warms the rest itself
            self._begin_code()
            return await run_code(*arguments, **named)

        shell.run_code = begin  # type: ignore[method-assign]
        signal.signal(signal.SIGINT, self._interrupted)
        signal.signal(signal.SIGURG, ignore)
        protect(Run._take, Run._done, Run._finish, Run._interrupted, Run.show_error, Interrupts.name, Interrupts.is_meant)
        faulthandler.enable(2)
        install()
        builtins.input = self._input
        getpass.getpass = self._getpass  # type: ignore[assignment]
        self._pid = os.getpid()

    def serve(self) -> None:
        """Until the host closes the link, or the code asks for the end."""
        self._pid = os.getpid()
        self._gone.register(LINK, 0)
        self._loop._selector = selectors.DefaultSelector()
        self._loop._make_self_pipe()
        TAPE.start(self._link)
        while not self._frames and not self._ended:
            select.select([self._link], [], [])
            self._take()
        if not self._ended:
            self._introduce(json.loads(self._frames.popleft()[1]))
            self._loop.add_reader(LINK, self._readable)
            self._loop.call_soon(self._next)
            version = ".".join(map(str, sys.version_info[:3]))
            TAPE.send("h", {"protocol": PROTOCOL, "pid": os.getpid(), "python": version})
        while not self._ended:
            try:
                self._loop.run_forever()
                break
            except KeyboardInterrupt:  # of a cell whose task has it as well
                continue
        atexit._run_exitfuncs()
        TAPE.push()
        TAPE.drain()
        TAPE.flush()
        # The host goes on when it sees the end of the link: by then nothing that is open may be in the way of the next
        # kernel, locks above all.
        _close_from(max(PIPES) + 1)
        waits = self._dismissed and not self._gone.poll(0)
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)
        if waits:
            self.await_end()
        os._exit(0)

    def await_end(self) -> None:
        """To give back the memory takes longer, and the processor that the host needs: who is dismissed leaves that to
        its end by the host."""
        time.sleep(_LATEST_KILL)

    def rehearse(self) -> None:
        rehearse(self._shell)

    def leave(self) -> None:
        self._ended = True
        self._loop.call_soon(self._loop.stop)

    def _introduce(self, message: dict[str, Any]) -> None:
        """What a zygote must never see: its memory is in every later kernel."""
        if message["env"] is not None:
            set_environment(message["env"])
            tempfile.tempdir = None
            sys.path[:0] = [place for place in os.environ.get("PYTHONPATH", "").split(":") if place]
        # Where IPython puts the working directory: modules there hide none of Python's own.
        places = [at for at, place in enumerate(sys.path) if place.endswith(("site-packages", "dist-packages"))]
        sys.path.insert(places[0] if places else 0, "")
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        os.environ["PAGER"] = os.environ["GIT_PAGER"] = "cat"
        configure()
        self._allow_input = message["allow_input"]
        for name in message["extensions"]:
            importlib.import_module(name).load_ipython_extension(self._shell)
        # What is there before the user's first name need not be looked at, and so copied, to collect what is not.
        gc.freeze()
        gc.enable()

    # ---- frames

    def _take(self) -> None:
        """Everything that has come, without waiting. In the main thread only."""
        self._taking = True
        try:
            while True:
                data = self._link.recv(_LARGEST_READ, socket.MSG_DONTWAIT)
                if not data:
                    self._ended = self._dismissed = True
                    break
                self._rest += data
                if len(data) < _LARGEST_READ:
                    break
        except BlockingIOError:
            pass
        except OSError:
            self._ended = True
        rest = self._rest
        while len(rest) >= HEAD.size:
            size, kind = HEAD.unpack_from(rest)
            if len(rest) < HEAD.size + size:
                break
            payload = bytes(rest[HEAD.size : HEAD.size + size])
            del rest[: HEAD.size + size]
            if kind == ord("c"):
                self._interrupts.name(json.loads(payload)["id"])
            elif kind == ord("a"):
                self._answers.append(json.loads(payload)["value"])
            else:
                self._frames.append((kind, payload))
        self._taking = False
        if self._struck:
            self._struck = False
            self._interrupted(signal.SIGINT, sys._getframe(1))

    def _readable(self) -> None:
        self._take()
        self._next()
        if self._ended and not self._interrupts.running:
            self._loop.stop()
        elif self._ended:
            self._loop.remove_reader(LINK)

    def _next(self) -> None:
        while self._frames and not self._interrupts.running:
            kind, payload = self._frames.popleft()
            if kind != ord("w"):
                self._execute(json.loads(payload))
            elif not self._frames:
                self._get_up()

    def _get_up(self) -> None:
        """On the way of the cell that is about to come: its code and data have left every cache by now."""
        with TAPE.rehearsal(), forgotten(self._shell), contextlib.suppress(StopIteration):
            self._run("1+1", *self._plain.transform("1+1"), False).send(None)

    def _listen(self) -> None:
        wait_for(self._link, _LATEST_NAME)
        self._take()

    # ---- cells

    def _execute(self, message: dict[str, Any]) -> None:
        code, silent = message["code"], message["silent"]
        self.cancelled = self._hit = self._shown = False
        self._interrupts.begin(message["id"], self._listen)
        TAPE.cell = message["id"]
        self._allow_now = self._allow_input and message["input"]
        if _signal.getsignal(_SIGINT) != self._interrupted:
            signal.signal(signal.SIGINT, self._interrupted)
        if self._use_all_cores is not None and "import" in code:
            self._use_all_cores()
            self._use_all_cores = None
        cell, problem = self._plain.transform(code)
        waits = ("await" in cell or "async" in cell) and self._shell.should_run_async(
            code, transformed_cell=cell, preprocessing_exc_tuple=problem
        )
        run = self._run(code, cell, problem, silent)
        if waits:
            self._task = self._loop.create_task(run)
            self._task.add_done_callback(self._finish)
            return
        ok = False
        try:
            # The loop is running, as Jupyter's is, and waits meanwhile.
            run.send(None)
        except StopIteration as end:
            ok = end.value
        except KeyboardInterrupt:  # outside of the cell's own code
            self.show_error("KeyboardInterrupt", "", [])
        self._done(ok)

    async def _run(self, code: str, cell: str, problem: Any, silent: bool) -> bool:
        shell, result = self._shell, None
        try:
            result = await shell.run_cell_async(
                code, store_history=False, silent=silent, transformed_cell=cell, preprocessing_exc_tuple=problem
            )
        finally:
            shell.events.trigger("post_execute")
            if not silent:
                shell.events.trigger("post_run_cell", result)
        return bool(result is not None and result.success)

    def _begin_code(self) -> None:
        # What runs before the cell's code swallows an interrupt, IPython's events above all: it is
        # kept until there is code that it can end.
        if self._interrupts.running and not self._in_code:
            self._in_code = True
            if self._interrupts.early:
                raise KeyboardInterrupt

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._task = None
        ok = False
        if task.cancelled() or task.exception() is not None:
            self.show_error("KeyboardInterrupt", "", [])
        else:
            ok = task.result()
        self._done(ok)
        self._loop.call_soon(self._next)

    def _done(self, ok: bool) -> None:
        self._interrupts.end()
        self._in_code = TAPE.pending = False
        TAPE.cell = 0
        if os.getpid() != self._pid:  # the code has forked, and both go on: the cell's end is the parent's
            TAPE.push()
            os._exit(0 if ok else 1)
        if self._hit and not (ok or self._shown):  # another interrupt came while it was about to be shown
            self.show_error("KeyboardInterrupt", "", [])
        # What IPython calls after the code is ended by an interrupt, shown, and makes no difference to it.
        ok = ok and not (self._hit and self._shown)
        TAPE.push()
        _fflush(None)  # C's own buffers, which nobody else would ever empty
        TAPE.send("k", {"id": self._interrupts.cell, "ok": ok})
        if TAPE.link is None or self._ended:
            self._ended = True
            self._loop.stop()

    def show_error(self, name: str, value: str, lines: list[str]) -> None:
        self._shown = True
        TAPE.send("x", {"ename": name, "evalue": value, "traceback": lines})

    # ---- interrupts

    def _interrupted(self, _: int, frame: FrameType | None) -> None:
        if self._taking:
            self._struck = True
            return
        if os.getpid() != self._pid:
            raise KeyboardInterrupt
        resent, TAPE.resent = TAPE.resent, False
        self._take()
        if self._frames and not self._interrupts.running:
            self._loop.call_soon_threadsafe(self._next)
        if not self._interrupts.is_meant(resent and not TAPE.pending):
            return
        self._hit = True
        if not self._in_code:
            self._interrupts.early = True
        elif is_delicate(frame):
            TAPE.pending = True  # raised behind it, or the helper sends the signal again
            TAPE.arm()
        elif self._task is not None and asyncio.current_task(self._loop) is not self._task:
            self.cancelled = True
            self._loop.call_soon_threadsafe(self._task.cancel)
        else:
            TAPE.pending = False
            raise KeyboardInterrupt

    # ---- questions

    def _input(self, prompt: object = "", /) -> str:
        return self._ask(str(prompt), False)

    def _getpass(self, prompt: str = "Password: ", stream: Any = None, **_: Any) -> str:
        return self._ask(prompt, True)

    def _ask(self, prompt: str, password: bool) -> str:
        if not self._interrupts.running or not self._allow_now or get_ident() != MAIN or os.getpid() != self._pid:
            raise StdinNotImplementedError(NOBODY_ANSWERS)
        self._answers.clear()
        TAPE.send("q", {"prompt": prompt, "password": password})
        while not self._answers:
            if self._ended:
                raise EOFError("the host is gone")
            wait_for(self._link)
            self._take()
        answer = self._answers.popleft()
        if answer is None:
            raise EOFError(INPUT_REFUSED)
        return answer


def set_environment(variables: dict[str, str]) -> None:
    """Leaves alone what is as it should be."""
    for name in [name for name in os.environ if name not in variables]:
        del os.environ[name]
    for name, value in variables.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    time.tzset()


def _close_from(first: int) -> None:
    """Every descriptor from this number on."""
    try:
        if _libc.close_range(first, ~0 & 0xFFFFFFFF, 0) == 0:
            return
    except AttributeError:  # a C library before glibc 2.34
        pass
    with contextlib.suppress(OSError):
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd >= first:
                with contextlib.suppress(OSError):
                    os.close(fd)


def wait_for(link: socket.socket, seconds: float | None = None) -> bool:
    """Whether something has come. May be left by an interrupt, unlike what is called from it."""
    return bool(select.select([link], [], [], seconds)[0])


def serve(run: Run, words: int) -> NoReturn:
    """words: a descriptor for what ends it, which the host shows."""
    try:
        run.serve()
    except BaseException:
        os_write(words, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(1)


def main() -> None:
    """A kernel that is started on its own: IPYBOX_KERNEL_LINK is the path of the host's socket, or HOST:PORT."""
    address = os.environ.pop("IPYBOX_KERNEL_LINK")
    if address.startswith("/"):
        link = socket.socket(socket.AF_UNIX)
        link.connect(address)
    else:
        host, _, port = address.rpartition(":")
        link = socket.socket(socket.AF_INET)
        link.connect((host, int(port)))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    words = place(link.detach())
    sys.argv = ["ipybox"]
    run = Run()
    run.prepare(build_shell(), socket.socket(fileno=LINK))
    faulthandler.enable(words)
    serve(run, words)


def place(link: int) -> int:
    """Gives the descriptors the numbers that they have in a fork; returns where stderr went before."""
    out, err, null = os.pipe(), os.pipe(), os.open(os.devnull, os.O_RDWR)
    given = [2, null, out[1], err[1], link, out[0], err[0]]
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = 64 if most == resource.RLIM_INFINITY else min(64, max(8, most - len(given)))
    words, *high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first) for fd in given]
    os.closerange(3, first)
    for to, fd in enumerate(high):
        os.dup2(fd, to, inheritable=to < 3)
        os.close(fd)
    return words
