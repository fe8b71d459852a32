"""The kernel's end of the link to a distant host; tests/unit/kernel_link.cpp tests the host's."""
from __future__ import annotations

import re
import sys
import threading
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from jupyter_client.session import Session  # noqa: E402

from ipybox_kernel import link  # noqa: E402

HEADER = ROOT / "include/ipybox/jupyter/link.hpp"


class Socket:
    """Keeps what is published: (number, type, again, content)."""

    def __init__(self, session):
        self._session, self.sent = session, []

    def send_multipart(self, frames):
        _, parts = self._session.feed_identities(frames)
        message = self._session.deserialize(parts)
        metadata = message["metadata"]
        self.sent.append((metadata["ipybox"], metadata["type"], metadata.get("again"), message["content"]))


class PublisherTest(unittest.TestCase):
    def setUp(self):
        self.session = Session(key=b"key")
        self.socket = Socket(Session(key=b"key"))
        self.publisher = link._Publisher(self.socket, self.session, lambda: {"received": 7})

    def publish(self, text="x"):
        message = self.session.msg("stream", {"name": "stdout", "text": text})
        self.publisher.send_multipart([b"topic", *self.session.serialize(message)])

    def resume(self, after, token="token"):
        """The answer to a request to resume, and the numbers that follow it."""
        self.socket.sent.clear()
        self.publisher.want({"op": "resume", "token": token, "after": after})
        self.publisher.replay()
        (number, kind, _, content), *again = self.socket.sent
        self.assertEqual((number, kind), (0, "resume"))
        return content["data"], [number for number, *_ in again]

    def test_the_first_answer_says_where_the_sequence_begins(self):
        for _ in range(3):
            self.publish()
        self.assertEqual([number for number, *_ in self.socket.sent], [1, 2, 3])
        answer, again = self.resume(None)
        self.assertEqual(answer, {"token": "token", "after": 3, "whole": True, "received": 7})
        self.assertEqual(again, [])

    def test_what_the_host_lacks_is_published_again(self):
        self.resume(None)
        for text in "abc":
            self.publish(text)
        answer, again = self.resume(1)
        self.assertEqual((answer["after"], answer["whole"], again), (1, True, [2, 3]))
        # Twice, because the first answer may be lost; each time with another signature.
        self.assertEqual(self.resume(1)[1], [2, 3])
        self.assertEqual([count for _, _, count, _ in self.socket.sent[1:]], [2, 2])
        self.assertEqual(self.socket.sent[1][3]["data"], {"name": "stdout", "text": "b"})

    def test_what_is_gone_is_admitted(self):
        cases = [
            # acknowledged, resumed after, whole, published again
            (0, 0, True, [1, 2, 3]),
            (2, 2, True, [3]),
            (3, 3, True, []),
            (2, 1, False, [3]),
            (3, 0, False, []),
            (100, 3, True, []),   # of what was never published: as if of all there is
            (100, 1, False, []),
            (0, 100, False, []),  # after what was never published
        ]
        for acknowledged, after, whole, expected in cases:
            with self.subTest(acknowledged=acknowledged, after=after):
                self.setUp()
                self.resume(None)
                for _ in range(3):
                    self.publish()
                self.publisher.acknowledge(acknowledged)
                answer, again = self.resume(after)
                self.assertEqual((answer["whole"], again), (whole, expected))
                # No acknowledgement counts in advance.
                self.publish()
                self.assertEqual(self.resume(3)[1], [4])

    def test_who_is_ahead_of_the_host_waits(self):
        self.resume(None)
        self.publish("a little")
        waiting = threading.Thread(target=self.publish, args=("x" * link.WINDOW,), daemon=True)
        waiting.start()
        waiting.join(0.2)
        self.assertTrue(waiting.is_alive())
        self.publisher.acknowledge(1)  # that was less than it is ahead
        waiting.join(0.2)
        self.assertTrue(waiting.is_alive())
        self.publisher.acknowledge(2)
        waiting.join(10)
        self.assertFalse(waiting.is_alive())


class OperationsTest(unittest.TestCase):
    def test_each_is_carried_out_once_and_in_order(self):
        done = []

        class Files:
            def abandon(self, number):
                done.append(number)

        end = object.__new__(link._Link)
        end._received, end._unreported, end._files = 0, 0, Files()
        for number in (1, 1, 3, 0, -1, 2, 1, 4, 3, 3):
            end._take({"op": "abandon", "id": number, "number": number}, [])
        self.assertEqual(done, [1, 2, 3])


class FactsTest(unittest.TestCase):
    def test_both_ends_agree(self):
        text = HEADER.read_text()
        host = {}
        for name, value in re.findall(r"constexpr std::size_t (\w+) =\s+([^;]+);", text):
            host[name] = eval(value.replace("std::size_t{", "(").replace("}", ")"))
        # The kernel waits only when acknowledgements stop, and a waiting one is no breach.
        self.assertLess(host["acknowledged_bytes"] + host["unread_window"], link.WINDOW)
        self.assertLess(link.WINDOW, host["most_unread"])
        # It reports what it has received before the host's window is full: by bytes, and by messages
        # of which each counts 1024 bytes.
        self.assertLess(link.PIECE, host["send_window"])
        self.assertLess(link.PIECE // 1024, host["send_window_count"])
        self.assertLess(host["send_window_count"], host["most_sent"])


if __name__ == "__main__":
    unittest.main()
