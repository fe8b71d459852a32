"""The zygote's own memory: in huge pages, and which of it a kernel writes to until its first cell is done. There a
copy of the zygote gets pages of its own while nothing is to do.
"""
from __future__ import annotations

import array
import ctypes
import fcntl
import json
import os
import select
import signal
import traceback
from collections.abc import Callable, Iterator

_MADV_COLLAPSE = 25
_HUGE = 2 << 20
_SIZE = os.sysconf("SC_PAGE_SIZE")
ABOVE = 100  # any number that a kernel gives a descriptor
_PATIENCE = 5.0  # seconds for a rehearsal
# Of an entry in /proc/self/pagemap.
_PRESENT, _OF_A_FILE, _OWN = 1 << 63, 1 << 61, 1 << 56

Span = tuple[int, int]  # address and bytes


def join_pages() -> None:
    """A fork copies an entry for each page, and of huge ones there are fewer. Before Linux 6.1 it stays as it was."""
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, length, of_a_file in _private():
        end = (start + length) // _HUGE * _HUGE
        start = -(-start // _HUGE) * _HUGE
        if not of_a_file and start < end:
            libc.madvise(start, end - start, _MADV_COLLAPSE)


def _private() -> Iterator[tuple[int, int, bool]]:
    """Address, bytes, and whether it is a file's, of what can be written and is not shared."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    for place, rights, _, _, file, *_ in lines:
        if rights == "rw-p":
            start, end = (int(address, 16) for address in place.split("-"))
            yield start, end - start, file != "0"


def written_by(rehearse: Callable[[Callable[[], None]], None]) -> list[Span]:
    """The memory of this process that a copy of it writes to in a rehearsal, which at its end calls what it is given."""
    spans = [(start, length) for start, length, _ in _private()]
    return _joined(_own_of_a_copy(spans, rehearse))


def _own_of_a_copy(spans: list[Span], act: Callable[[Callable[[], None]], None]) -> set[int]:
    ours, theirs = os.pipe()
    try:
        words = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, ABOVE)
    except OSError:  # there may not be so many
        os.close(ours)
        return set()
    finally:
        os.close(theirs)

    def look() -> None:
        os.write(words, json.dumps(_own(spans)).encode())
        os._exit(0)  # what others do at the end is not to be done here

    pid = ctypes.PyDLL(None).fork()  # as a kernel's: without what Python does around it
    if pid == 0:
        try:
            act(look)
        except BaseException:
            os.write(2, traceback.format_exc().encode("utf-8", "replace"))
        os._exit(1)
    os.close(words)
    told = b""
    while select.select([ours], [], [], _PATIENCE)[0] and (data := os.read(ours, 1 << 16)):
        told += data
    os.close(ours)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        return set(json.loads(told))
    except ValueError:
        return set()


def _own(spans: list[Span]) -> list[int]:
    """The pages that no other process has: in a fork, those that it has written to."""
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        # All first: what follows writes as well.
        entries = [os.pread(file.fileno(), length // _SIZE * 8, start // _SIZE * 8) for start, length in spans]
    return [
        start + at * _SIZE
        for (start, _), data in zip(spans, entries)
        for at, entry in enumerate(array.array("Q", data))
        if entry & (_PRESENT | _OF_A_FILE | _OWN) == _PRESENT | _OWN
    ]


def _joined(pages: set[int]) -> list[Span]:
    found: list[Span] = []
    for page in sorted(pages):
        if found and sum(found[-1]) == page:
            found[-1] = (found[-1][0], found[-1][1] + _SIZE)
        else:
            found.append((page, _SIZE))
    return found
