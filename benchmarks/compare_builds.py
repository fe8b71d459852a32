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
import random
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

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


def interval(values: list[float]) -> tuple[float, float]:
    """Of the median, by resampling."""
    pick = random.Random(1)
    medians = sorted(statistics.median(pick.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


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
        pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for i in range(options.rounds):
            took = {which: measure(builds[which], [*what, "--sandbox", options.sandbox])
                    for which in (i % 2, 1 - i % 2)}  # neither always comes first
            for name in took[0].keys() & took[1].keys():
                pairs[name].append((took[0][name], took[1][name]))
        for name, found in sorted(pairs.items()):
            before, after = (statistics.median(pair[which] for pair in found) for which in (0, 1))
            differences = [new - old for old, new in found]
            low, high = interval(differences)
            print(f"{name}: before {before:.3f}, after {after:.3f} ({after / before:.3f} x); of the differences "
                  f"{statistics.median(differences):+.3f} ({low:+.3f} to {high:+.3f})", flush=True)


if __name__ == "__main__":
    main()
