"""Where programs are denied (--no-exec): what is refused says so, what needs none works, and no start without the wall.

The attacks on the wall itself are in attacks.py.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attacks import PROFILES  # noqa: E402
from harness import PROGRAM, PYTHON, Outcome, Place, ability, environment, kernel_flags  # noqa: E402

# How the wall is put up: by the launcher, by who enters, and with the relay of the whole disk.
WAYS = ("no-exec", "no-exec-zmq", "no-exec-forked", "no-exec-relay")

USUAL = """
import asyncio, multiprocessing, os, pty, subprocess
shell = get_ipython()
async def create(): await asyncio.create_subprocess_exec("true")
def system_of_a_child():
    reading, writing = os.pipe()
    if os.fork() == 0:
        try: os.execvp("true", ["true"])
        except OSError as error: os.write(writing, str(error).encode())
        os._exit(0)
    os.wait()
    raise PermissionError(os.read(reading, 1000).decode())
for name, start in {
    "subprocess": lambda: subprocess.run(["true"]),
    "shell": lambda: subprocess.check_output("true", shell=True),
    "system": lambda: os.system("true"),
    "popen": lambda: os.popen("true").read(),
    "spawnl": lambda: os.spawnl(os.P_WAIT, "/bin/true", "true"),
    "spawnvpe": lambda: os.spawnvpe(os.P_NOWAIT, "true", ["true"], os.environ),
    "execv": lambda: os.execv("/bin/true", ["true"]),
    "execlp": lambda: os.execlp("true", "true"),
    "in a child": system_of_a_child,
    "posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], os.environ),
    "posix_spawnp": lambda: os.posix_spawnp("true", ["true"], os.environ),
    "pty": lambda: pty.spawn(["true"]),
    "asyncio": lambda: asyncio.run(create()) if not asyncio._get_running_loop() else create().send(None),
    "spawn": lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
    "forkserver": lambda: multiprocessing.get_context("forkserver").Pool(1),
    "!": lambda: shell.run_line_magic("system", "true"),
    "!!": lambda: shell.getoutput("true"),
    "%%bash": lambda: shell.run_cell_magic("bash", "", "true"),
    "%%script": lambda: shell.run_cell_magic("script", "sh", "true"),
    "%pip": lambda: shell.run_line_magic("pip", "--version"),
}.items():
    try:
        print(name, "STARTED", start())
    except PermissionError as error:
        print(name, "refused" if "--no-exec" in str(error) and "programs: deny" in str(error) else error)
    except OSError as error:  # with the whole disk in view there are no Unix sockets, which that one makes first
        print(name, "refused" if (name, error.errno) == ("forkserver", 97) else error)
"""

EVERYDAY = """
import ctypes.util, math, multiprocessing, os, platform, signal, sqlite3, subprocess, threading, uuid, webbrowser
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import numpy as np, pandas as pd, matplotlib.pyplot as plt
a = np.random.default_rng(0).normal(size=(300, 300))
print(np.allclose(a @ np.linalg.inv(a), np.eye(300)))
print(pd.DataFrame({"a": [1, 2, 2], "b": [1.5, 2.5, 3.5]}).groupby("a").b.sum().to_dict())
plt.plot([1, 3, 2]); plt.title("x"); plt.show()
fork = multiprocessing.get_context("fork")
with fork.Pool(2) as pool: print(pool.map(math.factorial, [3, 4, 5]))
with ProcessPoolExecutor(2, mp_context=fork) as pool: print(list(pool.map(math.sqrt, [4, 9])))
with ThreadPoolExecutor(2) as pool: print(list(pool.map(abs, [-1, -2])))
queue = fork.Queue()
process = fork.Process(target=queue.put, args=("through a queue",))
process.start()
print(queue.get(timeout=10)); process.join()
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=1 << 16)
def fill(name):
    other = shared_memory.SharedMemory(name)
    other.buf[:3] = b"abc"
    other.close()
