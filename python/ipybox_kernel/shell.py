"""Shell commands ask before they run: `!command`, `%%bash` and the like.

A guard written in Python, no security boundary: it stops code that starts commands in the usual
ways, not code that sets out to get around it. What commands can do is limited by the sandbox.
"""
from __future__ import annotations

import functools
import os
import sys
from contextvars import ContextVar
from typing import Any, Callable

from .client import send

# While a command runs that was approved. A context follows IPython into the thread it starts
# scripts in.
_approved: ContextVar[bool] = ContextVar("ipybox_shell_approved", default=False)

_PROCESS_EVENTS = frozenset({
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn",
})

_STARTERS = ("execl", "execle", "execlp", "execlpe", "execv", "execve", "execvp", "execvpe",
             "posix_spawn", "posix_spawnp",
             "spawnl", "spawnle", "spawnlp", "spawnlpe", "spawnv", "spawnve", "spawnvp", "spawnvpe")


class DirectCallRuntimeError(RuntimeError, OSError):
    """A process was to be started in another way than by the shell escapes.

    An OSError too: libraries that look for a program expect one, and go on without it.
    """


def guard(shell: Any, only: bool) -> None:
    """Makes the shell escapes ask; with `only`, refuses every other way to start a process."""
    expand = shell.var_expand

    def var_expand(cmd: str, depth: int = 0, *rest: Any, **named: Any) -> str:
        if _approved.get():
            return cmd  # it was expanded before it was approved
        return expand(cmd, depth + 1, *rest, **named)

    shell.var_expand = var_expand

    def asking(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def ask(cmd: str, *rest: Any, **named: Any) -> Any:
            if _approved.get():
                return run(cmd, *rest, **named)
            cmd = expand(cmd, depth=1 + named.get("depth", 0))
            return _ask("shell", cmd, lambda: run(cmd, *rest, **named))

        return ask

    for name in ("system", "system_piped", "system_raw", "getoutput"):
        setattr(shell, name, asking(getattr(shell, name)))

    magics = shell.magics_manager
    scripts = magics.registry["ScriptMagics"]
    script = scripts.shebang

    @functools.wraps(script)
    def shebang(line: str, cell: str) -> Any:
        # Of %%bash and %%sh the cell is all there is; else the line says what is to run.
        command = cell if line.strip() in ("bash", "sh") else f"%%script {line}\n{cell}"
        return _ask("shell_magic", command, lambda: script(line, cell))

    shebang.parser = script.parser  # type: ignore[attr-defined]
    scripts.shebang = magics.magics["cell"]["script"] = shebang

    if only:
        sys.addaudithook(_refuse_processes)
        # Some fork before anything can be refused, and the hook knows none by its name.
        for name in _STARTERS:
            if hasattr(os, name):
                setattr(os, name, _refusing(getattr(os, name)))


def _ask(tool: str, command: str, run: Callable[[], Any]) -> Any:
    send("ipybox", tool, {"cmd": command})
    token = _approved.set(True)
    try:
        return run()
    finally:
        _approved.reset(token)


def _refuse_processes(event: str, _: Any) -> None:
    if event in _PROCESS_EVENTS:
        _refuse("subprocess" if event == "subprocess.Popen" else f"{event}()")


def _refuse(what: str) -> None:
    if not _approved.get():
        raise DirectCallRuntimeError(
            f"Direct {what} calls are not allowed: use !command, %%bash or %%sh, which ask for approval")


def _refusing(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def refuse(*arguments: Any, **named: Any) -> Any:
        _refuse(f"os.{run.__name__}()")
        return run(*arguments, **named)

    return refuse
