"""How often a search of tools has the right one among its first three, over 200 plain requests and 500 tools.

usage: evaluate.py TOOL_TEXTS [tune | held | all] [-v]

TOOL_TEXTS is the program benchmarks/tool_texts. The requests are in requests.json, and in tools.json the names, the
beginnings of the descriptions and the parameters of 500 tools of public MCP servers. The search was tuned on the first
120 requests, in the order of their hashes; the other 80 are held back. -v names the requests that failed.
"""
from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def requests(part: str) -> list[dict[str, list[str]]]:
    """Of a part: 120 to tune with, 80 held back, or all."""
    every = json.loads((HERE / "requests.json").read_text())
    every.sort(key=lambda one: hashlib.sha256(("ipybox-split-1" + one["request"]).encode()).hexdigest())
    return {"tune": every[:120], "held": every[120:], "all": every}[part]


def package(server: str) -> str:
    name = re.sub(r"\W", "_", server).lower()[:60]
    return name if name[0].isalpha() else "s_" + name


def by_server(tools: list[dict[str, object]]) -> dict[str, list[dict[str, object]]]:
    servers: dict[str, list[dict[str, object]]] = {}
    for tool in tools:
        servers.setdefault(package(str(tool["server"])), []).append(
            {key: value for key, value in tool.items() if key not in ("server", "file")})
    return servers


def said_of(program: str, servers: dict[str, list[dict[str, object]]], asked: list[dict[str, list[str]]]) -> dict[str, object]:
    """What tool_texts answers."""
    given = json.dumps({"servers": servers, "requests": [one["request"] for one in asked]})
    return json.loads(subprocess.run([program], input=given, text=True, check=True, stdout=subprocess.PIPE).stdout)


def judged(said: dict[str, object], asked: list[dict[str, list[str]]]) -> tuple[list[bool], list[bool], list[str]]:
    """For each request whether the right tool is the first, is among the first three; and those for which it is not."""
    first, three, failed = [], [], []
    for one, found in zip(asked, said["found"]):
        names = [line.partition("(")[0] for line in found.splitlines()]
        ids = [package(server) + "." + tool for server, _, tool in (id.partition(".") for id in one["tools"])]
        wanted = {re.match(r"mcptools\.([\w.]+)\.run", said["described"][id])[1] for id in ids}
        first.append(bool(wanted & set(names[:1])))
        three.append(bool(wanted & set(names[:3])))
        if not three[-1]:
            failed.append(f"- {one['request']}: wanted {' or '.join(sorted(wanted))}, found {', '.join(names[:3])}")
    return first, three, failed


def main() -> None:
    arguments = [one for one in sys.argv[1:] if one != "-v"]
    if not 1 <= len(arguments) <= 2 or arguments[1:] not in ([], ["tune"], ["held"], ["all"]):
        sys.exit(__doc__)
    asked = requests((arguments + ["all"])[1])
    tools = json.loads((HERE / "tools.json").read_text())
    for tool in tools:
        tool["inputSchema"] = {"type": "object", "properties": {name: {} for name in tool.pop("parameters").split()}}
    first, three, failed = judged(said_of(arguments[0], by_server(tools), asked), asked)
    print(f"{sum(three) / len(asked):.1%} among the first three, {sum(first) / len(asked):.1%} first; "
          f"{len(asked)} requests, {len(tools)} tools")
    if "-v" in sys.argv:
        print(*failed, sep="\n")


if __name__ == "__main__":
    main()
