"""Typed Python APIs for the tools of MCP servers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from ._host import connection
from ._options import absolute, changed_environment
from ._servers import remember, start_in_one_way

__all__ = ["generate_mcp_sources"]


async def generate_mcp_sources(
    server_name: str,
    server_params: Mapping[str, Any],
    root_dir: Union[str, os.PathLike[str]],
    async_api: bool = False,
    *,
    variables: Mapping[str, str] | None = None,
    connect_timeout: float = 30,
) -> list[str]:
    """Writes the Python API of an MCP server's tools to `root_dir/server_name`, in place of what is
    there.

    The server is registered with every `CodeExecutor` that this process starts from now on and, in
    later processes, with those whose workspace or PYTHONPATH has the package.

    Args:
        server_name: Of the server and its package.
        server_params: `command`, `args`, `env` and `cwd`, or `url`, `headers` and `type`. `${NAME}`
            stands for a variable of the environment.
        root_dir: Where the package goes; it is made.
        async_api: Whether `run()` is a coroutine function.
        variables: For `${NAME}`, beside the environment.
        connect_timeout: Seconds for the server to start.

    Returns:
        The names of the modules, in the server's order.

    Raises:
        IpyboxError: The server cannot be reached, or the API cannot be written.
    """
    link = connection()
    try:
        request: dict[str, Any] = {
            "name": server_name,
            "root_dir": absolute(root_dir),
            "async_api": async_api,
            "variables": {**changed_environment(link.environment), **(variables or {})},
            "connect_timeout": connect_timeout,
        }
        answer = await start_in_one_way(
            server_params,
            lambda way: link.request("apigen/generate", {**request, "params": way}),
        )
    finally:
        link.release()
    remember(Path(absolute(root_dir)), server_name, server_params)
    return [str(tool["module"]) for tool in answer["tools"]]
