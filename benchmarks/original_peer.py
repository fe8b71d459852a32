"""The original ipybox, measured like jupyter_client_peer.py and spoken to like it.

Its kernel gateway listens on a port that this process chose. With --nodelay the gateway sets TCP_NODELAY on its
connections, which the original does not: what is left then is not Nagle's algorithm waiting for acknowledgements.
"""
import asyncio
import hashlib
import json
import os
import socket
import sys
import tempfile
import time
from importlib.metadata import version

from ipybox.kernel_mgr.client import KernelClient
from ipybox.kernel_mgr.server import KernelGateway


NODELAY = """
import tornado.netutil, socket
add = tornado.netutil.add_accept_handler
def add_accept_handler(listener, callback):
    def accepted(connection, address):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        callback(connection, address)
    return add(listener, accepted)
import tornado.tcpserver
tornado.tcpserver.add_accept_handler = add_accept_handler
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Peer:
    async def start(self, code: str) -> dict:
        before = time.perf_counter_ns()
        port = free_port()
        env = {"PATH": os.environ["PATH"]}
        if "--nodelay" in sys.argv:
            self.start_files = tempfile.TemporaryDirectory()
            with open(os.path.join(self.start_files.name, "sitecustomize.py"), "w") as file:
                file.write(NODELAY)
            env["PYTHONPATH"] = self.start_files.name
        self.gateway = KernelGateway(host="127.0.0.1", port=port, log_level="ERROR", env=env)
        await self.gateway.start()
        return await self.first_result(port, code, before)

    async def first_result(self, port: int, code: str, before: int) -> dict:
        self.client = KernelClient(host="127.0.0.1", port=port)
        await self.client.connect(retries=200, retry_interval=0.05)
        answer = await self.execute(code)
        # It loses what its first execution prints now and then: the first result is the one that comes.
        while answer["sha256"] == hashlib.sha256(b"").hexdigest():
            answer = await self.execute(code)
        answer["ns"] = time.perf_counter_ns() - before
        return answer

    async def execute(self, code: str) -> dict:
        before = time.perf_counter_ns()
        result = await self.client.execute(code, timeout=120)
        spent = time.perf_counter_ns() - before
        return {"ns": spent, "sha256": hashlib.sha256((result.text or "").encode()).hexdigest()}

    async def reset(self, code: str) -> dict:
        """As its CodeExecutor does it: a new kernel on the same gateway."""
        before = time.perf_counter_ns()
        port = self.client.port
        await self.client.disconnect()
        return await self.first_result(port, code, before)

    async def stop(self, code: str) -> dict:
        await self.client.disconnect()
        await self.gateway.stop()
        return {"ns": 0}


async def main() -> None:
    versions = ", ".join(f"{name} {version(name)}" for name in ("ipybox", "jupyter_kernel_gateway", "ipykernel"))
    print(json.dumps({"python": sys.version.split()[0], "versions": versions}), flush=True)
    peer = Peer()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        print(json.dumps(await getattr(peer, command["do"])(command.get("code", ""))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
