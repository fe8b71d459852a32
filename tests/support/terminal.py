"""A pseudo-terminal that plays the person at a program."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

PROMPT = re.compile(r"\n(?:\x1b\[1m)?Allow [^\n]*\? \[y/s/a/N/r/\?\] |Reason: ")


def converse(command, answers, prompt, directory, environment):
    """Runs it there; each answer is typed when its prompt has appeared. Returns its exit code, and what was seen."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execve(command[0], list(map(str, command)), {"TERM": "xterm", **environment})
    seen, answers, deadline = "", list(answers), time.monotonic() + 100
    position = 0
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        seen += data.decode(errors="replace")
        while answers and (asked := prompt.search(seen, position)):
            position = asked.end()
            time.sleep(0.2)
            os.write(terminal, answers.pop(0).encode())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return status, seen


class Screen:
    """What is seen of the sequences that ipybox and libedit send to an xterm; any other one is an error."""

    SEQUENCE = re.compile(r"\x1b(?:\[(\??[0-9;]*)([A-Za-z@])|([78=>])|\(B)")

    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.lines = [[]]
        self.row = self.column = 0
        self.saved = (0, 0)
        self.rest = ""

    def feed(self, text):
        text, self.rest = self.rest + text, ""
        while text:
            if text[0] == "\x1b":
                found = self.SEQUENCE.match(text)
                if found is None:
                    assert len(text) < 20, f"unknown sequence {text[:20]!r}"
                    self.rest = text
                    return
                self.obey(found[1] or "", found[2] or found[3] or "")
                text = text[found.end():]
            else:
                self.put(text[0])
                text = text[1:]

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character != "\a":
            if self.column == self.columns:  # as xterm does: the next character wraps, not the last
                self.row, self.column = self.row + 1, 0
            line = self.line()
            line[self.column:self.column + 1] = [character]
            self.column += 1

    def line(self):
        """The cursor's, filled up to it."""
        self.lines += [[] for _ in range(self.row + 1 - len(self.lines))]
        line = self.lines[self.row]
        line += " " * (self.column - len(line))
        return line

    def obey(self, argument, kind):
        number = int(argument) if argument.isdigit() else 0
        count = number or 1
        if kind == "A":
            self.row = max(0, self.row - count)
        elif kind == "B":
            self.row += count
        elif kind == "C":
            self.column = min(self.columns - 1, self.column + count)
        elif kind == "D":
            self.column = max(0, min(self.column, self.columns - 1) - count)
        elif kind == "G":
            self.column = count - 1
        elif kind == "K":
            del self.line()[self.column:]
        elif kind == "J":
            del self.line()[self.column:]
            del self.lines[self.row + 1:]
        elif kind == "P":
            del self.line()[self.column:self.column + count]
        elif kind == "@":
            self.line()[self.column:self.column] = " " * count
        elif kind == "7":
            self.saved = (self.row, self.column)
        elif kind == "8":
            self.row, self.column = self.saved
        else:
            assert kind in "mhl=>" or not kind, f"unknown sequence {argument!r} {kind!r}"

    def text(self):
        """All lines, from the start on, without blanks at their ends."""
        return "\n".join("".join(line).rstrip() for line in self.lines)


class Terminal:
    """A program at a pseudo-terminal, and the person there."""

    def __init__(self, command, directory, environment, rows=40, columns=100):
        self.screen = Screen(rows, columns)
        self.raw = ""
        self.position = 0  # in the raw text, up to where it was expected
        self.pid, self.handle = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.execve(command[0], list(map(str, command)), {"TERM": "xterm", **environment})
        self.resize(rows, columns)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.handle)

    def resize(self, rows, columns):
        fcntl.ioctl(self.handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.columns = columns

    def send(self, text):
        os.write(self.handle, text.encode())

    def read(self, seconds):
        """False once nothing more can come."""
        if not select.select([self.handle], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.handle, 65536)
        except OSError:
            return False
        text = data.decode(errors="replace")
        self.raw += text
        self.screen.feed(text)
        return bool(data)

    def expect(self, pattern, seconds=60):
        """Waits until it comes, in what came since the last time, colours and movements apart."""
        deadline = time.monotonic() + seconds
        while True:
            fresh = Screen.SEQUENCE.sub("", self.raw[self.position:]).replace("\r", "")
            if found := re.search(pattern, fresh):
                self.position = len(self.raw)
                return found
            assert time.monotonic() < deadline, f"{pattern!r} did not come:\n{self.screen.text()}\n{fresh!r}"
            if not self.read(0.2):
                raise AssertionError(f"the program ended before {pattern!r}:\n{self.screen.text()}")

    def shows(self, pattern, seconds=30):
        """Waits until it is on the screen."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.screen.text(), re.M)):
            assert time.monotonic() < deadline, f"{pattern!r} is not on the screen:\n{self.screen.text()}"
            self.read(0.2)
        return found

    def finish(self, seconds=30):
        """Its exit code, once it has ended by itself."""
        deadline = time.monotonic() + seconds
        while self.read(0.2):
            assert time.monotonic() < deadline, f"it does not end:\n{self.screen.text()}"
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = 0
        return status
