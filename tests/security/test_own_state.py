"""What ipybox keeps for itself, and what it reads and writes on the code's behalf: each attack at the real program, and
against one without the layer that stops it."""
from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import PROGRAM, PYTHON, SUPPORT, Place, ability, environment, hand_over  # noqa: E402

SANDBOXES = ("bubblewrap", "srt")
# And a kernel that the host reaches as one elsewhere.
WHERE = {**{name: ("--sandbox", name) for name in SANDBOXES}, "gateway": ("--sandbox", "bubblewrap", "--kernel", "gateway")}


def without(layers: str) -> tuple[str, dict[str, str]]:
    return "bubblewrap_weakened", {"IPYBOX_TEST_WITHOUT": layers}


class Case(unittest.TestCase):
    maxDiff = 4000

    def require(self, *needs: str) -> None:
        for need in needs:
            if missing := ability(need):
                self.skipTest(missing)

    def tried(self, sandbox: str) -> bool:
        return sandbox != "srt" or not ability(sandbox)

    def run_in(self, place: Place, code: str, options: list[str] = [], sandbox: str = "bubblewrap", **env: str) -> str:
        outcome = place.run(place.prepared(code), options, sandbox, 120, env)
        self.assertEqual(outcome.status, 0, outcome.errors + outcome.output)
        return outcome.output


class OwnDirectories(Case):
    """Settings and tokens of a person whose dotfiles lie in the workspace."""

    CODE = """
def tried(name, action):
    try:
        got = action()
    except OSError as error:
        return print("refused:", name, why(error))
    print("ESCAPED:" if got is not False else "refused:", name, got)
own = ("dotfiles/ipybox", "share/ipybox")
tried("rules", lambda: write("dotfiles/ipybox/always.json", "planted"))
tried("servers", lambda: write("dotfiles/ipybox/registered/x.json", "planted"))
tried("tokens", lambda: "s3cret" in read("share/ipybox/tokens.json") and "read")
tried("list", lambda: bool(os.listdir("share/ipybox")) and "listed")
for path in own:
    tried("move " + path, lambda: os.rename(path, path + ".old"))
    tried("move what holds " + path, lambda: os.rename(os.path.dirname(path), "moved"))
"""

    def place(self) -> tuple[Place, dict[str, str]]:
        place = Place()
        self.addCleanup(place.__exit__)
        for name in ("workspace/dotfiles/ipybox/registered", "workspace/share/ipybox", "home/.local"):
            place.directory(name)
        place.file("workspace/dotfiles/ipybox/always.json", '{"rules": []}', 0o600)
        place.file("workspace/share/ipybox/tokens.json", place.token, 0o600)
        place.link("home/.config", place.workspace / "dotfiles")
        place.link("home/.local/share", "../../workspace/share")
        return place, {"HOME": str(place.root / "home")}

    def test_are_out_of_reach_where_they_really_lie(self) -> None:
        for sandbox in filter(self.tried, SANDBOXES):
            for settings in ({}, {"filesystem": {"allowWrite": ["."]}}):
                with self.subTest(sandbox, settings=settings):
                    place, env = self.place()
                    options = ["--sandbox-config", place.settings(settings)] if settings else []
                    printed = self.run_in(place, self.CODE, options, sandbox, **env)
                    if sandbox == "bubblewrap":
                        self.assertNotIn("ESCAPED", printed)
                    # What srt hides can be written, and is gone at the end.
                    self.assertNotIn("ESCAPED: tokens", printed)
                    self.assertNotIn("ESCAPED: move", printed)
                    self.assertEqual((place.workspace / "dotfiles/ipybox/always.json").read_text(), '{"rules": []}')
                    self.assertFalse((place.workspace / "dotfiles/ipybox/registered/x.json").exists())

    def test_are_within_reach_without_that_layer(self) -> None:
        self.require("bubblewrap_weakened")
        place, env = self.place()
        sandbox, weak = without("hidden")
        printed = self.run_in(place, self.CODE, [], sandbox, **env, **weak)
        for name in ("rules", "servers", "tokens", "list"):
            self.assertIn("ESCAPED: " + name, printed)

    def test_are_made_before_code_can_make_them(self) -> None:
        for sandbox in filter(self.tried, SANDBOXES):
            with self.subTest(sandbox):
                place, env = self.place()
                (place.root / "home/.config").unlink()
                place.directory("workspace/fresh")
                place.link("home/.config", place.workspace / "fresh")
                printed = self.run_in(place, "attempt(lambda: os.makedirs('fresh/ipybox/registered'))\n"
                                      "attempt(lambda: os.symlink('/tmp', 'fresh/ipybox'))", [], sandbox, **env)
                if sandbox == "bubblewrap":
                    self.assertNotIn("ESCAPED", printed)
                self.assertEqual(os.listdir(place.workspace / "fresh/ipybox"), [])

    def test_are_not_followed_over_a_link_that_code_could_exchange(self) -> None:
        for sandbox in filter(self.tried, SANDBOXES):
            with self.subTest(sandbox):
                place, env = self.place()
                (place.root / "home/.config").unlink()
                place.directory("elsewhere/ipybox")
                place.link("workspace/link", place.root / "elsewhere")
                place.link("home/.config", place.workspace / "link")
                outcome = place.run("print(1)", sandbox=sandbox, env=env)
                self.assertEqual((outcome.status, outcome.output), (2, ""))
                self.assertRegex(outcome.errors, "is reached over the link .*/workspace/link, which code could exchange")

    def test_are_hidden_where_the_guest_could_not_look_anyway(self) -> None:
        for sandbox in filter(self.tried, SANDBOXES):
            with self.subTest(sandbox), Place() as place:
                home = place.root / "closed"
                (home / ".config/ipybox").mkdir(parents=True)
                (home / ".config/ipybox/always.json").touch()
                home.chmod(0o700)  # as root's own is, before whoever it becomes
                options = ["--sandbox-config", place.settings({"filesystem": {"allowWrite": ["."]}})]
                code = "try: print(os.listdir('../closed/.config/ipybox'))\nexcept OSError as error: print('refused')"
                self.assertIn(self.run_in(place, code, options, sandbox, HOME=str(home)), ("refused\n", "[]\n"))

    def test_no_setting_opens_them(self) -> None:
        place, env = self.place()
        for key in ("allowRead", "allowWrite"):
            for name in ("share/ipybox", "share/ipybox/tokens.json"):
                options = ["--sandbox-config", place.settings({"filesystem": {"allowWrite": ["."], key: [name]}})]
                for sandbox in filter(self.tried, SANDBOXES):
                    outcome = place.run("print(open('share/ipybox/tokens.json').read())", options, sandbox, env=env)
                    self.assertEqual((outcome.status, outcome.output), (2, ""), sandbox)
                    self.assertIn("lies in ipybox's own directory", outcome.errors)


