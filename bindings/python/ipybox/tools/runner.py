"""Calls tools through a tool server."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Mapping
from typing import Any

from .._errors import IpyboxError, ToolRunnerError
from .._host import Connection, connection
from .._jsonable import jsonable
from .._servers import start_directory
from . import _served
from ._served import tool_error

__all__ = ["ToolRunner", "reset"]

JsonObject = dict[str, Any]
# A tool server's control token, for programs in other processes than the tool server's.
TOKEN_VARIABLE = "IPYBOX_TOOL_SERVER_TOKEN"


class ToolRunner:
    """Calls the tools of an MCP server through a `ToolServer`.

    Example:
        ```python
        runner = ToolRunner("fetch", {"command": "uvx", "args": ["mcp-server-fetch"]})
        result = await runner.run("fetch", {"url": "https://example.com"})
        ```
    """

    def __init__(
        self,
        server_name: str,
        server_params: Mapping[str, Any],
        host: str = "localhost",
        port: int = 8900,
        *,
        token: str | None = None,
    ) -> None:
        """
        Args:
            server_name: Name of the MCP server.
            server_params: As in an `mcpServers` block.
            host: Of the tool server.
            port: Of the tool server.
            token: The control token of a tool server in another process; None:
                `$IPYBOX_TOOL_SERVER_TOKEN`. Those of this process need none.
        """
        self.server_name = server_name
        self.server_params = dict(server_params)
        self.host = host
        self.port = port
        self._token = token
        self._registered = False

    async def run(self, tool_name: str, tool_args: Mapping[str, Any]) -> Any:
        """Calls a tool.

        Args:
            tool_name: As the server calls it.
            tool_args: Its arguments; dates, models of Pydantic and the like become JSON.

        Returns:
            Its structured result, or its text.

        Raises:
            ApprovalRejectedError: The call was rejected.
            ApprovalTimeoutError: Nobody answered the approval request in time.
            ToolRunnerError: It failed.
        """
        return await asyncio.wrap_future(self._begin(tool_name, tool_args))

    def run_sync(self, tool_name: str, tool_args: Mapping[str, Any]) -> Any:
        """The same for threads that run no event loop."""
        return self._begin(tool_name, tool_args).result()

    async def reset(self) -> None:
        """Stops the MCP servers of the tool server, which start again on their next use."""
        await reset(self.host, self.port, token=self._token)

    def _begin(
        self, tool_name: str, tool_args: Mapping[str, Any]
    ) -> concurrent.futures.Future[Any]:
        call: JsonObject = {
            "server": self.server_name,
            "tool": tool_name,
            "arguments": jsonable(tool_args),
        }
        params = start_directory(self.server_params, None)
        served = _served.find(self.host, self.port)
        if served is not None and self._token is None:
            with served.registering:
                if served.registered.get(self.server_name) != self.server_params:
                    _send(
                        served.link,
                        "tools/register",
                        {"tools": served.handle, "name": self.server_name, "params": params},
                    )
                    served.registered[self.server_name] = self.server_params
            return _send(served.link, "tools/call", {"tools": served.handle, **call})
        call.update(host=self.host, port=self.port, token=_token(self._token, self.host, self.port))
        if not self._registered:
            call["server_params"] = params
            self._registered = True
        link = connection()
        answer = _send(link, "runner/call", call)
        answer.add_done_callback(lambda _done: link.release())
        return answer


async def reset(host: str = "localhost", port: int = 8900, *, token: str | None = None) -> None:
    """Stops the MCP servers of a tool server, which start again on their next use.

    Args:
        host: Of the tool server.
        port: Of the tool server.
        token: As in `ToolRunner`.
    """
    served = _served.find(host, port)
    if served is not None and token is None:
        await served.link.request("tools/reset", {"tools": served.handle})
        return
    link = connection()
    try:
        await link.request(
            "runner/reset", {"host": host, "port": port, "token": _token(token, host, port)}
        )
    finally:
        link.release()


def _token(given: str | None, host: str, port: int) -> str:
    token = given or os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise ToolRunnerError(
            f"no ToolServer of this process listens at {host}:{port}; for one of another process, "
            f"give its control_token as token, or in ${TOKEN_VARIABLE}"
        )
    return token


def _send(link: Connection, method: str, params: JsonObject) -> concurrent.futures.Future[Any]:
    """Sends a request of a tool call; the answer comes on any thread."""
    answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def settle(result: Any, error: Exception | None) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        if error is not None:
            answer.set_exception(tool_error(error) if isinstance(error, IpyboxError) else error)
        else:
            answer.set_result(result.get("result"))

    number = link.send(method, params, settle)

    def withdrawn(done: concurrent.futures.Future[Any]) -> None:
        if done.cancelled():
            link.notify("$/cancel", {"id": number})

    answer.add_done_callback(withdrawn)
    return answer
