"""What generated tool modules import, and how a tool call leaves the kernel.

Standard library only; `call`, `Model`, `Out` and the other names of
`ipybox_kernel.models` load pydantic when they are first used.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .client import ApprovalRejectedError, ApprovalTimeoutError, ToolRunnerError, progress, send, send_async
from .results import Audio, Blob, Image, Parts, Resource, ResourceLink, media

if TYPE_CHECKING:
    from . import tools
    from .models import Model, NotObject, Open, Out, SafeInt, asynchronous, call, call_async, coroutine, object_rule, one_of, pattern, rule, unique

__all__ = [
    "ApprovalRejectedError", "ApprovalTimeoutError", "ToolRunnerError",
    "Audio", "Blob", "Image", "Parts", "Resource", "ResourceLink", "media", "call", "Model", "Out", "progress",
    "tools",
]


def _send(server: str, tool: str, arguments: dict[str, Any]) -> Any:
    """The one way out: asks the host to call `tool` of `server` and returns its result."""
    return send(server, tool, arguments)


async def _send_async(server: str, tool: str, arguments: dict[str, Any]) -> Any:
    return await send_async(server, tool, arguments)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    # Not `from . import`, which would look for the attribute first and end up here again.
    if name == "tools":
        return import_module(".tools", __name__)
    return getattr(import_module(".models", __name__), name)


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython at start-up (`--ext ipybox_kernel`)."""
    from .startup import prepare

    prepare(shell)
