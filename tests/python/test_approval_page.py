"""What the approval page's server lets through, asked without a browser; tests/browser has the page itself."""
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from urllib.parse import urlsplit

SUPPORT = Path(os.environ["IPYBOX_TEST_SUPPORT"])
sys.path.insert(0, str(SUPPORT))
from approver import Approver  # noqa: E402
from approval_page import Events, Program, Served, Visitor, sign_in, text_of  # noqa: E402
from workspace import make_directory  # noqa: E402

ECHO = "from mcptools.own import echo\nprint(echo.run(text='hello'))"
CAUGHT = "from mcptools.own import echo\ntry: print(echo.run(text='hello'))\nexcept Exception as error: print(type(error).__name__)"
REFUSED = "This browser is not signed in"


class PageTest(unittest.TestCase):
    def setUp(self):
        self.directory = make_directory("ipybox-page-")
        self.workspace = self.directory / "workspace"
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        (self.directory / "mcp.json").write_text(json.dumps({"mcpServers": {"own": {
            "command": os.environ["IPYBOX_TEST_PYTHON"], "args": [str(SUPPORT / "mcp_server.py")]}}}))

    def run_code(self, code, *flags, **more):
        program = Program("run", self.directory, "--config", "mcp.json", "-c", code, *flags, **more)
        self.addCleanup(program.close)
        return program

    def serve(self, *flags, **more):
        program = Served(self.directory, "--config", "mcp.json", *flags, **more)
        self.addCleanup(program.close)
        return program

    def signed_in(self, program, link=None):
        """Somebody who may answer, and the events that they get."""
        visitor = sign_in(program, link)
        events = Events(visitor)
        self.addCleanup(events.close)
        return visitor, events


