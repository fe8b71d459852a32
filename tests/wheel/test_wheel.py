"""The wheel of dist/ as people install it: by pip, uv, uvx and pipx, into environments that were just made, on a
machine without checkout, compiler and root. scripts/wheel builds it first."""
import calendar
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

from installation import COMPILERS, ROOT, TOOLS, WHEEL, Machine, built, interpreters, remedy

sys.path.insert(0, os.environ["IPYBOX_TEST_SUPPORT"])
from mcp_lines import code_action, serve

PROGRAM = Path(os.environ["IPYBOX_TEST_PROGRAM"])
VERSION = re.search(r"^  version: '(.*)',$", (ROOT / "meson.build").read_text(), re.M)[1]
# The libraries that a manylinux wheel may take from the system, and no others.
OF_EVERY_SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
SANDBOXED = "import sys, os\nprint(sys.prefix)\nprint(open('/proc/self/status').read().split('Seccomp:')[1].split()[0])\n" \
            "print(os.path.exists('/etc/hostname'))"


def text_of(result):
    return "".join(block.get("text", "") for block in result["content"])


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.machine = Machine()
        cls.addClassCleanup(cls.machine.remove)

    def venv(self, name, python, *packages):
        place = self.machine.home / name
        self.machine.run(python, "-m", "venv", place)
        self.machine.run(place / "bin/python", "-m", "pip", "install", "--quiet", *packages)
        return place

    def workspace(self):
        return self.machine.directory(f"work-{self._testMethodName}-{len(list(self.machine.home.iterdir()))}")

    def works(self, prefix, *command, **environment):
        """Code runs in the sandbox, on the Python of the environment at `prefix`."""
        printed = self.machine.run(*command, "run", "-c", SANDBOXED, cwd=self.workspace(), **environment)
        where, seccomp, hostname = printed.splitlines()
        self.assertTrue(Path(where).resolve().is_relative_to(Path(prefix).resolve()) if prefix else where, printed)
        self.assertEqual((seccomp, hostname), ("2", "False"))

    def serves(self, *command, **environment):
        """A client of MCP gets an answer over standard input and output."""
        command = self.machine.command(*command, "serve", "--workspace", self.workspace(), "--sandbox",
                                       "--kernel-init-timeout", "60")
        answers = serve(command, code_action("print(6 * 7)"), cwd=self.machine.home,
                        env=self.machine.environment(**environment))
        self.assertEqual(answers[1]["result"]["serverInfo"]["version"], VERSION)
        self.assertEqual(text_of(answers[2]["result"]).strip(), "42")


class MachineTest(WheelTest):
    def test_it_has_neither_checkout_nor_compiler_nor_root(self):
        if os.geteuid() != 0:
            self.assertNotEqual(self.machine.run("id", "-u").strip(), "0")
            return  # nothing can be hidden from a user by that user
        seen = self.machine.run("sh", "-c", f"id -u; ls {ROOT} | wc -l; for name in {' '.join(COMPILERS)}; do "
                                            "if $name --version >/dev/null 2>&1; then echo $name; fi; done")
        self.assertEqual(seen.split(), ["65534", "0"])
        # What root does there for the user is not the user's to change.
        place = self.machine.place
        self.assertEqual(self.machine.run("sh", "-c", f"for path in {place} {place}/aside {place}/aside/*; do "
                                                      "[ ! -w $path ] || echo $path; done"), "")


