"""The Debian packages, installed on a system that has neither the checkout nor a compiler, as their users do it."""
import json
import os
import sys
import unittest
from pathlib import Path

from clean_root import ROOT, CleanRoot, packages

sys.path.insert(0, os.environ["IPYBOX_TEST_SUPPORT"])
from mcp_lines import code_action, serve

KERNEL_PACKAGES = ("ipykernel", "pydantic>=2.7")
PYTHON = "/home/ada/kernel/bin/python"


class SystemTest(unittest.TestCase):
    """What has the package installed, and a user with a Python for kernels."""

    WANTED = ("/packages/ipybox.deb", "ca-certificates", "python3-venv")

    @classmethod
    def setUpClass(cls):
        cls.root = CleanRoot()
        cls.addClassCleanup(cls.root.remove)
        for name, path in packages().items():
            cls.root.copy(cls.root.path / "packages", path)
            cls.root.do("mv", f"/packages/{path.name}", f"/packages/{name}.deb")
        cls.root.install(*cls.WANTED)
        cls.root.do("useradd", "--create-home", "ada")
        cls.ada("python3", "-m", "venv", "kernel")
        cls.ada("kernel/bin/pip", "install", "--quiet", *KERNEL_PACKAGES, timeout=1200)
        cls.ada("mkdir", "work")

    @classmethod
    def ada(cls, *words, **how):
        return cls.root.do(*words, user="ada", directory="/home/ada", **how)

    @classmethod
    def ipybox(cls, *words, **how):
        how = {"user": "ada", "directory": "/home/ada/work", "environment": {"IPYBOX_PYTHON": PYTHON}} | how
        return cls.root.run("ipybox", *words, **how)

    def plugins(self, *words):
        listed = self.ipybox("plugins", "--json", *words)
        self.assertEqual((listed.returncode, listed.stderr), (0, ""))
        return {f"{plugin['kind']} {plugin['name']}" for plugin in json.loads(listed.stdout)}