class Settings(Case):
    """They add to what is hidden."""

    CODE = """
for path in (".env", "sub/.env"):
    try:
        text = read(path)
    except OSError as error:
        print("refused:", path, why(error))
    else:
        print("ESCAPED:" if "KEY=" in text else "refused:", path)
"""

    def test_do_not_show_what_is_hidden_without_them(self) -> None:
        for sandbox in filter(self.tried, SANDBOXES):
            with self.subTest(sandbox), Place() as place:
                for name in (".env", "sub/.env"):
                    place.file("workspace/" + name, "KEY=x")
                for allowed, seen in (([], ()), (["."], ()), ([".env"], (".env",)), (["sub/.env"], ("sub/.env",))):
                    settings = place.settings({"filesystem": {"allowWrite": ["."], "allowRead": allowed}})
                    printed = self.run_in(place, self.CODE, ["--sandbox-config", settings], sandbox)
                    for name in (".env", "sub/.env"):
                        self.assertIn(("ESCAPED: " if name in seen else "refused: ") + name, printed, allowed)


class AuditLog(Case):
    CODE = """
attempt(lambda: write("../logs/audit.jsonl", "forged"))
attempt(lambda: os.unlink("../logs/audit.jsonl"))
attempt(lambda: os.rename("../logs/audit.jsonl", "../logs/old"))
attempt(lambda: os.rename("../logs", "../other"))
write("../logs/fresh", "forged")
attempt(lambda: os.rename("../logs/fresh", "../logs/audit.jsonl"))
"""

    def attacked(self, sandbox: str, named: bool = True, **env: str) -> tuple[str, str, str]:
        """What the code said, the log, and what is said of that."""
        with Place() as place:
            logs = place.directory("logs")
            log = place.file("logs/audit.jsonl", "", 0o600)
            settings = place.settings({"filesystem": {"allowWrite": [".", str(logs)], "allowRead": [str(log)] if named else []}})
            hand_over(place.root)  # so that nothing but the sandbox keeps it from being renamed
            printed = self.run_in(place, self.CODE, ["--sandbox-config", settings, "--audit", str(log)], sandbox, **env)
            verified = subprocess.run([PROGRAM, "audit", "verify", str(log)], env=environment(**env), timeout=60, capture_output=True, text=True)
            return printed, log.read_text(), verified.stdout

    def test_is_out_of_reach_wherever_it_lies(self) -> None:
        for sandbox, named in ((s, n) for s in filter(self.tried, SANDBOXES) for n in (False, True)):
            with self.subTest(sandbox, named=named):
                printed, text, verified = self.attacked(sandbox, named)
                self.assertEqual([json.loads(line)["event"] for line in text.splitlines()],
                                 ["chain", "opened", "execution", "execution_end", "head"], printed)
                self.assertTrue(verified.startswith("whole: "), verified)
                if sandbox == "bubblewrap":
                    self.assertNotIn("ESCAPED", printed)

    def test_is_forged_without_that_layer(self) -> None:
        self.require("bubblewrap_weakened")
        sandbox, weak = without("hidden")
        printed, text, verified = self.attacked(sandbox, False, **weak)
        self.assertIn("ESCAPED", printed)
        self.assertTrue(text.startswith("forged\n"), text)
        # What was there is gone, but not unnoticed.
        self.assertIn("NOT whole: ", verified)
        self.assertIn("the log no longer ended with record 3, which the host knew", verified)


