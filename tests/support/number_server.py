#!/usr/bin/env python3
"""A stdio MCP server with one tool, which returns its arguments with the digits that they came with."""
import json
import sys


class Number(str):
    """The text of a number."""


def text_of(value):
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(json.dumps(key) + ":" + text_of(item) for key, item in value.items()) + "}"
    return "[" + ",".join(map(text_of, value)) + "]" if isinstance(value, list) else json.dumps(value)


def answer(message):
    if message["method"] == "initialize":
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "numbers", "version": "1"}}
    if message["method"] == "tools/list":
        schema = {"type": "object", "properties": {"n": {"type": "integer"}, "x": {"type": "array", "items": {"type": "number"}}}}
        return {"tools": [{"name": "same", "inputSchema": schema}]}
    arguments = message["params"].get("arguments", {})
    return {"content": [{"type": "text", "text": text_of(arguments)}], "structuredContent": arguments}


for line in sys.stdin:
    request = json.loads(line, parse_int=Number, parse_float=Number)
    if "id" not in request or "method" not in request:
        continue
    reply = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] in ("initialize", "tools/list", "tools/call"):
        reply["result"] = answer(request)
    else:
        reply["error"] = {"code": Number(-32601), "message": "no such method"}
    print(text_of(reply), flush=True)
