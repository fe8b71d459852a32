"""What of the generated APIs the kernel has names for, told before a cell is checked.

Hints for the host, which believes none of them. No code of the user's runs for it: objects are told
apart by what they are, not by what they say.
"""
from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

MIME = "application/vnd.ipybox.names+json"
_LIMIT = 500


def known(namespace: dict[str, Any], packages: list[str]) -> dict[str, str]:
    """The names in `namespace` that mean something generated in `packages`, and what."""
    meanings: dict[int, str] = {}
    classes: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        if type(module) is not ModuleType or type(name) is not str:
            continue
        if any(name == package or package.startswith(name + ".") for package in packages):
            meanings[id(module)] = name
        elif name.rpartition(".")[0] in packages:
            meanings[id(module)] = name
            for member, value in list(vars(module).items()):
                if type(member) is not str:
                    continue
                if issubclass(type(value), type):
                    if type.__getattribute__(value, "__module__") == name:
                        classes[id(value)] = meanings[id(value)] = f"{name}:{member}"
                elif member in ("run", "run_async"):
                    meanings[id(value)] = f"{name}:{member}"
    found: dict[str, str] = {}
    for name, value in list(namespace.items()):
        if type(name) is not str or len(found) == _LIMIT:
            continue
        if meaning := meanings.get(id(value)):
            found[name] = meaning
        elif meaning := classes.get(id(type(value))):
            found[name] = meaning + "()"
    return found


def tell(packages: list[str]) -> None:
    """Called by the host, silently, before a cell that is to be checked."""
    from IPython import get_ipython

    shell = get_ipython()
    shell.display_pub.publish({MIME: known(shell.user_ns, packages)})
