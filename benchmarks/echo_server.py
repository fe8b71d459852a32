"""The least that an MCP server over stdio can do: one tool that returns its text."""
import json
import os

TOOL = {"name": "echo", "inputSchema": {
    "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}


def answer(method, params):
    if method == "tools/call":
        return {"result": {"content": [{"type": "text", "text": params["arguments"]["text"]}]}}
    if method == "initialize":
        return {"result": {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                           "serverInfo": {"name": "echo", "version": "1"}}}
    if method == "tools/list":
        return {"result": {"tools": [TOOL]}}
    return {"error": {"code": -32601, "message": "Method not found"}}


buffer = b""
while chunk := os.read(0, 65536):
    *lines, buffer = (buffer + chunk).split(b"\n")
    for line in lines:
        message = json.loads(line)
        if "id" in message and "method" in message:
            reply = {"jsonrpc": "2.0", "id": message["id"], **answer(message["method"], message.get("params"))}
            os.write(1, json.dumps(reply).encode() + b"\n")
