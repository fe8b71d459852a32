"""Where no program can be started, says so clearly: `os.system`, `os.spawn*` and multiprocessing would fail without a word.

Nothing is refused here that Linux would not refuse as well, by a system call filter that was there before Python:
whoever goes around this meets that.
"""
from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

_WHY = "programs cannot be started in this session (its option --no-exec, programs: deny)"
_FORK = '; processes of the start method "fork" can: multiprocessing.get_context("fork")'
# Raised before anything is forked.
_EVENTS = {
    "subprocess.Popen": "subprocess", "os.system": "os.system", "os.exec": "os.exec*", "os.posix_spawn": "os.posix_spawn",
    "pty.spawn": "pty.spawn",
}
_TRACKER = "from multiprocessing.resource_tracker import main"


def explain(shell: Any) -> None:
    """Makes each usual way to start a program raise a PermissionError that says why."""
    import _posixsubprocess

    sys.addaudithook(_audit)
    # These fork before they try.
    for name in ("spawnv", "spawnve", "spawnvp", "spawnvpe", "spawnl", "spawnle", "spawnlp", "spawnlpe"):
        setattr(os, name, _refusing(getattr(os, name), "os." + name))
    # No event tells of these: multiprocessing's.
    _posixsubprocess.fork_exec = _fork_exec  # type: ignore[assignment]
    for name in ("system", "system_piped", "system_raw", "getoutput"):
        setattr(shell, name, _refusing(getattr(shell, name), "!command"))


def _refuse(what: str, more: str = "") -> NoReturn:
    raise PermissionError(errno.EPERM, f"{what}: {_WHY}{more}")


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without the warning about threads, of which what is forked here needs none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _audit(event: str, _: Any) -> None:
    if (what := _EVENTS.get(event)) is not None:
        _refuse(what)


def _refusing(run: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(run)
    def refuse(*_: Any, **__: Any) -> NoReturn:
        _refuse(what)

    return refuse


def _fork_exec(args: Sequence[Any], *rest: Any) -> int:
    """multiprocessing's own processes are programs, but for the one that removes shared memory which somebody forgot:
    that needs none."""
    code = os.fsdecode(args[-1]) if args else ""
    if not code.startswith(_TRACKER):
        _refuse("multiprocessing", _FORK)
    keep = {int(fd) for fd in rest[2]}
    with quietly():
        pid = os.fork()
    if pid == 0:
        try:
            _track(code, keep)
        finally:
            os._exit(1)
    return pid


def _track(code: str, keep: set[int]) -> None:
    last = 2
    for fd in sorted(fd for fd in keep if fd > 2):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = sys.stdout = None  # type: ignore[assignment]
    sys.stderr = open(2, "w", closefd=False)
    exec(code, {})
    os._exit(0)