class Home(Case):
    CODE = """
def plant(path):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return write(path)
for path in (".local/bin/bwrap", ".local/lib/python3.11/site-packages/usercustomize.py", ".ssh/authorized_keys", ".npmrc",
             ".config/autostart/x.desktop", ".tool/rc"):
    attempt(lambda: plant(path))
write("notes.txt")
print("worked")
"""

    def test_is_no_workspace_unless_asked_for(self) -> None:
        for home, says in ((".", "is a home directory"), ("below/it", "holds a home directory")):
            with Place() as place:
                env = {"HOME": str(place.directory("workspace/" + home))}
                outcome = place.run("print(1)", env=env)
                self.assertEqual((outcome.status, outcome.output), (2, ""))
                self.assertRegex(outcome.errors, says + ".*--allow-home")
                self.assertEqual(self.run_in(place, "print('allowed')", ["--allow-home"], **env), "allowed\n")

    def test_decides_about_no_program_of_its_owner(self) -> None:
        for sandbox in filter(self.tried, SANDBOXES):
            with self.subTest(sandbox), Place() as place:
                place.file("workspace/.tool/rc", "kept")
                printed = self.run_in(place, self.CODE, ["--allow-home"], sandbox, HOME=str(place.workspace))
                self.assertTrue(printed.endswith("worked\n"), printed)
                if sandbox == "bubblewrap":
                    self.assertNotIn("ESCAPED", printed)
                left = {str(p.relative_to(place.workspace)) for p in place.workspace.rglob("*") if p.is_file()}
                self.assertEqual({name for name in left if not name.startswith(".ipybox")}, {".tool/rc", "notes.txt"})
                self.assertEqual((place.workspace / ".tool/rc").read_text(), "kept")

    def test_would_without_that_layer(self) -> None:
        self.require("bubblewrap_weakened")
        with Place() as place:
            place.file("workspace/.tool/rc", "kept")
            sandbox, weak = without("protect")
            printed = self.run_in(place, self.CODE, ["--allow-home"], sandbox, HOME=str(place.workspace), **weak)
            self.assertEqual(printed.count("ESCAPED"), 6, printed)
            self.assertTrue((place.workspace / ".local/bin/bwrap").exists())


