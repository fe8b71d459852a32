#!/usr/bin/env python3
"""Runs one suite of tests and counts its cases: what `meson test` calls for each of them.

Usage: run_suite.py [--stack BYTES] boost NAME PROGRAM [ARGUMENT...]
       run_suite.py [--stack BYTES] unittest NAME FOLDER [ARGUMENT...]
       run_suite.py step NAME COMMAND [ARGUMENT...]   one case, which passes if the command does
       run_suite.py build NAME COMMAND [ARGUMENT...]  a step that other suites need: never skipped
       run_suite.py broke-off LANE                    writes down that suites could not be run
       run_suite.py totals                            what failed; the last line adds up the cases

Prints TAP, with the suite's own output on the standard error. The suite gets a state directory of
its own; those with cases have half an hour. Exit code 0 only if cases ran and none failed.

scripts/test sets in the environment:
  IPYBOX_TEST_RUN        the directory of this run's logs and results; the others need it
  IPYBOX_TEST_LANE       the suites among which this one runs
  IPYBOX_TEST_RETRY      up to so many failing cases are tried once more and named as unsteady
  IPYBOX_TEST_PASSED     a file of what passed, and with which sources
  IPYBOX_TEST_SOURCES    the digest of the sources
  IPYBOX_TEST_RESUME     what passed with these very sources does not run again
  IPYBOX_TEST_DEADLINE   no suite starts after this time, in seconds since 1970
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SUITE_SECONDS = 1800
GRACE_SECONDS = 30
NAMED_FAILURE = re.compile(r'^(?:FAIL|ERROR): .*|error: in "[^"]*".*', re.MULTILINE)


@dataclasses.dataclass
class Outcome:
    """What a suite's output and exit status say."""

    passed: int
    failed: int
    cases: list[str]  # the names of those that failed, as far as the output has them


def last_number(pattern: str, text: str) -> int:
    """What the last line of the text with the pattern gives; 0 without one."""
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def boost_outcome(text: str, status: int) -> Outcome:
    def cases(how: str) -> int:
        return last_number(rf"\b(\d+) test cases? out of \d+ {how}", text)

    total = last_number(r"\b\d+ test cases? out of (\d+) (?:passed|failed)", text)
    passed = cases("passed(?! with)") + cases("passed with warnings")
    names = sorted(set(re.findall(r'error: in "([^"]*)"', text)))
    return ended(Outcome(passed, total - passed - cases("skipped"), names), status)


def unittest_outcome(text: str, status: int) -> Outcome:
    total = last_number(r"(?m)^Ran (\d+) tests? in", text)
    named = set(re.findall(r"(?m)^(?:FAIL|ERROR): (\S+) \(([^)]*)\)", text))
    # What fails before or after its cases is none of them; a case fails once, however many
    # of its parts do.
    cases = sum(not name.startswith(("setUp", "tearDown")) for name, _ in named)
    return ended(Outcome(total - cases, len(named), sorted({case for _, case in named})), status)


def step_outcome(_text: str, status: int) -> Outcome:
    return Outcome(int(status == 0), int(status != 0), [])


def ended(outcome: Outcome, status: int) -> Outcome:
    """A suite that ended badly, or that had no cases, has a failure."""
    if outcome.failed <= 0:
        outcome.failed = int(status != 0 or outcome.passed <= 0)
    outcome.passed = max(outcome.passed, 0)
    return outcome


class Suite:
    """How suites of a kind are called, read, and called again for some cases."""

    def __init__(self, kind: str, command: list[str]) -> None:
        self.kind = kind
        self.limit = SUITE_SECONDS if kind in ("boost", "unittest") else math.inf
        if kind == "boost":
            program, *arguments = command
            self.base = [program, "--color_output=no", "--report_level=short"]
            self.command = [*self.base, *arguments]
        elif kind == "unittest":
            folder, *arguments = command
            self.base = [os.environ["IPYBOX_TEST_PYTHON"], "-m", "unittest", "discover",
                         "--verbose", "--start-directory", folder]
            self.command = [*self.base, *arguments]
        else:
            self.base, self.command = [], command

    def outcome(self, text: str, status: int) -> Outcome:
        if self.kind == "boost":
            return boost_outcome(text, status)
        if self.kind == "unittest":
            return unittest_outcome(text, status)
        return step_outcome(text, status)

    def again(self, cases: list[str]) -> list[str]:
        if self.kind == "boost":
            return [*self.base, "--run_test=" + ":".join(cases)]
        return [*self.base, *(word for case in cases for word in ("-k", case))]


