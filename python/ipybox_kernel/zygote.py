"""The zygote: imports once what most code needs, and is copied for each kernel.

It lives in a sandbox of its own and sees nothing of any session. Descriptor 3 is a socket to the host. Once it is
ready a shared object (its path is the first argument; launcher/copies.cpp) answers requests there, without Python: what
that writes to would be memory of each kernel's own. The host's side is plugins/kernel/fork/zygote.cpp.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

from .frames import HEAD
from .interactive import FIRST_CELLS, build_shell, rehearse
from .pages import SPAN, Memory, join_pages, joinable
from .runner import Run, serve
from .startup import prepare_shell

_REQUEST = struct.Struct("=5I")  # ForkRequest of launcher/fork_request.hpp
_KERNELS_OWN = 16  # descriptors of kernels are below; so must those be that main() gets
_MOST_CODE = 4
_MOST_SPANS = 1 << 14
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NUMBER = struct.Struct("=i")  # of a process
_ROUNDS = 3  # until there is no more to gain
_PATIENCE = 5.0  # seconds for a rehearsal
_QUIET = 5  # milliseconds: a kernel that starts is done with the first of its work by then
_libc = ctypes.PyDLL(None, use_errno=True)


class _Warm(ctypes.Structure):
    """ipybox_warm of launcher/copies.cpp."""

    _fields_ = [
        ("control", ctypes.c_int), ("ncode", ctypes.c_int), ("code", ctypes.POINTER(ctypes.c_int)),
        ("code_paths", ctypes.POINTER(ctypes.c_char_p)), ("spans", ctypes.c_void_p),
        ("nspans", ctypes.c_int), ("nrandom", ctypes.c_int), ("random", ctypes.c_void_p), ("quiet", ctypes.c_int),
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
    # Last what all of them run: into memory that this has written to, and by code that Python has made fit for it.
    rehearse(shell, FIRST_CELLS * _ROUNDS)


def _random_state() -> tuple[int | None, int]:
    """Address and bytes of numpy's, which a copy has to replace: its own seed() writes to 170 pages. All others notice
    a fork by themselves: random, uuid, secrets, tempfile, OpenSSL."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None, 0
    numpy.random.seed()  # which forgets the half that is kept of a pair of normal numbers
    generator = numpy.random.mtrand._rand._bit_generator
    if type(generator).__name__ != "MT19937":
        raise _Unfit("numpy.random cannot be given another state", ["numpy"])
    return generator.ctypes.state_address, generator.state["state"]["key"].nbytes  # with which its state begins


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


