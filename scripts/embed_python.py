#!/usr/bin/env python3
"""Writes a C++ header that holds the text of Python files.

Usage: embed_python.py OUTPUT FILE...
"""
import sys
from pathlib import Path

HEADER = """\
#pragma once
// The Python package ipybox_kernel: written by scripts/embed_python.py.
#include <string_view>

namespace ipybox::detail {

struct KernelFile {
    std::string_view name;
    std::string_view text;
};

// Compilers take literals far longer than the standard obliges them to.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverlength-strings"
inline constexpr KernelFile kernel_package[] = {
%s};
#pragma GCC diagnostic pop

}  // namespace ipybox::detail
"""
ESCAPES = {0x0A: "\\n", 0x22: '\\"', 0x5C: "\\\\"}


def character(byte: int) -> str:
    return ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")


def entry(name: str) -> str:
    """One file: its lines as literals that the compiler joins, and its length in bytes."""
    text = Path(name).read_bytes()
    lines = ["".join(map(character, line)) for line in text.splitlines(keepends=True)] or [""]
    literals = "\n".join(f'      "{line}"' for line in lines)
    return f'    {{"{Path(name).name}", {{\n{literals}, {len(text)}}}}},\n'


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(HEADER % "".join(map(entry, sorted(sys.argv[2:]))))
