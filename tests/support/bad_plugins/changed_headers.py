"""Copies ipybox's headers twice, with a field more and with a comment more, each with its hash.

Usage: changed_headers.py INCLUDE VERSION_HEADER DIRECTORY STAMP
"""
import shutil
import subprocess
import sys
from pathlib import Path

FIELD = "    std::filesystem::path cwd;\n    NetworkPolicy network;\n"
CHANGES = {
    "changed_field": "    int another = 0;\n" + FIELD,
    "changed_comment": "    // Said of the next line.\n    /* In another form, too. */\n\n" + FIELD,
}


def main() -> None:
    include, version, directory, stamp = map(Path, sys.argv[1:])
    hash_declarations = include.parent / "scripts/hash_declarations.py"
    for name, changed in CHANGES.items():
        shutil.rmtree(directory / name, ignore_errors=True)
        shutil.copytree(include / "ipybox", directory / name / "ipybox")
        header = directory / name / "ipybox/sandbox.hpp"
        text = header.read_text(encoding="utf-8")
        if text.count(FIELD) != 1:
            sys.exit(f"{include}/ipybox/sandbox.hpp has another SandboxPolicy: adapt {sys.argv[0]}")
        header.write_text(text.replace(FIELD, changed), encoding="utf-8")
        subprocess.run([sys.executable, hash_declarations, directory / name,
                        directory / name / "ipybox/detail/declarations.hpp"], check=True)
        shutil.copy(version, directory / name / "ipybox")
    stamp.write_text("#pragma once\n", encoding="utf-8")


if __name__ == "__main__":
    main()
