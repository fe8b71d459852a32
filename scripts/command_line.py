#!/usr/bin/env python3
"""Writes man pages and completions of a shell from what the program says of its command line.

Usage: ipybox --describe | command_line.py man DIRECTORY   a page for each command
       ipybox --describe | command_line.py bash FILE
       ipybox --describe | command_line.py zsh FILE

SOURCE_DATE_EPOCH, in seconds since 1970, is the date of the pages; today without it.
"""
from __future__ import annotations

import datetime
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path


def value_kind(option: dict) -> str:
    """What a shell completes for the option's value: words, files, directories or nothing."""
    if option.get("choices"):
        return "words"
    name = re.split(r"[:=\[ ]", option.get("value", "").strip("[]"))[0]
    name = name if name != "TEXT" else option.get("positional", "")
    return {"FILE": "files", "PATH": "files", "DIR": "directories"}.get(name, "")


def value_shown(option: dict) -> str:
    """The value as a reader wants it: {ask,allow} rather than TEXT:{ask,allow}."""
    if "value" not in option:
        return ""
    if option["choices"]:
        return "{" + ",".join(option["choices"]) + "}"
    shown = re.sub(r":(INT|UINT|FLOAT|SIZE).*", "", option["value"])
    return f"[{shown.strip('[]')}]" if option["value_optional"] else shown


def all_commands(command: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict]]:
    yield path, command
    for inner in command["commands"]:
        yield from all_commands(inner, (*path, inner["name"]))


# ---- man pages ----

def roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace("–", "\\(en").replace("—", "\\(em")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def page_options(command: dict, heading: str) -> list[str]:
    """The options of a command, those of a group below its name."""
    lines: list[str] = []
    group = None
    for option in sorted(command["options"], key=lambda one: (one["group"] != "", one["group"])):
        if group is None:
            lines.append(heading)
        if option["group"] != (group or ""):
            lines.append(f".PP\n{roff(option['group'])}:")
        group = option["group"]
        names = option["names"] or [option["positional"]]
        value = value_shown(option) if option["names"] else ""
        lines.append(".TP")
        lines.append(", ".join(f"\\fB{roff(name)}\\fR" for name in names) + (f" \\fI{roff(value)}\\fR" if value else ""))
        text = option["description"].rstrip(".") + "."
        if option.get("default"):
            text += f" Default: {option['default']}."
        if option["required"]:
            text += " Required."
        if option["repeatable"] and "repeatable" not in option["description"]:
            text += " Repeatable."
        lines.append(roff(text))
    return lines


def usage_lines(command: dict, path: tuple[str, ...]) -> list[str]:
    """What follows the names of the commands, a line for each way to call it."""
    lines = command["usage"].removeprefix("Usage:").strip().splitlines()
    name = re.escape(path[-1] if path else "ipybox")
    return [re.sub(rf"^(?:ipybox )?{name}\s*", "", line.strip()) for line in lines]


def text_below(command: dict, top: dict) -> list[str]:
    """Paragraphs, unless they are those of all commands; lines that begin with blanks stay as they are."""
    if not command["footer"] or command["footer"] == top.get("footer"):
        return []
    lines = [".PP"]
    for line in command["footer"].splitlines():
        if line.startswith("  "):
            lines += [".PP", ".RS", ".nf", roff(line.strip()), ".fi", ".RE"]
        else:
            lines.append(".PP" if not line else roff(line))
    return lines


def page(path: tuple[str, ...], command: dict, top: dict, date: str) -> str:
    name = "-".join(("ipybox", *path))
    lines = [f'.TH {name.upper()} 1 "{date}" "ipybox {top["version"]}" "User Commands"', ".nh", ".ad l", ".SH NAME",
             f"{roff(name)} \\- {roff(command['description'].rstrip('.'))}", ".SH SYNOPSIS"]
    for way in usage_lines(command, path):
        lines += [f"\\fB{roff(' '.join(('ipybox', *path)))}\\fR {roff(way)}", ".br"]
    lines += [".SH DESCRIPTION", roff(command["description"].rstrip(".") + "."), *text_below(command, top if path else {})]
    lines += page_options(command, ".SH OPTIONS")
    if command["commands"]:
        lines.append(".SH COMMANDS")
    for inner in command["commands"]:
        if not path:
            lines += [".TP", f"\\fBipybox\\-{roff(inner['name'])}\\fR(1)", roff(inner["description"].rstrip(".") + ".")]
            continue
        lines += [f".SS \"{' '.join(('ipybox', *path, inner['name']))}\"", roff(inner["description"].rstrip(".") + ".")]
        lines += [*text_below(inner, top), *page_options(inner, ".PP")]
    others = [f"\\fBipybox\\-{roff(one['name'])}\\fR(1)" for one in top["commands"] if one["name"] not in path]
    others = ([] if not path else ["\\fBipybox\\fR(1)"]) + others
    lines += [".SH SEE ALSO", ",\n".join(others) + ".", ".PP",
              "The documentation is in \\fI/usr/share/doc/ipybox/docs\\fR, from \\fIgetting\\-started.md\\fR on."]
    return "\n".join(lines) + "\n"


