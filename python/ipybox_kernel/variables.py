"""What the user's variables are, told to the host, which believes none of it.

No code of the user's runs for it: a value is shown if its type is exactly one of Python's own, and
of all others only the class is named.
"""
from __future__ import annotations

from itertools import islice
from types import ModuleType
from typing import Any

MIME = "application/vnd.ipybox.answer+json"
_LIMIT = 1000  # variables
_LENGTH = 200  # characters of a name, a type or a value
_ITEMS = 8  # of a container
_DEPTH = 3
_SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset, range)
_BRACKETS = ((list, "[]"), (tuple, "()"), (dict, "{}"), (set, "{}"), (frozenset, "{}"))
_HEAP_TYPE, _IMMUTABLE = 1 << 9, 1 << 8  # what a `class` statement makes has the first and not the second

# A class may have its own idea of these names; these are the interpreter's.
_module_of = type.__dict__["__module__"].__get__
_name_of = type.__dict__["__qualname__"].__get__
_flags_of = type.__dict__["__flags__"].__get__


def class_name(kind: type) -> str:
    """`module.Class`, of Python's own types `Class`."""
    try:
        module, name = _module_of(kind), _name_of(kind)
    except AttributeError:  # somebody removed it
        return "?"
    if type(name) is not str:
        return "?"
    if type(module) is str and module != "builtins":
        name = f"{module}.{name}"
    return _short(name)


def short(value: Any, depth: int = _DEPTH) -> str:
    """Like repr(), but bounded, and calling nothing that is not Python's own."""
    kind = type(value)
    if value is None or value is Ellipsis or _is_one_of(kind, (bool, float, complex, range)):
        return _short(repr(value))
    if kind is int:
        bits = value.bit_length()
        return repr(value) if bits <= 256 else f"<int of {bits} bits>"
    if kind is str or kind is bytes or kind is bytearray:
        shown = repr(value[:_LENGTH])
        return _short(shown + "…" if len(value) > _LENGTH else shown)
    brackets = [pair for known, pair in _BRACKETS if known is kind]
    if not brackets:
        return f"<class {class_name(value)}>" if kind is type else f"<{class_name(kind)}>"
    left, right = brackets[0]
    count = len(value)
    if depth == 0 and count:
        return f"{left}…{right}"
    parts: list[str] = []
    try:
        if kind is dict:
            for key, item in islice(value.items(), _ITEMS):
                parts.append(f"{short(key, depth - 1)}: {short(item, depth - 1)}")
        else:
            for item in islice(value, _ITEMS):
                parts.append(short(item, depth - 1))
    except RuntimeError:  # a thread changes it
        parts.append("…")
    else:
        if count > _ITEMS:
            parts.append("…")
    inner = ", ".join(parts)
    if kind is tuple and count == 1:
        inner += ","
    if kind is frozenset or (kind is set and not count):
        return _short(f"{kind.__name__}({left + inner + right if count else ''})")
    return _short(left + inner + right)


def size_of(value: Any) -> int | None:
    """How many items or characters; of arrays in C the bytes; None of what cannot tell by itself."""
    kind = type(value)
    if _is_one_of(kind, _SIZED):
        try:
            return len(value)
        except OverflowError:  # a range
            return None
    if _flags_of(kind) & (_HEAP_TYPE | _IMMUTABLE) == _HEAP_TYPE:
        return None
    try:
        with memoryview(value) as view:
            return view.nbytes
    except (TypeError, ValueError, BufferError, NotImplementedError):
        return None


def variables(namespace: dict[str, Any], hidden: dict[str, Any]) -> list[list[Any]]:
    """Name, type, size and value of what the user made, in the order of making."""
    found: list[list[Any]] = []
    missing = object()
    for name, value in list(namespace.items()):
        if type(name) is not str or name.startswith("_"):
            continue
        if hidden.get(name, missing) is value:
            continue
        if len(found) == _LIMIT:
            break
        shown = "<module>" if type(value) is ModuleType else short(value)
        found.append([_short(name), class_name(type(value)), size_of(value), shown])
    return found


def tell() -> None:
    """Called by the host, silently, between two cells."""
    from IPython import get_ipython

    shell = get_ipython()
    shell.display_pub.publish({MIME: {"variables": variables(shell.user_ns, shell.user_ns_hidden)}})


def _is_one_of(kind: type, kinds: tuple[type, ...]) -> bool:
    # Not `in`, which asks the class whether it is equal.
    return any(kind is one for one in kinds)


def _short(text: str) -> str:
    return text if len(text) <= _LENGTH else text[: _LENGTH - 1] + "…"
