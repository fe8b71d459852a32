"""Every attack of attacks.py against the real program; and against a weakened one, where it must get through."""
from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attacks import ATTACKS, PROFILES  # noqa: E402
from harness import Attack, Execution, Place, ability, environment, hand_over, kernel_flags  # noqa: E402

GROUPS: dict[str, list[Attack]] = defaultdict(list)
for _attack in ATTACKS:
    GROUPS[_attack.name if _attack.alone else _attack.profile].append(_attack)


def require(test: unittest.TestCase, *needs: str) -> None:
    for need in needs:
        if missing := ability(need):
            test.skipTest(missing)


def able(attacks: list[Attack]) -> list[Attack]:
    return [a for a in attacks if not any(ability(need) for need in a.needs)]


def tried_in(group: str, sandbox: str) -> list[Attack]:
    return [attack for attack in GROUPS[group] if sandbox in attack.sandboxes]


@functools.cache
def execution(group: str, where: str) -> Execution:
    """The one run of the attacks that share a kernel."""
    chosen = able(tried_in(group, where))
    options = PROFILES[chosen[0].profile]
    if where == "gateway":
        return Execution(chosen, lambda place: [*options(place), "--kernel", "gateway"], "bubblewrap")
    if kernel := chosen[0].kernel:
        return Execution(chosen, lambda place: [*options(place), *kernel_flags(kernel, where)], where)
    return Execution(chosen, options, where)


class Attacks(unittest.TestCase):
    """Each fails, for the reason that is given, and leaves the host as it was."""


class Weakened(unittest.TestCase):
    """Without the layer that stops it, the attack gets through: so the tests above mean something."""

    def execute(self, group: list[Attack], layers: str) -> Execution:
        return Execution(group, PROFILES[group[0].profile], "bubblewrap_weakened", {"IPYBOX_TEST_WITHOUT": layers})

    def test_every_layer_has_an_attack_that_needs_it(self) -> None:
        layers = {layer for attack in ATTACKS for layer in attack.escapes_without.split(",") if layer}
        self.assertEqual({"seccomp", "calls", "landlock", "limits", "view", "network", "protect", "hidden", "pid", "programs", "last-program"},
                         layers)

    def test_nothing_gets_through_while_all_layers_are_there(self) -> None:
        require(self, "bubblewrap_weakened")
        group = [a for a in GROUPS["default"] if not a.needs]
        run = self.execute(group, "none")
        self.assertEqual({name: why for name, why in run.failures.items() if why}, {})


def _add_attack(attack: Attack, group: str, sandbox: str) -> None:
    def test(self: unittest.TestCase) -> None:
        require(self, *attack.needs, *WHERE[sandbox])
        run = execution(group, sandbox)
        self.assertEqual(run.failures[attack.name], "")
        if attack.alone:
            self.assertEqual(run.harm, "")
    test.__doc__ = f"{attack.name.replace('_', ' ')} (stopped by: {attack.layer})"
    setattr(Attacks, f"test_{attack.name}_in_{sandbox}", test)


def _add_harm(group: str, sandbox: str) -> None:
    def test(self: unittest.TestCase) -> None:
        require(self, *WHERE[sandbox])
        if not able(GROUPS[group]):
            self.skipTest(ability(GROUPS[group][0].needs[0]))
        run = execution(group, sandbox)
        self.assertEqual(run.harm, "")
        self.assertEqual(run.outcome.status, 0, run.outcome.errors)
    test.__doc__ = f"the host after the attacks with the options {group!r}"
    setattr(Attacks, f"test_unharmed_{group.replace('-', '_')}_in_{sandbox}", test)


def _add_weakened(layers: str, profile: str, group: list[Attack], escapes: bool) -> None:
    def test(self: Weakened) -> None:
        require(self, "bubblewrap_weakened")
        chosen = able(group)
        if not chosen:
            self.skipTest(", ".join(ability(n) for a in group for n in a.needs))
        run = self.execute(chosen, layers)
        if escapes:
            self.assertEqual([a.name for a in chosen if not run.escaped(a)], [], run.printed)
        else:
            self.assertEqual({a.name: run.failures[a.name] for a in chosen if run.failures[a.name]}, {})
    word = "escape" if escapes else "hold"
    setattr(Weakened, f"test_{word}_without_{layers}_{profile}".replace("-", "_").replace(",", "_and_"), test)


SANDBOXES = {"bubblewrap": (), "srt": ("srt",)}  # and what ability() must know of
WHERE = {**SANDBOXES, "gateway": ()}
for _group in GROUPS:
    for _sandbox in WHERE:
        for _attack in (_attacks := tried_in(_group, _sandbox)):
            _add_attack(_attack, _group, _sandbox)
        if _attacks and not _attacks[0].alone:
            _add_harm(_group, _sandbox)
