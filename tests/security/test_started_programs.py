"""Where programs are asked about (--approve-programs): each one is shown as it starts, none starts without a yes, and
what starts behaves as ever.

Attacks on the wall itself are in attacks.py.
"""
from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import textwrap
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import test_programs  # noqa: E402
import test_questions  # noqa: E402
from harness import Outcome, Place, ability, hand_over  # noqa: E402

ASKED = ["--approve-programs"]
WAYS = {"zmq": ["--kernel", "zmq"], **{f"fork, {start}": ["--kernel", "fork", "--kernel-options", json.dumps({"start": start})]
                                      for start in ("cold", "forked")}}
ALLOW = [*ASKED, "--approve", "allow"]

EVERYDAY = r"""
import asyncio, fcntl, multiprocessing, os, pty, signal, subprocess, sys, tempfile, threading, time
import math
shell = get_ipython()
def told(name, action):
    try: print(name, action(), flush=True)
    except BaseException as error: print(name, type(error).__name__, error, flush=True)
told("run", lambda: subprocess.run(["echo", "hi"], capture_output=True, text=True).stdout)
told("code", lambda: subprocess.run("exit 7", shell=True).returncode)
told("missing", lambda: subprocess.run(["/nonexistent"]))
told("no program", lambda: subprocess.run(["/etc/passwd"]))
told("streams", lambda: subprocess.run("cat; pwd; echo $A", shell=True, input="in ", cwd="/usr", env={"A": "b"}, text=True, capture_output=True).stdout.split())
told("own directory", lambda: subprocess.run(["pwd", "-P"], capture_output=True, text=True).stdout.strip() == os.getcwd())
told("umask", lambda: subprocess.run("umask", shell=True, umask=0o77, capture_output=True, text=True).stdout.strip())
def ended(number):
    process = subprocess.Popen(["sleep", "100"])
    process.send_signal(number)
    return process.wait()
told("signals", lambda: [ended(number) for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)])
told("segfault", lambda: subprocess.run(["sh", "-c", "kill -SEGV $$"]).returncode)
def times_out():
    try: subprocess.run(["sleep", "9"], timeout=.3)
    except subprocess.TimeoutExpired: return "timed out"
told("timeout", times_out)
def group():
    process = subprocess.Popen("trap 'echo ended; exit 3' TERM; sleep 100 & wait", shell=True, start_new_session=True, stdout=subprocess.PIPE, text=True)
    time.sleep(.3)
    os.killpg(process.pid, signal.SIGTERM)
    return process.wait(), process.stdout.read().strip()
told("group", group)
def passed():
    reading, writing = os.pipe()
    os.write(writing, b"through"); os.close(writing)
    return subprocess.run(["cat", f"/proc/self/fd/{reading}"], pass_fds=[reading], capture_output=True).stdout
told("pass_fds", passed)
told("preexec", lambda: subprocess.run("umask", shell=True, preexec_fn=lambda: os.umask(0o55), capture_output=True, text=True).stdout.strip())
told("system", lambda: os.waitstatus_to_exitcode(os.system("exit 3")))
told("popen", lambda: os.popen("echo po").read())
told("spawnlp", lambda: os.spawnlp(os.P_WAIT, "sh", "sh", "-c", "exit 4"))
told("spawn missing", lambda: os.spawnv(os.P_WAIT, "/nonexistent", ["x"]))
told("posix_spawn", lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)[1])
told("posix_spawnp", lambda: os.waitpid(os.posix_spawnp("true", ["true"], os.environ), 0)[1])
for number in [number for number in range(100) if not os.path.exists(f"/proc/self/fd/{number}")][:2]:
    told("posix_spawn, closed", lambda: os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, number, 1)]))
def forked():
    pid = os.fork()
    if pid == 0: os.execlp("sh", "sh", "-c", "exit 5")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
told("fork and exec", forked)
told("fexecve", lambda: os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(f"/proc/self/fd/{os.open('/bin/false', os.O_RDONLY)}", ["x"], {}), 0)[1]))
async def create():
    process = await asyncio.create_subprocess_exec("sh", "-c", "read x; echo got $x", stdin=-1, stdout=-1)
    out, _ = await process.communicate(b"y\n")
    other = await asyncio.create_subprocess_shell("exit 5")
    return out, await other.wait()
def in_thread(action):
    result = []
    thread = threading.Thread(target=lambda: result.append(action()))
    thread.start(); thread.join()
    return result[0]
told("asyncio", lambda: in_thread(lambda: asyncio.run(create())))
def terminal():
    pid, master = pty.fork()
    if pid == 0: os.execlp("sh", "sh", "-c", "trap 'echo INT; sleep .3; exit 6' INT; tty; stty size >/dev/null && echo ready; while :; do sleep .1; done")
    seen = b""
    while b"ready" not in seen: seen += os.read(master, 1000)
    os.write(master, b"\x03")
    try:
        while more := os.read(master, 1000): seen += more
    except OSError: pass
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), b"INT" in seen, b"/dev/pts" in seen
told("terminal, ^C", terminal)
try: import pexpect
except ImportError: pexpect = None
if pexpect:
    def expect():
        child = pexpect.spawn("sh", ["-c", "trap 'echo INT' INT; stty size; sleep 9; echo end"], dimensions=(30, 99))
        child.expect("99"); time.sleep(.2); child.sendintr(); child.expect("INT"); child.expect("end"); child.wait()
        return child.exitstatus
    told("pexpect", expect)
else: print("pexpect 0")
for kind in ("fork", "spawn", "forkserver"):
    def pool():
        with multiprocessing.get_context(kind).Pool(2) as pool: return pool.map(math.factorial, [3, 4])
    told(kind, pool)
def terminated():
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(100,))
    process.start(); process.terminate(); process.join(10)
    return process.exitcode
told("spawn, terminate", terminated)
import joblib
told("joblib", lambda: joblib.Parallel(n_jobs=2)(joblib.delayed(math.factorial)(number) for number in (3, 4)))
def nested():
    with multiprocessing.get_context("spawn").Pool(1) as pool: return pool.apply(os.system, ("exit 2",)) >> 8
told("spawn, then a program", nested)
told("!", lambda: (shell.system("echo bang; exit 6"), shell.user_ns.get("_exit_code"))[1])
told("x = !", lambda: list(shell.getoutput("echo 1 2")))
def cell():
    shell.run_cell_magic("bash", "--out o", "for i in 1 2; do echo $i; done\ncat <<X\nmore\nX\n")
    return shell.user_ns["o"].split()
told("%%bash", cell)
def long_cell():
    shell.run_cell_magic("bash", "--out o", "# " + "x" * 200_000 + "\necho long")
    return shell.user_ns["o"].strip()
told("long %%bash", long_cell)
def many():
    codes = []
    threads = [threading.Thread(target=lambda: codes.append(subprocess.run(["true"]).returncode)) for _ in range(30)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return codes == [0] * 30
told("many at once", many)
told("left", lambda: sorted(os.listdir("/proc/self/fd")) == sorted(os.listdir("/proc/self/fd")))
"""
EXPECTED = r"""
run hi

code 7
missing FileNotFoundError [Errno 2] No such file or directory: '/nonexistent'
no program PermissionError [Errno 13] Permission denied: '/etc/passwd'
streams ['in', '/usr', 'b']
own directory True
umask 0077
signals [-15, -9, -2]
segfault -11
timeout timed out
group (3, 'ended')
pass_fds b'through'
preexec 0055
system 3
popen po

spawnlp 4
spawn missing 127
posix_spawn 0
posix_spawnp 0
posix_spawn, closed OSError [Errno 9] Bad file descriptor: '/bin/true'
posix_spawn, closed OSError [Errno 9] Bad file descriptor: '/bin/true'
fork and exec 5
fexecve 1
asyncio (b'got y\n', 5)
terminal, ^C (6, True, True)
pexpect 0
fork [6, 24]
spawn [6, 24]
forkserver [6, 24]
spawn, terminate -15
joblib [6, 24]
spawn, then a program 2
bang
! 6
x = ! ['1 2']
%%bash ['1', '2', 'more']
long %%bash long
many at once True
left True
"""


