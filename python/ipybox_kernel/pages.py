"""The zygote's memory: its own in huge pages, and what of all a copy uses."""
from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Any

_MADV_POPULATE_READ, _MADV_POPULATE_WRITE, _MADV_COLLAPSE = 22, 23, 25
_HUGE = 2 << 20
_SIZE = os.sysconf("SC_PAGE_SIZE")
# Of an entry in /proc/self/pagemap.
_PRESENT, _OF_A_FILE, _OWN = 1 << 63, 1 << 61, 1 << 56

SPAN = struct.Struct("@3L")  # address, bytes, and the advice that makes it ready


def joinable() -> list[tuple[int, int]]:
    """Address and bytes of what can be in huge pages."""
    found = []
    for start, length, of_a_file in _mapped("rw-p"):
        end = (start + length) // _HUGE * _HUGE
        start = -(-start // _HUGE) * _HUGE
        if not of_a_file and start < end:
            found.append((start, end - start))
    return found


def join_pages(libc: Any, places: list[tuple[int, int]]) -> None:
    """A fork copies an entry for each page, and of huge ones there are fewer. Before Linux 6.1 it stays as it was."""
    for start, length in places:
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_COLLAPSE)


def _mapped(*wanted: str) -> Iterator[tuple[int, int, bool]]:
    """Address, bytes, and whether it is a file's, of what is mapped with these rights."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    for place, rights, _, _, file, *_ in lines:
        if rights in wanted:
            start, end = (int(address, 16) for address in place.split("-"))
            yield start, end - start, file != "0"


class Memory:
    """That of this process which a copy of it has for itself once it has written there, and that of files which the
    copy has read: a fork leaves it to look for them again."""

    def __init__(self) -> None:
        # What of an entry counts, what it has to be, and what makes the memory so.
        own = (_PRESENT | _OF_A_FILE | _OWN, _PRESENT | _OWN, _MADV_POPULATE_WRITE)
        read = (_PRESENT | _OF_A_FILE, _PRESENT | _OF_A_FILE, _MADV_POPULATE_READ)
        self._parts = [(start, length, own) for start, length, _ in _mapped("rw-p")]
        self._parts += [(start, length, read) for start, length, of_a_file in _mapped("r-xp", "r--p") if of_a_file]
        # Shared, so that the copy's look makes no more pages its own, and is seen here.
        self._entries = mmap.mmap(-1, max(8 * sum(length // _SIZE for _, length, _ in self._parts), 1))

    def look(self) -> None:
        """In the copy."""
        file = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        room, at = memoryview(self._entries), 0
        for start, length, _ in self._parts:
            at += os.preadv(file, [room[at : at + length // _SIZE * 8]], start // _SIZE * 8)
        os.close(file)

    def seen(self) -> Iterator[bytes]:
        """What was so when the copy looked, a SPAN each."""
        start = end = last = 0
        with memoryview(self._entries) as room, room.cast("Q") as entries:
            pages = ((place, kind) for start, length, kind in self._parts for place in range(start, start + length, _SIZE))
            for (place, (counts, wanted, advice)), entry in zip(pages, entries):
                if entry & counts != wanted:
                    continue
                if place != end or advice != last:
                    if end:
                        yield SPAN.pack(start, end - start, last)
                    start, last = place, advice
                end = place + _SIZE
        if end:
            yield SPAN.pack(start, end - start, last)

    def forget(self) -> None:
        """No kernel may share memory with this process."""
        self._entries.close()
