"""The executor for programs without an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar, Union

from ._approval import ApprovalRequest, Decision, Policy, ToolCall
from ._results import (
    CodeExecutionChunk,
    CodeExecutionDisplay,
    CodeExecutionResult,
    CodeVariable,
    InputRequest,
    ServerInfo,
    ToolInfo,
)
from .apigen import generate_mcp_sources
from .code_exec import CodeExecutor

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


class BlockingCodeExecutor:
    """`CodeExecutor` for programs without an event loop: the same arguments, and methods that wait.
    Callables of a policy and the like run on a thread of this package.

    Example:
        ```python
        with BlockingCodeExecutor(sandbox=True) as executor:
            print(executor.execute("2 + 2").text)
        ```
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As `CodeExecutor`."""
        self._executor = CodeExecutor(*arguments, **options)

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

    def start(self) -> None:
        """As `CodeExecutor.start()`."""
        _loop.run(self._executor.start())

    def stop(self) -> None:
        """As `CodeExecutor.stop()`."""
        _loop.run(self._executor.stop())

    def reset(self) -> None:
        """As `CodeExecutor.reset()`."""
        _loop.run(self._executor.reset())

    def cancel(self) -> None:
        """As `CodeExecutor.cancel()`, from another thread."""
        self._executor.cancel()

    def stream(
        self, code: str, timeout: float | None = None, chunks: bool = False, **how: Any
    ) -> Iterator[BlockingEvent]:
        """As `CodeExecutor.stream()`. Leaving the loop early interrupts the code."""
        events: Any = self._executor.stream(code, timeout, chunks, **how)
        try:
            while True:
                try:
                    event = _loop.run(events.__anext__())
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

    def execute(self, code: str, timeout: float | None = None, **how: Any) -> CodeExecutionResult:
        """As `CodeExecutor.execute()`."""
        return _loop.run(self._executor.execute(code, timeout, **how))

    def variables(self) -> list[CodeVariable]:
        """As `CodeExecutor.variables()`."""
        return _loop.run(self._executor.variables())

    def register_server(self, name: str, params: Mapping[str, Any]) -> None:
        """As `CodeExecutor.register_server()`."""
        _loop.run(self._executor.register_server(name, params))

    def add_server(
        self, name: str, params: Mapping[str, Any], root_dir: str = "mcptools"
    ) -> list[str]:
        """As `CodeExecutor.add_server()`."""
        return _loop.run(self._executor.add_server(name, params, root_dir))

    def unregister_server(self, name: str) -> None:
        """As `CodeExecutor.unregister_server()`."""
        _loop.run(self._executor.unregister_server(name))

    def servers(self) -> list[ServerInfo]:
        """As `CodeExecutor.servers()`."""
        return _loop.run(self._executor.servers())

    def list_tools(self, name: str) -> list[ToolInfo]:
        """As `CodeExecutor.list_tools()`."""
        return _loop.run(self._executor.list_tools(name))

    def search_tools(self, query: str, limit: int = 5, everything: bool = False) -> str:
        """As `CodeExecutor.search_tools()`."""
        return _loop.run(self._executor.search_tools(query, limit, everything))

    def describe_tool(self, name: str) -> str:
        """As `CodeExecutor.describe_tool()`."""
        return _loop.run(self._executor.describe_tool(name))

    def list_stubs(self, server: str) -> str:
        """As `CodeExecutor.list_stubs()`."""
        return _loop.run(self._executor.list_stubs(server))

    def set_policy(self, approval: Policy) -> None:
        """As `CodeExecutor.set_policy()`."""
        _loop.run(self._executor.set_policy(approval))

    def install_package(self, package: str, timeout: float | None = 300) -> str:
        """As `CodeExecutor.install_package()`."""
        return _loop.run(self._executor.install_package(package, timeout))

    def upload(self, path: str, data: bytes, overwrite: bool = True) -> None:
        """As `CodeExecutor.upload()`."""
        _loop.run(self._executor.upload(path, data, overwrite))

    def download(self, path: str) -> bytes:
        """As `CodeExecutor.download()`."""
        return _loop.run(self._executor.download(path))

    def kernel_alive(self) -> bool:
        """As `CodeExecutor.kernel_alive()`."""
        return _loop.run(self._executor.kernel_alive())

    @property
    def workspace(self) -> Any:
        """As `CodeExecutor.workspace`."""
        return self._executor.workspace

    @staticmethod
    def generate_mcp_sources(
        server_name: str,
        server_params: Mapping[str, Any],
        root_dir: Union[str, os.PathLike[str]],
        async_api: bool = False,
    ) -> list[str]:
        """As the function of that name."""
        return _loop.run(generate_mcp_sources(server_name, server_params, root_dir, async_api))
