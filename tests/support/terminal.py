"""A pseudo-terminal that plays the person at a program."""
import os
import pty
import re
import select
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
