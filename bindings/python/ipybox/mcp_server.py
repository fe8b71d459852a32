"""`python -m ipybox.mcp_server` is `ipybox serve`, as the original's module of that name."""

from __future__ import annotations

import os
import sys

from ._program import find_program


def cli() -> None:
    """Becomes the MCP server, with the arguments of this program."""
    program = find_program()
    os.execv(program, [program, "serve", *sys.argv[1:]])


if __name__ == "__main__":
    cli()