class Client:
    """Speaks MCP with `ipybox serve` on standard input and output."""

    def __init__(self, place: Place, *flags: str, where: str = "bubblewrap", **env: str):
        self.process = subprocess.Popen([PROGRAM, "serve", *WHERE[where], *flags], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=place.root,
                                        env=environment(**env))
        self.number = 0
        self.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {},
                                    "clientInfo": {"name": "test", "version": "1"}})
        self.send({"method": "notifications/initialized"})

    def send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def request(self, method: str, params: dict) -> dict:
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        while line := self.process.stdout.readline():
            message = json.loads(line)
            if message.get("id") == self.number and "method" not in message:
                return message.get("result") or {"isError": True, "content": [{"text": json.dumps(message["error"])}]}
        raise AssertionError("the program ended")

    def call(self, tool: str, **arguments: object) -> tuple[bool, str]:
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        return not result.get("isError", False), "".join(block.get("text", "") for block in result["content"])

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


class AuditState(Case):
    """The key that signs the audit log, and the head it has to end with, where the code may write everything beside them."""

    CODE = """
import os, glob
state, log = "state/ipybox/audit", "../logs/audit.jsonl"
def tried(name, action):
    try:
        got = action()
    except OSError as error:
        return print("refused:", name, why(error))
    print("ESCAPED:" if got else "refused:", name, got)
tried("list", lambda: os.listdir(state))
tried("key", lambda: "PRIVATE" in read(state + "/key.pem"))
tried("heads", lambda: glob.glob(state + "/*.head"))
tried("plant a key", lambda: write(state + "/key.pem", "mine") or True)
tried("move the state", lambda: os.rename("state", "elsewhere") or True)
tried("move what is in it", lambda: os.rename("state/ipybox", "state/mine") or True)
tried("remove", lambda: os.rmdir("state/ipybox") or True)
tried("log", lambda: read(log))
tried("append to the log", lambda: write(log, "{}") or True)
"""

    def recorded(self, sandbox: str, code: str, *options: str, **env: str) -> tuple[Place, str, dict[str, str]]:
        place = Place()
        self.addCleanup(place.__exit__)
        place.directory("workspace/state")
        place.directory("logs")
        own = {"XDG_STATE_HOME": str(place.workspace / "state"), **env}
        flags = ["--audit", str(place.root / "logs/audit.jsonl"), *options]
        # The key is there already when the code comes.
        self.run_in(place, "print('first')", flags, sandbox, **own)
        return place, self.run_in(place, code, flags, sandbox, **own), own

    def verified(self, place: Place, own: dict[str, str]) -> int:
        return subprocess.run([PROGRAM, "audit", "verify", str(place.root / "logs/audit.jsonl")], env=environment(**own), timeout=60,
                              capture_output=True).returncode

    def test_is_out_of_the_kernel_s_reach(self) -> None:
        for sandbox in filter(self.tried, SANDBOXES):
            with self.subTest(sandbox):
                place, printed, own = self.recorded(sandbox, self.CODE)
                for name in ("list", "key", "heads", "move the state", "move what is in it", "remove", "log"):
                    self.assertIn("refused: " + name, printed)
                if sandbox == "bubblewrap":  # what srt hides can be written, and is gone at the end
                    self.assertNotIn("ESCAPED", printed)
                self.assertEqual(self.verified(place, own), 0)

    def test_is_within_reach_without_that_layer(self) -> None:
        self.require("bubblewrap_weakened")
        sandbox, weak = without("hidden")
        _, printed, _ = self.recorded(sandbox, self.CODE, **weak)
        self.assertIn("ESCAPED: move the state", printed)

    def test_is_out_of_a_confined_server_s_reach(self) -> None:
        for sandbox in filter(self.tried, SANDBOXES):
            with self.subTest(sandbox), Place() as outer:
                script = outer.file("server.py", SERVER)
                server = {"command": "/usr/bin/python3", "args": [str(script)],
                          "sandbox": {"name": sandbox, "readable": [str(script.parent), "${WORKSPACE}"], "writable": ["${WORKSPACE}"]}}
                config = outer.file("mcp.json", json.dumps({"mcpServers": {"files": server}}))
                code = """
from mcptools.files import act
place = os.getcwd() + "/state/ipybox"
for action in ("__import__('os').listdir(%r + '/audit')", "open(%r + '/audit/key.pem').read()", "open(%r + '/../../../logs/audit.jsonl').read()"):
    said = act.run(code=action % place)
    print("refused" if said.startswith("refused") or said in ("[]", "") else "ESCAPED:", said)
"""
                place, printed, own = self.recorded(sandbox, code, "--config", str(config), "--approve", "allow")
                self.assertEqual([line.split()[0] for line in printed.splitlines()], ["refused"] * 3, printed)
                self.assertEqual(self.verified(place, own), 0)