@contextlib.contextmanager
def state_directory() -> Iterator[str]:
    """What tests let code write is not remembered for the person who runs them. Servers that root
    starts as users of their own have directories in there."""
    path = tempfile.mkdtemp(prefix="ipybox-test-state-")
    try:
        os.chmod(path, 0o711)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def suite_environment(state: str) -> dict[str, str]:
    environment = os.environ | {"XDG_STATE_HOME": state}
    # Meson has the loader look among the plugins, which it does for no user.
    build = os.path.dirname(os.environ.get("IPYBOX_TEST_PROGRAM", "")) + os.sep
    kept = [place for place in environment.pop("LD_LIBRARY_PATH", "").split(":")
            if place and not place.startswith(build)]
    return environment | ({"LD_LIBRARY_PATH": ":".join(kept)} if kept else {})


def run(command: list[str], log: Path, limit: float) -> tuple[str, int]:
    """Runs it with its output in `log` and on the standard error, for at most so many seconds;
    output and exit status."""
    print("$", *command, file=sys.stderr, flush=True)
    with state_directory() as state, log.open("wb") as output, log.open("rb") as shown:
        # A group of its own, so that all of it can be ended. No pipe: what a suite leaves running
        # would hold it open.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, process_group=0,
                                   env=suite_environment(state))

        def show() -> None:
            sys.stderr.buffer.write(shown.read())
            sys.stderr.flush()

        def wait(seconds: float) -> bool:
            end = time.monotonic() + seconds
            while process.poll() is None and time.monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
                show()
            return process.poll() is not None

        def end(seconds: float) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
                if not wait(seconds):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        try:
            late = not wait(limit)
        except BaseException:
            end(0.3)  # Meson gives its tests half a second
            raise
        if late:
            end(GRACE_SECONDS)
        if late:
            output.write(f"\nended after {limit:.0f} s\n".encode())
            output.flush()
        show()
    return log.read_text(errors="replace"), 124 if late else process.returncode


