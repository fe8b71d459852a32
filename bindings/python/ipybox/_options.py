"""Options as the host gets them."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from ._jsonable import is_mapping

JsonObject = dict[str, Any]
PathLike = Union[str, "os.PathLike[str]"]


def sandbox_name(sandbox: bool | str) -> str:
    """The plugin that True and False stand for."""
    if isinstance(sandbox, str):
        return sandbox
    return "bubblewrap" if sandbox else "none"


def sandbox_settings(
    sandbox: bool | str, config: PathLike | Mapping[str, Any] | None
) -> JsonObject | None:
    """The settings of a sandbox, read from a file if they are one."""
    if config is None:
        return None
    if sandbox is False:
        warnings.warn(
            "sandbox_config has no effect without sandbox=True: nothing confines the code",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    if isinstance(config, Mapping):
        return dict(config)
    try:
        settings: Any = json.loads(Path(config).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"sandbox_config: cannot read {os.fspath(config)}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise ValueError(f"sandbox_config: {os.fspath(config)} is no JSON: {error}") from error
    if not is_mapping(settings):
        raise ValueError(f"sandbox_config: {os.fspath(config)}: expected an object")
    return dict(settings)


def own_python() -> str | None:
    """The interpreter that IPYBOX_PYTHON names, or this one, if kernels can run with it."""
    named = os.environ.get("IPYBOX_PYTHON")
    if named:
        return absolute(named)
    if not sys.executable or importlib.util.find_spec("ipykernel") is None:
        return None
    return sys.executable


def absolute(path: PathLike) -> str:
    """The host may be elsewhere."""
    return os.path.abspath(os.path.expanduser(path))


def address(host: str, port: int) -> tuple[str, int]:
    """By which what listens in this process is found: names of the loopback are the same."""
    return ("localhost" if host in ("127.0.0.1", "::1") else host, port)


def seconds(value: float | None, name: str) -> float:
    """None and 0 are unlimited."""
    if value is None:
        return 0
    if isinstance(value, bool) or not value >= 0:
        raise ValueError(
            f"{name}: expected a number of seconds, 0 or None for no limit, got {value!r}"
        )
    return value


def changed_environment(then: Mapping[str, str]) -> dict[str, str]:
    """What the environment of this process has that the host's has not."""
    return {name: value for name, value in os.environ.items() if then.get(name) != value}
