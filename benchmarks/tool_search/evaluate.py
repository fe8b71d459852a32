"""How often a search of tools has the right one among its first three, over 200 plain requests and 500 tools.

usage: evaluate.py [tune | held | all] [-v]

The requests are in requests.json, the tools come from the corpora in ../shared/corpus. search.py is what ipybox's
own search is to reach: BM25 with stems and tables of English. It was tuned on the first 120 requests, in the order
of their hashes; the other 80 are held back. -v names the requests that failed.
"""
from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

import corpus
import search


def requests(part: str) -> list[dict[str, object]]:
    """Of a part: 120 to tune with, 80 held back, or all."""
    every = json.loads((Path(__file__).parent / "requests.json").read_text())
    every.sort(key=lambda one: hashlib.sha256(("ipybox-split-1" + one["request"]).encode()).hexdigest())
    return {"tune": every[:120], "held": every[120:], "all": every}[part]


class Substrings:
    """The search of include/ipybox/tools/tool_search.hpp: words in a name count 3, in a summary 1."""

    def __init__(self, tools: list[dict[str, str]]) -> None:
        self.tools = [(re.sub(r"\W", "_", f"{tool['server']}.{tool['name']}").lower(),
                       (tool.get("description") or "").strip().split("\n")[0][:300].lower(),
                       f"{tool['server']}.{tool['name']}") for tool in tools]

    def search(self, request: str, limit: int = 5) -> list[str]:
        words = re.findall(r"[^\W_]+", request.lower())
        scores = [(-sum(3 * (word in name) + (word in summary) for word in words), at)
                  for at, (name, summary, _) in enumerate(self.tools)]
        return [self.tools[at][2] for score, at in sorted(scores) if score][:limit]


def main() -> None:
    arguments = [one for one in sys.argv[1:] if one != "-v"] or ["all"]
    if len(arguments) > 1 or arguments[0] not in ("tune", "held", "all"):
        sys.exit(__doc__)
    tools = corpus.evaluation_set()
    asked = requests(arguments[0])
    for name, find in (("words of names", Substrings(tools).search), ("search.py", search.Index(tools).search)):
        answers = [find(one["request"]) for one in asked]
        right = [set(found[:3]) & set(one["tools"]) for one, found in zip(asked, answers)]
        first = sum(bool(set(found[:1]) & set(one["tools"])) for one, found in zip(asked, answers))
        print(f"{name}: {sum(map(bool, right)) / len(asked):.1%} among the first three, "
              f"{first / len(asked):.1%} first; {len(asked)} requests, {len(tools)} tools")
    if "-v" in sys.argv:
        for one, found, hit in zip(asked, answers, right):
            if not hit:
                print(f"- {one['request']}: wanted {' or '.join(one['tools'])}, found {', '.join(found[:3])}")


if __name__ == "__main__":
    main()
