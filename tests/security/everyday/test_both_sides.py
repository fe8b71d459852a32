"""A person goes on working in the workspace while code runs there: nothing is lost on either side, nothing is seen
that is older than a second, and nothing of ours is in the way."""
from __future__ import annotations

import bisect
import json
import os
import random
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from harness import Outcome, Place, as_guest  # noqa: E402

OVERLAY = ["--sandbox-options", '{"absent_names": "overlay"}']

# What both sides carry out, each on names of its own, which the other reads.
SIDE = r'''
import errno, json, os, random, time

SIZE = 64

class Side:
    def __init__(self, me, other, top, seed):
        self.me, self.other, self.top = me, other, top
        self.random = random.Random(seed)
        self.written, self.seen, self.appended, self.locked, self.broken = [], [], 0, 0, []
        self.count = 0

    def path(self, side, number):
        return f"{self.top}/d{number % 4}/{side}{number}"

    def note(self, number, content, start):
        self.written.append((number, start, time.monotonic(), content))

    def text(self):
        self.count += 1
        return f"{self.me} {self.count}".ljust(SIZE)

    def write(self, number):
        path, text = self.path(self.me, number), self.text()
        start = time.monotonic()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        kind = self.random.randrange(3)
        if kind == 0:  # in place
            file = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.write(file, text.encode())
            os.close(file)
        else:  # as editors save
            with open(path + "~", "w") as file:
                file.write(text)
            if kind == 2 and os.path.exists(path):
                os.unlink(path)
            os.replace(path + "~", path)
        self.note(number, text, start)

    def remove(self, number):
        start = time.monotonic()
        try:
            os.unlink(self.path(self.me, number))
        except FileNotFoundError:
            return
        self.note(number, None, start)

    def move(self, number):
        to = (number + 4) % 24
        start = time.monotonic()
        try:
            with open(self.path(self.me, number)) as file:
                text = file.read()
            os.replace(self.path(self.me, number), self.path(self.me, to))
        except FileNotFoundError:
            return
        self.note(number, None, start)
        self.note(to, text, start)

    def read(self, number):
        start = time.monotonic()
        try:
            with open(self.path(self.other, number)) as file:
                text = file.read()
        except FileNotFoundError:
            text = None
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            text = "stale"
        self.seen.append((number, start, time.monotonic(), text))

    def append(self, _):
        file = os.open(f"{self.top}/log", os.O_WRONLY | os.O_APPEND)
        os.write(file, f"{self.me} {self.appended}\n".encode())
        os.close(file)
        self.appended += 1

    # Of two who make the same name one succeeds.
    def lock(self, _):
        path = f"{self.top}/lock"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ESTALE):
                raise
            return
        text = self.text().encode()
        os.write(file, text)
        time.sleep(0.002)
        if os.pread(file, 1000, 0) != text or os.fstat(file).st_nlink != 1:
            self.broken.append(self.locked)
        os.close(file)
        os.unlink(path)
        self.locked += 1

    def run(self, operations, pause):
        kinds = [self.write] * 4 + [self.read] * 6 + [self.remove, self.move, self.append, self.lock]
        for _ in range(operations):
            self.random.choice(kinds)(self.random.randrange(24))
            time.sleep(self.random.random() * pause)

    def result(self):
        return {name: getattr(self, name) for name in ("written", "seen", "appended", "locked", "broken")}

def tree(top):
    found = {}
    for directory, _, files in os.walk(top):
        for name in files:
            if name != "lock":
                with open(os.path.join(directory, name)) as file:
                    found[os.path.relpath(os.path.join(directory, name), top)] = file.read()
    return found
'''

GUEST = SIDE + r'''
open("ready", "w").close()
side = Side("guest", "host", "shared", {seed})
side.run({operations}, {pause})
# What stands when both are done, seen a second later.
while not os.path.exists("stop"):
    time.sleep(0.05)
time.sleep(1.2)
print(json.dumps([side.result(), tree("shared")]))
'''


