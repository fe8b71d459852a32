#!/usr/bin/env python3
"""Writes llms.txt and llms-full.txt, the documentation for language models, from README.md and docs/.

Usage: llms.py [--check]
  --check  writes nothing, and fails if they are not what they would be

llms.txt links every page with its first sentence; llms-full.txt has all of them, one after the other.
Pages come in the order in which README.md names them first; those that it does not name follow.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = ("performance", "dependencies", "security")  # what helps nobody to use ipybox


def pages():
    existing = sorted((ROOT / "docs").glob("*.md"))
    named = re.findall(r"\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text(encoding="utf-8"))
    return sorted(existing, key=lambda page: named.index(page.name) if page.name in named else len(named))


def paragraph(text):
    """The first paragraph below the title that is neither code nor a table, on one line, without markup."""
    blocks = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S).split("\n\n")[1:]
    found = next(b for b in map(str.strip, blocks) if b and not b.startswith(("#", "|", "!", "-")))
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", found.replace("\n", " "))


def sentence(text):
    return re.match(r".*?[.:](?= |$)", paragraph(text))[0].rstrip(":.") + "."


def documents():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}

    def links(optional):
        return [f"- [{text.partition(chr(10))[0].lstrip('# ')}](docs/{page.name}): {sentence(text)}"
                for page, text in texts.items() if (page.stem in OPTIONAL) == optional]

    title = readme.partition("\n")[0]
    index = [title, "", f"> {paragraph(readme)}", "", "- [README](README.md): a first look, from the shell and from C++.",
             "", "## Documentation", "", *links(False), "", "## Optional", "", *links(True),
             "- [All of it in one file](llms-full.txt)"]
    full = [f"<!-- README.md -->\n\n{readme.strip()}"]
    full += [f"<!-- docs/{page.name} -->\n\n{text.strip()}" for page, text in texts.items()]
    return {"llms.txt": "\n".join(index) + "\n", "llms-full.txt": "\n\n".join(full) + "\n"}


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    stale = []
    for name, text in documents().items():
        file = ROOT / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                file.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.exit(f"{' and '.join(stale)}: not what docs/ says; run python3 scripts/llms.py")


if __name__ == "__main__":
    main()