class WhoMayTest(PageTest):
    def test_the_link_works_once_and_gives_a_cookie_of_this_site_only(self):
        program = self.run_code(ECHO)
        target = program.link.partition(program.address)[2]
        stranger = Visitor(program.address)
        for path in ("/", "/page.css", "/page.mjs", "/events"):
            refused = stranger.get(path)
            self.assertEqual(refused.status, 401, path)
            self.assertIn(REFUSED, refused.text)
        self.assertEqual(stranger.get("/?token=" + "0" * 64).status, 403)
        self.assertEqual(stranger.get("/?token=").status, 403)
        opened = stranger.get(target, Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")  # from a chat, say
        self.assertEqual(opened.status, 200)
        cookie, *attributes = opened.headers["Set-Cookie"].split("; ")
        self.assertEqual(sorted(attributes), ["HttpOnly", "Path=/", "SameSite=Strict"])
        again = stranger.get(target)
        self.assertEqual((again.status, again.headers["Set-Cookie"]), (403, None))
        self.assertIn(REFUSED, again.text)

        visitor = Visitor(program.address, cookie)
        page = visitor.get("/")
        self.assertEqual(page.status, 200)
        policy = page.headers["Content-Security-Policy"]
        for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"):
            self.assertIn(part, policy)
        self.assertNotIn("unsafe", policy)
        self.assertNotIn("<script>", page.text)
        self.assertNotIn("style=", page.text)
        for path, kind in (("/page.css", "text/css"), ("/page.mjs", "text/javascript"), ("/steady.mjs", "text/javascript")):
            file = visitor.get(path)
            self.assertEqual((file.status, file.headers["Content-Type"].partition(";")[0]), (200, kind))
            self.assertEqual((file.headers["Cache-Control"], file.headers["X-Content-Type-Options"]), ("no-store", "nosniff"))
        self.assertEqual(visitor.get("/nosuch").status, 404)
        self.assertEqual(Visitor(program.address, cookie[:-1] + ("0" if cookie[-1] != "0" else "1")).get("/").status, 401)

        # Whoever is signed in makes another one, which works once, too.
        link = visitor.post("/link", {}).json["link"]
        self.assertEqual(urlsplit(link).netloc, program.address)
        sign_in(program, link)
        with self.assertRaisesRegex(AssertionError, "403"):
            sign_in(program, link)

    def test_other_pages_and_other_names_of_this_machine_answer_nothing(self):
        program = self.run_code(ECHO)
        visitor, events = self.signed_in(program)
        call = events.call()
        yes = {"answers": [{"id": call["id"], "verdict": "allow"}]}
        own = f"http://{program.address}"
        port = program.address.rpartition(":")[2]
        for status, headers in (
                (403, {"Host": "evil.example"}), (403, {"Host": f"evil.example:{port}"}), (403, {"Host": None}),
                (403, {"Origin": "http://evil.example"}), (403, {"Origin": "null"}), (403, {"Origin": None}),
                (403, {"Origin": f"https://{program.address}"}), (403, {"Origin": own + "0"}), (403, {"Origin": own + ".evil.example"}),
                (403, {"Sec_Fetch_Site": "cross-site"}), (403, {"Sec_Fetch_Site": "same-site"}),
                (401, {"Cookie": None}), (401, {"Cookie": "ipybox_approval="}), (401, {"Cookie": visitor.cookie.partition("=")[2]}),
                (415, {"Content_Type": "text/plain"}), (415, {"Content_Type": "application/x-www-form-urlencoded"})):
            for path in ("/answer", "/link", "/cancel", "/preview"):
                refused = visitor.post(path, yes, **headers)
                self.assertEqual(refused.status, 400 if headers == {"Host": None} and refused.status == 400 else status, (path, headers, refused.text))
        # A page of another site cannot frame it, nor read what it is told.
        for headers in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://evil.example"}, {"Host": "evil.example"},
                        {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Dest": "iframe"}):
            self.assertEqual(visitor.get("/", **headers).status, 403, headers)
        for headers in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            self.assertEqual(visitor.get("/events", **headers).status, 403, headers)
        for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
            self.assertEqual(visitor.send(method, "/answer", yes).status, 405, method)
        self.assertEqual(visitor.get("/answer?id=" + call["id"] + "&verdict=allow").status, 404)
        for body in ("", "[", "[]", '{"answers": 1}', '{"answers": [1]}', '{"answers": [{"id": "' + call["id"] + '", "verdict": "maybe"}]}',
                     '{"answers": [{"id": "0000000000000000", "verdict": "allow"}]}',
                     '{"answers": [{"id": "' + call["id"] + '", "verdict": "allow", "sure": true}]}'):
            reply = visitor.post("/answer", body)
            said = reply.json
            self.assertFalse(all(one["ok"] for one in said["results"]) if said.get("results") else said["ok"], (body, reply.text))
        # It still waits.
        self.assertEqual(visitor.answer(call, "allow"), {"id": call["id"], "ok": True})
        self.assertEqual(program.end()[:2], (0, "hello\n"))

    @unittest.skipUnless(os.geteuid() == 0, "only root can start programs of another user")
    def test_another_user_who_has_the_cookie_or_a_link_gets_nothing(self):
        """A cookie is sent to every port of a host: another user's server on this machine may have got it."""
        for page in ("127.0.0.1:0", "[::1]:0"):
            program = self.run_code(ECHO, page=page)
            visitor, events = self.signed_in(program)
            call = events.call()
            host, _, port = program.address.rpartition(":")
            link = visitor.post("/link", {}).json["link"].partition(program.address)[2]
            body = json.dumps({"answers": [{"id": call["id"], "verdict": "allow"}]})
            for head in (f"GET / HTTP/1.1\r\nHost: {program.address}\r\nCookie: {visitor.cookie}\r\n\r\n",
                         f"GET {link} HTTP/1.1\r\nHost: {program.address}\r\n\r\n",
                         f"POST /answer HTTP/1.1\r\nHost: {program.address}\r\nOrigin: http://{program.address}\r\n"
                         f"Cookie: {visitor.cookie}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"):
                code = (f"import socket\nc = socket.create_connection(({host.strip('[]')!r}, {port}))\nc.sendall({head.encode()!r})\n"
                        "c.settimeout(20)\nprint(c.recv(65536).decode())")
                said = subprocess.run([sys.executable, "-I", "-S", "-c", code], user=65534, group=65534, cwd="/", text=True, check=True,
                                      capture_output=True).stdout
                self.assertTrue(said.startswith("HTTP/1.1 403 "), said)
                self.assertIn("programs of the user who started it only", said)
            # Of a socket that was closed the system says that it is root's. The page looks when that is so.
            code = (f"import socket\nc = socket.create_connection(({host.strip('[]')!r}, {port}))\nc.sendall({head.encode()!r})\nc.close()")
            os.kill(program.process.pid, signal.SIGSTOP)
            try:
                subprocess.run([sys.executable, "-I", "-S", "-c", code], user=65534, group=65534, cwd="/", check=True)
            finally:
                os.kill(program.process.pid, signal.SIGCONT)
            program.said(r"(?s)(?:programs of the user who started it only.*){4}")
            self.assertEqual(visitor.answer(call, "allow"), {"id": call["id"], "ok": True})
            self.assertEqual(program.end()[:2], (0, "hello\n"))

    def test_the_code_can_reach_neither_the_page_nor_its_link(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        code = ("import os, socket, glob\n"
                f"for host in ('127.0.0.1', 'localhost', '::1', '0.0.0.0'):\n"
                f"    try:\n        socket.create_connection((host, {port}), timeout=5)\n        print('reached', host)\n"
                "    except OSError:\n        pass\n"
                "print(any('token=' in value for value in os.environ.values()))\n"
                "from mcptools.own import environment\nprint('token=' in environment.run())")
        program = self.run_code(code, "--allow-host", "example.com", page=f"127.0.0.1:{port}")
        visitor, events = self.signed_in(program)
        visitor.answer(events.call(), "allow")
        status, output, errors = program.end()
        self.assertEqual((status, output), (0, "False\nFalse\n"), errors)

    def test_what_does_not_keep_the_code_away_needs_a_word(self):
        for flags in (["--sandbox", "none"],):
            with self.assertRaisesRegex(AssertionError, "--approval-page-unconfined"):
                self.run_code(ECHO, *flags)
        program = self.run_code(ECHO, "--sandbox", "none", "--approval-page-unconfined")
        visitor, events = self.signed_in(program)
        visitor.answer(events.call(), "allow")
        self.assertEqual(program.end()[:2], (0, "hello\n"))
        with self.assertRaisesRegex(AssertionError, "loopback|this machine"):
            self.run_code(ECHO, page="0.0.0.0:0")


class AnswersTest(PageTest):
    def test_a_question_has_everything_and_answers_reach_the_code(self):
        code = ("from mcptools.own import echo\nprint('before', flush=True)\n\ntry:\n    echo.run(text='one')\n"
                "except Exception as error:\n    print(type(error).__name__, error)\nprint(echo.run(text='two'))")
        program = self.run_code(code, "--audit", "calls.jsonl")
        visitor, events = self.signed_in(program)
        first = events.call()
        self.assertEqual((first["server"], first["tool"], first["line"], first["arguments"], first["origin"]), (
            "own", "echo", 5, [{"name": "text", "json": '"one"', "text": "one"}], "mcp"))
        self.assertIn("mcp_server.py", first["identity"])
        self.assertEqual((first["description"], first["previous"]), ("Returns its text.", None))
        cells = [event["cells"] for event in events.seen if event["type"] == "state"][0] + [
            event["cell"] for event in events.seen if event["type"] == "cell"]
        self.assertEqual([(cell["id"], cell["code"]) for cell in cells], [(first["execution"], code)])
        self.assertEqual(visitor.answer(first, "deny", reason="not that one")["ok"], True)
        done = events.settled(first)
        self.assertEqual((done["verdict"], done["reason"], done["expired"]), ("deny", "not that one", False))
        second = events.call(1)
        self.assertEqual((second["line"], second["previous"]["id"], second["previous"]["verdict"]), (8, first["id"], "deny"))
        # What does not fit the tool is not sent, and can be mended.
        for arguments, word in (('{"text": 5}', "text"), ("{}", "text"), ("[]", "object"), ("{", "arguments")):
            wrong = visitor.answer(second, "allow", arguments=arguments)
            self.assertFalse(wrong["ok"])
            self.assertIn(word, wrong["problem"])
        self.assertTrue(visitor.answer(second, "allow", arguments='{"text": "edited"}')["ok"])
        done = events.settled(second)
        self.assertEqual((done["by"], done["edited"]), ("page: edited", [{"name": "text", "json": '"edited"', "text": "edited"}]))
        status, output, errors = program.end()
        self.assertEqual(status, 0, errors)
        self.assertRegex(output, r"before\nApprovalRejectedError .*not that one.*\nedited\n")
        records = [json.loads(line) for line in (self.directory / "calls.jsonl").read_text().splitlines()]
        call, = [record for record in records if record["event"] == "call" and record["verdict"] == "allow"]
        self.assertEqual((call["arguments"], call["edited"], call["by"]), ({"text": "two"}, {"text": "edited"}, "page: edited"))
        # Who reads the log is told what was carried out.
        show = [os.environ["IPYBOX_TEST_PROGRAM"], "audit", "show", "calls.jsonl"]
        shown = subprocess.run(show, cwd=self.directory, capture_output=True, text=True, check=True).stdout
        self.assertIn("allow own.echo(text='two'), edited to own.echo(text='edited') by page: edited; ok", shown)
        subprocess.run([*show, "--html", "page.html"], cwd=self.directory, check=True)
        self.assertRegex((self.directory / "page.html").read_text(), r"two.*carried out with, as a person edited it.*edited")

    def test_a_question_opens_no_device_or_pipe_that_the_code_names(self):
        """Opening alone may do something, and nobody has said yes yet."""
        pipe = self.workspace / "pipe"
        os.mkfifo(pipe, 0o666)
        filesystem = Path(os.environ["IPYBOX_TEST_NODE_MODULES"]) / "@modelcontextprotocol/server-filesystem/dist/index.js"
        (self.directory / "mcp.json").write_text(json.dumps({"mcpServers": {"files": {
            "command": "node", "args": [str(filesystem), "${WORKSPACE}"]}}}))
        libc = ctypes.CDLL(None, use_errno=True)
        watch = libc.inotify_init1(os.O_NONBLOCK)
        self.addCleanup(os.close, watch)
        opened = 0x20  # IN_OPEN
        self.assertGreaterEqual(libc.inotify_add_watch(watch, os.fsencode(pipe), opened), 0)
        program = self.run_code(f"from mcptools.files import write_file\nwrite_file.run(path={str(pipe)!r}, content='x')")
        visitor, events = self.signed_in(program)
        call = events.call()
        self.assertEqual((call["tool"], call["file"]["before"], call["file"]["problem"]), ("write_file", None, "it is no ordinary file"))
        with self.assertRaises(BlockingIOError):
            os.read(watch, 4096)
        # The watch works.
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        self.assertTrue(os.read(watch, 4096))
        visitor.answer(call, "deny")
        self.assertEqual(program.end()[0], 1)

    def test_the_first_answer_counts_and_a_later_one_says_so(self):
        program = self.run_code(ECHO)
        one, events = self.signed_in(program)
        other, seen = self.signed_in(program, one.post("/link", {}).json["link"])
        call = events.call()
        self.assertEqual(seen.call(), call)
        self.assertTrue(one.answer(call, "allow")["ok"])
        for verdict in ("deny", "allow"):
            late = other.answer(call, verdict)
            self.assertFalse(late["ok"])
            self.assertIn("allowed by page: once", late["problem"])
        self.assertFalse(other.post("/preview", {"id": call["id"], "grant": {"scope": "tool", "lasts": "session"}}).json["ok"])
        self.assertEqual(seen.settled(call)["verdict"], "allow")
        self.assertEqual(program.end()[:2], (0, "hello\n"))

    def test_silence_is_a_no(self):
        program = self.run_code(ECHO, "--approval-timeout", "3")
        _, events = self.signed_in(program)
        call = events.call()
        self.assertEqual(call["until"] - call["asked"], 3000)
        done = events.settled(call)
        self.assertEqual((done["verdict"], done["expired"]), ("deny", True))
        status, output, errors = program.end()
        self.assertEqual((status, output), (1, ""))
        self.assertIn("ApprovalTimeoutError", errors)

    def test_a_yes_for_more_writes_the_rule_that_was_shown(self):
        code = ("from mcptools.own import echo, add\nfor text in ('/data/a', '/data/b', '/etc/c'):\n    print(echo.run(text=text))\n"
                "print(add.run(a=1, b=2).sum)")
        program = self.run_code(code)
        visitor, events = self.signed_in(program)
        call = events.call()
        for grant, word in (({"scope": "all", "lasts": "cell"}, "scope"), ({"scope": "tool", "lasts": "ever"}, "lasts"),
                            ({"scope": "tool", "lasts": "always", "hours": -1}, "hours"),
                            ({"scope": "like", "lasts": "cell", "conditions": {"/text": {"below": "/data"}}}, "below"),
                            ({"scope": "like", "lasts": "cell", "conditions": {"/text": {"under": "/srv"}}}, "this call")):
            wrong = visitor.post("/preview", {"id": call["id"], "grant": grant}).json
            self.assertFalse(wrong["ok"], grant)
            self.assertIn(word, wrong["problem"])
            self.assertFalse(visitor.answer(call, "allow", grant=grant)["ok"], grant)
        grant = {"scope": "like", "lasts": "always", "hours": None, "conditions": {"/text": {"under": "/data"}}}
        shown = visitor.post("/preview", {"id": call["id"], "grant": grant}).json
        self.assertEqual((shown["ok"], shown["matched"], shown["of"]), (True, 0, 0))
        self.assertEqual(json.loads(shown["rule_text"]), shown["rule"])
        self.assertEqual(shown["rule"]["when"]["arguments"], {"/text": {"under": "/data"}})
        self.assertTrue(visitor.answer(call, "allow", grant=grant)["ok"])
        outside = events.call(1)
        self.assertEqual(outside["arguments"][0]["text"], "/etc/c")
        again = visitor.post("/preview", {"id": outside["id"], "grant": {"scope": "tool", "lasts": "cell"}}).json
        self.assertEqual((again["matched"], again["of"]), (2, 2))
        visitor.answer(outside, "allow", grant={"scope": "server", "lasts": "cell", "hours": None})
        self.assertEqual(program.end()[:2], (0, "/data/a\n/data/b\n/etc/c\n3\n"))
        rules = json.loads((self.directory / "settings/ipybox/always.json").read_text())
        self.assertIn("/data", json.dumps(rules))
        self.assertNotIn('"server", "lasts"', json.dumps(rules))

        # Another process asks for what the rule does not allow only.
        program = self.run_code(code)
        visitor, events = self.signed_in(program)
        self.assertEqual(events.call()["arguments"][0]["text"], "/etc/c")

    def test_a_cell_is_cancelled(self):
        program = self.run_code(ECHO)
        visitor, events = self.signed_in(program)
        call = events.call()
        self.assertFalse(visitor.post("/cancel", {"execution": "0" * 16}).json["ok"])
        self.assertTrue(visitor.post("/cancel", {"execution": call["execution"]}).json["ok"])
        self.assertEqual(events.settled(call)["verdict"], "deny")
        self.assertEqual(program.end()[1], "")


class ServedTest(PageTest):
    def test_nothing_that_an_mcp_client_can_ask_for_answers(self):
        program = self.serve()
        visitor, events = self.signed_in(program)
        cell = program.cell(ECHO)
        call = events.call()
        tools = [tool["name"] for tool in program.request("tools/list", {}).result(30)["result"]["tools"]]
        self.assertFalse([name for name in tools if "appro" in name or "answer" in name or "allow" in name], tools)
        for name in tools:
            if name in ("execute_ipython_cell", "reset", "interrupt"):  # which end the cell, or wait for it
                continue
            program.tool(name, id=call["id"], verdict="allow").result(60)
        for method, params in (("resources/list", {}), ("resources/read", {"uri": f"http://{program.address}/"}),
                               ("resources/read", {"uri": f"ipybox://approvals/{call['id']}"}), ("approve", {"id": call["id"], "result": True}),
                               ("answer", {"answers": [{"id": call["id"], "verdict": "allow"}]}), ("prompts/list", {})):
            said = json.dumps(program.request(method, params).result(30))
            self.assertNotIn(call["id"], said.replace(f"ipybox://approvals/{call['id']}", ""))
            self.assertNotIn("token=", said)
        # An answer to a request that was never sent.
        program.send({"id": call["id"], "result": {"action": "accept", "content": {"allow": "yes"}}})
        program.request("ping", {}).result(30)
        self.assertFalse(cell.done())
        self.assertEqual(visitor.answer(call, "deny", reason="still asked"), {"id": call["id"], "ok": True}, program.errors())
        self.assertIn("still asked", text_of(cell))

    def test_the_first_answer_counts_whoever_gives_it(self):
        """The page, a program on the channel, and the client's own question: the others are told, and change nothing any more."""
        token = "t" * 40
        program = self.serve("--approve", "ask", "--approval-channel", "127.0.0.1:0", capabilities={"elicitation": {}},
                             env={"IPYBOX_APPROVAL_TOKEN": token})
        port = program.said(r"approvers connect to ws://127\.0\.0\.1:(\d+)/").group(1)
        visitor, events = self.signed_in(program)
        with Approver(port, token) as approver:
            def question(number):
                """Everybody's way to answer what is asked now."""
                cell = program.cell(CAUGHT)
                call, asked = events.call(number), program.asked.get(timeout=60)
                on_channel = approver.receive("approve")
                self.assertEqual((asked["method"], on_channel["params"]["tool_args"]), ("elicitation/create", {"text": "hello"}))
                ways = {
                    "page": lambda yes: visitor.answer(call, "allow" if yes else "deny"),
                    "channel": lambda yes: approver.send({"jsonrpc": "2.0", "result": yes, "id": on_channel["id"]}),
                    "client": lambda yes: program.send({"id": asked["id"], "result": {
                        "action": "accept", "content": {"decision": "allow once" if yes else "deny"}}})}
                return cell, call, on_channel, ways

            orders = [("page", "channel", "client"), ("channel", "client", "page"), ("client", "page", "channel")]
            number = 0
            for yes in (True, False):
                for first, *late in orders:
                    with self.subTest(first=first, yes=yes):
                        cell, call, on_channel, ways = question(number)
                        number += 1
                        ways[first](yes)
                        done = events.settled(call)
                        for way in late:
                            said = ways[way](not yes)
                            if way == "page":
                                self.assertFalse(said["ok"])
                                self.assertIn("allowed" if yes else "denied", said["problem"])
                        self.assertEqual(done["verdict"], "allow" if yes else "deny")
                        self.assertIn("hello" if yes else "ApprovalRejectedError", text_of(cell))
                        if first != "channel":
                            self.assertEqual(approver.receive("settled")["params"]["id"], on_channel["id"])
            # All at the same moment, of different opinions.
            for turn in range(10):
                cell, call, _, ways = question(number)
                number += 1
                barrier, said = threading.Barrier(3), {}

                def answer(way, yes):
                    barrier.wait()
                    said[way] = ways[way](yes)
                threads = [threading.Thread(target=answer, args=(way, (index + turn) % 2 == 0)) for index, way in enumerate(ways)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                verdict = events.settled(call)["verdict"]
                self.assertIn("hello" if verdict == "allow" else "ApprovalRejectedError", text_of(cell))
                if said["page"]["ok"]:
                    self.assertEqual(verdict, "allow" if turn % 2 == 0 else "deny")

    def test_500_calls_of_one_session_are_asked_about_in_turn(self):
        """A session has 256 at once; the others are told so, and none is lost or answered by another one's yes."""
        program = self.serve("--approval-timeout", "300")
        visitor, events = self.signed_in(program)
        code = ("import asyncio\nfrom mcptools.own import echo\nlimit = asyncio.Semaphore(250)\n"
                "async def one(number):\n    async with limit:\n        return await echo.run_async(text=str(number))\n"
                "said = await asyncio.gather(*(one(number) for number in range(500)), return_exceptions=True)\n"
                "print(sum(said[number] == str(number) for number in range(0, 500, 2)),\n"
                "      sum('odd' in str(said[number]) and isinstance(said[number], Exception) for number in range(1, 500, 2)))")
        cell = program.cell(code)
        events.call(249)
        self.assertFalse(cell.done())
        answered = set()
        for number in range(500):
            call = events.call(number)
            answered.add(call["id"])
            odd = int(call["arguments"][0]["text"]) % 2
            said = visitor.answer(call, "deny", reason="odd") if odd else visitor.answer(call, "allow")
            self.assertTrue(said["ok"], said)
        self.assertEqual(len(answered), 500)
        self.assertEqual(text_of(cell), "250 250")

    def test_a_link_is_where_only_this_user_finds_it(self):
        state = self.directory / "state"
        program = self.serve(env={"XDG_STATE_HOME": str(state)})
        (place,) = (state / "ipybox/pages").iterdir()
        file = place / "link"
        self.assertEqual((place.stat().st_mode & 0o777, file.stat().st_mode & 0o777), (0o700, 0o600))
        link = file.read_text().strip()
        self.assertNotEqual(link, program.link)
        visitor, events = self.signed_in(program, link)
        # It is spent, and there is another one.
        fresh = file.read_text().strip()
        self.assertNotEqual(fresh, link)
        with self.assertRaisesRegex(AssertionError, "403"):
            sign_in(program, link)
        doctor = subprocess.run([os.environ["IPYBOX_TEST_PROGRAM"], "doctor"], text=True, capture_output=True, cwd=self.directory, env={
            "PATH": os.environ["PATH"], "IPYBOX_PYTHON": os.environ["IPYBOX_TEST_PYTHON"], "XDG_STATE_HOME": str(state)}).stdout
        self.assertIn(f"its link is in {file}", doctor)
        self.assertNotIn("token=", doctor)
        # The code sees nothing of it.
        cell = program.cell(f"import os\nprint([os.path.exists(path) for path in ({str(state)!r}, {str(place)!r}, {str(file)!r})])")
        self.assertEqual(text_of(cell), "[False, False, False]")
        sign_in(program, fresh)
        program.process.stdin.close()
        program.process.wait(30)
        self.assertFalse(place.exists())

    def test_a_page_that_comes_later_finds_everything(self):
        program = self.serve()
        visitor, events = self.signed_in(program)
        cell = program.cell("print('seen', flush=True)\n" + ECHO)
        visitor.answer(events.call(), "allow")
        self.assertEqual(text_of(cell), "seen\nhello")
        waiting = program.cell(ECHO)
        call = events.call(1)
        later = Events(visitor)
        self.addCleanup(later.close)
        state = later.next()
        self.assertEqual(state["type"], "state")
        self.assertEqual([one["id"] for one in state["pending"]], [call["id"]])
        self.assertEqual([(done["verdict"], done["by"], done["outcome"]) for done in state["history"]], [("allow", "page: once", "ok")])
        self.assertEqual([cell["outcome"] for cell in state["cells"]], ["ok", None])
        self.assertIn("seen", "".join(piece.get("text", "") for piece in state["cells"][0]["output"]))
        visitor.answer(call, "allow")
        self.assertEqual(text_of(waiting), "hello")
