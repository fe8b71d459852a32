"""Runs attacks in kernels of the real program, and looks at what they left on the host."""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

PROGRAM = os.environ["IPYBOX_TEST_PROGRAM"]
PYTHON = os.environ["IPYBOX_TEST_PYTHON"]
SUPPORT = Path(os.environ["IPYBOX_TEST_SUPPORT"])
BUILD = Path(PROGRAM).resolve().parent
AS_ROOT = os.geteuid() == 0
GUEST = 65534 if AS_ROOT else os.geteuid()  # whose rights the kernel has: root is dropped
PRELUDE = (Path(__file__).parent / "prelude.py").read_text()
# What ipybox remembers of the sessions of these tests, and of no others.
STATE = tempfile.TemporaryDirectory(prefix="ipybox-state-", dir="/var/tmp")
# On which backend kernels are, unless cases say; "fork" in the environment: all that can be are forked.
KERNEL = os.environ.get("IPYBOX_TEST_KERNEL", "auto")
IPC_KEY = 0x1B0C0000 + os.getpid() % 65536


def as_guest() -> dict:
    """For subprocess: a program that runs with the rights of the guest's user on the host."""
    return {"user": GUEST, "group": GUEST, "extra_groups": []} if AS_ROOT else {}


def hand_over(path: Path, mode: int | None = None) -> Path:
    if AS_ROOT:
        os.chown(path, GUEST, GUEST, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)
    return path


@functools.cache
def ability(name: str) -> str:
    """Why this machine or build lacks something that cases need; empty when it has it."""
    if name == "x86-64":
        return "" if os.uname().machine == "x86_64" else "instructions of another processor"
    if name == "limit":
        return "" if "--limit" in _text("run", "--help") else "this program has no --limit"
    if name in ("srt", "bubblewrap_weakened"):
        listed = json.loads(_text("plugins", "--json") or "[]")
        return "" if any(p["name"] == name for p in listed) else f"this build has no plugin {name}"
    if name in ("landlock", "landlock-scopes"):
        version = ctypes.CDLL(None, use_errno=True).syscall(444, None, ctypes.c_size_t(0), 1)
        if version < 0:
            return "this machine's kernel has no Landlock"
        return "" if version >= 6 or name == "landlock" else f"Landlock here has version {version}, without scopes"
    if name in ("proxy", "memory-total", "scratch-inodes"):
        with Place() as place:
            options = {"proxy": lambda: ["--sandbox-config", place.settings({"network": {"allowedDomains": ["example.com"]}})],
                       "memory-total": lambda: ["--limit", "memory-total=1G"],
                       "scratch-inodes": lambda: ["--limit", "scratch-inodes=1000"]}[name]()
            trial = place.run("print('started')", options)
        return "" if trial.output == "started\n" else f"not enforceable here: {trial.errors.strip()}"
    raise KeyError(name)


def _text(*arguments: str) -> str:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, env=environment()).stdout


def environment(**more: str) -> dict[str, str]:
    """What the program gets; the plugins of the tests' build are found beside those of the program."""
    # srt is found where npm put it.
    path = os.environ.get("IPYBOX_TEST_NODE_MODULES", "/nonexistent") + "/.bin:" + os.environ["PATH"]
    return {"PATH": path, "HOME": "/nonexistent", "SUPPORT": str(SUPPORT), "IPYBOX_PYTHON": PYTHON,
            "IPYBOX_PLUGIN_PATH": str(BUILD / "tests/security"), "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_STATE_HOME": STATE.name, **more}


def kernel_flags(kernel: str, sandbox: str) -> list[str]:
    # Else the first kernel of a program is started on its own.
    forked = kernel == "fork" and sandbox == "bubblewrap"
    # Suites run beside each other.
    return ["--kernel", kernel, "--kernel-init-timeout", "60",
            *(["--kernel-options", '{"start": "warm"}'] if forked else [])]


class InSandbox:
    """Cases of which subclasses say in which sandbox, and on which kernel backend."""

    sandbox, kernel = "bubblewrap", KERNEL

    @classmethod
    def setUpClass(cls) -> None:
        if cls.sandbox == "srt" and (lacks := ability("srt")):
            raise unittest.SkipTest(lacks)


@dataclasses.dataclass
class Outcome:
    status: int
    output: str
    errors: str
    seconds: float
    peak_memory: int  # bytes of the program itself, not of the kernel


