"""What the gateways of this process want presented, by where they listen."""

from __future__ import annotations

import os

# Of a gateway in another process.
VARIABLE = "IPYBOX_GATEWAY_TOKEN"
known: dict[tuple[str, int], str] = {}


def address(host: str, port: int) -> tuple[str, int]:
    """The key for a host and port."""
    return ("localhost" if host in ("127.0.0.1", "::1") else host, port)


def token_of(host: str, port: int) -> str:
    """What a client presents there; empty: nothing."""
    return known.get(address(host, port)) or os.environ.get(VARIABLE, "")
