# Runs in the kernel before every attack: what many of them need.
import ctypes, errno, os, signal, socket, struct, subprocess, sys, threading, time  # noqa: E401

host = {}  # what the attacks know of the host: paths, ports, process numbers
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
socket.setdefaulttimeout(3)

_NUMBERS = {  # x86-64, AArch64; None where it does not exist
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "chroot": (161, 51), "clone": (56, 220),
    "clone3": (435, 435), "fanotify_init": (300, 262), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "finit_module": (313, 273), "fsopen": (430, 430), "init_module": (175, 105), "io_uring_setup": (425, 425),
    "iopl": (172, None), "kcmp": (312, 272), "kexec_load": (246, 104), "keyctl": (250, 219), "mknodat": (259, 33),
    "modify_ldt": (154, None), "mount": (165, 40), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "openat2": (437, 437), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434), "pivot_root": (155, 41), "process_vm_readv": (310, 270), "ptrace": (101, 117),
    "quotactl": (179, 60), "reboot": (169, 142), "request_key": (249, 218), "sethostname": (170, 161),
    "setns": (308, 268), "settimeofday": (164, 170), "swapon": (167, 224), "syslog": (103, 116),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282), "vmsplice": (278, 75),
    "execve": (59, 221), "execveat": (322, 281), "seccomp": (317, 277), "memfd_create": (319, 279),
    "capset": (126, 91), "name_to_handle_at": (303, 264), "renameat2": (316, 276), "shmget": (29, 194),
    "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "io_setup": (206, 0),
}


def call(name, *arguments):
    """A system call by its number; OSError when it fails."""
    number = _NUMBERS[name][os.uname().machine != "x86_64"]
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *words)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def why(error):
    """EPERM and the like, or the error's type and text."""
    if isinstance(error, OSError) and error.errno in errno.errorcode and not isinstance(error, socket.gaierror):
        return errno.errorcode[error.errno]
    return " ".join(f"{type(error).__name__} {error}".split())


def attempt(action, *arguments, **named):
    """Tries what must fail, and says how that went."""
    try:
        got = action(*arguments, **named)
    except Exception as error:
        print("refused:", why(error))
        return None
    print("ESCAPED:", repr(got)[:300])
    return got


def read(path, mode="r"):
    with open(path, mode) as file:
        return file.read(4096)


def write(path, text="planted"):
    with open(path, "w") as file:
        file.write(text)
    return path


def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as connection:
        connection.connect(address)
        if kind == socket.SOCK_DGRAM:
            connection.send(b"hello")
            connection.recv(1)
    return address


def to_tools(address=None):
    """A connection to the tool server: a path or, where Unix sockets cannot be made, a port."""
    address = address or os.environ["IPYBOX_TOOL_SOCKET"]
    path = address.startswith("/")
    connection = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    connection.settimeout(5)
    where, _, port = address.rpartition(":")
    connection.connect(address if path else (where, int(port)))
    return connection


def elsewhere(code, **named):
    """Runs code, after this prelude, in a process of its own; prints what it printed and how it ended."""
    text = f"{_prelude}\n_prelude = {_prelude!r}\nhost.update({host!r})\n{code}"
    named = {"timeout": 20, **named}
    done = subprocess.run([sys.executable, "-I", "-c", text], capture_output=True, text=True, **named)
    print(done.stdout + done.stderr, end="")
    if done.returncode < 0:
        print("ended by", signal.Signals(-done.returncode).name)
    return done.returncode


def _run_cells(cells):
    import contextlib, io, json, traceback  # noqa: E401

    def late(*_):
        raise TimeoutError("the attack took more than 20 s")

    signal.signal(signal.SIGALRM, late)
    for name, code in cells.items():
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            signal.alarm(20)
            try:
                exec(compile(code, name, "exec"), dict(globals()))
            except BaseException:
                print(traceback.format_exc())
            signal.alarm(0)
        os.chdir(host["workspace"])
        print("@@" + json.dumps([name, out.getvalue()]), flush=True)
