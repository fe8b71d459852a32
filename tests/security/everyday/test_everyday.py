"""What people do every day works in the sandbox as it does without one."""
from __future__ import annotations

import functools
import socket
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import Outcome, Place, ability  # noqa: E402

CELLS = {
    "numpy": """
import numpy as np
a = np.random.default_rng(0).normal(size=(300, 300))
print(np.allclose(a @ np.linalg.inv(a), np.eye(300)), np.fft.fft(np.ones(8))[0].real)
""",
    "pandas": """
import pandas as pd
frame = pd.DataFrame({"a": [1, 2, 2], "b": [1.5, 2.5, 3.5]})
frame.to_csv("frame.csv", index=False)
print(pd.read_csv("frame.csv").groupby("a").b.sum().to_dict(), pd.Timestamp("2024-03-31", tz="Europe/Berlin").utcoffset())
""",
    "matplotlib": """
import matplotlib.pyplot as plt
plt.plot([1, 3, 2])
plt.title("ä → ∞")
plt.savefig("plot.png")
plt.close()
print(open("plot.png", "rb").read(4) == b"\\x89PNG")
""",
    "subprocess": """
print(subprocess.run("echo $((6 * 7)) | tr 4 5", shell=True, capture_output=True, text=True).stdout, end="")
with open("script.sh", "w") as script:
    script.write("#!/bin/sh\\necho from a script; exit 3\\n")
os.chmod("script.sh", 0o755)
done = subprocess.run(["./script.sh"], capture_output=True, text=True)
print(done.stdout, done.returncode)
""",
    "multiprocessing": """
import math, multiprocessing
from concurrent.futures import ProcessPoolExecutor
for method in ("fork", "spawn"):
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        print(method, pool.map(math.factorial, [3, 4, 5]))
with ProcessPoolExecutor(2) as pool:
    print(list(pool.map(math.sqrt, [4, 9])))
queue, lock = multiprocessing.Queue(), multiprocessing.Lock()
process = multiprocessing.get_context("fork").Process(target=queue.put, args=("through a queue",))
process.start()
print(queue.get(timeout=10))
process.join()
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=1 << 16)
block.buf[:3] = b"abc"
again = shared_memory.SharedMemory(block.name)
print(bytes(again.buf[:3]))
again.close()
block.close()
block.unlink()
""",
    "asyncio": """
import asyncio
async def work():
    process = await asyncio.create_subprocess_exec("echo", "from asyncio", stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    server = await asyncio.start_server(lambda r, w: (w.write(b"served"), w.close()), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    data = await reader.read()
    writer.close()
    server.close()
    return out, data
answer = []
thread = threading.Thread(target=lambda: answer.append(asyncio.run(work())))
thread.start()
thread.join()
print(answer)
""",
    "servers": """
import http.server, urllib.request
import requests
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass
open("page.txt", "w").write("a page")
for name in ("127.0.0.1", "localhost"):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://{name}:{server.server_port}/page.txt"
    print(requests.get(url, timeout=10).text, urllib.request.urlopen(url, timeout=10).read())
    server.shutdown()
print(socket.gethostname())
""",
    "sockets of its own": """
import socket
try:
    here = socket.socket(socket.AF_UNIX)
    here.bind("/tmp/own.sock")
    here.listen()
    there = socket.socket(socket.AF_UNIX)
    there.connect("/tmp/own.sock")
    print(here.accept()[0].send(b"x"))
except OSError as error:
    print(error.strerror)
one, other = socket.socketpair()
print(one.send(b"pair"), other.recv(4))
""",
    "files": """
import fcntl, getpass, mmap, pathlib, shutil, sqlite3, tempfile, zipfile
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x" * 100)
with sqlite3.connect("data.db") as data:
    data.execute("create table t (x)")
    data.execute("insert into t values (1)")
    print(data.execute("select count(*) from t").fetchone())
with zipfile.ZipFile("a.zip", "w") as archive:
    archive.writestr("inner.txt", "zipped")
shutil.unpack_archive("a.zip", "unpacked")
os.symlink("unpacked", "link")
print(pathlib.Path("link/inner.txt").read_text())
with open("unpacked/inner.txt", "r+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    mmap.mmap(file.fileno(), 0)[0:1] = b"Z"
print(pathlib.Path("unpacked/inner.txt").read_text(), getpass.getuser())
(pathlib.Path.home() / "written").write_text("x") if os.access(pathlib.Path.home(), os.W_OK) else None
pathlib.Path("/dev/null").write_text("x")
print(len(os.urandom(8)), os.path.exists(sys.executable))
""",
    "tools of the shell": """
import pty, ssl
get_ipython().run_line_magic("timeit", "-n1 -r1 -q 1 + 1")
print(get_ipython().getoutput("ls script.sh && seq 3 | wc -l"))
for command in ("sort", "grep", "sed", "awk", "tar", "gzip", "find", "python3", "git"):
    if subprocess.run(["sh", "-c", f"command -v {command}"], capture_output=True).returncode:
        print("no", command)
print(subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True).stdout.split()[0])
print(ssl.create_default_context().verify_mode.name)
print(subprocess.run(["tty"], stdin=pty.openpty()[1], capture_output=True, text=True).stdout.startswith("/dev/pts/"))
""",
    "git": """
def git(*arguments):
    done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    print(arguments[0], done.returncode, (done.stdout + done.stderr).strip()[:200])
os.chdir("repository")
write("new.txt", "text\\n")
git("status", "--short")
git("add", "new.txt")
git("commit", "-q", "-m", "second")
write("new.txt", "changed\\n")
git("diff", "--stat")
git("stash", "-q")
git("switch", "-q", "-c", "branch")
git("log", "--format=%s by %an")
git("blame", "-s", "new.txt")
git("gc", "-q")
""",
    "without a network": """
import requests
try:
    requests.get("https://example.com", timeout=10)
except requests.exceptions.ConnectionError as error:
    print(error)
""",
    "a hidden file": """
import pathlib
for action in (lambda: open(".env").read(), lambda: open(".env", "a"), lambda: pathlib.Path(".env").read_text()):
    try:
        print("read", repr(action()))
    except PermissionError as error:
        print("refused:", error)
""",
}

