"""`python -m ipybox` is the program `ipybox`."""

from __future__ import annotations

import os
import sys

from ._program import find_program


def main() -> None:
    """Becomes the program, with the arguments of this one."""
    program = find_program()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
