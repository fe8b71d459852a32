"""Which memory a kernel writes to until its first cell is done: a copy of the zygote gets pages of its own there
while nothing is to do, in a fraction of the time that each would take when it is written to.
"""
from __future__ import annotations

import array
import fcntl
import json
import os
import select
import signal
import traceback
from collections.abc import Callable

_SIZE = os.sysconf("SC_PAGE_SIZE")
ABOVE = 100  # any number that a kernel gives a descriptor
_PATIENCE = 5.0  # seconds for a rehearsal
# Of an entry in /proc/self/pagemap.
_PRESENT, _OF_A_FILE, _OWN = 1 << 63, 1 << 61, 1 << 56

Span = tuple[int, int]  # address and bytes


def written_by(rehearse: Callable[[Callable[[], None]], None]) -> list[Span]:
    """The memory of this process that a copy of it writes to in a rehearsal, which at its end calls what it is given."""
    with open("/proc/self/maps") as maps:
        lines = [line.split(" ", 2)[:2] for line in maps]
    ends = [place.split("-") for place, rights in lines if rights in ("rw-p", "rwxp")]
    spans = [(int(start, 16), int(end, 16) - int(start, 16)) for start, end in ends]
    looked = _own_of_a_copy(spans, lambda look: look())  # what a fork and that take
    return _joined(_own_of_a_copy(spans, rehearse) - looked)


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

    pid = os.fork()
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