class ProgramTest(SystemTest):
    WANTED = (*SystemTest.WANTED, "zsh", "bash-completion")

    def test_the_checkout_is_not_there(self):
        self.assertNotEqual(self.root.run("ls", ROOT).returncode, 0)
        self.assertNotEqual(self.root.run("sh", "-c", "command -v g++").returncode, 0)

    def test_code_runs_in_the_sandbox(self):
        run = self.ipybox("run", "-c", "print(6 * 7)")
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "42\n", ""))
        outside = "import pathlib\npathlib.Path('/home/ada/escaped').write_text('out')"
        run = self.ipybox("run", "-c", outside)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertNotEqual(self.root.run("test", "-e", "/home/ada/escaped").returncode, 0)
        inside = "import os, pathlib\npathlib.Path('kept').write_text('in')\nprint(os.path.exists('/packages'))"
        run = self.ipybox("run", "-c", inside)
        self.assertEqual((run.returncode, run.stdout), (0, "False\n"), run.stderr)
        self.assertEqual(self.ada("cat", "work/kept"), "in")

    def test_root_runs_code_as_somebody_else(self):
        self.root.do("sh", "-c", "mkdir -p /srv/work && chown ada /srv/work && chmod a+rx /home/ada")
        run = self.ipybox("run", "-c", "import os\nprint(os.getuid() != 0)", user="root", directory="/srv/work")
        self.assertEqual((run.returncode, run.stdout), (0, "True\n"), run.stderr)

    def test_the_server_answers(self):
        command = self.root.command("ipybox", "serve", "--sandbox", "--workspace", "/home/ada/work", user="ada",
                                    environment={"IPYBOX_PYTHON": PYTHON})
        answers = serve(command, code_action("print(6 * 7)"))
        self.assertEqual(answers[1]["result"]["serverInfo"]["name"], "ipybox")
        self.assertIn("42", json.dumps(answers[2]["result"]["content"]))

    def test_every_plugin_is_found_and_nothing_is_missing(self):
        wanted = {"sandbox bubblewrap", "sandbox srt", "kernel fork", "kernel zmq", "kernel gateway",
                  "transport stdio", "transport streamable_http", "approval rules", "approval ask"}
        self.assertLessEqual(wanted, self.plugins())
        examined = self.ipybox("doctor")
        self.assertNotIn("FAILED  plugins", examined.stdout)
        self.assertRegex(examined.stdout, r"(?m)^ok +.*bubblewrap")

    def test_pages_for_every_command(self):
        described = json.loads(self.ipybox("--describe").stdout)
        pages = set(self.root.do("ls", "/usr/share/man/man1").split())
        for command in described["commands"]:
            self.assertIn(f"ipybox-{command['name']}.1.gz", pages)
        page = self.root.do("zcat", "/usr/share/man/man1/ipybox-run.1.gz")
        for option in next(one for one in described["commands"] if one["name"] == "run")["options"]:
            for name in option["names"]:
                self.assertIn("\\fB" + name.replace("-", "\\-") + "\\fR", page)

    def complete(self, *words):
        script = ("source /usr/share/bash-completion/completions/ipybox\nCOMP_WORDS=(\"$@\")\n"
                  "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_ipybox\nprintf '%s\\n' \"${COMPREPLY[@]}\"")
        return set(self.root.do("bash", "-c", script, "bash", *words).split())

    def test_bash_completes(self):
        self.assertLessEqual({"run", "serve", "doctor", "audit"}, self.complete("ipybox", ""))
        self.assertEqual(self.complete("ipybox", "audit", "ver"), {"verify"})
        self.assertEqual(self.complete("ipybox", "run", "--approve-sh"), {"--approve-shell-cmds"})
        self.assertEqual(self.complete("ipybox", "run", "--approve", ""), {"ask", "allow", "deny"})
        self.assertEqual(self.complete("ipybox", "serve", "--approve", "=", "de"), {"deny"})
        self.assertEqual(self.complete("ipybox", "run", "--workspace", "/ho"), {"/home"})
        self.assertIn("/etc/debian_version", self.complete("ipybox", "run", "--config", "/etc/debian"))
        self.assertEqual(self.complete("ipybox", "serve", "--tool-server-h"), set())  # hidden

    def test_zsh_completes(self):
        script = """zmodload zsh/zpty; zpty z zsh -f -i
zpty -w z "autoload -U compinit; compinit -D; zstyle ':completion:*' list-packed no; LISTMAX=1000; PS1=; echo re''ady"
zpty -r z answer '*ready*'
zpty -w -n z "$1"$'\\t\\t'
zpty -r -t z answer; for try in {1..50}; do sleep 0.1; while zpty -r -t z more; do answer+=$more; done; done
print -r -- $answer"""
        def complete(line):
            return self.root.do("zsh", "-f", "-c", script, "zsh", line, environment={"TERM": "dumb", "COLUMNS": "200"})

        self.assertIn("approve-shell-cmds", complete("ipybox run --approve-sh"))
        offered = complete("ipybox audit ")
        for command in ("show", "verify", "key"):
            self.assertIn(command, offered)
        self.assertIn("deny", complete("ipybox serve --approve=d"))

    def test_an_older_apparmor_gets_no_profile(self):
        # It would stumble over the language of a newer one; that one has the file.
        self.assertEqual(self.root.run("test", "-e", "/etc/apparmor.d/ipybox").returncode == 0,
                         self.root.run("test", "-e", "/etc/apparmor.d/abi/4.0").returncode == 0)
        profile = self.root.do("cat", "/usr/share/ipybox/apparmor/ipybox")
        self.assertIn("profile ipybox /usr/bin/ipybox flags=(unconfined)", profile)


