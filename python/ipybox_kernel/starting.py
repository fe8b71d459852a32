"""Where programs are asked about (--approve-programs): makes Python's ways to start one go to the broker outside.

A child is made as ever, but where it would execute the program it becomes a stub that stands for it: hands over
descriptors, directory, environment, limits and masks, passes signals on, and ends as the program ends. So whatever
waits for, kills, or polls children needs nothing done. Where no code of Python's has to run in the child, it is one
of standing.py, which costs no fork of this process. No boundary: that is the system call filter under which
the kernel starts. What is sent is described in launcher/broker.hpp and request.hpp.
"""
from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import functools
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

import _posixsubprocess
import _signal  # without the enumerations of signal, which take their time

from . import standing
from .programs import quietly

_DOORS = "IPYBOX_PROGRAM_DOORS"
_MAGIC = 0x31585049
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MOST_DESCRIPTORS = 250
_SIGNALS = [int(number) for number in range(1, 65) if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33)]
# Of a signal it is not known whether it was meant for a process or its group. These make sense for all of it.
_FOR_GROUPS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCONT, signal.SIGTSTP)
_PASSED = [number for number in _SIGNALS if number not in (signal.SIGCHLD, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)]
_LIMITS = [getattr(resource, name) for name in ("RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_DATA", "RLIMIT_STACK", "RLIMIT_RSS", "RLIMIT_NPROC",
                                                "RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "RLIMIT_AS")]

_quick = False  # whether there is standing.py's child
_doors: list[socket.socket] = []  # for programs, for processes of this interpreter
_door_numbers = ""
_cell: ContextVar[bytes | None] = ContextVar("ipybox_program_input", default=None)
_c_environment = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
_fork = os.fork
_closerange = os.closerange
_fork_exec = _posixsubprocess.fork_exec


class Refused(PermissionError):
    """Nobody allowed the program."""


def install() -> None:
    """Without the doors that the launcher leaves, does nothing: then each start meets the filter."""
    global _door_numbers, _quick
    _door_numbers = os.environ.pop(_DOORS, "")
    if not _door_numbers:
        return
    for number in map(int, _door_numbers.split(":")):
        os.set_inheritable(number, False)
        _doors.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=number))
    import posix

    _quick = standing.load()
    _posixsubprocess.fork_exec = fork_exec  # type: ignore[assignment]
    if hasattr(subprocess, "_fork_exec"):
        subprocess._fork_exec = fork_exec
    subprocess._USE_POSIX_SPAWN = False  # type: ignore[attr-defined]
    subprocess.Popen._execute_child = _telling_why(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
    for module in (os, posix):
        module.execv, module.execve, module.system = execv, execve, system  # type: ignore[assignment]
        module.posix_spawn, module.posix_spawnp = posix_spawn, posix_spawnp  # type: ignore[assignment]
        module.closerange = closerange  # type: ignore[assignment]
    os._spawnvef, os._execvpe = _spawnvef, _execvpe  # type: ignore[attr-defined]


def seal_scripts(shell: Any) -> None:
    """`%%bash` and the like hand their cell over as a text that whoever is asked sees."""
    magics = shell.magics_manager
    scripts = magics.registry["ScriptMagics"]
    script = scripts.shebang

    @functools.wraps(script)
    def shebang(line: str, cell: str) -> Any:
        text = cell if cell.endswith("\n") else cell + "\n"
        token = _cell.set(text.encode("utf8", "replace"))
        try:
            return script(line, cell)
        finally:
            _cell.reset(token)

    shebang.parser = script.parser  # type: ignore[attr-defined]
    scripts.shebang = magics.magics["cell"]["script"] = shebang


# ---- the stub -----------------------------------------------------------------------------------


def _sealed(name: str, text: bytes) -> int:
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    left = memoryview(text)
    while left:
        left = left[os.write(file, left) :]
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _open_program(paths: Sequence[bytes], directory: int | None = None) -> int:
    """The first that can be executed."""
    failure = errno.ENOENT
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=directory)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) and failure == errno.ENOENT:
                failure = error.errno or errno.EIO
            elif len(paths) == 1:
                failure = error.errno or errno.EIO
            continue
        if os.access(path, os.X_OK, dir_fd=directory):
            return file
        os.close(file)
        if failure == errno.ENOENT:
            failure = errno.EACCES
    raise OSError(failure, os.strerror(failure))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _open_descriptors() -> list[int]:
    return [number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number)]