def stale(history: list[list], seen: list[list], limit: float) -> list:
    """Reads that found what nobody could have found within `limit` seconds before."""
    versions: dict[int, list[tuple[float, float, str | None]]] = {}
    for number, start, end, text in sorted(history, key=lambda entry: entry[1]):
        versions.setdefault(number, [(-1.0, -1.0, None)]).append((start, end, text))

    def possible(number: int, start: float, end: float) -> list[str | None]:
        # A version stands from the start of its writing to the end of its successor's.
        known = versions.get(number, [(-1.0, -1.0, None)])
        last = bisect.bisect_right([version[0] for version in known], end)
        return [known[i][2] for i in range(last) if i + 1 >= len(known) or known[i + 1][1] >= start - limit]

    wrong = []
    for number, start, end, text in seen:
        found = possible(number, start, end)
        if text in found:
            continue
        # Between the removal and the renaming of one write there is nothing; and a name that was just
        # changed may still lead to its file, which is another name's by now.
        changing = len(found) > 1
        elsewhere = limit > 0 and any(text in possible(other, start, end) for other in versions if other != number)
        if not (changing and (text in (None, "stale", "") or elsewhere)):
            wrong.append((number, start, text, found))
    return wrong


# An MCP server that writes as editors do, and reads.
SERVER = r'''
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, result = message["method"], {}
    if method == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "files", "version": "1"}}
    elif method == "tools/list":
        text = {"type": "string"}
        result = {"tools": [{"name": "save", "inputSchema": {"type": "object", "properties": {"name": text, "text": text}}},
                            {"name": "load", "inputSchema": {"type": "object", "properties": {"name": text}}}]}
    elif method == "tools/call":
        arguments = message["params"]["arguments"]
        if "text" in arguments:
            with open("new", "w") as file:
                file.write(arguments["text"])
            os.replace("new", arguments["name"])
        result = {"content": [{"type": "text", "text": open(arguments["name"]).read()}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
'''

WITH_TOOLS = """
import os
from mcptools.files import load, save
for number in range(50):
    for name in ("theirs", f"theirs{number}"):
        before = os.path.exists(name) and open(name).read()
        save.run(name=name, text=f"{number}")
        assert open(name).read() == f"{number}", (name, number, before, open(name).read())
    for name in ("mine", f"mine{number}"):
        with open("mine.new", "w") as file:
            file.write(f"{number}")
        os.replace("mine.new", name)
        assert load.run(name=name) == f"{number}", (name, number)
print("fresh")
"""


