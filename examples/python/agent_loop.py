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

from cell import DESCRIPTION, Cell, ask_person, started

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
        waits = await cell.answer(await ask_person(cell.question.call.text), by="terminal")
    return cell.output


async def main(task, config=None):
    async with started(config) as executor:
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
