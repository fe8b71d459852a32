"""One execution: what comes of it, and who is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from ._approval import ApprovalRequest, Decision, PolicyCallable, call_from, judge
from ._errors import (
    CodeExecutionError,
    CodeExecutionTimeoutError,
    CodeRefusedError,
    HostDiedError,
    IpyboxError,
    KernelDiedError,
    OutputLimitError,
)
from ._host import Connection, call_soon
from ._results import (
    CodeExecutionChunk,
    CodeExecutionDisplay,
    CodeExecutionResult,
    InputRequest,
    result_from,
)

JsonObject = dict[str, Any]
# Bytes of output that wait here; the rest waits in the kernel.
WINDOW = 4 << 20
# Bytes that are read before the host is told.
READ_AT_ONCE = WINDOW // 16
logger = logging.getLogger("ipybox")
Event = Union[ApprovalRequest, CodeExecutionChunk, CodeExecutionDisplay, InputRequest]


@dataclass
class Asking:
    """Who answers the questions of an execution."""

    policy: PolicyCallable | None = None
    allow_rest: bool = False  # what the policy leaves open is allowed, as execute() does


class Questions:
    """The approval requests of an execution or a tool server, by the names that the host gave them.
    All of it runs on one event loop."""

    def __init__(
        self, link: Connection, asking: Asking, show: Callable[[ApprovalRequest], None]
    ) -> None:
        """show: gets the requests that the policy leaves open."""
        self._link = link
        self._asking = asking
        self._show = show
        self._open: dict[str, ApprovalRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def requested(self, params: JsonObject) -> None:
        """Has the policy judge a call, or shows it."""
        request = self._request(params)
        if self._asking.policy is None and not self._asking.allow_rest:
            self._show(request)
            return
        task = asyncio.get_running_loop().create_task(self._judge(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def settled(self, params: JsonObject) -> None:
        """A question is over, whoever settled it."""
        request = self._open.pop(params["approval"], None)
        if request is not None:
            request.settle(params.get("outcome") == "allowed")

    def close(self) -> None:
        """Nothing is asked any more."""
        for task in list(self._tasks):
            task.cancel()
        for request in self._open.values():
            request.settle(False)
        self._open.clear()

    def _request(self, params: JsonObject) -> ApprovalRequest:
        name: str = params["approval"]
        call = call_from(params["call"], params["text"])

        async def decide(decision: Decision) -> bool:
            answer: JsonObject = {
                "approval": name,
                "verdict": "allow" if decision.allow else "deny",
            }
            if decision.reason:
                answer["reason"] = decision.reason
            if decision.by:
                answer["by"] = decision.by
            if decision.allow and decision.arguments is not None:
                answer["arguments"] = decision.arguments
            return bool((await self._link.request("approval/answer", answer))["accepted"])

        async def respond(allow: bool) -> bool:
            return await decide(Decision(allow))

        request = ApprovalRequest(
            call.server, call.tool, call.arguments, respond, call=call, decide=decide
        )
        self._open[name] = request
        return request

    async def _judge(self, request: ApprovalRequest) -> None:
        said: Decision | None = None
        if self._asking.policy is not None:
            said = await judge(self._asking.policy, request.call)
        if said is None and self._asking.allow_rest:
            said = Decision(True)
        if said is None:
            self._show(request)
            return
        try:
            await request.answer(said)
        except HostDiedError:
            pass  # nobody is there to get it
        except (IpyboxError, ValueError):
            logger.exception("the approval policy gave an answer that cannot be sent")
            unfit = Decision(False, "the approval policy gave an answer that cannot be sent")
            with contextlib.suppress(IpyboxError):
                await request.answer(unfit)


class Run:
    """An execution on its way. Made, read and closed on one event loop."""

    def __init__(
        self,
        link: Connection,
        method: str,
        params: JsonObject,
        asking: Asking,
        images_dir: Path | None,
        timeout: float | None,
    ) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._images_dir = images_dir
        self._timeout = timeout
        self._heard: deque[tuple[str, JsonObject]] = deque()
        self._told = False  # the loop is to look at what was heard
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self.asking = asking
        self.is_cancelled = False
        self._questions = Questions(link, asking, self._show)
        self._read = 0  # bytes, since the host was told
        self._over = asyncio.Event()
        self._result: JsonObject | None = None
        self._failure: Exception | None = None
        self._number = link.send(
            method, {**params, "window": WINDOW}, self._answered, self._notified
        )

    async def next(self) -> Event | CodeExecutionResult | None:
        """The next event; the result, or None if it was cancelled, comes last.

        Raises:
            CodeExecutionError: The code failed.
            asyncio.TimeoutError: It took too long.
        """
        while True:
            if self._events:
                event = self._events.popleft()
                if isinstance(event, CodeExecutionChunk):
                    self._note_read(_bytes(event.text))
                elif isinstance(event, CodeExecutionDisplay):
                    # Not less than the host counts, whose estimate of numbers is generous.
                    self._note_read(4 * len(json.dumps([event.data, event.metadata])) + 1000)
                return event
            if self._over.is_set():
                return self._end()
            self._changed.clear()
            await self._changed.wait()

    def _note_read(self, size: int) -> None:
        """The host sends no more than WINDOW bytes that were not read."""
        self._read += size
        if self._read >= READ_AT_ONCE and not self._over.is_set():
            self._link.notify("execution/credit", {"request": self._number, "bytes": self._read})
            self._read = 0

    @property
    def is_over(self) -> bool:
        """Whether the kernel is free again."""
        return self._over.is_set()

    def cancel(self) -> None:
        """Interrupts the code."""
        self.is_cancelled = True
        if not self._over.is_set():
            self._link.notify("$/cancel", {"id": self._number})

    async def ended(self) -> None:
        """Waits until the kernel is free again."""
        await self._over.wait()

    async def close(self) -> None:
        """Interrupts what goes on, and waits until it has ended."""
        if self._over.is_set():
            return
        self.cancel()
        await self._over.wait()

    # On the reading thread.

    def _answered(self, result: Any, error: Exception | None) -> None:
        self._heard.append(("", {"result": result, "error": error}))
        self._tell()

    def _notified(self, method: str, params: JsonObject) -> None:
        self._heard.append((method, params))
        self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            call_soon(self._loop, self._look)

    # On the loop.

    def _look(self) -> None:
        self._told = False
        while self._heard:
            method, params = self._heard.popleft()
            self._take(method, params)
        self._changed.set()

    def _take(self, method: str, params: JsonObject) -> None:
        if method == "execution/output":
            self._events.append(CodeExecutionChunk(params["text"], params["stderr"]))
        elif method == "execution/display":
            self._events.append(
                CodeExecutionDisplay(
                    params["data"],
                    params["metadata"],
                    params["display_id"] or None,
                    params["is_result"],
                    params["is_update"],
                )
            )
        elif method == "execution/input":
            self._events.append(self._input(params))
        elif method == "approval/requested":
            self._questions.requested(params)
        elif method == "approval/settled":
            self._questions.settled(params)
        elif method == "":
            self._result, self._failure = params["result"], params["error"]
            self._questions.close()
            self._over.set()

    def _show(self, request: ApprovalRequest) -> None:
        self._events.append(request)
        self._changed.set()

    def _input(self, params: JsonObject) -> InputRequest:
        async def respond(text: str | None) -> bool:
            answer = await self._link.request(
                "input/answer", {"input": params["input"], "text": text}
            )
            return bool(answer["accepted"])

        return InputRequest(params["prompt"], params["text"], params["password"], respond)

    def _end(self) -> CodeExecutionResult | None:
        if self._failure is not None:
            raise self._failure
        assert self._result is not None
        result = result_from(self._result, self._images_dir)
        if result.status == "ok":
            return result
        if result.status == "cancelled":
            return None
        if result.status == "timed_out":
            raise CodeExecutionTimeoutError(
                f"the code was interrupted after its timeout of {self._timeout or 0:.2f}s "
                f"(time in which somebody was asked does not count): {result.error}",
                result,
            )
        kind = {
            "kernel_lost": KernelDiedError,
            "output_limit": OutputLimitError,
            "refused": CodeRefusedError,
        }.get(result.status, CodeExecutionError)
        raise kind(result.error, result)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
