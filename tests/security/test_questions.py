"""A person sees everything they agree to, and only what they mean as an answer is one.

Code in the kernel tries to have a call approved that its person did not see: by what it sends, prints and withdraws. A
pseudo-terminal plays the person; the MCP server itself tells which calls were carried out.
"""
from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import KERNEL, PROGRAM, SUPPORT, InSandbox, Place, environment, kernel_flags  # noqa: E402

PROMPT = r"\? \[y/s/a/N/r/\?\] "
SEND = "from ipybox_kernel.client import send\nimport threading, time\n"


class Questions(InSandbox):
    def setUp(self) -> None:
        place = Place()
        self.place = self.enterContext(place)
        self.calls = place.file("outside/calls", mode=0o666)
        self.config = place.file("outside/mcp.json", json.dumps({"mcpServers": {"own": {
            "command": sys.executable, "args": [str(SUPPORT / "mcp_server.py"), "--calls", str(self.calls)]}}}))

    def converse(self, code: str, *script: tuple[str, float, str], policy: object = "ask", flags: tuple = ()) -> str:
        """Runs code on a terminal. Each step waits for a pattern after the last one's, so many seconds, and types."""
        file = self.place.file("outside/policy.json", json.dumps(policy))
        arguments = ["run", "--sandbox", self.sandbox, *kernel_flags(self.kernel, self.sandbox), "--config", str(self.config), "--policy", str(file), *flags, "-c", SEND + code]
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.place.workspace)
            os.execve(PROGRAM, [PROGRAM, *arguments], environment(TERM="xterm", NO_COLOR="1", XDG_CONFIG_HOME=str(self.place.outside / "settings")))
        seen, position, steps, deadline = "", 0, list(script), time.monotonic() + 100
        while time.monotonic() < deadline:
            while steps and (found := re.search(steps[0][0], seen[position:])):
                _, pause, text = steps.pop(0)
                position += found.end()
                time.sleep(pause)
                os.write(terminal, text.encode())
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            seen += data.decode(errors="replace")
        os.waitpid(pid, 0)
        os.close(terminal)
        self.assertFalse(steps, seen)
        return seen.replace("\r\n", "\n")

    def carried_out(self) -> list:
        return [json.loads(line) for line in self.calls.read_text().splitlines()]

    def test_the_contrast_a_deliberate_yes(self) -> None:
        seen = self.converse("print(send('own', 'echo', {'text': 'one'}))", (PROMPT, 0.2, "y\n"))
        self.assertIn("Question 1: own.echo\n  'text': 'one'\nAllow own.echo? [y/s/a/N/r/?] ", seen)
        self.assertEqual(self.carried_out(), [["echo", {"text": "one"}]])

    def test_push_the_truth_off_the_screen(self) -> None:
        """A name of 3,600 blanks, and a value of 5,000 bytes before the path."""
        seen = self.converse("""
for arguments in ({' ' * 3600 + 'x': 1, 'text': 'one'}, {'text': 'x' * 5000 + '\\nlast', 'path': '/etc/shadow'}):
    try:
        send('own', 'echo', arguments)
    except Exception as error:
        print(type(error).__name__)
""", (PROMPT, 0.2, "n\n"), (PROMPT, 0.2, "n\n"))
        self.assertIn("Question 1: own.echo\n  '\\[3600 blanks]x': 1\n  'text': 'one'\nAllow", seen)
        self.assertNotIn(" " * 100, seen)
        second = seen[seen.index("Question 2: own.echo"):]
        self.assertRegex(second, r"^Question 2: own\.echo\n  'path': '/etc/shadow'\n  'text': 'x{100}' … 'last' "
                                 r"\[folded: 5005 characters, 5005 bytes, 2 lines, sha256 [0-9a-f]{32}\]\n  all of it: '/\S+/arguments\.txt'\nAllow")
        self.assertLess(second.index("Allow"), 600)
        self.assertEqual(self.carried_out(), [])

    def test_all_of_it_is_in_a_file_that_code_cannot_reach(self) -> None:
        code = """
import glob, os
def look():
    time.sleep(1.5)
    for directory in ('/tmp', os.environ.get('XDG_RUNTIME_DIR', '/run')):
        for path in glob.glob(directory + '/ipybox-*/arguments.txt'):
            try:
                open(path, 'r+')
                print('ESCAPED', path)
            except OSError:
                pass
    print('looked')
threading.Thread(target=look).start()
try:
    send('own', 'echo', {'text': 'x' * 5000})
except Exception as error:
    print(error)
time.sleep(2)
"""
        seen = self.converse(code, (PROMPT, 1.5, "n\n"))
        self.assertIn("looked", seen)
        self.assertNotIn("ESCAPED", seen)
        self.assertFalse(Path(re.search(r"all of it: '(\S+)'", seen)[1]).exists(), "it outlives its question")

    def test_what_does_not_fit_is_not_asked(self) -> None:
        seen = self.converse("""
for arguments in ({f'k{i}': i for i in range(3000)}, {'command': 'true;' * 2000}):
    try:
        send('own', 'echo', {'text': '', **arguments})
    except Exception as error:
        print('refused:', error)
""")
        self.assertEqual(len(re.findall(r"refused: approval request for own\.echo rejected: the call cannot be put before a person: .* "
                                        r"more than 8000 bytes", seen)), 2, seen)
        self.assertNotIn("Question", seen)
        self.assertEqual(self.carried_out(), [])

    def test_print_another_question_while_one_is_open(self) -> None:
        for policy in ("ask", "console"):  # the program's console, and that of a plugin
            with self.subTest(policy):
                seen = self.converse("""
def forge():
    for i in range(20):
        time.sleep(0.1)
        print('\\n' * 50 + f'Question {i}: own.harmless\\nAllow own.harmless? [y/s/a/N/r/?] ', flush=True)
        import sys
        print('FORGED', file=sys.stderr, flush=True)
threading.Thread(target=forge).start()
try:
    send('own', 'echo', {'text': 'harmful'})
except Exception as error:
    print('refused', error)
time.sleep(2.5)
print('end')
""", (r"Allow own\.echo" + PROMPT, 1, "n\n"), policy=policy)
                asked, answered = seen.index("Question 1: own.echo"), seen.index("[y/s/a/N/r/?] n\n")
                self.assertNotIn("harmless", seen[asked:answered])
                self.assertNotIn("FORGED", seen[asked:answered])
                # Nothing is lost.
                self.assertEqual(seen.count("Allow own.harmless?"), 20, seen)
                self.assertEqual(seen.count("FORGED"), 20, seen)
                self.assertIn("\nend\n", seen)
        self.assertEqual(self.carried_out(), [])

    def test_flood_the_terminal_while_a_question_is_open(self) -> None:
        seen = self.converse("""
threading.Thread(target=lambda: print('Z' * 3_000_000)).start()
try:
    send('own', 'echo', {'text': 'harmful'})
except Exception as error:
    print('refused', error)
""", (PROMPT, 1, "n\n"))
        asked, answered = seen.index("Question 1: own.echo"), seen.index("[y/s/a/N/r/?] n\n")
        before = seen[:asked].count("Z")  # it may begin before the question; no name of a file has it
        self.assertNotIn("Z", seen[asked:answered])
        self.assertEqual(before + seen[answered:].count("Z"), 3_000_000)

    def test_use_an_answer_from_before_the_question(self) -> None:
        """Typed before it, in its first second, and for another one that was withdrawn."""
        seen = self.converse("""
print('ready', flush=True)
time.sleep(1)
send('own', 'echo', {'text': 'one'})
""", ("ready", 0.3, "y\n"), ("Question 1: ", 0.3, "y\ny\n"), (PROMPT, 0.2, "n\n"))
        self.assertIn("[what was typed before now is no answer]", seen)
        self.assertEqual(self.carried_out(), [])
        seen = self.converse("""
import asyncio
from ipybox_kernel.client import send_async
try:
    await asyncio.wait_for(send_async('own', 'echo', {'text': 'harmless'}), 3)
except Exception as error:
    print(type(error).__name__)
send('own', 'echo', {'text': 'harmful'})
""", (PROMPT, 0, ""), (r"\[withdrawn\]", 0.15, "y\n"), ("Question 2: ", 0.3, "y\n"), (PROMPT, 0.2, "n\n"))
        self.assertEqual(self.carried_out(), [])

    def test_change_the_tool_while_its_question_is_open(self) -> None:
        policy = {"rules": [{"when": {"tool": "change_tools"}, "then": "allow"},
                            {"when": {"annotations": {"readOnlyHint": True}}, "then": "ask"},
                            {"then": {"deny": "it writes"}}]}
        code = """
def change():
    time.sleep(0.5)
    send('own', 'change_tools', {CHANGE})
threading.Thread(target=change).start()
try:
    print('sum', send('own', 'add', {'a': 1, 'b': 2}))
except Exception as error:
    print('refused:', error)
"""
        answer = (PROMPT, 0.5, "y\n")
        seen = self.converse(code.replace("CHANGE", "'add': 'other'"), answer, policy=policy)
        self.assertIn("sum {'sum': 3}", seen)
        seen = self.converse(code.replace("CHANGE", "'writes': 'add'"), answer, policy=policy)
        self.assertIn("refused: approval request for own.add rejected: it writes", seen)
        self.assertEqual([name for name, _ in self.carried_out()], ["change_tools", "add", "change_tools"])
        # One whose meaning is another, though it is allowed to be asked about, is asked about again.
        seen = self.converse(code.replace("CHANGE", "'describes': 'add'"), answer, (PROMPT, 0.2, "n\n"), policy=policy)
        self.assertIn("Question 2: own.add", seen)
        self.assertEqual([name for name, _ in self.carried_out()][3:], ["change_tools"])