class OnBehalf(Case):
    """A client's model has files read and written: it may do what the code may."""

    def test_nothing_is_planted_in_the_interpreter(self) -> None:
        for where in filter(self.tried, WHERE):
            with self.subTest(where), Place() as place:
                environment_place = place.workspace / "tools/python"
                subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(environment_place)], check=True, timeout=120)
                packages = next(environment_place.glob("lib/python3*/site-packages"))
                paths = subprocess.run([PYTHON, "-c", "import site; print('\\n'.join(site.getsitepackages()))"], check=True,
                                       capture_output=True, text=True).stdout
                (packages / "those.pth").write_text(paths)
                inside = packages.relative_to(place.workspace)
                planted = f"import os; open({str(place.outside / 'pwned')!r}, 'w').close()\n"
                # Before anything has asked the interpreter what it is.
                options = ("--workspace", str(place.workspace), "--python", str(environment_place / "bin/python"))
                with Client(place, *options, where=where) as client:
                    names = (f"{inside}/evil.pth", f"{inside}/those.pth", "tools/python/bin/python", "tools/python/pyvenv.cfg")
                    for name in names:
                        done, said = client.call("upload_file", path=name, content=planted)
                        self.assertFalse(done, said)
                        self.assertIn("is protected", said)
                    done, said = client.call("upload_file", path="tools/other/evil.pth", content=planted)
                    self.assertTrue(done, said)
                    # Nor where the kernel has been asked, and runs.
                    done, said = client.call("execute_ipython_cell", code=f"for name in {names!r}:\n    try: open(name, 'a'); print('ESCAPED', name)\n"
                                             "    except OSError: print('refused')")
                    self.assertEqual((done, said.split()), (True, ["refused"] * len(names)))
                    self.assertIn("is protected", client.call("upload_file", path=names[0], content=planted)[1])
                self.assertFalse((packages / "evil.pth").exists())
                self.assertFalse((place.outside / "pwned").exists())

    def test_the_name_of_the_workspace_hides_nothing_less(self) -> None:
        for name, where in (("set [1]", "bubblewrap"), ("set [1]", "srt"), ("set [1]", "gateway"), ("a*b", "bubblewrap"), ("who?", "bubblewrap")):
            if not self.tried(where):
                continue
            with self.subTest(name, where=where), Place() as place:
                workspace = place.directory(name)
                place.file(name + "/.env", "KEY=" + place.token)
                place.file(name + "/sub/.env", "KEY=" + place.token)
                place.file(name + "/plain", "seen")
                with Client(place, "--workspace", str(workspace), where=where) as client:
                    for path in (".env", "sub/.env"):
                        done, said = client.call("download_file", path=path)
                        self.assertFalse(done)
                        self.assertIn("is protected", said)
                    self.assertEqual(client.call("download_file", path="plain"), (True, "seen"))
                    done, said = client.call("execute_ipython_cell", code="for p in ('.env', 'sub/.env'):\n"
                                             "    try: print(len(open(p).read()))\n    except OSError as e: print('refused')")
                    self.assertTrue(set(said.split()) <= {"0", "refused"}, said)  # srt shows an empty file

    def test_what_a_hidden_link_leads_to_is_hidden_under_every_name(self) -> None:
        with Place() as place:
            workspace = place.directory("linked")
            place.file("linked/other/settings", "KEY=" + place.token)
            place.file("linked/sub/plain", "seen")
            (workspace / "sub/.env").symlink_to("../other/settings")
            with Client(place, "--workspace", str(workspace)) as client:
                done, said = client.call("execute_ipython_cell", code="import os\ntry: print(open('other/settings').read())\n"
                                         "except OSError as e: print(e.errno)\ntry: os.remove('sub/.env')\n"
                                         "except OSError as e: print(e.errno)\n"
                                         "try: os.rename('other', 'new')\nexcept OSError as e: print(e.errno)")
                self.assertEqual(said.split(), [str(errno.EACCES), str(errno.EBUSY), str(errno.EBUSY)])
                for name in ("other/settings", "sub/new/settings"):
                    done, said = client.call("download_file", path=name)
                    self.assertFalse(done, said)
                    self.assertIn("is protected", said)
                    if (workspace / "other").exists():
                        (workspace / "other").rename(workspace / "sub/new")  # the host can
                self.assertEqual(client.call("download_file", path="sub/plain"), (True, "seen"))

    def test_no_repository_is_led_elsewhere(self) -> None:
        for where in filter(self.tried, WHERE):
            with self.subTest(where), Place() as place, Client(place, "--workspace", str(place.workspace), where=where) as client:
                for name in (".git", ".git/config", ".git/hooks/pre-commit", ".mcp.json", ".venv/bin/python", ".env", "sub/.env"):
                    done, said = client.call("upload_file", path=name, content="gitdir: evil")
                    self.assertFalse(done, name)
                    self.assertIn("is protected", said)
                self.assertTrue(client.call("upload_file", path="evil/config", content="x")[0])


