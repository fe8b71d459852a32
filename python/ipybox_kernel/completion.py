"""How a line that is being typed can go on, told to the host, which believes none of it.

IPython's completer asks objects for their attributes and imports modules to look into them. Here no code of the user's
runs: names are looked up where Python itself keeps them, and of modules that are not loaded the source is read.
"""
from __future__ import annotations

import ast
import builtins
import importlib.machinery
import keyword
import os
import re
import sys
from collections.abc import Iterable
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from .programs import quietly

MIME = "application/vnd.ipybox.answer+json"
_LIMIT = 500  # matches
_LARGEST = 1 << 20  # bytes of a module's source, names of a namespace
_LONGEST = 1024  # characters before the cursor: the expressions below take the square of their number
_NAME = r"[^\W\d]\w*"
_DOTTED = re.compile(rf"((?:{_NAME}\s*\.\s*)*)({_NAME})?\Z")
_IMPORT = re.compile(rf"\s*(?:import\s+(?:.*,\s*)?|from\s+)((?:{_NAME}\.)*)({_NAME})?\Z")
_FROM = re.compile(rf"\s*from\s+({_NAME}(?:\.{_NAME})*)\s+import\s+\(?(?:[^()]*,\s*)?({_NAME})?\Z")
_MAGIC = re.compile(r"\A\s*(%{0,2})(\w*)\Z")
_KEY = re.compile(rf"({_NAME}(?:\.{_NAME})*)\[(['\"])([^'\"\n\\]*)\Z")
_CALL = re.compile(rf"({_NAME}(?:\.{_NAME})*)\s*\Z")
_missing = object()

# What a class says of itself, without asking it.
_mro_of = type.__dict__["__mro__"].__get__
_names_of = type.__dict__["__dict__"].__get__


def _own_names(value: Any) -> dict[str, Any]:
    """What the object itself holds."""
    if _is_a(value, ModuleType):
        return ModuleType.__getattribute__(value, "__dict__")  # type: ignore[no-any-return]
    for kind in _mro_of(type(value)):
        slot = _names_of(kind).get("__dict__")
        if type(slot) is GetSetDescriptorType:
            try:
                found = slot.__get__(value)
            except Exception:
                return {}
            return found if type(found) is dict else {}
    return {}


def _is_a(value: Any, kind: type) -> bool:
    """isinstance() of what the object is, not of what it says."""
    return any(one is kind for one in _mro_of(type(value)))


def _classes_of(value: Any) -> Iterable[dict[str, Any]]:
    if _is_a(value, type):
        for kind in _mro_of(value):
            yield _names_of(kind)
    for kind in _mro_of(type(value)):
        if kind is not type:
            yield _names_of(kind)


def _member(value: Any, name: str) -> Any:
    """The attribute, if Python can read it without code of the user's; else _missing."""
    own = _own_names(value)
    if not _is_a(value, type) and name in own:
        return own[name]
    for names in _classes_of(value):
        if name not in names:
            continue
        found = names[name]
        if type(found) in (GetSetDescriptorType, MemberDescriptorType):  # in C
            try:
                return found.__get__(value)
            except Exception:
                return _missing
        if type(found) in (staticmethod, classmethod):
            return found.__func__
        if type(found) is property or any("__get__" in _names_of(kind) for kind in _mro_of(type(found)) if kind is not object):
            return found if type(found) is FunctionType else _missing
        return found
    return _missing


def _find(path: str, namespace: dict[str, Any]) -> Any:
    first, *rest = re.split(r"\s*\.\s*", path)
    value = namespace.get(first, _missing)
    if value is _missing:
        value = builtins.__dict__.get(first, _missing)
    for name in rest:
        if value is _missing:
            break
        value = _member(value, name)
    return value


def _attributes(value: Any) -> list[str]:
    names = dict.fromkeys(_plain(_own_names(value)))
    for more in _classes_of(value):
        names.update(dict.fromkeys(_plain(more)))
    if columns := _columns(value):
        names.update(dict.fromkeys(name for name in columns if name.isidentifier()))
    return list(names)