class InstallersTest(WheelTest):
    def test_pip_on_every_python(self):
        found = interpreters()
        self.assertGreaterEqual(len(found), 2, "tried with two versions of Python at least: install another one, for "
                                               "example with `uv python install 3.12`")
        for version, python in found.items():
            with self.subTest(python=version):
                place = self.venv(f"venv-{version}", python, f"{self.machine.wheel}[kernel]")
                self.assertEqual(self.machine.run(place / "bin/ipybox", "--version").split(), ["ipybox", VERSION])
                # Another environment is active, and its Python has no packages.
                other = self.machine.directory(f"other-{version}") / "bin"
                self.machine.run("mkdir", other)
                self.machine.run("ln", "-s", "/usr/bin/python3", other / "python")
                self.works(place, place / "bin/ipybox", VIRTUAL_ENV=str(other.parent))
                self.serves(place / "bin/ipybox")
                doctor = self.machine.run(place / "bin/ipybox", "doctor", cwd=self.workspace())
                self.assertIn(f"at {place}/bin/python", doctor)
                self.assertNotIn("FAILED", doctor)
                # The commands of the package are the program.
                for words in ([place / "bin/ipybox-cpp"], [place / "bin/python", "-m", "ipybox"]):
                    self.assertEqual(self.machine.run(*words, "--version").split(), ["ipybox", VERSION])
                self.assertEqual(self.machine.run(place / "bin/python", "-c", "import ipybox; print(ipybox.__version__)").strip(),
                                 VERSION)
                self.machine.run(place / "bin/python", "-m", "pip", "uninstall", "--quiet", "--yes", "ipybox-cpp")
                self.assertFalse((place / "bin/ipybox").exists())

    def test_pip_install_target(self):
        target = self.machine.home / "target"
        self.machine.run("/usr/bin/python3", "-m", "venv", self.machine.home / "for-target")
        python = self.machine.home / "for-target/bin/python"
        self.machine.run(python, "-m", "pip", "install", "--quiet", "--target", target, self.machine.wheel)
        self.assertEqual(self.machine.run(python, "-m", "ipybox", "--version", PYTHONPATH=str(target)).split(), ["ipybox", VERSION])

    def test_uvx(self):
        uvx = [self.machine.uv("uvx"), "--python", "/usr/bin/python3", "--from", f"{self.machine.wheel}[kernel]"]
        cache = self.machine.home / ".cache/uv"
        self.works(cache, *uvx, "ipybox")
        self.serves(*uvx, "ipybox")
        self.works(cache, *uvx, "ipybox-cpp")
        self.assertNotIn("FAILED", self.machine.run(*uvx, "ipybox", "doctor", cwd=self.workspace()))

    def test_uvx_without_the_packages_of_kernels(self):
        uvx = [self.machine.uv("uvx"), "--python", "/usr/bin/python3"]
        doctor = self.machine.try_to_run(*uvx, "--from", self.machine.wheel, "ipybox", "doctor", cwd=self.workspace())
        self.assertEqual(doctor.returncode, 1)
        advice = remedy(re.search(r"^FAILED +kernel packages.*$", doctor.stdout, re.M)[0])
        words = re.findall(r"'[^']*'|\S+", advice.removesuffix(" …"))
        self.assertEqual(words[0], "uvx")
        self.works(self.machine.home / ".cache/uv", *uvx, *(word.strip("'") for word in words[1:]), "--from", self.machine.wheel,
                   "ipybox")

    def test_uv_tool(self):
        uv = self.machine.uv()
        self.machine.run(uv, "tool", "install", "--quiet", "--python", "/usr/bin/python3", f"{self.machine.wheel}[kernel]")
        linked = self.machine.home / ".local/bin/ipybox"
        self.assertTrue(linked.is_symlink())
        self.works(self.machine.home / ".local/share/uv/tools/ipybox-cpp", linked)
        self.serves(linked)
        self.machine.run(uv, "tool", "uninstall", "--quiet", "ipybox-cpp")
        # Without the packages doctor names the command that installs them: there is no pip.
        self.machine.run(uv, "tool", "install", "--quiet", "--python", "/usr/bin/python3", self.machine.wheel)
        self.advice_helps(linked, PATH=f"{uv.parent}:/usr/bin:/bin")
        self.machine.run(uv, "tool", "uninstall", "--quiet", "ipybox-cpp")

    def test_pipx(self):
        environment = {"PYTHONPATH": str(self.machine.place / "tools")}
        pipx = ["/usr/bin/python3", "-m", "pipx"]
        self.machine.run(*pipx, "install", "--quiet", f"{self.machine.wheel}[kernel]", **environment)
        linked = self.machine.home / ".local/bin/ipybox"
        self.works(self.machine.home / ".local", linked)
        self.serves(linked)
        self.machine.run(*pipx, "uninstall", "ipybox-cpp", **environment)
        self.machine.run(*pipx, "install", "--quiet", self.machine.wheel, **environment)
        self.advice_helps(linked)
        self.machine.run(*pipx, "uninstall", "ipybox-cpp", **environment)

    def test_pip_without_the_packages_of_kernels(self):
        place = self.venv("bare", "/usr/bin/python3", self.machine.wheel)
        self.advice_helps(place / "bin/ipybox")

    def advice_helps(self, program, **environment):
        doctor = self.machine.try_to_run(program, "doctor", cwd=self.workspace(), **environment)
        self.assertEqual(doctor.returncode, 1, doctor.stderr)
        line = re.search(r"^FAILED +kernel packages.*$", doctor.stdout, re.M)
        self.assertIsNotNone(line, doctor.stdout)
        self.machine.run("sh", "-c", remedy(line[0]), **environment)
        self.works(None, program, **environment)


