"""Which cell an interrupt ends, in whatever order the host's words and signals reach a kernel of ipybox's own; and what
such a kernel sends when."""
from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

PYTHON = os.environ["IPYBOX_TEST_PYTHON"]
PACKAGE = Path(os.environ["IPYBOX_TEST_PYTHON_PACKAGE"])
HEAD = struct.Struct("<IB")
ENDLESS = "print('on', flush=True)\nwhile True: pass"
SLEEP = "import time; time.sleep(0.02); print('whole')"
INTERRUPTED = "KeyboardInterrupt"


class Kernel:
    """A kernel without a sandbox, and the host's end of its link."""

    def __init__(self, place: str) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{place}/link")
            listener.listen()
            self.process = subprocess.Popen(
                [PYTHON, "-c", "from ipybox_kernel.runner import main; main()"],
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE), "HOME": place,
                     "IPYTHONDIR": f"{place}/ipython", "IPYBOX_KERNEL_LINK": f"{place}/link"},
            )
            listener.settimeout(30)
            self.link = listener.accept()[0]
        self.link.settimeout(30)
        self.id = 0
        self.send("i", {"env": None, "extensions": [], "allow_input": False})
        self.until("h")

    def close(self) -> None:
        self.link.close()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()

    def frame(self, kind: str, message: dict[str, Any]) -> bytes:
        payload = json.dumps(message).encode()
        return HEAD.pack(len(payload), ord(kind)) + payload

    def send(self, kind: str, message: dict[str, Any]) -> None:
        self.link.sendall(self.frame(kind, message))

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.link.recv(size - len(data))
            if not piece:
                raise EOFError("the kernel has ended")
            data += piece
        return data

    def until(self, kind: str) -> list[tuple[str, bytes]]:
        frames = []
        while not frames or frames[-1][0] != kind:
            size, number = HEAD.unpack(self.read(HEAD.size))
            frames.append((chr(number), self.read(size)))
        return frames

    def cell(self, code: str) -> bytes:
        self.id += 1
        return self.frame("x", {"id": self.id, "code": code, "silent": False, "input": False})

    def word(self) -> bytes:
        return self.frame("c", {"id": self.id})

    def signal(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def interrupt(self) -> None:
        """As the host does."""
        self.link.sendall(self.word())
        self.signal()

    def stop(self) -> None:
        """Until it goes on, what is sent reaches it at once."""
        self.process.send_signal(signal.SIGSTOP)
        while Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> str:
        """What the newest cell gave: its text, or the name of its error."""
        frames = self.until("k")
        last = json.loads(frames[-1][1])
        assert last["id"] == self.id, last
        errors = [json.loads(payload)["ename"] for kind, payload in frames if kind == "x"]
        assert last["ok"] == (not errors), (last, errors)
        return errors[0] if errors else b"".join(payload for kind, payload in frames if kind == "o").decode()


class Interrupts(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.kernel = Kernel(place.name)
        self.addCleanup(self.kernel.close)

    def is_whole(self) -> None:
        """The cells that follow are left alone."""
        for _ in range(2):
            self.kernel.link.sendall(self.kernel.cell(SLEEP))
            self.assertEqual(self.kernel.end(), "whole\n")

    def begin(self, code: str = ENDLESS) -> None:
        self.kernel.link.sendall(self.kernel.cell(code))
        self.kernel.until("o")

    def test_the_word_comes_first(self) -> None:
        for _ in range(3):
            self.begin()
            self.kernel.interrupt()
            self.assertEqual(self.kernel.end(), INTERRUPTED)
        self.is_whole()

    def test_the_signal_comes_first(self) -> None:
        kernel = self.kernel
        for _ in range(3):
            self.begin()
            kernel.signal()
            self.assertEqual(kernel.end(), INTERRUPTED)
            # The word with the next cell behind it, and that cell is interrupted in its turn.
            kernel.link.sendall(kernel.word())
        self.is_whole()

    def test_before_the_cell_begins(self) -> None:
        """All of it waits when the kernel looks, or the one comes before the other."""
        kernel = self.kernel

        def everything() -> None:
            kernel.stop()
            kernel.link.sendall(kernel.cell(ENDLESS) + kernel.word())
            kernel.signal()
            kernel.go_on()

        def word_first() -> None:
            kernel.link.sendall(kernel.cell(ENDLESS) + kernel.word())
            time.sleep(0.2)
            kernel.signal()

        def signal_first() -> None:
            kernel.signal()
            time.sleep(0.2)
            kernel.link.sendall(kernel.cell(ENDLESS) + kernel.word())

        def signal_long_before_the_word() -> None:
            kernel.signal()
            kernel.link.sendall(kernel.cell(ENDLESS))
            time.sleep(0.2)
            kernel.link.sendall(kernel.word())

        for order in (everything, word_first, signal_first, signal_long_before_the_word):
            with self.subTest(order=order.__name__):
                order()
                self.assertEqual(kernel.end(), INTERRUPTED)
                self.is_whole()

    def test_after_the_cell_has_ended(self) -> None:
        kernel = self.kernel
        for late in (False, True):
            with self.subTest(late=late):
                kernel.link.sendall(kernel.cell("pass"))
                self.assertEqual(kernel.end(), "")
                if late:
                    kernel.signal()
                    time.sleep(0.2)
                kernel.link.sendall(kernel.word())
                if not late:
                    time.sleep(0.2)
                    kernel.signal()
                self.is_whole()

    def test_a_signal_of_somebody_else(self) -> None:
        kernel = self.kernel
        kernel.signal()
        time.sleep(0.2)
        self.is_whole()
        self.begin()
        kernel.signal()
        self.assertEqual(kernel.end(), INTERRUPTED)
        self.is_whole()
        # The first one of a cell that goes on; the host's is as good as ever.
        self.begin("try:\n    print('on', flush=True)\n    while True: pass\nexcept KeyboardInterrupt:\n"
                   "    print('on', flush=True)\nwhile True: pass")
        kernel.signal()
        kernel.until("o")
        kernel.interrupt()
        self.assertEqual(kernel.end(), INTERRUPTED)
        self.is_whole()

    def test_another_while_the_error_is_about_to_be_shown(self) -> None:
        """IPython then shows none."""
        kernel = self.kernel
        self.begin("class Slow(KeyboardInterrupt):\n    asked = False\n    def __str__(self):\n"
                   "        if not self.asked:\n            self.asked = True\n            print('on', flush=True)\n"
                   "            while True: pass\n        return 'slow'\n"
                   "try:\n    print('on', flush=True)\n    while True: pass\n"
                   "except KeyboardInterrupt:\n    raise Slow from None")
        kernel.interrupt()
        kernel.until("o")
        kernel.interrupt()
        self.assertEqual(kernel.end(), INTERRUPTED)
        self.is_whole()

    def test_two_that_become_one(self) -> None:
        """Signals are not counted by Linux: two that wait are one."""
        kernel = self.kernel
        self.begin()
        kernel.stop()
        kernel.interrupt()
        kernel.link.sendall(kernel.word())
        kernel.signal()
        kernel.go_on()
        self.assertEqual(kernel.end(), INTERRUPTED)
        self.is_whole()


class Frames(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.kernel = Kernel(place.name)
        self.addCleanup(self.kernel.close)

    def cell(self, code: str) -> list[tuple[str, str]]:
        """Texts and values, in their order."""
        self.kernel.link.sendall(self.kernel.cell(code))
        return [(kind, json.loads(payload)["data"]["text/plain"] if kind == "r" else payload.decode())
                for kind, payload in self.kernel.until("k")[:-1]]

    def test_a_value_comes_in_its_place(self) -> None:
        self.assertEqual(self.cell("print('a')\n42"), [("o", "a\n"), ("r", "42")])
        self.assertEqual(self.cell("import sys\nsys.displayhook(1)\nsys.displayhook(2)\nprint('b')\n3"),
                         [("r", "1"), ("r", "2"), ("o", "b\n"), ("r", "3")])
        self.assertEqual(self.cell("print('c')\nimport os\nos.write(1, b'd\\n')\n'x' * 100_000"),
                         [("o", "c\nd\n"), ("r", repr("x" * 100_000))])
        self.assertEqual(self.cell("get_ipython().ast_node_interactivity = 'all'"), [])
        self.assertEqual(self.cell("1\nprint('e')\n2"), [("r", "1"), ("o", "e\n"), ("r", "2")])

    def test_a_value_does_not_wait_for_what_takes_long(self) -> None:
        go_on = self.place / "go-on"
        self.assertEqual(self.cell("import os, time\ndef wait(*_):\n"
                                   f"    while not os.path.exists({str(go_on)!r}): time.sleep(0.01)"), [])
        for code in ("import sys; sys.displayhook(42); wait()",
                     "get_ipython().events.register('post_run_cell', wait)\n42"):
            with self.subTest(code=code):
                self.kernel.link.sendall(self.kernel.cell(code))
                self.assertEqual([kind for kind, _ in self.kernel.until("r")], ["r"])
                go_on.touch()
                self.assertEqual([kind for kind, _ in self.kernel.until("k")], ["k"])
                go_on.unlink()

    def test_the_word_that_a_cell_comes_soon_is_not_seen(self) -> None:
        self.assertEqual(self.cell("x = 1; 2"), [("r", "2")])
        self.kernel.link.sendall(HEAD.pack(0, ord("w")) * 2)
        self.assertEqual(self.cell("x, _"), [("r", "(1, 2)")])

    def test_a_cell_that_is_there_does_not_wait_for_what_prepares_it(self) -> None:
        self.assertEqual(self.cell("import sys, time\nran = []\n"
                                   "sys.addaudithook(lambda event, _: ran.append(event) if event == 'exec' else None)\n"
                                   "get_ipython().events.register('pre_execute', lambda: time.sleep(0.3))\n1"), [("r", "1")])
        count = "print(len(ran), _); ran.clear()"
        self.cell(count)
        for pause, there in ((1, "2 1\n"), (0.1, "1 1\n"), (0, "1 1\n")):
            with self.subTest(pause=pause):
                self.kernel.link.sendall(HEAD.pack(0, ord("w")))
                time.sleep(pause)
                self.assertEqual(self.cell(count), [("o", there)])

    def test_who_is_dismissed_has_closed_everything(self) -> None:
        self.assertEqual(self.cell(f"import atexit, fcntl\nfile = open({str(self.place / 'file')!r}, 'w')\n"
                                   "fcntl.flock(file, fcntl.LOCK_EX)\natexit.register(file.write, 'the end')\n"
                                   "print('open')"), [("o", "open\n")])
        self.kernel.link.shutdown(socket.SHUT_WR)
        self.assertEqual(self.kernel.link.recv(1), b"")
        self.assertEqual((self.place / "file").read_text(), "the end")
        with (self.place / "file").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It ends by itself, should nobody end it.
        self.assertEqual(self.kernel.process.wait(30), 0)


if __name__ == "__main__":
    unittest.main()