for _field in ("escapes_without", "holds_without"):
    _weak: dict[tuple[str, str, str], list[Attack]] = defaultdict(list)
    for _attack in ATTACKS:
        if _layers := getattr(_attack, _field):
            _weak[_layers, _attack.profile, _attack.name if _attack.alone else ""].append(_attack)
    for (_layers, _profile, _name), _attacks in _weak.items():
        _add_weakened(_layers, _name or _profile, _attacks, _field == "escapes_without")


class AllowedCalls(unittest.TestCase):
    """What a person adds to the list of system calls, and nothing else."""

    CODE = """
for name, arguments in (("shmget", (0, 4096, 0o1600)), ("semget", (0, 1, 0o1600))):
    try: print(name, call(name, *arguments) >= 0)
    except OSError as error: print(name, errno.errorcode[error.errno])
"""

    def options(self, *calls: str) -> list[str]:
        return ["--sandbox-options", json.dumps({"allow_calls": calls})]

    def test_only_what_is_named_is_added(self) -> None:
        for sandbox in SANDBOXES:
            require(self, *SANDBOXES[sandbox])
            with self.subTest(sandbox), Place() as place:
                outcome = place.run(place.prepared(self.CODE), self.options("shmget"), sandbox)
                self.assertEqual(outcome.output, "shmget True\nsemget EPERM\n", outcome.errors)

    def test_an_unknown_name_is_an_error(self) -> None:
        with Place() as place:
            outcome = place.run("print('ran')", self.options("shmgett"))
            self.assertEqual((outcome.status, outcome.output), (2, ""))
            self.assertIn('allow_calls: "shmgett" is no system call of Linux', outcome.errors)


class NextStart(unittest.TestCase):
    """What the code leaves for the sandbox of the next start."""

    def test_a_link_in_the_place_of_a_writable_path_is_not_followed(self) -> None:
        with Place() as place:
            settings = ["--sandbox-config", place.settings({"filesystem": {"allowWrite": [".", "output"]}})]
            target = place.directory("target")
            outcome = place.run("import os\nos.symlink('../target', 'output')\nprint('planted')", settings)
            self.assertEqual(outcome.output, "planted\n", outcome.errors)
            outcome = place.run("open('output/planted', 'w')", settings)
            self.assertEqual(outcome.status, 2, outcome)
            self.assertRegex(outcome.errors, "output leads over the link .*/workspace/output, which code in a sandbox may have put there")
            self.assertEqual(list(target.iterdir()), [])

    def test_what_was_denied_stays_where_it_is(self) -> None:
        with Place() as place:
            place.file("workspace/some/deep/secret", place.token)
            settings = ["--sandbox-config", place.settings({"filesystem": {"allowWrite": ["."], "denyRead": ["some/deep/secret"]}})]
            outcome = place.run("import os\nfor name in ('some', 'some/deep'):\n    try: os.rename(name, 'moved'); print('moved')\n"
                                "    except OSError as e: print(e.strerror)", settings)
            self.assertRegex(outcome.output, "^((Device or resource busy|Invalid cross-device link)\n){2}$", outcome.errors)


    HOSTILE = """
import os
for name in ("pipe", "zero", "endless", "link"):
    os.makedirs(f"{name}/.git/objects"), os.makedirs(f"{name}/.git/refs")
    open(f"{name}/.git/HEAD", "w").write("ref: refs/heads/main")
os.mkfifo("pipe/.git/config")
os.symlink("/dev/zero", "zero/.git/config")
open("endless/.git/config", "w").truncate(1 << 40)
os.symlink("../pipe", "link/.envrc")
os.mkfifo("link/lefthook.yml")
print("planted")
"""

    def test_hostile_settings_neither_hold_up_the_start_nor_are_left_open(self) -> None:
        for sandbox, needs in SANDBOXES.items():
            with self.subTest(sandbox), Place() as place:
                require(self, *needs)
                outcome = place.run(self.HOSTILE, sandbox=sandbox)
                self.assertEqual(outcome.output, "planted\n", outcome.errors)
                outcome = place.run("for name in ('pipe/.git/config', 'endless/.git/config', 'link/lefthook.yml', 'pipe/.git/hooks'):\n"
                                    "    try: __import__('os').rename(name, 'moved'); print('moved', name)\n"
                                    "    except OSError: print('held')\n", sandbox=sandbox, limit=60)
                self.assertEqual((outcome.status, outcome.output), (0, "held\n" * 4), outcome.errors)
                self.assertLess(outcome.peak_memory, 256 << 20)
                for words in ("pipe/.git/config: a configuration of git was not read for further files: it is no regular file",
                              "it has more than 1 MiB", "is a symbolic link, or reached over one"):
                    self.assertIn(words, outcome.errors)


