"""`ipybox audit` at the real program: what it says of logs that were left alone, edited, cut off or left by a crash."""
import http.server
import json
import os
import signal
import subprocess
import threading
import time
import unittest
from html.parser import HTMLParser
from pathlib import Path

from test_program import PROGRAM, ProgramTest

CALLS = """
from mcptools.own import echo
for text in ("one", "two", "three"):
    echo.run(text=text)
"""


class AuditTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.outside = self.directory.with_name(self.directory.name + "-log")
        self.outside.mkdir(mode=0o700)
        self.addCleanup(lambda: subprocess.run(["rm", "-rf", self.outside], check=True))
        self.log = self.outside / "audit.jsonl"
        self.env = {"XDG_STATE_HOME": str(self.outside / "state")}

    def recorded(self, code, *flags, log=None):
        run = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "--audit", str(log or self.log), *flags, "-c", code, env=self.env)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run

    def verify(self, *arguments, env=None):
        return self.ipybox("audit", "verify", *map(str, arguments or (self.log,)), env=env or self.env)

    def assert_verified(self, run, code, *words):
        self.assertEqual((run.returncode, run.stderr), (code, ""), run.stdout)
        for word in words:
            self.assertIn(word, run.stdout)


class VerifyTest(AuditTest):
    def test_a_log_of_two_sessions_is_whole_until_it_is_touched(self):
        self.recorded(CALLS)
        self.recorded("print(1)")
        self.assert_verified(self.verify(), 0, "whole: records 1 to ", "as they were written and all that there are")
        report = json.loads(self.verify(self.log, "--json").stdout)
        self.assertEqual((report["outcome"], sorted(report)), ("whole", ["detail", "notes", "outcome"]))
        self.assertIn("as they were written", report["detail"])
        good = self.log.read_text()
        lines = good.splitlines(keepends=True)
        number = next(at for at, line in enumerate(lines, 1) if '"text":"two"' in line)
        for changed, *words in (
                (good.replace('"text":"two"', '"text":"too"'), f"line {number}", "changed after it was written"),
                ("".join(lines[:number - 1] + lines[number:]), f"line {number}", "1 record was removed"),
                ("".join(lines[:number] + [lines[number + 1], lines[number]] + lines[number + 2:]), f"line {number + 1}", "exchanged"),
                ("".join(lines[:number]), f"line {number}", "the host knows of"),
                ("", "has no record; the host knows of")):
            self.log.write_text(changed)
            self.assert_verified(self.verify(), 1, "NOT whole: ", *words)
        self.log.unlink()
        self.assert_verified(self.verify(), 1, "is not there; the host knows of", "the log was removed")
        self.assert_refused(self.verify(self.outside / "other"), "other: cannot be read")
        self.assert_refused(self.ipybox("audit", "verify"), "FILE")

    def test_a_killed_program_leaves_a_valid_log_without_a_closing_head(self):
        run = subprocess.Popen(
            [PROGRAM, "run", "--config", "mcp.json", "--approve", "allow", "--audit", str(self.log), "-c",
             CALLS + "print('ready', flush=True)\nimport time; time.sleep(60)"], cwd=self.directory, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "SUPPORT": os.environ["IPYBOX_TEST_SUPPORT"], "IPYBOX_PYTHON": os.environ["IPYBOX_TEST_PYTHON"], **self.env})
        with run:
            self.assertEqual(run.stdout.readline(), "ready\n")
            self.assert_verified(self.verify(), 3, "or a program still writes it")
            run.send_signal(signal.SIGKILL)
        self.assert_verified(self.verify(), 3, "not proven whole: records 1 to 9 are as they were written", "ended without a closing head", "line 2",
                             "9 records follow the last signed head")
        # A crash is no cover for what is cut off.
        self.log.write_text("".join(self.log.read_text().splitlines(keepends=True)[:-1]))
        self.assert_verified(self.verify(), 1, "1 record was removed at the end")

    def test_several_programs_write_one_log(self):
        runs = [threading.Thread(target=self.recorded, args=(CALLS,)) for _ in range(3)]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        self.assert_verified(self.verify(), 0, "whole: ")
        self.assertEqual(self.log.read_text().count('"event":"call"'), 9)

    def test_rotation_keeps_the_chain(self):
        self.recorded(CALLS)
        old = self.log.with_suffix(".1")
        self.log.rename(old)
        self.recorded("print(1)")
        self.assert_verified(self.verify(old, self.log), 0, "whole: records 1 to ")
        self.assert_verified(self.verify(), 0, "goes on from record ", "of an earlier file, which is not looked at")
        self.assert_verified(self.verify(old), 0, "goes on in another file")
        self.assert_verified(self.verify(self.log, old), 1, "not in their order")

    def test_somebody_else_verifies_with_the_public_key_and_a_head_that_was_sent(self):
        sent = self.outside / "sent"
        program = self.outside / "send"
        program.write_text(f"#!/bin/sh\ncat >> {sent}\n")
        program.chmod(0o755)
        self.recorded(CALLS, "--audit-head-to", str(program))
        self.assertEqual(sent.read_text().splitlines()[-1], self.log.read_text().splitlines()[-1])
        key = self.outside / "key.pub"
        key.write_text(self.ipybox("audit", "key", env=self.env).stdout)
        self.assertTrue(key.read_text().startswith("-----BEGIN PUBLIC KEY-----"))
        elsewhere = {"XDG_STATE_HOME": str(self.outside / "elsewhere")}
        self.assert_verified(self.verify(env=elsewhere), 3, "signed with a key that is not known here")
        self.assert_verified(self.verify(self.log, "--key", key, env=elsewhere), 3, "this host knows no newest head")
        self.assert_verified(self.verify(self.log, "--key", key, "--head", sent, env=elsewhere), 0, "whole: ")
        self.log.write_text("".join(self.log.read_text().splitlines(keepends=True)[:-1]))
        self.assert_verified(self.verify(self.log, "--key", key, "--head", sent, env=elsewhere), 1, "whose head was sent out: it was removed")
        self.assertFalse(Path(elsewhere["XDG_STATE_HOME"]).exists())
        self.assert_refused(self.verify(self.log, "--key", self.log, env=elsewhere), "is no public key of Ed25519")
        self.assert_refused(self.verify(self.log, "--head", key, env=elsewhere), "no head of an audit log")

    def test_a_signature_is_what_openssl_makes_of_it(self):
        self.recorded("print(1)")
        head = json.loads(self.log.read_text().splitlines()[-1])
        key, text, signature = self.outside / "key.pub", self.outside / "text", self.outside / "signature"
        key.write_text(self.ipybox("audit", "key", env=self.env).stdout)
        import base64
        signature.write_bytes(base64.b64decode(head.pop("signature")))
        text.write_text(json.dumps(head, sort_keys=True, separators=(",", ":")))
        done = subprocess.run(["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", key, "-rawin", "-in", text, "-sigfile", signature],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_heads_go_to_a_url_and_failures_are_told_and_stop_nothing(self):
        got = []

        class Server(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                got.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        url = f"http://127.0.0.1:{server.server_port}/heads"
        self.recorded(CALLS, "--audit-head-to", url)
        self.assertEqual(got[-1], self.log.read_text().splitlines()[-1] + "\n")
        failing = self.outside / "fail"
        failing.write_text("#!/bin/sh\nexec false\n")
        failing.chmod(0o755)
        run = self.recorded(CALLS, "--audit-head-to", str(failing))
        self.assertIn("a head of the audit log was not sent: ", run.stderr)
        self.assert_verified(self.verify(), 0)
        for target in ("absent-program", "http://", "ftp://x"):
            self.assert_refused(self.ipybox("run", "--audit", str(self.log), "--audit-head-to", target, "-c", "1", env=self.env))
        self.assert_refused(self.ipybox("run", "--audit-head-to", url, "-c", "1", env=self.env), "add --audit FILE")

    def test_a_head_leaves_soon_after_a_record(self):
        times = self.outside / "times"
        program = self.outside / "send"
        program.write_text(f"#!/bin/sh\ncat > /dev/null\ndate +%s.%N >> {times}\n")
        program.chmod(0o755)
        self.recorded(CALLS + "\nimport time\ntime.sleep(5)", "--audit-head-to", str(program))
        ended = time.time()
        first, *_, last = map(float, times.read_text().split())
        self.assertGreater(ended - first, 2.5)
        self.assertLess(ended - last, 2.5)
        self.assert_verified(self.verify(), 0)

    def test_no_program_is_run_that_code_could_have_written(self):
        mine = self.directory / "send"
        self.recorded(f"open('send', 'w').write('#!/bin/sh\\ntouch {self.outside}/pwned\\n'); import os; os.chmod('send', 0o755)")
        run = self.ipybox("run", "--audit", str(self.log), "--audit-head-to", str(mine), "-c", "1", env=self.env)
        self.assert_refused(run, "is not run on the host, because code in a sandbox could write")
        self.assertFalse((self.outside / "pwned").exists())

    def test_a_key_that_others_can_reach_is_refused(self):
        self.recorded("print(1)")
        key = self.outside / "state/ipybox/audit/key.pem"
        self.assertEqual((key.stat().st_mode & 0o7777, key.parent.stat().st_mode & 0o7777), (0o600, 0o700))
        key.chmod(0o660)
        self.assert_refused(self.ipybox("run", "--audit", str(self.log), "-c", "1", env=self.env), "others can read or write it; remove it")


class Reader(HTMLParser):
    """The texts of a page, its elements and their attributes."""

    def __init__(self):
        super().__init__()
        self.text, self.tags, self.attributes = "", set(), set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_data(self, data):
        self.text += data


class PageTest(AuditTest):
    def page(self, *flags):
        page = self.outside / "page.html"
        shown = self.ipybox("audit", "show", str(self.log), "--html", str(page), *flags, env=self.env)
        self.assertEqual((shown.returncode, shown.stdout, shown.stderr), (0, "", ""))
        self.assertEqual(page.stat().st_mode & 0o777, 0o600)
        reader = Reader()
        reader.feed(page.read_text())
        return page.read_text(), reader

    def test_a_page_tells_what_a_session_did(self):
        hostile = "</pre><script>alert(1)</script>\\u202egnp.exe\\x1b[2J"
        self.recorded(f"from mcptools.own import echo\necho.run(text='{hostile}')\necho.run(text='x' * 5000)  # <b>\u202e", "--audit-with", "code",
                      "--audit-with", "results")
        denied = self.ipybox("run", "--config", "mcp.json", "--approve", "deny", "--audit", str(self.log), "-c", CALLS, env=self.env)
        self.assertEqual(denied.returncode, 1)
        text, reader = self.page()
        for part in ("The log is whole:", "from mcptools.own import echo", "own.echo", "allowed by application", "denied by application",
                     "'--approve deny'", "</pre><script>alert(1)</script>\\u202egnp.exe\\x1b[2J", "5000 bytes", "# <b>\\u202e", "answered '</pre>", "ok after "):
            self.assertIn(part, reader.text)
        self.assertNotIn("script", reader.tags)
        self.assertFalse(reader.tags - {"html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "code", "div", "p", "b", "section",
                                        "article", "span", "pre", "table", "tr", "th", "td", "details", "summary"})
        self.assertFalse({name for name in reader.attributes if name.startswith("on") or name in ("href", "src", "style")})
        for character in "\u202e\x1b":
            self.assertNotIn(character, text)
        self.assertIn("default-src 'none'", text)
        self.assertRegex(text, r'<html lang="en">')

    def test_sessions_are_chosen_and_a_broken_log_says_so_on_the_page(self):
        self.recorded(CALLS)
        refused = self.ipybox("audit", "show", str(self.log), "--html", str(self.outside / "p"), "--session", "other", env=self.env)
        self.assert_refused(refused, "has no session whose name matches other")
        self.assert_refused(self.ipybox("audit", "show", str(self.log), "--html", "p", "--denied", env=self.env), "leave out")
        self.log.write_text(self.log.read_text().replace('"text":"two"', '"text":"too"'))
        self.assertIn("The log is NOT whole:", self.page()[1].text)


if __name__ == "__main__":
    unittest.main()