class Images(Case):
    def test_are_not_saved_where_code_must_not_write(self) -> None:
        code = "from IPython.display import Image, display\nimport base64\n" \
               "display(Image(base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==')))"
        for sandbox in filter(self.tried, SANDBOXES):
            with self.subTest(sandbox), Place() as place:
                self.attack(place, code, sandbox)

    def attack(self, place: Place, code: str, sandbox: str) -> None:
        place.repository()
        for directory in (".git/hooks", str(place.workspace / ".git/hooks"), ".venv/lib"):
            before = sorted(place.workspace.rglob("*.png"))
            outcome = place.run(code, ["--images-dir", directory], sandbox)
            self.assertIn("an image could not be saved", outcome.errors + outcome.output)
            self.assertEqual(sorted(place.workspace.rglob("*.png")), before)
        outcome = place.run(code, ["--images-dir", str(place.workspace / "pictures")], sandbox)
        self.assertEqual(len(list((place.workspace / "pictures").iterdir())), 1, outcome)
        # A link that code left, named by a path that does not begin in the workspace.
        place.link("workspace/planted", place.outside)
        place.link("alias", place.workspace)
        for directory in (str(place.workspace / "planted"), str(place.root / "alias/planted")):
            outcome = place.run(code, ["--images-dir", directory], sandbox)
            self.assertIn("leads over the link", outcome.errors + outcome.output)
        self.assertEqual(sorted(p.name for p in place.outside.iterdir()), ["secret"])


