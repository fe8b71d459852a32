#!/usr/bin/env python3
"""Names lines of C++ that have more than 100 columns. Text in raw strings does not count: nothing
can break it.

Usage: scripts/lint_columns.py FILE...
"""
import re
import sys

COLUMNS = 100
RAW_STRING = re.compile(r'\bR"([^()\\\s"]{0,16})\((.*?)\)\1"', re.DOTALL)


def findings(text: str) -> list[int]:
    """The numbers of the lines that are too long."""
    shown = RAW_STRING.sub(lambda found: 'R"()"' + "\n" * found[0].count("\n"), text)
    return [number for number, line in enumerate(shown.split("\n"), 1) if len(line) > COLUMNS]


def main() -> int:
    bad = 0
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as file:
            for number in findings(file.read()):
                print(f"{name}:{number}: more than {COLUMNS} columns; scripts/format breaks lines")
                bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
