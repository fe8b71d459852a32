"""The zygote's own memory: in huge pages, and which of it a copy writes to."""
from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator

_MADV_COLLAPSE = 25
_HUGE = 2 << 20
_SIZE = os.sysconf("SC_PAGE_SIZE")
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


class Memory:
    """That of this process which a copy of it has for itself once it has written there."""

    def __init__(self) -> None:
        self._parts = [(start, length) for start, length, _ in _private()]
        # Shared, so that the copy's look makes no more pages its own, and is seen here.
        self._entries = mmap.mmap(-1, max(8 * sum(length // _SIZE for _, length in self._parts), 1))

    def look(self) -> None:
        """In the copy."""
        file = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        room, at = memoryview(self._entries), 0
        for start, length in self._parts:
            at += os.preadv(file, [room[at : at + length // _SIZE * 8]], start // _SIZE * 8)
        os.close(file)

    def seen(self) -> list[Span]:
        """What was the copy's own when it looked. Once only: no kernel may share memory with this process."""
        found: list[Span] = []
        with self._entries, memoryview(self._entries) as room, room.cast("Q") as entries:
            places = (place for start, length in self._parts for place in range(start, start + length, _SIZE))
            for place, entry in zip(places, entries):
                if entry & (_PRESENT | _OF_A_FILE | _OWN) != _PRESENT | _OWN:
                    continue
                if found and sum(found[-1]) == place:
                    found[-1] = (found[-1][0], found[-1][1] + _SIZE)
                else:
                    found.append((place, _SIZE))
        return found
