#!/usr/bin/env python3
"""ipybox as the code tool of the OpenAI Agents SDK: calls that need a yes interrupt the run.

Usage: openai_agents_agent.py TASK [mcp.json]

The SDK asks before it calls a tool, not while the tool runs. So whether a cell needs approval is
found out by running it to its first question. If it asks again later, the model is told to call
`go_on`, which needs approval in the same way.
Needs openai-agents; AGENT_BASE_URL, AGENT_MODEL, AGENT_API_KEY name the model.
"""

import asyncio
import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents.tool_context import ToolContext
from cell import DESCRIPTION, Cell, ask_person, started
from openai import AsyncOpenAI

WAITS = "The code waits at a call that needs approval. Call go_on() to let it go on."


class Desk:
    """Cells on their way, by the model's call that is to be approved."""

    def __init__(self, executor):
        self._executor = executor
        self._cells = {}
        self._waiting = None  # at a later question, for go_on()

    async def needs_approval(self, _context, arguments, call_id):
        """Whether the model's call waits for an answer."""
        cell = self._cells.get(call_id)
        if cell is None:
            if "code" in arguments:
                cell = Cell(self._executor, arguments["code"])
                await cell.advance()
            else:
                cell, self._waiting = self._waiting, None
            if cell is None:
                return False
            self._cells[call_id] = cell
        return cell.question is not None

    def text(self, call_id):
        """The call of the code, for a person to read."""
        return self._cells[call_id].question.call.text

    async def answer(self, call_id, allow):
        """A person's answer."""
        await self._cells[call_id].answer(allow, by="openai-agents")

    def output(self, call_id):
        """What the model gets."""
        cell = self._cells.pop(call_id, None)
        if cell is None:
            return "no code waits"
        if cell.question is None:
            return cell.output
        self._waiting = cell
        return WAITS


def build(executor, model):
    """The agent, and the desk on which its cells wait."""
    desk = Desk(executor)

    @function_tool(description_override=DESCRIPTION, needs_approval=desk.needs_approval)
    async def execute_ipython_cell(context: ToolContext, code: str) -> str:
        return desk.output(context.tool_call_id)

    @function_tool(
        description_override="Lets code go on that waits.", needs_approval=desk.needs_approval
    )
    async def go_on(context: ToolContext) -> str:
        return desk.output(context.tool_call_id)

    return Agent(name="coder", model=model, tools=[execute_ipython_cell, go_on]), desk


async def main(task, config=None):
    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(
        model=os.environ["AGENT_MODEL"],
        openai_client=AsyncOpenAI(
            base_url=os.environ["AGENT_BASE_URL"], api_key=os.environ["AGENT_API_KEY"]
        ),
    )
    async with started(config) as executor:
        agent, desk = build(executor, model)
        result = await Runner.run(agent, task)
        while result.interruptions:
            state = result.to_state()
            for interruption in result.interruptions:
                call_id = interruption.raw_item.call_id
                await desk.answer(call_id, await ask_person(desk.text(call_id)))
                # A yes to the model's call in any case: code that was told no raises.
                state.approve(interruption)
            result = await Runner.run(agent, state)
        print(result.final_output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
