#!/usr/bin/env python3
"""An agent in one loop: a model writes code, ipybox runs it, a person at the terminal approves.

Usage: agent_loop.py TASK [mcp.json]

The model is that of an endpoint for chat completions: AGENT_BASE_URL, AGENT_MODEL, AGENT_API_KEY.
Needs nothing but ipybox.
"""

import asyncio
import json
import os
import sys
import urllib.request

from cell import DESCRIPTION, Cell

from ipybox import CodeExecutor

TOOL = {
    "type": "function",
    "function": {
        "name": "execute_ipython_cell",
        "description": DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}},
            "required": ["code"],
        },
    },
}


def complete(messages):
    """One answer of the model."""
    request = urllib.request.Request(
        os.environ["AGENT_BASE_URL"] + "/chat/completions",
        json.dumps(
            {"model": os.environ["AGENT_MODEL"], "messages": messages, "tools": [TOOL]}
        ).encode(),
        {
            "Authorization": "Bearer " + os.environ["AGENT_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)["choices"][0]["message"]


async def run(executor, code):
    """Runs a cell; a person says which calls may happen."""
    cell = Cell(executor, code)
    waits = await cell.advance()
    while waits:
        # text is safe to show: what code wrote is escaped in it.
        print(f"{cell.question.call.text}\nMay it? [y/N] ", end="", flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
        waits = await cell.answer(line.strip().lower() == "y", by="terminal")
    return cell.output


async def main(task, config=None):
    servers = {}
    if config:
        with open(config, encoding="utf-8") as file:
            servers = json.load(file)["mcpServers"]
    async with CodeExecutor(sandbox=True, python=os.environ.get("IPYBOX_PYTHON")) as executor:
        for name, params in servers.items():
            await executor.add_server(name, params)
        messages = [{"role": "user", "content": task}]
        while True:
            message = await asyncio.to_thread(complete, messages)
            messages.append(message)
            if not message.get("tool_calls"):
                print(message["content"])
                return
            for call in message["tool_calls"]:
                code = json.loads(call["function"]["arguments"])["code"]
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": call["id"],
                        "content": await run(executor, code),
                    }
                )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
