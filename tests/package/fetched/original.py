"""The tests of the original, from its repositories: fetched, never copied into this one.

They come from GitHub, or from where $IPYBOX_ORIGINAL says: a path or URL with `{}` in the place of
the repository's name, such as /mirror/{}.git.
"""
from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from support import ROOT

WHERE = "https://github.com/gradion-ai/{}"
# What its lock file has, where another version would not do.
PACKAGES = ["mcp==1.26.0", "mcpygen==0.1.4", "pytest==8.4.2", "pytest-asyncio==1.3.0", "pytest-timeout==2.4.0",
            "flaky==3.8.1", "ipykernel", "jupyter-kernel-gateway", "matplotlib", "pydantic>=2.7",
            "aiohttp"]


@dataclass(frozen=True)
class Repository:
    """A repository whose tests run.

    Attributes:
        name: On GitHub.
        commit: Whose tests are taken.
        imports: What is changed in its tests: the modules that they import.
        left_out: Tests that cannot apply, by their ids' beginnings, and why.
        skipped: How many skip themselves: those of macOS.
    """

    name: str
    commit: str
    imports: dict[str, str] = field(default_factory=dict[str, str])
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    skipped: int = 0


IPYBOX = Repository(
    "ipybox", "264ed6c9cb0bdd38a50d532299090af15ba57f3c", skipped=4,
    left_out={
        "tests/unit/test_code_exec_helpers.py":
            "its private classes that keep time; here the host does, which the integration tests see",
        "tests/unit/test_kernel_init.py":
            "the text of the code with which it prepares kernels; ipybox_kernel prepares ours",
        "tests/unit/test_rewrite_traceback.py":
            "a private function on lines of tracebacks; ours leave the kernel without internals",
        "tests/unit/test_kernel_gateway.py":
            "replaces asyncio.create_subprocess_exec, by which it starts the gateway; the host starts ours",
        "tests/unit/test_kernel_init_timeout.py::TestKernelClientInitTimeout::test_init_kernel":
            "replaces a private method, and calls another",
        "tests/unit/test_kernel_init_timeout.py::TestKernelClientInitTimeout::test_connect":
            "replaces private methods",
    })
MCPYGEN = Repository(
    "mcpygen", "e81981fca2564f254abad365b666e1763be8ecf2",
    imports={"mcpygen.apigen": "ipybox.apigen", "mcpygen.tool_exec.approval.client": "ipybox.tools",
             "mcpygen.tool_exec.client": "ipybox.tools", "mcpygen.tool_exec.server": "ipybox.tools"},
    left_out={
        "tests/unit/test_apigen.py": "private functions that write code",
        "tests/unit/test_cli.py": "its command; ours is `ipybox apigen`",
        "tests/unit/test_replace_variables.py": "a private function; the host replaces variables",
        "tests/integration/test_approval_channel.py":
            "a socket for approval that whatever reaches it can answer, code in kernels too",
        "tests/integration/test_apigen.py::TestGenerateMcpSources::test_tool_with":
            "imports a generated package outside of a kernel",
        "tests/integration/test_apigen.py::TestGenerateMcpSources::test_hyphenated_tool_name_works":
            "imports a generated package outside of a kernel",
        "tests/integration/test_apigen.py::TestGenerateMcpSources::test_multiple_tool_calls":
            "imports a generated package outside of a kernel",
        "tests/integration/test_apigen.py::TestAsyncGeneratedApi":
            "imports a generated package outside of a kernel",
        "tests/integration/test_tool_exec.py::TestToolServerLifecycle::test_status_endpoint":
            "asks without a token; ours answers nobody who has none",
        "tests/integration/test_tool_exec.py::TestToolRunnerReset::test_reset":
            "counts in a private attribute; ToolServer.servers() tells here",
    })


class Unreachable(Exception):
    """The repository cannot be had."""


def fetch(repository: Repository) -> Path:
    """The directory with a repository's tests, as they are but for their imports."""
    place = ROOT / "build/package-tests" / f"original-{repository.name}"
    clone = place / "repository.git"
    place.mkdir(parents=True, exist_ok=True)
    if _git(clone, "cat-file", "-e", repository.commit).returncode != 0:
        shutil.rmtree(clone, ignore_errors=True)
        source = os.environ.get("IPYBOX_ORIGINAL", WHERE).replace("{}", repository.name)
        done = subprocess.run(["git", "clone", "--quiet", "--bare", source, clone], capture_output=True, text=True,
                              timeout=300, check=False, stdin=subprocess.DEVNULL,
                              env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
        if done.returncode != 0:
            raise Unreachable(f"{done.stderr.strip()}\nset IPYBOX_ORIGINAL to a place that can be reached, such as "
                              "/mirror/{}.git")
        if _git(clone, "cat-file", "-e", repository.commit).returncode != 0:
            raise Unreachable(f"{source} has no commit {repository.commit} of {repository.name}; in IPYBOX_ORIGINAL, "
                              "{} stands for that name")
    tree = place / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    archive = subprocess.run(["git", "-C", clone, "archive", repository.commit, "tests"], capture_output=True,
                             check=True).stdout
    subprocess.run(["tar", "--extract", "--directory", tree], input=archive, check=True)
    for file in (tree / "tests").rglob("*.py"):
        text = changed = file.read_text()
        for theirs, ours in repository.imports.items():
            changed = changed.replace(f"from {theirs} import", f"from {ours} import")
        if changed != text:
            file.write_text(changed)
    return tree


def _git(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", clone, *arguments], capture_output=True, text=True, check=False)
