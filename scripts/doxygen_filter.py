#!/usr/bin/env python3
"""Doxygen's input filter: turns the plain // comments of a header into ones that Doxygen reads.

A comment directly above a declaration describes it, as does one behind it on its line; the comment
at the top describes the file. What Doxygen would take for a command or a tag is escaped; `code` stays
code. `Example: FILE [PART]` shows that part of a file in examples/. What is not public is left out:
function bodies, private members, namespaces within ipybox. Lines keep their numbers.

Usage: doxygen_filter.py HEADER
"""
import re
import sys

OWN_LINE = re.compile(r"^(\s*)//(?!/|<)\s?(.*)$")
# A comment behind code, told from // in a string by an even number of quotes before it.
BEHIND = re.compile(r'^((?:[^"\'/]|/(?!/)|"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\')*?[\w;,{}])(\s*)//\s?(.*)$')


EXAMPLE = re.compile(r"^Example: (\S+) (\[\w+\])$")


def escaped(text):
    if found := EXAMPLE.match(text):
        return rf"\snippet {found[1]} {found[2][1:-1]}"
    parts = re.split(r"`([^`]*)`", text)
    for n, part in enumerate(parts):
        part = re.sub(r"([\\@<>&$#%\"])", r"\\\1", part)
        part = part.replace("::", "\\::")
        parts[n] = f"<code>{part}</code>" if n % 2 else part
    return "".join(parts)


TOKEN = re.compile(r"""
    (?P<skip>^[ \t]*\#(?:\\\n|.)*|//.*|R"\([\s\S]*?\)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+')
    |^[ \t]*(?P<access>public|private|protected):|(?P<open>\{)|(?P<close>\})|(?P<end>;)|[\s\S]""", re.M | re.X)


def kind_of(statement, closed):
    """What a brace after this statement opens: "class", "struct", "scope", "body", "hidden" or "value".
    closed: what ended just before the statement."""
    code = re.sub(r"template\s*<[^<>]*>", "", statement).strip()
    if closed in ("body", "hidden") and re.match(r"(,|$)", code):
        return closed  # a constructor's initializers go on, or its body comes
    if re.match(r"(inline )?namespace\b", code):
        return "scope" if re.search(r"\bnamespace ipybox$", code) else "hidden"
    if found := re.match(r"(?:friend )?(enum|class|struct|union)\b(?:[^(]|\([^)]*\)(?=.*:))*$", code):
        if re.match(r"(class|struct)\s+\w+::", code):
            return "hidden"  # a private part of a class, defined outside of it
        return {"class": "class", "enum": "scope"}.get(found[1], "struct")
    if code.endswith("=") or ")" not in code:
        return "value"
    # A function declared elsewhere is described there.
    return "hidden" if re.search(r"::~?\w+$", code.partition("(")[0]) else "body"


def public_part(text):
    """The text without what is not public."""
    result, stack, private, statement, begun, closed = [], [], [], "", 0, None

    def put(piece):
        hidden = any(private) or any(kind in ("body", "hidden") for kind in stack)
        result.append("\n" * piece.count("\n") if hidden else piece)

    for token in TOKEN.finditer(text):
        piece = token[0]
        if piece.startswith('R"'):  # Doxygen stumbles over some
            piece = '"..."' + "\n" * piece.count("\n")
        if token["open"]:
            kind = kind_of(statement, closed)
            if kind == "hidden":
                result[begun:] = ["\n" * "".join(result[begun:]).count("\n")]
                stack.append(kind)
                private.append(False)
            else:
                put(piece)
                stack.append(kind)
                private.append(kind == "class")
        elif token["close"] and stack:
            closed = stack.pop()
            private.pop()
            if closed != "hidden":
                put(piece)
        elif token["access"] and stack:
            private[-1] = False
            put(piece)
            private[-1] = token["access"] != "public"
        else:
            put(piece)
        if token["open"] or token["end"] or token["access"]:
            closed = None
        if token["open"] or token["close"] or token["end"] or token["access"]:
            statement, begun = "", len(result)
        elif not token["skip"]:
            statement += piece
        elif not statement.strip():
            begun = len(result)
    return "".join(result)


def declares(line):
    """Whether a comment above this line can describe it: not the end of a block, a label or nothing."""
    code = line.strip()
    return bool(code) and not re.match(r"[})#]|(public|private|protected):|(case|default)\b|namespace\b", code)


def filtered(lines):
    result = list(lines)
    first = next((n for n, line in enumerate(lines) if OWN_LINE.match(line)), None)
    n = 0
    while n < len(lines):
        if not OWN_LINE.match(lines[n]):
            found = BEHIND.match(lines[n])
            if found and found[1].strip() != "}" and re.search(r"[;,{}]$|^\s*\w+(\s*=\s*\w+)?$", found[1]):
                result[n] = f"{found[1]}{found[2]}///< {escaped(found[3])}"
                # What goes on below it belongs to it.
                column = len(found[1] + found[2])
                while n + 1 < len(lines) and (more := OWN_LINE.match(lines[n + 1])) and len(more[1]) == column:
                    n += 1
                    result[n] = f"{more[1]}///< {escaped(more[2])}"
            n += 1
            continue
        end = n
        while end < len(lines) and OWN_LINE.match(lines[end]):
            end += 1
        of_file = n == first and lines[:n] and lines[n - 1].strip() == "#pragma once"
        if of_file or (end < len(lines) and declares(lines[end])):
            if of_file:
                result[n - 1] = "/// \\file"
            for at in range(n, end):
                indent, text = OWN_LINE.match(lines[at]).groups()
                result[at] = f"{indent}/// {escaped(text)}"
        n = end
    return result


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    # A specialisation for another namespace is no part of this one, and Doxygen stumbles over it.
    text = re.sub(r"^template <>\nstruct boost::.*;$", "\n", text, flags=re.MULTILINE)
    print("\n".join(filtered(public_part(text).split("\n"))), end="")


if __name__ == "__main__":
    main()
