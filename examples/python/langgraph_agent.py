#!/usr/bin/env python3
"""ipybox as the code tool of a LangGraph agent: calls that need a yes interrupt the graph.

Usage: langgraph_agent.py TASK [mcp.json]

A node that interrupts begins anew when the graph goes on, so running code and asking are two nodes;
the code waits in its kernel between them.
Needs langgraph and langchain-openai; AGENT_BASE_URL, AGENT_MODEL, AGENT_API_KEY name the model.
"""

import asyncio
import os
import sys

from cell import DESCRIPTION, Cell, ask_person, started
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt


@tool(description=DESCRIPTION)
def execute_ipython_cell(code: str) -> str:
    raise NotImplementedError("the node `code` runs it")


def build(executor, model):
    """The graph: the model, the code it writes, and questions about calls of that code."""
    cells = {}  # on their way, by the model's call

    def open_call(state):
        """The first call of the model that has no answer yet."""
        answered = {
            message.tool_call_id
            for message in state["messages"]
            if isinstance(message, ToolMessage)
        }
        calls = next(
            message.tool_calls
            for message in reversed(state["messages"])
            if getattr(message, "tool_calls", None)
        )
        return next((call for call in calls if call["id"] not in answered), None)

    async def think(state):
        return {
            "messages": [await model.bind_tools([execute_ipython_cell]).ainvoke(state["messages"])]
        }

    async def code(state):
        call = open_call(state)
        cell = cells.get(call["id"])
        if cell is None:
            cell = cells[call["id"]] = Cell(executor, call["args"]["code"])
            await cell.advance()
        if cell.question is not None:
            return {}
        del cells[call["id"]]
        return {"messages": [ToolMessage(cell.output, tool_call_id=call["id"])]}

    async def ask(state):
        cell = cells[open_call(state)["id"]]
        answer = interrupt(
            {"call": cell.question.call.text}
        )  # runs again, to here, with the answer
        await cell.answer(answer == "yes", by="langgraph")
        return {}

    def after_code(state):
        call = open_call(state)
        if call is None:
            return "think"
        return "ask" if call["id"] in cells else "code"

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("code", code)
    graph.add_node("ask", ask)
    graph.add_edge(START, "think")
    graph.add_conditional_edges(
        "think", lambda state: "code" if state["messages"][-1].tool_calls else END, ["code", END]
    )
    graph.add_conditional_edges("code", after_code, ["think", "ask", "code"])
    graph.add_edge("ask", "code")
    return graph.compile(checkpointer=InMemorySaver())


async def main(task, config=None):
    model = ChatOpenAI(
        model=os.environ["AGENT_MODEL"],
        base_url=os.environ["AGENT_BASE_URL"],
        api_key=os.environ["AGENT_API_KEY"],
    )
    async with started(config) as executor:
        graph = build(executor, model)
        thread = {"configurable": {"thread_id": "1"}}
        state = await graph.ainvoke({"messages": [("user", task)]}, thread)
        while "__interrupt__" in state:
            allowed = await ask_person(state["__interrupt__"][0].value["call"])
            answer = "yes" if allowed else "no"
            state = await graph.ainvoke(Command(resume=answer), thread)
        print(state["messages"][-1].content)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