process = fork.Process(target=fill, args=(block.name,))
process.start(); process.join()
print(bytes(block.buf[:3])); block.close(); block.unlink()
child = os.fork()
if child == 0: os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(platform.system(), platform.processor() is not None, len(str(uuid.uuid1())), webbrowser.open("http://x.example"))
ctypes.util.find_library("c"); ctypes.util.find_library("no-such-library")
with sqlite3.connect(":memory:") as data: print(data.execute("select 6 * 7").fetchone())
try: subprocess.check_call(["git", "status"])
except OSError as error: print(type(error).__name__)
"""
DONE = ("True\n{1: 1.5, 2: 6.0}\n[6, 24, 120]\n[2.0, 3.0]\n[1, 2]\nthrough a queue\nb'abc'\n7\nLinux True 36 False\n(42,)\nPermissionError\n")


def run(way: str, code: str, *options: str, sandbox: str = "bubblewrap", **env: str) -> Outcome:
    with Place() as place:
        return place.run(code, [*PROFILES[way](place), *options], sandbox, env=env)


class Refused(unittest.TestCase):
    """A program is not started, and whoever tried is told why."""

    def test_every_usual_way_says_why(self) -> None:
        for way in WAYS:
            with self.subTest(way):
                outcome = run(way, USUAL)
                self.assertEqual(outcome.status, 0, outcome.errors)
                answers = dict(line.rsplit(" ", 1) for line in outcome.output.splitlines())
                self.assertEqual(set(answers.values()), {"refused"}, outcome.output)
                self.assertEqual(len(answers), 20)

    def test_the_words_are_those_of_an_ordinary_error(self) -> None:
        outcome = run("no-exec", "!echo hello")
        self.assertEqual((outcome.status, outcome.output), (1, ""))
        self.assertIn("PermissionError: [Errno 1] !command: programs cannot be started in this session (its option --no-exec, programs: deny)",
                      outcome.errors)
        self.assertNotIn("programs.py", outcome.errors)
        outcome = run("no-exec", "import multiprocessing\nmultiprocessing.get_context('spawn').Pool(1)")
        self.assertIn('multiprocessing.get_context("fork")', outcome.errors)

    def test_what_goes_around_those_words_meets_the_wall(self) -> None:
        """The words are Python's, and can be taken away; what they explain cannot."""
        code = ("import _posixsubprocess, ctypes, os, posix, sys\nsystem = ctypes.CDLL(None).system\nprint(system(b'true') >> 8)\n"
                "pid = os.fork()\nif pid == 0: ctypes.CDLL(None).execv(b'/bin/true', (ctypes.c_char_p * 2)(b'true', None)); os._exit(9)\n"
                "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))")
        for way in WAYS:
            with self.subTest(way):
                self.assertEqual(run(way, code).output, "127\n9\n")

    def test_without_the_option_everything_starts(self) -> None:
        with Place() as place:
            outcome = place.run("import subprocess\nprint(subprocess.run(['true']).returncode)\n!echo hello")
            self.assertEqual(outcome.output.split(), ["0", "hello"], outcome.errors)


class Works(unittest.TestCase):
    """What needs no program is as it was."""

    def test_everyday_code(self) -> None:
        for way in WAYS:
            with self.subTest(way), Place() as place:
                outcome = place.run(EVERYDAY, [*PROFILES[way](place), "--images-dir", "pictures"])
                self.assertEqual(outcome.status, 0, outcome.errors)
                self.assertTrue(outcome.output.startswith(DONE), outcome.output)
                self.assertEqual(len(list((place.workspace / "pictures").glob("*.png"))), 1)

    def test_tools_and_checks(self) -> None:
        """MCP servers and the type checker are programs, which run elsewhere."""
        with Place() as place:
            code = "from mcptools.own import echo\nprint(echo.run(text='called'))"
            options = [*PROFILES["tools"](place), "--no-exec", *kernel_flags("fork", "bubblewrap"), "--check"]
            outcome = place.run(code, options)
            self.assertEqual((outcome.status, outcome.output), (0, "called\n"), outcome.errors)
            faulty = place.run(code.replace("text", "no_such"), options)
            self.assertIn("no_such", faulty.output + faulty.errors)
            self.assertNotEqual(faulty.status, 0)

    def test_shared_memory_that_was_forgotten_is_removed(self) -> None:
        code = ("import os, time\nfrom multiprocessing import resource_tracker, shared_memory\nblock = shared_memory.SharedMemory(create=True, size=4096)\n"
                "fd, pid = resource_tracker._resource_tracker._fd, resource_tracker._resource_tracker._pid\n"
                "print(block.name in os.listdir('/dev/shm'), sorted(os.listdir(f'/proc/{pid}/fd'))[:1])\n"
                "os.close(fd)\nos.waitpid(pid, 0)\nprint(block.name in os.listdir('/dev/shm'))\n"
                "resource_tracker._resource_tracker._fd = None")
        for way in WAYS:
            with self.subTest(way):
                outcome = run(way, code)
                self.assertEqual(outcome.output.splitlines()[0].split()[0], "True", outcome.errors)
                self.assertIn("\nFalse\n", outcome.output)