class NextStart(Case):
    """What code leaves does not keep the next kernel from starting."""

    def test_goes_well_after_links_and_depth(self) -> None:
        for sandbox in filter(self.tried, SANDBOXES):
            with self.subTest(sandbox), Place() as place:
                place.repository()
                left = self.run_in(place, f"""
import shutil
for number, target in enumerate((sys.executable, json.__file__ if 'json' in globals() else os.__file__, "/usr/bin/env", "/lib64",
                                 {sys.prefix!r}, "/etc/passwd")):
    os.makedirs(f"links/{{number}}")
    os.symlink(target, f"links/{{number}}/.env")
os.makedirs("sub")
for name in (".bashrc", ".mcp.json", ".vscode", ".git"):
    os.symlink("/nowhere", "sub/" + name)
handle = os.open(".", os.O_RDONLY)
for _ in range(60):
    os.mkdir("d" * 200, dir_fd=handle)
    handle = os.open("d" * 200, os.O_RDONLY, dir_fd=handle)
os.open(".env", os.O_CREAT | os.O_WRONLY, dir_fd=handle)
print("left")
""", [], sandbox)
                self.assertEqual(left, "left\n")
                self.assertEqual(self.run_in(place, "import json, pydantic\nprint('started')", [], sandbox), "started\n")
                settings = place.settings({"filesystem": {"allowWrite": ["."]}})
                self.assertEqual(self.run_in(place, "print('started')", ["--sandbox-config", settings], sandbox), "started\n")

    def test_goes_well_with_settings_that_are_no_files(self) -> None:
        for kind in ("fifo", "device", "large", "link"):
            with self.subTest(kind), Place() as place:
                path = place.workspace / ".env"
                if kind == "fifo":
                    os.mkfifo(path)
                elif kind == "large":
                    path.write_text("A=b\n" * 300_000)
                else:
                    path.symlink_to("/dev/zero" if kind == "device" else place.secret)
                outcome = place.run("print('started')", [], "none" if path.is_symlink() else "bubblewrap", 60)
                self.assertEqual(outcome.output, "started\n", outcome.errors)
                self.assertIn(".env is not read", outcome.errors)


SERVER = '''
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, result = message["method"], {}
    if method == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "files", "version": "1"}}
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
        result = {"tools": [{"name": "act", "inputSchema": schema}]}
    elif method == "tools/call":
        try:
            text = str(eval(message["params"]["arguments"]["code"]))
        except OSError as error:
            text = "refused: " + error.strerror
        result = {"content": [{"type": "text", "text": text}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
'''


class ConfinedServers(Case):
    """Whom the code asks to write into a project."""

    CODE = """
from mcptools.files import act
for action in ("open('.git/hooks/pre-commit', 'w')", "open('.git/config', 'a')", "open('.mcp.json', 'w')", "open('.env').read()",
               "__import__('os').makedirs('.venv/bin')"):
    said = act.run(code=action)
    print("refused:" if said.startswith("refused") else "ESCAPED:", action, said)
print(act.run(code="open('plain', 'w').write('x')"), act.run(code="__import__('resource').getrlimit(7)"))
"""

    def attacked(self, sandbox: str, **env: str) -> str:
        with Place() as place:
            place.repository()
            place.file("workspace/.env", "KEY=" + place.token)
            script = place.file("server/server.py", SERVER)
            server = {"command": "/usr/bin/python3", "args": [str(script)], "cwd": str(place.workspace),
                      "sandbox": {"name": sandbox, "readable": [str(script.parent)], "writable": [str(place.workspace)]}}
            config = place.file("mcp.json", json.dumps({"mcpServers": {"files": server}}))
            before = self.kept(place)
            printed = self.run_in(place, self.CODE, ["--config", str(config), "--approve", "allow"], **env)
            if sandbox in SANDBOXES:  # what srt hides can be written, and is gone at the end
                self.assertEqual(self.kept(place), before)
                self.assertNotIn(place.token, printed)
            return printed

    @staticmethod
    def kept(place: Place) -> dict[str, str]:
        protected = (".git/config", ".git/hooks/pre-commit", ".mcp.json", ".env", ".venv/bin")
        return {name: (place.workspace / name).read_text() if (place.workspace / name).is_file() else
                str((place.workspace / name).exists()) for name in protected}

    def test_have_a_kernel_s_protections_and_limits(self) -> None:
        for sandbox in filter(self.tried, SANDBOXES):
            with self.subTest(sandbox):
                printed = self.attacked(sandbox)
                if sandbox == "bubblewrap":
                    self.assertNotIn("ESCAPED", printed)
                self.assertEqual(printed.splitlines()[-1], "1 (4096, 4096)")

    def test_would_do_it_without(self) -> None:
        self.require("bubblewrap_weakened")
        sandbox, weak = without("protect,hidden,limits")
        printed = self.attacked(sandbox, **weak)
        # What is absent the kernel's own sandbox holds for the kernel alone.
        self.assertEqual(printed.count("ESCAPED"), 5, printed)
        self.assertNotIn("4096, 4096", printed.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