class Run:
    """The results of a run of scripts/test; without one, nothing is kept."""

    def __init__(self) -> None:
        directory = os.environ.get("IPYBOX_TEST_RUN")
        self.directory = Path(directory) if directory else None

    def write(self, **result: object) -> None:
        if self.directory:
            result["lane"] = result.get("lane") or os.environ.get("IPYBOX_TEST_LANE", "")
            append(self.directory / "results.jsonl", json.dumps(result))

    def read(self) -> list[dict]:
        if not self.directory or not (self.directory / "results.jsonl").exists():
            return []
        lines = (self.directory / "results.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def append(file: Path, line: str) -> None:
    """In one piece: suites run beside each other."""
    with file.open("ab", buffering=0) as output:
        output.write(f"{line}\n".encode())


def passed_before(name: str) -> int:
    """How many cases passed with these sources in the run that this one resumes."""
    file = Path(os.environ.get("IPYBOX_TEST_PASSED", ""))
    if not os.environ.get("IPYBOX_TEST_RESUME") or not file.is_file():
        return 0
    begin, end = os.environ["IPYBOX_TEST_SOURCES"] + " ", f" {name}"
    for line in reversed(file.read_text().splitlines()):
        if line.startswith(begin) and line.endswith(end):
            cases = line[len(begin):-len(end)]
            if cases.isdecimal():
                return int(cases)
    return 0


def unsteady(suite: Suite, log: Path, outcome: Outcome) -> bool:
    """Whether the few cases that failed pass when they run once more."""
    limit = int(os.environ.get("IPYBOX_TEST_RETRY") or 0)
    cases = outcome.cases
    # A suite that broke off has more failures than it names.
    if not cases or len(cases) > limit or len(cases) != outcome.failed:
        return False
    print("again:", *cases, file=sys.stderr)
    file = log.with_name(log.stem + "-again.log")
    again = suite.outcome(*run(suite.again(cases), file, suite.limit))
    return again.failed == 0 and again.passed >= len(cases)


def run_suite(suite: Suite, name: str, log: Path, results: Run) -> Outcome:
    start = time.monotonic()
    text, status = run(suite.command, log, suite.limit)
    outcome = suite.outcome(text, status)
    result: dict = {}
    if outcome.failed and unsteady(suite, log, outcome):
        result["unsteady"] = outcome.cases
        outcome = Outcome(outcome.passed + outcome.failed, 0, [])
    if outcome.failed:
        named = {line[:300] for line in NAMED_FAILURE.findall(text)}
        result["failures"] = sorted(named)
    results.write(name=name, passed=outcome.passed, failed=outcome.failed, log=str(log),
                  seconds=round(time.monotonic() - start), **result)
    return outcome


def print_tap(outcome: Outcome) -> None:
    print(f"1..{outcome.passed + outcome.failed}")
    for number in range(1, outcome.passed + 1):
        print(f"ok {number}")
    for number in range(outcome.failed):
        case = outcome.cases[number] if number < len(outcome.cases) else "a case"
        print(f"not ok {outcome.passed + number + 1} - {case.replace('#', ' ')}")


def main_of_suite(kind: str, name: str, command: list[str]) -> int:
    results = Run()
    deadline = os.environ.get("IPYBOX_TEST_DEADLINE")
    if deadline and time.time() > float(deadline):
        results.write(name=name, left_out=kind)
        print("1..0 # SKIP too late")
        return int(kind == "build")  # nothing that needs it can follow
    before = passed_before(name) if kind != "build" else 0
    if before:
        results.write(name=name, passed=before, failed=0)
        print_tap(Outcome(before, 0, []))
        return 0
    results.write(name=name, begun=True)
    with tempfile.TemporaryDirectory() as scratch:
        log = (results.directory or Path(scratch)) / (re.sub(r"[^\w.]+", "-", name) + ".log")
        outcome = run_suite(Suite(kind, command), name, log, results)
    if not outcome.failed and kind != "build" and os.environ.get("IPYBOX_TEST_PASSED"):
        append(Path(os.environ["IPYBOX_TEST_PASSED"]),
               f"{os.environ['IPYBOX_TEST_SOURCES']} {outcome.passed} {name}")
    print_tap(outcome)
    return int(outcome.failed > 0)


def totals() -> int:
    """Names what was left out, unsteady or failed; the last line has the sums."""
    results = Run().read()
    ended_suites = [result for result in results if "failed" in result]
    names = {result["name"] for result in ended_suites}
    failures = [result for result in ended_suites if result["failed"]]
    unended = [result for result in results if "begun" in result and result["name"] not in names]
    broke_off = [result["name"] for result in unended]
    # Meson also says that it failed when a suite did, which is named already.
    named = {result["lane"] for result in failures + unended}
    broke_off += [f"the suites {result['lane']}" for result in results
                  if "broke_off" in result and result["lane"] not in named]

    for result in results:
        if "left_out" in result:
            needed = ", and what needs it" if result["left_out"] == "build" else ""
            say(f"left out, it is too late: {result['name']}{needed}")
    for result in ended_suites:
        if "unsteady" in result:
            say(f"unsteady: {result['name']}: failed and then passed: "
                f"{', '.join(result['unsteady'])}; see {result['log']}")
    for result in failures:
        say(f"failed: {result['name']}; see {result['log']}", *result.get("failures", []))
    for name in broke_off:
        say(f"failed: {name} broke off")
    passed = sum(result["passed"] for result in ended_suites)
    failed = sum(result["failed"] for result in ended_suites) + len(broke_off)
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0 or passed == 0)


def say(line: str, *more: str) -> None:
    print("\n    ".join([line, *more]), file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("--stack", type=int, default=0)
    parser.add_argument("kind", choices=["boost", "unittest", "step", "build", "broke-off",
                                         "totals"])
    parser.add_argument("name", nargs="?")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.kind == "totals":
        return totals()
    if options.kind == "broke-off":
        Run().write(lane=options.name, broke_off=True)
        return 0
    if not options.command:
        parser.error(f"{options.kind} needs a name and a command")
    if options.stack:
        # Frames with sanitizers are several times larger: those of a parser of nested JSON, say.
        _, most = resource.getrlimit(resource.RLIMIT_STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (options.stack, most))
    # So that the state directory goes and nothing stays when Meson ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return main_of_suite(options.kind, options.name, options.command)


if __name__ == "__main__":
    sys.exit(main())
