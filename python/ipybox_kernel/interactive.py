"""The IPython shell of a kernel of ipybox's own, without ipykernel. Loaded in a zygote too, which has no session."""
from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from IPython.core import page
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError
from IPython.core.formatters import DisplayFormatter, PlainTextFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

from .frames import TAPE

ONLY_IPYKERNEL = "{} needs ipykernel, which this kernel is started without: choose it with --kernel zmq (the field `kernel`)"


def _bundle(data: dict[str, Any], metadata: dict[str, Any] | None) -> dict[str, Any]:
    texts = {
        kind: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for kind, value in data.items()
    }
    return {"data": texts, "metadata": metadata or {}}


class Publisher(DisplayPublisher):
    def clear_output(self, wait: bool = False) -> None:
        pass  # what was shown has been sent

    def publish(
        self, data: Any, metadata: Any = None, source: Any = None, *, transient: Any = None, update: bool = False, **_: Any
    ) -> None:
        TAPE.send("d", _bundle(data, metadata) | {"transient": transient or {}, "update": update})


class Hook(DisplayHook):
    exec_result = None  # set twice for a cell: no trait, whose setting takes ten times as long

    @staticmethod
    def semicolon_at_end_of_expression(expression: str) -> bool:
        # What is asked of each result, and answered by a tokenizer.
        return ";" in expression and DisplayHook.semicolon_at_end_of_expression(expression)

    def compute_format_data(self, result: Any) -> Any:
        if type(result) in _BARE and self._is_shown_plainly(result):
            with contextlib.suppress(Exception):  # which IPython shows
                return {"text/plain": repr(result)}, {}
        return super().compute_format_data(result)

    def _is_shown_plainly(self, value: Any) -> bool:
        """Whether nobody has said how else. IPython asks a dozen formatters, which takes longer than a small cell."""
        display = self.shell.display_formatter
        if type(display) is not DisplayFormatter:
            return False
        plain = display.formatters["text/plain"]
        for formatter in (display.ipython_display_formatter, display.mimebundle_formatter, *display.formatters.values()):
            if formatter is plain:
                continue
            if formatter.singleton_printers or formatter.deferred_printers:
                return False
            printers = formatter.type_printers  # none, as a rule
            if printers and any(kind in printers for kind in type(value).__mro__):
                return False
        try:
            return plain.lookup(value) is _AS_REPR
        except KeyError:
            return False

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        # No code of the cell follows on the value of its last expression, as a rule.
        put = TAPE.keep if self.shell.ast_node_interactivity == "last_expr" else TAPE.send
        put("r", _bundle(format_dict, md_dict))

    def log_output(self, format_dict: Any) -> None:
        # Without a history nobody can ask for it, and it would be held for good.
        if self.shell.logger.log_output and "text/plain" in format_dict:
            self.shell.logger.log_write(format_dict["text/plain"], "output")

    def finish_displayhook(self) -> None:
        # An empty text behind each result would wake the helper.
        if getattr(self.shell, "separate_out2", ""):
            super().finish_displayhook()
        self._is_active = False


class Shell(InteractiveShell):
    display_pub_class = Type(Publisher)
    displayhook_class = Type(Hook)
    run: Any = None  # runner.Run
    last_execution_succeeded, last_execution_result = True, None  # no traits either

    @property
    def kernel(self) -> Any:
        # Whoever looks whether it is there finds that it is not; whoever uses it reads why.
        raise AttributeError(ONLY_IPYKERNEL.format("get_ipython().kernel"))

    def init_io(self) -> None:
        pass

    def enable_gui(self, gui: Any = None) -> None:
        pass

    def ask_exit(self) -> None:
        self.run.leave()

    def atexit_operations(self) -> None:
        """Lets go of what the user's names hold (files that have to be flushed), and prepares for nothing more."""
        for name in set(self.user_ns) - {"__builtin__", "__builtins__", "__name__"}:
            del self.user_ns[name]
        self.last_execution_result = None
        self.clear_main_mod_cache()
        self.displayhook.flush()  # and collects what holds itself
        self._atexit_once_called = True  # else IPython would do as much, and undo a history that is not in use
        super().atexit_operations()

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        cancelled = self.run.cancelled and etype is asyncio.CancelledError
        try:
            value = str(evalue)
        except Exception:
            value = f"<{etype.__name__}, whose text cannot be made>"
        self.run.show_error("KeyboardInterrupt" if cancelled else etype.__name__, value, stb)


