"""What `async with` begins and ends."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T", bound="Lifecycle")
P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(
    problem: str,
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Of a method that raises RuntimeError(problem) while it runs already for the same object."""

    def decorate(method: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        running: weakref.WeakSet[Any] = weakref.WeakSet()

        @functools.wraps(method)
        async def once(*args: P.args, **kwargs: P.kwargs) -> R:
            if args[0] in running:
                raise RuntimeError(problem)
            running.add(args[0])
            try:
                return await method(*args, **kwargs)
            finally:
                running.discard(args[0])

        return once

    return decorate


class Lifecycle:
    """An object that is used in `async with`: each kind says how it begins and ends."""

    async def _enter(self) -> None:
        raise NotImplementedError

    async def _exit(self) -> None:
        raise NotImplementedError

    async def __aenter__(self: T) -> T:
        await self._enter()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._exit()
