"""`ipybox host` as programs that embed it see it; each message is checked against protocol.json."""
import asyncio
import base64
import contextlib
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, os.environ["IPYBOX_TEST_SUPPORT"])
from workspace import make_directory  # noqa: E402

try:
    from host_client import PROGRAM, PROTOCOL, HostClient, HostError, started
except ImportError as error:
    raise unittest.SkipTest(f"jsonschema is not installed ({error}); scripts/setup --tests does that")

PYTHON = os.environ["IPYBOX_TEST_PYTHON"]
SUPPORT = Path(os.environ["IPYBOX_TEST_SUPPORT"])
ROOT = SUPPORT.parent.parent
SERVER = {"command": "python3", "args": [str(SUPPORT / "mcp_server.py")]}
IMAGE = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"


def processes_with(text):
    """The processes whose environment or command line has the text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


async def gone(text, seconds):
    """Whether all such processes have ended within the time."""
    deadline = time.monotonic() + seconds
    while processes_with(text):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


class HostTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.directory = make_directory("ipybox-host-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.workspace = self.directory / "workspace"

    def environment(self):
        return {"PATH": os.environ["PATH"], "HOME": str(self.directory), "IPYBOX_PYTHON": PYTHON}

    @contextlib.asynccontextmanager
    async def host(self, *flags, initialized=True, **keywords):
        errors = (self.directory / "stderr").open("ab")
        with errors:
            async with started(*flags, env=self.environment(), cwd=self.directory, stderr=errors,
                               **keywords) as client:
                if initialized:
                    await client.initialize()
                yield client

    def options(self, **more):
        return {"workspace": str(self.workspace), "kernel_init_timeout": 60, **more}

    async def session(self, client, start=True, **options):
        made = await client.call("session/create", options=self.options(**options))
        if start:
            await client.call("session/start", session=made["session"])
        return made["session"]

    async def fails(self, code, call, number=None, field=None):
        with self.assertRaises(HostError) as caught:
            await call
        self.assertEqual(caught.exception.code, code, str(caught.exception))
        if number is not None:
            self.assertEqual(caught.exception.number, number)
        if field is not None:
            self.assertEqual(caught.exception.field, field)
        return str(caught.exception)


class OpeningTest(HostTest):
    async def test_capabilities_name_all_of_the_schema(self):
        async with self.host(initialized=False) as client:
            await self.fails("bad_argument", client.call("session/create"), -32600)
            opened = await client.initialize()
            self.assertEqual(opened["capabilities"]["methods"], list(PROTOCOL["methods"]))
            self.assertEqual(opened["capabilities"]["notifications"], list(PROTOCOL["notifications"]))
            await self.fails("bad_argument", client.initialize())

    async def test_another_version_is_refused(self):
        async with self.host(initialized=False) as client:
            said = await self.fails("bad_argument", client.call(
                "initialize", checked=False, protocol_version=2, client={"name": "t", "version": "1"}),
                -32602, "/protocol_version")
            self.assertIn("must be 1", said)
            await client.initialize()

    def test_the_schema_is_printed(self):
        printed = subprocess.run([PROGRAM, "host", "--schema"], capture_output=True, check=True).stdout
        self.assertEqual(json.loads(printed), PROTOCOL)

    async def test_mistakes_name_the_field(self):
        async with self.host() as client:
            call = client.call
            for params, field in (
                    ({"options": {"programs": "some"}}, "/options/programs"),
                    ({"options": {"kernel_init_timeout": -1}}, "/options/kernel_init_timeout"),
                    ({"options": {"max_output": 1.5}}, "/options/max_output"),
                    ({"options": {"max_output": 1e300}}, "/options/max_output"),
                    ({"options": {"kernel_env": {"A": 1}}}, "/options/kernel_env/A"),
                    ({"options": {"limits": {"memory": 1}}}, "/options/limits/memory"),
                    ({"options": {"aproval": "ask"}}, "/options/aproval")):
                with self.subTest(params=params):
                    await self.fails("bad_argument", call("session/create", checked=False, **params), -32602, field)
            said = await self.fails("bad_argument", call("session/creat", checked=False), -32601)
            self.assertIn('did you mean "session/create"', said)
            for method, params in (("session/start", {"session": "s9"}), ("tools/servers", {"tools": "t1"}),
                                   ("kernel/reset", {"kernel": "k1"}), ("gateway/join", {"gateway": "g1"}),
                                   ("session/close", {"session": "s1"}),
                                   ("approval/answer", {"approval": "a1", "verdict": "deny"}),
                                   ("input/answer", {"input": "i1", "text": None})):
                with self.subTest(method=method):
                    await self.fails("bad_argument", call(method, **params), -32602)
            await self.fails("bad_argument", call("session/create", options={"workspace": "/no/such/place"}), -32000)
            await self.fails("no_such_plugin", call("session/create", options=self.options(sandbox="sand")), -32000)


class HostileTest(HostTest):
    async def test_lines_that_are_no_messages(self):
        async with self.host() as client:
            for line, number in (
                    (b"hello", -32700), (b"{", -32700), (b'{"a":\xff\xfe', -32700), (b"[]", -32600),
                    (b'[{"jsonrpc":"2.0","id":9,"method":"initialize"}]', -32600),
                    (b'{"jsonrpc":"1.0","id":9,"method":"initialize"}', -32600),
                    (b'{"jsonrpc":"2.0","id":null,"method":"initialize"}', -32600),
                    (b'{"jsonrpc":"2.0","id":{},"method":"initialize"}', -32600),
                    (b'{"jsonrpc":"2.0","id":9,"method":"initialize","params":[1]}', -32602),
                    (b'{"jsonrpc":"2.0","id":9,"method":7}', -32600),
                    (b'{"jsonrpc":"2.0","id":9}', -32600),
                    (b"[" * 100_000, -32700),
                    (b'{"jsonrpc":"2.0","id":9,"method":"session/create","params":' + b'{"a":' * 3000 + b"1"
                     + b"}" * 3001, -32700)):
                with self.subTest(line=line[:60]):
                    client.strays.clear()
                    client.writer.write(line + b"\n")
                    async with asyncio.timeout(20):
                        while not client.strays:
                            client.heard.clear()
                            await client.heard.wait()
                    self.assertEqual(client.strays[0]["error"]["code"], number, client.strays)
            # Neither blank lines, nor answers, nor notifications that nobody knows are answered.
            client.strays.clear()
            client.writer.write(b'\n\r\n{"jsonrpc":"2.0","id":1,"result":{}}\n{"jsonrpc":"2.0","method":"x"}\n'
                                b'{"jsonrpc":"2.0","method":"$/cancel","params":{"id":[]}}\n')
            await self.fails("bad_argument", client.call("session/status", session="s1"), -32602)
            self.assertEqual(client.strays, [])

    async def test_a_line_that_is_too_long_is_passed_over(self):
        async with self.host() as client:
            client.writer.write(b'{"jsonrpc":"2.0","id":77,"method":"session/create","params":{"x":"')
            piece = b"y" * (1 << 20)
            for _ in range(65):
                client.writer.write(piece)
                await client.writer.drain()
            client.writer.write(b'"}}\n')
            await self.fails("bad_argument", client.call("session/status", session="s1"), -32602)
            self.assertEqual([stray["id"] for stray in client.strays], [77])
            self.assertIn("longer than the limit", client.strays[0]["error"]["message"])
            status = Path(f"/proc/{client.process.pid}/status").read_text()
            peak, mapped = (int(status.split(f"{name}:")[1].split()[0]) for name in ("VmHWM", "VmPeak"))
            sanitized = mapped > 1 << 30  # AddressSanitizer maps terabytes, and keeps what was freed
            self.assertLess(peak, 800_000 if sanitized else 300_000, "kB")

    async def test_a_directory_that_another_session_swaps_leads_to_no_protected_name(self):
        """While a sandbox is opened: afterwards nobody can, because what leads there is a mount.

        Where placeholders hold names the mount goes where its directory is renamed to. What code
        writes stays in sandbox and workspace, and bwrap is led to make nothing outside.
        """
        swapping = ("import os, time\nend = time.time() + 8\nwhile time.time() < end:\n"
                    "    try:\n"
                    "        os.makedirs('sub', exist_ok=True); time.sleep(0.004)\n"
                    "        os.rename('sub', 'old'); absent(); os.symlink('..', 'sub'); time.sleep(0.002)\n"
                    "        os.unlink('sub'); absent(); os.rename('old', 'sub'); time.sleep(0.002)\n"
                    "    except OSError: time.sleep(0.001)\n")
        # Where placeholders hold names, one would come to lie there meanwhile, keep `sub` from coming back, and with it
        # every session from starting: there the two follow at once.
        for_long, briefly = (f"absent = lambda: {action}\n{swapping}" for action in ("time.sleep(0.002)", "None"))
        writing = ("import os\n"
                   "way = 'overlay' if f' {os.getcwd()} ' in ''.join(\n"
                   "    line for line in open('/proc/self/mountinfo') if ' - overlay ' in line) else 'placeholders'\n"
                   "try:\n"
                   "    with open('sub/held', 'w') as file:\n"
                   "        file.write('escaped'); print(way, 'wrote', os.readlink(f'/proc/self/fd/{file.fileno()}'))\n"
                   "except OSError as e: print(way, e.errno)")
        protected = [str(self.workspace / "sub/held")]
        with self.subTest(absent_names="overlay"):
            outcomes, _ = await self.outcomes_while_swapped(for_long, writing, "overlay", write_protected=protected)
            self.assertEqual(set(outcomes), {f"overlay {errno.EROFS}"}, outcomes)
            self.assertEqual(list(self.directory.rglob("held")), [])
        with self.subTest(absent_names="placeholders"):
            outcomes, _ = await self.outcomes_while_swapped(briefly, writing, "placeholders", write_protected=protected)
            self.assertIn(f"placeholders {errno.EROFS}", outcomes)
            self.assertEqual([path for path in self.directory.rglob("held")
                              if not path.is_relative_to(self.workspace)], [])

    async def test_a_hidden_file_is_not_moved_past_the_search_for_it(self):
        """A session that could move the directory around it would show it to the next one."""
        for directory in ("sub/inner", "target"):
            (self.workspace / directory).mkdir(parents=True)
        (self.workspace / "sub/inner/.env").write_text("SECRET=1")
        (self.workspace / "target/settings").write_text("SECRET=2")
        (self.workspace / "sub/.env").symlink_to("../target/settings")
        for path in self.workspace.rglob("*"):
            if os.geteuid() == 0:  # the code's are those of its user
                os.chown(path, 65534, 65534, follow_symlinks=False)
        moving = ("import os, time\nend = time.time() + 8\nmoved = set()\nwhile time.time() < end:\n"
                  "    for a, b in (('sub', 'b'), ('sub/inner', 'c'), ('target', 'd')):\n"
                  "        for old, new in ((a, b), (b, a)):\n"
                  "            try: os.rename(old, new); moved.add(old); time.sleep(0.002)\n"
                  "            except OSError: pass\n"
                  "    try: os.unlink('sub/.env'); moved.add('sub/.env')\n"
                  "    except OSError: pass\n"
                  "    time.sleep(0.002)\n"
                  "print(moved)")
        reading = ("import os\nfound = set()\nfor at, _, names in os.walk('.'):\n"
                   "    for name in names:\n"
                   "        try: found.add(open(os.path.join(at, name)).read())\n"
                   "        except OSError: pass\n"
                   "print(found)")
        for names in ("overlay", "placeholders"):
            with self.subTest(absent_names=names):
                outcomes, said = await self.outcomes_while_swapped(moving, reading, names)
                self.assertTrue(outcomes, "no session started")
                self.assertEqual([outcome for outcome in outcomes if "SECRET" in outcome], [], outcomes)
                self.assertEqual(said, "set()")

    # In a workspace: whose it is, and a new file.
    WHOSE = "import os\nprint(open('file').read() if os.path.exists('file') else 'mine'); open('new', 'w').close()"

    def inner_and_outside(self):
        """A workspace in the workspace, and a directory with a secret that no session was given."""
        inner, outside = self.workspace / "inner", self.directory / "outside"
        for place in (inner, outside):
            place.mkdir()
            place.chmod(0o777)
        (outside / "file").write_text("SECRET")
        return inner, outside

    async def test_a_workspace_in_another_s_workspace_is_led_nowhere(self):
        """Code around it can put a link in its place: neither its next kernel nor the host goes along."""
        inner, outside = self.inner_and_outside()
        async with self.host() as client:
            around = await self.session(client)
            session = await self.session(client, workspace=str(inner))

            async def run(which, text):
                return (await client.call("session/execute", session=which, code=text))["text"]

            self.assertEqual(await run(session, self.WHOSE), "mine")
            swap = f"import os; os.rename('inner', 'old'); os.symlink({str(outside)!r}, 'inner')"
            await run(around, swap)
            before = sorted(outside.iterdir())
            led = str(self.workspace / "inner")
            for call in (client.call("session/reset", session=session),
                         self.session(client, workspace=str(inner)),
                         self.session(client, workspace=str(inner / "."), kernel="zmq")):
                said = await self.fails("sandbox_refused", call)
                self.assertIn(f"leads over the link {led}, which code in a sandbox may have put there", said)
            for call in (client.call("session/download", session=session, path="file"),
                         client.call("session/upload", session=session, path="other", data="aGFsbG8=")):
                self.assertIn("leads over a link by now", await self.fails("io_error", call))
            self.assertEqual(sorted(outside.iterdir()), before)
            await run(around, "import os; os.unlink('inner'); os.rename('old', 'inner')")
            await client.call("session/reset", session=session)
            self.assertEqual(await run(session, self.WHOSE), "mine")

    async def test_a_workspace_that_is_swapped_all_the_time_is_led_nowhere(self):
        inner, outside = self.inner_and_outside()
        (self.workspace / "link").symlink_to(outside)
        swapping = ("import ctypes, time\nlibc = ctypes.CDLL(None)\nend, done = time.time() + 8, 0\n"
                    "while time.time() < end:\n"
                    "    for pause in (0.002, 0.015):\n"
                    "        done += libc.renameat2(-100, b'inner', -100, b'link', 2) == 0; time.sleep(pause)\n"
                    "print(done > 100)")
        for names in ("overlay", "placeholders"):
            with self.subTest(absent_names=names):
                outcomes, said = await self.outcomes_while_swapped(swapping, self.WHOSE, names, workspace=str(inner))
                self.assertEqual(said, "True")
                self.assertEqual(set(outcomes), {"mine"}, outcomes)
                self.assertEqual([path.name for path in outside.iterdir()], ["file"])

    async def outcomes_while_swapped(self, swapping, code, names, **options):
        """What `code` said, and how often, in sessions that began while another was `swapping`; and what that said."""
        forked = {"kernel": "fork", "kernel_options": {"start": "forked"}, "sandbox_options": {"absent_names": names}}
        outcomes = {}
        async with self.host() as client:
            other = await self.session(client, **forked)
            _, swapped = client.begin("session/execute", {"session": other, "code": swapping})
            end = asyncio.get_running_loop().time() + 7
            while asyncio.get_running_loop().time() < end:
                session = None
                try:
                    session = await self.session(client, start=False, **options, **forked)
                    await client.call("session/start", session=session)
                    said = (await client.call("session/execute", session=session, code=code))["text"]
                    outcomes[said] = outcomes.get(said, 0) + 1
                except HostError as refused:
                    self.assertEqual(refused.code, "sandbox_refused", str(refused))
                if session:
                    await client.call("session/close", session=session)
            swapped = await client.finish(swapped)
            self.assertEqual(swapped["status"], "ok")
        return outcomes, swapped["text"]

    async def test_random_changes_of_messages(self):
        seed = int(os.environ.get("IPYBOX_FUZZ_SEED", random.randrange(1 << 30)))
        chance = random.Random(seed)
        messages = [json.dumps({"jsonrpc": "2.0", "id": f"changed-{number}", "method": method, "params": params})
                    for number, (method, params) in enumerate((
                        ("session/create", {"options": {"workspace": "/no/such", "approval": {"rules": []},
                                                       "limits": {"processes": 5}}}),
                        ("session/execute", {"session": "s1", "code": "1", "timeout": 3}),
                        ("session/upload", {"session": "s1", "path": "a", "data": "aGFsbG8="}),
                        ("tools/call", {"tools": "t1", "server": "a", "tool": "b", "arguments": {"x": 1e400}}),
                        ("approval/answer", {"approval": "a1", "verdict": "allow", "arguments": {}}),
                        ("audit/show", {"file": "/nowhere", "from": 3})))]
        print(f"seed {seed}", file=sys.stderr)
        async with self.host() as client:
            for _ in range(3000):
                line = bytearray(chance.choice(messages).encode())
                for _ in range(chance.randrange(1, 4)):
                    at = chance.randrange(len(line))
                    if chance.random() < 0.5:
                        line[at] = chance.choice(b'{}[]",:0e\\ \xff\x00n1')
                    else:
                        del line[at:at + chance.randrange(1, 12)]
                    line = line or bytearray(b"0")
                client.writer.write(line.replace(b"\n", b"") + b"\n")
            async with asyncio.timeout(60):
                await self.fails("bad_argument", client.call("session/status", session="none"), -32602)
            self.assertIsNone(client.process.returncode)

    async def test_requests_are_bounded(self):
        async with self.host() as client:
            session = (await client.call("session/create", options=self.options()))["session"]
            tools = (await client.call("tools/open"))["tools"]
            await client.call("tools/register", tools=tools, name="own", params=SERVER)
            answers = [client.begin("tools/call", {"tools": tools, "server": "own", "tool": "add",
                                                   "arguments": {"a": 1, "b": 2}})[1] for _ in range(1024 + 50)]
            await asyncio.gather(*answers[-50:])  # at once, because the others wait for a yes
            refused = [answer.result()["error"]["data"]["code"] for answer in answers if answer.done()]
            self.assertEqual(refused, ["busy"] * 50)
            # What ends things is done all the same.
            await client.call("tools/close", tools=tools)
            await client.call("session/close", session=session)
            results = await asyncio.wait_for(asyncio.gather(*answers[:-50]), 60)
            self.assertTrue(all("error" in result for result in results))

    async def test_an_id_in_use_is_refused(self):
        async with self.host() as client:
            session = await self.session(client)
            number, answer = client.begin("session/execute", {"session": session, "code": "import time; time.sleep(1)"})
            await client.notification("execution/started", request=number)
            client.send({"jsonrpc": "2.0", "id": number, "method": "session/start", "params": {"session": session}})
            with self.assertRaisesRegex(HostError, "give each its own"):
                await client.finish(answer)
            await client.call("session/stop", session=session)


class SessionTest(HostTest):
    async def test_output_displays_and_result(self):
        async with self.host() as client:
            session = await self.session(client)
            number, answer = client.begin("session/execute", {
                "session": session, "chunks": True, "displays": True, "streams": True, "measure": True,
                "code": "import sys\nprint('grüße'); print('bad', file=sys.stderr)\nopen('new.txt', 'w').write('x')\n"
                        + IMAGE + "\n6 * 7"})
            result = await client.finish(answer)
            self.assertEqual(result["status"], "ok", result["error"])
            self.assertEqual((result["value_repr"], result["stderr"]), ("42", "bad\n"))
            self.assertTrue(result["stdout"].startswith("grüße\n"))
            self.assertEqual(len(result["images"]), 1)
            self.assertTrue(Path(result["images"][0]).is_file())
            self.assertIn({"path": "new.txt", "change": "created"}, result["measures"]["files"])
            started = await client.notification("execution/started", request=number)
            self.assertEqual(started["execution"], result["execution"])
            display = await client.notification("execution/display", is_result=False)
            self.assertIn("image/png", display["data"])
            texts = [params["text"] for name, params in client.notifications
                     if name == "execution/output" and not params["stderr"]]
            self.assertEqual("".join(texts), "grüße\n")

    async def test_errors_and_states_are_results(self):
        async with self.host() as client:
            session = await self.session(client)
            result = await client.call("session/execute", session=session, code="x = 3\n1 / 0")
            self.assertEqual((result["status"], result["error_name"]), ("error", "ZeroDivisionError"))
            result = await client.call("session/execute", session=session, timeout=0.3,
                                       code="print(x, flush=True)\nimport time; time.sleep(60)")
            self.assertEqual((result["status"], result["text"]), ("timed_out", "3"))
            found = await client.call("session/variables", session=session)
            self.assertIn({"name": "x", "type": "int", "size": None, "repr": "3"}, found["variables"])
            found = await client.call("session/complete", session=session, code="grüße = x.bit_l")
            self.assertEqual(found, {"start": 12, "matches": ["bit_length"]})
            result = await client.call("session/execute", session=session, code="import os; os._exit(3)")
            self.assertEqual(result["status"], "kernel_lost")
            await self.fails("kernel_died", client.call("session/execute", session=session, code="1"))
            status = await client.call("session/reset", session=session)
            self.assertTrue(status["alive"])
            result = await client.call("session/execute", session=session, code="x")
            self.assertEqual(result["error_name"], "NameError")
            await client.call("session/close", session=session)
            await client.call("session/close", session=session)
            await self.fails("bad_argument", client.call("session/status", session=session), -32602, "/session")

    async def test_cancel_by_request_and_by_session(self):
        async with self.host() as client:
            session = await self.session(client)
            for way in ("request", "session"):
                number, answer = client.begin("session/execute", {
                    "session": session, "code": "print('begun', flush=True)\nimport time; time.sleep(60)",
                    "chunks": True})
                await client.notification("execution/output", request=number)
                status = await client.call("session/status", session=session)
                self.assertEqual(status["request"], number)
                await self.fails("busy", client.call("session/execute", session=session, code="1"))
                if way == "request":
                    client.cancel(number)
                else:
                    await client.call("execution/cancel", session=session)
                result = await client.finish(answer)
                self.assertEqual((result["status"], result["text"]), ("cancelled", "begun"))
            self.assertEqual((await client.call("session/execute", session=session, code="1"))["value_repr"], "1")

    async def test_another_request_can_be_cancelled(self):
        async with self.host() as client:
            number, answer = client.begin("kernel/connect", {"port": 9, "retries": 1000})
            await asyncio.sleep(0.2)
            client.cancel(number)
            await self.fails("cancelled", client.finish(answer))

    async def test_twenty_sessions_at_once(self):
        async with self.host() as client:
            sessions = await asyncio.gather(*(self.session(client) for _ in range(20)))
            answers = [client.begin("session/execute", {"session": session, "chunks": True, "code":
                                    f"import time\nfor i in range(5): print({index}, i, flush=True); time.sleep(0.05)"})
                       for index, session in enumerate(sessions)]
            for index, (number, answer) in enumerate(answers):
                result = await client.finish(answer)
                self.assertEqual(result["text"], "\n".join(f"{index} {i}" for i in range(5)))
                said = "".join(params["text"] for name, params in client.notifications
                               if name == "execution/output" and params["request"] == number)
                self.assertEqual(said.strip(), result["text"])

    async def test_sessions_one_after_the_other_share_the_warm_process(self):
        async with self.host() as client:
            for _ in range(60):  # the first ones do not wait for it, and are gone when it is ready
                session = await self.session(client)
                answer = await client.call("session/execute", session=session, code="import os; os.getppid()")
                await client.call("session/close", session=session)
                if answer["text"] == "0":  # its parent is outside
                    break
                await asyncio.sleep(0.2)
            self.assertEqual(answer["text"], "0")

    async def test_input_is_asked_for(self):
        async with self.host() as client:
            session = await self.session(client, allow_input=True)
            number, answer = client.begin("session/execute", {
                "session": session, "code": "import getpass\n(input('name? '), getpass.getpass('word? '))"})
            asked = await client.notification("execution/input", request=number)
            self.assertEqual((asked["prompt"], asked["password"]), ("name? ", False))
            said = await client.call("input/answer", input=asked["input"], text="Ada")
            self.assertTrue(said["accepted"])
            await client.notification("input/settled", input=asked["input"])
            said = await client.call("input/answer", input=asked["input"], text="Eve")
            self.assertFalse(said["accepted"])
            asked = await client.notification("execution/input", request=number)
            self.assertTrue(asked["password"])
            await client.call("input/answer", input=asked["input"], text="xyz")
            self.assertEqual((await client.finish(answer))["value_repr"], "('Ada', 'xyz')")
            number, answer = client.begin("session/execute", {"session": session, "code": "input()"})
            asked = await client.notification("execution/input", request=number)
            await client.call("input/answer", input=asked["input"], text=None)
            self.assertEqual((await client.finish(answer))["error_name"], "EOFError")

    async def test_files(self):
        async with self.host() as client:
            session = await self.session(client)
            big = os.urandom(3_000_000)
            text = base64.b64encode(big[:1_000_000]).decode()
            rest = base64.b64encode(big[1_000_000:]).decode()
            path = "data/big.bin"
            await client.call("session/upload", session=session, path=path, data=text, more=True)
            said = await self.fails("bad_argument", client.call(
                "session/upload", session=session, path=path, data=rest, offset=7), -32602, "/offset")
            self.assertIn("must be 1000000", said)
            await client.call("session/upload", session=session, path=path, data=text, more=True)
            done = await client.call("session/upload", session=session, path=path, data=rest, offset=1_000_000)
            self.assertEqual(done["size"], len(big))
            result = await client.call("session/execute", session=session,
                                       code=f"import hashlib; hashlib.sha256(open('{path}', 'rb').read()).hexdigest()")
            self.assertEqual(result["value_repr"], repr(hashlib.sha256(big).hexdigest()))
            part = await client.call("session/download", session=session, path=path, offset=2_999_990, limit=100)
            self.assertEqual((base64.b64decode(part["data"]), part["size"]), (big[-10:], len(big)))
            for bad in ("/etc/passwd", "../x"):
                await self.fails("bad_argument", client.call("session/download", session=session, path=bad))
                await self.fails("bad_argument", client.call("session/upload", session=session, path=bad, data=""))
            await self.fails("bad_argument", client.call("session/upload", session=session, path="a", data="?"), -32602)
            await self.fails("io_error", client.call("session/upload", session=session, path=path, data="",
                                                     overwrite=False))


class ApprovalTest(HostTest):
    CALL = "from mcptools.own import add\nprint(int(add.run(a=2, b=3).sum))"

    async def session_with_tools(self, client, **options):
        session = await self.session(client, **options)
        added = await client.call("session/add_server", session=session, name="own", params=SERVER)
        self.assertIn("add", added["modules"])
        return session

    async def test_a_call_waits_for_the_answer(self):
        async with self.host() as client:
            session = await self.session_with_tools(client)
            number, answer = client.begin("session/execute", {"session": session, "code": self.CALL})
            asked = await client.notification("approval/requested", session=session, request=number)
            call = asked["call"]
            self.assertEqual((call["server"], call["tool"], call["arguments"]), ("own", "add", {"a": 2, "b": 3}))
            self.assertEqual(asked["text"], "own.add(a=2, b=3)")
            self.assertIn("properties", call["input_schema"])
            said = await client.call("approval/answer", approval=asked["approval"], verdict="allow", by="Ada")
            self.assertTrue(said["accepted"])
            settled = await client.notification("approval/settled", approval=asked["approval"])
            self.assertEqual((settled["outcome"], settled["by"], settled["request"]), ("allowed", "Ada", number))
            self.assertEqual((await client.finish(answer))["text"], "5")
            for verdict in ("allow", "deny"):  # too late
                said = await client.call("approval/answer", approval=asked["approval"], verdict=verdict)
                self.assertFalse(said["accepted"])

    async def test_a_denial_has_a_reason_and_a_yes_other_arguments(self):
        async with self.host() as client:
            session = await self.session_with_tools(client)
            number, answer = client.begin("session/execute", {"session": session, "code": self.CALL})
            asked = await client.notification("approval/requested", request=number)
            await client.call("approval/answer", approval=asked["approval"], verdict="deny", reason="not today")
            result = await client.finish(answer)
            self.assertEqual(result["error_name"].rpartition(".")[2], "ApprovalRejectedError")
            self.assertIn("not today", result["error_value"])
            number, answer = client.begin("session/execute", {"session": session, "code": self.CALL})
            asked = await client.notification("approval/requested", request=number)
            await self.fails("bad_argument", client.call("approval/answer", approval=asked["approval"], verdict="deny",
                                                         arguments={}), -32602, "/arguments")
            await client.call("approval/answer", approval=asked["approval"], verdict="allow",
                              arguments={"a": 20, "b": 3})
            self.assertEqual((await client.finish(answer))["text"], "23")

    async def test_nothing_but_an_answer_allows(self):
        async with self.host() as client:
            session = await self.session_with_tools(client, approval_timeout=0.5)
            number, answer = client.begin("session/execute", {"session": session, "code": self.CALL})
            asked = await client.notification("approval/requested", request=number)
            settled = await client.notification("approval/settled", approval=asked["approval"])
            self.assertEqual(settled["outcome"], "expired")
            self.assertIn("expired", (await client.finish(answer))["error_value"])
            self.assertFalse((await client.call("approval/answer", approval=asked["approval"],
                                                verdict="allow"))["accepted"])
            result = await client.call("session/execute", session=session, code=self.CALL, approve="all")
            self.assertEqual(result["text"], "5")
            await client.call("session/set_policy", session=session, approval="deny")
            result = await client.call("session/execute", session=session, code=self.CALL, approve="all")
            self.assertIn("rejected", result["error_value"])

    async def test_a_cancelled_execution_takes_its_question_back(self):
        async with self.host() as client:
            session = await self.session_with_tools(client)
            number, answer = client.begin("session/execute", {"session": session, "code": self.CALL})
            asked = await client.notification("approval/requested", request=number)
            client.cancel(number)
            self.assertEqual((await client.finish(answer))["status"], "cancelled")
            await client.notification("approval/settled", approval=asked["approval"], outcome="withdrawn")
            self.assertFalse((await client.call("approval/answer", approval=asked["approval"],
                                                verdict="allow"))["accepted"])

    async def test_questions_of_two_sessions_at_once(self):
        async with self.host() as client:
            sessions = [await self.session_with_tools(client) for _ in range(2)]
            begun = [client.begin("session/execute", {"session": session, "code": self.CALL}) for session in sessions]
            for (number, answer), session in reversed(list(zip(begun, sessions, strict=True))):
                asked = await client.notification("approval/requested", request=number, session=session)
                await client.call("approval/answer", approval=asked["approval"], verdict="allow")
                self.assertEqual((await client.finish(answer))["text"], "5")

    async def test_tools_are_listed_and_found(self):
        async with self.host() as client:
            session = await self.session_with_tools(client)
            servers = (await client.call("session/servers", session=session))["servers"]
            self.assertEqual(servers, [{"name": "own", "type": "stdio", "state": "running"}])
            tools = (await client.call("session/list_tools", session=session, name="own"))["tools"]
            self.assertIn("add", [tool["name"] for tool in tools])
            found = await client.call("session/search_tools", session=session, query="add two numbers")
            self.assertIn("own.add", found["text"])
            told = await client.call("session/describe_tool", session=session, name="own.add")
            self.assertIn("a", told["text"])
            self.assertIn("add", (await client.call("session/stubs", session=session, name="own"))["text"])
            await client.call("session/unregister_server", session=session, name="own")
            await self.fails("bad_argument", client.call("session/list_tools", session=session, name="own"))

    async def test_audit_log_spans_and_heads(self):
        log = self.directory / "audit.jsonl"
        async with self.host() as client:
            session = await self.session_with_tools(client, audit={"file": str(log), "code_text": True}, spans=True)
            number, answer = client.begin("session/execute", {"session": session, "code": self.CALL})
            asked = await client.notification("approval/requested", request=number)
            await client.call("approval/answer", approval=asked["approval"], verdict="allow", by="Ada")
            await client.finish(answer)
            kinds = {params["span"]["kind"] for name, params in client.notifications if name == "session/span"}
            self.assertEqual(kinds, {"execution", "call", "approval"})
            await client.call("session/close", session=session)
            shown = await client.call("audit/show", file=str(log))
            calls = [record for record in shown["records"] if record["event"] == "call"]
            self.assertEqual((calls[0]["verdict"], calls[0]["by"], shown["next"]), ("allow", "Ada", None))
            first = await client.call("audit/show", file=str(log), limit=1)
            rest = await client.call("audit/show", file=str(log), **{"from": first["next"]})
            self.assertEqual(first["records"] + rest["records"], shown["records"])
            verified = await client.call("audit/verify", files=[str(log)])
            self.assertEqual(verified["outcome"], "whole", verified)
            pem = (await client.call("audit/key"))["pem"]
            self.assertRegex(pem, r"\A-----BEGIN PUBLIC KEY-----\n[^-]+-----END PUBLIC KEY-----\n\Z")
            key = self.directory / "key.pem"
            key.write_text(pem)
            verified = await client.call("audit/verify", files=[str(log)], keys=[str(key)])
            self.assertEqual(verified["outcome"], "whole", verified)
            log.write_text(log.read_text().replace("Ada", "Eve"))
            self.assertEqual((await client.call("audit/verify", files=[str(log)]))["outcome"], "broken")
            await self.fails("bad_argument", client.call("audit/show", file="/nowhere"))

    async def test_violations_are_told(self):
        async with self.host() as client:
            session = await self.session(client, allowed_hosts=["there.example.org"])
            result = await client.call("session/execute", session=session, code=(
                "import urllib.request\ntry: urllib.request.urlopen('http://other.example.org')\nexcept OSError: pass"))
            self.assertEqual([one["layer"] for one in result["violations"]], ["network"])
            told = await client.notification("session/violation", session=session)
            self.assertEqual(told["violation"]["layer"], "network")
            self.assertIn("other.example.org:80", told["violation"]["what"])


class ToolsTest(HostTest):
    async def test_calls_without_a_kernel(self):
        async with self.host() as client:
            tools = (await client.call("tools/open"))["tools"]
            await client.call("tools/register", tools=tools, name="own", params=SERVER)
            listed = (await client.call("tools/list", tools=tools, name="own"))["tools"]
            self.assertIn("add", [tool["name"] for tool in listed])

            def add(**more):
                return client.begin("tools/call", {"tools": tools, "server": "own", "tool": "add",
                                                   "arguments": {"a": 1, "b": 2}, **more})
            _, answer = add()
            asked = await client.notification("approval/requested", tools=tools)
            self.assertIsNone(asked["session"])
            await client.call("approval/answer", approval=asked["approval"], verdict="allow")
            self.assertIn("3", str((await client.finish(answer))["result"]))
            _, answer = add()
            asked = await client.notification("approval/requested", tools=tools)
            await client.call("approval/answer", approval=asked["approval"], verdict="deny", reason="no")
            await self.fails("denied", client.finish(answer))
            _, answer = add()
            asked = await client.notification("approval/requested", tools=tools)
            await client.call("approval/answer", approval=asked["approval"], verdict="allow",
                              arguments={"a": 10, "b": 2})
            self.assertIn("12", str((await client.finish(answer))["result"]))
            _, answer = add(timeout=0.4)
            asked = await client.notification("approval/requested", tools=tools)
            await self.fails("timed_out", client.finish(answer))
            await client.notification("approval/settled", approval=asked["approval"])
            number, answer = add()
            asked = await client.notification("approval/requested", tools=tools)
            client.cancel(number)
            await self.fails("cancelled", client.finish(answer))
            await client.notification("approval/settled", approval=asked["approval"])
            await client.call("tools/set_policy", tools=tools, approval="allow")
            self.assertIn("3", str((await client.finish(add()[1]))["result"]))
            await self.fails("mcp_error", client.call("tools/call", tools=tools, server="none", tool="add"))
            await client.call("tools/reset", tools=tools)
            self.assertEqual((await client.call("tools/servers", tools=tools))["servers"][0]["state"], "stopped")
            await client.call("tools/close", tools=tools)
            await self.fails("bad_argument", client.call("tools/reset", tools=tools), -32602)

    async def test_calls_over_http(self):
        async with self.host() as client:
            tools = (await client.call("tools/open", options={"approval": "allow"}))["tools"]
            where = await client.call("tools/listen", tools=tools)
            await self.fails("busy", client.call("tools/listen", tools=tools))
            port = int(where["url"].rpartition(":")[2])
            call = {"port": port, "server": "own", "tool": "add", "arguments": {"a": 1, "b": 2}}
            await self.fails("denied", client.call("runner/call", token="0" * 64, **call))
            await self.fails("denied", client.call("runner/call", token=where["token"], server_params=SERVER, **call))
            result = await client.call("runner/call", token=where["control_token"], server_params=SERVER, **call)
            self.assertIn("3", str(result["result"]))
            await client.call("runner/reset", token=where["control_token"], port=port)

    async def test_progress_of_a_call(self):
        async with self.host() as client:
            tools = (await client.call("tools/open", options={"approval": "allow"}))["tools"]
            await client.call("tools/register", tools=tools, name="own", params=SERVER)
            names = [tool["name"] for tool in (await client.call("tools/list", tools=tools, name="own"))["tools"]]
            self.assertIn("progress", names)
            await client.call("tools/call", tools=tools, server="own", tool="progress",
                              arguments={"steps": 3, "interval": 0.05})
            told = await client.notification("call/progress", tools=tools)
            self.assertEqual((told["total"], told["session"]), (3, None))

    async def test_apis_are_generated(self):
        async with self.host() as client:
            root = self.directory / "apis"
            done = await client.call("apigen/generate", name="own", params=SERVER, root_dir=str(root))
            self.assertTrue(done["written"])
            self.assertIn({"tool": "add", "module": "add"}, done["tools"])
            self.assertTrue((root / "own" / "add.py").is_file())
            again = await client.call("apigen/generate", name="own", params=SERVER, root_dir=str(root))
            self.assertFalse(again["written"])
            await self.fails("bad_argument", client.call("apigen/generate", name="no-name", params=SERVER,
                                                         root_dir=str(root)))
            await self.fails("missing_dependency", client.call(
                "apigen/generate", name="gone", params={"command": "/no/such/program"}, root_dir=str(root)))


class KernelTest(HostTest):
    async def test_a_kernel_behind_a_gateway(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        async with self.host() as client:
            started = await client.call("gateway/start", port=port, python=PYTHON, host="127.0.0.1")
            made = await client.call("kernel/connect", port=port, host="127.0.0.1", token=started["token"],
                                     retries=60, images_dir=str(self.directory / "images"))
            self.assertTrue(made["kernel_id"])
            kernel = made["kernel"]
            number, answer = client.begin("kernel/execute", {"kernel": kernel, "code": "x = 1\nprint('hi')\nx",
                                                             "chunks": True})
            result = await client.finish(answer)
            self.assertEqual((result["status"], result["value_repr"]), ("ok", "1"))
            await client.notification("execution/output", request=number)
            found = await client.call("kernel/variables", kernel=kernel)
            self.assertEqual([one["name"] for one in found["variables"]], ["x"])
            found = await client.call("kernel/complete", kernel=kernel, code="x.bit_l")
            self.assertEqual(found, {"start": 2, "matches": ["bit_length"]})
            number, answer = client.begin("kernel/execute", {"kernel": kernel, "code": "import time; time.sleep(60)"})
            await client.notification("execution/started", request=number)
            await client.call("kernel/interrupt", kernel=kernel)
            self.assertEqual((await client.finish(answer))["status"], "cancelled")
            await client.call("kernel/reset", kernel=kernel)
            await client.call("kernel/disconnect", kernel=kernel)
            _, joined = client.begin("gateway/join", {"gateway": started["gateway"]})
            await client.call("gateway/stop", gateway=started["gateway"])
            await asyncio.wait_for(client.finish(joined), 20)


class SecretTest(HostTest):
    async def test_secrets_stay_out_of_log_and_errors(self):
        secret = "pw-" + os.urandom(8).hex()
        async with self.host("--log-level", "trace", initialized=False) as client:
            await client.call("initialize", protocol_version=1, client={"name": "t", "version": "1"}, log="trace")
            session = await self.session(client, kernel_env={"TOKEN": secret}, variables={"KEY": secret},
                                         approval="allow")
            params = {**SERVER, "env": {"KEY": "${KEY}", "OTHER": secret}}
            await client.call("session/add_server", session=session, name="own", params=params)
            result = await client.call("session/execute", session=session, code=(
                "import os\nfrom mcptools.own import environment\nprint(environment.run(name='KEY'))\n"
                "os.environ['TOKEN']"))
            self.assertNotIn(secret, result["text"].replace(result["value_repr"], ""))
            await self.fails("missing_dependency", client.call(
                "session/add_server", session=session, name="gone",
                params={"command": "/no/such/program", "args": ["${KEY}"]}))
            for bad in ({"kernel_env": {"TOKEN": secret, "N": 1}}, {"variables": {"KEY": [secret]}}):
                said = await self.fails("bad_argument", client.call("session/create", checked=False, options=bad))
                self.assertNotIn(secret, said)
            lines = [params["text"] for name, params in client.notifications if name == "log/line"]
            self.assertTrue(lines)
            self.assertNotIn(secret, "\n".join(lines))
        self.assertNotIn(secret, (self.directory / "stderr").read_text())


class EndTest(HostTest):
    async def session_with_everything(self, client):
        """A kernel that runs, a server that runs and a child of the code; all carry the directory's name."""
        session = await self.session(client, kernel_env={"IPYBOX_TEST_MARK": self.directory.name}, approval="allow")
        params = {**SERVER, "env": {"IPYBOX_TEST_MARK": self.directory.name}}
        await client.call("session/add_server", session=session, name="own", params=params)
        number, _ = client.begin("session/execute", {
            "session": session, "chunks": True,
            "code": "import subprocess, time\nsubprocess.Popen(['sleep', '1000'])\nprint('runs', flush=True)\n"
                    "while True:\n    try: time.sleep(1)\n    except KeyboardInterrupt: pass"})
        await client.notification("execution/output", request=number)
        self.assertGreaterEqual(len(processes_with(self.directory.name)), 3)

    async def test_it_ends_with_its_input(self):
        async with self.host() as client:
            await self.session_with_everything(client)
            begin = time.monotonic()
            client.process.stdin.close()
            await client.process.wait()
            self.assertLess(time.monotonic() - begin, 1.5)
            self.assertTrue(await gone(self.directory.name, 1), processes_with(self.directory.name))

    async def test_nothing_is_left_when_it_is_killed(self):
        async with self.host() as client:
            await self.session_with_everything(client)
            client.process.kill()
            self.assertTrue(await gone(self.directory.name, 2), processes_with(self.directory.name))

    async def test_nothing_is_left_when_the_embedding_program_is_killed(self):
        script = (
            "import json, os, subprocess, sys, time\n"
            "host = subprocess.Popen([sys.argv[1], 'host'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
            # Somebody else may hold the pipe open.
            "keeper = subprocess.Popen(['sleep', '30'], close_fds=False, pass_fds=[host.stdin.fileno()],\n"
            "                          env={'PATH': os.environ['PATH']})\n"
            "def call(number, method, **params):\n"
            "    message = {'jsonrpc': '2.0', 'id': number, 'method': method, 'params': params}\n"
            "    host.stdin.write(json.dumps(message).encode() + b'\\n'); host.stdin.flush()\n"
            "def answer(number):\n"
            "    while True:\n"
            "        message = json.loads(host.stdout.readline())\n"
            "        if message.get('id') == number: return message['result']\n"
            "call(1, 'initialize', protocol_version=1, client={'name': 't', 'version': '1'}); answer(1)\n"
            "call(2, 'session/create', options=json.loads(sys.argv[2])); session = answer(2)['session']\n"
            "call(3, 'session/start', session=session); answer(3)\n"
            "call(4, 'session/execute', session=session, code='import time; time.sleep(1000)')\n"
            "print(host.pid, keeper.pid, flush=True); time.sleep(1000)\n")
        mark = self.directory.name
        options = self.options(kernel_env={"IPYBOX_TEST_MARK": mark})
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, PROGRAM, json.dumps(options), env=self.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        pids = [int(word) for word in (await asyncio.wait_for(program.stdout.readline(), 90)).split()]
        self.addCleanup(os.kill, pids[1], signal.SIGKILL)
        program.kill()
        await program.wait()
        deadline = time.monotonic() + 1.5
        while Path(f"/proc/{pids[0]}").exists() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self.assertFalse(Path(f"/proc/{pids[0]}").exists(), "the host goes on")
        left = [pid for pid in processes_with(mark) if pid != pids[1]]
        self.assertEqual(left, [])

    async def test_it_ends_at_a_signal_but_not_at_ctrl_c(self):
        async with self.host() as client:
            session = await self.session(client)
            client.process.send_signal(signal.SIGINT)
            result = await client.call("session/execute", session=session, code="1")
            self.assertEqual(result["status"], "ok")
            client.process.terminate()
            self.assertEqual(await asyncio.wait_for(client.process.wait(), 3), 0)


