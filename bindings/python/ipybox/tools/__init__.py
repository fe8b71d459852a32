"""Tool calls without a kernel: what the original's users know from `mcpygen`."""

from __future__ import annotations

from .._approval import ApprovalRequest
from .._errors import ApprovalRejectedError, ApprovalTimeoutError, ToolRunnerError
from ..apigen import generate_mcp_sources
from .approval import ApprovalCallback, ApprovalClient, ApprovalRequestor
from .mcp_client import MCPClient
from .runner import ToolRunner, reset
from .server import ToolServer

__all__ = [
    "ApprovalCallback",
    "ApprovalClient",
    "ApprovalRejectedError",
    "ApprovalRequest",
    "ApprovalRequestor",
    "ApprovalTimeoutError",
    "MCPClient",
    "ToolRunner",
    "ToolRunnerError",
    "ToolServer",
    "generate_mcp_sources",
    "reset",
]