class InstalledTest(WheelTest):
    """One environment for what does not change it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.place = cls.venv(cls(), "venv", "/usr/bin/python3", f"{cls.machine.wheel}[kernel]")
        cls.program = cls.place / "bin/ipybox"

    def runTest(self):
        """So that an instance can be made for the environment."""

    def test_a_plugin_of_somebody_else(self):
        quota = PROGRAM.parent / "examples/quota.so"
        self.assertTrue(quota.exists(), f"{quota} is missing: scripts/build --tests")
        plugins = self.machine.directory("plugins")
        shutil.copy(quota, plugins)
        policy = self.machine.directory("policy") / "policy.json"
        call = ["--call", '{"server": "files", "tool": "read_text_file"}']
        for calls, verdict in ((0, 1), (1, 0)):
            policy.write_text(json.dumps({"first_match": [{"quota": {"calls": calls}}, "allow"]}))
            run = self.machine.try_to_run(self.program, "policy", "test", policy, *call, IPYBOX_PLUGIN_PATH=str(plugins))
            self.assertEqual(run.returncode, verdict, run.stdout + run.stderr)
        # It is known by the variable alone: nothing of the place where the program was built is searched.
        run = self.machine.try_to_run(self.program, "policy", "test", policy, *call)
        self.assertEqual(run.returncode, 2)
        self.assertIn("quota", run.stderr)

    def test_an_environment_in_the_workspace_is_out_of_reach_of_code(self):
        project = self.machine.directory("project")
        own = self.venv("project/own", "/usr/bin/python3", self.machine.wheel)
        # Kernels run on another Python, so that it is not the interpreter's protection that holds.
        code = f"""
import os
for path in {[str(own / 'bin/ipybox'), str(own / 'bin/python'), str(own / 'pyvenv.cfg')]!r}:
    for attempt in (lambda: open(path, 'ab'), lambda: os.unlink(path), lambda: os.rename(path, path + '-')):
        try:
            attempt()
            print('changed', path)
        except OSError:
            pass
try:
    os.rename({str(own)!r}, {str(own) + '-'!r})
    print('moved')
except OSError:
    pass
