"""Which tools there are and how they are called, asked of the host: no call, so nobody has to approve it.

    from ipybox_kernel import tools
    tools.search("make a ticket", "open an issue")   # the names of tools that fit, best first
    tools.describe("github.create_issue")            # its parameters, with types and meaning
    tools.stubs("github")                            # all tools of a server, one line each
"""
from __future__ import annotations

from .client import send

__all__ = ["search", "describe", "stubs"]


class Text(str):
    """Text that a cell shows as it is when it is the value of its last expression."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def search(*wordings: str | list[str], limit: int = 5) -> Text:
    """The tools that fit, best first, as `server.tool(required, optional?) – what it does`.

    Say in plain words what the tool should do. Several wordings find more than one: a tool counts by the
    best of them. limit: 1 to 50.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 50:
        raise ValueError("limit must be an integer from 1 to 50")
    query = "\n".join(" ".join(wording.split()) for wording in _texts(wordings, 'search("what the tool should do")'))
    return Text(send("ipybox", "search_tools", {"query": query, "limit": limit}).rstrip())


def describe(*names: str | list[str]) -> Text:
    """How tools are called: the types and meaning of their parameters, the keys of the result.

    names: `server.tool`, as search() writes it or as it is imported. An unknown name is an error that
    names the nearest.
    """
    texts = _texts(names, 'describe("server.tool")')
    return Text("\n\n".join(send("ipybox", "describe_tool", {"name": name}).rstrip() for name in texts))


def stubs(server: str) -> Text:
    """All tools of a server, one line each: parameters with types, keys of the result, what it does."""
    if not isinstance(server, str):
        # A package was passed: from mcptools import github
        server = getattr(server, "__name__", "")
    if not server:
        raise TypeError('write stubs("server")')
    return Text(send("ipybox", "list_stubs", {"server": server}).rstrip())


def _texts(given: tuple[object, ...], usage: str) -> list[str]:
    texts: list[object] = []
    for one in given:
        texts += one if isinstance(one, (list, tuple)) else [one]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise TypeError(f"write tools.{usage}, with one text or several")
    return texts  # type: ignore[return-value]