def audited(place: Place) -> list[dict]:
    lines = (place.root / "audit.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] in ("call", "result")]


def calls(place: Place) -> list[dict]:
    return [record for record in audited(place) if record["event"] == "call"]


def run(place: Place, code: str, *options: str, env: dict[str, str] | None = None) -> Outcome:
    return place.run(code, [*ASKED, "--audit", str(place.root / "audit.jsonl"), *options], env=env)


def policy(place: Place, *rules: dict) -> list[str]:
    return ["--policy", str(place.file("policy.json", json.dumps({"rules": [*rules, {"then": "deny"}]})))]


class Asked(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        if lacks := ability("landlock"):
            raise unittest.SkipTest(lacks)


class Everyday(Asked):
    """What was allowed behaves as without a broker."""

    def test_everyday_code(self) -> None:
        for way, options in WAYS.items():
            with self.subTest(way), Place() as place:
                outcome = place.run(EVERYDAY, [*ALLOW, *options])
                self.maxDiff = None
                self.assertEqual(outcome.output.strip().splitlines(), EXPECTED.strip().splitlines(), outcome.errors)

    def test_everyday_code_is_the_same_without_a_broker(self) -> None:
        """So that what is expected above is what Python does, and not what we think."""
        with Place() as place:
            outcome = place.run(EVERYDAY, ["--kernel", "zmq"])
            self.maxDiff = None
            self.assertEqual(outcome.output.strip().splitlines(), EXPECTED.strip().splitlines(), outcome.errors)

    def test_an_interrupt_reaches_the_program(self) -> None:
        with Place() as place:
            outcome = place.run("import subprocess\nsubprocess.run(['sleep', '100'])", [*ALLOW, "--timeout", "3"])
            self.assertNotEqual(outcome.status, 0)
            self.assertLess(outcome.seconds, 60)
            self.assertEqual(place.harm(), "")


class Shown(Asked):
    """Whoever is asked sees what starts, and what was answered about is what starts."""

    def test_no_answer_no_start(self) -> None:
        with Place() as place:
            outcome = run(place, "import os, subprocess\nfor start in (lambda: subprocess.run(['touch', 'x']), lambda: os.system('touch x'),\n"
                          "              lambda: os.spawnlp(os.P_WAIT, 'touch', 'touch', 'x'), lambda: os.posix_spawn('/bin/touch', ['touch', 'x'], {})):\n"
                          "    try: print('STARTED', start())\n    except PermissionError as error: print(error.errno, error.strerror)", "--approve", "deny")
            self.assertEqual(outcome.status, 0, outcome.errors)
            for line in outcome.output.splitlines():
                self.assertRegex(line, "^1 approval request for ipybox.program rejected")
            self.assertEqual(len(outcome.output.splitlines()), 4)
            self.assertFalse((place.workspace / "x").exists())
            self.assertEqual([record["verdict"] for record in calls(place)], ["deny"] * 4)

    def test_what_is_recorded(self) -> None:
        with Place() as place:
            outcome = run(place, textwrap.dedent("""\
                import subprocess
                subprocess.run(["ls", "-l"], env={"PATH": "/bin", "LD_PRELOAD": "/x.so", "COLOR": "1"}, stdin=subprocess.DEVNULL, cwd="/usr", stdout=subprocess.DEVNULL)
                subprocess.run("exit 3", shell=True)
                try: subprocess.run(["/usr/bin/env", "true"], input=b"x")
                except OSError: pass
            """), "--approve", "allow")
            self.assertEqual(outcome.status, 0, outcome.errors)
            first, second, third = calls(place)
            self.assertEqual((first["origin"], first["server"], first["tool"], first["verdict"]), ("program", "ipybox", "program", "allow"))
            shown = first["arguments"]
            self.assertEqual(shown["path"], str(Path(shutil.which("ls")).resolve()))
            self.assertEqual(shown["argv"], ["ls", "-l"])
            self.assertEqual(shown["cwd"], "/usr")
            self.assertEqual(shown["input"], "[nothing]")
            self.assertIn("LD_PRELOAD=/x.so", shown["environment"])
            self.assertIn("PATH=/bin", shown["environment"])
            self.assertEqual(shown["changed_variables"], ["COLOR"])
            self.assertIs(shown["writable"], False)
            self.assertEqual(second["arguments"]["argv"], ["/bin/sh", "-c", "exit 3"])
            self.assertEqual(second["arguments"]["environment"], [])
            self.assertLessEqual(set(second["arguments"]["changed_variables"]), {"MPLBACKEND"})  # ipykernel's own
            self.assertEqual(third["arguments"]["input"], "[whatever the code writes later]")
            results = [record["outcome"] for record in audited(place) if record["event"] == "result"]
            self.assertEqual(results, ["ok"] * 3)

    def test_scripts_and_cells_are_shown_whole(self) -> None:
        with Place() as place:
            outcome = run(place, textwrap.dedent("""\
                import os, subprocess
                open("s", "w").write("#!/bin/sh -u\\necho $0 $1\\n"); os.chmod("s", 0o755)
                print(subprocess.run(["./s", "x"], capture_output=True, text=True).stdout)
                get_ipython().run_cell_magic("bash", "", "echo from a cell")
            """), "--approve", "allow")
            self.assertEqual(outcome.status, 0, outcome.errors)
            script, cell = [record["arguments"] for record in calls(place)]
            self.assertNotIn("path", script)
            self.assertEqual(script["writable_path"], str(place.workspace / "s"))
            self.assertEqual(script["script"], "#!/bin/sh -u\necho $0 $1\n")
            self.assertEqual(len(script["sha256"]), 64)
            self.assertEqual(script["argv"][1:], ["-u", "/proc/self/fd/10", "x"])
            self.assertEqual(cell["input_script"], "echo from a cell\n")
            self.assertIn("from a cell", outcome.output)

    def test_what_is_changed_while_asked_is_not_what_starts(self) -> None:
        """The program is asked about for as long as it takes to rename and rewrite it, and to rewrite its argv."""
        with Place() as place:
            slow = place.file("slow.py", "")
            code = textwrap.dedent("""\
                import os, shutil, subprocess, threading, time
                shutil.copy("/bin/echo", "tool"); os.chmod("tool", 0o755)
                open("s", "w").write("#!/bin/sh\\nsleep 1\\necho first\\n"); os.chmod("s", 0o755)
                os.mkdir("d"); shutil.copy("/bin/echo", "d/tool")
                processes = [subprocess.Popen([os.path.abspath(name), "approved"], stdout=subprocess.PIPE, text=True) for name in ("tool", "s", "d/tool")]
                open("s", "w").write("#!/bin/sh\\necho REPLACED\\n")
                os.rename("d", "e"); os.mkdir("d"); shutil.copy("/bin/false", "d/tool")
                os.remove("tool"); shutil.copy("/bin/false", "tool")
                print([process.communicate()[0].strip() for process in processes])
            """)
            outcome = run(place, code, "--approve", "allow")
            self.assertTrue(slow.exists())
            self.assertEqual(outcome.output.strip(), "['approved', 'first', 'approved']", outcome.errors)

    def test_memory_that_is_rewritten_while_asked_changes_nothing(self) -> None:
        """A thread looks for what was asked about all over the process, its child's stack included, and writes something else there."""
        with Place() as place:
            slow = place.file("slow", "#!/bin/sh\ncat > /dev/null\nsleep 2\necho '{\"decision\": \"allow\"}'\n")
            slow.chmod(0o755)
            policy_file = place.file("policy.json", json.dumps({"command": [str(slow)]}))
            code = textwrap.dedent("""\
                import mmap, os, subprocess, threading, time
                mark = os.urandom(6).hex()
                backwards = mark[::-1]
                said = {}
                def start(name, **more):
                    said[name] = subprocess.run(["echo", "approved-" + backwards[::-1]], capture_output=True, text=True,
                                                env={"PATH": "/bin", "LC_ALL": "approved-" + backwards[::-1]}, **more).stdout.strip()
                del mark
                threads = [threading.Thread(target=start, args=("quick",)), threading.Thread(target=start, args=("slow",), kwargs={"preexec_fn": lambda: None})]
                for thread in threads: thread.start()
                time.sleep(1)
                changed = 0
                needle = b"approved-" + backwards[::-1].encode()
                bad = b"REWRITTEN" + needle[9:]
                with open("/proc/self/mem", "r+b", buffering=0) as memory:
                    for line in open("/proc/self/maps"):
                        where, rights, *_ = line.split()
                        if not rights.startswith("rw"): continue
                        begin, end = (int(number, 16) for number in where.split("-"))
                        try:
                            memory.seek(begin); block = memory.read(end - begin)
                        except (OSError, OverflowError, ValueError): continue
                        at = block.find(needle)
                        while at >= 0:
                            memory.seek(begin + at); memory.write(bad[:9]); changed += 1
                            at = block.find(needle, at + 1)
                for thread in threads: thread.join()
                print(changed > 0, [text == "approved-" + backwards[::-1] for text in said.values()])
            """)
            outcome = run(place, code, "--policy", str(policy_file))
            self.assertEqual(outcome.output.strip(), "True [True, True]", outcome.errors)
            for record in calls(place):
                self.assertRegex(record["arguments"]["argv"][1], "^approved-[0-9a-f]{12}$")
                self.assertEqual(record["verdict"], "allow")

    def test_a_sealed_input_is_read_from_its_beginning(self) -> None:
        """Its place is shared with the code: moved, another part would run."""
        with Place() as place:
            code = textwrap.dedent("""\
                import fcntl, os, subprocess
                file = os.memfd_create("x", os.MFD_ALLOW_SEALING)
                os.write(file, b"echo whole; exit\\necho a part\\n"); fcntl.fcntl(file, 1033, 15)
                os.lseek(file, len("echo whole; exit\\n"), 0)
                print(subprocess.run(["sh"], stdin=file, capture_output=True, text=True).stdout)
            """)
            outcome = run(place, code, "--approve", "allow")
            self.assertEqual(outcome.output.strip(), "whole", outcome.errors)
            self.assertEqual(calls(place)[0]["arguments"]["input_script"], "echo whole; exit\necho a part\n")

    def test_the_host_keeps_no_memory_of_an_input(self) -> None:
        """Of holes that are mapped the pages are there, and of the host's memory, as long as code keeps the file."""
        with Place() as place:
            code = textwrap.dedent("""\
                import fcntl, os, subprocess
                for size in (15, 17):
                    file = os.memfd_create("x", os.MFD_ALLOW_SEALING)
                    os.ftruncate(file, size << 20); fcntl.fcntl(file, 1033, 15)
                    try: print(subprocess.run(["true"], stdin=file).returncode, os.fstat(file).st_blocks)
                    except OSError as error: print(error.strerror, os.fstat(file).st_blocks)
            """)
            outcome = run(place, code, "--approve", "allow")
            self.assertEqual(outcome.output, "0 0\nthe program's input is larger than 16 MiB: have it read a file 0\n", outcome.errors)
            self.assertEqual(calls(place)[0]["arguments"]["input_script"],
                             f"[{15 << 20} bytes, sha256 {hashlib.sha256(bytes(15 << 20)).hexdigest()}, too long to be shown]")

    def test_what_nobody_could_read_is_refused(self) -> None:
        with Place() as place:
            outcome = run(place, "import subprocess\ntry: subprocess.run([b'echo', b'\\xff'])\nexcept PermissionError as error: print(error)",
                          "--approve", "allow")
            self.assertIn("is no UTF-8", outcome.output, outcome.errors)

    def test_a_script_whose_interpreter_code_can_write(self) -> None:
        with Place() as place:
            code = textwrap.dedent("""\
                import os, shutil, subprocess
                shutil.copy("/bin/sh", "sh"); os.chmod("sh", 0o755)
                open("s", "w").write(f"#!{os.path.abspath('sh')}\\necho ran\\n"); os.chmod("s", 0o755)
                try: subprocess.run(["./s"])
                except PermissionError as error: print(error)
            """)
            self.assertIn("interpreter is a script itself, or lies where code can write", run(place, code, "--approve", "allow").output)

    def test_between_executions_nothing_starts(self) -> None:
        with Place() as place:
            code = ("import subprocess, threading, time, os\ndef late():\n    time.sleep(1)\n"
                    "    try: subprocess.run(['touch', 'late'])\n    except PermissionError as error: open('why', 'w').write(str(error))\n"
                    "    else: open('why', 'w').write('STARTED')\nthreading.Thread(target=late).start()\n")
            call = test_programs.Starts.client(self, place, "--sandbox", "bubblewrap", *ALLOW)
            call("execute_ipython_cell", code=code)
            time.sleep(2)
            said = call("execute_ipython_cell", code="print(open('why').read(), os.path.exists('late'))")
            self.assertIn("no code is being executed: programs can be started while a cell runs", said)
            self.assertIn("False", said)


class AtATerminal(Asked):
    """A person is asked."""

    def converse(self, code: str, *script: tuple[str, float, str]) -> tuple[str, Place]:
        # Not at the module's level, where its own tests would run again.
        talk = type("Talk", (test_questions.Questions, unittest.TestCase), {})("converse")
        talk.kernel = "zmq"
        talk.setUp()
        self.addCleanup(talk.doCleanups)
        audit = str(talk.place.root / "audit.jsonl")
        return talk.converse(code, *script, flags=(*ASKED, "--audit", audit)), talk.place

    def test_what_is_shown_and_a_deliberate_yes(self) -> None:
        seen, place = self.converse("get_ipython().system('echo from the $((1 + 1))nd')", (test_questions.PROMPT, 0.2, "y\n"))
        self.assertRegex(seen, r"Question 1: ipybox.program\n  'path': '/[a-z/]*sh'\n  'argv': \['/[a-z/]*sh', '-c', 'echo from the \$\(\(1 \+ 1\)\)nd'\]")
        self.assertIn("from the 2nd", seen)

    def test_a_question_ends_with_who_asks(self) -> None:
        """Killed while somebody is asked, it does not start later; several are asked about, each for itself."""
        seen, place = self.converse(textwrap.dedent("""\
            import os, signal, subprocess
            def ask(name): print(f"ended {subprocess.run(['touch', name]).returncode}\\n", end="", flush=True)  # in one piece
            threads = [threading.Thread(target=ask, args=(name,)) for name in ("x", "y")]
            for thread in threads: thread.start()
            time.sleep(2)
            for number in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
                if f"PPid:\\t{os.getpid()}\\n" in open(f"/proc/{number}/status").read(): os.kill(number, signal.SIGTERM)
            for thread in threads: thread.join()
        """))
        self.assertEqual(seen.count("ended -15"), 2, seen)
        self.assertFalse({"x", "y"} & set(os.listdir(place.workspace)))
        self.assertEqual([(record["verdict"], record["reason"]) for record in calls(place)], [("deny", "withdrawn before it was decided")] * 2)

    def test_a_question_ends_with_the_execution(self) -> None:
        seen, place = self.converse(textwrap.dedent("""\
            import subprocess
            def ask():
                try: subprocess.run(["touch", "x"])
                except PermissionError as error: print("said", error.strerror, flush=True)
            threading.Thread(target=ask).start()
            time.sleep(2)
        """))
        self.assertNotIn("x", os.listdir(place.workspace))
        self.assertEqual([record["verdict"] for record in calls(place)], ["deny"])


class Rules(Asked):
    def test_by_path_and_arguments(self) -> None:
        true = str(Path(shutil.which("true")).resolve())
        with Place() as place:
            rule = {"when": {"origin": "program", "arguments": {"/path": {"equals": true}, "/argv": {"equals": ["true"]}}}, "then": "allow"}
            code = textwrap.dedent("""\
                import os, shutil, subprocess
                shutil.copy("/bin/true", "true"); os.chmod("true", 0o755)
                for argv, path in ((["true"], None), (["true", "x"], None), (["true"], os.path.abspath("true")), (["true"], "/bin/false")):
                    try: print(subprocess.run(argv, executable=path).returncode)
                    except PermissionError as error: print("refused")
            """)
            outcome = run(place, code, *policy(place, rule))
            self.assertEqual(outcome.output.split(), ["0", "refused", "refused", "refused"], outcome.errors)


class Walls(Asked):
    """What code could do to the broker and to programs that were allowed."""

    def test_broker_and_programs_are_out_of_reach(self) -> None:
        with Place() as place:
            code = textwrap.dedent("""\
                import ctypes, os, signal, subprocess, time
                program = subprocess.Popen(["sleep", "100"])
                libc = ctypes.CDLL(None, use_errno=True)
                seen = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
                names = {number: open(f"/proc/{number}/comm").read().strip() for number in seen}
                print("sleep" in names.values())
                for number in seen:
                    if number in (os.getpid(), program.pid): continue
                    for file in ("mem", "environ", "maps"):
                        try: open(f"/proc/{number}/{file}", "r+b" if file == "mem" else "rb").close(); print("OPEN", names[number], file)
                        except OSError: pass
                    try: os.listdir(f"/proc/{number}/fd"); print("OPEN", names[number], "fd")
                    except OSError: pass
                    if libc.ptrace(16, number, 0, 0) == 0: print("TRACED", names[number])
                program.kill(); program.wait()
                print(program.returncode)
                # Both namespaces, as a program sees them.
                print(subprocess.run(["sh", "-c", "for p in /proc/[0-9]*; do (exec 3<>$p/mem) 2>/dev/null && tr '\\\\0' ' ' < $p/cmdline; done; echo; "
                                      "grep -c . /proc/self/status"], capture_output=True, text=True).stdout.split("\\n")[0])
            """)
            outcome = place.run(code, ALLOW)
            lines = outcome.output.splitlines()
            self.assertEqual(lines[0], "False", outcome.output + outcome.errors)
            self.assertEqual(lines[1], "-9")
            # A program opens its own memory and that of its like, but not of the kernel, the broker or who made the sandbox.
            self.assertNotIn("python", lines[2])
            self.assertNotIn("launcher", lines[2])
            self.assertNotIn("bwrap", lines[2])

    def test_a_program_has_the_sandbox_s_rights_and_no_more(self) -> None:
        """The launcher could mount for a moment; what it starts cannot."""
        with Place() as place:
            code = ("import subprocess\nprint(subprocess.run(['grep', '-E', '^(Cap|NoNewPrivs|Seccomp:)', '/proc/self/status'], capture_output=True, text=True).stdout)\n"
                    "for words in (['unshare', '-m', 'true'], ['unshare', '-r', 'true'], ['mount', '-t', 'tmpfs', 'x', '/tmp'], ['touch', '/usr/x']):\n"
                    "    print(subprocess.run(words, stderr=subprocess.DEVNULL).returncode != 0)\n"
                    f"print(subprocess.run(['cat', {str(place.secret)!r}], stderr=subprocess.DEVNULL).returncode != 0)")
            outcome = place.run(code, ALLOW)
            *status, _, first, second, third, fourth, fifth = outcome.output.splitlines()
            for line in status[:5]:
                self.assertRegex(line, "^Cap[A-Za-z]*:\t0+$", outcome.errors)
            self.assertEqual(status[5:], ["NoNewPrivs:\t1", "Seccomp:\t2"])
            self.assertEqual([first, second, third, fourth, fifth], ["True"] * 5)
            self.assertEqual(place.harm(), "")

    def test_many_questions_at_once(self) -> None:
        """They cost the host no more descriptors than it has."""
        with Place() as place:
            code = textwrap.dedent("""\
                import subprocess, threading
                said = []
                def start():
                    try: said.append(subprocess.run(["true"]).returncode)
                    except OSError as error: said.append(error.errno)
                threads = [threading.Thread(target=start) for _ in range(200)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
                print(set(said) <= {0, 1, 11}, len(said), subprocess.run(["true"]).returncode)
            """)
            self.assertEqual(place.run(code, ALLOW).output, "True 200 0\n")

    def test_a_program_ends_neither_the_broker_nor_the_session(self) -> None:
        """It sees programs and their parents, and the first process of where they are; no signal reaches anybody else."""
        for way, options in WAYS.items():
            with self.subTest(way), Place() as place:
                code = textwrap.dedent("""\
                    import os, subprocess
                    script = "for p in /proc/[0-9]*; do read name < $p/comm; echo ${p#/proc/}:$name; done; "
                    script += "for s in HUP INT TERM STOP KILL; do kill -$s 1; done 2>/dev/null"
                    seen = subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout.split()
                    print(sorted({line.partition(":")[2] for line in seen} - {"sh", "dash", "bash"}), seen[0])
                    # All that it can reach, its own parent and every group included.
                    for more in ("kill -9 $PPID; sleep 9", "kill -9 -1; sleep 9", "setsid sh -c 'kill -9 -1'", "for p in $(seq 1 300); do kill -9 $p -$p; done"):
                        print(subprocess.run(["sh", "-c", "sleep .3; " + more], stderr=subprocess.DEVNULL).returncode)
                    print(subprocess.run(["echo", "still there"], capture_output=True, text=True).stdout.strip(), os.getpid() > 0)
                """)
                outcome = place.run(code, [*ALLOW, *options])
                self.assertEqual(outcome.status, 0, outcome.errors)
                first, *ended, last = outcome.output.splitlines()
                self.assertEqual(first, "['ipybox-programs'] 1:ipybox-programs")
                self.assertEqual(len(ended), 4)
                self.assertEqual(ended[:2], ["-9", "-9"])
                self.assertEqual(last, "still there True")
                self.assertEqual(place.harm(), "")

    def test_what_programs_leave_behind_is_collected(self) -> None:
        """Else those that have ended would fill the session's number of processes."""
        for way, options in WAYS.items():
            with self.subTest(way), Place() as place:
                code = textwrap.dedent("""\
                    import subprocess, time
                    for _ in range(20):
                        subprocess.run(["sh", "-c", "sleep .2 & exit 0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    until = time.monotonic() + 20
                    while (left := subprocess.run(["sh", "-c", "grep -hE '^State:.*zombie|^Name:.*sleep' /proc/[0-9]*/status"],
                                                  capture_output=True, text=True).stdout.split()) and time.monotonic() < until: time.sleep(.1)
                    print(left)
                """)
                outcome = place.run(code, [*ALLOW, *options])
                self.assertEqual(outcome.output.strip(), "[]", outcome.errors)

    def test_a_door_that_is_closed_starts_nothing(self) -> None:
        with Place() as place:
            code = textwrap.dedent("""\
                import subprocess
                import ipybox_kernel.starting as starting
                starting._doors[0].shutdown(2)
                for more in ({}, {"preexec_fn": lambda: None}):
                    try: print("STARTED", subprocess.run(["touch", "x"], **more))
                    except PermissionError as error: print(error.strerror)
            """)
            outcome = place.run(code, ALLOW)
            self.assertEqual(outcome.output.splitlines(), ["nobody is there any more to start programs"] * 2, outcome.errors)
            self.assertFalse((place.workspace / "x").exists())

    def test_hostile_requests(self) -> None:
        """Over the door itself, without Python's ways."""
        with Place() as place:
            hand_over(place.file("workspace/f", "text"))
            code = textwrap.dedent("""\
                import fcntl, os, random, socket, struct, subprocess
                import ipybox_kernel.starting as starting
                random.seed(1)
                def sealed(data, seals=15):
                    file = os.memfd_create("r", os.MFD_ALLOW_SEALING)
                    os.write(file, data); fcntl.fcntl(file, 1033, seals)
                    return file
                def send(*files, door=0, byte=b"r"):
                    ours, theirs = socket.socketpair()
                    ours.settimeout(10)
                    socket.send_fds(starting._doors[door], [b"p"], [theirs.fileno()]); theirs.close()
                    if files: socket.send_fds(ours, [byte], files)
                    else: ours.send(b"r")
                    got = ours.recv(2000)
                    return b"S" if got.startswith(b"S") else got[:1] + got[5:25]
                program, here = os.open("/bin/true", os.O_RDONLY), os.open(".", os.O_PATH)
                good = starting._request([b"true"], [], [], False, 0, 0)
                print(send(sealed(good), here, program), send(sealed(good, 0), here, program), send(sealed(good), here), send())
                print(send(sealed(good), here, os.open("f", os.O_RDONLY)), send(sealed(good), here, here), send(sealed(good), program, program)[:1])
                print(send(sealed(good), here, program, door=1))
                answers = set()
                for _ in range(300):
                    bad = bytearray(good)
                    for _ in range(random.randint(1, 6)): bad[random.randrange(len(bad))] = random.randrange(256)
                    answers.add(send(sealed(bytes(bad[:random.randint(0, len(bad))])), here, program)[:1])
                print(answers <= {b"S", b"E", b""})
                starting._doors[0].send(b"no descriptor")
                print(subprocess.run(["true"]).returncode)
                # More than it wants, and in all more than it may have open.
                for _ in range(5000):
                    ours, theirs = socket.socketpair()
                    socket.send_fds(starting._doors[0], [b"p"], [theirs.fileno()] * 2)
                    ours.close(); theirs.close()
                print(subprocess.run(["true"]).returncode)
            """)
            outcome = place.run(code, ALLOW)
            lines = outcome.output.splitlines()
            self.assertEqual(lines[0], "b'S' b'Ethe request is not s' b'Edescriptors of the p' b'Edescriptors of the p'", outcome.output + outcome.errors)
            self.assertEqual(lines[1:], ["b'E' b'E' b'E'", "b'Eonly the kernel\\'s ow'".replace("\\'", "'").replace("b'E", 'b"E').replace("ow'", 'ow"'),
                                         "True", "0", "0"], outcome.output)

    def test_workers_are_behind_the_wall(self) -> None:
        """Python without a question, but none that could start a program itself."""
        with Place() as place:
            code = textwrap.dedent("""\
                import subprocess, sys
                code = ("from multiprocessing.util import debug; import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); "
                        "print(libc.execv(b'/bin/true', (ctypes.c_char_p * 2)(b'true', None)), ctypes.get_errno())")
                print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
            """)
            outcome = run(place, code, "--approve", "deny")
            self.assertEqual(outcome.output.strip(), "-1 1", outcome.errors)
            self.assertEqual(calls(place), [])


class Starts(Asked):
    def test_who_cannot_put_it_up_refuses(self) -> None:
        for sandbox, options, words in (
                ("none", [], "cannot start programs for code outside of its reach"),
                ("bubblewrap", ["--kernel", "gateway"], 'kernels of "gateway" are programs that their server starts'),
                ("bubblewrap", ["--no-exec"], "leave one of the two out"),
                ("bubblewrap", ["--approve-shell-cmds"], "leave one of the two out")):
            with self.subTest(sandbox, options=options), Place() as place:
                outcome = place.run("print('ran')", [*ASKED, *options], sandbox)
                self.assertEqual((outcome.status, outcome.output), (2, ""))
                self.assertIn(words, outcome.errors)

    def test_without_the_filter_the_host_notices(self) -> None:
        if lacks := ability("bubblewrap_weakened"):
            self.skipTest(lacks)
        with Place() as place:
            outcome = place.run("print('ran')", ALLOW, "bubblewrap_weakened", env={"IPYBOX_TEST_WITHOUT": "programs"})
            self.assertEqual((outcome.status, outcome.output), (2, ""))
            self.assertIn("Linux does not tell that it is kept from starting programs", outcome.errors)


if __name__ == "__main__":
    unittest.main()
