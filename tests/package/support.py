"""What the tests of the Python package share."""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bindings/python"
SUPPORT = Path(os.environ["IPYBOX_TEST_SUPPORT"])
PYTHON = os.environ["IPYBOX_TEST_PYTHON"]  # of kernels: a sandbox's user can reach it
PROGRAM = os.environ["IPYBOX_TEST_PROGRAM"]
NODE_MODULES = Path(os.environ["IPYBOX_TEST_NODE_MODULES"])
OWN_SERVER = {"command": PYTHON, "args": [str(SUPPORT / "mcp_server.py")]}

sys.path.insert(0, str(PACKAGE))
os.environ["IPYBOX_PROGRAM"] = PROGRAM


def environment(**more: str) -> dict[str, str]:
    """Of a program that uses the package of this checkout, and the program under test."""
    return {**os.environ, "PYTHONPATH": str(PACKAGE), "IPYBOX_PROGRAM": PROGRAM, "IPYBOX_PYTHON": PYTHON,
            "IPYBOX_PLUGIN_PATH": os.environ["IPYBOX_TEST_PLUGINS"], **more}


def virtual_environment(name: str, packages: list[str], python: str = sys.executable) -> Path:
    """A virtual environment below build/ with these packages of PyPI; made once, and again when the
    list changes. Where root cannot be told apart from others, everybody may read it."""
    place = ROOT / "build/package-tests" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    wanted = hashlib.sha256("\n".join([python, *packages]).encode()).hexdigest()
    stamp = place / "complete"
    with open(place.parent / f"{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([python, "-m", "venv", place], check=True)
            run([place / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                 *packages], timeout=900)
            stamp.write_text(wanted)
    return place


def run(command, timeout=300, **how) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; what it printed is in the error if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False,
                          stdin=subprocess.DEVNULL, **how)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n"
                             f"{done.stdout[-8000:]}{done.stderr[-8000:]}")
    return done


def interpreters() -> dict[str, str]:
    """At least two interpreters by version: those of pyenv and of the system and, where these are too
    few, those that uv of PyPI fetches."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path("~root/.pyenv").expanduser()))
    found: dict[str, str] = {}
    for version in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        on_path = shutil.which(f"python{version}")
        for place in [*map(str, pyenv.glob(f"versions/{version}.*/bin/python")), *([on_path] if on_path else [])]:
            if _is_version(place, version):
                found[version] = place
                break
    for version in ("3.10", "3.13"):
        if len(found) < 2 and version not in found:
            uv = virtual_environment("uv", ["uv"]) / "bin/uv"
            run([uv, "python", "install", version], timeout=600)
            found[version] = run([uv, "python", "find", version]).stdout.strip()
    return found


def _is_version(python: str, version: str) -> bool:
    try:
        said = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                              capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return False
    return said.stdout.strip() == version


def children(pid: int) -> list[int]:
    """The processes below one, the nearest first."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *children(child)]
    return found


def is_running(pid: int) -> bool:
    """Whether there is such a process that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds: float = 5.0) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Workspace(unittest.IsolatedAsyncioTestCase):
    """A test with a directory that sandboxed code may write, which is the current one meanwhile."""

    def setUp(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ipybox-package-")).resolve()
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.workspace = self.directory / "workspace"
        self.workspace.mkdir()
        for path in (self.directory, self.workspace):
            path.chmod(0o755)
            if os.geteuid() == 0:  # a sandbox drops root
                os.chown(path, 65534, 65534)
        before = os.getcwd()
        os.chdir(self.workspace)
        self.addCleanup(os.chdir, before)
        settings = os.environ.get("XDG_CONFIG_HOME")
        os.environ["XDG_CONFIG_HOME"] = str(self.directory / "settings")
        self.addCleanup(self._restore, settings)

    @staticmethod
    def _restore(settings: str | None) -> None:
        if settings is None:
            del os.environ["XDG_CONFIG_HOME"]
        else:
            os.environ["XDG_CONFIG_HOME"] = settings
