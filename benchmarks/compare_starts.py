"""Compares how long two builds take to start a kernel and run a cell, interleaved in one run.

usage: compare_starts.py [--rounds N] [--files N] [--sandbox NAME] BEFORE AFTER [-- ARGUMENT...]

BEFORE and AFTER are programs (…/build/ipybox), ARGUMENTs go to `ipybox run` of both. Prints the medians,
and the median of the differences of the pairs with its interval of 95 %.
"""
from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pairs import compared, in_turns


def workspace_with(files: int) -> Path:
    """A workspace as a project has it: 100 files a directory."""
    # Not in /tmp, which every guest has of its own.
    root = Path(tempfile.mkdtemp(prefix="ipybox-starts-", dir="/var/tmp"))
    for i in range(files):
        directory = root / f"part{i // 2000}" / f"package{i // 100}"
        if i % 100 == 0:
            directory.mkdir(parents=True)
        (directory / f"module{i}.py").touch()
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "65534:65534", root], check=True)
    root.chmod(0o755)
    return root


def start(program: str, workspace: Path, arguments: list[str]) -> float:
    """Seconds of one `ipybox run`."""
    began = time.perf_counter()
    done = subprocess.run([program, "run", "--workspace", str(workspace), *arguments, "-c", "print(1)"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    took = time.perf_counter() - began
    if done.returncode != 0 or done.stdout != "1\n":
        sys.exit(f"{program}: {done.stdout}{done.stderr}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="starts of each build (40)")
    parser.add_argument("--files", type=int, default=0, help="files in the workspace (0)")
    parser.add_argument("--sandbox", default="bubblewrap", help="of both (bubblewrap)")
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("argument", nargs="*")
    options = parser.parse_args()
    workspace = workspace_with(options.files)
    try:
        arguments = ["--sandbox", options.sandbox, *options.argument]
        for program in (options.before, options.after):
            start(program, workspace, arguments)
        programs = options.before, options.after
        pairs = in_turns(options.rounds, lambda which: 1e3 * start(programs[which], workspace, arguments))
        print(f"{options.rounds} pairs, {options.files} files, {options.sandbox}: median {compared(pairs, 1, ' ms')}")
    finally:
        shutil.rmtree(workspace)


if __name__ == "__main__":
    main()
