"""Tool calls of the original ipybox, each accepted by its CodeExecutor: microseconds as a list of JSON.

Arguments: the number of calls, an MCP server of Python with the tool `echo`.
"""
import asyncio
import sys
import tempfile
from pathlib import Path

from ipybox import CodeExecutor, generate_mcp_sources

CODE = """
import json, time
from mcptools.own import echo
samples = []
for i in range(%d + 20):
    start = time.perf_counter()
    assert echo.run(echo.Params(text="x")) == "x"
    samples.append((time.perf_counter() - start) * 1e6)
print(json.dumps(samples[20:]))
"""


async def main() -> None:
    calls, server = int(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as directory:
        tools = Path(directory) / "mcptools"
        await generate_mcp_sources("own", {"command": sys.executable, "args": [server]}, tools)
        async with CodeExecutor(working_dir=Path(directory), kernel_init_timeout=60, log_level="ERROR") as executor:
            result = await executor.execute(CODE % calls, timeout=300)
            print(result.text)


if __name__ == "__main__":
    asyncio.run(main())
