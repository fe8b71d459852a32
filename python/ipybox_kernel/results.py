"""Tool results that are not text, as Python objects."""
from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class _Media:
    data: bytes = field(repr=False)
    mime_type: str

    def __bytes__(self) -> bytes:
        return self.data

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.mime_type}, {len(self.data)} bytes)"

    def save(self, path: Any) -> None:
        """Writes the bytes to a file."""
        with open(path, "wb") as file:
            file.write(self.data)


@dataclass(frozen=True, repr=False)
class Image(_Media):
    """An image; shown when it is the last value of a cell."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if self.mime_type == "image/svg+xml":
            return {self.mime_type: self.data.decode("utf-8", "replace"), "text/plain": repr(self)}
        return {self.mime_type: base64.b64encode(self.data).decode("ascii"), "text/plain": repr(self)}


@dataclass(frozen=True, repr=False)
class Audio(_Media):
    """A piece of audio."""


@dataclass(frozen=True, repr=False)
class Blob(_Media):
    """An embedded resource of bytes."""

    uri: str = ""


@dataclass(frozen=True)
class Resource:
    """An embedded resource of text."""

    uri: str
    text: str
    mime_type: str | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ResourceLink:
    """A resource that the server names but did not send."""

    uri: str
    name: str = ""
    description: str | None = None
    mime_type: str | None = None


def _bytes(encoded: Any) -> bytes:
    return base64.b64decode(encoded if isinstance(encoded, str) else "")


def _block(block: dict[str, Any]) -> Any:
    kind, mime = block.get("type"), block.get("mimeType")
    if kind == "text":
        return block.get("text", "")
    if kind == "image":
        return Image(_bytes(block.get("data")), mime or "application/octet-stream")
    if kind == "audio":
        return Audio(_bytes(block.get("data")), mime or "application/octet-stream")
    if kind == "resource_link":
        return ResourceLink(block.get("uri", ""), block.get("name", ""), block.get("description"), mime)
    if kind == "resource" and isinstance(block.get("resource"), dict):
        inner = block["resource"]
        if "blob" in inner:
            return Blob(_bytes(inner["blob"]), inner.get("mimeType") or "application/octet-stream", inner.get("uri", ""))
        return Resource(inner.get("uri", ""), inner.get("text", ""), inner.get("mimeType"))
    return block


def from_content(content: list[dict[str, Any]]) -> Any:
    """The blocks of a tool result: one value if there is one, else a list in the given order."""
    values = [_block(block) for block in content]
    return values[0] if len(values) == 1 else values