class BothSides(unittest.TestCase):
    operations = 5_000  # of each side

    def running(self, place: Place, code: str, options: list[str]) -> tuple[threading.Thread, list[Outcome]]:
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.append(place.run(code, options, limit=300)))
        thread.start()
        deadline = time.monotonic() + 60
        while not (place.workspace / "ready").exists():
            self.assertFalse(outcomes or time.monotonic() > deadline, outcomes)
            time.sleep(0.01)
        return thread, outcomes

    def random_operations(self, options: list[str], limit: float) -> None:
        seed = random.randrange(1 << 30)
        print(f"seed {seed}", file=sys.stderr)
        scope: dict = {}
        exec(SIDE, scope)  # noqa: S102
        with Place() as place:
            place.file("workspace/shared/log")
            for number in range(4):
                place.directory(f"workspace/shared/d{number}")
            pause = 0.004
            code = GUEST.replace("{seed}", str(seed)).replace("{operations}", str(self.operations)).replace("{pause}", str(pause))
            thread, outcomes = self.running(place, code, options)
            side = scope["Side"]("host", "guest", str(place.workspace / "shared"), seed + 1)
            os.umask(0)  # the guest's user writes there too
            try:
                side.run(self.operations, pause)
            finally:
                os.umask(0o022)
                (place.workspace / "stop").touch()
                thread.join()
            host = scope["tree"](str(place.workspace / "shared"))
            self.assertEqual(0, outcomes[0].status, outcomes[0])
            guest, seen_by_guest = json.loads(outcomes[0].output)
            mine = side.result()

            self.assertEqual([], stale(mine["written"], guest["seen"], limit))
            self.assertEqual([], stale(guest["written"], mine["seen"], limit))
            self.assertEqual(host, seen_by_guest)
            lines = host.pop("log").splitlines()
            self.assertEqual(sorted(f"{name} {i}" for name, who in (("guest", guest), ("host", mine)) for i in range(who["appended"])),
                             sorted(lines))
            model = {}
            for name, who in (("guest", guest), ("host", mine)):
                for number, _, _, text in sorted(who["written"], key=lambda entry: entry[2]):
                    model[f"d{number % 4}/{name}{number}"] = text
            self.assertEqual({path: text for path, text in model.items() if text is not None}, host)
            self.assertEqual(([], []), (guest["broken"], mine["broken"]))
            for who in (guest, mine):
                self.assertGreater(len(who["seen"]), self.operations / 5)
                self.assertGreater(who["locked"], 10)

    def test_code_and_tools_see_at_once_what_the_other_wrote(self):
        for confined in (True, False):
            with self.subTest(confined=confined), Place() as place:
                script = place.file("server/server.py", SERVER)
                server = {"command": "/usr/bin/python3", "args": [str(script)], "cwd": str(place.workspace)}
                if confined:
                    server["sandbox"] = {"name": "bubblewrap", "readable": [str(script.parent)], "writable": [str(place.workspace)]}
                else:
                    server["trust_cwd"] = True
                    place.workspace.chmod(0o777)
                config = place.file("mcp.json", json.dumps({"mcpServers": {"files": server}}))
                outcome = place.run(WITH_TOOLS, ["--config", str(config), "--approve", "allow"])
                self.assertEqual("fresh\n", outcome.output, outcome.errors)

    def test_random_operations_behind_an_overlay(self):
        self.random_operations(OVERLAY, 1.0)

    def test_random_operations_in_the_workspace_itself(self):
        self.random_operations(["--sandbox-options", '{"absent_names": "placeholders"}'], 0.0)

    def test_editor_git_and_build_beside_a_busy_kernel(self):
        busy = r'''
import os, subprocess, time
open("ready", "w").close()
made = 0
while not os.path.exists("stop"):
    with open(f"made/{made}.txt", "w") as file:
        file.write(str(made))
    made += 1
    subprocess.run(["cat", "main.c", "prog"], stdout=subprocess.DEVNULL, check=False)
    for name in (".vscode", ".envrc", ".mcp.json"):
        try:
            open(name, "w").write("x")
            print("ESCAPED", name)
        except OSError:
            pass
    os.listdir(".")
    time.sleep(0.01)
print("made", made)
'''
        with Place() as place:
            place.directory("workspace/made")
            thread, outcomes = self.running(place, busy, OVERLAY)
            shell = {"cwd": place.workspace, "env": {"PATH": os.environ["PATH"], "HOME": str(place.outside)}, "check": True, **as_guest()}
            try:
                # What could not be done beside placeholders.
                subprocess.run("mkdir .vscode && python3 -m venv --without-pip .venv && echo A=1 > .env && git init -q . && "
                               "printf '.venv\\n.env\\nprog\\nready\\nstop\\n' > .gitignore && "
                               "git config user.name A && git config user.email a@example.com", shell=True, **shell)
                for number in range(40):
                    (place.workspace / "main.c~").write_text(f"#include <stdio.h>\nint main(void) {{ return printf(\"{number}\"); }}\n")
                    (place.workspace / "main.c~").chmod(0o644)
                    os.replace(place.workspace / "main.c~", place.workspace / "main.c")
                    subprocess.run("cc -o prog main.c && git add -A && git commit -q -m x", shell=True, **shell)
                    self.assertEqual(str(number), subprocess.run(["./prog"], stdout=subprocess.PIPE, text=True, **{**shell, "check": False}).stdout)
            finally:
                (place.workspace / "stop").touch()
                thread.join()
            self.assertNotIn("ESCAPED", outcomes[0].output)
            made = int(outcomes[0].output.split()[-1])
            subprocess.run("git add -A && git commit -q --allow-empty -m last && git fsck --strict", shell=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **shell)
            listed = set(place.git("ls-files").split())
            self.assertEqual({".gitignore", "main.c", *(f"made/{i}.txt" for i in range(made))}, listed)
            self.assertEqual("", place.git("status", "--porcelain"))
            for i in range(made):
                self.assertEqual(str(i), (place.workspace / f"made/{i}.txt").read_text())


if __name__ == "__main__":
    unittest.main()
