#!/usr/bin/env python3
"""Writes the reference in docs/host-protocol.md from app/host/protocol.json.

Usage: host_protocol.py [--check]
  --check  writes nothing; exit code 1 if the page is stale
"""
import json
import sys
from pathlib import Path

SCHEMA, PAGE = Path("app/host/protocol.json"), Path("docs/host-protocol.md")
MARK = "<!-- From here on written by scripts/host_protocol.py from app/host/protocol.json. -->\n"
# Written out where they are used, because a word says what they are.
PLAIN = {"handle": "string", "texts": "array of strings", "seconds": "seconds", "port": "port", "base64": "base64",
         "count": "integer > 0", "offset": "integer ≥ 0", "variables": "object of strings", "policy": "policy",
         "server_name": "string", "server_params": "object", "bundle": "object", "request_id": "integer or string",
         "nothing": "object"}


def type_name(schema):
    """How a person calls what the schema allows."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return PLAIN.get(name) or f"[{name}](#{name})"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "anyOf" in schema:
        return " or ".join(type_name(part) for part in schema["anyOf"])
    if schema.get("type") == "array" and "items" in schema:
        return f"array of {type_name(schema['items'])}"
    kinds = schema.get("type", "any value")
    return " or ".join(kinds) if isinstance(kinds, list) else kinds


def remark(schema):
    """The description, with the limits and the default behind it."""
    parts = [schema["description"]] if "description" in schema else []
    limits = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    if limits and "$ref" not in schema:
        parts.append(" ".join(limits))
    if "default" in schema:
        parts.append(f"default `{json.dumps(schema['default'])}`")
    return "; ".join(parts)


def rows(schema, prefix=""):
    """A table row for each member, those of members behind them."""
    needed = schema.get("required", [])
    for name, member in schema.get("properties", {}).items():
        mark = "" if name in needed else " (may be absent)"
        yield f"| `{prefix}{name}`{mark} | {type_name(member)} | {remark(member)} |"
        yield from rows(member, f"{prefix}{name}.")
        if member.get("type") == "array":
            yield from rows(member.get("items", {}), f"{prefix}{name}[].")


def table(schema, document):
    while "$ref" in schema:
        schema = document["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    lines = list(rows(schema))
    return ["| member | what | |", "|---|---|---|", *lines, ""] if lines else []


def named(schema):
    """The definition that a schema is, if it has an entry of its own."""
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return name if name and name not in PLAIN and not name.startswith("of_") else ""


def part(title, schema, document):
    if name := named(schema):
        return [f"{title}: [{name}](#{name}).", ""]
    lines = table(schema, document)
    return [f"{title}:", "", *lines] if lines else [f"{title}: none.", ""]


def reference(document):
    yield from ("## Methods", "")
    group = ""
    for name, method in document["methods"].items():
        if method["group"] != group:
            group = method["group"]
            yield from (f"### {group}", "")
        yield from (f"#### `{name}`", "", method["description"], "")
        yield from part("Params", method["params"], document)
        yield from part("Result", method["result"], document)
    for direction, notifications in (("to", "client_notifications"), ("of", "notifications")):
        yield from (f"## Notifications {direction} the host", "")
        for name, notification in document[notifications].items():
            yield from (f"#### `{name}`", "", notification["description"], "")
            yield from part("Params", notification["params"], document)
    yield from ("## Errors", "", document["errors"]["description"], "")
    yield from table(document["errors"]["error"], document)
    yield from ("## Types", "")
    for name, definition in document["$defs"].items():
        if name in PLAIN or name.startswith("of_"):
            continue
        yield from (f"#### {name}", "")
        if "description" in definition:
            yield from (definition["description"], "")
        if "enum" in definition:
            yield from (type_name(definition) + ".", "")
        if definition.get("type") == "array":
            yield from ("Array of objects:", "")
            definition = definition["items"]
        yield from table(definition, document)


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    document = json.loads(SCHEMA.read_text(encoding="utf-8"))
    before, mark, after = PAGE.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        sys.exit(f"{PAGE} lacks the line {MARK}")
    written = "\n" + "\n".join(reference(document)).rstrip("\n") + "\n"
    if written == after:
        return
    if sys.argv[1:]:
        sys.exit(f"{PAGE} is stale: run scripts/host_protocol.py")
    PAGE.write_text(before + mark + written, encoding="utf-8")


if __name__ == "__main__":
    main()