def _inheritable() -> list[int]:
    return [number for number in _open_descriptors() if os.get_inheritable(number)]


def _give_up_terminal() -> bool:
    """A terminal belongs to one session, and the program is in another."""
    if os.getsid(0) != os.getpid():
        return False
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    fcntl.ioctl(terminal, termios.TIOCNOTTY)
    os.close(terminal)
    return True


def _bits(signals: Iterable[int]) -> int:
    return sum(1 << number - 1 for number in signals)


def _blocked() -> int:
    return _bits(_signal.pthread_sigmask(_signal.SIG_BLOCK, ()))


def _request(argv: Sequence[bytes], variables: Sequence[bytes], numbers: Sequence[int], terminal: bool, ignored: int, blocked: int,
             mask: int = -1) -> bytes:
    if mask < 0:
        mask = os.umask(0)
        os.umask(mask)
    limits = [(which, *resource.getrlimit(which)) for which in _LIMITS]
    parts = [struct.pack("=4I2Q4I", _MAGIC, terminal, mask, len(limits), ignored, blocked, len(numbers), len(argv), len(variables), 0)]
    most = (1 << 64) - 1  # no limit is -1 here
    parts += [struct.pack("=3Q", which, soft & most, hard & most) for which, soft, hard in limits]
    parts.append(struct.pack(f"={len(numbers)}I", *numbers))
    for text in (*argv, *variables):
        if b"\0" in text:
            raise ValueError("embedded null byte")
        parts += [struct.pack("=I", len(text)), text, b"\0"]
    return b"".join(parts)


def _hand_over(link: socket.socket, byte: bytes, files: Sequence[int]) -> None:
    """Without the signal that a child may not ignore."""
    link.sendmsg([byte], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))], socket.MSG_NOSIGNAL)


def _become(paths: Sequence[bytes], argv: Sequence[bytes], variables: Sequence[bytes], numbers: Sequence[int] | None = None,
            not_ignored: Sequence[int] = (), worker: bool = False) -> NoReturn:
    """In a child. Does not return; raises OSError when nothing was started."""
    ignored = 0
    for number in _SIGNALS:
        handler = _signal.getsignal(number)
        if handler == _signal.SIG_IGN:
            if number not in not_ignored:
                ignored |= 1 << number - 1
        elif callable(handler):
            # Whoever interrupts while somebody is asked ends the child, and with it the question.
            _signal.signal(number, _signal.SIG_DFL)
    _signal.set_wakeup_fd(-1)
    program = _open_program(paths)
    if numbers is None:
        numbers = _inheritable()
    numbers = sorted(number for number in set(numbers) if _is_open(number))
    if len(numbers) > _MOST_DESCRIPTORS:
        raise OSError(errno.EMFILE, f"a program gets {_MOST_DESCRIPTORS} descriptors here, not more")
    files = list(numbers)
    given = _cell.get()
    if given is not None and 0 in numbers:
        files[numbers.index(0)] = _sealed("input", given)
    terminal = _give_up_terminal()
    directory = os.open(".", os.O_PATH | os.O_CLOEXEC)
    request = _sealed("request", _request(argv, variables, numbers, terminal, ignored, _blocked()))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _hand_over(_doors[worker], b"p", [theirs.fileno()])
        theirs.close()
        _hand_over(ours, b"r", [request, directory, program, *files])
    except BrokenPipeError:
        raise Refused(errno.EPERM, "nobody is there any more to start programs") from None
    answer = b""
    while not answer.startswith(b"S"):
        more = ours.recv(4096)
        if not more:
            break
        answer += more
    if answer.startswith(b"S"):
        _stand_in(ours, answer[1:], keep_input=given is not None)
    if len(answer) < 5:
        raise Refused(errno.EPERM, "nobody is there any more to start programs")
    number, reason = struct.unpack("=i", answer[1:5])[0], answer[5:].decode("utf8", "replace")
    if number == errno.EPERM:
        raise Refused(number, reason or os.strerror(number))
    raise OSError(number, reason or os.strerror(number))


