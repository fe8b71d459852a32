"""Who says whether a tool call may happen."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, cast

from ._jsonable import is_mapping, is_sequence

JsonObject = dict[str, Any]

logger = logging.getLogger("ipybox")


@dataclass(frozen=True)
class ToolCall:
    """All that is known of a call. Strings and arguments are as code in the kernel wrote them:
    escape them before a person sees them.

    Attributes:
        server: The MCP server; `ipybox` for what is no server's tool, such as shell commands.
        tool: Its tool.
        arguments: What the tool gets; an integer of more than 640 digits is a Decimal.
        text: The call on one line, safe to show on a terminal; long values are folded.
        annotations: The tool's hints as the server states them.
        input_schema: The schema of the arguments.
        description: What the server says of the tool.
        definition_hash: Another one is another tool; empty: there is none.
        server_identity: Command line or URL as configured, without secrets.
        origin: What kind of call it is.
        line: Of the cell, as code says it; 0: unknown.
        session: The name of the session.
        execution: The id of the execution; empty: none makes the call.
        id: Of the call.
        may_remember: False: a yes must not hold for later calls.
    """

    server: str
    tool: str
    arguments: JsonObject
    text: str = ""
    annotations: JsonObject | None = None
    input_schema: JsonObject | None = None
    description: str = ""
    definition_hash: str = ""
    server_identity: str = ""
    origin: Literal["mcp", "shell", "shell_magic", "package", "register", "program"] = "mcp"
    line: int = 0
    session: str = "default"
    execution: str = ""
    id: str = ""
    may_remember: bool = True

    def __str__(self) -> str:
        return self.text or call_text(self.server, self.tool, self.arguments)


@dataclass(frozen=True)
class Decision:
    """An answer to an approval request.

    Attributes:
        allow: Whether the call may happen.
        reason: Of a no, told to the code that called.
        by: Who says so, for the audit log.
        arguments: With a yes: it is one to these arguments instead of those of the call.
    """

    allow: bool
    reason: str = ""
    by: str = ""
    arguments: JsonObject | None = None


PolicyAnswer = Union[bool, Decision, None]
PolicyCallable = Callable[
    [ToolCall],
    Union[PolicyAnswer, Awaitable[PolicyAnswer], Awaitable[bool], Awaitable[Decision]],
]
"""Decides about calls that are asked about: True or False, a `Decision`, or None to leave it to
whoever reads the stream. It may be a coroutine function. What it raises is a no."""

Policy = Union[str, Mapping[str, Any], PolicyCallable]
"""A policy: `"ask"`, `"allow"` or `"deny"`, an object as docs/approval.md describes them, or a
callable. In an object a callable may stand in the place of a policy, once."""


def call_text(server: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """A call as Python would write it, without characters that do something to a terminal."""
    listed = ", ".join(f"{_shown(name)}={value!r}" for name, value in arguments.items())
    return f"{_shown(server)}.{_shown(tool)}({listed})"


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)[1:-1]


class ApprovalRequest:
    """A call that waits for an answer; the first one counts.

    Attributes:
        server_name: The MCP server.
        tool_name: Its tool.
        tool_args: What the tool gets.
        call: All that is known of the call.
    """

    def __init__(
        self,
        server_name: str,
        tool_name: str,
        tool_args: JsonObject,
        respond: Callable[[bool], Awaitable[Any]],
        *,
        call: ToolCall | None = None,
        decide: Callable[[Decision], Awaitable[bool]] | None = None,
    ) -> None:
        """
        Args:
            server_name: Name of the MCP server.
            tool_name: Name of the tool.
            tool_args: Arguments of the call.
            respond: Gets the answer.
            call: All that is known of the call.
            decide: Gets the whole answer, instead of `respond`.
        """
        self.server_name = server_name
        self.tool_name = tool_name
        self.tool_args = tool_args
        self.call = call or ToolCall(server_name, tool_name, tool_args)
        self._respond = respond
        self._decide = decide
        self._decision: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def __str__(self) -> str:
        return call_text(self.server_name, self.tool_name, self.tool_args)

    async def accept(self, *, arguments: JsonObject | None = None, by: str = "") -> bool:
        """Lets the call happen.

        Args:
            arguments: It happens with these instead.
            by: Who says so, for the audit log.

        Returns:
            False when it came too late: something else settled the question.
        """
        return await self.answer(Decision(True, by=by, arguments=arguments))

    async def reject(self, reason: str = "", *, by: str = "") -> bool:
        """Refuses the call: the code that made it gets an ApprovalRejectedError.

        Args:
            reason: What it is told.
            by: Who says so, for the audit log.

        Returns:
            False when it came too late.
        """
        return await self.answer(Decision(False, reason, by))

    async def answer(self, decision: Decision) -> bool:
        """Answers with all that an answer can say; returns what `accept()` returns."""
        self.settle(decision.allow)
        if self._decide is not None:
            return await self._decide(decision)
        return (await self._respond(decision.allow)) is not False

    async def response(self) -> bool:
        """Waits for the decision; one that was withdrawn or came too late is a no."""
        return await asyncio.shield(self._decision)

    def on_decision(self, callback: Callable[[bool], None]) -> None:
        """Calls back once, when there is a decision."""

        def invoke(decision: bool) -> None:
            try:
                callback(decision)
            except Exception:
                logger.exception("a callback on an approval decision failed")

        if self._decision.done():
            invoke(self._decision.result())
        else:
            self._decision.add_done_callback(lambda decided: invoke(decided.result()))

    def set_on_decision(self, on_decision: Callable[[], None]) -> None:
        """An older form of `on_decision()`."""
        self.on_decision(lambda _decision: on_decision())

    def settle(self, decision: bool) -> None:
        """Notes that the question is over."""
        if not self._decision.done():
            self._decision.set_result(decision)


def split_policy(policy: Policy) -> tuple[str | JsonObject, PolicyCallable | None]:
    """The policy as data, in which "ask" stands for the callable, and the callable."""
    found: list[PolicyCallable] = []

    def plain(value: Any) -> Any:
        if is_mapping(value):
            return {name: plain(part) for name, part in value.items()}
        if is_sequence(value):
            return [plain(part) for part in value]
        if callable(value):
            found.append(cast(PolicyCallable, value))
            return "ask"
        return value

    data = plain(policy)
    if not isinstance(data, (str, dict)):
        raise TypeError(
            'approval: expected the name of a policy such as "ask", an object or a callable, '
            f"got {type(policy).__name__}"
        )
    if len(found) > 1:
        raise ValueError(
            "approval: only one callable can stand in a policy; let it call the others"
        )
    return cast("str | JsonObject", data), (found[0] if found else None)


async def judge(policy: PolicyCallable, call: ToolCall) -> Decision | None:
    """What a callable says; None: it leaves it to others."""
    try:
        said: Any = policy(call)
        if inspect.isawaitable(said):
            said = await said
    except Exception as error:
        logger.exception(
            "the approval policy failed on %s.%s", _shown(call.server), _shown(call.tool)
        )
        return Decision(False, f"the approval policy failed: {type(error).__name__}")
    if said is None or isinstance(said, Decision):
        return said
    if isinstance(said, bool):
        return Decision(said)
    logger.error(
        "the approval policy returned %s instead of True, False, a Decision or None",
        type(said).__name__,
    )
    return Decision(False, "the approval policy returned no decision")


def call_from(data: JsonObject, text: str) -> ToolCall:
    """A call as the host sends it."""
    known = {name: value for name, value in data.items() if name in ToolCall.__dataclass_fields__}
    return ToolCall(**known, text=text)
