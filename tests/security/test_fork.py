"""Kernels that are forked: whatever of them dies, stops or starves, nothing is left, and what is said is clear."""
from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, os.path.dirname(__file__))
from harness import PROGRAM, Place, environment, kernel_flags  # noqa: E402

STEADY = """
import time
print("ready", flush=True)
end = time.monotonic() + 3
while time.monotonic() < end: time.sleep(0.01)
print("to its end")
"""


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def below(pid: int) -> list[int]:
    found = children(pid)
    for child in found:
        found += children(child)
    return found


def text_of(pid: int, name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace").replace("\0", " ")
    return ""


def role(pid: int) -> str:
    """By how deep in namespaces it is, and what it runs."""
    command = text_of(pid, "cmdline")
    numbers = re.search(r"^NSpid:(.*)$", text_of(pid, "status"), re.MULTILINE)
    depth = len(numbers[1].split()) if numbers else 0
    if "enter.so" in command and "--init" not in command:
        parent = re.search(r"^PPid:\s*(\d+)$", text_of(pid, "status"), re.MULTILINE)
        of_init = parent is not None and "--init" in text_of(int(parent[1]), "cmdline")
        return {2: "zygote" if of_init else "copy of the zygote", 3: "kernel"}.get(depth, "other")
    if "--init" in command and "bwrap" not in command.split(" ")[0] and "guard" not in command:
        return {2: "init of the pen", 3: "init of the sandbox"}.get(depth, "other")
    if "guard" in command:
        if depth > 1:  # who keeps the layers up to date
            return "layers"
        return "guard of the sandbox" if "--pen" in command else "guard of the pen"
    return {1: "bwrap of the pen", 2: "bwrap of the sandbox"}.get(depth, "other") if "bwrap" in command else "other"


def alive(pid: int) -> bool:
    state = re.search(r"^State:\s+(\w)", text_of(pid, "status"), re.MULTILINE)
    return state is not None and state[1] not in "ZX"


class Forked(unittest.TestCase):
    @contextlib.contextmanager
    def running(self, code: str = STEADY, *more: str) -> Iterator[tuple[Place, subprocess.Popen, dict[str, int]]]:
        with Place() as place:
            process = subprocess.Popen([PROGRAM, "run", *kernel_flags("fork", "bubblewrap"), *more, "-c", code], cwd=place.workspace,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
            try:
                self.assertEqual(process.stdout.readline(), "ready\n", process.poll() is not None and process.stderr.read())
                until = time.monotonic() + 2
                while True:
                    every = below(process.pid)
                    pids = {role(pid): pid for pid in every}
                    # The next one is made after the kernel has gone its way.
                    if "copy of the zygote" in pids or time.monotonic() > until:
                        break
                    time.sleep(0.02)
                yield place, process, pids
                left = self.left_of(every)
                self.assertEqual(left, {}, "left a second after the end")
            finally:
                process.kill()
                process.communicate()

    def left_of(self, pids: list[int]) -> dict[int, str]:
        until = time.monotonic() + 1
        while True:
            left = {pid: text_of(pid, "cmdline") for pid in pids if alive(pid)}
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.02)

    def outcome(self, process: subprocess.Popen) -> tuple[int, str, str]:
        out, errors = process.communicate(timeout=60)
        return process.returncode, out, errors

    def test_all_is_there_that_the_other_cases_kill(self) -> None:
        with self.running() as (_, process, pids):
            for name in ("zygote", "copy of the zygote", "kernel", "init of the pen", "init of the sandbox", "guard of the pen", "guard of the sandbox"):
                self.assertIn(name, pids)
            self.assertEqual(self.outcome(process)[:2], (0, "to its end\n"))

    def test_the_program_is_killed(self) -> None:
        with self.running() as (_, process, pids):
            process.kill()
            process.wait()
            self.assertEqual(self.left_of(list(pids.values())), {})

    def test_the_zygote_or_its_copy_is_killed_or_hangs(self) -> None:
        for number, name in itertools.product((signal.SIGKILL, signal.SIGSTOP), ("zygote", "copy of the zygote")):
            with self.subTest(name, number=number), self.running() as (_, process, pids):
                os.kill(pids[name], number)
                self.assertEqual(self.outcome(process)[:2], (0, "to its end\n"))

    def test_what_holds_a_kernel_is_killed(self) -> None:
        for name in ("kernel", "init of the sandbox", "guard of the sandbox", "bwrap of the sandbox",
                     "init of the pen", "guard of the pen", "bwrap of the pen"):
            with self.subTest(name), self.running() as (_, process, pids):
                if name not in pids:
                    continue
                os.kill(pids[name], signal.SIGKILL)
                status, out, errors = self.outcome(process)
                self.assertEqual((status, out), (1, ""), errors)
                self.assertRegex(errors, r"the kernel ended \(.*\); reset\(\) starts a new kernel")

    def test_a_kernel_that_is_stopped_can_be_ended(self) -> None:
        with self.running() as (_, process, pids):
            os.kill(pids["kernel"], signal.SIGSTOP)
            process.terminate()
            process.communicate(timeout=30)

    def test_processes_that_a_kernel_has_started_end_with_it(self) -> None:
        code = "import os, subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '1000'])\nos.fork() or time.sleep(1000)\n" + STEADY.replace("3", "1")
        with self.running(code) as (_, process, pids):
            self.assertEqual(self.outcome(process)[1], "to its end\n")


if __name__ == "__main__":
    unittest.main()
