"""A Jupyter kernel gateway."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from .._errors import HostDiedError
from .._host import Connection, connection
from .._lifecycle import Lifecycle
from .._options import absolute, address, own_python
from . import _tokens

__all__ = ["KernelGateway"]

PathLike = Union[str, "os.PathLike[str]"]


class KernelGateway(Lifecycle):
    """A Jupyter kernel gateway of this machine, to which `KernelClient` connects.

    It is unconfined, and whoever presents its token runs code as this user. Code that must be
    confined belongs in a `CodeExecutor(sandbox=True)`. Needs jupyter_kernel_gateway.

    Attributes:
        token: What clients present. Those of this process find it by themselves.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8888,
        working_dir: PathLike | None = None,
        sandbox: bool = False,
        sandbox_config: PathLike | None = None,
        log_level: str = "INFO",
        log_to_stderr: bool = False,
        env: Mapping[str, str] | None = None,
        *,
        python: PathLike | None = None,
        token: str | None = None,
    ) -> None:
        """
        Args:
            host: The address at which it listens.
            port: The port.
            working_dir: Of its kernels; None: the current directory.
            sandbox: Must be False: see above.
            sandbox_config: Must be None.
            log_level: Of the gateway.
            log_to_stderr: Accepted for programs of the original; its lines are in `output()`.
            env: Beside PATH, the whole environment of its kernels.
            python: The interpreter; None: this one if it can, else one that is found.
            token: None: one is made up.

        Raises:
            ValueError: A sandbox is asked for.
        """
        if sandbox or sandbox_config is not None:
            raise ValueError(
                "sandbox: a gateway alone is unconfined; use CodeExecutor(sandbox=True), "
                'and kernel="gateway" for a gateway in the sandbox'
            )
        self.host = host
        self.port = port
        self.working_dir = Path(working_dir).resolve() if working_dir is not None else None
        self.sandbox = sandbox
        self.sandbox_config = sandbox_config
        self.log_level = log_level
        self.log_to_stderr = log_to_stderr
        self.env = dict(env or {})
        self.token = token or ""
        self._python = absolute(python) if python is not None else own_python()
        self._link: Connection | None = None
        self._handle = ""

    async def _enter(self) -> None:
        await self.start()

    async def _exit(self) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts the process; it listens a second or two later, for which `KernelClient` waits.

        Raises:
            RuntimeError: It is running.
            IpyboxError: It cannot be started.
        """
        if self._link is not None and not self._link.ended:
            raise RuntimeError("the kernel gateway is already running")
        self._leave()
        link = connection()
        request: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "env": self.env,
            "log_level": self.log_level,
            "working_dir": str(self.working_dir or Path.cwd()),
        }
        if self._python is not None:
            request["python"] = self._python
        if self.token:
            request["token"] = self.token
        try:
            started = await link.request("gateway/start", request)
        except BaseException:
            link.release()
            raise
        self._link, self._handle, self.token = link, str(started["gateway"]), str(started["token"])
        _tokens.known[address(self.host, self.port)] = self.token

    async def stop(self, timeout: float = 10) -> None:
        """Ends the gateway and its kernels, by force after so many seconds."""
        link, handle = self._link, self._handle
        if link is None:
            return
        try:
            await asyncio.shield(
                link.request("gateway/stop", {"gateway": handle, "timeout": timeout})
            )
        except HostDiedError:
            pass
        finally:
            self._leave()

    async def join(self) -> None:
        """Waits until the gateway has ended."""
        if self._link is None:
            return
        try:
            await self._link.request("gateway/join", {"gateway": self._handle})
        except HostDiedError:
            pass

    async def output(self) -> str:
        """The newest lines that the gateway printed."""
        if self._link is None:
            return ""
        return str(
            (await self._link.request("gateway/status", {"gateway": self._handle}))["output"]
        )

    def _leave(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.release()
            if _tokens.known.get(address(self.host, self.port)) == self.token:
                del _tokens.known[address(self.host, self.port)]


async def main() -> None:
    """A gateway by hand: prints what clients present, and runs until it is interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m ipybox.kernel_mgr.server",
        description="Starts a Jupyter kernel gateway",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--host", default="localhost", help="the address at which it listens")
    parser.add_argument("--port", type=int, default=8888, help="the port")
    parser.add_argument(
        "--log-level",
        default="INFO",
        help="of the gateway",
        choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
    )
    flags = parser.parse_args()
    async with KernelGateway(
        flags.host, flags.port, log_level=flags.log_level, token=os.environ.get(_tokens.VARIABLE)
    ) as gateway:
        print(f"{_tokens.VARIABLE}={gateway.token}", flush=True)
        await gateway.join()


if __name__ == "__main__":
    asyncio.run(main())