EXPECTED = {
    "numpy": "True 8.0\n",
    "pandas": "{1: 1.5, 2: 6.0} 1:00:00\n",
    "matplotlib": "True\n",
    "subprocess": "52\nfrom a script\n 3\n",
    "multiprocessing": "fork [6, 24, 120]\nspawn [6, 24, 120]\n[2.0, 3.0]\nthrough a queue\nb'abc'\n",
    "asyncio": "[(b'from asyncio\\n', b'served')]\n",
    "servers": "a page b'a page'\na page b'a page'\nsandbox\n",
    "sockets of its own": "1\n4 b'pair'\n",
    "files": "(1,)\nzipped\nZipped user\n8 True\n",
    "tools of the shell": "['script.sh', '3']\npip\nCERT_REQUIRED\nTrue\n",
    "a hidden file": "refused: [Errno 13] Permission denied: '.env'\n" * 3,
}


def _none(place: Place) -> list[str]:
    return []


def _settings(place: Place) -> list[str]:
    return ["--sandbox-config", place.settings({"filesystem": {"allowWrite": ["."], "denyRead": [".env"]}})]


def _limits(place: Place) -> list[str]:
    return [word for limit in ("memory=6G", "processes=300", "open-files=512", "file-size=200M", "scratch=200M", "cpu=60")
            for word in ("--limit", limit)]


PROFILES = {"default": _none, "settings": _settings, "limits": _limits}


@functools.cache
def day(profile: str) -> tuple[dict[str, str], Outcome, str]:
    """The same work with other options: what each cell printed, and the log of the repository after it."""
    with Place() as place:
        place.repository("workspace/repository")
        place.file("workspace/.env", f"KEY={place.token}")
        printed, outcome = place.cells(CELLS, PROFILES[profile](place))
        return printed, outcome, place.git("log", "--format=%s", directory="workspace/repository")


class Everyday(unittest.TestCase):
    """Each kind of work, in one kernel with the default view, with settings, and within limits."""


def _add(profile: str, name: str) -> None:
    def test(self: unittest.TestCase) -> None:
        if profile == "limits" and (missing := ability("limit")):
            self.skipTest(missing)
        printed, outcome, log = day(profile)
        self.assertEqual(outcome.status, 0, outcome.errors)
        text = printed[name]
        if name == "sockets of its own" and profile == "settings":
            # Settings show the whole disk, with the host's sockets on it.
            self.assertEqual(text, "Address family not supported by protocol\n4 b'pair'\n")
        elif name in EXPECTED:
            self.assertEqual(text, EXPECTED[name])
        elif name == "git":
            self.assertEqual(text.splitlines()[:3], ["status 0 ?? new.txt", "add 0 ", "commit 0 "])
            self.assertNotRegex(text, r"(?m)^(status|add|commit|diff|stash|switch|log|blame|gc) [1-9]")
            self.assertIn("log 0 second by A\nfirst by A\n", text)
            self.assertEqual(log, "second\nfirst\n")  # the host's git reads what the guest's wrote
        else:
            self.assertRegex(text, "(?i)failed to resolve|name resolution|not known")
    setattr(Everyday, f"test_{name}_{profile}".replace(" ", "_"), test)


