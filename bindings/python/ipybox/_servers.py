"""MCP servers whose API this package generated: programs name them by importing that API.

Code in a kernel can only name a registered server. Programs written for the original register
none: their generated packages say how to start it. So generate_mcp_sources() keeps that for them,
in this process and, for programs that generate once and run later, in a file beside ipybox's
settings, where code in a sandbox cannot write.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from ._errors import IpyboxError

JsonObject = dict[str, Any]
T = TypeVar("T")


class Learner(Protocol):
    """Somebody who is told of servers that become known."""

    def learn(self, root: Path, name: str, params: JsonObject) -> None:
        """The package of a server was generated in `root`."""


_lock = threading.Lock()
_known: dict[Path, dict[str, JsonObject]] = {}  # of this process, by the directory of packages
_learners: weakref.WeakSet[Learner] = weakref.WeakSet()


def remember(root: Path, name: str, params: Mapping[str, Any]) -> None:
    """Keeps how the server of a generated package starts, and tells those who want to know."""
    root = root.resolve()
    with _lock:
        _known.setdefault(root, {})[name] = dict(params)
        _write(root, name, dict(params))
        learners = list(_learners)
    for learner in learners:
        learner.learn(root, name, dict(params))


def tell(learner: Learner) -> None:
    """It is told of what is remembered from now on, as long as somebody else holds it."""
    with _lock:
        _learners.add(learner)


def is_for(root: Path, places: Iterable[Path]) -> bool:
    """Whether packages in `root` are in one of these places, or below."""
    return any(root == place or place in root.parents for place in places)


def servers_for(places: Iterable[Path], anywhere: bool) -> dict[str, JsonObject]:
    """The servers whose packages are in these places or below.

    Args:
        places: From where code imports packages.
        anywhere: Those of this process wherever they are: nothing confines the code.
    """
    found: dict[str, JsonObject] = {}
    wanted = [place.resolve() for place in places]
    for root, servers in _read():
        if is_for(root, wanted):
            for name, params in servers.items():
                if (root / name).is_dir():
                    found[name] = params
    with _lock:
        for root, servers in _known.items():
            if anywhere or is_for(root, wanted):
                found.update(servers)
    return found


def start_directory(params: Mapping[str, Any], writable: Path | None) -> JsonObject:
    """The parameters of a server, which starts where the application is unless they say where, or
    code may write there. writable: what code may write; None: nothing confines it."""
    given = dict(params)
    if "command" not in given or "cwd" in given:
        return given
    here = Path.cwd()
    if writable is None:
        given["cwd"] = str(here)
    # Root starts servers beside confined code as a user of their own, who may not enter there.
    elif os.geteuid() != 0 and here != writable and writable not in here.parents:
        given["cwd"] = str(here)
    return given


_environment_is_own = True  # no confined code of this process could write where it runs from


def note_confined(workspace: Path, protects: bool) -> None:
    """Code runs in a sandbox. protects: it cannot write `.venv` of its workspace."""
    global _environment_is_own
    prefix = Path(sys.prefix)
    if protects and prefix == workspace / ".venv":
        return
    if prefix == workspace or workspace in prefix.parents or prefix in workspace.parents:
        _environment_is_own = False


def starts(params: Mapping[str, Any]) -> list[JsonObject]:
    """The ways to start a server where no kernel is, in the order in which they are tried: each
    further one if the one before is refused (`bad_config`), because code could write there."""
    given = dict(params)
    if "command" not in given or "cwd" in given:
        return [given]
    found = [{**given, "cwd": str(Path.cwd())}, given]
    program = shutil.which(str(given["command"]))
    own = program is not None and Path(sys.prefix) in Path(os.path.abspath(program)).parents
    if program is not None and own and _environment_is_own:
        # This process runs from there: who wrote there before it started has its rights already.
        found.append(
            {**given, "command": os.path.abspath(program), "cwd": sys.prefix, "trust_cwd": True}
        )
    return found


async def start_in_one_way(
    params: Mapping[str, Any], attempt: Callable[[JsonObject], Awaitable[T]]
) -> T:
    """What `attempt` returns for the first of these ways that is not refused."""
    *others, last = starts(params)
    for way in others:
        try:
            return await attempt(way)
        except IpyboxError as error:
            if error.code != "bad_config":
                raise
    return await attempt(last)


def _directory() -> Path:
    settings = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(settings) / "ipybox" / "generated"


def _file(root: Path) -> Path:
    return _directory() / (hashlib.sha256(os.fsencode(root)).hexdigest()[:16] + ".json")


def _write(root: Path, name: str, params: JsonObject) -> None:
    """What cannot be kept is still known to this process."""
    try:
        file = _file(root)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _, servers = _parsed(file) or (root, {})
        servers[name] = params
        fresh = file.with_suffix(f".{os.getpid()}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            json.dump({"root": str(root), "servers": servers}, stream)
        os.replace(fresh, file)
    except (OSError, RuntimeError, ValueError):
        pass


def _read() -> list[tuple[Path, dict[str, JsonObject]]]:
    try:
        files = sorted(_directory().glob("*.json"), key=lambda file: file.stat().st_mtime)[-1000:]
    except (OSError, RuntimeError):
        return []
    return [parsed for file in files if (parsed := _parsed(file)) is not None]


def _parsed(file: Path) -> tuple[Path, dict[str, JsonObject]] | None:
    """What is there, if this user wrote it."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
        with open(descriptor, encoding="utf-8") as stream:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
            data: Any = json.load(stream)
        servers = cast("dict[str, Any]", data["servers"])
        return Path(data["root"]), {name: dict(params) for name, params in servers.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