class PressureTest(HostTest):
    async def test_output_waits_while_nobody_reads(self):
        """The pipe is full: the cell stands still, memory does not grow, and control still works."""
        async with self.host() as client:
            session = await self.session(client)
            other = await self.session(client)
            client.stop_reading()
            code = ("import time\nopen('count', 'w').write('0')\n"
                    "for i in range(400):\n    print('x' * 1_000_000)\n    open('count', 'w').write(str(i))\n")
            _, answer = client.begin("session/execute", {"session": session, "code": code, "chunks": True,
                                                         "text": "none"})
            count = self.workspace / "count"
            last, quiet = "", 0
            async with asyncio.timeout(60):
                while quiet < 10:
                    await asyncio.sleep(0.1)
                    now = count.read_text() if count.exists() else ""
                    quiet = quiet + 1 if now == last and now else 0
                    last = now
            self.assertLess(int(last), 300, "the cell should wait")
            peak = int(Path(f"/proc/{client.process.pid}/status").read_text().split("VmHWM:")[1].split()[0])
            self.assertLess(peak, 400_000, "kB")
            # Requests are read and done meanwhile, although nobody reads the answers.
            client.begin("session/execute", {"session": other, "code": "open('other', 'w').write('done')"})
            async with asyncio.timeout(20):
                while not (self.workspace / "other").exists():
                    await asyncio.sleep(0.05)
            # And once somebody reads, nothing is lost.
            total = 0

            def listen(name, params):
                nonlocal total
                if name == "execution/output":
                    total += len(params["text"])
            client.handlers.append(listen)
            client.go_on_reading()
            result = await asyncio.wait_for(client.finish(answer), 120)
            self.assertEqual(result["status"], "ok")
            self.assertEqual(total, 400 * 1_000_001)

    async def test_a_window_holds_one_execution_up(self):
        async with self.host() as client:
            session = await self.session(client)
            other = await self.session(client)
            number, answer = client.begin("session/execute", {
                "session": session, "chunks": True, "window": 100_000,
                "code": "for _ in range(100): print('x' * 100_000)"})
            await client.notification("execution/output", request=number)
            result = await client.call("session/execute", session=other, code="6 * 7")
            self.assertEqual(result["value_repr"], "42")
            self.assertFalse(answer.done())
            while not answer.done():
                said = [params for name, params in client.notifications if name == "execution/output"]
                client.notifications.clear()
                taken = sum(len(params["text"]) for params in said)
                if taken:
                    client.send({"jsonrpc": "2.0", "method": "execution/credit",
                                 "params": {"request": number, "bytes": taken}})
                await asyncio.sleep(0.005)
                if not taken and not answer.done():
                    client.send({"jsonrpc": "2.0", "method": "execution/credit",
                                 "params": {"request": number, "bytes": 100_000}})
            self.assertEqual(len((await client.finish(answer))["text"]), 100 * 100_001 - 1)
            number, answer = client.begin("session/execute", {
                "session": session, "chunks": True, "window": 10, "code": "while True: print('x' * 1000)"})
            await client.notification("execution/output", request=number)
            client.cancel(number)
            self.assertEqual((await asyncio.wait_for(client.finish(answer), 30))["status"], "cancelled")

    async def test_a_client_that_never_reads_is_not_read_from(self):
        async with self.host() as client:
            client.stop_reading()
            line = b'{"jsonrpc":"2.0","id":"' + b"x" * 900 + b'","method":"nothing"}\n'
            sent = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(20):
                    while sent < 100 << 20:
                        client.writer.write(line * 100)
                        await client.writer.drain()
                        sent += 100 * len(line)
            self.assertLess(sent, 100 << 20)
            peak = int(Path(f"/proc/{client.process.pid}/status").read_text().split("VmHWM:")[1].split()[0])
            self.assertLess(peak, 400_000, "kB")
            client.process.kill()
            client.go_on_reading()  # to see its end
            client.writer.close()
            with contextlib.suppress(OSError):
                await client.writer.wait_closed()


