"""Compares what two builds take for starts, cells, prints and calls, interleaved in one run.

usage: compare_builds.py [--rounds N] [--sandbox NAME] BEFORE AFTER

BEFORE and AFTER are checkouts in which `scripts/bench` has built build-bench/. Each round runs both
benches, in turns first, and gives a pair of medians for each row; those of peers and floors tell the
noise. Prints the medians of both in the bench's units, their ratio, and the median of the differences
of the pairs with its interval of 95 %.
"""
from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from pairs import compared, in_turns

# What one run of a bench measures, and how often in each round.
MEASURED = (
    ["--only", "start", "--starts", "2"],
    ["--only", "execute", "--round-trips", "200"],
    ["--only", "prints", "--prints", "1"],
    ["--only", "tools", "--tool-calls", "200"],
)
ROW = re.compile(r"^(\S.*?)  +\d+ +[\d.]+ +([\d.]+) +[\d.]+ +[\d.]+(?: +[\d.]+)?$")


def environment(checkout: Path) -> dict[str, str]:
    """As scripts/bench sets it."""
    node = checkout / "build/node/node_modules"
    return dict(os.environ,
                IPYBOX_TEST_PLUGINS=str(checkout / "build-bench/plugins"),
                IPYBOX_TEST_PROGRAM=str(checkout / "build-bench/ipybox"),
                IPYBOX_TEST_PYTHON_PACKAGE=str(checkout / "python"),
                IPYBOX_TEST_NODE_MODULES=str(node),
                IPYBOX_TEST_SUPPORT=str(checkout / "tests/support"),
                IPYBOX_TEST_PYTHON=os.environ.get("IPYBOX_TEST_PYTHON", str(checkout / ".venv/bin/python")),
                PATH=f"{node}/.bin:{node}/node/bin:{os.environ['PATH']}")


def measure(checkout: Path, arguments: list[str]) -> dict[str, float]:
    """Medians, by what was measured and for whom."""
    done = subprocess.run([checkout / "build-bench/benchmarks/bench", *arguments], env=environment(checkout),
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{checkout}: {done.stdout}{done.stderr}")
    medians, title = {}, ""
    for line in done.stdout.splitlines():
        if row := ROW.match(line):
            medians[f"{title}: {row[1]}"] = float(row[2])
        elif line and not line.startswith(" "):
            title = line
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="runs of each bench (10)")
    parser.add_argument("--sandbox", default="bubblewrap", help="also measured in it (bubblewrap)")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    builds = options.before.resolve(), options.after.resolve()
    print(f"{options.rounds} rounds; medians")
    for what in MEASURED:
        found = in_turns(options.rounds, lambda which: measure(builds[which], [*what, "--sandbox", options.sandbox]))
        for name in sorted(set.intersection(*(set(medians) for pair in found for medians in pair))):
            print(f"{name}: {compared([(old[name], new[name]) for old, new in found], 3)}", flush=True)


if __name__ == "__main__":
    main()
