"""Answers approval requests of tool servers, and makes some."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .._approval import ApprovalRequest
from .._errors import ApprovalRejectedError, ApprovalTimeoutError, ToolRunnerError
from .._jsonable import jsonable
from .._lifecycle import Lifecycle
from . import _served
from ._served import Asker, Served, keep

__all__ = ["ApprovalCallback", "ApprovalClient", "ApprovalRequest", "ApprovalRequestor"]

JsonObject = dict[str, Any]
ApprovalCallback = Callable[[ApprovalRequest], Awaitable[None]]
"""Gets the approval requests of an `ApprovalClient`, and accepts or rejects them."""

logger = logging.getLogger("ipybox")


class ApprovalClient(Lifecycle):
    """Answers the approval requests of a `ToolServer` of this process, by a callback.

    Example:
        ```python
        async def on_request(request: ApprovalRequest):
            await request.accept()

        async with ApprovalClient(callback=on_request):
            ...
        ```
    """

    def __init__(
        self, callback: ApprovalCallback, host: str = "localhost", port: int = 8900
    ) -> None:
        """
        Args:
            callback: Gets each request.
            host: Of the tool server.
            port: Of the tool server.
        """
        self.callback = callback
        self.host = host
        self.port = port
        self._served: Served | None = None
        self._open: set[ApprovalRequest] = set()

    async def _enter(self) -> None:
        await self.connect()

    async def _exit(self) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Requests come here from now on.

        Raises:
            ConnectionError: No tool server of this process listens there, or another client is
                connected to it.
        """
        self._served = _served.connect(
            self.host, self.port, Asker(asyncio.get_running_loop(), self._ask, self._decide)
        )

    async def disconnect(self) -> None:
        """Requests that wait fail."""
        served, self._served = self._served, None
        if served is None:
            return
        served.asker = None
        for request in list(self._open):
            await request.reject("it failed: the ApprovalClient has disconnected")
        self._open.clear()

    def _ask(self, request: ApprovalRequest) -> None:
        self._open.add(request)
        request.on_decision(lambda _decision: self._open.discard(request))
        keep(asyncio.ensure_future(self._call(request)))

    async def _decide(self, server_name: str, tool_name: str, tool_args: JsonObject) -> bool:
        async def respond(_allow: bool) -> bool:
            return True

        request = ApprovalRequest(server_name, tool_name, tool_args, respond)
        self._ask(request)
        return await request.response()

    async def _call(self, request: ApprovalRequest) -> None:
        try:
            await self.callback(request)
        except Exception:
            logger.exception("the approval callback failed")


class ApprovalRequestor:
    """Asks the `ApprovalClient` of a `ToolServer` of this process about what happens elsewhere."""

    def __init__(self, server_name: str, host: str = "localhost", port: int = 8900) -> None:
        """
        Args:
            server_name: That requests name.
            host: Of the tool server.
            port: Of the tool server.
        """
        self.server_name = server_name
        self.host = host
        self.port = port

    async def request(self, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """Returns if the call may happen.

        Raises:
            ApprovalRejectedError: It was rejected.
            ApprovalTimeoutError: Nobody answered in time.
            ToolRunnerError: Nobody can be asked.
        """
        served, asker = self._asker()
        if asker is None:
            return
        work = self._decide(served, asker, tool_name, jsonable(tool_args))
        if asker.loop is asyncio.get_running_loop():
            await work
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, asker.loop))

    def request_sync(self, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """The same from another thread than that of the client's event loop."""
        served, asker = self._asker()
        if asker is not None:
            asyncio.run_coroutine_threadsafe(
                self._decide(served, asker, tool_name, jsonable(tool_args)), asker.loop
            ).result()

    def _asker(self) -> tuple[Served, Asker | None]:
        """Who is to be asked; None: nobody, since everything is allowed."""
        served = _served.find(self.host, self.port)
        why = ""
        if served is None:
            why = f"no ToolServer of this process listens at {self.host}:{self.port}"
        elif served.policy == "allow":
            return served, None
        elif served.policy != "ask" or not served.only_asks:
            why = "that ToolServer has a policy, which judges calls of tools alone"
        elif served.asker is None:
            why = "no ApprovalClient is connected, so nobody can be asked"
        else:
            return served, served.asker
        raise ToolRunnerError(f"the approval request failed: {why}")

    async def _decide(
        self, served: Served, asker: Asker, tool_name: str, tool_args: JsonObject
    ) -> None:
        call = f"{self.server_name}.{tool_name}"
        try:
            allowed = await asyncio.wait_for(
                asker.decide(self.server_name, tool_name, tool_args),
                served.approval_timeout or None,
            )
        except asyncio.TimeoutError:
            raise ApprovalTimeoutError(f"approval request for {call} expired") from None
        if not allowed:
            raise ApprovalRejectedError(f"approval request for {call} rejected")
