"""What `async with` begins and ends."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

T = TypeVar("T", bound="Lifecycle")


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
