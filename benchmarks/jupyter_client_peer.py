"""The peer that ipybox is measured against: jupyter_client's blocking client over ipc.

Reads one JSON command a line and answers with one JSON line: {"do": "start"} starts a kernel and
takes its first result, {"do": "execute", "code": ...} runs a cell, {"do": "stop"} ends the kernel.
Times are measured here, so that talking to this process costs the peer nothing.
"""
import hashlib
import json
import sys
import time
from importlib.metadata import version

from jupyter_client import KernelManager


class Peer:
    def start(self, code: str) -> dict:
        before = time.perf_counter_ns()
        self.manager = KernelManager(transport="ipc")
        self.manager.start_kernel(extra_arguments=["--HistoryManager.enabled=False"])
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        answer = self.execute(code)
        answer["ns"] = time.perf_counter_ns() - before
        return answer

    def execute(self, code: str) -> dict:
        before = time.perf_counter_ns()
        request = self.client.execute(code, store_history=False, allow_stdin=False)
        output = []
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                output.append(content["text"])
            elif kind == "execute_result":
                output.append(content["data"]["text/plain"])
            elif kind == "status" and content["execution_state"] == "idle":
                break
        while self.client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != request:
            pass
        text = "".join(output)
        spent = time.perf_counter_ns() - before
        return {"ns": spent, "sha256": hashlib.sha256(text.encode()).hexdigest()}

    def stop(self, code: str) -> dict:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        return {"ns": 0}


def main() -> None:
    names = ("jupyter_client", "ipykernel", "ipython", "pyzmq")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    print(json.dumps({"python": sys.version.split()[0], "versions": versions}), flush=True)
    peer = Peer()
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(peer, command["do"])(command.get("code", ""))), flush=True)


if __name__ == "__main__":
    main()
