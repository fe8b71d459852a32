"""Files of the directory in which the kernel started, for a host that shares no files with it.

Called in the kernel only, while cells run. Like the host in a workspace of its own, follows no
link, and writes a file whole or not at all.
"""
from __future__ import annotations

import errno
import os
import secrets
import stat
from typing import Any


class _Upload:
    """A file under way; it has another name until it is whole."""

    def __init__(self, directory: int, name: str, overwrite: bool) -> None:
        self._directory, self._name, self._overwrite = directory, name, overwrite
        self._fresh = ".upload-" + secrets.token_hex(8)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            self._file = os.open(self._fresh, flags, 0o644, dir_fd=directory)
        except OSError:
            os.close(directory)
            raise

    def write(self, data: Any) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def finish(self) -> None:
        names = {"src_dir_fd": self._directory, "dst_dir_fd": self._directory}
        if self._overwrite:
            os.rename(self._fresh, self._name, **names)
        else:
            # Unlike a rename, this replaces nothing.
            os.link(self._fresh, self._name, follow_symlinks=False, **names)

    def close(self) -> None:
        try:
            os.unlink(self._fresh, dir_fd=self._directory)
        except OSError:  # it has its name
            pass
        os.close(self._file)
        os.close(self._directory)


class Files:
    """Answers what the host asks; an answer with "errno" or "problem" says what went wrong."""

    def __init__(self) -> None:
        self._root = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._uploads: dict[int, _Upload] = {}

    def write(self, request: dict[str, Any], pieces: list[Any]) -> dict[str, Any] | None:
        """Takes a part of a file; None while it is not whole."""
        number = request["id"]
        if "path" in request:
            *parents, name = request["path"].split("/")
            try:
                directory = self._open_directory(parents, make=True)
            except OSError as error:
                return {"errno": error.errno, "directory": True}
            try:
                self._uploads[number] = _Upload(directory, name, request["overwrite"])
            except OSError as error:
                return {"errno": error.errno}
        upload = self._uploads.get(number)
        if upload is None:
            return None  # it failed before
        try:
            for piece in pieces:
                upload.write(piece)
            if not request["end"]:
                return None
            upload.finish()
            answer: dict[str, Any] = {}
        except OSError as error:
            answer = {"errno": error.errno}
        self.abandon(number)
        return answer

    def abandon(self, number: int) -> None:
        upload = self._uploads.pop(number, None)
        if upload is not None:
            upload.close()

    def read(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """A part of a file. "version" differs once the file has been changed."""
        *parents, name = request["path"].split("/")
        try:
            directory = self._open_directory(parents, make=False)
            try:
                # Opening a pipe would wait.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
                file = os.open(name, flags, dir_fd=directory)
            finally:
                os.close(directory)
            try:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode):
                    return {"problem": "irregular"}, b""
                offset = request["offset"]
                data = os.pread(file, request["limit"], offset) if offset < found.st_size else b""
            finally:
                os.close(file)
        except OSError as error:
            return {"errno": error.errno}, b""
        version = f"{found.st_ino} {found.st_mtime_ns} {found.st_size}"
        return {"size": found.st_size, "version": version}, data

    def _open_directory(self, names: list[str], make: bool) -> int:
        current = os.dup(self._root)
        for name in names:
            try:
                if make:
                    try:
                        os.mkdir(name, 0o755, dir_fd=current)
                    except FileExistsError:
                        pass
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
            except NotADirectoryError:
                if stat.S_ISLNK(os.lstat(name, dir_fd=current).st_mode):
                    raise OSError(errno.ELOOP, name) from None
                raise
            finally:
                os.close(current)
            current = inner
        return current