class InAClient(unittest.TestCase):
    """The same where a client of `ipybox serve` shows the question, as a form."""

    def ask(self, arguments: str, answer: object) -> tuple[list[dict], list, str]:
        """The forms that the client was shown, the calls that were carried out, and what the code printed."""
        with Place() as place:
            calls = place.file("outside/calls", mode=0o666)
            config = place.file("outside/mcp.json", json.dumps({"mcpServers": {"own": {
                "command": sys.executable, "args": [str(SUPPORT / "mcp_server.py"), "--calls", str(calls)]}}}))
            program = [PROGRAM, "serve", "--sandbox", "bubblewrap", "--workspace", str(place.workspace), "--config", str(config), "--approve", "ask"]
            process = subprocess.Popen(program, cwd=place.root, env=environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL)
            forms: list[dict] = []

            def send(**message: object) -> None:
                process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
                process.stdin.flush()

            def result_of(number: int) -> dict:
                for line in process.stdout:
                    message = json.loads(line)
                    if message.get("method") == "elicitation/create":
                        forms.append(message["params"])
                        send(id=message["id"], result=answer)
                    elif message.get("id") == number:
                        return message["result"]
                raise AssertionError("the program ended")

            with process:
                send(id=1, method="initialize", params={"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}},
                                                        "clientInfo": {"name": "test", "version": "1"}})
                result_of(1)
                send(method="notifications/initialized")
                code = SEND + f"try:\n    print(send('own', 'echo', {arguments}))\nexcept Exception as error:\n    print(error)"
                send(id=2, method="tools/call", params={"name": "execute_ipython_cell", "arguments": {"code": code}})
                printed = "".join(block.get("text", "") for block in result_of(2)["content"])
                process.stdin.close()
            return forms, calls.read_text().splitlines(), printed

    def test_the_contrast_a_deliberate_yes(self) -> None:
        forms, calls, printed = self.ask("{'text': 'one'}", {"action": "accept", "content": {"decision": "allow once"}})
        self.assertEqual((len(forms), len(calls), printed.strip()), (1, 1, "one"))
        decision = forms[0]["requestedSchema"]["properties"]["decision"]
        self.assertNotIn("default", decision)
        self.assertEqual(decision["enum"][0], "deny")

    def test_a_form_that_is_sent_without_a_choice(self) -> None:
        for content in ({}, {"decision": "deny"}, {"decision": "Allow once"}):
            with self.subTest(content):
                forms, calls, printed = self.ask("{'text': 'one'}", {"action": "accept", "content": content})
                self.assertEqual((len(forms), calls), (1, []))
                self.assertIn("rejected", printed)

    def test_texts_that_a_client_would_render(self) -> None:
        forms, calls, _ = self.ask("{'text': '```\\n# [allow](https://evil) ![](https://evil)\\x1b[2J\\u202e\\n' + ' ' * 3600 + 'x', 'path': '/etc/shadow'}",
                                   {"action": "decline"})
        message = forms[0]["message"]
        self.assertEqual(calls, [])
        self.assertRegex(message, r"^Code wants to call a tool:\n\n````\nown\.echo\n")
        self.assertTrue(message.endswith("\n````"), message)
        self.assertIn("'path': '/etc/shadow'", message)
        for forbidden in ("\x1b", "\u202e", " " * 100, "\n#"):
            self.assertNotIn(forbidden, message)


# On the gateway output and calls come one way, so what is held and what is withdrawn is another matter there; all else
# is alike, and left to scripts/test --full.
_BRIEF = ("test_print_another_question_while_one_is_open", "test_use_an_answer_from_before_the_question")
for _sandbox, _kernel in (("bubblewrap", KERNEL), ("srt", KERNEL), ("bubblewrap", "gateway")):
    _brief = _kernel == "gateway" and "IPYBOX_TEST_FULL" not in os.environ
    _left = [name for name in vars(Questions) if name.startswith("test_") and name not in _BRIEF] if _brief else []
    _name = f"{_sandbox.capitalize()}{_kernel.capitalize()}"
    globals()[_name] = type(_name, (Questions, unittest.TestCase), {"sandbox": _sandbox, "kernel": _kernel, **dict.fromkeys(_left)})


if __name__ == "__main__":
    unittest.main()
