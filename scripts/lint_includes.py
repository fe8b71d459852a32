#!/usr/bin/env python3
"""Checks who includes whom, and the namespaces: the rooms of docs/architecture.md.

Usage: lint_includes.py [--graph]
  --graph  prints the rooms and what each includes, as docs/architecture.md has it; checks nothing
"""
import re
import sys
from functools import cache
from pathlib import Path

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)
ROOT = Path("include/ipybox")
PAGE = Path("docs/architecture.md")

# Lowest first. A file includes its own room and those of lower lines, never one beside it. A room is
# a folder, or one of these groups of files that lie at the top.
ORDER = [
    ["basis"],
    ["detail"],
    ["async"],
    ["doors"],
    ["config", "plugin"],
    ["net"],
    ["oauth", "sandbox_kit", "jupyter"],
    ["registry", "mcp"],
    ["approval"],
    ["tools"],
    ["executor"],
    ["agent"],
    ["ipybox"],
]
AT_THE_TOP = {
    "basis": {"compilation", "decision", "error", "log", "memory_budget", "span", "version"},
    "doors": {"sandbox", "kernel_backend", "remote_kernel", "mcp_transport", "approval_policy"},
}
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
HIGHEST_OF_PLUGINS = RANK["approval"]

# Machines whose tests need no Asio, although they lie in no folder detail/.
WITHOUT_ASIO = {"jupyter/link", "jupyter/websocket", "jupyter/wire"}

# The only headers that may include these parts of libraries.
HOLDERS = {
    "boost/dll/alias.hpp": {"plugin", "registry"},
    "boost/dll": {"registry"},
    "boost/process": set(),
    "boost/beast": {"approval/channel", "net/http_client", "net/http_listener"},
}
# Folders of a room that only the room itself may include.
INSIDE = ("detail", "impl")

NAMESPACE = re.compile(r"^[ \t]*(?:inline[ \t]+)?namespace[ \t]+([\w:]+)[ \t]*\{", re.M)


def own(included: str) -> str | None:
    """`ipybox/mcp/client.hpp` → `mcp/client`; None for what is not a header of the core."""
    found = re.fullmatch(r"ipybox/([\w/]+)\.hpp|ipybox/([\w/]+\.ipp)", included)
    return found and (found[1] or found[2])


def file_of(name: str) -> Path:
    """`mcp/client` → include/ipybox/mcp/client.hpp; names of bodies have their suffix already."""
    return ROOT / (name if name.endswith(".ipp") else f"{name}.hpp")


def room(name: str) -> str:
    """`mcp/detail/wire` → `mcp`."""
    first, slash, _ = name.removeprefix("impl/").removesuffix(".ipp").partition("/")
    return first if slash else next((group for group, names in AT_THE_TOP.items() if first in names), first)


def inside_of(name: str) -> str | None:
    """`mcp/detail/wire` → `mcp`, which alone may include it; "" for what all may include; None for an interface."""
    folder, _, last = "/".join(name.split("/")[:-1]).rpartition("/")
    return folder if last in INSIDE else None


@cache
def includes(name: str) -> list[tuple[str, int]]:
    """What a header of the core includes, with lines."""
    path = file_of(name)
    if not path.exists():
        return []  # generated
    text = path.read_text(encoding="utf-8")
    return [(found[1], text.count("\n", 0, found.start(1)) + 1) for found in INCLUDE.finditer(text)]


@cache
def way_to_asio(name: str) -> str | None:
    """By what a header includes Asio, itself or through others."""
    seen = set()  # a header and its bodies include each other

    def way(name: str) -> str | None:
        seen.add(name)
        for included, _ in includes(name):
            if included.startswith(("boost/asio", "boost/beast")):
                return included
            other = own(included)
            if other and other not in seen and way(other):
                return included
        return None

    return way(name)


def reach_faults(name: str | None, other: str):
    inside = inside_of(other)
    if inside and (name is None or not name.startswith(f"{inside}/")):
        yield f"it is for {inside}/ alone"


def header_faults(name: str, included: str):
    for part, holders in HOLDERS.items():
        if included.startswith(part):
            if name.replace("/impl/", "/").removesuffix(".ipp") not in holders:
                yield f"only {' and '.join(sorted(holders)) or 'tests'} may include {part}"
            break
    other = own(included)
    in_detail = "detail" in name.split("/")[:-1]
    if in_detail and (included.startswith(("boost/asio", "boost/beast")) or (other and way_to_asio(other))):
        yield "a folder detail/ knows no Asio"
    if name in WITHOUT_ASIO and (included.startswith("boost/asio") or (other and way_to_asio(other))):
        yield f"{name} knows no Asio"
    if not other:
        return
    yield from reach_faults(name, other)
    if room(other) not in RANK:
        yield f"{room(other)} is no room of scripts/lint_includes.py"
    elif room(name) in RANK and room(other) != room(name) and RANK[room(other)] >= RANK[room(name)]:
        yield f"{room(other)} is not below {room(name)}"


