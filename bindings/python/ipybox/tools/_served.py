"""The tool servers of this process, as its other objects see them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .._approval import ApprovalRequest
from .._errors import (
    ApprovalRejectedError,
    ApprovalTimeoutError,
    HostDiedError,
    IpyboxError,
    ToolRunnerError,
)
from .._host import Connection
from .._options import address

JsonObject = dict[str, Any]


@dataclass(eq=False)
class Asker:
    """Who answers approval requests, and on which event loop.

    Attributes:
        begin: Asks about a request; called on `loop`.
        decide: Asks about a call that nobody makes here; awaited on `loop`.
    """

    loop: asyncio.AbstractEventLoop
    begin: Callable[[ApprovalRequest], None]
    decide: Callable[[str, str, JsonObject], Awaitable[bool]]


@dataclass(eq=False)
class Served:
    """A tool server that listens.

    Attributes:
        policy: As data.
        only_asks: Whether approval is the ApprovalClient's alone.
        registered: The servers by name, as they were given.
        registering: Held while one is registered.
        ready: Done when it was, by name.
    """

    link: Connection
    handle: str
    policy: str | JsonObject
    only_asks: bool
    approval_timeout: float | None
    registered: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    registering: threading.Lock = field(default_factory=threading.Lock)
    ready: dict[str, concurrent.futures.Future[None]] = field(
        default_factory=dict[str, "concurrent.futures.Future[None]"]
    )
    asker: Asker | None = None


_lock = threading.Lock()
_all: dict[tuple[str, int], Served] = {}


def add(host: str, port: int, served: Served) -> None:
    """It listens there."""
    with _lock:
        _all[address(host, port)] = served


def remove(host: str, port: int, served: Served) -> None:
    """It does not any more."""
    with _lock:
        if _all.get(address(host, port)) is served:
            del _all[address(host, port)]


def find(host: str, port: int) -> Served | None:
    """The one that listens there."""
    with _lock:
        return _all.get(address(host, port))


def connect(host: str, port: int, asker: Asker) -> Served:
    """Has a tool server ask. Raises ConnectionError."""
    with _lock:
        served = _all.get(address(host, port))
        if served is None:
            raise ConnectionError(
                f"no ToolServer of this process listens at {host}:{port}; approval requests leave "
                "the process of their tool server by no other way"
            )
        if served.asker is not None:
            raise ConnectionError("another ApprovalClient is connected to that ToolServer")
        served.asker = asker
        return served


def tool_error(error: IpyboxError) -> Exception:
    """A failed call as the original's users know it."""
    if isinstance(error, HostDiedError):
        return error
    if error.code == "denied":
        return ApprovalRejectedError(str(error))
    if error.code == "timed_out" and "approval request" in str(error):
        return ApprovalTimeoutError(str(error))
    return ToolRunnerError(str(error))


_tasks: set[asyncio.Future[Any]] = set()


def keep(task: asyncio.Future[Any]) -> None:
    """Event loops do not hold on to their tasks."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
