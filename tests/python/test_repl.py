"""`ipybox repl` as a person uses it, at a pseudo-terminal."""
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PROGRAM = os.environ["IPYBOX_TEST_PROGRAM"]
PYTHON = os.environ["IPYBOX_TEST_PYTHON"]
SUPPORT = Path(os.environ["IPYBOX_TEST_SUPPORT"])
sys.path.insert(0, str(SUPPORT))
from terminal import Terminal  # noqa: E402

UP, DOWN, LEFT, HOME, END = "\x1b[A", "\x1b[B", "\x1b[D", "\x1b[H", "\x1b[F"
CTRL_A, CTRL_C, CTRL_D, CTRL_R, TAB, ALT_ENTER = "\x01", "\x03", "\x04", "\x12", "\t", "\x1b\r"
READY = r">>> $"


class ReplTest(unittest.TestCase):
    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix="ipybox-repl-"))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.directory.chmod(0o755)
        self.workspace = self.directory / "work"
        self.workspace.mkdir()
        if os.geteuid() == 0:  # the sandbox drops root
            os.chown(self.workspace, 65534, 65534)
        self.calls = self.directory / "calls"
        self.calls.touch()
        self.calls.chmod(0o666)
        self.config = self.directory / "mcp.json"
        self.config.write_text(json.dumps({"mcpServers": {"own": {
            "command": PYTHON, "args": [str(SUPPORT / "mcp_server.py"), "--calls", str(self.calls)]}}}))
        self.history = self.directory / "state/ipybox/repl-history.jsonl"

    def environment(self, **more):
        return {"PATH": os.environ["PATH"], "IPYBOX_PYTHON": PYTHON, "HOME": str(self.directory), "NO_COLOR": "1",
                "XDG_STATE_HOME": str(self.directory / "state"), "XDG_CONFIG_HOME": str(self.directory / "settings"), **more}

    def repl(self, *flags, rows=40, columns=100, **environment):
        terminal = self.enterContext(Terminal([PROGRAM, "repl", *flags], self.workspace, self.environment(**environment),
                                              rows, columns))
        terminal.expect(r":help tells more\n(?s:.*)" + READY)
        return terminal

    def answer(self, terminal, cell, pattern):
        """Types a cell; what came before the next prompt must fit."""
        terminal.send(cell + "\r")
        return terminal.expect(pattern + r"(?s:.*?)\n" + READY)

    def leave(self, terminal):
        terminal.send(CTRL_D)
        self.assertEqual(terminal.finish(), 0)


