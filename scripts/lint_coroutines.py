#!/usr/bin/env python3
"""Finds coroutine code that g++ 12 miscompiles, mostly without a word.

Usage: lint_coroutines.py FILE... (installed: ipybox-lint-coroutines FILE...)
  --help  prints this

Prints FILE:LINE: what to do, a line for each. Exit code: 0 nothing was found, 1 something was, 2 a file cannot be
read or none was named.

A full expression with a co_await must not hold, beside plain names and calls:
  - the co_await itself in the condition of an if, while, for or switch, unless the condition
    only initializes an `auto` from it
  - a braced temporary, a capturing lambda, an initializer list, or ?:
and a coroutine takes neither rvalue references nor views, whose target may end before it, nor
default arguments with braces. co_await is not allowed in a catch block at all.
A line with `lint: coroutine` in a comment is excepted; say there why.
"""
import re
import sys
from pathlib import Path

EXCEPTION = re.compile(r"//.*lint: coroutine")
NOISE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|"""
    r"""(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*\#(?:\\\n|[^\n])*""", re.S | re.M)
AWAIT = re.compile(r"\bco_(?:await|yield)\b")
CONDITION = re.compile(r"\b(if|while|switch|for)(?:\s+constexpr)?\s*(?=\()")
INITIALIZES = re.compile(r"\s*(?:const\s+)?auto\b[&\s]*(?:\w+|\[[\w,\s]+\])\s*=\s*co_await\b")
LAMBDA = re.compile(r"(?<![\w\])>])\s*\[([^\[\]]+)\]\s*(?:\(|\{|<|mutable\b|noexcept\b|->)")
BRACES = re.compile(r"(?:[\w>]|[(,=]|\breturn)\s*\{")
COROUTINE = re.compile(r"\bawaitable<")
DANGLING = re.compile(r"&&|\b(?:std::)?(?:string_view|span<)|\b(?:std::)?initializer_list<")
OPEN, CLOSE = "([{", ")]}"


def blanked(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def closing(text: str, start: int) -> int:
    """Index of what closes the bracket at `start`."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] in OPEN:
            depth += 1
        elif text[at] in CLOSE:
            depth -= 1
            if depth == 0:
                return at
    return len(text) - 1


def statement(text: str, at: int) -> tuple[int, int]:
    """The full expression around `at`: from the last ; or unclosed { before to its own ;."""
    start, depth = at, 0
    while start > 0:
        before = text[start - 1]
        if before in CLOSE:
            if before == "}" and depth == 0:
                break
            depth += 1
        elif before in OPEN:
            if depth == 0 and before in "{(":
                break
            depth = max(depth - 1, 0)
        elif before == ";" and depth == 0:
            break
        start -= 1
    end = at
    while end < len(text) and text[end] not in ";}":
        if text[end] == ")":
            break
        end = closing(text, end) + 1 if text[end] in OPEN else end + 1
    return start, end


def split_arguments(text: str) -> list[str]:
    """A parameter list at its commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in OPEN + "<") - (char in CLOSE + ">")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return parts + [text[start:]]


def conditions(text: str):
    for found in CONDITION.finditer(text):
        begin = text.index("(", found.end())
        clauses = text[begin + 1:closing(text, begin)].split(";")
        tested = clauses[1] if found[1] == "for" and len(clauses) == 3 else clauses[-1]
        if AWAIT.search(tested) and not INITIALIZES.match(tested):
            yield begin, "co_await in a condition: bind it to a local first"


def expressions(text: str):
    for found in AWAIT.finditer(text):
        start, end = statement(text, found.start())
        operand, whole = text[found.end():end], text[start:end]
        captured = LAMBDA.search(operand)
        if captured:
            yield found.start(), "capturing lambda inside a co_await expression: name it first"
        elif BRACES.search(operand):
            yield found.start(), "braced temporary inside a co_await expression: name it first"
        elif "?" in whole:
            yield found.start(), "?: around a co_await: use if and else with a local"


def catch_blocks(text: str):
    for found in re.finditer(r"\bcatch\s*(?=\()", text):
        begin = text.find("{", closing(text, text.index("(", found.end())))
        inside = AWAIT.search(text, begin, closing(text, begin))
        if inside:
            yield inside.start(), "co_await in a catch block: leave the block first"


def parameters(text: str):
    for found in COROUTINE.finditer(text):
        end, depth = found.end(), 1
        while end < len(text) and depth:
            depth += (text[end] == "<") - (text[end] == ">")
            end += 1
        declared = re.match(r"\s*(?:[\w:]+\s*::\s*)?\w+\s*(?=\()", text[end:])
        trailing = text[:found.start()].rstrip().endswith("->")
        if trailing:
            last = text.rfind(")", 0, found.start())
            begin = last
            depth = 0
            while begin > 0:
                depth += (text[begin] == ")") - (text[begin] == "(")
                if depth == 0:
                    break
                begin -= 1
        elif declared:
            begin = end + declared.end()
        else:
            continue
        for parameter in split_arguments(text[begin + 1:closing(text, begin)]):
            if DANGLING.search(parameter.split("=")[0]):
                yield begin, f"coroutine parameter `{parameter.strip()}`: take it by value"
            elif re.search(r"=\s*(?:[\w:<>]+\s*)?\{", parameter):
                yield begin, f"default argument `{parameter.strip()}`: g++ 12 builds it wrong"


def findings(source: str):
    lines = source.split("\n")
    text = NOISE.sub(blanked, source)
    for rule in (conditions, expressions, catch_blocks, parameters):
        for at, why in rule(text):
            line = text.count("\n", 0, at)
            if not EXCEPTION.search(lines[line]):
                yield line + 1, why


def main(names: list[str]) -> int:
    if "--help" in names:
        print(__doc__)
        return 0
    if not names:
        print("no file is named; --help explains", file=sys.stderr)
        return 2
    bad = unread = False
    for name in names:
        try:
            source = Path(name).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            print(f"{name}: {error.strerror}", file=sys.stderr)
            unread = True
            continue
        for line, why in sorted(findings(source)):
            bad = True
            print(f"{name}:{line}: {why}")
    return 2 if unread else int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
