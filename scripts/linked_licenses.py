#!/usr/bin/env python3
"""Writes what a binary of ipybox owes to the libraries that are linked into it: their licences, the exact sources
that they were built from, and how to link it with others.

Usage: linked_licenses.py DIRECTORY BUILD ROOT

The libraries are those of BUILD, made with -Dportable=true on a Debian system, or for one whose files are in ROOT,
otherwise /; one that is not listed here is an error. docs/dependencies.md has the same list for people.
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

COMMON = Path("/usr/share/common-licenses")

# The package that a library or its headers come from: what it is called, its licence, and where it ends up.
LINKED = {
    "libboost1.81-dev": ("Boost", "BSL-1.0", "program"),
    "libssl-dev": ("OpenSSL", "Apache-2.0", "program"),
    "libseccomp-dev": ("libseccomp", "LGPL-2.1-only", "program"),
    "libc6-dev": ("GNU C Library", "LGPL-2.1-or-later", "the launcher inside the program"),
    "libspdlog-dev": ("spdlog", "MIT", "program"),
    "libfmt-dev": ("fmt", "MIT", "program"),
    "libcli11-dev": ("CLI11", "BSD-3-Clause", "program"),
    "libtomlplusplus-dev": ("toml++", "MIT", "program"),
    "libedit-dev": ("libedit", "BSD-3-Clause", "program"),
    "libbsd-dev": ("libbsd", "BSD-3-Clause and others of its kind", "program"),
    "libmd-dev": ("libmd", "BSD-3-Clause and others of its kind", "program"),
    "libncurses-dev": ("ncurses (terminfo)", "X11", "program"),
}
# Packages whose libraries are covered by another one's entry, or ask nothing of a binary.
SAME_AS = {"libboost-filesystem1.81-dev": "libboost1.81-dev", "libboost-url1.81-dev": "libboost1.81-dev"}

TEXT = """# What is linked into this program

ipybox itself is under the Apache License 2.0. The program `ipybox` of this distribution contains, in the versions of
{system}:

| library | licence | source package | in |
|---|---|---|---|
{table}

Each has a file here. The C++ library and, outside of the launcher, the C library are those of your system.

## Linking it with other versions

libseccomp and the GNU C Library are under the GNU Lesser General Public License, version 2.1 (LGPL-2.1.txt). You may
change them and link the program with what you changed, and may take it apart for that purpose. All that takes is
here: the source distribution ipybox_cpp-{version}.tar.gz, which is published beside this wheel, has all of ipybox's
source and the recipe. On Debian 12,

    apt-get source {lgpl}
    # change and install them, so that the static libraries are yours
    tar -xf ipybox_cpp-{version}.tar.gz && cd ipybox_cpp-{version} && scripts/wheel

makes the wheel again. Debian keeps every version of its sources at https://snapshot.debian.org.
"""


def query(root: Path, *words: str) -> str:
    """What dpkg-query says of the packages of a system."""
    return subprocess.run(["dpkg-query", f"--admindir={root / 'var/lib/dpkg'}", *words], check=True, capture_output=True,
                          text=True).stdout


def linked_packages(build: Path, root: Path) -> set[str]:
    """The packages of the static libraries in the last command, which links the program."""
    command = subprocess.run(["ninja", "-C", build, "-t", "commands", "ipybox"], check=True, capture_output=True,
                             text=True).stdout.splitlines()[-1]
    names = set(re.findall(r"-l:(lib[\w.+-]+\.a)\b", command))
    names |= {Path(path).name for path in re.findall(r"(?<=\s)(/\S+\.a)\b", command) if path.startswith(str(root / "usr"))}
    if not names:
        raise SystemExit(f"{build} was not made with -Dportable=true: nothing is linked statically there")
    owners = set()
    for name in sorted(names):
        owners |= {line.split(":")[0] for line in query(root, "--search", f"*/{name}").splitlines()}
    return owners


def boost_licence(text: str) -> str:
    """Debian's file has the licences of all of Boost's documentation and tools, in two megabytes."""
    found = re.search(r"^License: BSL-1\.0\n((?: .*\n)+)", text, re.M)
    if found is None:
        raise SystemExit("the copyright file of Boost has no text of the Boost Software License")
    return re.sub(r"^ \.?", "", found[1], flags=re.M)


def main() -> None:
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    place, build, root = map(Path, sys.argv[1:])
    for package in sorted(linked_packages(build, root)):
        if SAME_AS.get(package, package) not in LINKED:
            raise SystemExit(f"{package} is linked into the program but not listed in {sys.argv[0]}: add its licence there "
                             "and to docs/dependencies.md")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    rows, lgpl = [], []
    for package, (name, licence, where) in LINKED.items():
        text = (root / "usr/share/doc" / package / "copyright").read_text()
        file = place / (re.sub(r"\W+", "-", name.lower().replace("+", "p")) + ".txt")
        file.write_text(boost_licence(text) if name == "Boost" else text)
        # Several architectures of a package have the same source.
        source = query(root, "--show", "--showformat", "${source:Package} ${source:Version}\\n", package).split("\n")[0]
        rows.append(f"| {name} | {licence} | {source} | {where} |")
        if licence.startswith("LGPL"):
            lgpl.append(source.replace(" ", "="))
    for name in ("LGPL-2.1", "Apache-2.0"):
        shutil.copy(COMMON / name, place / f"{name}.txt")
    checkout = Path(__file__).resolve().parents[1]
    version = re.search(r"^  version: '(.*)',$", (checkout / "meson.build").read_text(), re.M)[1]
    release = dict(re.findall(r'^(\w+)="?(.*?)"?$', Path("/etc/os-release").read_text(), re.M))
    (place / "LINKED.md").write_text(TEXT.format(system=release["PRETTY_NAME"], table="\n".join(rows), version=version,
                                                 lgpl=" ".join(lgpl)))


if __name__ == "__main__":
    main()
