"""Runs code actions: Python in a sandboxed IPython kernel that calls MCP tools under approval.

Example:
    ```python
    import asyncio
    from ipybox import CodeExecutor

    async def main():
        async with CodeExecutor(sandbox=True) as executor:
            print((await executor.execute("2 + 2")).text)

    asyncio.run(main())
    ```
"""

from __future__ import annotations

from ._conflict import refuse_beside_the_original

refuse_beside_the_original()

# ruff: noqa: E402
from ._approval import ApprovalRequest, Decision, Policy, PolicyCallable, ToolCall
from ._blocking import BlockingApprovalRequest, BlockingCodeExecutor, BlockingInputRequest
from ._errors import (
    CodeExecutionError,
    CodeExecutionTimeoutError,
    CodeRefusedError,
    HostDiedError,
    IpyboxError,
    KernelDiedError,
    OutputLimitError,
    ProgramNotFoundError,
)
from ._host import shutdown
from ._program import find_program
from ._results import (
    CallProgress,
    CodeCompletions,
    CodeExecutionChunk,
    CodeExecutionDisplay,
    CodeExecutionResult,
    CodeVariable,
    FileChange,
    InputRequest,
    Measures,
    ServerInfo,
    Span,
    ToolInfo,
    Violation,
)
from ._version import VERSION as __version__
from .apigen import generate_mcp_sources
from .audit import AuditVerdict, audit_key, show_audit, verify_audit
from .code_exec import CodeExecutor

__all__ = [
    "ApprovalRequest",
    "AuditVerdict",
    "BlockingApprovalRequest",
    "BlockingCodeExecutor",
    "BlockingInputRequest",
    "CallProgress",
    "CodeCompletions",
    "CodeExecutionChunk",
    "CodeExecutionDisplay",
    "CodeExecutionError",
    "CodeExecutionResult",
    "CodeExecutionTimeoutError",
    "CodeExecutor",
    "CodeRefusedError",
    "CodeVariable",
    "Decision",
    "FileChange",
    "HostDiedError",
    "InputRequest",
    "IpyboxError",
    "KernelDiedError",
    "Measures",
    "OutputLimitError",
    "Policy",
    "PolicyCallable",
    "ProgramNotFoundError",
    "ServerInfo",
    "Span",
    "ToolCall",
    "ToolInfo",
    "Violation",
    "__version__",
    "audit_key",
    "find_program",
    "generate_mcp_sources",
    "show_audit",
    "shutdown",
    "verify_audit",
]