print('tried')"""
        printed = self.machine.run(own / "bin/ipybox", "run", "--python", self.place / "bin/python", "-c", code, cwd=project)
        self.assertEqual(printed, "tried\n")
        # Held all the time, it is used at the next start.
        self.machine.run(own / "bin/python", "-m", "pip", "install", "--quiet", "ipykernel", "pydantic")
        self.assertEqual(self.machine.run(own / "bin/ipybox", "run", "-c", "import sys; print(sys.prefix)", cwd=project).strip(),
                         str(own))

    def test_what_code_could_have_written_is_not_started(self):
        project = self.machine.directory("shared")
        own = self.venv("shared/own", "/usr/bin/python3", self.machine.wheel)
        # An ipybox elsewhere, whose code works in that project, does not know of the environment in it.
        self.machine.run(self.program, "run", "-c", "1", cwd=project)
        refused = self.machine.try_to_run(own / "bin/ipybox", "run", "-c", "print(1)", cwd=project)
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn(f"{own}/bin/python is not run on the host", refused.stderr)
        self.assertIn("--python", refused.stderr)

    def test_the_package_runs_code_with_the_program_beside_it(self):
        script = self.machine.directory("script") / "main.py"
        script.write_text("import asyncio, ipybox\n"
                          "async def main():\n"
                          "    async with ipybox.CodeExecutor(sandbox=True) as executor:\n"
                          "        print((await executor.execute('import sys; print(sys.prefix)')).text)\n"
                          "asyncio.run(main())\n")
        printed = self.machine.run(self.place / "bin/python", script, cwd=self.workspace())
        self.assertEqual(printed.strip(), str(self.place))

    def test_it_refuses_to_be_imported_beside_the_original(self):
        place = self.venv("both", "/usr/bin/python3", "--no-deps", "ipybox==0.9.2")
        self.machine.run(place / "bin/python", "-m", "pip", "install", "--quiet", self.machine.wheel)
        refused = self.machine.try_to_run(place / "bin/python", "-c", "import ipybox")
        self.assertEqual(refused.returncode, 1)
        advice = remedy(refused.stderr)
        self.machine.run("sh", "-c", f"{place}/bin/python -m {advice} --yes")
        self.machine.run(place / "bin/python", "-m", "pip", "install", "--quiet", self.machine.wheel)
        self.machine.run(place / "bin/python", "-c", "import ipybox")

    def test_pip_lists_it(self):
        listed = self.machine.run(self.place / "bin/python", "-m", "pip", "show", "--files", "ipybox-cpp")
        self.assertIn("../../../bin/ipybox", listed)


class ContentsTest(unittest.TestCase):
    """What is in the two files, without installing them."""

    @classmethod
    def setUpClass(cls):
        cls.place = Path(tempfile.mkdtemp(prefix="ipybox-wheel-contents-"))
        cls.addClassCleanup(shutil.rmtree, cls.place)
        cls.wheel = built(WHEEL)
        with zipfile.ZipFile(cls.wheel) as file:
            cls.names = [name for name in file.namelist() if not name.endswith("/")]
            file.extractall(cls.place)
        cls.program = cls.place / f"ipybox_cpp-{VERSION}.data/scripts/ipybox"
        cls.info = cls.place / f"ipybox_cpp-{VERSION}.dist-info"

    def test_auditwheel_agrees_with_the_name(self):
        tag = re.fullmatch(rf"ipybox_cpp-{re.escape(VERSION)}-py3-none-(manylinux_2_\d+_x86_64)\.whl", self.wheel.name)
        self.assertIsNotNone(tag, self.wheel.name)
        shown = subprocess.run([TOOLS / "bin/python", "-m", "auditwheel", "show", self.wheel], capture_output=True, text=True,
                               timeout=120, check=True).stdout
        self.assertIn(f'platform tag: "{tag[1]}"', " ".join(shown.split()))
        # RHEL 9, Ubuntu 22.04, Debian 12 and whatever is newer.
        self.assertLessEqual(int(tag[1].split("_")[2]), 34)

    def test_the_program_needs_no_library_that_a_system_may_lack(self):
        dynamic = subprocess.run(["readelf", "--dynamic", self.program], capture_output=True, text=True, check=True).stdout
        self.assertLessEqual(set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)), OF_EVERY_SYSTEM)
        self.assertNotRegex(dynamic, "RPATH|RUNPATH")

    def test_the_program_says_nothing_of_where_it_was_built(self):
        content = self.program.read_bytes()
        self.assertTrue(content.startswith(b"\x7fELF"))
        for secret in (str(ROOT), str(Path.home()) + "/", "ipybox/plugins\0"):
            self.assertNotIn(secret.encode(), content)
        sections = subprocess.run(["readelf", "--sections", "--wide", self.program], capture_output=True, text=True, check=True)
        self.assertNotIn(".debug_", sections.stdout)
        self.assertNotIn(".symtab", sections.stdout)

    def test_nothing_but_the_package_the_program_and_its_papers(self):
        top = {name.split("/")[0] for name in self.names}
        self.assertEqual(top, {"ipybox", f"ipybox_cpp-{VERSION}.data", f"ipybox_cpp-{VERSION}.dist-info"})
        self.assertEqual([name for name in self.names if ".data/" in name], [f"ipybox_cpp-{VERSION}.data/scripts/ipybox"])
        self.assertIn("ipybox/py.typed", self.names)
        sources = {str(path.relative_to(ROOT / "bindings/python")) for path in (ROOT / "bindings/python/ipybox").rglob("*")
                   if path.is_file() and "__pycache__" not in path.parts}
        self.assertEqual(sources, {name for name in self.names if name.startswith("ipybox/")})

    def test_licences_of_all_that_is_linked(self):
        papers = self.info / "licenses/build-wheel/licenses"
        linked = (papers / "LINKED.md").read_text()
        rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (\S+) (\d\S*) \|", linked, re.M)
        self.assertGreaterEqual(len(rows), 8)
        for name, _, source, version in rows:
            file = papers / (re.sub(r"\W+", "-", name.lower().replace("+", "p")) + ".txt")
            self.assertGreater(len(file.read_text()), 1000, name)
        for name, licence, source, version in rows:
            if licence.startswith("LGPL"):
                self.assertIn(f"{source}={version}", linked)
        self.assertIn("GNU LESSER GENERAL PUBLIC LICENSE", (papers / "LGPL-2.1.txt").read_text())
        documented = (ROOT / "docs/dependencies.md").read_text()
        for name, licence, _, _ in rows:
            self.assertRegex(documented, rf"(?m)^\| {re.escape(name)} \| {re.escape(licence)} \|")

    def test_metadata(self):
        metadata = (self.info / "METADATA").read_text()
        for line in ("Name: ipybox-cpp", f"Version: {VERSION}", "Requires-Python: >=3.10", "Provides-Extra: kernel",
                     "Requires-Dist: ipykernel; extra == 'kernel'", "Requires-Dist: matplotlib; extra == 'kernel'",
                     "Requires-Dist: pydantic>=2.7; extra == 'kernel'"):
            self.assertIn(line + "\n", metadata)
        # Nothing is installed with it that was not asked for.
        self.assertNotRegex(metadata, r"Requires-Dist: (?!.*extra ==)")

    def test_the_source_distribution_makes_the_same_wheel(self):
        (self.place / "source").mkdir()
        subprocess.run(["tar", "-xf", built("*.tar.gz"), "-C", self.place / "source"], check=True, timeout=60)
        source = self.place / "source" / f"ipybox_cpp-{VERSION}"
        for name in ("meson.build", "PKG-INFO", "scripts/wheel", "include/ipybox/ipybox.hpp", "bindings/python/ipybox/__init__.py"):
            self.assertTrue((source / name).is_file(), name)
        for name in (".git", ".venv", "build", "build-wheel/ipybox", "dist"):
            self.assertFalse((source / name).exists(), name)
        # The time of the commit, which the wheel's files have.
        with zipfile.ZipFile(self.wheel) as file:
            when = file.getinfo("ipybox/__init__.py").date_time
        epoch = str(calendar.timegm(when))
        made = self.place / "made"
        subprocess.run([TOOLS / "bin/python", "-m", "build", "--no-isolation", "--wheel", "--outdir", made, source], check=True,
                       capture_output=True, timeout=1500, env={**os.environ, "SOURCE_DATE_EPOCH": epoch})
        with zipfile.ZipFile(next(made.glob("*.whl"))) as again, zipfile.ZipFile(self.wheel) as file:
            self.assertEqual(again.getinfo("ipybox/__init__.py").date_time, when)
            for name in self.names:
                if not name.endswith(("/WHEEL", "/RECORD")):  # auditwheel writes its tag there
                    self.assertEqual(again.read(name), file.read(name), name)


class DocumentationTest(unittest.TestCase):
    def test_lines_to_install_name_the_file_that_is_built(self):
        found = 0
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "claude/skills/codeact/SKILL.md"):
            for name in re.findall(r"ipybox_cpp-[\w.+-]+?\.whl", page.read_text()):
                found += 1
                self.assertEqual(name, built(WHEEL).name, page.name)
        self.assertGreaterEqual(found, 3)


if __name__ == "__main__":
    unittest.main()
