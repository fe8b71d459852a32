"""Reads audit logs: what was executed and called, who allowed it, what came of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Union

from ._host import connection
from ._options import absolute

__all__ = ["AuditVerdict", "audit_key", "show_audit", "verify_audit"]

PathLike = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class AuditVerdict:
    """Whether a log is what ipybox wrote, and all of it.

    Attributes:
        outcome: `unknown`: what is there is right, but it is not proven to be all.
        what: One sentence with the place.
        notes: What else was noticed.
        first: Number of the first record that was looked at.
        last: Of the last one.
    """

    outcome: Literal["whole", "unknown", "broken"]
    what: str
    notes: list[str]
    first: int
    last: int


async def show_audit(file: PathLike, session: str = "*") -> AsyncIterator[dict[str, Any]]:
    """Yields the records of an audit log in their order, as docs/approval.md describes them.

    Args:
        file: The log.
        session: Only sessions of this name; `*` and `?` as in file names.
    """
    link = connection()
    try:
        begin: int | None = 0
        while begin is not None:
            answer = await link.request(
                "audit/show", {"file": absolute(file), "from": begin, "session": session}
            )
            for record in answer["records"]:
                yield record
            begin = answer["next"]
    finally:
        link.release()


async def verify_audit(
    files: Iterable[PathLike], keys: Iterable[PathLike] = (), head: PathLike | None = None
) -> AuditVerdict:
    """Checks an audit log.

    Args:
        files: The log; of one that was rotated all files, the oldest first.
        keys: Files with public keys, beside this user's own.
        head: A file whose last line is a head of the log, kept elsewhere.
    """
    link = connection()
    try:
        request: dict[str, Any] = {
            "files": [absolute(file) for file in files],
            "keys": [absolute(key) for key in keys],
        }
        if head is not None:
            request["head"] = absolute(head)
        answer = await link.request("audit/verify", request)
    finally:
        link.release()
    return AuditVerdict(
        answer["outcome"], answer["what"], list(answer["notes"]), answer["first"], answer["last"]
    )


async def audit_key() -> str:
    """The public half of the key that signs this user's logs, in PEM: for who verifies them."""
    link = connection()
    try:
        return str((await link.request("audit/key", {}))["pem"])
    finally:
        link.release()
