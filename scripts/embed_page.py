#!/usr/bin/env python3
"""Writes a C++ header that holds the files of a web page.

Usage: embed_page.py OUTPUT FILE...
"""
import sys
from pathlib import Path

from embed_python import HEADER, literal

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
}
DECLARATIONS = """
struct File {
    std::string_view path;  // as in URLs
    std::string_view type;
    std::string_view text;
};
"""


def entry(file: Path) -> str:
    path = "/" if file.name == "index.html" else f"/{file.name}"
    return f'    {{"{path}", "{TYPES[file.suffix]}", {literal(str(file))}}},\n'


def header(files: list[Path]) -> str:
    shown = "".join(entry(file) for file in sorted(files))
    return HEADER % {
        "what": "The approval page", "namespace": "ipybox::app::page", "declarations": DECLARATIONS,
        "definition": f"inline constexpr File files[] = {{\n{shown}}};\n",
    }


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(header([Path(name) for name in sys.argv[2:]]))