def _plain(names: Iterable[Any]) -> list[str]:
    for _ in range(3):
        try:
            return [name for name in names if type(name) is str]
        except RuntimeError:  # a thread changes them
            continue
    return []


def _columns(value: Any) -> list[str]:
    """Of a table of pandas, whose own code tells them."""
    pandas = sys.modules.get("pandas")
    frame = pandas.__dict__.get("DataFrame") if type(pandas) is ModuleType else None
    if frame is None or type(value) is not frame:
        return []
    return [name for name in value.columns.tolist()[:_LIMIT] if type(name) is str]


# ---- modules

def _places(package: str) -> list[str] | None:
    """Where a package's modules lie; None of what is no package. Nothing is imported."""
    loaded = sys.modules.get(package)
    if type(loaded) is ModuleType:
        paths = loaded.__dict__.get("__path__")
        if type(paths) is not list:  # but what a package without an __init__.py has, or anything
            paths = _own_names(paths).get("_path")
        return [one for one in paths if type(one) is str] if type(paths) is list else None
    found = _source_of(package)
    return list(found.submodule_search_locations) if found and found.submodule_search_locations is not None else None


def _source_of(module: str) -> importlib.machinery.ModuleSpec | None:
    package, _, _ = module.rpartition(".")
    paths = _places(package) if package else None
    if package and paths is None:
        return None
    try:
        return importlib.machinery.PathFinder.find_spec(module, paths)
    except Exception:
        return None


def _modules_in(package: str) -> list[str]:
    if package:
        paths = _places(package)
        return _listed(paths) if paths is not None else []
    return list(dict.fromkeys([*_listed(sys.path), *_listed([os.getcwd()]), *sys.builtin_module_names, *sys.stdlib_module_names]))


def _listed(paths: list[str]) -> list[str]:
    names: list[str] = []
    for path in paths:
        try:
            with os.scandir(path or ".") as entries:
                for entry in entries:
                    name, dot, _ = entry.name.partition(".")
                    if not name.isidentifier() or name == "__init__" or len(names) > _LARGEST:
                        continue
                    if (dot and entry.name.endswith((".py", ".so"))) or (not dot and name != "__pycache__" and entry.is_dir()):
                        names.append(name)
        except OSError:
            continue
    return names


def _names_in(module: str) -> list[str]:
    """What can be imported from it."""
    loaded = sys.modules.get(module)
    if type(loaded) is ModuleType:
        names = _plain(loaded.__dict__)
    else:
        names = []
        spec = _source_of(module)
        if spec and spec.origin and spec.origin.endswith(".py"):
            try:
                with open(spec.origin, "rb") as file, quietly():
                    names = _defined(ast.parse(file.read(_LARGEST)))
            except (OSError, SyntaxError, ValueError, RecursionError):
                pass
    return list(dict.fromkeys([*_modules_in(module), *names]))


