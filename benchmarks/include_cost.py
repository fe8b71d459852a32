#!/usr/bin/env python3
"""What including ipybox costs a compiler: seconds, memory, preprocessed lines.

Usage: include_cost.py [CHECKOUT] [--rounds N]
  CHECKOUT    whose headers and examples to measure; this one unless told
  --rounds N  compiles each N times and takes the fastest; 3 unless told

Each is compiled with -O0 -g0 three ways where they exist: all in the file, with the bodies compiled
elsewhere, and the floor, Boost's Asio and JSON alone.
"""
import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

FLOOR = """#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json.hpp>
"""
SUBJECTS = {
    "Asio and JSON alone": FLOOR,
    "a plugin": "plugins/approval/ask.cpp",
    "a policy composed in C++": "examples/composed_policies/main.cpp",
    "the README's program": "README.md",
    "executor/code_executor.hpp": "#include <ipybox/executor/code_executor.hpp>\n",
    "all of ipybox": "#include <ipybox/ipybox.hpp>\n",
}


def measured(command: list[str]) -> tuple[float, float]:
    """Seconds of processor time and MB of memory; of a child of its own, whose children are counted."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        done = subprocess.run(command, stdin=subprocess.DEVNULL)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        os.write(writer, f"{used.ru_utime + used.ru_stime} {used.ru_maxrss / 1024}".encode())
        os._exit(done.returncode != 0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"does not compile: {' '.join(command)}")
    seconds, memory = map(float, text.split())
    return seconds, memory


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    checkout = arguments.checkout
    ways = [("all in the file", [])]
    if (checkout / "include/ipybox/compilation.hpp").exists():
        ways.append(("bodies elsewhere", ["-DIPYBOX_SEPARATE_COMPILATION"]))
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "subject.cpp")
        for name, subject in SUBJECTS.items():
            path = checkout / subject if subject.endswith(".cpp") else source
            if subject.endswith(".md"):
                extract = Path(__file__).parent.parent / "scripts" / "extract_example.py"
                subprocess.run([sys.executable, extract, checkout / subject, source], check=True)
            elif path == source:
                source.write_text(subject, encoding="utf-8")
            for way, flags in ways if subject != FLOOR else [("", [])]:
                compiler = ["g++", "-std=c++20", "-O0", "-Wno-mismatched-new-delete", f"-I{checkout}/include",
                            f"-I{checkout}/build/include", *flags]
                found = [measured([*compiler, "-c", str(path), "-o", f"{directory}/out.o"])
                         for _ in range(arguments.rounds)]
                lines = subprocess.run([*compiler, "-E", "-P", str(path)], capture_output=True, check=True)
                count = lines.stdout.count(b'\n')
                seconds, memory = min(one for one, _ in found), min(one for _, one in found)
                print(f"{name:28} {way:16} {seconds:5.1f} s {memory:6.0f} MB {count:8,} lines",
                      flush=True)


if __name__ == "__main__":
    main()
