"""A machine of somebody who installs the wheel: a user without root, a home directory of their own, and neither
a checkout nor a compiler. Where the tests run as root, both are hidden, and the user is uid 65534."""
from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "build/wheel"
USER = 65534
# What a program that was run as the user may still start.
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "ld", "ninja", "meson", "cmake")


# dist/ may have the wheel of another machine, too.
WHEEL = f"*_{platform.machine()}.whl"


def built(pattern: str) -> Path:
    found = sorted((ROOT / "dist").glob(pattern))
    if len(found) != 1:
        raise AssertionError(f"dist/ has {len(found)} of {pattern}, not one: run scripts/wheel")
    return found[0]


def interpreters() -> dict[str, Path]:
    """One interpreter of each version from 3.10 on that this machine has, by its version."""
    candidates = [Path("/usr/bin/python3"), *Path("/usr/bin").glob("python3.1[0-9]"),
                  *Path("/usr/local/bin").glob("python3.1[0-9]"),
                  *Path.home().glob(".pyenv/versions/3.1[0-9]*/bin/python3"),
                  *Path.home().glob(".local/share/uv/python/cpython-3.1[0-9]*/bin/python3")]
    found: dict[str, Path] = {}
    for candidate in candidates:
        run = subprocess.run([candidate, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                             capture_output=True, text=True, timeout=60)
        if run.returncode == 0 and int(run.stdout.split(".")[1]) >= 10:
            found.setdefault(run.stdout.strip(), candidate)
    return dict(sorted(found.items(), key=lambda item: int(item[0].split(".")[1])))


class Machine:
    """Runs commands as that user."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="ipybox-wheel-", dir="/var/tmp"))
        self.home = self.place / "home"
        self.wheel = self.place / built(WHEEL).name
        shutil.copy(built(WHEEL), self.wheel)
        self.home.mkdir()
        # The installers, out of the checkout.
        shutil.copytree(next((TOOLS / "lib").glob("python3.*")) / "site-packages", self.place / "tools")
        (self.place / "tools-bin").mkdir()
        for name in ("uv", "uvx"):
            shutil.copy(TOOLS / "bin" / name, self.place / "tools-bin" / name)
        self.home_of_root = Path.home()
        self.place.chmod(0o755)
        if os.geteuid() == 0:
            for path in self.place.rglob("*"):
                os.chown(path, USER, USER, follow_symlinks=False)
            # Root runs it: neither it nor the place of its mounts is the user's.
            self.hiding = self._hiding()

    def _hiding(self) -> str:
        """In a mount namespace of its own: nothing there of the checkout, of root's home but for interpreters in it, and
        of compilers."""
        lines = ["set -eu", "mount --make-rprivate /"]
        kept = [path for path in (self.home_of_root / ".pyenv", self.home_of_root / ".local/share/uv/python") if path.is_dir()]
        aside = self.place / "aside"
        for number, path in enumerate(kept):
            (aside / str(number)).mkdir(parents=True)
            lines.append(f"mount --bind {shlex.quote(str(path))} {aside}/{number}")
        lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(self.home_of_root))}")
        for number, path in enumerate(kept):
            lines += [f"mkdir -p {shlex.quote(str(path))}", f"mount --move {aside}/{number} {shlex.quote(str(path))}"]
        if ROOT.is_dir() and self.home_of_root not in ROOT.parents:
            lines.append(f"mount -t tmpfs none {shlex.quote(str(ROOT))}")
        for name in COMPILERS:
            for directory in SYSTEM_PATH.split(":"):
                for file in {(Path(directory) / name).resolve(), *Path(directory).glob(f"{name}-[0-9]*")}:
                    if file.is_file():
                        lines.append(f"mount --bind /dev/null {file.resolve()}")
        lines.append(f'exec setpriv --reuid={USER} --regid={USER} --clear-groups -- "$@"')
        return "\n".join(lines) + "\n"

    def remove(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)

    def command(self, *words: object) -> list[str]:
        plain = [str(word) for word in words]
        if os.geteuid() != 0:
            return plain
        return ["unshare", "--mount", "--", "sh", "-c", self.hiding, "sh", *plain]

    def environment(self, **more: str) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                # A proxy before the package index may have an authority of this machine's own.
                "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1", **more}

    def try_to_run(self, *words: object, cwd: Path | None = None, timeout: float = 300, **more: str):
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=timeout, cwd=cwd or self.home,
                              env=self.environment(**more), stdin=subprocess.DEVNULL)

    def run(self, *words: object, cwd: Path | None = None, timeout: float = 300, **more: str) -> str:
        """What it printed; an AssertionError with all it said where it failed."""
        run = self.try_to_run(*words, cwd=cwd, timeout=timeout, **more)
        if run.returncode != 0:
            raise AssertionError(f"{shlex.join(map(str, words))}: exit code {run.returncode}\n{run.stdout}{run.stderr}")
        return run.stdout

    def directory(self, name: str) -> Path:
        path = self.home / name
        path.mkdir()
        if os.geteuid() == 0:
            os.chown(path, USER, USER)
        return path

    def uv(self, name: str = "uv") -> Path:
        return self.place / "tools-bin" / name


def remedy(text: str) -> str:
    """The command in the last pair of backquotes."""
    found = re.findall(r"`([^`]*)`", text)
    if not found:
        raise AssertionError(f"no command in: {text}")
    return found[-1]