def namespaces_of(path: Path) -> set[str]:
    """Those that a file may open: `detail` if and only if it lies in such a folder; what rooms tell each other
    beside their interface, and not the application, is in the namespace of the room."""
    folders = [one for one in path.parts[:-1] if one != "impl"]
    if folders[0] == "launcher":
        return {"launcher"}
    if "detail" in folders:
        return {"detail"}
    below = folders[len(ROOT.parts):]
    return {below[0]} if below else {path.stem} & RANK.keys()


def namespace_faults(path: Path):
    text = path.read_text(encoding="utf-8")
    for found in NAMESPACE.finditer(text):
        first, _, inner = found[1].removeprefix("ipybox::").partition("::")
        if first.startswith(f"{path.stem}_"):
            continue  # within the room's, for a few names of this file
        if first not in namespaces_of(path) | {"ipybox", "boost", "std"} or inner and first == "ipybox":
            may = " or ".join(["ipybox", *(f"ipybox::{one}" for one in sorted(namespaces_of(path)))])
            yield f"{path}:{text.count(chr(10), 0, found.start()) + 1}: namespace {found[1]} in a file of {may}"


def is_of_another_plugin(path: Path, included: str) -> bool:
    """A plugin is plugins/KIND/NAME.cpp, or a folder plugins/KIND/NAME that includes its own files."""
    if included.startswith("ipybox/"):
        return False
    plugins = Path("plugins").resolve()
    for place in (path.parent, plugins, *plugins.iterdir()):
        target = Path(place, included).resolve()
        if not target.is_file() or not target.is_relative_to(plugins):
            continue
        own_files = Path(*path.parts[:3]).resolve()
        if len(path.parts) < 4 or not target.is_relative_to(own_files):
            return True
    return False


def headers():
    """All files of the core but the lists of bodies, src.hpp."""
    for path in sorted(ROOT.rglob("*.?pp")):
        name = str(path.relative_to(ROOT))
        if path.name != "src.hpp":
            yield name.removesuffix(".hpp")


def faults():
    for name in headers():
        if room(name) not in RANK:
            yield f"{file_of(name)}: {room(name)} is no room of scripts/lint_includes.py"
        for included, line in includes(name):
            for why in header_faults(name, included):
                yield f"{file_of(name)}:{line}: includes {included}: {why}"
    for path in sorted([*ROOT.rglob("*.?pp"), *Path("launcher").glob("*.?pp")]):
        yield from namespace_faults(path)
    for folder in ("plugins", "app", "examples", "launcher"):
        for path in sorted(Path(folder).rglob("*.?pp")):
            text = path.read_text(encoding="utf-8")
            for found in INCLUDE.finditer(text):
                where = f"{path}:{text.count(chr(10), 0, found.start(1)) + 1}: includes {found[1]}"
                other = own(found[1])
                for why in reach_faults(None, other) if other else ():
                    yield f"{where}: {why}"
                if folder != "plugins":
                    continue
                if other and RANK.get(room(other), 0) > HIGHEST_OF_PLUGINS:
                    yield f"{where}: a plugin knows nothing above approval/"
                if is_of_another_plugin(path, found[1]):
                    yield f"{where}: a plugin includes none of its neighbours"


def graph() -> str:
    """The rooms from the top down, each with what it includes."""
    below: dict[str, set[str]] = {}
    for name in headers():
        for included, _ in includes(name):
            if (other := own(included)) and room(other) != room(name):
                below.setdefault(room(name), set()).add(room(other))
    named = [one for rooms in reversed(ORDER) for one in rooms]
    width = max(map(len, named))
    return "".join(f"{one:{width}} → {', '.join(other for other in named if other in below[one])}\n"
                   for one in named if one in below)


if __name__ == "__main__":
    if "--graph" in sys.argv[1:]:
        print(graph(), end="")
        sys.exit()
    found = list(faults())
    if f"```\n{graph()}```" not in PAGE.read_text(encoding="utf-8"):
        found.append(f"{PAGE} does not have the graph of rooms: scripts/lint_includes.py --graph prints it")
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
