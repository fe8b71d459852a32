"""An MCP server whose tools misbehave, each in its own way. Usage: chaos_server.py MODE [PORT]
MODE is stdio, sse (HTTP+SSE), stream or json (streamable HTTP that answers so)."""
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = sys.argv[1]
for_ever = threading.Event()
enough = threading.Event()  # the next call has come: a stream that all share is theirs again


def text_of(message):
    return json.dumps({"jsonrpc": "2.0", **message})


def answer(request_id, text):
    return text_of({"id": request_id, "result": {"content": [{"type": "text", "text": text}]}})


class Out:
    """Where answers go: `write` takes bytes, `close` ends the stream."""

    def __init__(self, write, close):
        self.write, self.close, self.lock = write, close, threading.Lock()

    def raw(self, data):
        with self.lock:
            self.write(data)

    def framed(self, text):
        if MODE == "stdio":
            return text.encode() + b"\n"
        return text.encode() if MODE == "json" else b"data: " + text.encode() + b"\n\n"

    def frame(self, text):
        self.raw(self.framed(text))


def misbehave(tool, request_id, out):
    right = out.framed(answer(request_id, "right"))
    if tool == "killed":
        out.raw(right[:len(right) // 2])
        os._exit(7)
    if tool == "half":
        out.raw(right[:len(right) // 2])
    elif tool == "hang":
        for_ever.wait()
    elif tool == "garbage":
        for line in ("\x1b[31mnoise", "{not json}", '"text"', "[1, 2]", '{"jsonrpc": "2.0"}', "\x00\x01", "[" * 100000):
            out.frame(line)
        out.raw(right)
    elif tool == "huge":
        out.raw(right[:len(right) - 20])
        for _ in range(100):
            out.raw(b"x" * (1 << 20))
        out.raw(right[len(right) - 20:])
    elif tool == "endless":
        enough.clear()
        while not enough.is_set():
            out.frame(text_of({"method": "notifications/message", "params": {"level": "debug", "data": "x" * 10000}}))
    elif tool == "emoji":  # half of one, as a slice() of JavaScript leaves it
        out.frame(answer(request_id, "half \ud83d"))
    elif tool == "nan":
        out.frame(text_of({"id": request_id, "result": {"content": [], "structuredContent": {"mean": float("nan")}}}))
    elif tool == "twice" and MODE == "json":
        out.frame("[" + answer(request_id, "right") + "," + answer(request_id, "wrong") + "]")
    elif tool == "twice":
        out.raw(right + out.framed(answer(request_id, "wrong")))
    elif tool == "never":
        out.frame(answer(987654, "wrong"))
        if MODE != "json":
            out.frame(answer("never sent", "wrong"))
            out.raw(right)
    else:
        out.raw(right)


def serve(message, out):
    method, request_id = message.get("method"), message.get("id")
    if request_id is None or method is None:
        return
    if method == "tools/call":
        enough.set()
        misbehave(message["params"]["name"], request_id, out)
    elif method == "initialize":
        out.frame(text_of({"id": request_id, "result": {
            "protocolVersion": "2024-11-05" if MODE == "sse" else "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "chaos", "version": "1"}}}))
    elif method == "tools/list":  # a cursor that never advances
        out.frame(text_of({"id": request_id, "result": {"tools": [], "nextCursor": "here"}}))
    else:
        out.frame(text_of({"id": request_id, "error": {"code": -32601, "message": "Method not found"}}))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stream = None

    def log_message(self, *_):
        pass

    def begin(self, content_type):
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def do_GET(self):
        if MODE != "sse":
            self.send_error(405)
            return
        self.begin("text/event-stream")
        self.wfile.write(b"event: endpoint\ndata: /messages\n\n")
        ended = threading.Event()
        Handler.stream = Out(self.wfile.write, ended.set)
        ended.wait()

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if MODE == "sse" or "id" not in message:
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()
            self.wfile.flush()
        try:
            if MODE == "sse":
                serve(message, Handler.stream)
                if message.get("params", {}).get("name") == "half":
                    Handler.stream.close()
            elif "id" in message:
                self.begin("application/json" if MODE == "json" else "text/event-stream")
                serve(message, Out(self.wfile.write, None))
        except OSError:  # the client has had enough
            self.close_connection = True


def main():
    if MODE != "stdio":
        server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
        server.daemon_threads = True
        server.serve_forever()

    def write(data):
        while data:
            data = data[os.write(1, data):]

    out = Out(write, None)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if message.get("params", {}).get("name") == "half":
            serve(message, out)
            os._exit(0)
        threading.Thread(target=serve, args=(message, out), daemon=True).start()


main()
