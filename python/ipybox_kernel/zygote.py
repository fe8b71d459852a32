"""The zygote: imports once what most code needs, and forks a kernel for each request.

It lives in a sandbox of its own, sees nothing of any session, and asks a shared object (its path is
the first argument) to enter the sandbox of the kernel, as a copy of itself. Descriptor 3 is a socket of
packets to the host. A request: {id, filters, enter, cgroup, interpreter} with descriptors: link, stdout r w,
stderr r w, options, as many filters, then the sandbox's first process and its group, and where programs
are asked about (an interpreter that is not empty) the two doors of broker.hpp, the other end of the second, and
the launcher. The kernel has the doors as 6 and 7. The answer:
{id, pid} with a handle of the kernel, or {id, error}; later {id, status} when it has ended. The
host's side is plugins/kernel/fork/zygote.cpp.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import resource
import select
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

from .frames import HEAD
from .interactive import FIRST_CELLS, build_shell, rehearse
from .pages import ABOVE, join_pages, written_by
from .runner import Run, place, serve
from .startup import prepare_shell

_MOST_DESCRIPTORS = 16
_NUMBER = struct.Struct("=i")
_KERNELS_OWN = 16  # descriptors of kernels are below; so must those be that main() gets
_MOST_CODE = 4
_PR_SET_CHILD_SUBREAPER = 36


class _Entry(ctypes.Structure):
    """ipybox_entry of launcher/enter.cpp."""

    _fields_ = [
        ("init", ctypes.c_int), ("cgroup", ctypes.c_int), ("options", ctypes.c_int),
        ("filters", ctypes.c_int * 4), ("nfilters", ctypes.c_int),
        ("fds", ctypes.c_int * 8), ("nfds", ctypes.c_int),
        ("code", ctypes.c_int * _MOST_CODE), ("code_paths", ctypes.c_char_p * _MOST_CODE), ("ncode", ctypes.c_int),
        ("workers", ctypes.c_int), ("launcher", ctypes.c_int), ("interpreter", ctypes.c_char_p),
    ]


class _Unfit(Exception):
    """What was loaded cannot be forked."""

    def __init__(self, problem: str, culprits: list[str]) -> None:
        super().__init__(problem)
        self.culprits = culprits


# What first cells run, so that what it leaves behind is shared; by the module it needs.
_REHEARSALS = {
    "": [*FIRST_CELLS, "1/0", "{'a': [1, 2.5, 'x', None]}"],
    "pandas": [
        "import pandas as pd, numpy as np; df = pd.DataFrame({'a': np.arange(9), 'b': np.random.rand(9), 'c': list('abcabcabc')})",
        "df.describe()",
        "df['nothing']",
    ],
    "matplotlib.pyplot": [
        "import matplotlib.pyplot as plt; plt.plot([1, 2], label='x'); plt.title('x'); plt.legend(); plt.show()",
    ],
}


def _open_files() -> dict[int, str]:
    """Those that are open beside the standard streams, the host's socket, and what main() got."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd >= _KERNELS_OWN:
            with contextlib.suppress(FileNotFoundError):  # that of the listing itself
                found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def _mapped(rights: str) -> list[str]:
    """The files of mappings with these rights, as /proc/self/maps writes them."""
    with open("/proc/self/maps") as maps:
        return [line[73:].rstrip("\n") for line in maps if line.split(" ", 2)[1] == rights]


def _code(files: dict[int, str]) -> dict[int, str]:
    """What of `files` libraries keep open of their own code (libffi, to map it once more), and only read: a kernel
    gets the same file anew, under the same number."""
    mapped = set(_mapped("r-xp"))
    found = {fd: path for fd, path in files.items()
             if path in mapped and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY}
    return dict(sorted(found.items())[:_MOST_CODE])


def _held() -> str:
    """What of this process a fork would not have, or share to its harm: a library that closes a descriptor of its own
    there, by number, would close one of the kernel's."""
    files = _open_files()
    code = _code(files)
    held = [f"descriptor {fd}: {path}" for fd, path in files.items() if fd not in code]
    held += ["shared memory: " + path for path in _mapped("rw-s")]
    threads = len(os.listdir("/proc/self/task")) - 1
    return "; ".join(held + ([f"{threads} threads"] if threads else []))


def _check(name: str) -> None:
    if held := _held():
        raise _Unfit(f"{name} leaves something that a fork cannot have ({held})", [name] if name else [])


def _load(modules: list[str]) -> tuple[list[str], list[str]]:
    """Those that are loaded, and those that are not installed."""
    loaded, missing = [], []
    for name in modules:
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            if error.name != name and not name.startswith(f"{error.name}."):
                raise _Unfit(f"{name} cannot be imported: {error}", [name]) from None
            missing.append(name)
            continue
        except BaseException as error:
            raise _Unfit(f"{name} cannot be imported: {type(error).__name__}: {error}", [name]) from None
        _check(name)
        loaded.append(name)
    return loaded, missing


