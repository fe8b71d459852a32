"""What a model has to read to find and call one of 500 tools, in tokens, and whether it finds the right one.

usage: tokens.py PROGRAM TOOL_TEXTS [-v]   run by `scripts/bench --only tokens`

PROGRAM is ipybox, TOOL_TEXTS benchmarks/tool_texts. Tools and requests are those of evaluate.py; tokens are those of
o200k, counted by bpe-openai. -v names the requests that failed.
"""
from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import bpe_openai

import corpus
import evaluate

ENCODING = bpe_openai.get_encoding("o200k_base")


def tokens(text: str) -> int:
    return len(ENCODING.encode(text))


def packages(program: str, servers: dict[str, list[dict[str, object]]]) -> tuple[str, str]:
    """The generated modules and the packages' lists of them, as code finds them on disk."""
    modules, lists = "", ""
    with tempfile.TemporaryDirectory() as directory:
        for name, tools in servers.items():
            file = Path(directory, "tools.json")
            file.write_text(json.dumps(tools))
            subprocess.run([program, "apigen", name, "--tools-json", str(file), "--out", directory], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for module in sorted(Path(directory, name).glob("*.py")):
                if module.name == "__init__.py":
                    lists += module.read_text()
                else:
                    modules += module.read_text()
    return modules, lists


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    program, texts = sys.argv[1:3]
    asked = evaluate.requests("all")
    servers = evaluate.by_server(corpus.evaluation_set())
    said = evaluate.said_of(texts, servers, asked)
    first, three, failed = evaluate.judged(said, asked)

    listed = tokens(json.dumps([tool for tools in servers.values() for tool in tools], ensure_ascii=False, separators=(",", ":")))
    modules, lists = packages(program, servers)
    ways = []
    for one, found in zip(asked, said["found"]):
        name = found.partition("(")[0]
        server, _, tool = one["tools"][0].partition(".")
        text = said["described"][f"{evaluate.package(server)}.{tool}"]
        ways.append(sum(map(tokens, (f"tools.search({one['request']!r})", found, f"tools.describe({name!r})", text,
                                     text.partition("\n")[0].partition(" -> ")[0]))))
    count = sum(map(len, servers.values()))
    print(f"{count} tools of {len(servers)} servers; tokens of o200k")
    rows = [("tools/list, as JSON", listed), ("generated modules", tokens(modules)), ("lists of the packages", tokens(lists)),
            ("stubs of all servers", sum(map(tokens, said["stubs"].values()))),
            ("search, describe and call: median", statistics.median(ways)), ("search, describe and call: largest", max(ways))]
    for what, number in rows:
        ratio = number / listed
        print(f"  {what:36} {number:10,.0f}   {f'{ratio:.2f} ×' if ratio > 0.1 else f'1/{1 / ratio:.0f}'}")
    rate = sum(three) / len(asked)
    print(f"  the right tool among the first three: {rate:.1%}; first: {sum(first) / len(asked):.1%}; {len(asked)} requests")
    if "-v" in sys.argv:
        print(*failed, sep="\n")
    if rate < 0.95 or max(ways) > listed / 10:
        sys.exit("tokens: the limits are 95 % among the first three, and a tenth of tools/list")


if __name__ == "__main__":
    main()