class Place:
    """A workspace, and around it what an attack is after: files, sockets and processes of the host."""

    def __init__(self, watched: bool = False):
        # Not in /tmp, which every guest has of its own.
        self.root = Path(tempfile.mkdtemp(prefix="ipybox-security-", dir="/var/tmp"))
        self.root.chmod(0o755)
        self.token = "s3cret-" + secrets.token_hex(8)
        self.mark = "mark-" + secrets.token_hex(8)
        self.workspace = self.directory("workspace")
        self.outside = self.directory("outside")
        self.secret = self.file("outside/secret", self.token)
        self._closing = contextlib.ExitStack()
        self.facts: dict = {}
        self.connections: list[str] = []
        if watched:
            self._listen()
            self._start_victim()
            self._make_queue()

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)

    # Files below the root; relative names.
    def directory(self, name: str) -> Path:
        path = self.root / name
        missing = [p for p in (path, *path.parents) if not p.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for each in missing:
            hand_over(each)
        return path

    def file(self, name: str, text: str = "", mode: int = 0o644) -> Path:
        self.directory(str(Path(name).parent))
        path = self.root / name
        path.write_text(text)
        return hand_over(path, mode)

    def link(self, name: str, target: str | Path) -> None:
        (self.root / name).symlink_to(target)
        hand_over(self.root / name)

    def settings(self, value: dict) -> str:
        """A settings file outside the workspace."""
        return str(self.file("settings.json", json.dumps(value)))

    def repository(self, name: str = "workspace") -> None:
        """A git repository with one commit, of the guest's user."""
        self.directory(name)
        for command in (["init", "-q"], ["config", "user.name", "A"], ["config", "user.email", "a@example.com"],
                        ["commit", "-q", "--allow-empty", "-m", "first"]):
            self.git(*command, directory=name)

    def git(self, *arguments: str, directory: str = "workspace") -> str:
        """git as the user of the workspace runs it on the host."""
        done = subprocess.run(["git", *arguments], cwd=self.root / directory, capture_output=True, text=True, timeout=60,
                              env={"PATH": os.environ["PATH"], "HOME": str(self.outside)}, **as_guest())
        return done.stdout + done.stderr

    # What the host has besides files.
    def _listen(self) -> None:
        for fact, family, kind, address in (
                ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
                ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
                ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
                ("any", socket.AF_INET, socket.SOCK_STREAM, ("0.0.0.0", 0)),
                ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, "\0ipybox-" + self.mark),
                ("socket", socket.AF_UNIX, socket.SOCK_STREAM, str(self.outside / "socket")),
                ("inner_socket", socket.AF_UNIX, socket.SOCK_STREAM, str(self.workspace / "host.sock"))):
            try:
                listener = socket.socket(family, kind)
                listener.bind(address)
            except OSError:  # a host without IPv6
                continue
            if isinstance(address, str) and address.startswith("/"):
                hand_over(Path(address), 0o666)
            bound = listener.getsockname()
            self.facts[fact] = bound[1] if isinstance(bound, tuple) else os.fsdecode(bound)
            if kind == socket.SOCK_STREAM:
                listener.listen(16)
            # Accepting here is what makes a connection known; shutting down ends the wait.
            thread = threading.Thread(target=self._note, args=(fact, listener), daemon=True)
            thread.start()
            self._closing.callback(thread.join, 5)
            self._closing.callback(listener.close)
            self._closing.callback(self._stop_listening, listener)

    @staticmethod
    def _stop_listening(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)

    def _note(self, fact: str, listener: socket.socket) -> None:
        while True:
            try:
                if listener.type == socket.SOCK_DGRAM:
                    data = listener.recv(100)
                    if not data:
                        return
                else:
                    connection = listener.accept()[0]
                    connection.close()
            except OSError:
                return
            self.connections.append(fact)

    def _start_victim(self) -> None:
        """A process of the guest's user on the host, with a secret in its environment."""
        self.victim = subprocess.Popen(["sleep", "1000"], env={"SECRET": self.token, "PATH": "/usr/bin:/bin"}, cwd="/",
                                       **as_guest())
        self.facts["victim"] = self.victim.pid
        self._closing.callback(self.victim.wait)
        self._closing.callback(self.victim.kill)

    def _make_queue(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        identifier = libc.msgget(IPC_KEY, 0o1000 | 0o666)
        self.facts["ipc_key"] = IPC_KEY
        self._closing.callback(libc.msgctl, identifier, 0, None)

    def processes(self) -> list[int]:
        """Whatever still runs in the workspace or was started by a kernel of this place."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                inside = os.readlink(entry / "cwd").startswith(str(self.workspace))
                if inside or self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def harm(self) -> str:
        """What no attack may have changed; empty when all is well."""
        kept = sorted(p.name for p in self.outside.iterdir() if not p.is_socket())
        if kept != ["secret"]:
            return f"files outside the workspace: {kept}"
        if self.secret.read_text() != self.token:
            return "the file outside the workspace was written"
        if self.connections:
            return f"the host was reached through {self.connections}"
        if self.facts and self.victim.poll() is not None:
            return "a process of the host was killed"
        for path in self.workspace.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_mode & 0o6000 and not path.is_symlink() and path.is_file():
                    return f"{path.name} has a setuid or setgid bit"
        deadline = time.monotonic() + 10
        while left := self.processes():
            if time.monotonic() > deadline:
                return f"processes were left running: {left}"
            time.sleep(0.05)
        return ""

    # Running.
    def command(self, options: list[str], sandbox: str = "bubblewrap") -> list[str]:
        given = [] if "--kernel" in options else kernel_flags(KERNEL, sandbox)
        return [PROGRAM, "run", "--sandbox", sandbox, "--python", PYTHON, *given, "--env", f"IPYBOX_TEST_MARK={self.mark}",
                *options, "-"]

    def run(self, code: str, options: Iterable[str] = (), sandbox: str = "bubblewrap", limit: float = 120,
            env: dict[str, str] | None = None) -> Outcome:
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            source.write(code.encode("utf-8", "surrogatepass"))
            source.seek(0)
            started = time.monotonic()
            process = subprocess.Popen(self.command(list(options), sandbox), cwd=self.workspace, stdin=source, stdout=out,
                                       stderr=errors, start_new_session=True,
                                       env=environment(IPYBOX_TEST_SECRET=self.token, **(env or {})))
            peak = 0
            while process.poll() is None:
                # Not what wait4() tells: that counts descendants as well.
                with contextlib.suppress(OSError, TypeError):  # it may just have ended
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024
                if time.monotonic() - started > limit:
                    process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
            texts = []
            for stream in (out, errors):
                stream.seek(0)
                data = stream.read()
                if len(data) > 1 << 20:
                    data = data[:1 << 19] + b"\n...\n" + data[-(1 << 19):]
                texts.append(data.decode(errors="replace"))
            return Outcome(process.returncode, *texts, time.monotonic() - started, peak)

    @contextlib.contextmanager
    def serving(self, *arguments: str, **env: str) -> Iterator[str]:
        """`ipybox serve --http` in the workspace; its URL. What it says is in the file `errors`."""
        with (self.root / "errors").open("w") as errors:
            process = subprocess.Popen([PROGRAM, "serve", "--http", "127.0.0.1:0", "--workspace", ".", *arguments], cwd=self.workspace,
                                       stdin=subprocess.DEVNULL, stderr=errors, env=environment(**env))
        try:
            deadline = time.monotonic() + 60
            while not (found := re.search(r"serving at (http://127\.0\.0\.1:\d+/mcp)", (self.root / "errors").read_text())):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.root / "errors").read_text())
                time.sleep(0.05)
            yield found[1]
        finally:
            process.terminate()
            process.wait()

    def prepared(self, code: str) -> str:
        """Code with the prelude before it, and what an attack may know of the host."""
        facts = {"workspace": str(self.workspace), "outside": str(self.outside), "secret": str(self.secret),
                 "host_pid": os.getpid(), **self.facts}
        return f"{PRELUDE}\n_prelude = {PRELUDE!r}\nhost.update({facts!r})\n{code}"

    def cells(self, cells: dict[str, str], *arguments: object, **named: object) -> tuple[dict[str, str], Outcome]:
        """Runs several pieces of code in one kernel, and returns what each printed."""
        outcome = self.run(self.prepared(f"_run_cells({cells!r})\n"), *arguments, **named)
        printed = {}
        for line in outcome.output.splitlines():
            if line.startswith("@@"):
                name, text = json.loads(line[2:])
                printed[name] = text
        return printed, outcome

    def leftovers(self, process: int, directories: set[str]) -> set[str]:
        """What a run of the program left: its directories, placeholders in the workspace, mounts, control groups."""
        found = {path for path in directories if os.path.exists(path)}
        # Placeholders for protected files carry this time.
        found |= {str(p) for p in [*self.workspace.iterdir(), *self.workspace.glob(".*/*")] if p.lstat().st_mtime == 424242}
        found |= {line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self.root) in line}
        found |= {str(p) for p in Path("/sys/fs/cgroup").glob(f"**/ipybox-{process}-*") if p.is_dir()}
        return found


def got_through(printed: str) -> bool:
    # At a line's start: a traceback may show the line that would have printed it.
    return re.search("^ESCAPED", printed, re.MULTILINE) is not None


@dataclasses.dataclass(frozen=True)
class Attack:
    """One thing hostile code tries.

    name: unique, a sentence in words joined by underscores. layer: what stops it. code: runs in the
    kernel after prelude.py. by: a regular expression that every refusal which attempt() prints must
    match as a whole. says: one that must be found in what the code prints; without it there must be
    at least one refusal. setup: prepares the host. harm: looks at the host afterwards and says what
    went wrong, besides Place.harm(). escapes_without: layers of the test build (joined by commas)
    without which the attack gets through. holds_without: layers without which it does not, because
    another one stops it too. profile: the options it needs, a key of PROFILES. alone: in a kernel of
    its own. status: accepted exit codes of the program, for an attack that is alone. needs: what
    ability() must know of. limit: seconds. sandboxes: in which it is tried; "gateway" is bubblewrap with a kernel of that backend.
    kernel: the backend whose ways it uses.
    """

    name: str
    layer: str
    code: str
    by: str = ".*"
    says: str = ""
    setup: Callable[[Place], object] = lambda place: None
    harm: Callable[[Place, Outcome], str] = lambda place, outcome: ""
    escapes_without: str = ""
    holds_without: str = ""
    profile: str = "default"
    alone: bool = False
    status: tuple[int, ...] = (0,)
    needs: tuple[str, ...] = ()
    limit: float = 60
    sandboxes: tuple[str, ...] = ("bubblewrap",)
    kernel: str = ""

    def failure(self, printed: str, place: Place, outcome: Outcome) -> str:
        """Why the attack cannot be said to have failed; empty when it did fail."""
        if got_through(printed):
            return "it got through: " + printed
        if "Traceback (most recent call last)" in printed:
            return "it did not run to its end: " + printed[-3000:]
        refusals = re.findall(r"^refused: (.*)$", printed, re.MULTILINE)
        for why in refusals:
            if not re.fullmatch(self.by, why):
                return f"refused, but by {why!r}, not by {self.by!r}: {printed}"
        if self.says:
            if not re.search(self.says, printed, re.MULTILINE):
                return f"{self.says!r} is not in what it printed: {printed}\n{outcome.errors[-2000:]}"
        elif not refusals:
            return f"it was not refused: {printed!r}\n{outcome.errors[-2000:]}"
        if self.alone and outcome.status not in self.status:
            return f"exit code {outcome.status}: {printed}\n{outcome.errors[-2000:]}"
        return self.harm(place, outcome)


class Execution:
    """Attacks that share a kernel, what each printed, and the state of the host after all of them."""

    def __init__(self, attacks: list[Attack], options: Callable[[Place], list[str]], sandbox: str = "bubblewrap",
                 env: dict[str, str] | None = None):
        self.failures: dict[str, str] = {}
        with Place(watched=True) as place:
            chosen = options(place)
            for attack in attacks:
                attack.setup(place)
            limit = max(a.limit for a in attacks)
            if attacks[0].alone:
                outcome = place.run(place.prepared(attacks[0].code), chosen, sandbox, limit, env)
                printed = {attacks[0].name: outcome.output + outcome.errors}
            else:
                printed, outcome = place.cells({a.name: a.code for a in attacks}, chosen, sandbox, limit, env)
            self.outcome = outcome
            self.printed = printed
            for attack in attacks:
                if attack.name not in printed:
                    self.failures[attack.name] = f"it did not run: {outcome}"
                else:
                    self.failures[attack.name] = attack.failure(printed[attack.name], place, outcome)
            # A secret that was printed got out, whatever the attack makes of it.
            leaked = place.token in outcome.output + outcome.errors
            self.harm = "a secret was printed" if leaked else place.harm()

    def escaped(self, attack: Attack) -> bool:
        return got_through(self.printed.get(attack.name, "")) or bool(self.failures[attack.name] and self.harm)