class SocketTest(HostTest):
    def setUp(self):
        super().setUp()
        self.private = Path(tempfile.mkdtemp(prefix="ipybox-host-socket-"))  # mode 0700, ours
        self.addCleanup(shutil.rmtree, self.private, ignore_errors=True)
        self.path = self.private / "socket"

    def start(self, path, **keywords):
        return subprocess.Popen([PROGRAM, "host", "--socket", str(path)], env=self.environment(),
                                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **keywords)

    async def listening(self, process):
        async with asyncio.timeout(20):
            while not self.path.exists() or self.path.stat().st_mode & 0o777 != 0o600:
                self.assertIsNone(process.poll(), process.stderr)
                await asyncio.sleep(0.02)

    async def test_one_connection_of_the_same_user(self):
        process = self.start(self.path)
        self.addCleanup(process.stderr.close)
        await self.listening(process)
        if os.geteuid() == 0:  # another user is turned away even where the path is open to all
            os.chmod(self.private, 0o755)
            os.chmod(self.path, 0o666)
            tried = subprocess.run(
                [sys.executable, "-c", "import os, socket, sys\nos.setgid(65534); os.setuid(65534)\n"
                 "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
                 "s.sendall(b'{}\\n'); print(s.recv(100))", str(self.path)], capture_output=True, text=True)
            self.assertTrue("b''" in tried.stdout or "Reset" in tried.stderr or "Broken" in tried.stderr, tried)
        reader, writer = await asyncio.open_unix_connection(self.path, limit=1 << 24)
        client = HostClient(reader, writer)
        await client.initialize()
        self.assertFalse(self.path.exists(), "nobody else can connect")
        session = await self.session(client)
        result = await client.call("session/execute", session=session, code="6 * 7")
        self.assertEqual(result["value_repr"], "42")
        writer.close()
        self.assertEqual(await asyncio.to_thread(process.wait, 5), 0)
        client.listening.cancel()

    def refused(self, path):
        process = self.start(path)
        _, said = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 2, said)
        return said

    def test_places_that_others_can_write_are_refused(self):
        self.assertIn("can be written by others", self.refused("/tmp/ipybox-host-socket-test"))
        self.assertIn("is no directory", self.refused(self.private / "none" / "socket"))
        self.path.write_text("")
        self.assertIn("exists already", self.refused(self.path))
        self.assertEqual(self.path.read_text(), "")
        if os.geteuid() == 0:
            os.chown(self.private, 65534, 65534)
            self.path.unlink()
            self.assertIn("belongs to another user", self.refused(self.path))

    async def test_it_ends_without_a_connection(self):
        process = self.start(self.path)
        self.addCleanup(process.stderr.close)
        await self.listening(process)
        process.terminate()
        self.assertEqual(await asyncio.to_thread(process.wait, 5), 0)


if __name__ == "__main__":
    unittest.main()
