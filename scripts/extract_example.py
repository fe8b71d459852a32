#!/usr/bin/env python3
"""Writes the first C++ block of a Markdown file to a file, so that the build compiles it.

Usage: extract_example.py MARKDOWN OUTPUT
"""
import re
import sys
from pathlib import Path

if len(sys.argv) != 3:
    sys.exit(__doc__)
block = re.search(r"^```cpp\n(.*?)^```", Path(sys.argv[1]).read_text(), re.M | re.S)
if block is None:
    sys.exit(f"{sys.argv[1]}: has no C++ block")
Path(sys.argv[2]).write_text(block.group(1))
