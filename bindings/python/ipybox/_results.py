"""What executions give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

JsonObject = dict[str, Any]

Status = Literal["ok", "error", "timed_out", "cancelled", "kernel_lost", "output_limit", "refused"]


@dataclass(frozen=True)
class Violation:
    """What the sandbox was seen to stop.

    Attributes:
        layer: `network`, `seccomp`, `files`, or the name of a limit.
        what: One line about it.
        count: How often.
    """

    layer: str
    what: str
    count: int


@dataclass(frozen=True)
class FileChange:
    """A file of the workspace that a cell created, changed or removed."""

    path: str
    change: Literal["created", "changed", "removed"]


@dataclass(frozen=True)
class Measures:
    """What `measure=True` finds out about an execution.

    Attributes:
        files: What changed in the workspace.
        files_complete: False where there were too many files to look at all.
        peak_memory: Of the kernel, in bytes; None where it is not known.
    """

    files: list[FileChange]
    files_complete: bool
    peak_memory: int | None


@dataclass
class CodeExecutionResult:
    """How an execution ended, and what it gave.

    Attributes:
        text: All output, stripped; None when there was none.
        images: Files in `images_dir`, in order.
        status: `ok` unless it is the `result` of an exception, or was cancelled.
        displays: Full MIME bundles, in order.
        stdout: What the code wrote there, with `streams=True`.
        stderr: The same of the standard error.
        value_repr: The value of the last expression as Python writes it.
        error: Python's traceback, or what happened and what to do; empty when ok.
        error_name: The exception that ended the cell.
        error_value: Its message.
        duration: Seconds, approvals included.
        measures: With `measure=True`.
        violations: What the sandbox was seen to stop meanwhile.
        execution: Its id in approval requests and in the audit log.
    """

    text: str | None
    images: list[Path]
    status: Status = "ok"
    displays: list[JsonObject] = field(default_factory=list[JsonObject])
    stdout: str | None = None
    stderr: str | None = None
    value_repr: str | None = None
    error: str = ""
    error_name: str = ""
    error_value: str = ""
    duration: float = 0.0
    measures: Measures | None = None
    violations: list[Violation] = field(default_factory=list[Violation])
    execution: str = ""


@dataclass
class CodeExecutionChunk:
    """Text as the code printed it; only with `chunks=True`.

    Attributes:
        text: All chunks together are the whole output.
        stderr: Whether it was written to the standard error.
    """

    text: str
    stderr: bool = False


@dataclass
class CodeExecutionDisplay:
    """What the code showed; only with `displays=True`.

    Attributes:
        data: The values by MIME type.
        metadata: Of the display.
        display_id: None for one without.
        is_result: It is the value of the cell's last expression.
        is_update: It takes the place of an earlier display with that `display_id`.
    """

    data: JsonObject
    metadata: JsonObject
    display_id: str | None = None
    is_result: bool = False
    is_update: bool = False


@dataclass(frozen=True)
class CodeVariable:
    """A variable of the code that ran so far.

    Attributes:
        name: Its name.
        type: The name of its type.
        size: What its length or shape amounts to; None where it has none.
        repr: Its value, shortened; None of its own code ran to write it.
    """

    name: str
    type: str
    size: int | None
    repr: str


@dataclass(frozen=True)
class CodeCompletions:
    """How code can go on.

    Attributes:
        start: From there on the code would be replaced.
        matches: What would be put there, 500 at most.
    """

    start: int
    matches: list[str]

    @classmethod
    def of(cls, code: str, answer: JsonObject) -> CodeCompletions:
        """Of what the host answers, which counts in bytes of UTF-8."""
        before = code.encode("utf-8", "replace")[: answer["start"]]
        return cls(len(before.decode("utf-8", "ignore")), list(answer["matches"]))


@dataclass(frozen=True)
class ServerInfo:
    """A registered MCP server.

    Attributes:
        name: As registered.
        type: Its transport.
        state: `stopped`, `starting` or `running`.
    """

    name: str
    type: str
    state: Literal["stopped", "starting", "running"]


@dataclass(frozen=True)
class ToolInfo:
    """A tool of an MCP server. What it says of itself is the server's claim; hints that it does not
    give are None."""

    name: str
    title: str
    description: str
    input_schema: JsonObject
    output_schema: JsonObject | None
    read_only: bool | None
    destructive: bool | None
    idempotent: bool | None
    open_world: bool | None


@dataclass(frozen=True)
class CallProgress:
    """How far a tool call is.

    Attributes:
        call: The id of the call, as `ToolCall.id`.
        progress: How much is done.
        total: Of how much; None: the server does not say.
        message: The server's words: escape them before a person sees them.
    """

    call: str
    progress: float
    total: float | None
    message: str


@dataclass(frozen=True)
class Span:
    """An execution, a call or the decision about one, as tracing wants it.

    Attributes:
        begin: Nanoseconds since 1970.
        end: The same; 0 while it goes on.
    """

    kind: Literal["execution", "call", "approval"]
    id: str
    parent: str
    root: str
    session: str
    name: str
    begin: int
    end: int
    outcome: str


class InputRequest:
    """Code waits in `input()` or `getpass()`; only with `allow_input=True`.

    Attributes:
        prompt: What the code wrote: escape it before a person sees it.
        text: The prompt on one line, safe to show on a terminal.
        password: What is typed is not to be shown.
    """

    def __init__(
        self,
        prompt: str,
        text: str,
        password: bool,
        respond: Callable[[str | None], Awaitable[bool]],
    ) -> None:
        self.prompt = prompt
        self.text = text
        self.password = password
        self._respond = respond

    def __str__(self) -> str:
        return self.text

    async def answer(self, text: str) -> bool:
        """Types a line, given without its end. False: the code waits no more."""
        return await self._respond(text)

    async def end_of_file(self) -> bool:
        """The code gets an EOFError. False: it waits no more."""
        return await self._respond(None)


def result_from(data: JsonObject, images_dir: Path | None) -> CodeExecutionResult:
    """The result of an execution as the host sends it. images_dir: how the caller calls it."""
    measures: JsonObject | None = data.get("measures")
    images = [Path(image) for image in data["images"]]
    if images_dir is not None:
        images = [images_dir / image.name for image in images]
    return CodeExecutionResult(
        text=data["text"],
        images=images,
        status=data["status"],
        displays=data["displays"],
        stdout=data.get("stdout"),
        stderr=data.get("stderr"),
        value_repr=data["value_repr"],
        error=data["error"],
        error_name=data["error_name"],
        error_value=data["error_value"],
        duration=data["duration"],
        execution=data["execution"],
        measures=None
        if measures is None
        else Measures(
            [FileChange(**change) for change in measures["files"]],
            measures["files_complete"],
            measures["peak_memory"],
        ),
        violations=[Violation(**violation) for violation in data["violations"]],
    )