for _profile in PROFILES:
    for _name in CELLS:
        _add(_profile, _name)


class Cells(unittest.TestCase):
    """What needs a cell of its own."""

    def output(self, code: str, *options: str) -> str:
        with Place() as place:
            outcome = place.run(code, options)
            self.assertEqual(outcome.status, 0, outcome.errors)
            return outcome.output

    def test_await_and_shell_escapes(self) -> None:
        text = self.output("import asyncio\nawait asyncio.sleep(0)\n!echo from the shell\nx = !echo kept\nprint(x)")
        self.assertEqual(text.splitlines(), ["from the shell", "['kept']"])

    def test_plots_become_files(self) -> None:
        self.assertRegex(self.output("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"), r"\[image\] .*\.png")


class Git(unittest.TestCase):
    """Hooks and configuration of git are refused, unless the settings allow configuration."""

    CODE = ("import subprocess\n"
            "for command in (['init', '-q', '.'], ['config', 'user.name', 'B'], ['remote', 'add', 'x', 'https://example.com/x']):\n"
            "    print(command[0], subprocess.run(['git', *command], capture_output=True).returncode == 0)\n")

    def outcome(self, settings: dict | None, repository: bool) -> tuple[Outcome, str]:
        with Place() as place:
            if repository:
                place.repository()
            options = ["--sandbox-config", place.settings(settings)] if settings else []
            return place.run(self.CODE, options), place.git("config", "--get", "user.name")

    def test_add_takes_what_the_guest_made_and_nothing_else(self) -> None:
        code = ("import subprocess\nopen('made.txt', 'w').write('x')\n"
                "for command in ('status --short', 'add .', 'add -A', 'commit -qm second', 'status --short', 'clean -n'):\n"
                "    done = subprocess.run(['git', *command.split()], capture_output=True, text=True)\n"
                "    print(command, done.returncode, (done.stdout + done.stderr).strip())")
        for settings in (None, {"filesystem": {"allowWrite": ["."], "denyRead": [".env"]}}):
            with self.subTest(settings), Place() as place:
                place.repository()
                place.file("workspace/.env", "KEY=value")
                options = ["--sandbox-config", place.settings(settings)] if settings else []
                outcome = place.run(code, options)
                self.assertEqual(outcome.output.replace(" \n", "\n"),
                                 "status --short 0 ?? made.txt\nadd . 0\nadd -A 0\ncommit -qm second 0\nstatus --short 0\n"
                                 "clean -n 0\n", outcome.errors)
                self.assertEqual(place.git("ls-files"), "made.txt\n")

    def test_init_and_config_are_refused(self) -> None:
        for settings in (None, {"filesystem": {"allowWrite": ["."]}}):
            with self.subTest(settings):
                outcome, name = self.outcome(settings, repository=False)
                self.assertEqual(outcome.output, "init False\nconfig False\nremote False\n", outcome.errors)
                outcome, name = self.outcome(settings, repository=True)
                self.assertEqual((outcome.output.splitlines()[1:], name), (["config False", "remote False"], "A\n"))

    def test_settings_can_allow_configuration(self) -> None:
        outcome, name = self.outcome({"filesystem": {"allowWrite": ["."], "allowGitConfig": True}}, repository=True)
        self.assertEqual((outcome.output, name), ("init True\nconfig True\nremote True\n", "B\n"), outcome.errors)


class Network(unittest.TestCase):
    """Through the list of allowed hosts."""

    CODE = """
import requests, subprocess, sys, urllib.request
print(requests.get("https://pypi.org/simple/pip/", timeout=30).status_code)
print(urllib.request.urlopen("https://pypi.org/simple/pip/", timeout=30).status)
print(subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check",
                      "--target", "site", "iniconfig"], capture_output=True, text=True).returncode)
try:
    print(requests.get("https://example.com", timeout=30).status_code)
except requests.exceptions.RequestException as error:
    print("refused")
"""

    def test_allowed_hosts_answer_and_others_are_refused(self) -> None:
        if missing := ability("proxy"):
            self.skipTest(missing)
        try:
            socket.create_connection(("pypi.org", 443), 10).close()
        except OSError as error:
            self.skipTest(f"this machine cannot reach pypi.org itself: {error}")
        with Place() as place:
            settings = place.settings({"network": {"allowedDomains": ["pypi.org", "files.pythonhosted.org"]},
                                       "filesystem": {"allowWrite": ["."]}})
            outcome = place.run(self.CODE, ["--sandbox-config", settings])
            self.assertEqual(outcome.output, "200\n200\n0\nrefused\n", outcome.errors)


if __name__ == "__main__":
    unittest.main()
