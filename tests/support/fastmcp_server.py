#!/usr/bin/env python3
"""An MCP server of the Python SDK (package mcp): fastmcp_server.py TRANSPORT PORT.

TRANSPORT is stdio, sse or streamable-http. Tools: add, report (progress), ask (elicitation), big,
slow, region (whose argument is repeated in a header).
"""
import sys
from typing import Annotated

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field

server = MCPServer("fastmcp", version="1.2.3", log_level="ERROR")


class Name(BaseModel):
    name: str


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
async def report(steps: int, ctx: Context) -> str:
    """Reports progress before it answers."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
    return "reported"


@server.tool()
async def ask(ctx: Context) -> str:
    """Asks the user for a name."""
    answer = await ctx.elicit("Who is there?", Name)
    return f"{answer.action}: {answer.data.name if answer.action == 'accept' else 'nobody'}"


@server.tool()
def big(size: int) -> str:
    """So many characters."""
    return "x" * size


@server.tool()
async def slow(seconds: float) -> str:
    """Takes its time."""
    await anyio.sleep(seconds)
    return "done"


@server.tool()
def region(where: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """Says where."""
    return where


if __name__ == "__main__":
    transport, port = sys.argv[1], int(sys.argv[2])
    server.run(transport, **({} if transport == "stdio" else {"port": port}))
