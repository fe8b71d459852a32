"""A call is carried out once at most, however its connection ends."""
from __future__ import annotations

import importlib
import os
import pathlib
import select
import socket
import sys
import tempfile
import threading
import time
import unittest
from decimal import Decimal
from typing import Any, Callable
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

client = importlib.import_module("ipybox_kernel.client")

GIVEN_AWAY = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 16\r\nConnection: close\r\n\r\n" + b'{"error":"gone"}'


class Host:
    """Answers the first call of the first connection; `end` has the second one, and others follow on new connections."""

    def __init__(self, path: str, end: Callable[[Host, socket.socket], None]) -> None:
        self.read: list[bytes] = []  # tools of the requests that were read to their end
        self._end = end
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def take(self, connection: socket.socket) -> bool:
        data = b""
        while not data.endswith(b"}}"):
            chunk = connection.recv(65536)
            if not chunk:
                return False
            data += chunk
        self.read.append(data.split(b'"tool_name":"')[1].split(b'"')[0])
        return True

    def answer(self, connection: socket.socket) -> None:
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"result":"x"}')

    def _serve(self) -> None:
        first = True
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                while self.take(connection):
                    self.answer(connection)
                    if first:
                        first = False
                        self._end(self, connection)
                        break

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()


def wait_for_call(connection: socket.socket) -> None:
    select.select([connection], [], [], 30)


class NumbersTest(unittest.TestCase):
    def test_decimals_are_written_with_their_digits(self) -> None:
        call = {"a": [Decimal("0.1000"), {"b": Decimal("1E+2")}, 10 ** 40, 1.0], "c": "0.10", "d\n": Decimal("-0")}
        self.assertEqual(client._encode(call), '{"a":[0.1000,{"b":1E+2},1' + "0" * 40 + ',1.0],"c":"0.10","d\\n":-0}')

    def test_no_text_is_taken_for_digits(self) -> None:
        with mock.patch.object(os, "urandom", lambda size: b"\xab" * size):
            self.assertEqual(client._encode({"a": Decimal("1.50"), "b": "x" + "ab" * 16 + "0"}), '{"a":1.50,"b":"x' + "ab" * 16 + '0"}')

    def test_what_json_cannot_say(self) -> None:
        for value in (Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), float("nan")):
            with self.subTest(value), self.assertRaises(ValueError):
                client._encode({"a": value})
        with self.assertRaisesRegex(TypeError, "object"):
            client._encode({"a": Decimal(1), "b": object()})

    def test_an_integer_that_python_does_not_read_is_an_error_of_the_call(self) -> None:
        body = b'{"result":' + b"7" * 5000 + b"}"
        response = client._Response()
        response.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        with self.assertRaisesRegex(client.ToolRunnerError, "cannot be read: .*4300"):
            response.value()


class ProgressTest(unittest.TestCase):
    REPORTS = (b'HTTP/1.1 102 Processing\r\nIpybox-Progress: {"progress":1E0,"total":4E0,"message":"\xc3\xa9\\r\\n"}\r\n\r\n'
               b'HTTP/1.1 102 Processing\r\nIpybox-Progress: {"progress":2.5E0,"message":""}\r\n\r\n')
    ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"result":"x"}'

    def test_reports_come_before_the_answer_however_it_is_cut(self) -> None:
        data = self.REPORTS + self.ANSWER
        for size in (1, 7, len(data)):
            told: list[Any] = []
            with client.progress(lambda *report: told.append(report)):
                response = client._Response()
            self.assertFalse(response.begun())
            whole = [response.feed(data[at:at + size]) for at in range(0, len(data), size)]
            self.assertEqual((whole[-1], sum(whole)), (True, 1))
            self.assertEqual(told, [(1, 4, "é\r\n"), (2.5, None, "")])
            self.assertEqual(response.value(), "x")

    def test_only_calls_within_ask_for_it(self) -> None:
        self.assertNotIn(b"Ipybox-Progress", client._request("s", "t", {}))
        with client.progress(print):
            self.assertIn(b"\r\nIpybox-Progress: 1\r\n\r\n{", client._request("s", "t", {}))
            with client.progress(repr):
                self.assertIs(client._Response()._told, repr)
            self.assertIs(client._Response()._told, print)
            within: list[Any] = []
            thread = threading.Thread(target=lambda: within.append(client._Response()._told))
            thread.start()
            thread.join()
            self.assertEqual(within, [None])
        self.assertIsNone(client._Response()._told)

    def test_a_report_alone_shows_that_the_call_was_taken(self) -> None:
        response = client._Response()
        self.assertFalse(response.feed(self.REPORTS))
        self.assertTrue(response.begun())
        with self.assertRaisesRegex(client.ToolRunnerError, "closed the connection"):
            response.feed(b"")

    def test_reports_without_an_end_are_no_answer(self) -> None:
        response = client._Response()
        with self.assertRaisesRegex(client.ToolRunnerError, "not HTTP"):
            response.feed(b"HTTP/1.1 102 Processing\r\nIpybox-Progress: " + b"x" * 70000)


class OnceTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "socket")
        environment = mock.patch.dict(os.environ, {"IPYBOX_TOOL_SOCKET": self.path})
        environment.start()
        self.addCleanup(environment.stop)
        self.addCleanup(self.forget)

    def forget(self) -> None:
        if client._idle.connection is not None:
            client._idle.connection.close()
            client._idle.connection = None

    def host(self, end: Callable[[Host, socket.socket], None]) -> Host:
        host = Host(self.path, end)
        self.addCleanup(host.close)
        self.addCleanup(self.forget)  # before it: the host waits for the connection's end
        return host

    def call(self, tool: str, **arguments: Any) -> Any:
        return client.send("server", tool, {"value": arguments})

    def test_a_call_that_was_read_is_not_repeated(self) -> None:
        host = self.host(lambda host, connection: host.take(connection) and None)
        self.assertEqual(self.call("one"), "x")
        with self.assertRaisesRegex(client.ToolRunnerError, "may have been carried out"):
            self.call("two")
        self.assertEqual(self.call("three"), "x")
        self.assertEqual(host.read, [b"one", b"two", b"three"])

    def test_a_call_that_was_not_read_to_its_end_is_repeated(self) -> None:
        host = self.host(lambda host, connection: wait_for_call(connection))
        self.assertEqual(self.call("one"), "x")
        self.assertEqual(self.call("two"), "x")
        self.assertEqual(host.read, [b"one", b"two"])

    def test_a_large_call_that_was_cut_off_is_repeated(self) -> None:
        host = self.host(lambda host, connection: connection.recv(1000) and None)
        self.assertEqual(self.call("one"), "x")
        self.assertEqual(self.call("two", text="x" * 4_000_000), "x")
        self.assertEqual(host.read, [b"one", b"two"])

    def test_a_call_that_the_host_gave_back_is_repeated(self) -> None:
        def give_back(host: Host, connection: socket.socket) -> None:
            host.take(connection)
            connection.sendall(GIVEN_AWAY)

        host = self.host(give_back)
        self.assertEqual(self.call("one"), "x")
        self.assertEqual(self.call("two"), "x")
        self.assertEqual(host.read, [b"one", b"two", b"two"])

    def test_over_the_network_a_reset_says_nothing(self) -> None:
        host = self.host(lambda host, connection: wait_for_call(connection))
        self.assertEqual(self.call("one"), "x")
        with mock.patch.object(client, "_context", object()), self.assertRaisesRegex(client.ToolRunnerError, "broke"):
            self.call("two")
        self.assertEqual(host.read, [b"one"])

    def test_who_waits_awake_for_a_slow_tool_goes_to_sleep(self) -> None:
        def think(host: Host, connection: socket.socket) -> None:
            host.take(connection)
            threading.Event().wait(100 * client._BRISK)
            host.answer(connection)

        self.host(think)
        self.assertEqual(self.call("one"), "x")
        client._idle.brisk = True
        before = time.thread_time()
        self.assertEqual(self.call("two"), "x")
        self.assertFalse(client._idle.brisk)
        self.assertLess(time.thread_time() - before, 50 * client._BRISK)

    def test_who_waits_awake_takes_what_is_there(self) -> None:
        host = self.host(lambda host, connection: host.take(connection) and host.answer(connection))
        for tool in ("one", "two", "three"):
            client._idle.brisk = True
            self.assertEqual(self.call(tool), "x")
        self.assertEqual(host.read, [b"one", b"two", b"three"])

    def test_what_was_closed_before_is_replaced(self) -> None:
        closed = threading.Event()

        def close(host: Host, connection: socket.socket) -> None:
            connection.sendall(GIVEN_AWAY)
            connection.shutdown(socket.SHUT_RDWR)
            closed.set()

        host = self.host(close)
        self.assertEqual(self.call("one"), "x")
        self.assertTrue(closed.wait(10))
        self.assertEqual(self.call("two"), "x")
        self.assertEqual(host.read, [b"one", b"two"])


if __name__ == "__main__":
    unittest.main()
