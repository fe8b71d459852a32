#!/usr/bin/env python3
"""Writes a C++ header that holds the text of Python files.

Usage: embed_python.py OUTPUT FILE...
       embed_python.py --text NAMESPACE::NAME OUTPUT FILE
  --text  one file alone, as a string_view of that name; otherwise the package ipybox_kernel
"""
import sys
from pathlib import Path

HEADER = """\
#pragma once
// %(what)s: written by scripts/embed_python.py.
#include <string_view>

namespace %(namespace)s {
%(declarations)s
// Compilers take literals far longer than the standard obliges them to.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverlength-strings"
%(definition)s#pragma GCC diagnostic pop

}  // namespace %(namespace)s
"""
KERNEL_FILE = """
struct KernelFile {
    std::string_view name;
    std::string_view text;
};
"""
# A question mark could begin a trigraph.
ESCAPES = {0x0A: "\\n", 0x3F: "\\?", 0x22: '\\"', 0x5C: "\\\\"}


def character(byte: int) -> str:
    return ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")


def literal(name: str) -> str:
    """A file: its lines as literals that the compiler joins, and its length in bytes."""
    text = Path(name).read_bytes()
    lines = ["".join(map(character, line)) for line in text.splitlines(keepends=True)] or [""]
    return "{\n%s, %d}" % ("\n".join(f'      "{line}"' for line in lines), len(text))


def package(files: list[str]) -> str:
    entries = "".join(f'    {{"{Path(name).name}", {literal(name)}}},\n' for name in sorted(files))
    return HEADER % {
        "what": "The Python package ipybox_kernel", "namespace": "ipybox::detail",
        "declarations": KERNEL_FILE,
        "definition": f"inline constexpr KernelFile kernel_package[] = {{\n{entries}}};\n",
    }


def text(variable: str, file: str) -> str:
    namespace, _, name = variable.rpartition("::")
    return HEADER % {
        "what": Path(file).name, "namespace": namespace, "declarations": "",
        "definition": f"inline constexpr std::string_view {name}{literal(file)};\n",
    }


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--text":
        Path(sys.argv[3]).write_text(text(sys.argv[2], sys.argv[4]))
    elif len(sys.argv) >= 3 and not sys.argv[1].startswith("-"):
        Path(sys.argv[1]).write_text(package(sys.argv[2:]))
    else:
        sys.exit(__doc__)