# Values that have no way of their own to be shown.
_BARE = frozenset((bool, bytes, int, str))
_AS_REPR = PlainTextFormatter().lookup(1)

# What a session begins with, as a rule.
FIRST_CELLS = ("pass", "1+1", "print(1)")


@contextlib.contextmanager
def forgotten(shell: Shell) -> Iterator[None]:
    """Of cells that run meanwhile stays only what they have imported, read and written in memory."""
    names, hidden = dict(shell.user_ns), dict(shell.user_ns_hidden)
    yield
    for namespace, before in ((shell.user_ns, names), (shell.user_ns_hidden, hidden)):
        namespace.clear()
        namespace.update(before)
    shell.user_ns["_oh"].clear()
    # What differs from the names is taken for the user's.
    for name in ("_", "__", "___"):
        setattr(shell.displayhook, name, names[name])
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)


def rehearse(shell: Shell, cells: Iterable[str] = FIRST_CELLS) -> None:
    with forgotten(shell):
        for cell in cells:
            shell.run_cell(cell, store_history=False)
            shell.events.trigger("post_execute")


def build_shell() -> Shell:
    # No history, no colours.
    config = Config({
        "HistoryManager": {"enabled": False},
        "InteractiveShell": {"colors": "nocolor", "autoindent": False},
    })
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a home directory that is not there
        shell: Shell = Shell.instance(config=config)  # type: ignore[no-untyped-call]
    # Which is not in use, and has nothing to close at the end.
    if finalizer := getattr(shell.history_manager, "_finalizer", None):
        finalizer.detach()
    shell._tee = lambda channel: contextlib.nullcontext()  # type: ignore[method-assign,assignment]
    shell.set_hook("show_in_pager", page.as_hook(page.display_page), 90)
    _refuse_comms()
    return shell


def _refuse_comms() -> None:
    try:
        import comm
    except ImportError:
        return

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(ONLY_IPYKERNEL.format("a comm (a widget with a front end)"))

    comm.create_comm = comm.get_comm_manager = refuse


# What IPython's transformers look for: magics, shell commands, help, automatic calls, prompts, an
# indented or empty first line.
_MEANT_FOR_THEM = re.compile(r"[%!?\f\t\r]|\A\s|^\s*(?:[/,;]|>>>|\.\.\.|In ?\[)|\A\Z", re.MULTILINE)
_WORD = re.compile(r"[^\W\d]\w*")
_VALUE = re.compile(r"[0-9(\[{'\"-]")


class Plain:
    """Knows cells that IPython takes as they are: it needs half of a small cell's time to find that out, and
    milliseconds for a large one."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._own = self._transformers()

    def _transformers(self) -> list[list[Any]]:
        m = self._shell.input_transformer_manager
        parts = (m.cleanup_transforms, m.line_transforms, m.token_transformers,
                 self._shell.input_transformers_post, self._shell.ast_transformers)
        return [list(part) for part in parts]

    def is_plain(self, code: str) -> bool:
        if _MEANT_FOR_THEM.search(code) is not None or self._own != self._transformers():
            return False
        if "\n" in code.strip():
            return True
        # A single line may be a magic without its %, or something that calls itself.
        word = _WORD.match(code)
        if word is None:
            return _VALUE.match(code) is not None
        value = self._shell.user_ns.get(word[0])
        return (
            word[0] not in self._shell.magics_manager.magics["line"]
            and not hasattr(value, "rewrite")
            and type(value).__name__ != "Macro"
        )

    def transform(self, code: str) -> tuple[str, Any]:
        """The cell as Python, and what went wrong."""
        if self.is_plain(code):
            return code.removesuffix("\n") + "\n", None
        try:
            return self._shell.transform_cell(code), None
        except Exception:
            return code, sys.exc_info()


__all__ = ["ONLY_IPYKERNEL", "Plain", "Shell", "StdinNotImplementedError", "build_shell"]
