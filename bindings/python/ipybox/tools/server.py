"""Starts MCP servers and calls their tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._approval import ApprovalRequest, Policy, split_policy
from .._errors import HostDiedError
from .._host import call_soon, connection
from .._lifecycle import Lifecycle
from .._options import changed_environment, seconds
from .._results import ServerInfo, ToolInfo
from .._runs import Asking, Questions
from .._servers import start_directory
from . import _served
from ._served import Served, keep

__all__ = ["ToolServer"]

JsonObject = dict[str, Any]


class ToolServer(Lifecycle):
    """Starts MCP servers and calls their tools, under approval if that is wanted.

    Programs of this process call tools by `ToolRunner`. Those of other processes do, too, with
    `control_token`: only who presents it can name a server to start.

    Attributes:
        url: Where it listens.
        token: What callers of registered servers present.
        control_token: What those present that register servers and reset, too.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8900,
        approval_required: bool = False,
        approval_timeout: float | None = None,
        connect_timeout: float = 30,
        log_to_stderr: bool = False,
        log_level: str = "INFO",
        *,
        approval: Policy | None = None,
        tool_timeout: float | None = 300,
        token: str | None = None,
        control_token: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            host: An address of this machine's loopback.
            port: Where it listens; 0: a free port.
            approval_required: Whether an `ApprovalClient` is asked about every call.
            approval_timeout: Seconds after which an unanswered request fails; None: never.
            connect_timeout: Seconds to start an MCP server.
            log_to_stderr: Accepted for programs of the original; logs go to the logger `ipybox`.
            log_level: What is logged, by the first object of this package that starts.
            approval: The policy, instead of approval_required; what it asks, an ApprovalClient is
                asked.
            tool_timeout: Seconds for a tool to answer or report progress; None: unlimited.
            token: None: one is made up. At least 16 characters.
            control_token: The same.
            variables: For `${NAME}` in server parameters, beside the environment.
        """
        if approval is not None and approval_required:
            raise ValueError("approval_required and approval exclude each other: leave one out")
        self.host = host
        self.port = port
        self.approval_timeout = approval_timeout
        self.connect_timeout = connect_timeout
        self.log_to_stderr = log_to_stderr
        self.log_level = log_level
        self.url = ""
        self.token = token or ""
        self.control_token = control_token or ""
        policy: Policy = (
            approval if approval is not None else ("ask" if approval_required else "allow")
        )
        self._policy, self._callable = split_policy(policy)
        self._options: JsonObject = {
            "approval_timeout": seconds(approval_timeout, "approval_timeout"),
            "connect_timeout": seconds(connect_timeout, "connect_timeout"),
            "tool_timeout": seconds(tool_timeout, "tool_timeout"),
        }
        self._variables = dict(variables or {})
        self._served: Served | None = None
        self._stopped = asyncio.Event()

    async def _enter(self) -> None:
        await self.start()

    async def _exit(self) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens.

        Raises:
            RuntimeError: It is running.
            IpyboxError: It cannot listen there.
        """
        if self._served is not None and not self._served.link.ended:
            raise RuntimeError("the tool server is already running")
        self._leave()
        link = connection(self.log_level)
        handle = ""
        try:
            options = dict(
                self._options,
                approval=self._policy,
                workspace=str(Path.cwd()),
                variables={**changed_environment(link.environment), **self._variables},
            )
            for name, value in (("token", self.token), ("control_token", self.control_token)):
                if value:
                    options[name] = value
            handle = str((await link.request("tools/open", {"options": options}))["tools"])
            loop = asyncio.get_running_loop()
            link.listen(
                handle, lambda method, params: call_soon(loop, self._notified, method, params)
            )
            where = await link.request(
                "tools/listen", {"tools": handle, "host": self.host, "port": self.port}
            )
        except BaseException:
            if handle:
                link.unlisten(handle)
                link.forget("tools/close", {"tools": handle})
            link.release()
            raise
        self.url, self.token, self.control_token = (
            where["url"],
            where["token"],
            where["control_token"],
        )
        self.port = int(self.url.rsplit(":", 1)[1].strip("/"))
        self._served = Served(
            link, handle, self._policy, self._callable is None, self.approval_timeout
        )
        self._stopped.clear()
        self._questions = Questions(link, Asking(self._callable), self._show)
        _served.add(self.host, self.port, self._served)

    async def stop(self) -> None:
        """Withdraws calls and stops the MCP servers."""
        served = self._served
        if served is None:
            return
        try:
            if not served.link.ended:
                await asyncio.shield(served.link.request("tools/close", {"tools": served.handle}))
        except HostDiedError:
            pass
        finally:
            self._leave()
            self._stopped.set()

    async def join(self) -> None:
        """Waits until it was stopped."""
        if self._served is not None:
            await self._stopped.wait()

    async def reset(self) -> None:
        """Stops the MCP servers, which start again on their next use."""
        await self._ask("tools/reset")

    async def register_server(self, name: str, params: Mapping[str, Any]) -> None:
        """Makes an MCP server callable by name; it starts on its first use."""
        await self._ask("tools/register", name=name, params=start_directory(params, None))
        self._running().registered[name] = dict(params)
        self._running().ready.pop(name, None)

    async def unregister_server(self, name: str) -> None:
        """Stops an MCP server and forgets it."""
        self._running().registered.pop(name, None)
        await self._ask("tools/unregister", name=name)

    async def servers(self) -> list[ServerInfo]:
        """The registered servers."""
        return [ServerInfo(**server) for server in (await self._ask("tools/servers"))["servers"]]

    async def list_tools(self, name: str) -> list[ToolInfo]:
        """The tools of a registered server; starts it."""
        return [ToolInfo(**tool) for tool in (await self._ask("tools/list", name=name))["tools"]]

    async def set_policy(self, approval: Policy) -> None:
        """Another policy, for calls that are made from now on."""
        data, function = split_policy(approval)
        await self._ask("tools/set_policy", approval=data)
        self._policy, self._callable = data, function
        served = self._running()
        served.policy, served.only_asks = data, function is None
        self._questions = Questions(served.link, Asking(function), self._show)

    def _running(self) -> Served:
        if self._served is None:
            raise RuntimeError("the tool server is not running: call start()")
        return self._served

    async def _ask(self, method: str, **params: Any) -> Any:
        served = self._running()
        return await served.link.request(method, {"tools": served.handle, **params})

    def _leave(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            _served.remove(self.host, self.port, served)
            served.link.unlisten(served.handle)
            served.link.release()

    def _notified(self, method: str, params: JsonObject) -> None:
        if method == "approval/requested":
            self._questions.requested(params)
        elif method == "approval/settled":
            self._questions.settled(params)

    def _show(self, request: ApprovalRequest) -> None:
        asker = self._served.asker if self._served is not None else None
        if asker is not None:
            call_soon(asker.loop, asker.begin, request)
        else:
            keep(
                asyncio.ensure_future(
                    request.reject(
                        "it failed: no ApprovalClient is connected, so nobody can be asked"
                    )
                )
            )