def _warm(shell: Any, loaded: list[str]) -> None:
    for name, cells in _REHEARSALS.items():
        if name and name not in loaded:
            continue
        rehearse(shell, cells)
        # Fonts keep their files open.
        if fonts := sys.modules.get("matplotlib.font_manager"):
            fonts._get_font.cache_clear()
        _check(name)


def _reseed() -> None:
    """For the next one; random, uuid, secrets, tempfile and OpenSSL notice a fork by themselves."""
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def _use_all_cores() -> None:
    """In a kernel. A second thread could not have been forked, so that linear algebra has one until it is wanted."""
    cores = len(os.sched_getaffinity(0))
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if cores > 1 and _blas_threads is not None and (most == resource.RLIM_INFINITY or most >= 4 * cores):
        _blas_threads(cores)


def _find_blas() -> Callable[[int], object] | None:
    """What tells OpenBLAS how many threads it may have, if that is loaded."""
    for path in sorted({path for path in _mapped("r-xp") if "openblas" in path}):
        for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads64_", "openblas_set_num_threads"):
            with contextlib.suppress(OSError, AttributeError):
                return getattr(ctypes.CDLL(path), name)
    return None


_blas_threads: Callable[[int], object] | None = None


def _prepare(modules: list[str], control: socket.socket, low: list[int]) -> tuple[Run, dict[str, Any]]:
    if low != list(range(4, _KERNELS_OWN)):
        raise _Unfit("the interpreter's start leaves files open", [])
    shell, run = build_shell(), Run(_use_all_cores)
    prepare_shell(shell)
    # In a kernel the same number is its link.
    run.prepare(shell, control)
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    loaded, missing = _load(modules)
    _warm(shell, loaded)
    for fd in low:
        os.close(fd)
    global _blas_threads
    _blas_threads = _find_blas()
    _reseed()
    # What the session says comes first.
    own = os.environ.get("PYTHONPATH", "").split(":")
    sys.path[:] = [place for place in sys.path if place and place not in own]
    sys.argv = ["ipybox"]
    for _ in range(2):
        gc.collect()
    gc.freeze()
    gc.disable()
    join_pages()
    with open("/proc/self/statm") as sizes:
        space = int(sizes.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    names = sorted({name.partition(".")[0] for name in sys.modules})
    return run, {"ready": True, "modules": names, "preloaded": loaded, "missing": missing, "address_space": space}


class _Zygote:
    """Keeps a copy of this process at hand, the blank, which becomes the next kernel."""

    def __init__(self, control: socket.socket, library: Any, run: Run) -> None:
        self._control, self._library, self._run = control, library, run
        self._poll = select.poll()
        self._kernels: dict[int, int] = {}  # id by handle
        self._code = [(fd, os.fsencode(path)) for fd, path in _code(_open_files()).items()]
        spans = written_by(self._rehearse)
        self._spans = (ctypes.c_ulong * (2 * len(spans)))(*(number for span in spans for number in span))
        self._blank = self._make_blank()

    def loop(self) -> None:
        control = self._control.fileno()
        self._poll.register(control, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd == control:
                    self._serve()
                else:
                    self._report(fd)

    def _report(self, handle: int) -> None:
        """A kernel has ended; whoever outlives its processes waits for it here."""
        try:
            status = os.waitid(os.P_PIDFD, handle, os.WEXITED)
        except BlockingIOError:  # seen an instant before it can be waited for; the host's copy made the handle so
            return
        self._poll.unregister(handle)
        os.close(handle)
        id = self._kernels.pop(handle)
        how = [status.si_code, status.si_status] if status else [0, 0]
        self._control.send(json.dumps({"id": id, "status": how}).encode())

    def _serve(self) -> None:
        data, fds, *_ = socket.recv_fds(self._control, 1 << 16, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not data:  # the host is gone, or has no use for this any more
            os._exit(0)
        try:
            answer = self._hand_over(data, fds)
        finally:
            for fd in fds:
                os.close(fd)
        told: dict[str, Any] = {"id": json.loads(data)["id"]}
        handles = []
        if len(answer) == _NUMBER.size:
            (told["pid"],) = _NUMBER.unpack(answer)
            handles.append(os.pidfd_open(told["pid"]))
            self._kernels[handles[0]] = told["id"]
            self._poll.register(handles[0], select.POLLIN)
        else:
            told["error"] = answer.decode("utf-8", "replace") or "the copy that was to enter it was killed"
        socket.send_fds(self._control, [json.dumps(told).encode()], handles)
        self._blank = self._make_blank()  # here it delays nobody

    def _hand_over(self, data: bytes, fds: list[int]) -> bytes:
        """To the blank, which answers with the number of the kernel, or with what is wrong."""
        answer = b""
        for _ in range(2):
            pid, link = self._blank
            taken = False
            with contextlib.suppress(ConnectionError), link:
                socket.send_fds(link, [data], fds)
                taken = True
                answer = link.recv(1 << 16)
            os.waitpid(pid, 0)
            if taken:
                break
            self._blank = self._make_blank()  # something has killed that one
        return answer

    def _make_blank(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _reseed()
        pid = os.fork()
        if pid == 0:
            try:
                # Nothing of what the zygote has open is a kernel's, or keeps others from seeing its end.
                os.dup2(theirs.fileno(), self._control.fileno(), inheritable=False)
                for fd in (ours.fileno(), theirs.fileno(), *self._kernels):
                    os.close(fd)
                self._become_kernel()
            except BaseException:
                os.write(2, traceback.format_exc().encode("utf-8", "replace"))
            os._exit(1)
        theirs.close()
        return pid, ours

    def _rehearse(self, end: Callable[[], None]) -> None:
        """Does what a copy does and then its kernel, but for entering a sandbox."""
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        host, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"id": 1, "filters": 2, "enter": True, "cgroup": True, "interpreter": ""}
        socket.send_fds(host, [json.dumps(request).encode()], [null] * 10)
        self._receive(link)
        host, link = socket.socketpair()
        session = {"env": dict(os.environ), "extensions": ["ipybox_kernel"], "allow_input": False}
        cells = [{"id": at, "code": code, "silent": False, "input": False} for at, code in enumerate(FIRST_CELLS, 1)]
        for kind, message in [("i", session), *(("x", cell) for cell in cells)]:
            text = json.dumps(message).encode()
            host.sendall(HEAD.pack(len(text), ord(kind)) + text)
        host.shutdown(socket.SHUT_WR)  # with which a kernel ends
        fcntl.fcntl(host.fileno(), fcntl.F_DUPFD_CLOEXEC, ABOVE)
        atexit.register(end)
        place(link.fileno())
        serve(self._run, 2)

    def _become_kernel(self) -> None:
        """Memory that the first cell would copy is copied while nothing is to do."""
        self._library.ipybox_make_own(self._spans, len(self._spans) // 2, self._control.fileno())
        entry = self._receive(self._control)
        if entry is None:  # the zygote is gone
            os._exit(0)
        # What os.fork() does around it.
        ctypes.pythonapi.PyOS_BeforeFork()
        self._library.ipybox_enter(ctypes.byref(entry), self._control.fileno())
        ctypes.pythonapi.PyOS_AfterFork_Child()
        serve(self._run, 2)

    def _receive(self, link: socket.socket) -> _Entry | None:
        data, fds, *_ = socket.recv_fds(link, 1 << 16, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        return self._entry(json.loads(data), fds) if data else None

    def _entry(self, request: dict[str, Any], fds: list[int]) -> _Entry:
        link, out_r, out_w, err_r, err_w, options, *rest = fds
        count = request["filters"]
        filters, rest = rest[:count], rest[count:]
        entry = _Entry(options=options, nfilters=count, nfds=6, workers=-1, launcher=-1)
        entry.filters[:count] = filters
        entry.fds[:6] = [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), out_w, err_w, link, out_r, err_r]
        for i, (fd, path) in enumerate(self._code):
            entry.code[i], entry.code_paths[i], entry.ncode = fd, path, i + 1
        entry.init = rest.pop(0) if request["enter"] else -1
        entry.cgroup = rest.pop(0) if request["cgroup"] else -1
        if request["interpreter"]:
            entry.fds[6:8], entry.nfds = rest[:2], 8
            entry.workers, entry.launcher = rest[2:]
            entry.interpreter = os.fsencode(request["interpreter"])
        return entry


def main(low: list[int]) -> None:
    """low: descriptors that are closed when all is loaded, each number below those of libraries."""
    control = socket.socket(fileno=3)
    try:
        _, path, modules = sys.argv
        library = ctypes.PyDLL(path)
        try:
            run, answer = _prepare([name for name in modules.split(",") if name], control, low)
        except _Unfit as error:
            control.send(json.dumps({"ready": False, "culprits": error.culprits, "problem": str(error)}).encode())
            os._exit(1)
        # Kernels, whose blanks end at once, are this one's to wait for.
        library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        zygote = _Zygote(control, library, run)
        control.send(json.dumps(answer).encode())
        zygote.loop()
    except ConnectionError:  # the host is gone
        os._exit(0)
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    os._exit(1)
