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
from .._servers import starts
from . import _served
from ._served import Served, tool_error

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
        ways = starts(self.server_params)
        served = _served.find(self.host, self.port)
        if served is not None and self._token is None:
            return self._call(served, call, ways)
        call.update(host=self.host, port=self.port, token=_token(self._token, self.host, self.port))
        if not self._registered:
            call["server_params"] = ways[0]
            self._registered = True
        link = connection()
        answer = _send(link, "runner/call", call)
        answer.add_done_callback(lambda _done: link.release())
        return answer

    def _call(
        self, served: Served, call: JsonObject, ways: list[JsonObject]
    ) -> concurrent.futures.Future[Any]:
        """Calls the tool once its server is registered in the first of these ways in which it
        starts."""
        with served.registering:
            if served.registered.get(self.server_name) != self.server_params:
                served.registered[self.server_name] = self.server_params
                served.ready[self.server_name] = _registered(served, self.server_name, ways)
            ready = served.ready.get(self.server_name)
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        params = {"tools": served.handle, **call}
        if ready is None:
            return _send(served.link, "tools/call", params, answer)
        ready.add_done_callback(lambda _ready: _send(served.link, "tools/call", params, answer))
        return answer


def _registered(
    served: Served, name: str, ways: list[JsonObject]
) -> concurrent.futures.Future[None]:
    """Registers a server, and starts it; done when it was tried in each way that it needs."""
    ready: concurrent.futures.Future[None] = concurrent.futures.Future()
    server: JsonObject = {"tools": served.handle, "name": name}

    def begin(number: int) -> None:
        params = {**server, "params": ways[number]}
        served.link.send("tools/register", params, lambda _result, _error: None)
        served.link.send("tools/list", server, lambda _, error: listed(number, error))

    def listed(number: int, error: Exception | None) -> None:
        refused = isinstance(error, IpyboxError) and error.code == "bad_config"
        if refused and number + 1 < len(ways):
            begin(number + 1)
        else:
            ready.set_result(None)  # if it does not start, the call says so

    begin(0)
    return ready


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


def _send(
    link: Connection,
    method: str,
    params: JsonObject,
    answer: concurrent.futures.Future[Any] | None = None,
) -> concurrent.futures.Future[Any]:
    """Sends a request of a tool call; the answer comes on any thread."""
    if answer is None:
        answer = concurrent.futures.Future()
    if answer.cancelled():
        return answer
    told = answer

    def settle(result: Any, error: Exception | None) -> None:
        if not told.set_running_or_notify_cancel():
            return
        if error is not None:
            told.set_exception(tool_error(error) if isinstance(error, IpyboxError) else error)
        else:
            told.set_result(result.get("result"))

    try:
        number = link.send(method, params, settle)
    except ValueError as error:  # arguments that are no JSON
        told.set_exception(error)
        return answer

    def withdrawn(done: concurrent.futures.Future[Any]) -> None:
        if done.cancelled():
            link.notify("$/cancel", {"id": number})

    answer.add_done_callback(withdrawn)
    return answer
