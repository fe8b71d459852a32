"""Where the program `ipybox` is."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from ._errors import ProgramNotFoundError

# Names the program, and wins over every other place.
VARIABLE = "IPYBOX_PROGRAM"


def find_program() -> str:
    """Returns the path of the program `ipybox`.

    Looks at `$IPYBOX_PROGRAM`, then where pip puts programs that belong to this package, beside the
    interpreter, and last on PATH.

    Raises:
        ProgramNotFoundError: It is in none of these places.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not _is_program(named):
            raise ProgramNotFoundError(
                f"${VARIABLE} is {named!r}, which is no program: set it to the path of the program "
                "ipybox, or unset it"
            )
        return os.path.abspath(named)
    for place in _places():
        candidate = os.path.join(place, "ipybox")
        if _is_program(candidate):
            return candidate
    # Not what lies in the current directory, wherever that is: code may have put it there.
    path = os.pathsep.join(filter(os.path.isabs, os.environ.get("PATH", "").split(os.pathsep)))
    found = shutil.which("ipybox", path=path)
    if found and _is_program(found):
        return found
    raise ProgramNotFoundError(
        "the program ipybox was not found beside this package, beside the interpreter or on PATH: "
        f"install the wheel of ipybox-cpp, or set ${VARIABLE} to the program's path"
    )


def _places() -> Iterator[str]:
    package = Path(__file__).resolve().parent
    for scheme in (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")):
        try:
            paths = sysconfig.get_paths(scheme)
        except KeyError:
            continue
        # Only the program of the same installation: another one may be of another version.
        if package.parent in (Path(paths["purelib"]).resolve(), Path(paths["platlib"]).resolve()):
            yield paths["scripts"]
    # pip install --target puts programs below the packages.
    yield str(package.parent / "bin")
    if sys.executable:
        yield os.path.dirname(sys.executable)


def _is_program(path: str) -> bool:
    """Whether it can be executed and is no script: the command of the original's own distribution,
    written in Python, has the same name."""
    try:
        with open(path, "rb") as file:
            return os.access(path, os.X_OK) and file.read(2) != b"#!"
    except OSError:
        return False