def _stand_in(link: socket.socket, heard: bytes, keep_input: bool) -> NoReturn:
    """What goes into a pipe that the program does not read is taken from there."""
    try:
        kept = fcntl.fcntl(link.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        last = max(map(int, os.listdir("/proc/self/fd")))
        _closerange(1 if keep_input else 0, kept)
        _closerange(kept + 1, last + 1)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=kept)
        leads = os.getpgrp() == os.getpid()

        def passed_on(number: int, _: Any) -> None:
            link.send(bytes([number | (0x80 if leads or number in _FOR_GROUPS else 0)]))

        for number in _PASSED:
            _signal.signal(number, passed_on)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        while len(heard) < 5:
            if keep_input and link not in select.select([link, 0], [], [])[0]:
                keep_input = bool(os.read(0, 65536))
                continue
            more = link.recv(16)
            if not more:
                _end(signal.SIGKILL)
            heard += more
        _end(struct.unpack("=i", heard[1:5])[0])
    finally:
        os._exit(126)


def _end(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


# ---- a stub without a fork ----------------------------------------------------------------------


class _Slow(Exception):
    """The longer way does it, or finds the words for why not."""


def _stand(paths: Sequence[bytes], argv: Sequence[bytes], variables: Sequence[bytes], files: dict[int, int], told: int, *,
           cwd: Any = ".", session: bool = False, leads: bool = False, mask: int = -1, blocked: int | None = None,
           not_ignored: Iterable[int] = (), worker: bool = False) -> int:
    """The pid of a child that stands for the program. files: ours, by the numbers that the program has for them. Raises _Slow."""
    opened: list[int] = []
    try:
        directory = os.open(cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.append(directory)
        if not os.access(".", os.X_OK, dir_fd=directory):
            raise _Slow
        program = _open_program(paths, directory)
        opened.append(program)
        numbers = sorted(number for number, file in files.items() if _is_open(file))
        if len(numbers) > _MOST_DESCRIPTORS:
            raise _Slow
        drained = -1
        given = _cell.get()
        if given is not None and 0 in numbers:
            drained = files[0]
            files[0] = _sealed("input", given)
            opened.append(files[0])
        if blocked is None:
            blocked = _blocked()
        not_ignored = set(not_ignored)
        ignored = _bits(number for number in _SIGNALS if number not in not_ignored and _signal.getsignal(number) == _signal.SIG_IGN)
        request = _sealed("request", _request(argv, variables, numbers, False, ignored, blocked, mask))
        opened.append(request)
        return standing.start(_doors[worker].fileno(), [request, directory, program, *(files[number] for number in numbers)], told,
                              drained, session, leads, blocked, _bits(not_ignored))
    except OSError:
        raise _Slow from None
    finally:
        for file in opened:
            os.close(file)


def _exec_quickly(args: Sequence[Any], executables: Sequence[bytes], close_fds: bool, keep: Sequence[int], cwd: Any, env: Any,
                  rest: Sequence[Any], at: int, worker: bool) -> int:
    """As fork_exec."""
    told, group = rest[7], rest[10] if at == 15 else -1
    if not _quick or rest[at] is not None or any(each is not None for each in rest[at - 4 : at - 1]) or group not in (-1, 0) or told < 3:
        raise _Slow
    kept = list(keep)
    if not all(isinstance(number, int) and 0 <= number < 1 << 31 for number in kept) or kept != sorted(set(kept)):
        raise _Slow
    numbers = [0, 1, 2, *(int(number) for number in kept if number != told)] if close_fds else _inheritable()
    argv = _as_worker(args, numbers) if worker else [os.fsencode(word) for word in args]
    files = {number: number for number in numbers}
    for number, file in enumerate((rest[0], rest[3], rest[5])):
        if file >= 0:
            files[number] = file
    variables = _own_environment() if env is None else [bytes(each) for each in env]
    return _stand([os.fsencode(path) for path in executables], argv, variables, files, told, cwd="." if cwd is None else cwd,
                  session=bool(rest[9]), leads=group == 0, mask=rest[at - 1],
                  not_ignored=(signal.SIGPIPE, signal.SIGXFSZ) if rest[8] else (), worker=worker)


def _spawn_quickly(paths: Sequence[bytes], argv: Sequence[bytes], variables: Sequence[bytes], actions: Any, **how: Any) -> tuple[int, bytes]:
    """The pid and what kept the program from starting, as subprocess is told it."""
    if not _quick:
        raise _Slow
    files: dict[int, int | None] = {number: number for number in _inheritable()}
    for what, *numbers in actions or ():
        file = files.get(numbers[0], numbers[0])
        # What is not open now must not become one of ours.
        if what == os.POSIX_SPAWN_OPEN or file is None or (what == os.POSIX_SPAWN_DUP2 and not _is_open(file)):
            raise _Slow
        files[numbers[-1]] = None if what == os.POSIX_SPAWN_CLOSE else file
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe:
        try:
            pid = _stand(paths, argv, variables, {number: file for number, file in files.items() if file is not None}, writing, **how)
        finally:
            os.close(writing)
        return pid, pipe.read()


# ---- Python's ways ------------------------------------------------------------------------------


def _fork_quietly() -> int:
    with quietly():
        return _fork()


def _environment(env: Mapping[Any, Any]) -> list[bytes]:
    return [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in env.items()]


def _own_environment() -> list[bytes]:
    """That of C: os.environ does not know what os.putenv() and libraries have set."""
    variables: list[bytes] = []
    while (text := _c_environment[len(variables)]) is not None:
        variables.append(text)
    return variables


def _is_worker(path: Any, argv: Sequence[Any]) -> bool:
    """multiprocessing's and loky's own processes: this Python under the same filter. They need nobody's yes."""
    words = [os.fsdecode(word) for word in argv]
    if not any(word.startswith(("from multiprocessing.", "from joblib.externals.loky", "from loky")) or
               word.endswith("loky.backend.popen_loky_posix") for word in words):
        return False
    return bool(sys.executable) and os.path.realpath(os.fsdecode(path)) == os.path.realpath(sys.executable)


def _as_worker(argv: Sequence[Any], keep: list[int]) -> list[bytes]:
    """It starts programs as we do."""
    words = [os.fsencode(word) for word in argv]
    keep += [door.fileno() for door in _doors]
    place = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    begin = f"import os, sys; os.environ[{_DOORS!r}] = {_door_numbers!r}; sys.path.append({place!r}); " \
            "from ipybox_kernel.starting import install; install(); sys.path.pop(); "
    if b"-c" in words[:-1]:
        code = words.index(b"-c") + 1
        words[code] = begin.encode() + words[code]
    return words


def fork_exec(args: Sequence[Any], executables: Sequence[bytes], close_fds: bool, keep: Sequence[int], cwd: Any, env: Any,
              *rest: Any) -> int:
    """Where Python has to run in the child, that of C does all but the last step: its preexec_fn does not come back."""
    at = 14 if sys.version_info < (3, 11) else 15  # of preexec_fn in what is left
    preexec, told, restore = rest[at], rest[7], rest[8]
    worker = _is_worker(executables[0], args)
    try:
        return _exec_quickly(args, executables, close_fds, keep, cwd, env, rest, at, worker)
    except _Slow:
        pass

    def stand_in() -> None:
        if preexec is not None:
            preexec()
        failure = b"OSError:16:"
        try:
            numbers = None
            if close_fds:
                numbers = [0, 1, 2, *(int(number) for number in keep if number != told)]
            if worker and numbers is not None:
                argv = _as_worker(args, numbers)
            else:
                argv = [os.fsencode(word) for word in args]
            variables = _own_environment() if env is None else [bytes(each) for each in env]
            _become([os.fsencode(path) for path in executables], argv, variables, numbers,
                    (signal.SIGPIPE, signal.SIGXFSZ) if restore else (), worker)
        except Refused as error:
            failure = b"PermissionError:0:" + str(error.strerror).encode("utf8", "replace")
        except OSError as error:
            failure = b"OSError:%x:" % (error.errno or errno.EIO)
        except BaseException as error:
            failure = b"RuntimeError:0:" + repr(error).encode("utf8", "replace")
        finally:
            os.write(told, failure)
            os._exit(255)

    changed = list(rest)
    changed[at] = stand_in
    with quietly():
        return _fork_exec(args, executables, close_fds, keep, cwd, env, *changed)


def _telling_why(execute: Callable[..., Any]) -> Callable[..., Any]:
    """subprocess replaces the words of errors that have a number."""
    @functools.wraps(execute)
    def execute_child(*arguments: Any, **named: Any) -> Any:
        try:
            return execute(*arguments, **named)
        except PermissionError as error:
            if error.errno != 0:
                raise
            raise PermissionError(errno.EPERM, error.strerror, error.filename) from None

    return execute_child


def _execute(path: Any, argv: Sequence[Any], env: Mapping[Any, Any] | None, paths: Sequence[bytes] = ()) -> NoReturn:
    if isinstance(path, int):
        path = f"/proc/self/fd/{path}"
    words = [os.fsencode(word) for word in argv]
    if not words or not words[0]:
        raise ValueError("execve() arg 2 first element cannot be empty" if words else "execve() arg 2 must not be empty")
    variables = _own_environment() if env is None else _environment(env)
    sys.audit("os.exec", path, argv, env)
    try:
        _become(paths or [os.fsencode(path)], words, variables)
    except Refused as error:
        raise PermissionError(error.errno, error.strerror, path) from None
    except OSError as error:
        error.filename = path
        raise


def _execvpe(file: Any, argv: Sequence[Any], env: Mapping[Any, Any] | None = None) -> NoReturn:
    """One question, not one for each place where a program could be."""
    name = os.fsencode(file)
    paths = [name]
    if not os.path.dirname(name):
        paths = [os.path.join(os.fsencode(place), name) for place in os.get_exec_path(env)]
    _execute(file, argv, env, paths)


def execve(path: Any, argv: Sequence[Any], env: Mapping[Any, Any]) -> NoReturn:
    _execute(path, argv, env)


def execv(path: Any, argv: Sequence[Any]) -> NoReturn:
    _execute(path, argv, None)


def _started(child: Callable[[], None], path: Any) -> int:
    """The pid of a fork that ran `child`; raises what kept it from becoming a program."""
    reading, writing = map(_above_standard, os.pipe())
    pid = _fork_quietly()
    if pid == 0:
        failure = struct.pack("=i", errno.EIO)
        try:
            child()
        except OSError as error:
            failure = struct.pack("=i", error.errno or errno.EIO)
            if error.errno == errno.EPERM:
                failure += str(error.strerror).encode("utf8", "replace")
        finally:
            os.write(writing, failure)
            os._exit(127)
    os.close(writing)
    with open(reading, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        number = struct.unpack("=i", failure[:4])[0]
        raise OSError(number, failure[4:].decode("utf8", "replace") or os.strerror(number), path)
    return pid


def _above_standard(file: int) -> int:
    """Where no file action reaches it."""
    moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(file)
    return moved


def posix_spawn(path: Any, argv: Sequence[Any], env: Mapping[Any, Any], *, file_actions: Any = None, setpgroup: int | None = None,
                resetids: bool = False, setsid: bool = False, setsigmask: Any = (), setsigdef: Any = (), scheduler: Any = None,
                search: bool = False) -> int:
    words = [os.fsencode(word) for word in argv]
    if not words or not words[0]:
        raise ValueError("posix_spawn: argv first element cannot be empty")
    variables = _environment(env)
    sys.audit("os.posix_spawn", path, argv, env)
    name = os.fsencode(path)
    paths = [name]
    if search and b"/" not in name:
        paths = [os.path.join(os.fsencode(place), name) for place in os.get_exec_path()]

    try:
        if setpgroup or scheduler is not None:
            raise _Slow
        pid, failure = _spawn_quickly(paths, words, variables, file_actions, session=setsid, leads=setpgroup is not None,
                                      blocked=_bits(setsigmask) if setsigmask else None, not_ignored=setsigdef)
    except _Slow:
        pass
    else:
        if failure:
            os.waitpid(pid, 0)
            number = int(failure.split(b":")[1], 16) or errno.EPERM
            raise OSError(number, failure.split(b":", 2)[2].decode("utf8", "replace") or os.strerror(number), path)
        return pid

    def child() -> None:
        if setsid:
            os.setsid()
        if setpgroup is not None:
            os.setpgid(0, setpgroup)
        for what, *how in file_actions or ():
            if what == os.POSIX_SPAWN_OPEN:
                file = os.open(*how[1:])
                os.dup2(file, how[0])
                if file != how[0]:
                    os.close(file)
            elif what == os.POSIX_SPAWN_CLOSE:
                os.close(how[0])
            else:
                os.dup2(*how)
        if setsigmask:
            signal.pthread_sigmask(signal.SIG_SETMASK, setsigmask)
        for number in setsigdef:
            signal.signal(number, signal.SIG_DFL)
        _become(paths, words, variables)

    return _started(child, path)


def posix_spawnp(path: Any, argv: Sequence[Any], env: Mapping[Any, Any], **named: Any) -> int:
    return posix_spawn(path, argv, env, search=True, **named)


def _spawnvef(mode: int, file: Any, args: Any, env: Any, func: Callable[..., Any]) -> int:
    if not isinstance(args, (tuple, list)):
        raise TypeError("argv must be a tuple or a list")
    if not args or not args[0]:
        raise ValueError("argv first element cannot be empty")

    def child() -> None:
        if env is None:
            func(file, args)
        else:
            func(file, args, env)

    try:
        pid = _started(child, file)
    except PermissionError as error:
        if error.errno == errno.EPERM:
            raise
        pid = _failed()
    except OSError:
        pid = _failed()
    if mode == os.P_NOWAIT:
        return pid
    while True:
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)


def _failed() -> int:
    """A child that ends as one of os.spawn* does that found no program."""
    pid = _fork_quietly()
    if pid == 0:
        os._exit(127)
    return pid


def closerange(low: int, high: int) -> None:
    """As children do before they execute; the doors are still needed then."""
    for number in sorted(door.fileno() for door in _doors):
        if low <= number < high:
            _closerange(low, number)
            low = number + 1
    _closerange(low, high)


def system(command: Any) -> int:
    sys.audit("os.system", os.fsencode(command))
    before = []
    if threading.current_thread() is threading.main_thread():
        before = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGQUIT)]
    try:
        pid = posix_spawn("/bin/sh", ["sh", "-c", command], os.environ, setsigdef=(signal.SIGINT, signal.SIGQUIT))
        return os.waitpid(pid, 0)[1]
    finally:
        for number, handler in before:
            signal.signal(number, handler)