class Told(unittest.TestCase):
    """What is not held is told: in the log, in the audit log and, by `serve`, in the result."""

    CODE = """
import os
os.makedirs("sub/.git/hooks")
for name in ("package.json", "sub/.envrc", "sub/.git/config", "AGENTS.md", ".exrc", "ordinary"):
    try:
        open(name, "w").write("x")
    except OSError as error:
        print(name, error.strerror)
"""

    def test_what_comes_and_changes_is_told_once_and_recorded(self) -> None:
        for sandbox, needs in SANDBOXES.items():
            with self.subTest(sandbox), Place() as place:
                require(self, *needs)
                place.file("workspace/AGENTS.md", "Be good.")
                log = place.outside / "audit.jsonl"
                outcome = place.run(self.CODE, ["--audit", str(log)], sandbox)
                self.assertEqual((outcome.status, outcome.output), (0, ""), outcome.errors)
                for line in ("package.json is new: npm", "sub/.envrc is new: direnv", "AGENTS.md was changed: instructions", ".exrc is new: Vim"):
                    self.assertEqual(outcome.errors.count("sandbox: files: " + line), 1, outcome.errors)
                self.assertRegex(outcome.errors, "sandbox: files: sub/.git/[a-z]+ is new: ")
                self.assertNotIn("ordinary", outcome.errors)
                records = [json.loads(line) for line in log.read_text().splitlines()]
                changes = {(r["path"], r["outcome"], r["runs"]) for r in records if r["event"] == "file_changed"}
                self.assertLessEqual({("package.json", "new", "on a person's act"), ("AGENTS.md", "changed", "on a person's act"),
                                      ("sub/.envrc", "new", "unasked")}, changes)

    def test_strict_protection_holds_them(self) -> None:
        with Place() as place:
            place.file("workspace/AGENTS.md", "Be good.")
            outcome = place.run(self.CODE, ["--protect", "strict"])
            self.assertEqual(outcome.output, "package.json Read-only file system\nAGENTS.md Read-only file system\n", outcome.errors)
            self.assertEqual(place.leftovers(0, set()), set())

    def test_only_what_is_named_is_opened_and_that_is_said(self) -> None:
        code = "for name in ('.envrc', 'mise.toml'):\n    try: open(name, 'w').write('x'); print('wrote', name)\n    except OSError: print('held', name)\n"
        for sandbox, needs in SANDBOXES.items():
            with self.subTest(sandbox), Place() as place:
                require(self, *needs)
                log = place.outside / "audit.jsonl"
                self.assertEqual(place.run(code, sandbox=sandbox).output, "held .envrc\nheld mise.toml\n")
                outcome = place.run(code, ["--allow-write", ".envrc", "--audit", str(log)], sandbox)
                self.assertEqual(outcome.output, "wrote .envrc\nheld mise.toml\n", outcome.errors)
                self.assertIn("allow_write: the code may write .envrc, which is protected otherwise", outcome.errors)
                self.assertIn("sandbox: files: .envrc is new: direnv runs it", outcome.errors)
                opened = [r["paths"] for r in map(json.loads, log.read_text().splitlines()) if r["event"] == "files_opened"]
                self.assertEqual(opened, [[".envrc"]])

    def test_what_opens_too_much_or_nothing_is_refused_or_said(self) -> None:
        with Place() as place:
            for path, why in ((".", "is the whole workspace"), ("../x", "lies outside"), (".vscode/tasks.json", "lies in .vscode, which is protected as a whole")):
                outcome = place.run("1", ["--allow-write", path])
                self.assertEqual(outcome.status, 2, outcome)
                self.assertIn(f"allow_write {path}: {why}", outcome.errors)
            self.assertIn("allow_write data opens nothing", place.run("1", ["--allow-write", "data"]).errors)


class Proxy(unittest.TestCase):
    def test_it_is_the_list_that_refuses(self) -> None:
        """With the names on the list, the same attack gets as far as looking them up."""
        require(self, "proxy")
        attack = next(a for a in ATTACKS if a.name == "ask_for_a_host_that_is_not_allowed")
        with Place() as place:
            settings = place.settings({"network": {"allowedDomains": ["attacker.example"]}})
            printed, outcome = place.cells({attack.name: attack.code}, ["--sandbox-config", settings])
            self.assertRegex(printed[attack.name], r"^refused: HTTP/1.1 50[24] .*\nrefused: HTTP/1.1 50[24] ")
            self.assertRegex(printed[attack.name], r"\nrefused: HTTP/1.1 403 ")


