"""What a machine's system call filters do with calls: an interpreter of what Linux runs, and cases for unittest.

The numbers are those of the kernel's headers, not of libseccomp, which made the filters.
"""
import errno
import re
import struct
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOW, KILL_PROCESS, KILL_THREAD, ERRNO = 0x7FFF0000, 0x80000000, 0, 0x00050000
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FOREIGN = {"x86_64": 0x40000003, "aarch64": 0x40000028}  # 32 bits of the same processor


def run(program, architecture, number, arguments=()):
    """What the filter answers to a call, as seccomp(2) has it: ALLOW, or ERRNO and the error."""
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("<iIQ6Q", number if number < 2**31 else number - 2**32, architecture, 0,
                       *(value % 2**64 for value in padded))
    value, at = 0, 0
    while True:
        code, yes, no, constant = program[at]
        at += 1
        if code == 0x20:  # a word of the data
            value = struct.unpack_from("<I", data, constant)[0]
        elif code == 0x54:
            value &= constant
        elif code == 0x05:
            at += constant
        elif code in (0x15, 0x25, 0x35, 0x45):
            met = {0x15: value == constant, 0x25: value > constant, 0x35: value >= constant,
                   0x45: bool(value & constant)}[code]
            at += yes if met else no
        elif code == 0x06:
            return constant
        else:
            raise AssertionError(f"the filter has an instruction that this test does not know: {code:#x}")


def together(answers):
    """What Linux makes of the answers of several filters, the one added last first: the strictest, and of errors the
    one of the filter that was added last."""
    if any(answer in (KILL_PROCESS, KILL_THREAD) for answer in answers):
        return "killed"
    errors = [answer & 0xFFFF for answer in answers if answer & 0xFFFF0000 == ERRNO]
    return errno.errorcode[errors[0]] if errors else "allowed"


def read_filters(output):
    """The programs that print_filters printed, and the machines that are not refused."""
    programs, known = {}, set()
    for line in output.splitlines():
        name, text = line.split()
        if name == "known":
            known.add(text)
        else:
            programs[name] = list(struct.iter_unpack("<HBBI", bytes.fromhex(text)))
    return programs, known


def numbers(compiler):
    """The calls of a machine by their names, as the kernel's headers for its compiler have them."""
    lines = subprocess.run([*compiler, "-E", "-dM", "-x", "c", "-"], input="#include <asm/unistd.h>\n", check=True,
                           capture_output=True, text=True).stdout
    defined = dict(re.findall(r"^#define (__NR\w*) (.*)$", lines, re.M))

    def value(text):
        text = text.strip("() ")
        return int(text, 0) if text[0].isdigit() else value(defined[text])

    # fstatat has its older name where it is alone.
    found = {name[5:]: value(text) for name, text in defined.items() if name.startswith("__NR_")
             and name[5:] not in ("syscalls", "arch_specific_syscall")}
    return found


def listed(variable):
    """The names of a list of launcher/syscall_filter.hpp."""
    text = (ROOT / "launcher/syscall_filter.hpp").read_text()
    body = re.search(rf"{variable} =\n(.*?);\n", text, re.S)[1]
    return set(" ".join(re.findall(r'"([^"]*)"', body)).split())


