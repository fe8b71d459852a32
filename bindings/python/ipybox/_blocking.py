"""The executor for programs without an event loop."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, Union

from ._approval import ApprovalRequest, Decision, ToolCall
from ._results import CodeExecutionChunk, CodeExecutionDisplay, CodeExecutionResult, InputRequest
from .apigen import generate_mcp_sources
from .code_exec import CodeExecutor, Event

P = ParamSpec("P")
T = TypeVar("T")
# For what was interrupted to end.
GRACE_SECONDS = 10.0


class _Loop:
    """One event loop in a thread of its own, for all blocking executors of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end; whatever interrupts the wait, such as Ctrl-C, cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="ipybox-loop", daemon=True
                ).start()
            loop = self._loop
        ended = threading.Event()

        async def to_its_end() -> T:
            try:
                return await work
            finally:
                ended.set()

        waiting = asyncio.run_coroutine_threadsafe(to_its_end(), loop)
        try:
            return waiting.result()
        except BaseException:
            if waiting.cancel():
                ended.wait(GRACE_SECONDS)  # what was interrupted is out of the way then
            raise

    def forget(self) -> None:
        """In the child of a fork, which has no such thread."""
        self._lock = threading.Lock()
        self._loop = None


_loop = _Loop()
os.register_at_fork(after_in_child=_loop.forget)


class BlockingApprovalRequest:
    """A call that waits for an answer; the first one counts.

    Attributes:
        server_name: The MCP server.
        tool_name: Its tool.
        tool_args: What the tool gets.
        call: All that is known of the call.
    """

    def __init__(self, request: ApprovalRequest) -> None:
        self._request = request
        self.server_name = request.server_name
        self.tool_name = request.tool_name
        self.tool_args = request.tool_args
        self.call: ToolCall = request.call

    def __str__(self) -> str:
        return str(self._request)

    def accept(self, *, arguments: dict[str, Any] | None = None, by: str = "") -> bool:
        """As `ApprovalRequest.accept()`."""
        return _loop.run(self._request.accept(arguments=arguments, by=by))

    def reject(self, reason: str = "", *, by: str = "") -> bool:
        """As `ApprovalRequest.reject()`."""
        return _loop.run(self._request.reject(reason, by=by))

    def answer(self, decision: Decision) -> bool:
        """As `ApprovalRequest.answer()`."""
        return _loop.run(self._request.answer(decision))


class BlockingInputRequest:
    """Code waits in `input()` or `getpass()`; see `InputRequest`."""

    def __init__(self, request: InputRequest) -> None:
        self._request = request
        self.prompt = request.prompt
        self.text = request.text
        self.password = request.password

    def __str__(self) -> str:
        return self.text

    def answer(self, text: str) -> bool:
        """As `InputRequest.answer()`."""
        return _loop.run(self._request.answer(text))

    def end_of_file(self) -> bool:
        """As `InputRequest.end_of_file()`."""
        return _loop.run(self._request.end_of_file())


BlockingEvent = Union[
    BlockingApprovalRequest,
    CodeExecutionChunk,
    CodeExecutionDisplay,
    BlockingInputRequest,
    CodeExecutionResult,
]


def _as_made(
    constructor: Callable[Concatenate[CodeExecutor, P], None],
) -> Callable[
    [Callable[[BlockingCodeExecutor, CodeExecutor], None]],
    Callable[Concatenate[BlockingCodeExecutor, P], None],
]:
    """A constructor with the arguments of another, for type checkers too."""

    def with_arguments(
        take: Callable[[BlockingCodeExecutor, CodeExecutor], None],
    ) -> Callable[Concatenate[BlockingCodeExecutor, P], None]:
        @functools.wraps(constructor)
        def init(self: BlockingCodeExecutor, /, *arguments: P.args, **options: P.kwargs) -> None:
            executor = CodeExecutor.__new__(CodeExecutor)
            constructor(executor, *arguments, **options)
            take(self, executor)

        return init

    return with_arguments


def _waits(
    method: Callable[Concatenate[CodeExecutor, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingCodeExecutor, P], T]:
    """A method that waits for the end of a coroutine."""

    @functools.wraps(method)
    def wait(self: BlockingCodeExecutor, /, *arguments: P.args, **options: P.kwargs) -> T:
        return _loop.run(method(self.executor, *arguments, **options))

    return wait


def _iterates(
    method: Callable[Concatenate[CodeExecutor, P], AsyncIterator[Event]],
) -> Callable[Concatenate[BlockingCodeExecutor, P], Iterator[BlockingEvent]]:
    """A method that yields what an asynchronous one does."""

    @functools.wraps(method)
    def iterate(
        self: BlockingCodeExecutor, /, *arguments: P.args, **options: P.kwargs
    ) -> Iterator[BlockingEvent]:
        events: Any = method(self.executor, *arguments, **options)
        try:
            while True:
                try:
                    event: Any = _loop.run(events.__anext__())
                except StopAsyncIteration:
                    return
                if isinstance(event, ApprovalRequest):
                    yield BlockingApprovalRequest(event)
                elif isinstance(event, InputRequest):
                    yield BlockingInputRequest(event)
                else:
                    yield event
        finally:
            _loop.run(events.aclose())

    return iterate


class BlockingCodeExecutor:
    """`CodeExecutor` for programs without an event loop: the same arguments, and methods that wait.
    Callables of a policy and the like run on a thread of this package.

    Attributes:
        executor: What does the work, on an event loop of this package.

    Example:
        ```python
        with BlockingCodeExecutor(sandbox=True) as executor:
            print(executor.execute("2 + 2").text)
        ```
    """

    executor: CodeExecutor

    @_as_made(CodeExecutor.__init__)
    def __init__(self, executor: CodeExecutor) -> None:
        self.executor = executor

    def __enter__(self) -> BlockingCodeExecutor:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    start = _waits(CodeExecutor.start)
    stop = _waits(CodeExecutor.stop)
    reset = _waits(CodeExecutor.reset)
    stream = _iterates(CodeExecutor.stream)
    execute = _waits(CodeExecutor.execute)
    variables = _waits(CodeExecutor.variables)
    complete = _waits(CodeExecutor.complete)
    register_server = _waits(CodeExecutor.register_server)
    add_server = _waits(CodeExecutor.add_server)
    unregister_server = _waits(CodeExecutor.unregister_server)
    servers = _waits(CodeExecutor.servers)
    list_tools = _waits(CodeExecutor.list_tools)
    search_tools = _waits(CodeExecutor.search_tools)
    describe_tool = _waits(CodeExecutor.describe_tool)
    list_stubs = _waits(CodeExecutor.list_stubs)
    set_policy = _waits(CodeExecutor.set_policy)
    install_package = _waits(CodeExecutor.install_package)
    upload = _waits(CodeExecutor.upload)
    download = _waits(CodeExecutor.download)
    kernel_alive = _waits(CodeExecutor.kernel_alive)

    def cancel(self) -> None:
        """As `CodeExecutor.cancel()`, from another thread."""
        self.executor.cancel()

    @property
    def workspace(self) -> Path:
        """As `CodeExecutor.workspace`."""
        return self.executor.workspace

    @staticmethod
    def generate_mcp_sources(
        server_name: str,
        server_params: Mapping[str, Any],
        root_dir: Union[str, os.PathLike[str]],
        async_api: bool = False,
    ) -> list[str]:
        """As the function of that name."""
        return _loop.run(generate_mcp_sources(server_name, server_params, root_dir, async_api))