class EditingTest(ReplTest):
    def test_a_session_keeps_its_names_and_ends_with_ctrl_d(self):
        terminal = self.repl()
        self.answer(terminal, "x = 6", "")
        self.answer(terminal, "x * 7", "\n42")
        self.answer(terminal, "import asyncio", "")
        self.answer(terminal, "await asyncio.sleep(0, 'slept')", "'slept'")
        self.answer(terminal, "!echo from a shell", "\nfrom a shell")
        self.answer(terminal, "name = 'wörter €'; name", "wörter €")
        self.leave(terminal)

    def test_a_block_is_edited_as_a_whole(self):
        terminal = self.repl()
        terminal.send("def double(n):\r")
        terminal.shows(r"^>>>\ndef double\(n\):$")
        time.sleep(0.3)
        terminal.send("return n * 3\r")  # indented by itself
        terminal.shows(r"^>>>\ndef double\(n\):\n    return n \* 3$")
        terminal.send(UP + END + "\x7f2")  # one line up, and the mistake is gone
        terminal.shows(r"^>>>\ndef double\(n\):\n    return n \* 2$")
        terminal.send(DOWN + "\r\r")
        terminal.expect(READY)
        self.answer(terminal, "double(21)", "\n42")
        # All of it comes back at once.
        terminal.send(UP + UP)
        terminal.shows(r"^>>>\ndef double\(n\):\n    return n \* 2$")
        terminal.send(UP + CTRL_C)
        terminal.expect(r"\^C\n>>> $")
        self.assertRegex(terminal.screen.text(), r"42\n>>>\ndef double\(n\):\n    return n \* 2\n*\^C\n>>>$")
        self.leave(terminal)

    def test_what_is_open_goes_on_and_what_is_wrong_is_told(self):
        terminal = self.repl()
        for cell, pattern in (("sum([1,\r2,\r39])", "\n42"), ("'''a\r\rb'''", r"'a\\n\\nb'"), ("print(1,\\\r2)", "\n1 2"),
                              ("@staticmethod\rdef f(): pass\r", ""), ("1 +", "SyntaxError"), ("'", "SyntaxError"),
                              ("%%bash\recho one\recho two\r", "\none\ntwo"), ("for i in range(2): print(i)", "\n0\n1")):
            with self.subTest(cell):
                self.answer(terminal, cell, pattern)
        self.leave(terminal)

    def test_alt_enter_begins_a_line_and_enter_within_a_cell_too(self):
        terminal = self.repl()
        terminal.send("a = 1" + ALT_ENTER + "a + 1")
        terminal.shows(r"^>>>\na = 1\na \+ 1$")
        terminal.send("\r")
        terminal.expect(r"\n2(?s:.*)" + READY)
        terminal.send(UP + UP + END + "\r")  # not in the last line
        terminal.shows(r"^>>>\na = 1\n\na \+ 1$")
        terminal.send(CTRL_C)
        terminal.expect(READY)
        self.leave(terminal)

    def test_a_paste_is_one_cell_and_runs_with_a_key(self):
        terminal = self.repl()
        text = "def f():\n    x = 1\n\n    return x + 1\n\nprint('ran', f())\n"
        terminal.send("\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~")
        terminal.shows(r"^>>>\ndef f\(\):\n    x = 1\n\n    return x \+ 1\n\nprint\('ran', f\(\)\)$")
        self.assertNotIn("ran 2", terminal.screen.text())
        terminal.send("\r")
        terminal.expect(r"ran 2(?s:.*)" + READY)
        # Keys in it are none, and what cannot be seen is not there.
        terminal.send("\x1b[200~print('\x04\x03\x1b[Aa\u202eb\x07')\x1b[201~\r")
        terminal.expect(r"\n\[Aab\n(?s:.*)" + READY)
        # Without such marks it is taken line by line, with the blanks that it has.
        terminal.send("def g():\n    if True:\n        return 5\n\ng()\n")
        terminal.expect(r"\n5\n(?s:.*)" + READY)
        self.leave(terminal)

    def test_the_terminal_may_change_its_size(self):
        terminal = self.repl(columns=100)
        terminal.send("print('" + "a" * 60)
        terminal.shows("a{60}")
        terminal.resize(30, 50)
        time.sleep(0.5)
        terminal.send("b')")
        terminal.shows(r"^>>> print\('a{39}\na{21}b'\)$".replace("39", str(50 - 11)).replace("21", str(60 - 39)))
        terminal.send("\r")
        terminal.expect(r"a{60}b\n(?s:.*)" + READY)
        self.answer(terminal, "def f():\r    return 1\r", "")
        self.leave(terminal)

    def test_ctrl_z_stops_it_and_it_goes_on(self):
        terminal = self.repl()
        terminal.send("6 *")
        terminal.shows(r"6 \*$")
        terminal.send("\x1a")
        deadline = time.monotonic() + 20
        while Path(f"/proc/{terminal.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            self.assertLess(time.monotonic(), deadline)
            terminal.read(0.1)
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.shows(r"^>>> 6 \*\n>>> 6 \*$")
        self.answer(terminal, " 7", "\n42")
        self.leave(terminal)


class HistoryTest(ReplTest):
    def test_it_is_there_the_next_time_and_the_persons_alone(self):
        terminal = self.repl()
        self.answer(terminal, "first = 1", "")
        self.answer(terminal, "def second():\r    return 'zwei ü'\r", "")
        self.answer(terminal, "  secret = 2", "")
        self.answer(terminal, ":servers", "no MCP servers")
        self.leave(terminal)
        self.assertEqual(stat.S_IMODE(self.history.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.history.parent.stat().st_mode) & 0o077, 0)
        kept = [json.loads(line) for line in self.history.read_text().splitlines()]
        self.assertEqual(kept, ["first = 1", "def second():\n    return 'zwei ü'\n", ":servers"])
        terminal = self.repl()
        terminal.send(UP + UP)
        terminal.shows(r"^>>>\ndef second\(\):\n    return 'zwei ü'$")
        terminal.send(CTRL_C)
        terminal.expect(READY)
        terminal.send(CTRL_R + "irst")
        terminal.shows("first = 1")
        terminal.send("\r")
        terminal.expect(READY)
        self.answer(terminal, "first", "\n1")
        self.leave(terminal)

    def test_the_latest_cells_are_kept(self):
        self.history.parent.mkdir(parents=True, mode=0o700)
        lines = [json.dumps(f"x{i} = {i}") for i in range(4100)]
        lines[4098] = '"no\\u001b[2Jcell"'
        lines[4097] = "{broken"
        self.history.write_text("\n".join(lines) + "\n")
        self.history.chmod(0o600)
        terminal = self.repl()
        terminal.send(UP)
        terminal.shows("^>>> x4099 = 4099$")
        terminal.send(UP)  # not what was never typed
        terminal.shows("^>>> x4096 = 4096$")
        terminal.send(CTRL_C)
        terminal.expect(READY)
        self.answer(terminal, "last = 1", "")
        self.leave(terminal)
        kept = [json.loads(line) for line in self.history.read_text().splitlines()]
        self.assertEqual((len(kept), kept[-2:]), (2001, ["x4099 = 4099", "last = 1"]))
        self.assertEqual(stat.S_IMODE(self.history.stat().st_mode), 0o600)

    def test_two_at_once_keep_all_that_is_typed(self):
        one, other = self.repl(), self.repl()
        for i in range(3):
            self.answer(one, f"one{i} = 1", "")
            self.answer(other, f"other{i} = 1", "")
        self.leave(one)
        self.leave(other)
        self.assertEqual(len(self.history.read_text().splitlines()), 6)

    def test_none_is_kept_where_that_is_said(self):
        terminal = self.repl("--no-history")
        self.answer(terminal, "first = 1", "")
        self.leave(terminal)
        self.assertFalse(self.history.exists())

    def test_a_file_that_others_could_have_written_is_left_alone(self):
        self.history.parent.mkdir(parents=True)
        self.history.parent.chmod(0o700)
        for mode, target in ((0o644, None), (0o600, "elsewhere")):
            if target:
                self.history.unlink()
                self.history.symlink_to(self.directory / target)
                (self.directory / target).touch(0o600)
            else:
                self.history.write_text('"planted()"\n')
                self.history.chmod(mode)
            terminal = self.enterContext(Terminal([PROGRAM, "repl"], self.workspace, self.environment()))
            terminal.expect(r"repl-history\.jsonl(?s:.*)nothing is kept of what you type(?s:.*)" + READY)
            terminal.send(UP)
            self.answer(terminal, "1 + 1", "\n2")
            self.leave(terminal)
            self.assertNotIn("planted", terminal.raw)
        self.assertEqual((self.directory / "elsewhere").read_text(), "")

    def test_one_in_a_place_of_the_codes_is_not_used(self):
        """A state directory below what another session may write, whose code plants a line."""
        place = self.workspace / "state"
        place.mkdir()
        if os.geteuid() == 0:
            os.chown(place, 65534, 65534)
        record = {"XDG_STATE_HOME": str(self.directory / "state")}
        used = subprocess.run([PROGRAM, "run", "-c", "print(1)"], cwd=self.workspace, env=self.environment(**record),
                              capture_output=True, text=True, timeout=100)
        self.assertEqual(used.stdout, "1\n", used.stderr)
        linked = self.directory / "state/ipybox/repl-history.jsonl"
        linked.symlink_to(place / "history")
        (place / "history").write_text('"planted()"\n')
        terminal = self.enterContext(Terminal([PROGRAM, "repl"], self.workspace, self.environment(**record)))
        terminal.expect(r"could have written(?s:.*)nothing is kept(?s:.*)" + READY)
        self.leave(terminal)

    def test_code_does_not_reach_it(self):
        terminal = self.repl()
        self.answer(terminal, "1 + 1", "\n2")
        self.answer(terminal, f"open({str(self.history)!r}, 'a')", "(FileNotFoundError|PermissionError)")
        self.leave(terminal)


class CompletionTest(ReplTest):
    def test_tab_completes_through_the_kernel(self):
        for kernel in ("fork", "zmq"):
            with self.subTest(kernel):
                terminal = self.repl("--kernel", kernel)
                self.answer(terminal, "import json, os; number_of_words = 7", "")
                self.answer(terminal, "number_of" + TAB, "\n7")
                self.answer(terminal, "json.dumps(dict(a=1), sort_k" + TAB + "True)", "a.*1")
                terminal.send("os.path.is" + TAB + TAB)
                terminal.expect(r"isabs +.*isdir")
                terminal.shows(r">>> os\.path\.is$")
                self.answer(terminal, "fi" + TAB + "('/')", "False")
                terminal.send("x = [\r1]; os.path.is" + TAB + TAB)
                terminal.shows(r"^>>>\nx = \[\n1\]; os\.path\.is\nisabs +(?s:.*)isdir(?s:.*)^>>>\nx = \[\n1\]; os\.path\.is$")
                terminal.send(LEFT + CTRL_C)
                terminal.expect(r"\^C\n>>> $")
                terminal.send("if True:\r")
                time.sleep(0.3)
                terminal.send(TAB + "'indented'\r\r")
                terminal.expect(r"'indented'(?s:.*)\n" + READY)
                self.assertRegex(terminal.screen.text(), r"\nif True:\n {8}'indented'\n")
                self.leave(terminal)

    def test_code_is_not_run_by_it(self):
        terminal = self.repl()
        self.answer(terminal, "class Loud:\r    def __getattr__(self, name): open('ran', 'w')\r    __dir__ = __getattr__\r"
                              "    @property\r    def prop(self): open('ran', 'w')\r    quiet_word = 1\r", "")
        self.answer(terminal, "loud = Loud()", "")
        terminal.send("loud.prop." + TAB)
        time.sleep(0.5)
        terminal.send(CTRL_C)
        terminal.expect(READY)
        terminal.send("loud.quiet_w" + TAB)
        terminal.shows("loud.quiet_word$")
        self.assertFalse((self.workspace / "ran").exists())
        terminal.send(CTRL_C)
        terminal.expect(READY)
        self.leave(terminal)

    def test_a_kernel_that_lies_puts_nothing_else_into_the_line(self):
        terminal = self.repl()
        self.answer(terminal, "import ipybox_kernel.completion as c", "")
        self.answer(terminal, "c.complete = lambda *_: ('', ['x\\n:quit', '\\x1b[2J', 'a' * 5000, ':quit\\r', 7, ''])", "")
        terminal.send("ab" + TAB + TAB)
        time.sleep(0.5)
        self.answer(terminal, " = 5; ab", "\n5")
        self.answer(terminal, "c.complete = lambda *_: ('no such text', ['no such text of yours'])", "")
        terminal.send("ab" + TAB)
        time.sleep(0.5)
        self.answer(terminal, "", "\n5")
        # One that does not answer is left behind: the prompt goes on.
        self.answer(terminal, "import time; c.complete = lambda *_: time.sleep(60)", "")
        terminal.send("ab" + TAB)
        self.answer(terminal, " + 1", "\n6")
        terminal.send("ab" + TAB)
        time.sleep(0.5)
        terminal.send(CTRL_C)
        terminal.expect(READY, seconds=3)
        self.leave(terminal)

    def test_commands_are_completed_too(self):
        terminal = self.repl()
        self.answer(terminal, ":ser" + TAB, "no MCP servers")
        terminal.send(":tool" + TAB + TAB)
        terminal.send(CTRL_C)
        terminal.expect(READY)
        self.leave(terminal)


class RunningTest(ReplTest):
    def test_ctrl_c_interrupts_the_cell_and_leaves_the_rest(self):
        terminal = self.repl()
        self.answer(terminal, "x = 5; import time", "")
        terminal.send("print('begun', flush=True); time.sleep(60)\r")
        terminal.expect("\nbegun")
        terminal.send(CTRL_C)
        terminal.expect(r"\^C\nthe execution was cancelled\n" + READY, seconds=10)
        self.answer(terminal, "x", "\n5")
        # At the prompt it drops what was typed.
        terminal.send("never(" + CTRL_C)
        terminal.expect(r"\^C\n" + READY)
        self.answer(terminal, "x + 1", "\n6")
        self.leave(terminal)

    def test_a_dead_kernel_is_told_and_reset_makes_another(self):
        terminal = self.repl()
        self.answer(terminal, "x = 5", "")
        self.answer(terminal, "import os; os._exit(3)", r":reset starts a new one")
        self.answer(terminal, "x", r":reset")
        terminal.send("x" + TAB + CTRL_C)
        terminal.expect(READY)
        self.answer(terminal, ":reset", "a fresh kernel")
        self.answer(terminal, "x", "NameError")
        self.answer(terminal, "2 + 2", "\n4")
        self.leave(terminal)

    def test_images_are_told_by_their_path(self):
        terminal = self.repl()
        picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        self.answer(terminal, "from IPython.display import Image, display; import base64", "")
        found = self.answer(terminal, f"display(Image(base64.b64decode('{picture}')))", r"\[image\] (\S+\.png)")
        self.assertTrue(Path(found[1]).read_bytes().startswith(b"\x89PNG"))
        self.leave(terminal)

    def test_code_that_asks_is_answered_and_says_that_it_is_the_code(self):
        terminal = self.repl()
        terminal.send("name = input('Your name? ')\r")
        terminal.expect(r"\[the code asks\] Your name\? $")
        terminal.send("Ada\r")
        terminal.expect(READY)
        self.answer(terminal, "name", "\n'Ada'")
        terminal.send("import getpass; word = getpass.getpass('[sudo] password: \\x1b[2J')\r")
        terminal.expect(r"\[the code asks, and will see it\] \[sudo\] password: \\x1b\[2J $")
        terminal.send("hidden word\r")
        terminal.expect(READY)
        self.assertNotIn("hidden word", terminal.raw)
        self.answer(terminal, "len(word)", "\n11")
        terminal.send("input('again')\r")
        terminal.expect(r"\[the code asks\] again $")
        terminal.send(CTRL_C)
        terminal.expect(r"the execution was cancelled\n" + READY)
        self.answer(terminal, "'usable'", "\n'usable'")
        self.leave(terminal)

    def test_a_cell_with_a_fault_does_not_run(self):
        if subprocess.run([PYTHON, "-c", "import ty"]).returncode:
            self.fail("ty is missing: scripts/setup --tests installs it")
        terminal = self.repl("--check", "--config", str(self.config), "--approve", "allow")
        self.answer(terminal, "from mcptools.own import echo; echo.run(echo.Params(txet='x'))", r"check: (?s:.*)Nothing was executed")
        self.assertEqual(self.calls.read_text(), "")
        self.leave(terminal)

    def test_servers_and_tools_are_shown(self):
        terminal = self.repl("--config", str(self.config))
        self.answer(terminal, ":servers", r"SERVER +TYPE +STATE\nown +stdio +running")
        self.answer(terminal, ":tools adds numbers", "own.add")
        self.answer(terminal, ":tools", "echo")
        self.answer(terminal, ":tool own.echo", "echo")
        self.answer(terminal, ":tool own.ecko", "own.echo")
        self.answer(terminal, ":resett", r"no command :resett; did you mean :reset\?")
        self.answer(terminal, ":help", r":reset +a fresh kernel(?s:.*)Ctrl-D +leaves")
        self.answer(terminal, "value = [1, 2]", "")
        self.answer(terminal, ":variables", r"value +list +2 +\[1, 2\]")
        terminal.send(":quit\r")
        self.assertEqual(terminal.finish(), 0)

    def test_the_words_that_people_leave_with(self):
        for word in ("exit", "quit()"):
            terminal = self.repl()
            terminal.send(word + "\r")
            self.assertEqual(terminal.finish(), 0)

    def test_without_a_terminal_it_says_what_to_use(self):
        run = subprocess.run([PROGRAM, "repl"], cwd=self.workspace, input="print(1)", capture_output=True, text=True, timeout=60,
                             env=self.environment())
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertRegex(run.stderr, r"\Aipybox: repl needs a terminal .*`ipybox run - <FILE`\n\Z")

    def test_sigterm_ends_it_with_its_kernel(self):
        terminal = self.repl()
        found = self.answer(terminal, "import os; print('pid', os.stat('/proc/self').st_ino)", r"pid \d+")
        self.assertTrue(found)
        os.kill(terminal.pid, signal.SIGTERM)
        self.assertEqual(terminal.finish(), 143)


class ApprovalTest(ReplTest):
    CALL = "from mcptools.own import echo; echo.run(echo.Params(text='{}'))"
    ASKED = r"Question \d+: own\.echo\n  'text': '{}'\nAllow own\.echo\? \[y/s/a/N/r/\?\] $"

    def carried_out(self):
        return [json.loads(line) for line in self.calls.read_text().splitlines()]

    def ask(self, terminal, text, answer, pattern):
        terminal.send(self.CALL.format(text) + "\r")
        terminal.expect(self.ASKED.format(text))
        terminal.send(answer + "\r")
        terminal.expect(pattern + r"(?s:.*)\n" + READY)

    def test_yes_and_no_inline(self):
        terminal = self.repl("--config", str(self.config))
        self.ask(terminal, "one", "y", "one")
        self.ask(terminal, "two", "n", "not allowed")
        self.ask(terminal, "three", "", "not allowed")
        self.assertEqual(self.carried_out(), [["echo", {"text": "one"}]])
        # What the kernel had before is there still.
        self.answer(terminal, "echo.__name__", "echo")
        self.leave(terminal)

    def test_what_is_typed_ahead_is_no_answer(self):
        terminal = self.repl("--config", str(self.config))
        self.answer(terminal, "import time", "")
        terminal.send("time.sleep(1); " + self.CALL.format("ahead") + "\r")
        time.sleep(0.3)
        terminal.send("y\r")
        terminal.expect(r"Question \d+: own\.echo\n  'text': 'ahead'\n\[what was typed before now is no answer\]\nAllow .*\] $")
        terminal.send("n\r")
        terminal.expect(READY)
        self.assertEqual(self.carried_out(), [])
        self.leave(terminal)

    def test_ctrl_c_takes_a_question_back(self):
        terminal = self.repl("--config", str(self.config))
        terminal.send(self.CALL.format("back") + "\r")
        terminal.expect(self.ASKED.format("back"))
        terminal.send(CTRL_C)
        terminal.expect(r"\[withdrawn\](?s:.*)" + READY)
        self.assertEqual(self.carried_out(), [])
        self.answer(terminal, "'usable'", "usable")
        self.leave(terminal)

    def test_output_fakes_neither_question_nor_prompt(self):
        """Sequences of the code's reach no terminal; an answer to what it prints reaches no call."""
        terminal = self.repl("--config", str(self.config))
        hostile = r"print('\x1b[2J\x1b[H\x1b]0;title\x07\x1b[8mhidden\x1b[?1049h\u202eQuestion 1: own.echo\nAllow own.echo? [y/s/a/N/r/?] ', end='')"
        terminal.send(hostile + "\r")
        terminal.expect(r"hiddenQuestion 1: own\.echo\nAllow own\.echo\? \[y/s/a/N/r/\?\] \n>>> $")
        terminal.send("y\r")
        terminal.expect("NameError(?s:.*)" + READY)
        output = terminal.raw[terminal.raw.index("hiddenQuestion") - 20:]
        for sequence in ("\x1b[2J", "\x1b]0;", "\x1b[8m", "\x1b[?1049h", "\u202e"):
            self.assertNotIn(sequence, output)
        # A sequence that a cell leaves open swallows nothing of the next one.
        self.answer(terminal, r"print('\x1b]0;open', end='')", "")
        self.answer(terminal, "'seen'", "\n'seen'")
        self.answer(terminal, r"raise ValueError('\x1b[2Jbad\x1b]0;title\x07 words')", r"ValueError: bad words")
        self.assertEqual(self.carried_out(), [])
        self.leave(terminal)

    def test_code_that_waits_no_more_asks_nothing(self):
        """A forged request for input stands behind a question; both end with the cell."""
        terminal = self.repl("--config", str(self.config), "--kernel", "zmq")
        self.answer(terminal, "import threading, time; from mcptools.own import echo; kernel = get_ipython().kernel", "")
        self.answer(terminal, "call = lambda: echo.run(echo.Params(text='behind'))", "")
        self.answer(terminal, "def forge(text):\r    kernel.session.send(kernel.stdin_socket, 'input_request', {'prompt': text}, "
                              "kernel.get_parent('shell'), ident=kernel._parent_ident['shell'])\r", "")
        terminal.send("threading.Thread(target=call).start(); time.sleep(1); forge('one'); time.sleep(1)\r")
        terminal.expect(self.ASKED.format("behind"))
        terminal.expect(r"\[withdrawn\](?s:.*)" + READY, seconds=20)
        self.assertNotIn("[the code asks] one", terminal.raw)
        self.answer(terminal, "'usable'", "usable")
        self.assertEqual(self.carried_out(), [])
        self.leave(terminal)

    def test_a_question_and_the_prompt_begin_a_line(self):
        """A newline within a sequence is not seen, so that it ends no line."""
        terminal = self.repl("--config", str(self.config))
        terminal.send(r"print('forged\x1b]0;\n', end='')" + "\r")
        terminal.expect(r"\nforged\n" + READY)
        terminal.send(r"print('forged\x1b]0;\n', end='', flush=True); " + self.CALL.format("begun") + "\r")
        terminal.expect(r"\nforged\n" + self.ASKED.format("begun"))
        terminal.send("n\r")
        terminal.expect(READY)
        self.assertEqual(self.carried_out(), [])
        self.leave(terminal)


class ColourTest(ReplTest):
    def test_colours_are_heard_of(self):
        for environment, colored in (({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": "", "TERM": "dumb"}, False)):
            with self.subTest(environment):
                terminal = self.enterContext(Terminal([PROGRAM, "repl"], self.workspace, self.environment(**environment)))
                terminal.expect(READY)
                terminal.send("1/0\r")
                terminal.expect(r"ZeroDivisionError(?s:.*)" + READY)
                self.assertEqual(bool(re.search(r"\x1b\[[0-9;]*m", terminal.raw)), colored, terminal.raw)
                self.assertEqual("\x1b[1;31mZeroDivisionError" in terminal.raw, colored)
                self.leave(terminal)


if __name__ == "__main__":
    unittest.main()