class FilterCases:
    """For a class of unittest that has `machine`, `output` of print_filters, and `compiler`."""

    machine = ""
    output = ""
    compiler = ()

    @classmethod
    def read(cls):
        cls.programs, cls.known = read_filters(cls.output)
        cls.numbers = numbers(cls.compiler)

    def answer(self, call, *arguments, denying="denying", architecture=None):
        number = call if isinstance(call, int) else self.numbers[call]
        architecture = architecture or MACHINES[self.machine]
        return together([run(self.programs[name], architecture, number, arguments) for name in (denying, "allowing")])

    def test_other_machines_have_no_filter(self):
        self.assertEqual(self.known, set(MACHINES))

    def test_every_call_of_the_kernel_is_answered_as_listed(self):
        allowed, denied = listed("allowed_calls"), listed("denied_calls")
        some = {"ioctl", "setsockopt", "sendto", "sendmsg", "sendmmsg", "clone", "socket", "socketpair"}
        absent = {"io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "openat2"}
        also = {"cachestat", "fchmodat2", "map_shadow_stack", "futex_wake", "futex_wait", "futex_requeue"}
        self.assertGreater(len(self.numbers), 280)
        for name, number in sorted(self.numbers.items()):
            if name in some:
                continue
            expected = ("ENOSYS" if name in absent else "allowed" if name in allowed | also else
                        "EPERM" if name in denied or number < 443 else "ENOSYS")
            self.assertEqual(self.answer(name), expected, f"{name}, {number}")

    def test_calls_that_do_not_exist_yet_do_not_exist(self):
        for number in (*range(457, 520), 4096, 0x3FFFFFFF, 0x40000000, 0x40000001, 0x4000003B, 0x7FFFFFFF, 0xFFFFFFFF):
            self.assertIn(self.answer(number), ("ENOSYS", "killed"), number)

    def test_calls_of_another_machine_end_the_program(self):
        for name in ("execve", "open", "openat", "read", "write", "exit_group", "clone"):
            if name in self.numbers:
                self.assertEqual(self.answer(name, architecture=FOREIGN[self.machine]), "killed", name)
        other = next(value for name, value in MACHINES.items() if name != self.machine)
        self.assertEqual(self.answer("openat", architecture=other), "killed")

    def test_namespaces_are_not_made(self):
        for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
            self.assertEqual(self.answer("clone", flag | 17), "EPERM", hex(flag))
        self.assertEqual(self.answer("clone", 0x3D0F00), "allowed")  # a thread
        self.assertEqual(self.answer("clone", 17), "allowed")

    def test_sockets_are_those_of_the_list(self):
        families = {1: "allowed", 2: "allowed", 10: "allowed", 16: "allowed"}
        for family in range(0, 60):
            self.assertEqual(self.answer("socket", family, 1, 0), families.get(family, "EAFNOSUPPORT"), family)
        self.assertEqual(self.answer("socket", 16, 3, 9), "EAFNOSUPPORT")  # netlink of another kind
        self.assertEqual(self.answer("socket", 2, 1, 132), "EPROTONOSUPPORT")
        self.assertEqual(self.answer("socketpair", 2, 1, 0), "EAFNOSUPPORT")
        self.assertEqual(self.answer("socket", 1, 1, 0, denying="denying_unix_sockets"), "EAFNOSUPPORT")
        self.assertEqual(self.answer("socketpair", 1, 1, 0, denying="denying_unix_sockets"), "allowed")
        self.assertEqual(self.answer("socketpair", 1, 2, 0, denying="denying_unix_sockets"), "ESOCKTNOSUPPORT")
        self.assertEqual(self.answer("sendmsg", 3, 0, 1), "EPERM")

    def test_arguments_are_looked_at(self):
        self.assertEqual(self.answer("fchmodat", 0, 0, 0o4755), "EPERM")
        self.assertEqual(self.answer("fchmodat", 0, 0, 0o2755), "EPERM")
        self.assertEqual(self.answer("fchmodat", 0, 0, 0o755), "allowed")
        self.assertEqual(self.answer("fchmod", 3, 0o4000), "EPERM")
        self.assertEqual(self.answer("mkdirat", 0, 0, 0o2755), "EPERM")
        self.assertEqual(self.answer("openat", 0, 0, 0o100, 0o4755), "EPERM")
        self.assertEqual(self.answer("openat", 0, 0, 0o100, 0o644), "allowed")
        self.assertEqual(self.answer("ioctl", 0, 0x5412), "EPERM")  # TIOCSTI
        self.assertEqual(self.answer("ioctl", 0, 0x5412 + 2**32), "EPERM")
        self.assertEqual(self.answer("ioctl", 0, 0x5413), "allowed")
        self.assertEqual(self.answer("setsockopt", 0, 6, 31), "EPERM")  # TCP_ULP
        self.assertEqual(self.answer("prlimit64", 0, 4, 0x1000), "EINVAL")  # core dumps
