#!/usr/bin/env python3
"""Checks that files and functions of the core stay small enough to be read at once.

Usage: lint_sizes.py [--list]
  --list  prints the ten longest of each kind, listed exceptions too; checks nothing
"""
import ast
import re
import sys
from pathlib import Path

FOLDERS = ("include", "src", "app", "launcher", "plugins", "python/ipybox_kernel")
HEADER_LINES, FILE_LINES, FUNCTION_LINES = 500, 800, 100

# What is longer because it is one thought, which two files would only hide.
LONGER_FILES = {
    "include/ipybox/tools/detail/model_writer.hpp": "ModelWriter: a schema as Python classes",
    "plugins/sandbox/bubblewrap.cpp": "one sandbox: its arguments only make sense together",
}

HIDDEN = re.compile(r"""
    //[^\n]*|/\*[\s\S]*?\*/
    |(?P<raw>\bu?8?[uUL]?R"(?P<end>[^()\s\\"]*)\([\s\S]*?\)(?P=end)")
    |"(?:\\.|[^"\\\n])*"
    |(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""", re.X)
DIRECTIVE = re.compile(r"^[ \t]*\#(?:[^\n\\]|\\[\s\S])*", re.M)
TYPE_OR_NAMESPACE = re.compile(
    r'(?:extern|(?:inline )?namespace\b[^()]*|(?:template\s*<.*>\s*)?(?:class|struct|union|enum)\b(?:[^()]|\([^()]*\))*)$',
    re.S)


def blank(found: re.Match) -> str:
    """As many lines and characters, with nothing that a reader of braces would take for code."""
    return re.sub(r"[^\n]", " ", found[0])


def without_text(code: str) -> str:
    """C++ without comments, directives and what strings and characters hold."""
    return DIRECTIVE.sub(blank, HIDDEN.sub(blank, code))


def is_type(statement: str) -> bool:
    """Whether what stands before a brace makes it open a namespace, class or enumeration."""
    statement = re.sub(r"\[\[.*?\]\]|\balignas\([^()]*\)", "", statement).strip()
    ends_as_function = re.search(r"\)\s*(const|noexcept|override|final|->.*)?$", statement)
    return bool(TYPE_OR_NAMESPACE.match(statement)) and not ends_as_function


def end_of_block(code: str, at: int) -> int:
    """Behind the brace that closes the one before `at`."""
    depth = 1
    for found in re.compile(r"[{}]").finditer(code, at):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.end()
    return len(code)


def functions(code: str):
    """Of each function that is not inside another: its name, first and last line."""
    code = without_text(code)
    token = re.compile(r"[{};]|\b(?:public|private|protected)\s*:")
    begun = at = 0  # of the statement that is read; how far
    while found := token.search(code, at):
        at = found.end()
        statement = code[begun:found.start()]
        if found[0] != "{" or is_type(statement):
            begun = at
            continue
        at = end_of_block(code, at)
        in_parentheses = statement.count("(") > statement.count(")")
        is_value = in_parentheses or ")" not in statement or statement.rstrip().endswith("=")
        # A constructor's initializers go on, or its body comes.
        goes_on = re.match(r"\s*[,{]", code[at:]) and re.search(r"\)[\w\s()]*:", statement)
        if is_value or goes_on:
            continue
        name = re.search(r"(~?[\w:]+|operator\S+)\s*\(", statement)
        start = begun + len(statement) - len(statement.lstrip())
        yield name[1].lstrip(":") if name else "?", code.count("\n", 0, start) + 1, code.count("\n", 0, at) + 1
        begun = at


def python_functions(code: str):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno


def core():
    for folder in FOLDERS:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in (".cpp", ".hpp", ".ipp", ".py"):
                yield path, path.read_text(encoding="utf-8")


def measures():
    """(lines, limit, place, what) of all files and functions; a listed exception has no limit."""
    for path, text in core():
        name = str(path)
        limit = HEADER_LINES if path.suffix == ".hpp" else FILE_LINES
        yield text.count("\n"), None if name in LONGER_FILES else limit, name, "file"
        for function, first, last in (python_functions if path.suffix == ".py" else functions)(text):
            yield last - first + 1, FUNCTION_LINES, f"{name}:{first}", function


def faults():
    for lines, limit, place, what in measures():
        if limit and lines > limit:
            yield f"{place}: {what} of {lines} lines; at most {limit}"
    sizes = {place: lines for lines, _, place, what in measures() if what == "file"}
    for name in LONGER_FILES:
        if sizes.get(name, 0) <= (HEADER_LINES if name.endswith(".hpp") else FILE_LINES):
            yield f"{name}: not longer than others: it is no exception of scripts/lint_sizes.py"


if __name__ == "__main__":
    if "--list" in sys.argv[1:]:
        everything = sorted(measures(), key=lambda measure: -measure[0])
        for wanted in (True, False):
            for lines, _, place, what in [m for m in everything if (m[3] == "file") == wanted][:10]:
                print(f"{lines:5} {place}{'' if wanted else ' ' + what}")
        sys.exit()
    found = list(faults())
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
