"""What the host runs is never found where code could have put it: not in the same session, nor in a later one.

Each case plants a program from inside the sandbox, and starts ipybox again as somebody would who has not noticed. It is
shown to run where the record of such places is lost, or where the configuration says that it is trusted.
"""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import BUILD, PROGRAM, PYTHON, InSandbox, Outcome, Place, ability, environment  # noqa: E402


class Base(InSandbox):
    def setUp(self) -> None:
        self.place = self.enterContext(Place())
        self.workspace = self.place.workspace
        self.mark = self.place.outside / "ran"  # nothing in a sandbox can write there
        self.mark.parent.chmod(0o777)           # but every user of the host can

    # Starting ipybox.
    def environment(self, record: str = "state", **more: str) -> dict[str, str]:
        """record: a directory of its own, so that another one stands for a lost record."""
        given = environment(XDG_STATE_HOME=str(self.place.root / record), **more)
        return {name: value for name, value in given.items() if value}

    def ipybox(self, *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> Outcome:
        done = subprocess.run([PROGRAM, *arguments], cwd=cwd or self.workspace, capture_output=True, text=True, timeout=120,
                              env=env or self.environment(), stdin=subprocess.DEVNULL)
        return Outcome(done.returncode, done.stdout, done.stderr, 0, 0)

    def plant(self, files: dict[str, str], env: dict[str, str] | None = None) -> None:
        """By code in a sandbox, whose workspace this then is on record."""
        code = (f"import os\nfor name, text in {files!r}.items():\n    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)\n"
                "    open(name, 'w').write(text)\n    os.chmod(name, 0o755)\nprint('planted')")
        outcome = self.ipybox("run", "--sandbox", self.sandbox, "-c", code, env=env)
        self.assertEqual(outcome.output, "planted\n", outcome.errors)
        self.assertFalse(self.mark.exists())

    def assert_ran(self, expected: bool, outcome: Outcome) -> None:
        self.assertEqual(self.mark.exists(), expected, outcome)
        self.mark.unlink(missing_ok=True)

    def assert_refused(self, outcome: Outcome, *words: str) -> None:
        self.assert_ran(False, outcome)
        self.assertNotEqual(outcome.status, 0, outcome)
        for word in words:
            self.assertIn(word, outcome.errors)

    @property
    def touch(self) -> str:
        return f"#!/bin/sh\ntouch {self.mark}\n"


class HostPrograms(Base):
    """bwrap, srt, pip, interpreters and plugins."""

    def test_programs_of_the_sandbox_are_not_found_in_a_former_workspace(self) -> None:
        path = f"{self.workspace}/.local/bin:{os.environ['PATH']}"
        # The disk is read-only for what is started as bwrap, but for pipes.
        pipe = self.place.outside / "pipe"
        os.mkfifo(pipe)
        pipe.chmod(0o666)
        told = self.enterContext(open(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0))
        self.plant({".local/bin/bwrap": f'{self.touch}echo ran > {pipe}\nexec /usr/bin/bwrap "$@"\n'}, self.environment(PATH=path))
        second = self.ipybox("run", "--sandbox", self.sandbox, "-c", "print('fine')", env=self.environment(PATH=path))
        self.assert_ran(False, second)
        self.assertEqual(second.output, "fine\n", second.errors)
        elsewhere = self.place.directory("elsewhere")
        third = self.ipybox("run", "--sandbox", self.sandbox, "-c", "print('fine')", cwd=elsewhere, env=self.environment(PATH=path))
        self.assert_ran(False, third)
        self.assertEqual(third.output, "fine\n", third.errors)
        named = json.dumps({"bwrap": f"{self.workspace}/.local/bin/bwrap"})
        self.assert_refused(self.ipybox("run", "--sandbox", self.sandbox, "--sandbox-options", named, "-c", "1"), "install it elsewhere")
        self.assertIsNone(told.read(100), "what was planted ran")
        lost = self.ipybox("run", "--sandbox", self.sandbox, "-c", "1", cwd=elsewhere, env=self.environment("other", PATH=path))
        self.assertIn(b"ran", told.read(100) or b"", lost)

    def test_programs_of_srt_are_not_found_in_a_former_workspace(self) -> None:
        first = environment()["PATH"]
        path = f"{self.workspace}/bin:{first}"
        # srt looks these up itself.
        real = {name: shutil.which(name, path=first) for name in ("bwrap", "rg", "socat")}
        self.plant({f"bin/{name}": self.touch + f'exec {found} "$@"\n' for name, found in real.items()})
        elsewhere = self.place.directory("elsewhere")
        second = self.ipybox("run", "--sandbox", "srt", "-c", "print('fine')", cwd=elsewhere, env=self.environment(PATH=path))
        self.assert_ran(False, second)
        self.assertEqual(second.output, "fine\n", second.errors)
        self.assert_ran(True, self.ipybox("run", "--sandbox", "srt", "-c", "print('fine')", cwd=elsewhere,
                                          env=self.environment("other", PATH=path)))

    def test_an_interpreter_is_not_found_in_a_former_workspace(self) -> None:
        python = f"{self.touch}exec {PYTHON} \"$@\"\n"
        self.plant({"project/.venv/bin/python": python, "bin/python3": python})
        project = self.workspace / "project"
        run = ("run", "--sandbox", self.sandbox, "-c", "print('fine')")
        environment_of = lambda **more: self.environment(**{"IPYBOX_PYTHON": "", **more})  # noqa: E731
        self.assert_refused(self.ipybox(*run, cwd=project, env=environment_of()), "--python", str(self.workspace))
        venv = str(project / ".venv")
        self.assert_refused(self.ipybox(*run, cwd=self.place.directory("elsewhere"), env=environment_of(VIRTUAL_ENV=venv)), "--python")
        path = f"{self.workspace}/bin:{os.environ['PATH']}"
        self.assert_ran(False, self.ipybox(*run, cwd=self.place.directory("elsewhere"), env=environment_of(PATH=path)))
        # Whoever names it answers for it.
        self.assert_ran(True, self.ipybox(*run, "--python", ".venv/bin/python", cwd=project, env=environment_of()))
        self.assert_ran(True, self.ipybox(*run, cwd=project, env=environment_of(record="other")))

    def test_the_interpreter_that_was_protected_throughout_stays_the_users(self) -> None:
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", "--system-site-packages", self.workspace / ".venv"], check=True)
        packages = next((self.workspace / ".venv/lib").glob("python*/site-packages"))
        outer = next((Path(PYTHON).parent.parent / "lib").glob("python*/site-packages"))
        (packages / "outer.pth").write_text(f"{outer}\n")
        for _ in range(2):
            outcome = self.ipybox("run", "--sandbox", self.sandbox, "-c", "import sys; print(sys.prefix)",
                                  env=self.environment(IPYBOX_PYTHON=""))
            self.assertEqual(outcome.output, f"{self.workspace}/.venv\n", outcome.errors)
        # A session that does not protect it gives it away.
        self.ipybox("run", "--sandbox", "none", "-c", "1")
        self.assert_refused(self.ipybox("run", "--sandbox", self.sandbox, "-c", "1", env=self.environment(IPYBOX_PYTHON="")), "--python")

    def test_start_up_files_of_an_interpreter_do_not_run_on_the_host(self) -> None:
        venv = self.place.directory("venv")
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", venv], check=True)
        packages = next((venv / "lib").glob("python*/site-packages"))
        (packages / "planted.pth").write_text(f"import os; os.path.exists({str(self.mark)!r}) or open({str(self.mark)!r}, 'w')\n")
        (packages / "sitecustomize.py").write_text(f"open({str(self.mark)!r}, 'w')\n")
        (packages / "json.py").write_text(f"open({str(self.mark)!r}, 'w')\n")
        python = venv / "bin/python"
        outcome = self.ipybox("run", "--sandbox", self.sandbox, "--python", str(python), "-c", "1")
        self.assert_refused(outcome, "no ipykernel")
        done = subprocess.run([python, "-I", "-c", "1"], capture_output=True, text=True)
        self.assert_ran(True, Outcome(done.returncode, done.stdout, done.stderr, 0, 0))

    def test_a_plugin_is_not_loaded_from_a_former_workspace(self) -> None:
        if lacks := ability("bubblewrap_weakened"):
            self.skipTest(lacks)
        self.plant({"plugins/placeholder": ""})
        shutil.copy(BUILD / "tests/security/sandbox/bubblewrap_weakened.so", self.workspace / "plugins")
        run = ("run", "--sandbox", "bubblewrap_weakened", "-c", "print('loaded')")
        path = str(self.workspace / "plugins")
        refused = self.ipybox(*run, cwd=self.place.directory("elsewhere"), env=self.environment(IPYBOX_PLUGIN_PATH=path))
        self.assertNotIn("loaded", refused.output)
        loaded = self.ipybox(*run, cwd=self.place.directory("elsewhere"), env=self.environment("other", IPYBOX_PLUGIN_PATH=path))
        self.assertEqual(loaded.output, "loaded\n", loaded.errors)

    def test_what_code_put_beside_packages_is_not_run_as_pip(self) -> None:
        ran = self.workspace / ".ipybox/site-packages/ran"
        self.plant({".ipybox/site-packages/pip/__main__.py": "open('ran', 'w')\n", ".ipybox/site-packages/pip/__init__.py": "",
                    ".ipybox/site-packages/sitecustomize.py": "open('ran', 'w')\n"})
        outcome = self.ipybox("run", "--sandbox", self.sandbox, "--package-host", "localhost", "--package", "nosuchpackage==1", "-c", "1")
        self.assertFalse(ran.exists(), outcome)
        self.assertIn("nosuchpackage", outcome.errors)
        # As it was started before: in that directory, and not isolated.
        subprocess.run([PYTHON, "-m", "pip", "--version"], cwd=ran.parent, capture_output=True, env={"PATH": os.environ["PATH"]})
        self.assertTrue(ran.exists())


class Servers(Base):
    """MCP servers: cwd, command, interpreter, script, directories of PATH."""

    def start(self, record: str = "state", path: str = "", **params: object) -> Outcome:
        """Generates the API of a server, for which that is started."""
        config = self.place.file("servers.json", json.dumps({"mcpServers": {"own": params}}))
        env = self.environment(record, **({"PATH": path} if path else {}))
        return self.ipybox("run", "--sandbox", self.sandbox, "--config", str(config), "-c", "print('fine')", env=env)

    def assert_judged(self, *words: str, **params: object) -> None:
        """Refused with the remedy; run where the configuration answers for it."""
        outcome = self.start(**params)
        self.assert_ran(False, outcome)
        for word in ("trust_cwd", "own", *words):
            self.assertIn(word, outcome.errors)
        self.assert_ran(True, self.start(**{"cwd": str(self.workspace), **params, "trust_cwd": True}))

    def server(self) -> str:
        return f"import os\nopen({str(self.mark)!r}, 'w').close()\n" + "raise SystemExit(3)\n"

    def test_modules_are_not_found_in_a_former_workspace(self) -> None:
        self.plant({"planted_server.py": self.server()})
        self.assert_judged("its cwd", command=PYTHON, args=["-m", "planted_server"], cwd=str(self.workspace))
        self.assert_judged("its cwd", command=PYTHON, args=["-c", "import planted_server"], cwd=str(self.workspace))

    def test_a_command_or_script_is_not_run_from_a_former_workspace(self) -> None:
        self.plant({"bin/server": self.touch, "server.py": self.server(), "bin/by_env": "#!/usr/bin/env python3\n" + self.server()})
        self.assert_judged("its command", command=str(self.workspace / "bin/server"))
        self.assert_judged("its command", command=str(self.workspace / "bin/by_env"))
        self.assert_judged("its argument", command=PYTHON, args=["-u", str(self.workspace / "server.py")])
        self.assert_judged("its argument", command="env", args=["A=1", PYTHON, str(self.workspace / "server.py")])
        self.place.link("outside/link", self.workspace / "bin/server")
        self.assert_judged("its command", command=str(self.place.outside / "link"))
        (self.place.outside / "link").unlink()

    def test_an_interpreter_is_not_run_from_a_former_workspace(self) -> None:
        self.plant({"bin/interpreter": self.touch})
        script = self.place.file("tools/server", f"#!{self.workspace}/bin/interpreter\n", 0o755)
        self.assert_judged("the interpreter", command=str(script))

    def test_path_does_not_lead_into_a_former_workspace(self) -> None:
        self.plant({"bin/helper": self.touch})
        script = self.place.file("tools/server", "#!/bin/sh\nhelper\n", 0o755)
        self.assert_judged("the entry of PATH", command=str(script), path=f"{self.workspace}/bin:{environment()['PATH']}")

    def test_the_session_itself_counts_before_its_kernel_starts(self) -> None:
        self.place.file("workspace/server.py", self.server())
        outcome = self.start(command=PYTHON, args=[str(self.workspace / "server.py")])
        self.assert_ran(False, outcome)
        self.assertIn("trust_cwd", outcome.errors)

    def test_with_sandbox_none_nothing_is_refused_and_that_is_said(self) -> None:
        self.plant({"server.py": self.server()})
        config = self.place.file("servers.json", json.dumps({"mcpServers": {"own": {
            "command": PYTHON, "args": [str(self.workspace / "server.py")]}}}))
        outcome = self.ipybox("run", "--sandbox", "none", "--config", str(config), "-c", "1")
        self.assert_ran(True, outcome)
        quiet = self.ipybox("run", "--sandbox", "none", "-c", "1")
        self.assertIn("protects nothing", quiet.errors)

    def test_data_in_the_workspace_may_be_named(self) -> None:
        self.plant({"data/x": ""})
        server = self.place.file("tools/server.py", self.server())
        self.assert_ran(True, self.start(command=PYTHON, args=[str(server), "--root", str(self.workspace), str(self.workspace / "data")]))


class HostProgramsInBubblewrap(HostPrograms, unittest.TestCase):
    test_programs_of_srt_are_not_found_in_a_former_workspace = None


class HostProgramsInSrt(HostPrograms, unittest.TestCase):
    sandbox = "srt"
    test_programs_of_the_sandbox_are_not_found_in_a_former_workspace = None  # those of bubblewrap


class ServersInBubblewrap(Servers, unittest.TestCase):
    pass


class ServersInSrt(Servers, unittest.TestCase):
    sandbox = "srt"
    test_with_sandbox_none_nothing_is_refused_and_that_is_said = None


if __name__ == "__main__":
    unittest.main()
