#!/usr/bin/env python3
"""Writes a C++ source with the bytes of a file: embed_file.py OUTPUT INPUT NAMESPACE::FUNCTION"""
import pathlib
import sys

output, source, function = sys.argv[1:]
namespace, _, name = function.rpartition("::")
symbol = function.replace("::", "_")
path = str(pathlib.Path(source).resolve()).replace("\\", "\\\\").replace('"', '\\"')
pathlib.Path(output).write_text(f'''#include <{name}.hpp>

// By the assembler: a literal of this size is beyond what compilers must accept.
asm(R"(
    .section .rodata
    .global {symbol}_begin, {symbol}_end
{symbol}_begin:
    .incbin "{path}"
{symbol}_end:
    .byte 0
    .previous
)");

extern "C" const char {symbol}_begin[], {symbol}_end[];

std::string_view {function}() {{
    return std::string_view({symbol}_begin, static_cast<std::size_t>({symbol}_end - {symbol}_begin));
}}
''')
