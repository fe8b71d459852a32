"""Whoever answers on the approval channel."""
import base64
import json
import socket


class Approver:
    """The least of a WebSocket client."""

    def __init__(self, port, token):
        self.socket = socket.create_connection(("127.0.0.1", int(port)), 30)
        secret = base64.b64encode(f"any:{token}".encode()).decode()
        self.socket.sendall((f"GET /approval HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Authorization: Basic {secret}\r\nSec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"
                             "Sec-WebSocket-Version: 13\r\n\r\n").encode())
        self.stream = self.socket.makefile("rb")
        self.status = self.stream.readline()
        while self.stream.readline().strip():
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()
        self.socket.close()

    def receive(self, method):
        while True:
            first, size = self.stream.read(2)
            size = int.from_bytes(self.stream.read(2), "big") if size == 126 else size
            data = self.stream.read(size)
            if first == 0x81 and (message := json.loads(data))["method"] == method:
                return message

    def send(self, message):
        data = json.dumps(message).encode()
        self.socket.sendall(bytes([0x81, 0x80 | len(data)]) + bytes(4) + data)  # masked with zeros
