#!/usr/bin/env python3
"""ipybox as the code tool of a Pydantic AI agent: calls that need a yes are deferred tool requests.

Usage: pydantic_ai_agent.py TASK [mcp.json]

Needs pydantic-ai-slim[openai]; AGENT_BASE_URL, AGENT_MODEL, AGENT_API_KEY name the model.
"""

import asyncio
import os
import sys

from cell import DESCRIPTION, Cell, ask_person, started
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
)
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def build(executor, model):
    """The agent, and the cells of its calls that wait for an answer."""
    cells = {}
    agent = Agent(model, output_type=[str, DeferredToolRequests])

    @agent.tool(description=DESCRIPTION)
    async def execute_ipython_cell(context: RunContext[None], code: str) -> str:
        cell = cells.pop(context.tool_call_id, None)
        if cell is None:
            cell = Cell(executor, code)
            await cell.advance()
        if cell.question is not None:
            cells[context.tool_call_id] = cell
            raise ApprovalRequired(metadata={"call": cell.question.call.text})
        return cell.output

    return agent, cells


async def answer_all(requests, cells):
    """Asks a person about each call; the code goes on with the answer, and may ask again."""
    results = DeferredToolResults()
    for call in requests.approvals:
        allowed = await ask_person(requests.metadata[call.tool_call_id]["call"])
        await cells[call.tool_call_id].answer(allowed, by="pydantic-ai")
        # A yes to the model's call in any case: code that was told no raises.
        results.approvals[call.tool_call_id] = True
    return results


async def main(task, config=None):
    model = OpenAIChatModel(
        os.environ["AGENT_MODEL"],
        provider=OpenAIProvider(
            base_url=os.environ["AGENT_BASE_URL"], api_key=os.environ["AGENT_API_KEY"]
        ),
    )
    async with started(config) as executor:
        agent, cells = build(executor, model)
        result = await agent.run(task)
        while isinstance(result.output, DeferredToolRequests):
            answers = await answer_all(result.output, cells)
            result = await agent.run(
                message_history=result.all_messages(), deferred_tool_results=answers
            )
        print(result.output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
