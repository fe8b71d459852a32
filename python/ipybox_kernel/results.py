"""Tool results that are not text, as Python objects."""
from __future__ import annotations

import base64
import binascii
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

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """How it shows as the last value of a cell: images and audio as such, the rest by name."""
        bundle: dict[str, Any] = {"text/plain": repr(self)}
        if self.mime_type == "image/svg+xml":
            bundle[self.mime_type] = self.data.decode("utf-8", "replace")
        elif self.mime_type.startswith(("image/", "audio/")):
            bundle[self.mime_type] = base64.b64encode(self.data).decode("ascii")
        return bundle

    def save(self, path: Any) -> None:
        """Writes the bytes to a file."""
        with open(path, "wb") as file:
            file.write(self.data)


@dataclass(frozen=True, repr=False)
class Image(_Media):
    """An image."""


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
    title: str | None = None
    size: int | None = None


class Parts(list[Any]):
    """A result of several parts, in the server's order: text as str, the rest as objects."""

    structured: Any = None
    """The structured content that came along, if any."""

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for part in self:
            print(part) if isinstance(part, str) else display(part)


def _block(block: Any) -> Any:
    """A content block as an object; one that is not what it says stays as it came."""
    try:
        return _typed(block)
    except (binascii.Error, KeyError, TypeError, ValueError, AttributeError):
        return block


def _bytes(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:  # some servers break it into lines
        return base64.b64decode("".join(encoded.split()), validate=True)


def _mime(block: dict[str, Any]) -> str:
    mime = block.get("mimeType")
    return mime if isinstance(mime, str) and mime else "application/octet-stream"


def _typed(block: dict[str, Any]) -> Any:
    kind = block["type"]
    if kind == "text":
        return block["text"]
    if kind == "image":
        return Image(_bytes(block["data"]), _mime(block))
    if kind == "audio":
        return Audio(_bytes(block["data"]), _mime(block))
    if kind == "resource_link":
        return ResourceLink(block["uri"], block.get("name", ""), block.get("description"),
                            block.get("mimeType"), block.get("title"), block.get("size"))
    if kind == "resource":
        inner = block["resource"]
        if "blob" in inner:
            return Blob(_bytes(inner["blob"]), _mime(inner), inner.get("uri", ""))
        return Resource(inner.get("uri", ""), inner["text"], inner.get("mimeType"))
    return block


def parts_of(content: list[Any], structured: Any = None) -> Parts:
    """The blocks of a tool result, in the given order."""
    parts = Parts(map(_block, content))
    parts.structured = structured
    return parts


def from_content(content: list[Any], structured: Any = None) -> Any:
    """The blocks of a tool result: one value if there is one and nothing besides, else all."""
    parts = parts_of(content, structured)
    return parts[0] if len(parts) == 1 and structured is None else parts


def media(result: Any) -> list[Any]:
    """What is not text in a tool's result: images, audio, blobs, resources and links, in order."""
    if not isinstance(result, (list, tuple)):
        beside = getattr(result, "__pydantic_private__", None) or {}
        result = beside.get("_media", [result])
    return [part for part in result if isinstance(part, (_Media, Resource, ResourceLink))]
