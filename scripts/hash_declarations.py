#!/usr/bin/env python3
"""Writes a header with a hash of all that a plugin and its program must see alike.

Usage: hash_declarations.py INCLUDE OUTPUT [DEPFILE]

Of the headers of INCLUDE/ipybox that plugins may include (scripts/lint_includes.py), without comments, white
space and #include lines. Bodies (impl/) are not of them: those are the program's own. An OUTPUT that would stay
as it is is not written again, so that nothing is compiled for a comment.
"""
import hashlib
import re
import sys
from pathlib import Path

NOT_FOR_PLUGINS = {"executor", "tools", "impl"}
NOT_HEADERS = {"src.hpp", "ipybox.hpp", "agent.hpp"}

TOKEN = re.compile(r"""
    (?P<nothing> //[^\n]* | /\*.*?\*/ | \s+ | \\\n | ^[ \t]*\#[ \t]*(?:include[^\n]*|pragma[ ]once) )
  | (?:u8|[uUL])?R"(?P<delimiter>[^()\s\\]*)\(.*?\)(?P=delimiter)"
  | "(?:\\.|[^"\\\n])*"
  | '(?:\\.|[^'\\\n])+'
  | \.?[0-9](?:[\w.]|'(?=\w))*
  | \w+
  | .
""", re.X | re.M | re.S)


def tokens(text: str) -> list[str]:
    """Those of C++ source, without comments."""
    return [found[0] for found in TOKEN.finditer(text) if found["nothing"] is None]


def headers(include: Path) -> list[Path]:
    """What plugins may include, generated ones apart."""
    root = include / "ipybox"
    return sorted(path for path in root.rglob("*.hpp") if path.name not in NOT_HEADERS
                  and not NOT_FOR_PLUGINS & set(path.relative_to(root).parts[:-1]))


def hash_of(include: Path) -> str:
    """16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in headers(include):
        digest.update(f"{path.relative_to(include)}\n".encode())
        digest.update("\n".join(tokens(path.read_text(encoding="utf-8"))).encode() + b"\0")
    return digest.hexdigest()[:16]


def main() -> None:
    include, output = map(Path, sys.argv[1:3])
    text = ("#pragma once\n// Of the headers that plugins see: written by scripts/hash_declarations.py.\n"
            f'#define IPYBOX_DECLARATIONS "{hash_of(include)}"\n')
    if not output.exists() or output.read_text(encoding="utf-8") != text:
        output.write_text(text, encoding="utf-8")
    if len(sys.argv) > 3:
        files = " ".join(str(path).replace(" ", "\\ ") for path in headers(include))
        Path(sys.argv[3]).write_text(f"{output}: {files}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