def write_pages(top: dict, directory: Path) -> None:
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or datetime.datetime.now().timestamp())
    date = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d")
    directory.mkdir(parents=True, exist_ok=True)
    for path, command in all_commands(top):
        if len(path) <= 1:
            (directory / ("-".join(("ipybox", *path)) + ".1")).write_text(page(path, command, top, date))


# ---- completions ----

def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def bash(top: dict) -> str:
    """The command is looked for in the words before; then its options, values and commands are offered."""
    lines = ["# Completions of ipybox for bash, made from `ipybox --describe`.", "_ipybox() {",
             "    local command= word cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} kind= words=",
             "    if [ \"$cur\" = = ]; then cur=; fi",
             "    if [ \"$before\" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi",
             "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do", "        case \"$command $word\" in"]
    named = {path: quoted("".join(f" {word}" for word in path)) for path, _ in all_commands(top)}
    lines += [f"            {name}) command={name} ;;" for path, name in named.items() if path]
    lines += ["        esac", "    done", "    case \"$command\" in"]
    for path, command in all_commands(top):
        lines += [f"        {named[path]})", "            case \"$before\" in"]
        names, positional = [], ""
        for option in command["options"]:
            names += [name for name in option["names"] if name.startswith("--")]
            kind = value_kind(option)
            if not option["names"]:
                positional = positional or kind
                continue
            if "value" not in option:
                continue
            words = f" words={quoted(' '.join(option['choices']))}" if kind == "words" else ""
            # What may have a value may stand alone, too.
            lines.append(f"                {'|'.join(option['names'])}) "
                         f"kind={'maybe' if option['value_optional'] else kind or 'any'}{words} ;;")
        inner = " ".join(one["name"] for one in command["commands"])
        lines += ["            esac", f"            [ -n \"$kind\" ] && [ \"$kind\" != maybe ] || case \"$cur\" in",
                  f"                -*) kind=words words={quoted(' '.join(names))} ;;",
                  f"                *) kind={'words' if inner else positional or 'any'} words={quoted(inner)} ;;",
                  "            esac ;;"]
    lines += ["    esac", "    COMPREPLY=()", "    case \"$kind\" in",
              "        words) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\") ;;",
              "        files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$cur\") ;;",
              "        directories) compopt -o filenames 2>/dev/null; "
              "mapfile -t COMPREPLY < <(compgen -d -- \"$cur\") ;;",
              "    esac", "}", "complete -F _ipybox ipybox"]
    return "\n".join(lines) + "\n"


def zsh_option(option: dict) -> str:
    def plain(text: str) -> str:
        return re.sub(r"([\\\[\]:])", r"\\\1", text)

    action = {"words": "(" + " ".join(option.get("choices", [])) + ")", "files": "_files",
              "directories": "_files -/", "": " "}[value_kind(option)]
    if not option["names"]:
        return quoted(f"{'*' if option['repeatable'] else ''}:{plain(option['positional'])}:{action}")
    specs = []
    for name in option["names"]:
        spec = ("*" if option["repeatable"] else "") + name
        if "value" in option:
            # A value that may be absent follows an equals sign.
            spec += ("=-" if option["value_optional"] else "=") if name.startswith("--") else "+"
        spec += f"[{plain(option['description'])}]"
        if "value" in option:
            spec += (":" if option["value_optional"] else "") + f":{plain(value_shown(option))}:{action}"
        specs.append(quoted(spec))
    return " ".join(specs)


def zsh(top: dict) -> str:
    lines = ["#compdef ipybox", "# Completions of ipybox for zsh, made from `ipybox --describe`."]
    for path, command in all_commands(top):
        function = "_" + "_".join(("ipybox", *path)).replace("-", "_")
        options = [zsh_option(option) for option in command["options"]]
        lines += ["", f"{function}() {{"]
        if command["commands"]:
            lines.append("  local context state state_descr line ret=1\n  typeset -A opt_args")
            options += ["'1: :->command'", "'*:: :->rest'"]
        lines.append("  _arguments -S " + ("-C " if command["commands"] else "") + "\\")
        lines.append(" \\\n".join("    " + option for option in options) + (" && ret=0" if command["commands"] else ""))
        if command["commands"]:
            lines += ["  case $state in", "    command)", "      local -a commands=("]
            for inner in command["commands"]:
                lines.append("        " + quoted(inner["name"] + ":" + inner["description"].replace(":", "\\:")))
            lines += ["      )", "      _describe -t commands command commands && ret=0 ;;",
                      "    rest)", "      case $words[1] in"]
            for inner in command["commands"]:
                lines.append(f"        {inner['name']}) {function}_{inner['name'].replace('-', '_')} && ret=0 ;;")
            lines += ["      esac ;;", "  esac", "  return ret"]
        lines.append("}")
    return "\n".join([*lines, "", '_ipybox "$@"']) + "\n"


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] not in ("man", "bash", "zsh"):
        sys.exit(__doc__)
    top = json.load(sys.stdin)
    output = Path(sys.argv[2])
    if sys.argv[1] == "man":
        write_pages(top, output)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text({"bash": bash, "zsh": zsh}[sys.argv[1]](top))


if __name__ == "__main__":
    main()
