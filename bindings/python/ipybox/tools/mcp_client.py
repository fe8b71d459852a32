"""One MCP server, called directly."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._errors import HostDiedError, IpyboxError
from .._host import Connection, connection
from .._jsonable import jsonable
from .._lifecycle import Lifecycle
from .._options import changed_environment
from .._results import ToolInfo
from .._servers import start_in_one_way
from ._served import tool_error

__all__ = ["MCPClient"]

NAME = "server"  # its only one


class MCPClient(Lifecycle):
    """One MCP server, whose tools are called without asking anybody.

    Example:
        ```python
        async with MCPClient({"command": "uvx", "args": ["mcp-server-fetch"]}) as client:
            print(await client.run("fetch", {"url": "https://example.com"}))
        ```
    """

    def __init__(self, server_params: Mapping[str, Any], connect_timeout: float = 10) -> None:
        """
        Args:
            server_params: As in an `mcpServers` block.
            connect_timeout: Seconds to start the server.
        """
        self.server_params = dict(server_params)
        self.connect_timeout = connect_timeout
        self._link: Connection | None = None
        self._handle = ""

    async def _enter(self) -> None:
        await self.start()

    async def _exit(self) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts the server. Raises IpyboxError if that fails."""
        if self._link is not None and not self._link.ended:
            raise RuntimeError("the MCP client is already started")
        await self.stop()
        link = connection()
        try:
            opened = await link.request(
                "tools/open",
                {
                    "options": {
                        "approval": "allow",
                        "connect_timeout": self.connect_timeout,
                        "variables": changed_environment(link.environment),
                        "workspace": str(Path.cwd()),
                    }
                },
            )
        except BaseException:
            link.release()
            raise
        self._link, self._handle = link, str(opened["tools"])
        try:
            await start_in_one_way(self.server_params, self._register)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stops the server."""
        link, self._link = self._link, None
        if link is None:
            return
        try:
            await asyncio.shield(link.request("tools/close", {"tools": self._handle}))
        except HostDiedError:
            pass
        finally:
            link.release()

    async def list_tools(self) -> list[ToolInfo]:
        """The tools of the server."""
        return [ToolInfo(**tool) for tool in (await self._ask("tools/list", name=NAME))["tools"]]

    async def run(self, tool_name: str, tool_args: Mapping[str, Any]) -> Any:
        """Calls a tool; returns its structured result, or its text. Raises ToolRunnerError if it
        fails."""
        try:
            answer = await self._ask(
                "tools/call", server=NAME, tool=tool_name, arguments=jsonable(tool_args)
            )
        except IpyboxError as error:
            raise tool_error(error) from error
        return answer["result"]

    async def _register(self, params: dict[str, Any]) -> list[ToolInfo]:
        await self._ask("tools/register", name=NAME, params=params)
        return await self.list_tools()

    async def _ask(self, method: str, **params: Any) -> Any:
        if self._link is None:
            raise RuntimeError("the MCP client is not started")
        return await self._link.request(method, {"tools": self._handle, **params})
