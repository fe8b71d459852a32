"""A code action that stops where somebody must be asked, and goes on with the answer.

A framework that asks a person ends its run, and begins another one with the answer. Meanwhile the
code waits in its kernel. And what else the examples for agent frameworks share.
"""

import asyncio
import contextlib
import json
import os
import sys

from ipybox import ApprovalRequest, CodeExecutionError, CodeExecutionResult, CodeExecutor

DESCRIPTION = """Executes Python in an IPython kernel whose state lasts, and returns what it prints.

MCP tools are functions: `from ipybox_kernel import tools; print(tools.search("task"))` finds."""


@contextlib.asynccontextmanager
async def started(config=None):
    """An executor, with the MCP servers of an mcp.json."""
    servers = {}
    if config:
        with open(config, encoding="utf-8") as file:
            servers = json.load(file)["mcpServers"]
    async with CodeExecutor(sandbox=True, python=os.environ.get("IPYBOX_PYTHON")) as executor:
        for name, params in servers.items():
            await executor.add_server(name, params)
        yield executor


async def ask_person(call: str) -> bool:
    """Asks at the terminal about a call, whose text is safe to show: what code wrote is
    escaped in it."""
    print(f"{call}\nMay it? [y/N] ", end="", flush=True)
    line = await asyncio.to_thread(sys.stdin.readline)
    return line.strip().lower() == "y"


class Cell:
    """Code on its way through the kernel."""

    def __init__(self, executor: CodeExecutor, code: str) -> None:
        self._events = executor.stream(code, timeout=120)
        self.question: ApprovalRequest | None = None  # that is open
        self.output = ""  # once it has ended

    async def advance(self) -> bool:
        """Lets the code run to its next question; False when it has ended instead."""
        self.question = None
        try:
            async for event in self._events:
                if isinstance(event, ApprovalRequest):
                    self.question = event
                    return True
                if isinstance(event, CodeExecutionResult):
                    self.output = event.text or "(it printed nothing)"
        except (CodeExecutionError, asyncio.TimeoutError) as error:
            self.output = str(error)  # the model sees the traceback
        return False

    async def answer(self, allow: bool, by: str) -> bool:
        """Answers the question, and advances."""
        assert self.question is not None
        if allow:
            await self.question.accept(by=by)
        else:
            await self.question.reject(f"{by} said no", by=by)
        return await self.advance()
