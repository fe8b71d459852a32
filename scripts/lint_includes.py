#!/usr/bin/env python3
"""Checks who includes whom: the layers of docs/architecture.md. Usage: lint_includes.py"""
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)
ROOT = Path("include/ipybox")

# A header may include those of its own and of lower layers; one that is not named is a service.
LAYERS = [
    {"error", "log", "async", "memory_budget"},
    {"sandbox", "kernel_backend", "mcp_transport", "approval_policy"},
    {"plugin"},
    set(),  # the services
    {"code_executor"},
    {"blocking", "kernel_client", "kernel_gateway", "mcp_service"},
    {"ipybox"},
]
SERVICES = LAYERS.index(set())

# The only headers that may include these parts of Boost.
HOLDERS = {
    "boost/dll/alias.hpp": {"plugin", "registry"},
    "boost/dll": {"registry"},
    "boost/process": {"process"},
    "boost/beast": {"approval_channel", "http_client", "http_listener"},
}


def layer(name: str) -> int:
    return next((i for i, names in enumerate(LAYERS) if name in names), SERVICES)


def own(included: str) -> str | None:
    """`ipybox/error.hpp` → `error`; None for what is not a header of the core."""
    found = re.fullmatch(r"ipybox/(\w+)\.hpp", included)
    return found and found[1]


def header_faults(path: Path, included: str):
    name = path.stem
    detail = path.parent.name == "detail"
    for part, holders in HOLDERS.items():
        if included.startswith(part):
            if detail or name not in holders:
                yield f"only {' and '.join(sorted(holders))} may include {part}"
            break
    other = own(included)
    if detail:
        if included.startswith("boost/asio") or other == "async":
            yield "detail/ knows no Asio"
        if other and other not in ("error", "log", "memory_budget"):
            yield "detail/ includes only error.hpp, log.hpp, memory_budget.hpp and itself"
    elif other and layer(other) > layer(name):
        yield f"{other}.hpp is above it"


def plugin_faults(path: Path, included: str):
    if not included.startswith(("ipybox/", "boost/")) and included.endswith((".cpp", ".hpp")):
        if Path(path.parent, included).exists():
            yield "a plugin includes none of its neighbours"
    other = own(included)
    if other and layer(other) > SERVICES:
        yield "a plugin does not know the executor"


def faults():
    for folder, rule in ((ROOT, header_faults), (Path("plugins"), plugin_faults)):
        for path in sorted(folder.rglob("*.?pp")):
            text = path.read_text(encoding="utf-8")
            for found in INCLUDE.finditer(text):
                for why in rule(path, found[1]):
                    line = text.count("\n", 0, found.start(1)) + 1
                    yield f"{path}:{line}: includes {found[1]}: {why}"


if __name__ == "__main__":
    found = list(faults())
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
