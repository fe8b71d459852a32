"""One kernel behind a Jupyter kernel gateway."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from .._errors import (
    CodeExecutionError,
    CodeExecutionTimeoutError,
    ExecutionError,
    HostDiedError,
    IpyboxError,
)
from .._host import Connection, connection
from .._lifecycle import Lifecycle
from .._options import absolute, changed_environment, seconds
from .._results import CodeExecutionChunk, CodeExecutionResult
from .._runs import Asking, Run
from . import _tokens

__all__ = ["ExecutionError", "ExecutionResult", "KernelClient"]

PathLike = Union[str, "os.PathLike[str]"]
# What is worth another try: the gateway may be starting.
UNREACHABLE = ("kernel_start_failed", "http_failed", "io_error")


@dataclass
class ExecutionResult:
    """What an execution gave.

    Attributes:
        text: All output, stripped; None when there was none.
        images: Files of images, in order.
    """

    text: str | None
    images: list[Path]


class KernelClient(Lifecycle):
    """Creates a kernel behind a `KernelGateway`, executes code in it, and deletes it in the end.

    Example:
        ```python
        async with KernelGateway(port=8888), KernelClient(port=8888) as client:
            print((await client.execute("2 + 2")).text)
        ```
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8888,
        working_dir: PathLike | None = None,
        images_dir: PathLike | None = None,
        ping_interval: float = 10,
        approve_shell_cmds: bool = False,
        require_shell_escape: bool = False,
        tool_server_host: str = "localhost",
        tool_server_port: int = 0,
        kernel_init_timeout: float = 10,
        *,
        url: str | None = None,
        token: str | None = None,
        kernel_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
            host: Of the gateway.
            port: Of the gateway.
            working_dir: Of the code, restored after every execution; None: the gateway's, from
                which code may go elsewhere.
            images_dir: Where images are saved; None: `images` in the current directory.
            ping_interval: Seconds between pings that keep the connection alive.
            approve_shell_cmds: Must be False: a kernel alone has nobody to ask. Use CodeExecutor.
            require_shell_escape: The same.
            tool_server_host: Accepted for programs of the original.
            tool_server_port: The same.
            kernel_init_timeout: Seconds for the kernel to start.
            url: Instead of host and port: for TLS or a path.
            token: What the gateway wants presented; None: that of a `KernelGateway` of this
                process, or else `$IPYBOX_GATEWAY_TOKEN`.
            kernel_options: More of the plugin `gateway`.

        Raises:
            ValueError: approve_shell_cmds or require_shell_escape.
        """
        if approve_shell_cmds or require_shell_escape:
            raise ValueError(
                "approve_shell_cmds, require_shell_escape: a kernel alone has nobody to ask; "
                "use CodeExecutor"
            )
        self.host = host
        self.port = port
        self.working_dir = Path(working_dir).resolve() if working_dir is not None else None
        self.images_dir = Path(images_dir) if images_dir is not None else Path("images")
        self.ping_interval = ping_interval
        self.approve_shell_cmds = approve_shell_cmds
        self.require_shell_escape = require_shell_escape
        self.tool_server_host = tool_server_host
        self.tool_server_port = tool_server_port
        self.kernel_init_timeout = kernel_init_timeout
        self._url = url
        self._token = token
        self._kernel_options = dict(kernel_options or {})
        self._link: Connection | None = None
        self._handle = ""
        self._kernel_id = ""
        self._run: Run | None = None

    async def _enter(self) -> None:
        await self.connect()

    async def _exit(self) -> None:
        await self.disconnect()

    @property
    def kernel_id(self) -> str:
        """The gateway's name for the kernel. Raises RuntimeError without a connection."""
        if self._link is None:
            raise RuntimeError("no kernel is connected: call connect()")
        return self._kernel_id

    async def connect(
        self,
        retries: int = 10,
        retry_interval: float = 1.0,
        kernel_init_timeout: float | None = None,
    ) -> None:
        """Creates the kernel and connects to it.

        Args:
            retries: How often it is tried, while the gateway cannot be reached.
            retry_interval: Seconds between tries.
            kernel_init_timeout: Instead of that of the constructor.

        Raises:
            RuntimeError: It failed each time, or there is a connection.
            asyncio.TimeoutError: The kernel took too long to start.
        """
        if self._link is not None and not self._link.ended:
            raise RuntimeError("a kernel is connected already: call disconnect() or reset()")
        await self.disconnect()
        limit = self.kernel_init_timeout if kernel_init_timeout is None else kernel_init_timeout
        link = connection()
        try:
            connected = await self._connected(link, limit, retries, retry_interval)
        except BaseException:
            link.release()
            raise
        self._link, self._handle, self._kernel_id = (
            link,
            connected["kernel"],
            connected["kernel_id"],
        )

    async def disconnect(self) -> None:
        """Deletes the kernel; what it runs ends."""
        link, self._link = self._link, None
        if link is None:
            return
        try:
            await asyncio.shield(link.request("kernel/disconnect", {"kernel": self._handle}))
        except HostDiedError:
            pass
        finally:
            link.release()

    async def reset(self) -> None:
        """A new kernel in the place of the old one, whose state is lost."""
        link = self._connection()
        self._kernel_id = (await link.request("kernel/reset", {"kernel": self._handle}))[
            "kernel_id"
        ]

    async def execute(self, code: str, timeout: float | None = None) -> ExecutionResult:
        """Executes code.

        Args:
            code: Python, as in a cell of a notebook.
            timeout: Seconds after which it is interrupted; None: never.

        Returns:
            What came of it.

        Raises:
            ExecutionError: The code failed; the message has the traceback.
            asyncio.TimeoutError: It took too long. The kernel stays usable.
        """
        run = self._begin(code, timeout, chunks=False)
        try:
            return await self._result(run)
        finally:
            await run.close()

    async def stream(
        self, code: str, timeout: float | None = None
    ) -> AsyncIterator[str | ExecutionResult]:
        """Executes code, and yields its output as it comes; last the `ExecutionResult`. Takes and
        raises what `execute()` does. Leaving the loop early interrupts the code."""
        run = self._begin(code, timeout, chunks=True)
        try:
            while True:
                event = await self._event(run)
                if isinstance(event, CodeExecutionChunk):
                    yield event.text
                elif isinstance(event, CodeExecutionResult):
                    yield ExecutionResult(event.text, event.images)
                    return
                elif event is None:
                    return
        finally:
            await run.close()

    async def interrupt(self) -> None:
        """Interrupts what the kernel runs, if anything."""
        await self._connection().request("kernel/interrupt", {"kernel": self._handle})

    async def interrupt_and_drain(
        self, drain_timeout: float = 1.0, settle_delay: float = 0.2
    ) -> None:
        """The same, and waits so many seconds at most until it has ended; nothing is left to
        drain then."""
        await self.interrupt()
        if self._run is not None:
            try:
                await asyncio.wait_for(self._run.ended(), drain_timeout + settle_delay)
            except asyncio.TimeoutError:
                pass

    async def _connected(
        self, link: Connection, limit: float, retries: int, retry_interval: float
    ) -> dict[str, Any]:
        request: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "images_dir": absolute(self.images_dir),
            "ping_interval": self.ping_interval,
            "kernel_init_timeout": limit,
            "retries": 0,
            "kernel_options": self._kernel_options,
        }
        if self._url is not None:
            request["url"] = self._url
        if self.working_dir is not None:
            request["working_dir"] = str(self.working_dir)
        last: Exception | None = None
        for attempt in range(max(1, retries)):
            if attempt > 0:
                await asyncio.sleep(retry_interval)
            token = (
                self._token if self._token is not None else _tokens.token_of(self.host, self.port)
            )
            if token:
                request["token"] = _substituted(token, link)
            try:
                connected: dict[str, Any] = await link.request("kernel/connect", request)
                return connected
            except IpyboxError as error:
                if error.code == "timed_out":
                    raise asyncio.TimeoutError(str(error)) from error
                if error.code not in UNREACHABLE:
                    raise
                last = error
        raise RuntimeError(
            f"no kernel could be created after {max(1, retries)} tries: {last}"
        ) from last

    def _connection(self) -> Connection:
        if self._link is None:
            raise RuntimeError("no kernel is connected: call connect()")
        return self._link

    def _begin(self, code: str, timeout: float | None, chunks: bool) -> Run:
        self._run = Run(
            self._connection(),
            "kernel/execute",
            {
                "kernel": self._handle,
                "code": code,
                "timeout": seconds(timeout, "timeout"),
                "chunks": chunks,
            },
            Asking(),
            self.images_dir,
            timeout,
        )
        return self._run

    async def _result(self, run: Run) -> ExecutionResult:
        while True:
            event = await self._event(run)
            if isinstance(event, CodeExecutionResult):
                return ExecutionResult(event.text, event.images)
            if event is None:
                return ExecutionResult(None, [])

    @staticmethod
    async def _event(run: Run) -> Any:
        try:
            return await run.next()
        except CodeExecutionTimeoutError:
            raise
        except CodeExecutionError as error:
            raise ExecutionError(str(error)) from None


def _substituted(token: str, link: Connection) -> str:
    """`${NAME}` is replaced by the host, whose environment is older than this process's."""
    for name, value in changed_environment(link.environment).items():
        token = token.replace("${" + name + "}", value)
    return token