class Starts(unittest.TestCase):
    """No kernel without the wall, whoever asks and however often."""

    def test_who_cannot_put_it_up_refuses(self) -> None:
        cases: list[tuple[str, list[str], str]] = [
            ("none", ["--no-exec"], 'sandbox "none" cannot keep code from starting programs'),
            ("bubblewrap", ["--no-exec", "--kernel", "gateway"], 'kernels of "gateway" are programs that their server starts'),
            ("none", ["--no-exec", "--kernel", "gateway", "--kernel-options", '{"url": "http://127.0.0.1:9/"}'],
             "the kernel runs on another machine"),
            ("bubblewrap", ["--no-exec", "--approve-shell-cmds"], "approve_shell_cmds has nothing to ask"),
        ]
        if not ability("srt"):
            cases.append(("srt", ["--no-exec"], 'sandbox "srt" cannot keep code from starting programs'))
        for sandbox, options, words in cases:
            with self.subTest(sandbox, options=options), Place() as place:
                outcome = place.run("print('ran')", options, sandbox)
                self.assertEqual((outcome.status, outcome.output), (2, ""))
                self.assertIn(words, outcome.errors)

    def test_without_the_filter_the_host_notices(self) -> None:
        if lacks := ability("bubblewrap_weakened"):
            self.skipTest(lacks)
        for kernel in (["--kernel", "zmq"], kernel_flags("fork", "bubblewrap"), ["--kernel", "fork", "--kernel-options", '{"start": "forked"}']):
            with self.subTest(kernel), Place() as place:
                outcome = place.run("print('ran')", ["--no-exec", *kernel], "bubblewrap_weakened", env={"IPYBOX_TEST_WITHOUT": "programs"})
                self.assertEqual((outcome.status, outcome.output), (2, ""))
                self.assertIn("Linux does not tell that it is kept from starting programs", outcome.errors)
                whole = place.run("print('ran')", ["--no-exec", *kernel], "bubblewrap_weakened")
                self.assertEqual(whole.output, "ran\n", whole.errors)

    CELL = ("import ctypes, os\nlibc = ctypes.CDLL(None)\nstatus = libc.system(b'true') >> 8\n"
            "try: os.system('true')\nexcept PermissionError: print(status, 'refused', os.getpid() < 20)")

    def client(self, place: Place, *flags: str) -> Callable[..., str]:
        process = subprocess.Popen([PROGRAM, "serve", "--workspace", str(place.workspace), "--python", PYTHON, *flags], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place.root, env=environment())
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.stdin.close)

        def send(**message: object) -> None:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()

        send(id=0, method="initialize", params={"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}})
        send(method="notifications/initialized")
        number = 0

        def call(tool: str, **arguments: object) -> str:
            nonlocal number
            number += 1
            send(id=number, method="tools/call", params={"name": tool, "arguments": arguments})
            while line := process.stdout.readline():
                message = json.loads(line)
                if message.get("id") == number and "method" not in message:
                    if "error" in message:
                        return json.dumps(message["error"])
                    return "".join(block.get("text", "") for block in message["result"]["content"])
            raise AssertionError(process.stderr.read())

        return call

    def test_a_server_s_kernels_have_it_after_reset_and_from_spares(self) -> None:
        for options in ('{"start": "forked", "spares": 2}', '{"start": "cold"}', ""):
            with self.subTest(options), Place() as place:
                kernel = ["--kernel", "fork", "--kernel-options", options] if options else ["--kernel", "zmq"]
                call = self.client(place, "--sandbox", "bubblewrap", "--no-exec", *kernel)
                for _ in range(3):
                    self.assertEqual(call("execute_ipython_cell", code=self.CELL), "127 refused True")
                    call("reset")

    def test_a_server_without_a_sandbox_does_not_start(self) -> None:
        with Place() as place:
            done = subprocess.run([PROGRAM, "serve", "--workspace", str(place.workspace), "--python", PYTHON, "--no-exec"], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=60, env=environment())
            self.assertEqual(done.returncode, 2, done)
            self.assertIn("--no-exec is a wall of the sandbox: add --sandbox", done.stderr)

    def test_packages_are_installed_by_a_program_elsewhere(self) -> None:
        """pip runs in a sandbox of its own, without what this one is denied."""
        with Place() as place:
            call = self.client(place, "--sandbox", "bubblewrap", "--no-exec")
            said = call("install_package", package_name="./no-such-directory")
            self.assertIn("no-such-directory", said)
            self.assertNotIn("cannot be started", said)


class Doctor(unittest.TestCase):
    def test_it_tells_whether_the_machine_can(self) -> None:
        done = subprocess.run([PROGRAM, "doctor", "--python", PYTHON], capture_output=True, text=True, timeout=120, env=environment())
        enforced, _, missing = next(line for line in done.stdout.splitlines() if "bubblewrap: a sandboxed" in line).partition("; not enforceable")
        self.assertEqual("no programs (--no-exec)" in enforced, not ability("landlock"), done.stdout)
        self.assertEqual("no programs (--no-exec)" in missing, bool(ability("landlock")))


if __name__ == "__main__":
    unittest.main()
