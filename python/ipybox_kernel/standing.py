"""Children that stand for programs, without a fork of Python: launcher/stand_in.hpp."""
from __future__ import annotations

import ctypes
import os
from typing import Any

_LIBRARY = "/run/ipybox/enter.so"
_MOST_FILES = 253


class _Program(ctypes.Structure):
    _fields_ = [
        ("door", ctypes.c_int), ("told", ctypes.c_int), ("drained", ctypes.c_int), ("session", ctypes.c_int), ("leads", ctypes.c_int),
        ("count", ctypes.c_int), ("blocked", ctypes.c_uint64), ("not_ignored", ctypes.c_uint64), ("files", ctypes.c_int * _MOST_FILES),
    ]


_library: Any = None


def load() -> bool:
    """Whether there can be any."""
    global _library
    release = os.uname().release.split(".")
    # Before, a child that ends by SIGSEGV takes along whoever shares its memory.
    if (int(release[0]), int(release[1].partition("-")[0])) < (5, 16):
        return False
    try:
        _library = ctypes.PyDLL(_LIBRARY)
    except OSError:
        return False
    return True


def start(door: int, files: list[int], told: int, drained: int, session: bool, leads: bool, blocked: int, not_ignored: int) -> int:
    """The pid of a child that asks for a program, and stands for it. Raises OSError."""
    program = _Program(door, told, drained, session, leads, len(files), blocked, not_ignored)
    program.files[: len(files)] = files
    pid: int = _library.ipybox_start_program(ctypes.byref(program))
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return pid
