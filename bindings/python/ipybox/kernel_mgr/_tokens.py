"""What the gateways of this process want presented, by where they listen."""

from __future__ import annotations

import os

from .._options import address

# Of a gateway in another process.
VARIABLE = "IPYBOX_GATEWAY_TOKEN"
known: dict[tuple[str, int], str] = {}


def token_of(host: str, port: int) -> str:
    """What a client presents there; empty: nothing."""
    return known.get(address(host, port)) or os.environ.get(VARIABLE, "")
