"""Runs code actions: an IPython kernel that calls MCP tools under approval."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union

from ._approval import ApprovalRequest, Decision, Policy, PolicyCallable, ToolCall, split_policy
from ._errors import (
    CodeExecutionError,
    CodeExecutionTimeoutError,
    CodeRefusedError,
    HostDiedError,
    IpyboxError,
    KernelDiedError,
    OutputLimitError,
)
from ._host import Connection, call_soon, connection
from ._lifecycle import Lifecycle, one_at_a_time
from ._options import (
    absolute,
    changed_environment,
    own_python,
    sandbox_name,
    sandbox_settings,
    seconds,
)
from ._results import (
    CallProgress,
    CodeCompletions,
    CodeExecutionChunk,
    CodeExecutionDisplay,
    CodeExecutionResult,
    CodeVariable,
    InputRequest,
    ServerInfo,
    Span,
    ToolInfo,
    Violation,
)
from ._runs import Asking, Questions, Run
from ._servers import is_for, note_confined, servers_for, start_directory, tell

__all__ = [
    "ApprovalRequest",
    "CodeExecutionChunk",
    "CodeExecutionDisplay",
    "CodeExecutionError",
    "CodeExecutionResult",
    "CodeExecutionTimeoutError",
    "CodeExecutor",
    "CodeRefusedError",
    "Decision",
    "InputRequest",
    "KernelDiedError",
    "OutputLimitError",
    "ToolCall",
]

JsonObject = dict[str, Any]
PathLike = Union[str, "os.PathLike[str]"]
Event = Union[
    ApprovalRequest, CodeExecutionChunk, CodeExecutionDisplay, InputRequest, CodeExecutionResult
]
logger = logging.getLogger("ipybox")
# Bytes of a file in one message.
PART = 4 << 20


class CodeExecutor(Lifecycle):
    """Executes Python in an IPython kernel, from which the code calls MCP tools under approval.

    State lasts from one execution to the next. One execution runs at a time; several executors run
    beside each other. Belongs to the event loop on which `start()` was called.

    Example:
        ```python
        await generate_mcp_sources("fetch", {"command": "uvx", "args": ["mcp-server-fetch"]},
                                   Path("mcptools"))
        async with CodeExecutor(sandbox=True) as executor:
            async for item in executor.stream(code):
                match item:
                    case ApprovalRequest():
                        await item.accept()
                    case CodeExecutionResult():
                        print(item.text)
        ```
    """

    def __init__(
        self,
        tool_server_host: str = "localhost",
        tool_server_port: int | None = None,
        kernel_gateway_host: str = "localhost",
        kernel_gateway_port: int | None = None,
        kernel_env: dict[str, str] | None = None,
        working_dir: PathLike | None = None,
        images_dir: PathLike | None = None,
        approval_timeout: float | None = None,
        connect_timeout: float = 30,
        kernel_init_timeout: float = 10,
        sandbox: bool | str = False,
        sandbox_config: PathLike | Mapping[str, Any] | None = None,
        log_level: str = "WARNING",
        approve_tool_calls: bool = True,
        approve_shell_cmds: bool = False,
        require_shell_escape: bool = False,
        *,
        approval: Policy | None = None,
        workspace: PathLike | None = None,
        python: PathLike | None = None,
        servers: Mapping[str, Mapping[str, Any]] | None = None,
        variables: Mapping[str, str] | None = None,
        sandbox_options: Mapping[str, Any] | None = None,
        allowed_hosts: Iterable[str] = (),
        package_hosts: Iterable[str] | None = None,
        kernel: str = "auto",
        kernel_options: Mapping[str, Any] | None = None,
        async_api: bool = False,
        session: str = "default",
        audit: PathLike | Mapping[str, Any] | None = None,
        allow_input: bool = False,
        exact_numbers: bool = False,
        programs: Literal["allow", "deny", "ask"] = "allow",
        check: bool = False,
        tool_timeout: float | None = 300,
        interrupt_grace: float = 5,
        timeout_excludes_approval: bool = True,
        background_calls: bool = False,
        write_protected: Iterable[PathLike] = (),
        allow_home: bool = False,
        allow_write: Iterable[PathLike] = (),
        protect_strict: bool = False,
        max_output: int | None = None,
        limits: Mapping[str, int] | None = None,
        on_violation: Callable[[Violation], None] | None = None,
        on_progress: Callable[[CallProgress], None] | None = None,
        on_span: Callable[[Span], None] | None = None,
    ) -> None:
        """Starts nothing yet. Times are seconds.

        Args:
            tool_server_host: Accepted for programs of the original; tool calls take no TCP here.
            tool_server_port: The same.
            kernel_gateway_host: Accepted for programs of the original; kernels take no TCP here.
            kernel_gateway_port: The same.
            kernel_env: Beside PATH, the whole environment of the kernel.
            working_dir: The directory of the code, restored after every execution; None: the
                workspace, from which code may go elsewhere.
            images_dir: Where images of executions are saved; None: `images` in the current
                directory.
            approval_timeout: After which an unanswered approval request fails; None: never.
            connect_timeout: To start an MCP server.
            kernel_init_timeout: To start the kernel.
            sandbox: True confines the code by `bubblewrap`; a string names another sandbox. With
                False nothing confines it: it may do whatever this program may.
            sandbox_config: A JSON file, or its content, in sandbox-runtime's format.
            log_level: What the host process logs, from DEBUG to CRITICAL; its lines go to the
                logger `ipybox`. The executor that starts the host process decides.
            approve_tool_calls: False allows every tool call without asking.
            approve_shell_cmds: Whether `!` commands, `%%bash` and `%%sh` are asked about.
            require_shell_escape: Whether code must start programs by `!`. A guard in Python; what
                holds is `programs`. Needs approve_shell_cmds.
            approval: The policy for calls: "ask", "allow", "deny", an object as docs/approval.md
                describes, or a callable that gets a `ToolCall`. What it asks comes out of
                `stream()`. In an object a callable may stand in the place of a policy, once.
            workspace: What the code may write in a sandbox; None: `working_dir`, or else the
                current directory.
            python: The interpreter of kernels, with ipykernel and pydantic; None: this one if it
                has them, else one that is found.
            servers: MCP servers by name, as in an `mcpServers` block. Those of
                `generate_mcp_sources()` are registered by themselves.
            variables: For `${NAME}` in server parameters, beside the environment.
            sandbox_options: Fits the sandbox's schema (`ipybox plugins`).
            allowed_hosts: What the code may reach, such as `"example.org"` or `"*.example.org"`.
            package_hosts: What `install_package()` may reach; None: PyPI.
            kernel: The backend: "auto", "fork", "zmq", or "gateway" for kernels elsewhere.
            kernel_options: Fits the backend's schema.
            async_api: Whether `run()` of what `add_server()` generates is a coroutine function.
            session: The name of the session in policies and in the audit log.
            audit: A file to which every execution and call is appended; or an object with `file`
                and more of the host protocol's `audit`.
            allow_input: Whether `input()` of code asks, by an `InputRequest` of `stream()`.
            exact_numbers: Whether numbers in results of tools that are no integers become Decimal.
            programs: Whether code may start programs; "ask": each is a call that is approved.
            check: Whether every cell is looked through by a type checker before it runs.
            tool_timeout: For a tool to answer or report progress; None: unlimited.
            interrupt_grace: For code to end once it was interrupted, before its kernel is killed.
            timeout_excludes_approval: Whether an execution's timeout stands still while somebody is
                asked.
            background_calls: Whether tools can be called between executions.
            write_protected: Files of this machine that code must not change.
            allow_home: Whether a home directory may be the workspace.
            allow_write: Paths in the workspace that code may write although programs of this
                machine run them.
            protect_strict: Whether what runs on a person's act is write-protected, too.
            max_output: Bytes of one execution's output; None: 1 GiB.
            limits: Of the kernel, such as `{"memory_total": 2 << 30}`.
            on_violation: Told of what the sandbox stops, at once.
            on_progress: Told how far tool calls are.
            on_span: Told of executions, calls and approvals, for tracing.

        Raises:
            ValueError: An argument is none of what is accepted.
        """
        if require_shell_escape and not approve_shell_cmds:
            raise ValueError("require_shell_escape=True needs approve_shell_cmds=True")
        if approval is not None and not approve_tool_calls:
            raise ValueError(
                "approve_tool_calls=False and approval exclude each other: leave one out"
            )
        self.tool_server_host = tool_server_host
        self.tool_server_port = tool_server_port
        self.kernel_gateway_host = kernel_gateway_host
        self.kernel_gateway_port = kernel_gateway_port
        self.kernel_env = dict(kernel_env or {})
        self.working_dir = Path(working_dir).resolve() if working_dir is not None else None
        self.images_dir = Path(images_dir) if images_dir is not None else None
        self.approval_timeout = approval_timeout
        self.connect_timeout = connect_timeout
        self.kernel_init_timeout = kernel_init_timeout
        self.sandbox = sandbox
        self.sandbox_config = sandbox_config
        self.log_level = log_level
        self.approve_tool_calls = approve_tool_calls
        self.approve_shell_cmds = approve_shell_cmds
        self.require_shell_escape = require_shell_escape
        self.session = session

        policy: Policy = (
            approval if approval is not None else ("ask" if approve_tool_calls else "allow")
        )
        self._policy: str | JsonObject
        self._callable: PolicyCallable | None
        self._policy, self._callable = split_policy(policy)
        self._workspace = workspace
        self._servers = {name: dict(params) for name, params in (servers or {}).items()}
        self._variables = dict(variables or {})
        self._on_violation = on_violation
        self._on_progress = on_progress
        self._on_span = on_span
        self._options: JsonObject = {
            "sandbox": sandbox_name(sandbox),
            "kernel": kernel,
            "kernel_env": self.kernel_env,
            "session": session,
            "approval_timeout": seconds(approval_timeout, "approval_timeout"),
            "connect_timeout": seconds(connect_timeout, "connect_timeout"),
            "kernel_init_timeout": seconds(kernel_init_timeout, "kernel_init_timeout"),
            "tool_timeout": seconds(tool_timeout, "tool_timeout"),
            "interrupt_grace": seconds(interrupt_grace, "interrupt_grace"),
            "approve_shell_cmds": approve_shell_cmds,
            "require_shell_escape": require_shell_escape,
            "async_api": async_api,
            "allow_input": allow_input,
            "exact_numbers": exact_numbers,
            "programs": programs,
            "check": check,
            "timeout_excludes_approval": timeout_excludes_approval,
            "background_calls": background_calls,
            "allow_home": allow_home,
            "allow_write": [os.fspath(path) for path in allow_write],
            "write_protected": [absolute(path) for path in write_protected],
            "protect_strict": protect_strict,
            "allowed_hosts": list(allowed_hosts),
            "spans": on_span is not None,
        }
        optional = {
            "sandbox_config": sandbox_settings(sandbox, sandbox_config),
            "sandbox_options": None if sandbox_options is None else dict(sandbox_options),
            "kernel_options": None if kernel_options is None else dict(kernel_options),
            "package_hosts": None if package_hosts is None else list(package_hosts),
            "python": absolute(python) if python is not None else own_python(),
            "audit": _audit(audit),
            "max_output": max_output,
            "limits": None if limits is None else dict(limits),
        }
        self._options.update({name: value for name, value in optional.items() if value is not None})

        self._learner = _Learner(weakref.WeakMethod(self._learn))
        self._link: Connection | None = None
        self._handle = ""
        self._place: Path | None = None
        self._run: Run | None = None
        self._questions: Questions | None = None
        self._finalizer: weakref.finalize[..., CodeExecutor] | None = None

    async def _enter(self) -> None:
        await self.start()

    async def _exit(self) -> None:
        await self.stop()

    # Its life.

    @one_at_a_time("the executor is being started already")
    async def start(self) -> None:
        """Starts the kernel. Works again after `stop()`, and after the host process died.

        Raises:
            IpyboxError: The kernel cannot start; `code` says what kind of failure it is.
            RuntimeError: It was started already.
        """
        if self._link is not None:
            if not self._link.ended:
                raise RuntimeError(
                    "the executor was started already: call reset() for a new kernel"
                )
            self._leave()
        link = connection(self.log_level)
        handle = ""
        try:
            options = dict(
                self._options,
                approval=self._policy,
                **self._places(),
                variables={**changed_environment(link.environment), **self._variables},
            )
            handle = await self._create(link, options)
            if self._confined:
                protects = (
                    options["sandbox"] in ("bubblewrap", "srt") and not options["allow_write"]
                )
                note_confined(self.workspace, protects)
            await self._register_all(link, handle)
            await link.request("session/start", {"session": handle})
        except BaseException:
            if handle:
                link.unlisten(handle)
                link.forget("session/close", {"session": handle})
            link.release()
            raise
        self._link, self._handle = link, handle
        self._finalizer = weakref.finalize(self, _discard, link, handle)
        self._finalizer.atexit = False

    async def stop(self) -> None:
        """Ends the kernel and its MCP servers; what runs ends as if it was cancelled."""
        link, handle, run = self._link, self._handle, self._run
        if link is None:
            return
        self.cancel()
        try:
            if not link.ended:
                await asyncio.shield(link.request("session/close", {"session": handle}))
            if run is not None:
                await run.ended()
        except HostDiedError:
            pass  # and so did the kernel
        finally:
            self._leave()

    async def reset(self) -> None:
        """A new kernel with empty state. MCP servers stop, and start again on their next use."""
        link, handle = self._started()
        self.cancel()
        await link.request("session/reset", {"session": handle})

    def cancel(self) -> None:
        """Interrupts what runs, if anything: its `stream()` ends without a result, its `execute()`
        returns one without text. The kernel's state stays. From another thread than that of the
        event loop, too."""
        run = self._run
        if run is not None:
            run.cancel()

    # Executions.

    async def stream(
        self,
        code: str,
        timeout: float | None = None,
        chunks: bool = False,
        *,
        displays: bool = False,
        streams: bool = False,
        check: bool = False,
        silent: bool = False,
        measure: bool = False,
        keep_text: bool = True,
    ) -> AsyncIterator[Event]:
        """Executes code, and yields what comes of it.

        Leaving the loop early, or cancelling its task, interrupts the code.

        Args:
            code: Python, as in a cell of a notebook.
            timeout: Seconds after which it is interrupted; while somebody is asked, they do not
                count. None: never.
            chunks: Yields output as it comes.
            displays: Yields displays as they come.
            streams: The result has standard output and standard error, too.
            check: The code is looked through first, and does not run if that finds faults.
            silent: Leaves no trace in IPython's history, and shows no value.
            measure: The result says which files changed, and how much memory was used.
            keep_text: False: the result is without the text that was yielded as chunks.

        Yields:
            `ApprovalRequest` for calls that nobody has decided on, `CodeExecutionChunk`,
            `CodeExecutionDisplay` and `InputRequest` where asked for; last a `CodeExecutionResult`,
            unless the execution was cancelled.

        Raises:
            CodeExecutionError: The code failed; the message has the traceback.
            asyncio.TimeoutError: It took too long. The kernel stays usable.
            IpyboxError: It could not run, as when another execution runs (`busy`).
        """
        how: JsonObject = {
            "chunks": chunks,
            "displays": displays,
            "streams": streams,
            "check": check,
            "silent": silent,
            "measure": measure,
            "text": "whole" if keep_text else "none",
        }
        run = await self._begin(code, timeout, how, Asking(self._callable))
        try:
            while True:
                event = await run.next()
                if event is None:
                    return
                yield event
                if isinstance(event, CodeExecutionResult):
                    return
        finally:
            await self._end(run)

    async def execute(
        self,
        code: str,
        timeout: float | None = None,
        *,
        streams: bool = False,
        check: bool = False,
        silent: bool = False,
        measure: bool = False,
    ) -> CodeExecutionResult:
        """Executes code with every call allowed that the policy asks about; its denials stand.

        Args:
            code: Python, as in a cell of a notebook.
            timeout: Seconds after which it is interrupted; None: never.
            streams: The result has standard output and standard error, too.
            check: The code is looked through first, and does not run if that finds faults.
            silent: Leaves no trace in IPython's history, and shows no value.
            measure: The result says which files changed, and how much memory was used.

        Returns:
            What came of it; without text and images if it was cancelled by `cancel()`.

        Raises:
            CodeExecutionError: The code failed; the message has the traceback.
            asyncio.TimeoutError: It took too long. The kernel stays usable.
            IpyboxError: It could not run.
        """
        how: JsonObject = {"streams": streams, "check": check, "silent": silent, "measure": measure}
        if self._callable is None:
            how["approve"] = "all"
        run = await self._begin(code, timeout, how, Asking(self._callable, allow_rest=True))
        try:
            while True:
                event = await run.next()
                if event is None:
                    return CodeExecutionResult(text=None, images=[], status="cancelled")
                if isinstance(event, CodeExecutionResult):
                    return event
                if isinstance(event, InputRequest):  # nobody is there to type
                    await event.end_of_file()
        finally:
            await self._end(run)

    async def variables(self) -> list[CodeVariable]:
        """The variables of the code that ran so far, 1000 at most. None of their code runs."""
        answer = await self._ask("session/variables")
        return [CodeVariable(**variable) for variable in answer["variables"]]

    async def complete(self, code: str) -> CodeCompletions:
        """How code can go on that ends at the cursor. None of the user's code runs."""
        return CodeCompletions.of(code, await self._ask("session/complete", code=code))

    # MCP servers.

    async def register_server(self, name: str, params: Mapping[str, Any]) -> None:
        """Makes an MCP server callable by name; it starts on its first use. Before `start()`, too.

        Args:
            name: As generated packages call it.
            params: As in an `mcpServers` block: command, args, env, cwd; or url, headers, type.
        """
        if self._link is not None:
            await self._ask(
                "session/register_server", name=name, params=self._server_params(params)
            )
        self._servers[name] = dict(params)

    async def add_server(
        self, name: str, params: Mapping[str, Any], root_dir: str = "mcptools"
    ) -> list[str]:
        """Registers an MCP server, starts it, and writes its Python API to `root_dir/name`.

        Args:
            name: Of the server and its package.
            params: As in `register_server()`.
            root_dir: In the workspace.

        Returns:
            The names of the modules, in the server's order.
        """
        answer = await self._ask(
            "session/add_server", name=name, params=self._server_params(params), root_dir=root_dir
        )
        self._servers[name] = dict(params)
        return list(answer["modules"])

    async def unregister_server(self, name: str) -> None:
        """Stops an MCP server and forgets it; its API stays where it is."""
        await self._ask("session/unregister_server", name=name)
        self._servers.pop(name, None)

    async def servers(self) -> list[ServerInfo]:
        """The registered MCP servers."""
        return [ServerInfo(**server) for server in (await self._ask("session/servers"))["servers"]]

    async def list_tools(self, name: str) -> list[ToolInfo]:
        """The tools of a registered server, in its order; starts it."""
        return [
            ToolInfo(**tool) for tool in (await self._ask("session/list_tools", name=name))["tools"]
        ]

    async def search_tools(self, query: str, limit: int = 5, everything: bool = False) -> str:
        """A line for each tool that fits, the best first. Starts no server.

        Args:
            query: What the tool is to do.
            limit: 1 to 50.
            everything: Generated packages whose server is not registered, too.
        """
        answer = await self._ask(
            "session/search_tools", query=query, limit=limit, everything=everything
        )
        return str(answer["text"])

    async def describe_tool(self, name: str) -> str:
        """How a tool is called. name: `server.tool`."""
        return str((await self._ask("session/describe_tool", name=name))["text"])

    async def list_stubs(self, server: str) -> str:
        """All tools of a server that was started, a line each with the types of the parameters."""
        return str((await self._ask("session/stubs", name=server))["text"])

    async def set_policy(self, approval: Policy) -> None:
        """Another policy, for calls that are made from now on; see the constructor."""
        data, function = split_policy(approval)
        if self._link is not None:
            await self._ask("session/set_policy", approval=data)
        self._policy, self._callable = data, function
        if self._run is not None:
            self._run.asking.policy = function

    # Files and packages.

    async def install_package(self, package: str, timeout: float | None = 300) -> str:
        """Installs a Python package for the kernel by pip, in a sandbox of its own.

        Args:
            package: A requirement, URL or git+https:// address.
            timeout: Seconds; None: no limit.

        Returns:
            What pip said at its end.
        """
        answer = await self._ask(
            "session/install_package", package=package, timeout=seconds(timeout, "timeout")
        )
        return str(answer["text"])

    async def upload(self, path: str, data: bytes, overwrite: bool = True) -> None:
        """Writes a file for the code, whole or not at all.

        Args:
            path: Relative to the workspace.
            data: Its content, 256 MiB at most.
            overwrite: False: a file that is there is an error.
        """
        begin = 0
        while True:
            part = data[begin : begin + PART]
            more = begin + len(part) < len(data)
            await self._ask(
                "session/upload",
                path=path,
                data=base64.b64encode(part).decode(),
                overwrite=overwrite,
                offset=begin,
                more=more,
            )
            if not more:
                return
            begin += len(part)

    async def download(self, path: str) -> bytes:
        """The content of a file of the code; of one that grows, what was there at the beginning.
        path: relative to the workspace."""
        data = bytearray()
        whole: int | None = None  # code may make it longer as fast as it is read
        while True:
            answer = await self._ask("session/download", path=path, offset=len(data), limit=PART)
            part = base64.b64decode(answer["data"])
            data += part
            if whole is None:
                whole = int(answer["size"])
            if not part or len(data) >= whole:
                return bytes(data[:whole])

    @property
    def workspace(self) -> Path:
        """What the code may write; of a started executor an absolute path without links."""
        return self._place if self._place is not None else Path(self._places()["workspace"])

    async def kernel_alive(self) -> bool:
        """Whether there is a kernel that can run code."""
        if self._link is None or self._link.ended:
            return False
        return bool((await self._ask("session/status"))["alive"])

    # What is behind it.

    def _places(self) -> JsonObject:
        workspace = self._workspace or self.working_dir or Path.cwd()
        places: JsonObject = {
            "workspace": absolute(workspace),
            "images_dir": absolute(self.images_dir if self.images_dir is not None else "images"),
        }
        if self.working_dir is not None:
            places["working_dir"] = str(self.working_dir)
        return places

    @property
    def _confined(self) -> bool:
        return bool(self._options["sandbox"] != "none")

    def _package_places(self) -> list[Path]:
        """Where code imports generated packages from."""
        entries = self.kernel_env.get("PYTHONPATH", "").split(os.pathsep)
        return [self.workspace, *(Path(entry).resolve() for entry in entries if entry)]

    def _server_params(self, params: Mapping[str, Any]) -> JsonObject:
        return start_directory(params, self.workspace if self._confined else None)

    async def _register_all(self, link: Connection, handle: str) -> None:
        def registration(name: str, params: JsonObject) -> JsonObject:
            return {"session": handle, "name": name, "params": self._server_params(params)}

        known = servers_for(self._package_places(), anywhere=not self._confined)
        for name, params in known.items():
            if name not in self._servers:
                try:
                    await link.request("session/register_server", registration(name, params))
                except IpyboxError as error:
                    logger.warning("the MCP server %s is not registered: %s", name, error)
        for name, params in self._servers.items():
            await link.request("session/register_server", registration(name, params))
        tell(self._learner)

    def _learn(self, root: Path, name: str, params: JsonObject) -> None:
        """A package was generated while the kernel runs. On any thread."""
        link = self._link
        if link is None or name in self._servers:
            return
        if self._confined and not is_for(root, self._package_places()):
            return
        wanted = {"session": self._handle, "name": name, "params": self._server_params(params)}
        link.send("session/register_server", wanted, lambda _result, _error: None)

    async def _create(self, link: Connection, options: JsonObject) -> str:
        creation = asyncio.ensure_future(link.request("session/create", {"options": options}))
        try:
            created = await asyncio.shield(creation)
        except asyncio.CancelledError:
            creation.add_done_callback(lambda done: _abandon(link, done))
            raise
        handle = str(created["session"])
        self._place = Path(created["workspace"])
        loop = asyncio.get_running_loop()
        this = weakref.ref(self)
        self._questions = Questions(link, Asking(self._callable), lambda _request: None)

        def heard(method: str, params: JsonObject) -> None:
            executor = this()
            if executor is not None:
                call_soon(loop, executor._notified, method, params)

        link.listen(handle, heard)
        return handle

    def _notified(self, method: str, params: JsonObject) -> None:
        """What belongs to no execution."""
        if method == "session/violation" and self._on_violation is not None:
            self._on_violation(Violation(**params["violation"]))
        elif method == "call/progress" and self._on_progress is not None:
            self._on_progress(
                CallProgress(params["call"], params["progress"], params["total"], params["message"])
            )
        elif method == "session/span" and self._on_span is not None:
            self._on_span(Span(**params["span"]))
        elif method == "approval/requested" and self._questions is not None:
            # Of a call between executions: the callable decides, or approval_timeout.
            self._questions.requested(params)
        elif method == "approval/settled" and self._questions is not None:
            self._questions.settled(params)

    def _started(self) -> tuple[Connection, str]:
        if self._link is None:
            raise RuntimeError("the executor is not started: call start(), or use async with")
        return self._link, self._handle

    async def _ask(self, method: str, **params: Any) -> Any:
        link, handle = self._started()
        return await link.request(method, {"session": handle, **params})

    async def _begin(
        self, code: str, timeout: float | None, how: JsonObject, asking: Asking
    ) -> Run:
        link, handle = self._started()
        limit = seconds(timeout, "timeout")
        if self._run is not None and self._run.is_cancelled:
            await self._run.ended()
        run = Run(
            link,
            "session/execute",
            {"session": handle, "code": code, "timeout": limit, **how},
            asking,
            self._image_names(),
            timeout,
        )
        if self._run is None or self._run.is_over:
            self._run = run
        return run

    async def _end(self, run: Run) -> None:
        await run.close()
        if self._run is run:
            self._run = None

    def _image_names(self) -> Path:
        return self.images_dir if self.images_dir is not None else Path("images")

    def _leave(self) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._questions is not None:
            self._questions.close()
        link.unlisten(self._handle)
        link.release()


class _Learner:
    """Hears of generated packages for an executor."""

    def __init__(self, learn: weakref.WeakMethod[Callable[[Path, str, JsonObject], None]]) -> None:
        self._learn = learn

    def learn(self, root: Path, name: str, params: JsonObject) -> None:
        learn = self._learn()
        if learn is not None:
            learn(root, name, params)


def _discard(link: Connection, handle: str) -> None:
    """An executor that nobody stopped is gone."""
    if not link.ended:
        link.unlisten(handle)
        link.forget("session/close", {"session": handle})
        link.release()


def _abandon(link: Connection, creation: asyncio.Future[Any]) -> None:
    """Nobody waits for a session any more that was on its way."""
    if not creation.cancelled() and creation.exception() is None:
        link.forget("session/close", {"session": creation.result()["session"]})


def _audit(audit: PathLike | Mapping[str, Any] | None) -> JsonObject | None:
    if audit is None:
        return None
    described = dict(audit) if isinstance(audit, Mapping) else {"file": audit}
    if "file" not in described:
        raise ValueError('audit: expected a path, or an object with "file"')
    described["file"] = absolute(described["file"])
    return described
