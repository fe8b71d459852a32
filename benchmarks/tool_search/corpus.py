"""The fixed evaluation set: 500 tools, reproducible from the corpora (standard library only)."""
import hashlib
import json
import pathlib

CORPUS = pathlib.Path(__file__).resolve().parents[3] / "shared/corpus"
# (file, server): taken whole, in this order.
WHOLE = [("mcp/" + s, s) for s in ("filesystem git-cyanheads github memory mongodb playwright antv-chart").split()]
WHOLE += [("klavis", s) for s in ("slack asana twilio youtube airtable confluence google_meet calendly chargebee "
                                  "reddit_search local google_slides postgres excel").split()]
WHOLE += [("mcpm", s) for s in "google-maps home-assistant heroku f1-mcp-server anki prometheus ns-travel-information tmdb".split()]
WHOLE += [("oslook", "mcp-server-cloudflare")]
WHOLE += [("livemcpbench", s) for s in ("chess music-analysis airbnb time met-museum yahoo-finance exchange-rate-mcp "
                                        "howtocook-mcp").split()]
WHOLE += [("toucan", "hrishi0102_spotifyyy-mcp")]


def load(file):
    data = json.loads((CORPUS / (file + ".json")).read_text())
    if isinstance(data, dict):
        tools = data["tools"]
        tools = tools["tools"] if isinstance(tools, dict) else tools
        return [dict(t, server=data.get("name", pathlib.Path(file).name)) for t in tools]
    return data


def usable(tools):
    seen, out = set(), []
    for t in tools:
        key = t["server"] + "." + t["name"]
        if key in seen or not isinstance(t.get("inputSchema"), dict):
            continue
        seen.add(key)
        out.append(t)
    return out


def everything():
    """Every real tool (hardcases, jsts, synth_*, everything and conformance servers left out)."""
    files = sorted(p.stem for p in CORPUS.glob("*.json")) + sorted("mcp/" + p.stem for p in (CORPUS / "mcp").glob("*.json"))
    skip = ("hardcases", "jsts", "synth_", "mcp/everything", "mcp/conformance", "mcp/mongodb-modern")
    return [dict(t, file=f) for f in files if not f.startswith(skip) for t in load(f)]


def evaluation_set(size=500, seed="ipybox-tokens-1"):
    """WHOLE, then one tool of each toucan server in the order of sha256(seed + server.tool)."""
    chosen = []
    for file, server in WHOLE:
        chosen += [t for t in load(file) if t["server"] == server]
    chosen = usable(chosen)
    taken = {t["server"] for t in chosen}
    rest = sorted(usable(load("toucan")),
                  key=lambda t: hashlib.sha256((seed + t["server"] + "." + t["name"]).encode()).hexdigest())
    for t in rest:
        if len(chosen) == size:
            break
        if t["server"] not in taken:
            taken.add(t["server"])
            chosen.append(t)
    return chosen