def _prepare(modules: list[str], control: socket.socket, low: list[int]) -> tuple[Run, tuple[int | None, int], dict[str, Any]]:
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
    random = _random_state()
    # What the session says comes first.
    own = os.environ.get("PYTHONPATH", "").split(":")
    sys.path[:] = [place for place in sys.path if place and place not in own]
    sys.argv = ["ipybox"]
    for _ in range(2):
        gc.collect()
    gc.freeze()
    gc.disable()
    with open("/proc/self/statm") as sizes:
        space = int(sizes.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    names = sorted({name.partition(".")[0] for name in sys.modules})
    return run, random, {"ready": True, "modules": names, "preloaded": loaded, "missing": missing, "address_space": space}


def _serve(library: Any, control: socket.socket, run: Run, random: tuple[int | None, int], answer: dict[str, Any]) -> None:
    """Sends the host the answer. Returns in no process."""
    files = _code(_open_files())
    warm = _Warm(control=control.fileno(), ncode=len(files), quiet=_QUIET)
    warm.code = (ctypes.c_int * len(files))(*files)
    warm.random, warm.nrandom = random
    warm.code_paths = (ctypes.c_char_p * len(files))(*map(os.fsencode, files.values()))
    text = json.dumps(answer).encode()
    memory = Memory()
    room = mmap.mmap(-1, _MOST_SPANS * SPAN.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    warm.spans = ctypes.addressof(ctypes.c_char.from_buffer(room))
    gc.collect()
    gc.freeze()
    library.malloc_trim(0)
    places = joinable()
    warm.nspans = _learn(library, warm, run, memory, room)
    # Not before: what this process writes to while others share it is in small ones again.
    join_pages(library, places)
    control.send(text)
    _hold()
    if problem := library.ipybox_copies(ctypes.byref(warm)):
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        raise OSError(-problem, os.strerror(-problem))
    _become_kernel(library, warm, run)


def _become_kernel(library: Any, warm: _Warm, run: Run) -> None:
    """In a copy. What memory the first cell would have to make ready is made so while nothing is to do."""
    library.ipybox_await(ctypes.byref(warm))
    library.ipybox_enter(ctypes.byref(warm))
    ctypes.pythonapi.PyOS_AfterFork_Child()
    serve(run, 2)


def _hold() -> None:
    """What os.fork() does before it. Each copy lets go."""
    ctypes.pythonapi.PyOS_BeforeFork()


def _fork() -> int:
    """As a kernel's: without what Python does around it."""
    pid = int(_libc.fork())
    if pid < 0:
        raise OSError(f"the rehearsal gets no process: {os.strerror(ctypes.get_errno())}")
    return pid


def _learn(library: Any, warm: _Warm, run: Run, memory: Memory, room: mmap.mmap) -> int:
    """The number of spans, in `room`, that a kernel uses. Another process finds them out: to do so here would change
    where kernels find room for what they make, and so which memory they write to."""
    ours, theirs = os.pipe()
    pid = _fork()
    if pid == 0:
        try:
            os.close(ours)
            _rehearse(library, warm, run, memory)
            os.write(theirs, b"".join(memory.seen())[: len(room)])
        except BaseException:
            os.write(2, traceback.format_exc().encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(theirs)
    size = 0
    while count := os.readv(ours, [memoryview(room)[size:]]):
        size += count
    os.close(ours)
    os.waitpid(pid, 0)
    memory.forget()
    return size // SPAN.size


def _rehearse(library: Any, warm: _Warm, run: Run, memory: Memory) -> None:
    """A copy does all that a kernel does, but enters no sandbox."""
    library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # While a third process has a page, it is no copy's own because this one has written to it.
    holder = _fork()
    if holder == 0:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        while True:
            signal.pause()
    host, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, link = socket.socketpair()
    files = [*os.pipe(), *os.pipe(), os.open(os.devnull, os.O_RDONLY)]
    socket.send_fds(host, [_REQUEST.pack(1, 0, False, False, 0)], [link.fileno(), *files])
    session = {"env": dict(os.environ), "extensions": ["ipybox_kernel"], "allow_input": False}
    cells = [{"id": at, "code": code, "silent": False, "input": False} for at, code in enumerate(FIRST_CELLS, 1)]
    for kind, message in [("i", session), *(("x", cell) for cell in cells), ("w", {})]:
        text = json.dumps(message).encode()
        ours.sendall(HEAD.pack(len(text), ord(kind)) + text)
    ours.shutdown(socket.SHUT_WR)  # with which a kernel ends
    like = _Warm.from_buffer_copy(warm)
    like.control, like.nspans = control.fileno(), 0
    _hold()
    pid = _fork()
    if pid == 0:
        atexit.register(memory.look)  # should what others do at the end never return
        run.await_end = memory.look  # type: ignore[method-assign]
        _become_kernel(library, like, run)
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    for file in (*files, link.detach(), control.detach()):
        os.close(file)
    started = [holder, pid]
    for end in (host, ours):
        end.settimeout(_PATIENCE)
    with contextlib.suppress(OSError):
        said = host.recv(512)
        if len(said) == _NUMBER.size:
            started.extend(_NUMBER.unpack(said))
        while ours.recv(1 << 16):
            pass
        # It looks only when it has closed the link.
        ended = os.pidfd_open(started[-1])
        select.select([ended], [], [], _PATIENCE)
        os.close(ended)
    for process in started:
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def main(low: list[int]) -> None:
    """low: descriptors that are closed when all is loaded, each number below those of libraries."""
    control = socket.socket(fileno=3)
    try:
        _, path, modules = sys.argv
        library = ctypes.PyDLL(path)
        try:
            run, random, answer = _prepare([name for name in modules.split(",") if name], control, low)
        except _Unfit as error:
            control.send(json.dumps({"ready": False, "culprits": error.culprits, "problem": str(error)}).encode())
            os._exit(1)
        # Kernels, whose copies of this end at once, are this one's to wait for.
        library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _serve(library, control, run, random, answer)
    except ConnectionError:  # the host is gone
        os._exit(0)
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    os._exit(1)