def _defined(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [(alias.asname or alias.name).partition(".")[0] for alias in node.names if alias.name != "*"]
    return names


# ---- calls, keys, files

def _quote_in(line: str) -> int:
    """Where the string begins in which the line ends; -1: it ends in none. A comment counts as a string."""
    quote, at, begun = "", 0, -1
    while at < len(line):
        char = line[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote, begun = char, at
        elif char == "#":
            return at
        at += 1
    return begun if quote else -1


def _called(text: str) -> str | None:
    """The dotted name of the call whose arguments the text ends in."""
    depth = 0
    for at in range(len(text) - 1, max(len(text) - 4096, -1), -1):
        char = text[at]
        if char in ")]}":
            depth += 1
        elif char in "([{":
            if depth == 0:
                found = _CALL.search(text, 0, at) if char == "(" else None
                return found[1] if found else None
            depth -= 1
    return None


def _parameters(value: Any) -> list[str]:
    if _is_a(value, type):
        for names in map(_names_of, _mro_of(value)):
            for fields in (names.get("__pydantic_fields__"), names.get("__dataclass_fields__")):
                if type(fields) is dict:
                    return _plain(fields)
            if type(names.get("__init__")) is FunctionType:
                value = names["__init__"]
                break
    skipped = 0
    if type(value) is MethodType:
        value, skipped = value.__func__, 1
    if type(value) is not FunctionType:
        return []
    code = value.__code__
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    return [name for name in names[skipped:] if name not in ("self", "cls")]


def _files(typed: str) -> list[str]:
    directory, _, start = typed.rpartition("/")
    if typed.startswith("/") and not directory:
        directory = "/"
    found: list[str] = []
    try:
        with os.scandir(os.path.expanduser(directory) or ".") as entries:
            for entry in entries:
                if entry.name.startswith(start) and (start or not entry.name.startswith(".")):
                    found.append(typed[: len(typed) - len(start)] + entry.name + ("/" if entry.is_dir() else ""))
                if len(found) == _LIMIT:
                    break
    except OSError:
        pass
    return found


# ---- all together

def complete(code: str, namespace: dict[str, Any], magics: dict[str, Iterable[str]]) -> tuple[str, list[str]]:
    """The end of the text that can go on, and what can stand in its place."""
    line = code[code.rfind("\n") + 1 :]
    quote = _quote_in(line)
    if quote >= 0 and line[quote] == "#":
        return "", []
    typed_file = line[quote + 1 :]
    line = line[-_LONGEST:]
    if quote >= 0:
        if key := _KEY.search(line):
            return key[3], _fitting(_keys(_find(key[1], namespace)), key[3])
        return typed_file, sorted(_files(typed_file))
    if found := _FROM.match(line):
        return found[2] or "", _fitting(_names_in(found[1]), found[2] or "")
    if found := _IMPORT.match(line):
        path, typed = found[1], found[2] or ""
        return path + typed, [path + name for name in _fitting(_modules_in(path[:-1]), typed)]
    if line == code and (found := _MAGIC.match(line)) and found[1]:
        signs, typed = found[1], found[2]
        names = [*magics["cell"], *(magics["line"] if signs == "%" else ())]
        return signs + typed, [signs + name for name in _fitting(names, typed)]
    dotted = _DOTTED.search(line)
    if dotted is None:
        return "", []
    path, typed = dotted[1].rstrip(), dotted[2] or ""
    if path:
        value = _find(path.rstrip(". \t"), namespace)
        return typed, _fitting(_attributes(value), typed) if value is not _missing else []
    before = code[: len(code) - len(typed)]
    if before.rstrip().endswith(tuple(")]}'\"0123456789.")):
        return "", []
    names = [*_plain(namespace), *keyword.kwlist, *_plain(builtins.__dict__)]
    arguments: list[str] = []
    if called := _called(before):
        arguments = [name + "=" for name in _parameters(_find(called, namespace))]
    if not typed:
        return "", _fitting(arguments, "")
    return typed, [*_fitting(arguments, typed), *_fitting(names, typed)]


def _keys(value: Any) -> list[str]:
    return _plain(value) if type(value) is dict else _columns(value)


def _fitting(names: Iterable[str], typed: str) -> list[str]:
    """Those that begin so, in order; what begins with "_" only when that was typed."""
    found = {name for name in names if name.startswith(typed) and (typed or not name.startswith("_"))}
    public = sorted(name for name in found if not name.startswith("_"))
    return [*public, *sorted(name for name in found if name.startswith("_"))][:_LIMIT]


def tell(code: str) -> None:
    """Called by the host, silently, between two cells."""
    from IPython import get_ipython

    shell = get_ipython()
    typed, matches = complete(code, shell.user_ns, shell.magics_manager.magics)
    shell.display_pub.publish({MIME: {"typed": typed, "matches": matches}})