class AppArmorTest(unittest.TestCase):
    """The profile, and who puts it in its place, with a parser that knows it: that of Debian 13, or of this Ubuntu."""

    @classmethod
    def setUpClass(cls):
        ubuntu = "ubuntu" in Path("/etc/os-release").read_text()
        cls.root = CleanRoot() if ubuntu else CleanRoot("trixie")
        cls.addClassCleanup(cls.root.remove)
        cls.root.install("apparmor")
        cls.root.copy(cls.root.path / "packages", packages()["ipybox"])
        # Its libraries may be those of another release.
        cls.root.do("sh", "-c", "dpkg-deb --extract packages/ipybox_*.deb / && dpkg-deb --control packages/ipybox_*.deb /control")

    def script(self, name, *words):
        self.root.do("sh", "-c", f"DPKG_MAINTSCRIPT_PACKAGE=ipybox DPKG_MAINTSCRIPT_NAME={name} /control/{name} \"$@\"", "sh",
                     *words)

    def installed(self):
        return self.root.run("test", "-e", "/etc/apparmor.d/ipybox").returncode == 0

    def test_it_comes_and_goes_with_the_package(self):
        self.script("postinst", "configure", "")
        self.assertTrue(self.installed())
        told = self.root.do("apparmor_parser", "--skip-kernel-load", "--skip-cache", "--debug", "/etc/apparmor.d/ipybox")
        self.assertRegex(told, r"Name:\s+ipybox\n")
        self.assertIn("\nuserns,\n", told)
        self.script("postrm", "remove")
        self.assertFalse(self.installed())

    def test_what_the_parser_refuses_is_not_put_there(self):
        profile = "/usr/share/ipybox/apparmor/ipybox"
        self.root.do("sh", "-c", f"cp {profile} /kept && echo 'nonsense {{' >>{profile}")
        self.script("postinst", "configure", "")
        self.assertFalse(self.installed())
        self.root.do("cp", "/kept", profile)


class DevelopmentTest(SystemTest):
    """Who writes a plugin or a program with the development package."""

    WANTED = (*SystemTest.WANTED, "/packages/libipybox-dev.deb", "g++", "cmake", "ninja-build", "pkg-config")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root.copy(cls.root.path / "home/ada/outside", ROOT / "tests/outside/office_hours.cpp",
                      ROOT / "tests/install/subproject/main.cpp", ROOT / "tests/install/cmake")
        cls.root.do("chown", "--recursive", "ada:ada", "/home/ada/outside")

    def test_a_plugin_by_pkg_config(self):
        self.ada("sh", "-c", "cd outside && mkdir -p own && c++ -std=c++20 -shared -fPIC $(pkg-config --cflags ipybox) "
                 "office_hours.cpp -o own/office_hours.so")
        self.assertIn("approval office_hours", self.plugins("--plugin-dir", "/home/ada/outside/own"))
        for open_, expected in ((True, 0), (False, 1)):
            self.ada("sh", "-c", 'printf %s "$1" >work/policy.json', "sh", json.dumps({"office_hours": {"open": open_}}))
            run = self.ipybox("run", "--plugin-dir", "/home/ada/outside/own", "--policy", "policy.json",
                              "--approve-shell-cmds", "-c", "!echo out of the shell")
            self.assertEqual(run.returncode, expected, run.stdout + run.stderr)
            self.assertEqual("out of the shell" in run.stdout, open_)

    def test_a_program_by_pkg_config_and_by_cmake(self):
        self.ada("sh", "-c", "cd outside && c++ -std=c++20 main.cpp -o small $(pkg-config --cflags --libs ipybox)")
        listed = self.ada("outside/small")
        for name in ("bubblewrap", "fork", "stdio", "deny"):
            self.assertIn(name, listed.split())
        self.ada("sh", "-c", "cd outside && cp main.cpp cmake/ && printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' "
                 "'project(small CXX)' 'find_package(ipybox CONFIG REQUIRED)' 'add_executable(small main.cpp)' "
                 "'target_link_libraries(small PRIVATE ipybox::ipybox)' >cmake/CMakeLists.txt && "
                 "cmake -G Ninja -S cmake -B made && ninja -C made")
        self.assertEqual(self.ada("outside/made/small"), listed)


class RemovalTest(unittest.TestCase):
    def test_nothing_stays(self):
        root = CleanRoot()
        self.addCleanup(root.remove)
        root.copy(root.path / "packages", packages()["ipybox"])
        before = root.do("find", "/etc", "/usr/lib", "/usr/libexec", "/usr/share", "-path", "*ipybox*")
        root.install(f"/packages/{packages()['ipybox'].name}")
        self.assertIn("/usr/share/man/man1/ipybox.1.gz", root.do("dpkg", "--listfiles", "ipybox"))
        root.do("dpkg", "--purge", "ipybox")
        after = root.do("find", "/etc", "/usr/lib", "/usr/libexec", "/usr/share", "-path", "*ipybox*")
        self.assertEqual(after, before)
