"""What goes wrong, as exceptions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._results import CodeExecutionResult


class IpyboxError(Exception):
    """A request that ipybox refused or could not carry out.

    Attributes:
        code: What is wrong in one word, such as `bad_argument`, `sandbox_refused` or
            `kernel_start_failed`.
    """

    def __init__(self, message: str, code: str = "error") -> None:
        super().__init__(message)
        self.code = code


class ProgramNotFoundError(IpyboxError):
    """The program `ipybox` is nowhere where this package looks for it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "missing_dependency")


class HostDiedError(IpyboxError):
    """The process that holds kernels and MCP servers has ended; `start()` begins anew."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "host_died")


class ExecutionError(Exception):
    """Code that a `KernelClient` executed raised an exception."""


class CodeExecutionError(Exception):
    """Code failed; the message has Python's traceback, or says what happened and what to do.

    Attributes:
        result: What the execution produced until then; None where there is none.
    """

    def __init__(self, message: str, result: CodeExecutionResult | None = None) -> None:
        super().__init__(message)
        self.result = result


class KernelDiedError(CodeExecutionError):
    """The kernel ended while it executed the code; `reset()` starts a new one."""


class OutputLimitError(CodeExecutionError):
    """The code printed more than `max_output`."""


class CodeRefusedError(CodeExecutionError):
    """The check found faults, and nothing was executed."""


class CodeExecutionTimeoutError(asyncio.TimeoutError):
    """Code ran longer than its timeout; it was interrupted, and the kernel stays usable.

    Attributes:
        result: What the execution produced until then.
    """

    def __init__(self, message: str, result: CodeExecutionResult | None = None) -> None:
        super().__init__(message)
        self.result = result


class ToolRunnerError(Exception):
    """A tool call failed."""


class ApprovalRejectedError(ToolRunnerError):
    """A tool call was rejected."""


class ApprovalTimeoutError(ToolRunnerError):
    """Nobody answered the approval request of a tool call in time."""