class KilledHost(unittest.TestCase):
    """The program ends without a chance to clean up."""

    def start(self, place: Place, *options: str) -> subprocess.Popen:
        code = ("import os, subprocess, time\nsubprocess.Popen(['setsid', 'sh', '-c', \"trap '' TERM INT HUP; sleep 1000\"])\n"
                "print('started', flush=True)\ntime.sleep(1000)")
        process = subprocess.Popen(place.command(options), cwd=place.workspace, env=environment(), text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        process.stdin.write(code)
        process.stdin.close()
        self.addCleanup(process.stdout.close)
        self.assertEqual(process.stdout.readline(), "started\n")
        # It holds a handle on each directory of the session.
        handles = (os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir())
        self.directories = {path for path in handles if re.fullmatch("/.*/ipybox-[^/]{6}", path)}
        # That of the kernel went when it had answered.
        self.assertGreaterEqual(len(self.directories), 1)
        return process

    def test_leaves_no_process(self) -> None:
        with Place() as place:
            process = self.start(place)
            self.assertGreaterEqual(len(place.processes()), 3)
            process.kill()
            process.wait()
            deadline = time.monotonic() + 20
            while place.processes() and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertEqual(place.processes(), [])

    def test_terminated_it_leaves_nothing_at_all(self) -> None:
        with Place() as place:
            process = self.start(place)
            self.assertTrue(place.leftovers(process.pid, self.directories))
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            self.assertEqual(place.processes(), [])
            self.assertEqual(place.leftovers(process.pid, self.directories), set())

    def test_the_next_start_removes_what_is_left(self) -> None:
        with Place() as place:
            options = [] if ability("limit") or ability("memory-total") else ["--limit", "memory-total=2G"]
            process = self.start(place, *options)
            process.kill()
            process.wait()
            while place.processes():
                time.sleep(0.05)
            for path in self.directories:
                os.utime(path, (time.time() - 120,) * 2)  # a young one may be one that is being made
            outcome = place.run("print('fine')", options)
            self.assertEqual(outcome.output, "fine\n", outcome.errors)
            self.assertEqual(place.leftovers(process.pid, self.directories), set())


class WholeDisk(unittest.TestCase):
    """A settings file shows all files of the host: then the code has no Unix sockets, for among those files are
    sockets that no list of the host's names."""

    ATTACK = """
open("ready", "w").close()
while not os.path.exists("made"):
    time.sleep(0.01)
os.chdir(os.path.join(host["workspace"], "../services"))
for name in ("relative", "renamed", "late"):
    attempt(lambda: connect(socket.AF_UNIX, name))
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    attempt(lambda: socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b"x", "datagram"))
"""

    def attack(self, sandbox: str, **env: str) -> tuple[str, set[str]]:
        """What the code printed, and which services of the host it reached."""
        require(self, *SANDBOXES.get(sandbox, (sandbox,)))
        with Place() as place, contextlib.ExitStack() as closing:
            services = place.directory("services")
            listeners: dict[str, socket.socket] = {}

            def listen(name: str, bound: str, kind: int = socket.SOCK_STREAM) -> None:
                listeners[name] = closing.enter_context(socket.socket(socket.AF_UNIX, kind))
                listeners[name].bind(bound)
                if kind == socket.SOCK_STREAM:
                    listeners[name].listen(4)
                if bound != name:
                    os.rename(bound, services / name)
                hand_over(services / name, 0o666)

            def listen_later() -> None:
                while not (place.workspace / "ready").exists() and not over.wait(0.01):
                    pass
                listen("late", str(services / "made-late"))
                place.file("workspace/made")

            before = os.getcwd()
            os.chdir(services)
            listen("relative", "relative")
            listen("datagram", "datagram", socket.SOCK_DGRAM)
            os.chdir(before)
            listen("renamed", str(services / "known"))
            over = threading.Event()
            later = threading.Thread(target=listen_later)
            later.start()
            outcome = place.run(place.prepared(self.ATTACK),
                                ["--sandbox-config", place.settings({"filesystem": {"allowWrite": ["."]}})], sandbox, env=env)
            over.set()
            later.join()
            self.assertEqual(outcome.status, 0, outcome.errors)
            return outcome.output, {name for name, each in listeners.items() if select.select([each], [], [], 0)[0]}

    def test_no_socket_of_the_host_is_reached(self) -> None:
        for sandbox in ("bubblewrap", "srt"):
            with self.subTest(sandbox):
                output, reached = self.attack(sandbox)
                self.assertEqual(output, "refused: EAFNOSUPPORT\n" * 3 + "refused: ESOCKTNOSUPPORT\n" * 2)
                self.assertEqual(reached, set())

    def test_without_the_filter_s_part_all_are(self) -> None:
        output, reached = self.attack("bubblewrap_weakened", IPYBOX_TEST_WITHOUT="unix")
        self.assertEqual(output.count("ESCAPED"), 5, output)
        self.assertEqual(reached, {"relative", "renamed", "late", "datagram"})

    WORK = """
import asyncio, multiprocessing, subprocess, sys, urllib.error, urllib.request
import matplotlib.pyplot as plt
from mcptools.own import echo
print(echo.run(text="through the relay"))
try: urllib.request.urlopen("http://other.example", timeout=20)
except urllib.error.HTTPError as error: print(error.code)
for way in ("fork", "spawn"):
    with multiprocessing.get_context(way).Pool(2) as pool: print(sum(pool.map(abs, range(-9, 0))))
async def work():
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(6 * 7)", stdout=subprocess.PIPE)
    print((await child.communicate())[0].decode().strip())
    server = await asyncio.start_server(lambda reader, writer: (writer.write(b"hello"), writer.close()), "127.0.0.1")
    reader, _ = await asyncio.open_connection(*server.sockets[0].getsockname())
    print((await reader.read()).decode())
await work()
print(len(subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout.split()) > 2)
plt.plot([1, 2]); plt.show()
print("x" * 3_000_000)
"""

    def test_ordinary_work_goes_on(self) -> None:
        with Place() as place:
            settings = place.settings({"filesystem": {"allowWrite": ["."]}, "network": {"allowedDomains": ["some.example"]}})
            outcome = place.run(self.WORK, [*PROFILES["tools"](place), *PROFILES["images"](place), "--sandbox-config", settings])
            self.assertEqual(outcome.status, 0, outcome.errors)
            self.assertRegex(outcome.output, r"^through the relay\n403\n45\n45\n42\nhello\nTrue\n")
            self.assertEqual(len(list((place.workspace / "pictures").glob("*.png"))), 1)

    def test_a_cell_is_interrupted(self) -> None:
        with Place() as place:
            settings = place.settings({"filesystem": {"allowWrite": ["."]}})
            outcome = place.run("import time\ntry: time.sleep(100)\nexcept KeyboardInterrupt: print('interrupted')",
                                ["--timeout", "1", "--sandbox-config", settings])
            self.assertIn("interrupted\n", outcome.output, outcome.errors)
            self.assertLess(outcome.seconds, 30)


class Srt(unittest.TestCase):
    """sandbox-runtime's own filter stays: no Unix sockets inside, though kernel and tools work."""

    CELLS = {
        "sockets": "attempt(lambda: socket.socket(socket.AF_UNIX))\nattempt(lambda: connect(socket.AF_UNIX, host['socket']))\n"
                   "elsewhere('attempt(lambda: socket.socket(socket.AF_UNIX))')",
        "host": "attempt(lambda: connect(socket.AF_INET, ('127.0.0.1', host['tcp'])))",
        "secret": "attempt(lambda: read(host['secret']))",
        "outside": "attempt(lambda: write(os.path.dirname(host['workspace']) + '/planted'))",
        "tools": "from mcptools.own import echo\nprint(echo.run(text='through the wall'))",
        "kernel": "import matplotlib.pyplot as plt\nprint(6 * 7)",
    }

    def test_unix_sockets_fail_inside_and_tools_work(self) -> None:
        require(self, "srt")
        with Place(watched=True) as place:
            settings = place.settings({"filesystem": {"allowWrite": ["."], "denyRead": [str(place.outside)]}})
            options = [*PROFILES["tools"](place), "--sandbox-config", settings]
            printed, outcome = place.cells(self.CELLS, options, "srt")
            self.assertEqual(outcome.status, 0, outcome.errors)
            self.assertRegex(printed["sockets"], r"^(refused: (EAFNOSUPPORT|EACCES)\n){3}$")
            for name in ("host", "secret", "outside"):
                self.assertRegex(printed[name], "^refused: ")
            self.assertEqual((printed["tools"], printed["kernel"]), ("through the wall\n", "42\n"))
            self.assertEqual(place.harm(), "")


if __name__ == "__main__":
    unittest.main()
