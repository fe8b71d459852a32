"""The `ipybox` program as a person uses it: exit codes, one-line errors, questions at a terminal."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

PROGRAM = os.environ["IPYBOX_TEST_PROGRAM"]
PYTHON = os.environ["IPYBOX_TEST_PYTHON"]
SUPPORT = Path(os.environ["IPYBOX_TEST_SUPPORT"])
sys.path.insert(0, str(SUPPORT))
from approver import Approver  # noqa: E402
from terminal import PROMPT, Terminal, converse  # noqa: E402

CUSTOM_SANDBOX = Path(PROGRAM).parent / "examples/custom_sandbox/landlock.so"
LOGGING_SANDBOX = Path(PROGRAM).parent / "examples/logging_sandbox/logging.so"
BAD_PLUGINS = Path(os.environ["IPYBOX_TEST_BAD_PLUGINS"])
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "IPYBOX_PYTHON": PYTHON,
    "SUPPORT": str(SUPPORT),
    # Where the key of audit logs is.
    **({"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]} if "XDG_STATE_HOME" in os.environ else {}),
}


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix="ipybox-program-"))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        os.chmod(self.directory, 0o755)
        if os.geteuid() == 0:  # the sandbox drops root
            os.chown(self.directory, 65534, 65534)
        self.config = self.directory / "mcp.json"
        self.config.write_text(json.dumps({"mcpServers": {"own": {
            "command": PYTHON, "args": ["${SUPPORT}/mcp_server.py"], "env": {"TOKEN": "${SECRET_OF_TEST:-none}"}}}}))

    def ipybox(self, *arguments, stdin="", env=None, start_new_session=True):
        return subprocess.run(
            [PROGRAM, *arguments], cwd=self.directory, input=stdin, capture_output=True, text=True, timeout=120,
            env={**ENVIRONMENT, **(env or {})}, start_new_session=start_new_session)

    def assert_refused(self, run, *words):
        """One line, exit code 2, naming what is wrong."""
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual(len(run.stderr.strip().splitlines()), 1, run.stderr)
        for word in words:
            self.assertIn(word, run.stderr)


class RunTest(ProgramTest):
    def test_output_goes_to_the_streams_and_exit_codes_tell(self):
        good = self.ipybox("run", "-c", "import sys; print('out'); print('err', file=sys.stderr)")
        self.assertEqual((good.returncode, good.stdout, good.stderr), (0, "out\n", "err\n"))
        bad = self.ipybox("run", "-c", "print('before'); 1/0")
        self.assertEqual((bad.returncode, bad.stdout), (1, "before\n"))
        self.assertIn("ZeroDivisionError", bad.stderr)
        late = self.ipybox("run", "--timeout", "0.5", "-c", "print('early', flush=True); import time; time.sleep(60)")
        self.assertEqual((late.returncode, late.stdout), (1, "early\n"))
        self.assertIn("0.50s", late.stderr)

    def test_code_comes_from_an_option_a_file_or_standard_input(self):
        (self.directory / "code.py").write_text("print('from a file')")
        self.assertEqual(self.ipybox("run", "code.py").stdout, "from a file\n")
        self.assertEqual(self.ipybox("run", "-", stdin="print('from stdin')").stdout, "from stdin\n")

    def test_the_sandbox_is_named_or_not(self):
        seen = f"import os; print(os.path.exists({str(SUPPORT)!r}))"
        (self.directory / "code.py").write_text(seen)
        for flags in (["--sandbox", "-c", seen], ["code.py", "--sandbox"],
                      ["--sandbox=bubblewrap", "code.py"], ["--sandbox", "bubblewrap", "code.py"], ["--sandbox", "--", "code.py"]):
            run = self.ipybox("run", *flags)
            self.assertEqual((run.returncode, run.stdout), (0, "False\n"), (flags, run.stderr))
        for flags in (["--sandbox=none", "code.py"], ["--sandbox", "none", "code.py"], ["code.py", "--sandbox", "none"]):
            self.assertEqual(self.ipybox("run", *flags).stdout, "True\n", flags)
        # What is no sandbox is not run with the default one, nor taken for the code.
        for flags in (["--sandbox", "code.py"], ["--sandbox", "code.py", "code.py"], ["--sandbox", "-"],
                      ["--sandbox=code.py", "-c", "1"], ["--sandbox", "../code.py", "-c", "1"]):
            self.assert_refused(self.ipybox("run", *flags), f'"{flags[0].partition("=")[2] or flags[1]}"',
                                "there are: bubblewrap, none", "--sandbox=NAME, or --sandbox behind")

    def test_mistakes_are_one_line_with_a_remedy(self):
        self.assert_refused(self.ipybox("run"), "-c", "FILE")
        self.assert_refused(self.ipybox("run", "-c", "1", "--bogus"), "--bogus", "--help")
        self.assert_refused(self.ipybox("frobnicate"), "frobnicate", "run", "serve", "plugins")
        self.assert_refused(self.ipybox("run", "missing.py"), "missing.py")
        for arguments, words in (
                (["run", "--sandbx", "none", "-c", "1"], ["unknown option --sandbx; did you mean --sandbox? See `ipybox run --help`"]),
                (["run", "-c", "1", "--tiemout=5"], ["unknown option --tiemout; did you mean --timeout?"]),
                (["run", "--bogus"], ["unknown option --bogus; see `ipybox run --help`"]),
                (["run", "-c", "1", "--tokken=secret"], ["unknown option --tokken; see"]),
                (["--alow-host", "a.example"], ["unknown option --alow-host; did you mean --allow-host? See `ipybox serve --help`"]),
                (["run", "code.py", "more.py"], ["unexpected argument \"more.py\""]),
                (["srve"], ["there is no command \"srve\"; did you mean serve? There are: run, repl, serve, "]),
                (["auth", "lgin"], ["there is no command \"lgin\"; did you mean login?", "; see `ipybox auth --help`"])):
            run = self.ipybox(*arguments)
            self.assert_refused(run, *words)
            self.assertNotIn("secret", run.stderr)
        self.assert_refused(self.ipybox("run", "-c", "1", "--sandbox", "nosuch"), "nosuch", "bubblewrap, none")
        self.assert_refused(self.ipybox("run", "-c", "1", "--kernel", "nosuch"), "nosuch", "fork, gateway, zmq")
        self.assert_refused(self.ipybox("run", "-c", "1", "--approve", "maybe"), "ask", "allow", "deny")
        self.assert_refused(self.ipybox("run", "-c", "1", "--timeout", "-1"), "--timeout")
        self.assert_refused(self.ipybox("run", "-c", "1", "--workspace", "/nonexistent"), "/nonexistent")
        self.assert_refused(self.ipybox("run", "-c", "1", "--env", "novalue"), "NAME=VALUE")
        self.assert_refused(self.ipybox("run", "-c", "1", "--python", "/nonexistent/python"), "/nonexistent/python")
        self.assert_refused(self.ipybox("run", "-c", "1", "--python", "/bin/true"), "not a working Python")
        self.config.write_text('{"mcpServers": {"a": {"comand": "x"}}}')
        self.assert_refused(self.ipybox("run", "-c", "1", "--config", "mcp.json"), "mcpServers/a", "comand")
        self.config.write_text("{\n oops")
        self.assert_refused(self.ipybox("run", "-c", "1", "--config", "mcp.json"), "mcp.json", "line 2")
        self.config.write_text('{"mcpServers": {"!?": {"command": "x"}}}')
        self.assert_refused(self.ipybox("run", "-c", "1", "--config", "mcp.json"), "!?")
        self.config.write_text('{"mcpServers": {"a": {"command": "no-such-program-anywhere"}}}')
        self.assert_refused(self.ipybox("run", "-c", "1", "--config", "mcp.json"), "no-such-program-anywhere")
        (self.directory / ".env").write_text("nonsense\n")
        self.assert_refused(self.ipybox("run", "-c", "1"), ".env, line 1")

    def test_an_interpreter_without_ipykernel_names_the_remedy(self):
        venv = self.directory / "venv"
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], check=True)
        self.assert_refused(self.ipybox("run", "-c", "1", "--python", str(venv / "bin/python")),
                            "no ipykernel", f"`uv pip install --python {venv}/bin/python ipykernel ")
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--clear", venv], check=True)
        self.assert_refused(self.ipybox("run", "-c", "1", "--python", str(venv / "bin/python")),
                            "no ipykernel", f"`{venv}/bin/python -m pip install ipykernel ")

    def test_configurations_of_other_clients_are_taken(self):
        server = {"command": PYTHON, "args": ["${SUPPORT}/mcp_server.py"]}
        self.config.write_text(json.dumps({"mcpServers": {
            "my-own.server": {**server, "transport": "stdio", "env": None, "autoApprove": ["echo"]},
            "other": {**server, "alias": "mine", "disabled": False}, "off": {"command": "no-such-program", "disabled": True}}}))
        run = self.ipybox("ipybox", "run", "--config", "mcp.json", "--approve", "allow", "-c",
                          "from mcptools.my_own_server import echo\nprint(echo.run(text='x'))\n"
                          "from mcptools.mine import echo\nprint(echo.run(text='y'))")
        self.assertEqual((run.returncode, run.stdout), (0, "x\ny\n"), run.stderr)
        self.assertIn("mcpServers/my-own.server: its package is mcptools.my_own_server", run.stderr)
        self.assertIn("\"autoApprove\" does nothing here", run.stderr)
        self.assertEqual(run.stderr.count("warning:"), 2, run.stderr)

    def test_packages_of_the_original_are_named_and_written_anew(self):
        for name in ("own", "other"):
            package = self.directory / "mcptools" / name
            package.mkdir(parents=True)
            (package / "__init__.py").write_text(
                "import os\nfrom mcpygen.tool_exec.client import ToolRunner\n\nCLIENT = ToolRunner(\n"
                f"    server_name={name!r},\n    server_params={{}},\n)\n")
            (package / "add.py").write_text("from . import CLIENT\n\n\ndef run(params):\n    return CLIENT.run_sync('add', {})\n")
        if os.geteuid() == 0:
            for path in (self.directory / "mcptools").rglob("*"):
                os.chown(path, 65534, 65534)
            os.chown(self.directory / "mcptools", 65534, 65534)
        run = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "-c",
                          "from mcptools.own import add\nprint(add.run(a=1, b=2).sum)\nfrom mcptools.other import add")
        self.assertEqual((run.returncode, run.stdout), (1, "3\n"), run.stderr)
        told, = [line for line in run.stderr.splitlines() if "generated by the original ipybox, cannot" in line]
        self.assertIn("mcptools/other: ", told)
        self.assertNotIn("mcptools/own", told)
        self.assertIn("ModuleNotFoundError: mcptools.other was generated by the original ipybox", run.stderr)
        self.assertIn("register the MCP server other or name it in --config", run.stderr)
        self.assertIn("is kept as mcptools/.own.before", run.stderr)
        self.assertTrue((self.directory / "mcptools" / ".own.before" / "add.py").is_file())

        again = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "-c",
                            "try:\n    import mcpygen\nexcept ModuleNotFoundError as error:\n    print(error)")
        self.assertEqual(again.stdout, "No module named 'mcpygen'\n")  # who asks for it outside of such a package
        self.assertNotIn(".own.before", again.stderr)

    def test_functions_that_are_coroutines(self):
        run = self.ipybox(
            "run", "--config", "mcp.json", "--approve", "allow", "--async-api", "-c",
            "import asyncio, time\nfrom mcptools.own import add, slow\n"
            "begun = time.monotonic()\n"
            "print(await asyncio.gather(slow.run(seconds=1.5), slow.run(seconds=1.5), slow.run(seconds=1.5)))\n"
            "print(time.monotonic() - begun < 4)\n"
            "task = asyncio.ensure_future(slow.run(seconds=100))\n"
            "await asyncio.sleep(0.5)\n"
            "task.cancel()\n"
            "try:\n    await task\nexcept asyncio.CancelledError:\n    print('withdrawn')\n"
            "print((await add.run_async(a=1, b=2)).sum)")
        self.assertEqual((run.returncode, run.stdout), (0, "['done', 'done', 'done']\nTrue\nwithdrawn\n3\n"), run.stderr)

    def test_cells_start_in_the_working_directory(self):
        inner = self.directory / "inner"
        inner.mkdir()
        if os.geteuid() == 0:
            os.chown(inner, 65534, 65534)
        run = self.ipybox("run", "--working-dir", "inner", "-c",
                          "import os\nopen('here', 'w').close(); open('../there', 'w').close()\nprint(os.getcwd())\nos.chdir('/')")
        self.assertEqual((run.returncode, run.stdout), (0, f"{inner}\n[ipybox] cwd reset to {inner}\n"), run.stderr)
        self.assertTrue((inner / "here").exists() and (self.directory / "there").exists())
        (self.directory / "leads_out").symlink_to("/usr")
        for place, why in (("/usr", "is not in the workspace"), ("..", "is not in the workspace"), ("leads_out", "is not in the workspace"),
                           ("absent", "is no directory in the workspace"), ("mcp.json", "is no directory in the workspace")):
            self.assert_refused(self.ipybox("run", "--working-dir", place, "-c", "1"), f"--working-dir: {place} {why}")
        self.assert_refused(self.ipybox("serve", "--http", "127.0.0.1:0", "--working-dir", "inner"), "--working-dir", "--shared-workspace")
        # What is protected in the workspace is so there too.
        (self.directory / ".git" / "hooks").mkdir(parents=True)
        if os.geteuid() == 0:
            for path in (self.directory / ".git", self.directory / ".git" / "hooks"):
                os.chown(path, 65534, 65534)
        hooks = self.ipybox("run", "--working-dir", ".git/hooks", "-c", "open('post-checkout', 'w')")
        self.assertEqual(hooks.returncode, 1)
        self.assertFalse((self.directory / ".git" / "hooks" / "post-checkout").exists())

    def test_servers_of_other_clients_are_imported(self):
        home = self.directory / "home"
        for name, text in ((".claude.json", json.dumps({"mcpServers": {"files": {"type": "stdio", "command": "npx", "args": ["-y", "x"]}},
                                                        "projects": {str(self.directory): {"mcpServers": {"own": {"command": "y"}}}}})),
                           (".cursor/mcp.json", '{"mcpServers": {"gone": {"command": "x", "disabled": true}, "bad": {"comand": "x"}}}'),
                           (".config/Code/User/mcp.json", """{ // with comments
                               "inputs": [], "servers": {"git-hub": {"type": "http", "url": "https://h/mcp",
                               "headers": {"Authorization": "Bearer ${input:gh-token}", "X": "${env:HOME_OF_X}"}},}}""")):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        (self.directory / ".mcp.json").write_text('{"mcpServers": {"files": {"command": "of-the-project", "cwd": "${workspaceFolder}"}}}')
        env = {"HOME": str(home), "XDG_STATE_HOME": str(self.directory / "state")}
        run = self.ipybox("config", "import", "claude", env=env)
        self.assertEqual((run.returncode, json.loads(run.stdout)), (0, {"mcpServers": {
            "files": {"command": "of-the-project", "cwd": "${WORKSPACE}"}, "own": {"command": "y"}}}), run.stderr)
        self.assertIn("files is left out: another file has one of this name", run.stderr)
        run = self.ipybox("config", "import", "vscode", "--out", "servers.json", env=env)
        self.assertEqual((run.returncode, run.stdout), (0, ""), run.stderr)
        self.assertIn("git-hub becomes git_hub", run.stderr)
        self.assertIn("set GH_TOKEN in .env", run.stderr)
        written = self.directory / "servers.json"
        self.assertEqual(json.loads(written.read_text()), {"mcpServers": {"git_hub": {
            "type": "http", "url": "https://h/mcp", "headers": {"Authorization": "Bearer ${GH_TOKEN}", "X": "${HOME_OF_X}"}}}})
        self.assertEqual(written.stat().st_mode & 0o777, 0o600)
        self.assert_refused(self.ipybox("config", "import", "nobody", env=env), "{claude,codex,cursor,vscode}")
        again = self.ipybox("config", "import", "vscode", "--out", "servers.json", env=env)
        self.assertEqual(again.returncode, 2)
        self.assertIn("servers.json cannot be made: File exists", again.stderr)
        none = self.ipybox("config", "import", "cursor", env=env)
        self.assertEqual((none.returncode, none.stdout), (2, ""))
        for word in ("gone is disabled there", "bad is left out", "comand", "no servers of cursor found; searched: "):
            self.assertIn(word, none.stderr)

    def test_servers_of_codex_are_imported(self):
        home = self.directory / "home"
        (home / ".codex").mkdir(parents=True)
        (home / ".codex/config.toml").write_text("""
            model = "o"  # not about servers
            [mcp_servers.files]
            command = "npx"
            args = ["-y", 'x']
            cwd = "/srv"
            env_vars = ["LOCAL_TOKEN"]
            startup_timeout_sec = 20.5
            tools.read.approval_mode = "approve"
            [mcp_servers.files.env]
            MODE = "quiet"
            [mcp_servers."git.hub"]
            url = "https://h/mcp"
            bearer_token_env_var = "GH_TOKEN"
            http_headers = { "X-Region" = "eu" }
            env_http_headers = { "X-Key" = "KEY_OF_X" }
            enabled_tools = ["search"]
            [mcp_servers.off]
            command = "x"
            enabled = false
            [mcp_servers.odd]
            command = "x"
            env_vars = [{ name = "A", source = "remote" }]
            [mcp_servers.dated]
            command = 1979-05-27
        """)
        env = {"HOME": str(home), "XDG_STATE_HOME": str(self.directory / "state")}
        run = self.ipybox("config", "import", "codex", env=env)
        self.assertEqual((run.returncode, json.loads(run.stdout)), (0, {"mcpServers": {
            "files": {"command": "npx", "args": ["-y", "x"], "cwd": "/srv", "env": {"MODE": "quiet", "LOCAL_TOKEN": "${LOCAL_TOKEN}"}},
            "git_hub": {"url": "https://h/mcp", "headers": {
                "Authorization": "Bearer ${GH_TOKEN}", "X-Region": "eu", "X-Key": "${KEY_OF_X}"}}}}), run.stderr)
        for words in ("\"startup_timeout_sec\" does nothing here: see --connect-timeout", "\"enabled_tools\" does nothing here",
                      "git.hub becomes git_hub", "off is disabled there", "odd is left out", "env_vars", "dated is left out"):
            self.assertIn(words, run.stderr)
        # Elsewhere by Codex's own variable; and one with a mistake, which is told with its place.
        other = self.directory / "other"
        other.mkdir()
        (other / "config.toml").write_text("[mcp_servers.a]\ncommand = \n")
        wrong = self.ipybox("config", "import", "codex", env={**env, "CODEX_HOME": str(other)})
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))
        self.assertIn(f"{other}/config.toml: is left out: line 2: it is no TOML", wrong.stderr)

    def test_a_configuration_that_code_could_write_is_not_imported(self):
        place = self.directory / "workspace"
        place.mkdir()
        if os.geteuid() == 0:
            os.chown(place, 65534, 65534)
        env = {"HOME": str(self.directory / "home"), "XDG_STATE_HOME": str(self.directory / "state")}
        (self.directory / "state").mkdir(mode=0o711)
        code = "import os; os.makedirs('.vscode', exist_ok=True); open('.vscode/mcp.json', 'w').write('{\"servers\": {\"x\": {\"command\": \"planted\"}}}')"
        run = self.ipybox("run", "--sandbox", "bubblewrap", "--workspace", str(place), "--allow-write", ".vscode", "-c", code, env=env)
        self.assertEqual(run.returncode, 0, run.stderr)
        imported = subprocess.run([PROGRAM, "config", "import", "vscode"], cwd=place, env={**ENVIRONMENT, **env}, capture_output=True, text=True, timeout=60)
        self.assertEqual((imported.returncode, imported.stdout), (2, ""), imported.stderr)
        self.assertIn("copy what is yours of it by hand", imported.stderr)

    def test_settings_that_code_could_write_are_not_obeyed(self):
        """Named by a flag only later, they were as writable as anything else in the workspace."""
        planted = {"mcpServers": {"x": {"command": "sh", "args": ["-c", f"touch {self.directory}/ran"]}}}
        files = {"servers.json": planted, "rules.json": {"rules": [{"then": "allow"}]}, "box.json": {}}
        code = (f"import json, os\nos.mkdir('below')\nfor name, text in {files!r}.items(): json.dump(text, open(name, 'w'))\n"
                "open('below/.env', 'w').write('KERNEL_ENV_X=1')\nos.mkfifo('pipe.json')\n"
                "for name in ('mcp.json', 'policy.json', '.env'):\n    try: open(name, 'w'); print('wrote', name)\n    except OSError: pass\n")
        self.config.unlink()
        run = self.ipybox("run", "--sandbox", "bubblewrap", "-c", code)
        self.assertEqual((run.returncode, run.stdout), (0, ""), run.stderr)
        for flag, name in (("--config", "servers.json"), ("--config", "pipe.json"), ("--policy", "rules.json"), ("--sandbox-config", "box.json")):
            self.assert_refused(self.ipybox("run", flag, name, "-c", "1"), f"{name}: code in a sandbox could have written it", "~/.config/ipybox")
        self.assert_refused(self.ipybox("apigen", "x", "--config", "servers.json", "--out", "api"), "could have written it")
        self.assertFalse((self.directory / "ran").exists())
        below = subprocess.run([PROGRAM, "run", "-c", "import os; print('X' in os.environ)"], cwd=self.directory / "below", env=ENVIRONMENT,
                               capture_output=True, text=True, timeout=60)
        self.assertEqual((below.returncode, below.stdout), (0, "False\n"), below.stderr)
        self.assertIn("below/.env is not read: code in a sandbox could have written it", below.stderr)
        # What was held for its user is obeyed, and so is what comes from a pipe or from elsewhere.
        self.config.write_text('{"mcpServers": {}}')
        run = self.ipybox("run", "--config", "mcp.json", "-c", "print(1)")
        self.assertEqual((run.returncode, run.stdout), (0, "1\n"), run.stderr)
        piped = self.ipybox("run", "--config", "/dev/stdin", "-c", "print(1)", stdin='{"mcpServers": {}}')
        self.assertEqual((piped.returncode, piped.stdout), (0, "1\n"), piped.stderr)

    def test_sessions_without_a_sandbox_take_nobody_s_settings_away(self):
        """`ipybox serve` has none unless it is told, and the next command may have one."""
        (self.directory / "own.json").write_text('{"mcpServers": {}}')
        (self.directory / ".env").write_text("SECRET_OF_TEST=s3cr3t-of-the-test\n")
        for flags in (["--sandbox", "none"], ["--sandbox", "none", "--config", "mcp.json"], ["--sandbox", "none", "--config", "own.json"],
                      ["--config", "own.json"], ["--sandbox", "none", "--config", "mcp.json"], ["--config", "own.json"]):
            run = self.ipybox("run", *flags, "-c", "print(1)")
            self.assertEqual((run.returncode, run.stdout), (0, "1\n"), (flags, run.stderr))
            self.assertNotIn("could have written", run.stderr)
        planting = "open('planted.json', 'w').write('{\"mcpServers\": {}}'); print(1)"
        run = self.ipybox("run", "--config", "own.json", "-c", planting)
        self.assertEqual((run.returncode, run.stdout), (0, "1\n"), run.stderr)
        self.assert_refused(self.ipybox("run", "--config", "planted.json", "-c", "1"), "planted.json: code in a sandbox could have written it")

    def test_half_a_character_reaches_a_tool_as_it_is_shown(self):
        run = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "-c",
                          "from mcptools.own import echo\nprint(ascii(echo.run(text='half \\ud83d')))")
        self.assertEqual((run.returncode, run.stdout), (0, "'half \\ufffd'\n"), run.stderr)
        self.assertIn("own.echo(text='half \ufffd')", run.stderr)

    def test_dot_env_feeds_servers_and_never_the_kernel(self):
        (self.directory / ".env").write_text("SECRET_OF_TEST=s3cr3t-of-the-test\n")
        run = self.ipybox(
            "run", "--config", "mcp.json", "--approve", "allow", "-c",
            "import os\nfrom mcptools.own import environment\n"
            "print('TOKEN' in str(environment.run()))\n"
            "print([k for k, v in os.environ.items() if 's3cr3t' in v])\n"
            "try:\n    print(open('.env').read())\nexcept OSError as e:\n    print('hidden')")
        self.assertEqual(run.stdout, "True\n[]\nhidden\n", run.stderr)
        self.assertNotIn("s3cr3t", run.stdout + run.stderr)

    def test_results_of_tools_do_not_carry_secrets_to_the_kernel(self):
        self.config.write_text(json.dumps({"mcpServers": {"own": {"command": "python3", "args": ["${SUPPORT}/mcp_server.py"], "env": {
            "PUT_IN": "${VALUE_OF_TEST}", "API_TOKEN": "literal-token", "MODE": "production", "PLACE": "${SUPPORT}"}}}}))
        run = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "-c",
                          "from ipybox_kernel.client import send\n"
                          "for name in ('PUT_IN', 'API_TOKEN', 'MODE', 'PLACE'): print(send('own', 'environment', {'name': name}))",
                          env={"VALUE_OF_TEST": "put-in-for-it"})
        self.assertEqual(run.returncode, 0, run.stderr)
        shown = [{"list": [{f"key {value}": value}]} for value in ("[hidden]", "[hidden]", "production", str(SUPPORT))]
        self.assertEqual(run.stdout.splitlines(), [str(value) for value in shown])

    def test_without_a_terminal_ask_means_deny(self):
        run = self.ipybox("run", "--config", "mcp.json", "-c", "from mcptools.own import echo\nprint(echo.run(text='x'))")
        self.assertEqual(run.returncode, 1)
        self.assertIn("[denied, no terminal to ask at] own.echo(text='x')", run.stderr)
        self.assertIn("ApprovalRejectedError", run.stderr)

    def test_allow_says_at_the_start_what_it_means(self):
        means = ("ipybox: --approve allow: every call of every tool of every server is carried out, and nobody looks "
                 "at it\nipybox: what remains: ")
        run = self.ipybox("run", "--approve", "allow", "--sandbox", "none", "-c", "print(1)")
        self.assertEqual(run.returncode, 0)
        self.assertTrue(run.stderr.startswith(f"{means}nothing; the code itself has your rights\n"), run.stderr)
        run = self.ipybox("run", "--approve", "allow", "-c", "print(1)")
        self.assertEqual(run.stderr,
                         f"{means}sandbox bubblewrap around the code, not around what servers do for it\n")
        (self.directory / "policy.json").write_text('"ask"')
        run = self.ipybox("run", "--approve", "allow", "--policy", "policy.json", "--sandbox", "none", "-c", "print(1)")
        self.assertTrue(run.stderr.startswith(f"{means}what policy.json denies; the code itself has your rights\n"))
        for flags in (["--log-level", "off"], ["--approve", "deny"], ["--approve", "ask"]):
            given = flags if "--approve" in flags else ["--approve", "allow", *flags]
            self.assertEqual(self.ipybox("run", *given, "-c", "print(1)").stderr, "")

    def test_allow_and_deny_show_every_call(self):
        code = "from mcptools.own import echo\nprint(echo.run(text='x\\x1b[2J\\u202e'))"
        allowed = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "-c", code)
        self.assertEqual(allowed.returncode, 0, allowed.stderr)
        self.assertIn(r"[allowed] own.echo(text='x\x1b[2J\u202e')", allowed.stderr)
        denied = self.ipybox("run", "--config", "mcp.json", "--approve", "deny", "-c", code)
        self.assertEqual(denied.returncode, 1)
        self.assertIn("[denied] own.echo(", denied.stderr)

    def test_a_plain_shell_calls_tools_as_a_kernel_does(self):
        """The package in IPython without ipykernel and ZeroMQ, where a backend of one's own may start it."""
        plain = "\n".join((
            "import sys",
            "for name in ('ipykernel', 'zmq', 'jupyter_client'): sys.modules[name] = None",
            "from IPython.core.interactiveshell import InteractiveShell",
            "shell = InteractiveShell.instance()",
            "shell.extension_manager.load_extension('ipybox_kernel')",
            "def cell(code): return shell.run_cell(code, store_history=False).success",
            "print(cell('from mcptools.own import echo\\nprint(echo.run(text=1 * \"one\"))'))",
            "print(cell('import asyncio\\nawait asyncio.sleep(0)\\nprint(echo.run(text=\"awaited\"))'))",
            "cell('begun = []\\nimport contextvars\\nkept = contextvars.copy_context()')",
            "print(cell('get_ipython().run_cell(\"\")\\nget_ipython().run_cell(\"1\")\\nprint(echo.run(text=\"nested\"))'))",
            "print(cell('try: kept.run(echo.run, text=\"late\")\\nexcept Exception as error: print(type(error).__name__)'))",
        ))
        run = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "-c",
                          f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {plain!r}], "
                          "capture_output=True, text=True).stdout)")
        said = [line for line in run.stdout.splitlines() if not line.startswith("Out[")]
        self.assertEqual(said, ["one", "True", "awaited", "True", "nested", "True", "ToolRunnerError", "True", ""], run.stdout + run.stderr)

    def test_images_are_listed(self):
        run = self.ipybox("run", "-c", "import matplotlib.pyplot as plt; plt.plot([1]); plt.show()")
        path = re.fullmatch(r"\[image\] (.*/images/[0-9a-f]{8}\.png)\n", run.stdout)
        self.assertIsNotNone(path, run.stdout + run.stderr)
        self.assertTrue(Path(path[1]).read_bytes().startswith(b"\x89PNG"))

    def started(self, *arguments):
        return subprocess.Popen([PROGRAM, "run", *arguments], cwd=self.directory, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True)

    def test_a_signal_cancels_and_leaves_nothing_running(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                process = self.started("-c", "print('started', flush=True); import time; time.sleep(60)")
                self.assertEqual(process.stdout.readline(), "started\n")
                process.send_signal(number)
                _, errors = process.communicate(timeout=30)
                self.assertEqual(process.returncode, code)
                self.assertIn("cancelled", errors)
                self.assertFalse(self.processes_in(self.directory))

    def test_a_signal_ends_what_is_starting(self):
        mark = f"never answers, for {self.directory}"
        self.config.write_text(json.dumps({"mcpServers": {"mute": {
            "command": PYTHON, "args": ["-c", f"import time; time.sleep(300)  # {mark}"]}}}))
        process = self.started("--connect-timeout", "200", "--config", "mcp.json", "-c", "print('ran')")
        deadline = time.monotonic() + 60
        while not (self.processes_in(self.directory) and self.processes_with(mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertTrue(self.processes_with(mark))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
        self.assertEqual((process.returncode, output), (130, ""), errors)
        deadline = time.monotonic() + 10
        while (self.processes_in(self.directory) or self.processes_with(mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(self.processes_in(self.directory) + self.processes_with(mark))

    @staticmethod
    def processes_with(argument):
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and argument.encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                pass
        return found

    def test_killing_the_program_leaves_no_process(self):
        process = subprocess.Popen(
            [PROGRAM, "run", "-c", "print('started', flush=True); import time; time.sleep(60)"], cwd=self.directory,
            stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True)
        self.assertEqual(process.stdout.readline(), "started\n")
        self.assertTrue(self.processes_in(self.directory))
        process.kill()
        process.communicate(timeout=30)
        deadline = time.monotonic() + 10
        while self.processes_in(self.directory) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(self.processes_in(self.directory))

    @staticmethod
    def processes_in(directory):
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "cwd") == str(directory):
                    found.append(entry.name)
            except OSError:
                pass
        return found


class NumbersTest(ProgramTest):
    """Digits between code, the person who is asked, rules, the audit log and servers of several makers."""

    CALL = ("from decimal import Decimal\nfrom ipybox_kernel.client import send\n"
            "print(send('numbers', 'same', {'n': 123456789012345678901, 'm': -2 ** 70, 'one': 1,\n"
            "                               'x': [Decimal('0.1000'), Decimal('1E+2'), 1.0, 1e-07, 0.1]}))")
    SHOWN = "numbers.same(n=123456789012345678901, m=-1180591620717411303424, one=1, x=[0.1000, 1E+2, 1.0, 1e-07, 0.1])"

    def setUp(self):
        super().setUp()
        servers = {"numbers": {"command": PYTHON, "args": ["${SUPPORT}/number_server.py"]},
                   "sdk": {"command": PYTHON, "args": ["${SUPPORT}/fastmcp_server.py", "stdio", "0"]}}
        if shutil.which("node") and os.environ.get("IPYBOX_TEST_NODE_MODULES"):
            everything = Path(os.environ["IPYBOX_TEST_NODE_MODULES"], "@modelcontextprotocol/server-everything/dist/index.js")
            servers["everything"] = {"command": "node", "args": [str(everything), "stdio"]}
        self.config.write_text(json.dumps({"mcpServers": servers}))

    def test_a_server_gets_and_returns_them(self):
        run = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "-c", self.CALL)
        self.assertEqual(run.stdout, "{'n': 123456789012345678901, 'm': -1180591620717411303424, 'one': 1, "
                                     "'x': [0.1, 100.0, 1.0, 1e-07, 0.1]}\n", run.stderr)
        self.assertIn("[allowed] " + self.SHOWN, run.stderr)
        run = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "--exact-numbers", "-c", self.CALL)
        # The server got what it returns.
        self.assertEqual(run.stdout, "{'n': 123456789012345678901, 'm': -1180591620717411303424, 'one': 1, 'x': [Decimal('0.1000'), "
                                     "Decimal('1E+2'), Decimal('1.0'), Decimal('1E-7'), Decimal('0.1')]}\n", run.stderr)

    def test_servers_of_the_sdks(self):
        run = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "-c",
                          "from mcptools.sdk import add\nprint(add.run(a=123456789012345678901, b=1).result)")
        self.assertEqual((run.returncode, run.stdout), (0, "123456789012345678902\n"), run.stderr)
        self.assertIn("sdk.add(a=123456789012345678901, b=1)", run.stderr)

    @unittest.skipUnless(shutil.which("node") and os.environ.get("IPYBOX_TEST_NODE_MODULES"), "needs Node")
    def test_the_everything_server(self):
        run = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "-c",
                          "from decimal import Decimal\nfrom mcptools.everything import get_sum\n"
                          "print(get_sum.run(a=123456789012345678901, b=Decimal('0.50')))\nprint(get_sum.run(a=1, b=2))")
        # JavaScript has doubles alone.
        self.assertEqual(run.stdout, "The sum of 123456789012345680000 and 0.5 is 123456789012345680000.\nThe sum of 1 and 2 is 3.\n", run.stderr)
        self.assertIn("everything.get-sum(a=123456789012345678901, b=0.50)", run.stderr)
        self.assertIn("everything.get-sum(a=1, b=2)", run.stderr)

    def test_rules_and_the_audit_log_know_every_digit(self):
        (self.directory / "policy.json").write_text(
            '{"rules": [{"when": {"arguments": {"/n": {"maximum": 123456789012345678901}}}, "then": "allow"}, {"then": {"deny": "too much"}}]}')
        with tempfile.TemporaryDirectory() as outside:
            log = Path(outside) / "audit.jsonl"
            run = self.ipybox("run", "--config", "mcp.json", "--policy", "policy.json", "--audit", str(log), "-c",
                              "from ipybox_kernel.client import send, ApprovalRejectedError\n"
                              "for n in (123456789012345678901, 123456789012345678902):\n"
                              "    try:\n        print(send('numbers', 'same', {'n': n}))\n"
                              "    except ApprovalRejectedError as error:\n        print(error)")
            self.assertEqual(run.stdout, "{'n': 123456789012345678901}\napproval request for numbers.same rejected: too much\n", run.stderr)
            shown = self.ipybox("audit", "show", str(log))
            self.assertIn("allow numbers.same(n=123456789012345678901)", shown.stdout)
            self.assertIn("deny numbers.same(n=123456789012345678902)", shown.stdout)
        call = '{"server": "numbers", "tool": "same", "arguments": {"n": 123456789012345678902}}'
        tested = self.ipybox("policy", "test", "policy.json", "--call", call)
        self.assertIn("deny: numbers.same(n=123456789012345678902)", tested.stdout, tested.stderr)

    def test_what_is_no_number_is_told_before_the_call(self):
        run = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "-c",
                          "from decimal import Decimal\nfrom ipybox_kernel.client import send\nsend('numbers', 'same', {'x': [Decimal('NaN')]})")
        self.assertEqual(run.returncode, 1)
        self.assertIn("Decimal('NaN') is no number in JSON", run.stderr)
        self.assertNotIn("[allowed]", run.stderr)


class ConfinementTest(ProgramTest):
    """Options about what the code may use."""

    def test_limits_and_their_mistakes(self):
        run = self.ipybox("run", "--limit", "open-files=100", "--limit", "scratch=1M", "-c",
                          "import resource, os\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[1])\n"
                          "print(os.statvfs('/tmp').f_blocks * os.statvfs('/tmp').f_frsize)")
        self.assertEqual((run.returncode, run.stdout), (0, "100\n1048576\n"), run.stderr)
        for mistake in ("memory", "memory=", "memory=lots", "memory=0", "processes=5K", "nonsense=1"):
            self.assert_refused(self.ipybox("run", "--limit", mistake, "-c", "1"), mistake.partition("=")[0])
        self.assert_refused(self.ipybox("run", "--limit", "workspace=1G", "-c", "1"), "workspace")
        self.assert_refused(self.ipybox("run", "--sandbox", "none", "--limit", "processes=5", "-c", "1"), "processes")

    def test_the_network_has_to_be_allowed(self):
        code = "import urllib.request as u\ntry: print(u.urlopen('https://pypi.org/simple/pip/').status)\nexcept OSError as e: print(e)"
        self.assertIn("name resolution", self.ipybox("run", "-c", code).stdout)
        run = self.ipybox("run", "--allow-host", "pypi.org", "-c", code)
        self.assertEqual(run.stdout, "200\n", run.stderr)
        run = self.ipybox("run", "--allow-host", "example.org", "-c", code)
        self.assertIn("403", run.stdout)
        self.assertIn("pypi.org:443 refused", run.stderr)
        self.assert_refused(self.ipybox("run", "--allow-host", "http://pypi.org", "-c", "1"), "http://pypi.org")
        self.assert_refused(self.ipybox("run", "--sandbox", "none", "--allow-host", "pypi.org", "-c", "1"), "none")

    def test_packages(self):
        run = self.ipybox("run", "--package", "iniconfig==2.0.0", "-c", "import iniconfig; print(iniconfig.__file__)")
        self.assertEqual(run.stdout, f"{self.directory}/.ipybox/site-packages/iniconfig/__init__.py\n", run.stderr)
        run = self.ipybox("run", "--package", "no-such-package-of-ipybox", "-c", "1")
        self.assertEqual(run.returncode, 2)
        self.assertIn("no-such-package-of-ipybox", run.stderr)

    @unittest.skipUnless(CUSTOM_SANDBOX.exists(), f"plugins are linked in: no {CUSTOM_SANDBOX}")
    def test_a_sandbox_of_your_own(self):
        env = {"IPYBOX_PLUGIN_PATH": str(CUSTOM_SANDBOX.parent)}
        code = ("import pathlib\npathlib.Path('mine').write_text('x')\n"
                "try: pathlib.Path('/var/tmp/ipybox-not-mine').write_text('x')\nexcept OSError as e: print(e.strerror)")
        run = self.ipybox("run", "--sandbox", "landlock", "-c", code, env=env)
        self.assertEqual((run.returncode, run.stdout), (0, "Permission denied\n"), run.stderr)
        self.assertTrue((self.directory / "mine").exists())
        run = self.ipybox("run", "--sandbox", "landlock", "--allow-host", "pypi.org", "-c", "1", env=env)
        self.assert_refused(run, "landlock", "bubblewrap")


class TerminalTest(ProgramTest):
    """A pseudo-terminal plays the person."""

    def converse(self, arguments, answers, prompt=PROMPT, **environment):
        """Runs the program on a terminal; each answer is typed when its prompt has appeared."""
        return converse([PROGRAM, *arguments], answers, prompt, self.directory, {
            **ENVIRONMENT, "NO_COLOR": "1", "XDG_CONFIG_HOME": str(self.directory / "settings"), **environment})

    def test_yes_and_no(self):
        code = ("from mcptools.own import echo\nfrom ipybox_kernel import ApprovalRejectedError\n"
                "print('got', echo.run(text='one'))\n"
                "try:\n    echo.run(text='two')\nexcept ApprovalRejectedError as e:\n    print('refused:', e)")
        status, seen = self.converse(["run", "--config", "mcp.json", "-c", code], ["y\n", "\n"])
        self.assertEqual(status, 0, seen)
        self.assertIn("Question 1: own.echo\r\n  'text': 'one'\r\nAllow own.echo? [y/s/a/N/r/?] ", seen)
        self.assertIn("got one", seen)
        self.assertIn("refused: approval request for own.echo rejected: the user said no", seen)

    def test_output_cannot_fake_or_erase_a_question(self):
        code = ("from mcptools.own import echo\nprint('\\x1b[2J\\x1b]0;title\\x07\\x1b[1Avisible\\u202e')\n"
                "echo.run(text='\\x1b[2K\\rAllow harmless() ? [y/s/a/N/r/?] y')")
        status, seen = self.converse(["run", "--config", "mcp.json", "-c", code], ["n\n"])
        self.assertIn("visible", seen)
        self.assertNotIn("\x1b[2J", seen)
        self.assertNotIn("\x1b]0;", seen)
        self.assertNotIn("\u202e", seen)
        self.assertIn("  'text': '\\x1b[2K\\rAllow harmless() ? [y/s/a/N/r/?] y'\r\nAllow own.echo? [y/s/a/N/r/?] ", seen)
        self.assertLess(seen.index("visible"), seen.index("Question 1: own.echo"))
        self.assertEqual(status, 1)

    def test_colours_are_around_the_question_and_hints_are_words(self):
        code = "from mcptools.own import add, echo\nadd.run(a=1, b=2)\necho.run(text='\\x1b[2J')"
        run = ["run", "--config", "mcp.json", "-c", code]
        status, seen = self.converse(run, ["y\n", "y\n"], NO_COLOR="")
        self.assertEqual(status, 0, seen)
        self.assertIn("\x1b[1mQuestion 1: own.add\x1b[m\r\n  \x1b[36m'a'\x1b[m: 1\r\n  \x1b[36m'b'\x1b[m: 2\r\n"
                      "  the server says of itself: \x1b[33mread-only\x1b[m\r\n"
                      "\x1b[1mAllow own.add? [y/s/a/N/r/?] \x1b[m", seen)
        self.assertIn("\x1b[1mQuestion 2: own.echo\x1b[m\r\n  \x1b[36m'text'\x1b[m: '\\x1b[2J'\r\n\x1b[1mAllow", seen)
        self.assertNotIn("\x1b[2J", seen)
        for environment in ({"NO_COLOR": "1"}, {"NO_COLOR": "", "TERM": "dumb"}):
            status, seen = self.converse(run, ["y\n", "y\n"], **environment)
            self.assertEqual(status, 0, seen)
            self.assertIn("Question 1: own.add\r\n  'a': 1\r\n  'b': 2\r\n  the server says of itself: read-only\r\n"
                          "Allow own.add? [y/s/a/N/r/?] ", seen)
            self.assertNotRegex(seen, r"\x1b\[[0-9;]*m")

    def test_a_question_says_how_long_it_waits_and_what_happens_then(self):
        code = "from mcptools.own import echo\nprint('got', echo.run(text='one'))"
        run = ["run", "--config", "mcp.json", "-c", code]
        waits = re.compile(r"\n\[without an answer: no in \d+ s\] ")
        status, seen = self.converse(run, ["y\n"], prompt=waits)
        self.assertEqual(status, 0, seen)
        self.assertIn("got one", seen)
        status, seen = self.converse([*run, "--approval-timeout", "2"], [])
        self.assertEqual(status, 1, seen)
        self.assertIn("[no answer in time: denied]", seen)
        self.assertRegex(seen, r"ipybox: the code stopped at a call that was not allowed: approval request for own\.echo expired"
                               r".*; answer y to a question, or .* --policy FILE or --approve allow\r\n$")
        self.assertNotIn("Traceback", seen)
        # Who was not asked is told where.
        denied = self.ipybox(*run)
        self.assertIn("Traceback", denied.stderr)

    def test_an_interrupt_takes_a_question_back(self):
        code = "from mcptools.own import echo\necho.run(text='one')"
        status, seen = self.converse(["run", "--config", "mcp.json", "-c", code], ["\x03"])
        self.assertEqual(status, 130, seen)
        self.assertIn("[withdrawn]", seen)

    def test_the_start_says_what_holds_unless_it_is_quiet(self):
        status, seen = self.converse(["run", "-c", "1"], [])
        self.assertEqual(status, 0, seen)
        self.assertTrue(seen.startswith(
            f"ipybox: sandbox bubblewrap; workspace {self.directory}; calls are asked about, denied without an answer in 60 s; "
            "the code may run 120 s\r\n"), seen)
        status, seen = self.converse(["run", "--log-level", "off", "-c", "1"], [])
        self.assertNotIn("sandbox", seen)

    def test_session_always_and_reasons(self):
        code = ("from mcptools.own import echo, add\nfrom ipybox_kernel import ApprovalRejectedError\n"
                "def attempt(call):\n    try:\n        print('got', call())\n    except ApprovalRejectedError as e:\n        print(e)\n"
                "for text in 'abc': attempt(lambda: echo.run(text=text))\n"
                "attempt(lambda: add.run(a=1, b=2))\nattempt(lambda: add.run(a=3, b=4))")
        run = ["run", "--config", "mcp.json", "-c", code]
        status, seen = self.converse(run, ["?\n", "s\n", "r\n", "not \x1b[2J now\n", "a\n"])
        self.assertEqual(status, 0, seen)
        self.assertIn("yes, and own.echo with any arguments for this session", seen)
        self.assertEqual(seen.count("got"), 4, seen)
        self.assertIn("rejected: not", seen)
        rules = self.directory / "settings/ipybox/always.json"
        self.assertEqual(rules.stat().st_mode & 0o777, 0o600)
        self.assertEqual(json.loads(rules.read_text())["rules"][0]["when"], {"server": "own", "tool": "add", "origin": "mcp"})
        status, seen = self.converse(run, ["n\n", "n\n", "n\n"])
        self.assertEqual((status, seen.count("got"), seen.count("the user said no")), (0, 2, 3), seen)
        self.assertNotIn("Allow own.add", seen)
        # Without a terminal what was allowed always still is.
        quiet = self.ipybox(*run, env={"XDG_CONFIG_HOME": str(self.directory / "settings")})
        self.assertEqual(quiet.stdout.count("got"), 2, quiet.stderr)
        rules.write_text('{"rules": [{"then": "alow"}]}')
        broken = self.ipybox(*run, env={"XDG_CONFIG_HOME": str(self.directory / "settings")})
        self.assertIn("always.json, rules/0/then: accepted", broken.stdout + broken.stderr)
        rules.write_text('{"rules": [{"then": "allow"}]}')
        rules.chmod(0o666)
        self.assertNotIn("got", self.ipybox(*run, env={"XDG_CONFIG_HOME": str(self.directory / "settings")}).stdout)

    def test_a_shell_command_is_remembered_word_by_word(self):
        code = "!echo one\n!echo two\n!echo one"
        status, seen = self.converse(["run", "--approve-shell-cmds", "-c", code], ["s\n", "y\n"])
        self.assertEqual(status, 0, seen)
        self.assertEqual(len(PROMPT.findall(seen)), 2, seen)
        self.assertIn("Question 2: ipybox.shell\r\n  'cmd': 'echo two'\r\nAllow ipybox.shell?", seen)


class ApprovalTest(ProgramTest):
    CALLS = ("from mcptools.own import echo\nfrom ipybox_kernel import ApprovalRejectedError\n"
             "for text in ('good', 'bad', 'other'):\n"
             "    try:\n        print(echo.run(text=text))\n    except ApprovalRejectedError as e:\n        print(e)")

    def test_a_policy_decides_and_what_it_asks_is_asked(self):
        (self.directory / "policy.json").write_text(json.dumps({"rules": [
            {"when": {"arguments": {"/text": {"equals": "good"}}}, "then": "allow"},
            {"when": {"arguments": {"/text": {"equals": "bad"}}}, "then": {"deny": "bad word"}},
            {"then": "ask"}]}))
        run = self.ipybox("run", "--config", "mcp.json", "--policy", "policy.json", "--approve", "allow", "-c", self.CALLS)
        self.assertEqual(run.stdout.splitlines(), ["good", "approval request for own.echo rejected: bad word", "other"], run.stderr)
        self.assertEqual(run.stderr.splitlines()[1:], [
            "ipybox: what remains: what policy.json denies, and sandbox bubblewrap around the code, not around what servers do for it",
            "[allowed] own.echo(text='other')"])
        run = self.ipybox("run", "--config", "mcp.json", "--policy", "policy.json", "-c", self.CALLS)
        self.assertIn("[denied, no terminal to ask at] own.echo(text='other')", run.stderr)
        # The next run obeys it, so that this one must not change it.
        run = self.ipybox("run", "--policy", "policy.json", "-c", "open('policy.json', 'w').write('\"allow\"')")
        self.assertEqual(run.returncode, 1)
        (self.directory / "policy.json").write_text('{"rules": [{"then": "allow", "when": {"tols": 1}}]}')
        self.assert_refused(self.ipybox("run", "--policy", "policy.json", "-c", "1"), "policy.json: rules/0/when", "tols", "server, tool")
        self.assert_refused(self.ipybox("run", "--policy", "absent.json", "-c", "1"), "absent.json")

    def test_a_program_decides_unless_code_could_have_written_it(self):
        judge = ("#!/usr/bin/env python3\nimport json, sys\ncall = json.load(sys.stdin)\n"
                 "good = call['server_identity'].endswith('mcp_server.py; env: TOKEN') and call['arguments']['text'] != 'bad'\n"
                 "json.dump({'decision': 'allow' if good else 'deny', 'rationale': 'seen ' + call['arguments']['text']}, sys.stdout)\n")

        def run_with(program, *flags):
            program.write_text(judge)
            program.chmod(0o755)
            policy = self.directory / "policy.json"
            policy.write_text(json.dumps({"command": [str(program)]}))
            return self.ipybox("run", "--config", "mcp.json", "--policy", "policy.json", *flags, "-c", self.CALLS)

        with tempfile.TemporaryDirectory() as outside:
            os.chmod(outside, 0o755)
            log = Path(outside) / "audit.jsonl"
            run = run_with(Path(outside) / "judge", "--audit", str(log))
            self.assertEqual(run.stdout.splitlines(),
                             ["good", "approval request for own.echo rejected: seen bad", "other"], run.stderr)
            calls = [record for record in map(json.loads, log.read_text().splitlines()) if record["event"] == "call"]
            self.assertEqual([(call["verdict"], call["by"], call["reason"]) for call in calls], [
                ("allow", "command judge", "seen good"), ("deny", "command judge", "seen bad"),
                ("allow", "command judge", "seen other")])
        # In the workspace: at the first start nothing was written there yet, but before the first call it could be.
        run = run_with(self.directory / "judge")
        self.assertNotIn("good\n", run.stdout.splitlines())
        self.assertIn("could write", run.stdout + run.stderr)

    def test_code_cannot_answer_always_for_its_user(self):
        code = ("import os\n"
                "def attempt(f):\n    try:\n        f()\n        print('done')\n    except OSError:\n        print('refused')\n"
                "attempt(lambda: os.makedirs('.config/ipybox'))\n"
                "attempt(lambda: open('.config/ipybox/always.json', 'w').write('{\"rules\": [{\"then\": \"allow\"}]}'))\n"
                "attempt(lambda: os.symlink('/tmp', '.config/ipybox'))\n"
                "from mcptools.own import echo\necho.run(text='x')")
        for _ in range(2):
            run = self.ipybox("run", "--allow-home", "--config", "mcp.json", "-c", code, env={"HOME": str(self.directory)})
            self.assertEqual((run.returncode, run.stdout), (1, "refused\n" * 3), run.stderr)
            self.assertIn("ApprovalRejectedError", run.stderr)
            self.assertFalse((self.directory / ".config/ipybox/always.json").exists())

    def test_an_audit_log_is_written_and_shown(self):
        with tempfile.TemporaryDirectory() as outside:
            log = Path(outside) / "audit.jsonl"
            run = self.ipybox("run", "--config", "mcp.json", "--approve", "allow", "--audit", str(log), "--audit-with", "code", "-c",
                              "from mcptools.own import echo\necho.run(text='x\\x1b[2J')")
            self.assertEqual(run.returncode, 0, run.stderr)
            self.ipybox("run", "--config", "mcp.json", "--approve", "deny", "--audit", str(log), "-c", self.CALLS)
            self.assertEqual(log.stat().st_mode & 0o777, 0o600)
            shown = self.ipybox("audit", "show", str(log))
            self.assertEqual(shown.returncode, 0, shown.stderr)
            lines = shown.stdout.splitlines()
            self.assertEqual(len(lines), 8)
            self.assertRegex(lines[2], r"default/[0-9a-f]{16} execution_end ok after [\d.]+ ms$")
            self.assertNotIn("\x1b", shown.stdout)
            self.assertIn("from mcptools.own import echo", lines[0])
            self.assertRegex(lines[1], r"default/[0-9a-f]{16} allow own\.echo\(text='x\\x1b\[2J'\) by application; ok after [\d.]+ ms$")
            self.assertIn("deny own.echo(text='good') by application, because: --approve deny", lines[4])
            self.assertEqual(len(self.ipybox("audit", "show", str(log), "--denied").stdout.splitlines()), 3)
            self.assertEqual(len(self.ipybox("audit", "show", str(log), "--tool", "own.e*").stdout.splitlines()), 4)
            self.assertEqual(self.ipybox("audit", "show", str(log), "--session", "other").stdout, "")
            records = [json.loads(line) for line in self.ipybox("audit", "show", str(log), "--json").stdout.splitlines()]
            self.assertEqual((records[1]["outcome"], records[1]["arguments"]), ("ok", {"text": "x\x1b[2J"}))
            with log.open("a") as file:
                file.write('{"event": "ca')
            self.assertEqual(self.ipybox("audit", "show", str(log)).returncode, 1)
        self.assert_refused(self.ipybox("audit", "show", "absent"), "absent")
        self.assert_refused(self.ipybox("run", "--audit", "audit.jsonl", "-c", "1"), "audit.jsonl lies in the workspace")
        run = self.ipybox("run", "--audit", "audit.jsonl", "--audit-with", "in-workspace", "-c", "open('audit.jsonl', 'a')")
        self.assertRegex(run.stderr, "Read-only file system|Permission denied")
        run = self.ipybox("run", "--audit", "/dev/full", "-c", "print('x')")
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertIn("No space left", run.stderr)
        run = self.ipybox("run", "--audit", "/dev/full", "--audit-with", "lossy", "-c", "print('x')")
        self.assertEqual((run.returncode, run.stdout), (0, "x\n"))

    def test_the_approval_channel_needs_a_sandbox_and_an_approver(self):
        self.assert_refused(self.ipybox("run", "--approval-channel", "127.0.0.1:0", "--sandbox", "none", "-c", "1"), "needs a sandbox")
        self.assert_refused(self.ipybox("run", "--approval-channel", "0.0.0.0:0", "-c", "1"), "this machine only")
        self.assert_refused(self.ipybox("run", "--approval-channel", "8900", "-c", "1"), "HOST:PORT")
        run = self.ipybox("run", "--config", "mcp.json", "--approval-channel", "127.0.0.1:0", "-c", self.CALLS)
        self.assertRegex(run.stderr.splitlines()[0], r"^approvers connect to ws://127\.0\.0\.1:\d+/approval with the bearer token \w{64}$")
        self.assertIn("[denied, no approver connected and no terminal to ask at] own.echo(text='good')", run.stderr)
        self.assertIn("rejected: there is no approver connected and no terminal to ask at", run.stdout)
        # An approver that knows nothing but the original's messages, with the token in the address.
        code = "import time; time.sleep(1)\n" + self.CALLS
        process = subprocess.Popen([PROGRAM, "run", "--config", "mcp.json", "--approval-channel", "127.0.0.1:0", "-c", code],
                                   cwd=self.directory, env={**ENVIRONMENT, "IPYBOX_APPROVAL_TOKEN": "t" * 40}, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        with process, Approver(re.search(r":(\d+)/", process.stderr.readline())[1], "t" * 40) as approver:
            for _ in range(3):
                question = approver.receive("approve")
                self.assertEqual(question["params"]["server_name"], "own")
                good = question["params"]["tool_args"]["text"] == "good"
                approver.send({"jsonrpc": "2.0", "result": good, "id": question["id"]})
            output, errors = process.communicate(timeout=60)
        self.assertEqual(output.splitlines(), ["good", *["approval request for own.echo rejected: the approver said no"] * 2], errors)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        run = self.ipybox("run", "--approval-channel", f"127.0.0.1:{port}", "-c",
                          f"import socket\ntry:\n    socket.create_connection(('127.0.0.1', {port}), 3)\n    print('reached')\n"
                          "except OSError:\n    print('out of reach')")
        self.assertEqual(run.stdout, "out of reach\n", run.stderr)
        run = self.ipybox("run", "--approval-channel", "127.0.0.1:0", "-c", "1", env={"IPYBOX_APPROVAL_TOKEN": "t" * 40})
        self.assertNotIn("tttt", run.stderr)


class OtherCommandsTest(ProgramTest):
    def test_help_and_version(self):
        self.assertRegex(self.ipybox("--version").stdout, r"^ipybox \d+\.\d+\.\d+\n$")
        for command in ([], ["run"], ["apigen"], ["auth"], ["auth", "login"], ["doctor"], ["repl"], ["plugins"], ["policy", "test"],
                        ["audit", "show"]):
            run = self.ipybox(*command, "--help")
            self.assertEqual(run.returncode, 0)
            self.assertIn("Usage: ipybox", run.stdout)
            self.assertNotIn("Option Group", run.stdout)
        run = self.ipybox("run", "--help").stdout
        for way in ("run [OPTIONS] FILE\n", "run [OPTIONS] -c CODE\n", "run [OPTIONS] - <FILE\n", "workspace=2G"):
            self.assertIn(way, run)
        for help in (run, self.ipybox("serve", "--help").stdout):
            self.assertEqual(len(re.findall(r"^  ipybox (?:run|serve) .*$", help.partition("Examples:\n")[2], re.M)), 2)

    def test_doctor(self):
        run = self.ipybox("doctor")
        self.assertEqual(run.returncode, 0, run.stdout)
        for word in ("Python", "kernel packages", "bubblewrap", "plugins"):
            self.assertIn(f"ok      {word}", run.stdout)
        # Not every machine can hold these.
        for limit in ("memory-total", "workspace"):
            self.assertRegex(run.stdout, f"(ok     |missing) limit {limit}: ")
        elsewhere = self.ipybox("doctor", "--workspace", "/proc/self")
        self.assertRegex(elsewhere.stdout, "missing limit workspace: .*the file system of /proc/.* has no project quotas")
        broken = self.ipybox("doctor", "--python", "/nonexistent/python")
        self.assertEqual(broken.returncode, 1)
        self.assertIn("FAILED  Python", broken.stdout)

    def test_doctor_for_programs_and_for_terminals(self):
        run = self.ipybox("doctor", "--json")
        report = json.loads(run.stdout)
        self.assertEqual(sorted(report), ["checks", "healthy", "version"])
        self.assertTrue(report["healthy"])
        self.assertEqual({tuple(sorted(check)) for check in report["checks"]}, {("check", "detail", "state")})
        states = {check["check"]: check["state"] for check in report["checks"]}
        self.assertEqual((states["Python"], states["bubblewrap"]), ("ok", "ok"))
        broken = self.ipybox("doctor", "--json", "--python", "/nonexistent/python")
        self.assertEqual((broken.returncode, json.loads(broken.stdout)["healthy"]), (1, False))
        for no_color, colored in (("", True), ("1", False)):
            environment = {**ENVIRONMENT, "NO_COLOR": no_color}
            with Terminal([PROGRAM, "doctor"], self.directory, environment, columns=60) as terminal:
                self.assertEqual(terminal.finish(), 0)
                lines = terminal.screen.text().splitlines()
            self.assertLessEqual(max(map(len, lines)), 60)
            self.assertTrue(any(line.startswith("ok      plugins: ") for line in lines), lines)
            self.assertTrue(any(line.startswith("        ") for line in lines), lines)
            self.assertEqual("\x1b[32mok" in terminal.raw, colored)

    def built(self, name, modules):
        """The program as `scripts/setup` and a build leave it in a checkout."""
        build = self.directory / name / "build"
        build.mkdir(parents=True)
        shutil.copy(PROGRAM, build / "ipybox")
        if modules:
            (build / "node").symlink_to(Path(os.environ["IPYBOX_TEST_NODE_MODULES"]).parent)
        return build / "ipybox"

    def doctor(self, program, *arguments, path="/usr/bin:/bin"):
        environment = {**ENVIRONMENT, "PATH": path, "IPYBOX_PLUGIN_PATH": os.environ["IPYBOX_TEST_PLUGINS"],
                       "XDG_STATE_HOME": str(self.directory / "state")}
        return subprocess.run([program, "doctor", *arguments], cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=120, env=environment)

    def test_doctor_finds_what_setup_installed(self):
        empty = self.directory / "empty"
        empty.mkdir()
        for tool in ("bwrap", "socat", "rg", "bash"):
            (empty / tool).symlink_to(shutil.which(tool))
        found = self.doctor(self.built("checkout", True), path=str(empty)).stdout
        self.assertRegex(found, r"ok      srt: with --sandbox-options '\{\"srt\":\"[^']*/sandbox-runtime/dist/cli.js\"\}' a sandboxed process runs")
        self.assertRegex(found, r"ok      Node.js: v\d+.* at .*/node_modules/node/bin/node; MCP servers find it with /.* in PATH")
        without = self.doctor(self.built("other", False), path=str(empty)).stdout
        self.assertIn("missing srt: ", without)
        self.assertIn("missing Node.js: ", without)

    def test_what_code_could_have_put_there_is_not_run(self):
        program = self.built("checkout", False)
        node = program.parent / "node/node_modules/node/bin/node"
        node.parent.mkdir(parents=True)
        node.write_text(f"#!/bin/sh\ntouch {self.directory}/ran\necho v99.0.0\n")
        node.chmod(0o755)
        empty = self.directory / "empty"
        empty.mkdir()
        self.assertIn("v99.0.0", self.doctor(program, path=str(empty)).stdout)
        (self.directory / "ran").unlink()
        if os.geteuid() == 0:
            os.chown(program.parent, 65534, 65534)
        used = self.ipybox("run", "--sandbox", "bubblewrap", "--workspace", str(program.parent), "-c", "print(1)",
                           env={"XDG_STATE_HOME": str(self.directory / "state")})
        self.assertEqual(used.stdout, "1\n", used.stderr)
        self.assertIn("missing Node.js: ", self.doctor(program, path=str(empty)).stdout)
        self.assertFalse((self.directory / "ran").exists())

    def test_the_environment_that_it_was_installed_into_has_its_python(self):
        own, active = self.directory / "own", self.directory / "active"
        for place in (own, active):
            subprocess.run([PYTHON, "-m", "venv", "--without-pip", place], check=True)
        shutil.copy(PROGRAM, own / "bin/ipybox")
        linked = self.directory / "ipybox"
        linked.symlink_to(own / "bin/ipybox")
        environment = {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": str(active), "XDG_STATE_HOME": str(self.directory / "state"),
                       "IPYBOX_PLUGIN_PATH": os.environ["IPYBOX_TEST_PLUGINS"]}

        def doctor(program, **more):
            return subprocess.run([program, "doctor"], cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=120, env=environment | more).stdout

        for program in (own / "bin/ipybox", linked):
            said = doctor(program)
            self.assertIn(f" at {own}/bin/python\n", said)
            self.assertIn(f"`uv pip install --python {own}/bin/python ipykernel 'pydantic>=2.7'`", said)
        named = Path(PYTHON).parent.resolve() / Path(PYTHON).name
        self.assertIn(f" at {named}\n", doctor(linked, IPYBOX_PYTHON=PYTHON))
        (own / "pyvenv.cfg").rename(own / "no.cfg")
        self.assertIn(f" at {active}/bin/python\n", doctor(linked))

    @unittest.skipIf(os.geteuid() != 0, "only root's kernels run as another user")
    def test_doctor_foresees_what_roots_kernels_cannot_reach(self):
        program = self.built("checkout", True)
        workspace = self.directory / "checkout"
        self.directory.chmod(0o755)
        os.chown(workspace, 0, 0)
        workspace.chmod(0o755)
        closed = self.doctor(program, "--workspace", str(workspace)).stdout
        self.assertRegex(closed, "missing access of the unprivileged user: .*belongs to root and cannot be written by uid 65534: choose .*"
                                 "--sandbox-user UID.* or chown the directory")
        os.chown(workspace, 65534, 65534)
        python = f"--python={PYTHON}"
        self.assertIn("ok      access of the unprivileged user: uid 65534 reaches", self.doctor(program, python, "--workspace", str(workspace)).stdout)
        own = self.directory / "own"
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", "--system-site-packages", own / "venv"], check=True)
        own.chmod(0o700)
        closed = self.doctor(program, f"--python={own}/venv/bin/python", "--workspace", str(workspace)).stdout
        self.assertRegex(closed, f"missing access of the unprivileged user: .*uid 65534 cannot read {own}/venv/.*, because {own} is closed to it: "
                                 "give it access")

    def test_plugins(self):
        run = self.ipybox("plugins", "--json")
        listing = json.loads(run.stdout)
        self.assertEqual([(p["kind"], p["name"]) for p in listing],
                         [("approval", "allow"), ("approval", "ask"), ("approval", "command"), ("approval", "console"), ("approval", "deny"),
                          ("approval", "rules"), ("kernel", "fork"), ("kernel", "gateway"), ("kernel", "zmq"),
                          ("sandbox", "bubblewrap"), ("sandbox", "none"), ("sandbox", "srt"),
                          ("transport", "sse"), ("transport", "stdio"), ("transport", "streamable_http")])
        for plugin in listing:
            self.assertTrue(Path(plugin["file"]).exists())
            self.assertEqual(plugin["config_schema"]["type"], "object")
        text = self.ipybox("plugins").stdout
        self.assertRegex(text, r"\AKIND +NAME +WHAT IT DOES\napproval +allow +allows every call\n")
        self.assertRegex(text, r"\nsandbox +bubblewrap +")
        self.assertNotIn("\x1b", text)
        one = self.ipybox("plugins", "fork").stdout
        file = next(p["file"] for p in listing if p["name"] == "fork")  # the program, if built in
        self.assertRegex(one, rf"\Akernel fork: .*\nfile: {re.escape(file)}\n\nFIELD +TYPE +DEFAULT +MEANING\n")
        self.assertRegex(one, r"\nstart +auto, warm, forked, cold +\"auto\" +auto: ")
        self.assertRegex(self.ipybox("plugins", "rules").stdout, r"\nrules +list of anything +required +in order")
        self.assertIn("nothing to configure", self.ipybox("plugins", "allow").stdout)
        self.assertEqual([p["name"] for p in json.loads(self.ipybox("plugins", "fork", "--json").stdout)], ["fork"])
        self.assert_refused(self.ipybox("plugins", "forks"), "no plugin is named forks", "fork, gateway, zmq")

    def test_what_is_no_file_in_a_plugin_directory_is_told_and_not_waited_for(self):
        plugins = self.directory / "plugins"
        plugins.mkdir()
        os.mkfifo(plugins / "fifo.so")
        (plugins / "zero.so").symlink_to("/dev/zero")
        run = self.ipybox("plugins", env={"IPYBOX_PLUGIN_PATH": str(plugins)})
        self.assertEqual(run.returncode, 2)
        for name in ("fifo.so", "zero.so"):
            self.assertIn(f"{plugins}/{name}: not a regular file", run.stderr)
        self.assertRegex(run.stdout, "sandbox +bubblewrap")

    def copied_plugins(self, *names):
        directory = self.directory / "plugins"
        directory.mkdir(exist_ok=True)
        for name in names:
            shutil.copy(BAD_PLUGINS / f"{name}.so", directory)
        return str(directory)

    def test_broken_plugins_are_named_beside_the_others(self):
        plugins = self.copied_plugins("bad_schema", "changed_field", "undefined", "no_plugin", "sample")
        run = self.ipybox("plugins", "--plugin-dir", plugins)
        self.assertEqual(run.returncode, 2)
        for name in ("bad_schema", "changed_field", "undefined", "no_plugin"):
            self.assertEqual(run.stderr.count(f"{plugins}/{name}.so: "), 1, run.stderr)
        for name in ("sandbox +bubblewrap", "approval +sample"):
            self.assertRegex(run.stdout, f"(?m)^{name} ")
        run = self.ipybox("doctor", "--plugin-dir", plugins)
        self.assertEqual(run.returncode, 1)
        for name in ("bad_schema", "changed_field", "undefined", "no_plugin"):
            self.assertIn(f"FAILED  plugins: {plugins}/{name}.so: ", run.stdout)
        self.assertIn("sandbox/bubblewrap", run.stdout)

    def test_plugin_dir(self):
        plugins = self.copied_plugins("sample")
        (self.directory / "policy.json").write_text('{"sample": {"level": 1}}')
        test = ("policy", "test", "policy.json", "--call", '{"server": "a", "tool": "b"}')
        other = self.directory / "other"
        other.mkdir()
        run = self.ipybox(*test, "--plugin-dir", str(other), "--plugin-dir", plugins)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assert_refused(self.ipybox(*test, "--plugin-dir", str(other)), "policy.json", '"sample"', str(other),
                            "--plugin-dir")
        self.assert_refused(self.ipybox(*test, "--plugin-dir", "absent"), "absent: not a directory", "--plugin-dir")
        run = self.ipybox("run", "--plugin-dir", plugins, "--policy", "policy.json", "-c", "print(1)")
        self.assertEqual((run.returncode, run.stdout), (0, "1\n"), run.stderr)

    def test_faults_of_factories_name_plugin_file_and_place(self):
        plugins = self.copied_plugins("null", "throwing")
        for name, fault in (("null", "its factory returned null"), ("throwing", "its factory failed: no such level")):
            (self.directory / "policy.json").write_text(json.dumps(name))
            run = self.ipybox("run", "--plugin-dir", plugins, "--policy", "policy.json", "-c", "1")
            self.assert_refused(run, f"approval {name}", f"{plugins}/{name}.so", fault, "correct the")

    def test_parameters_of_a_transport_of_your_own(self):
        plugins = self.copied_plugins("addressed")

        def reach(**params):
            return self.ipybox("apigen", "own", "--plugin-dir", plugins, "--out", "apis", "--server-params",
                               json.dumps(params))
        self.assert_refused(reach(type="addressed", address="somewhere"), "nobody listens at somewhere")
        self.assert_refused(reach(type="addressed", adress="somewhere"), "MCP server own", "transport addressed",
                            "/address: is required")
        self.assert_refused(reach(type="adressed", address="somewhere"), "MCP server own", '"adressed"', "addressed", plugins)

    @unittest.skipUnless(LOGGING_SANDBOX.exists(), f"plugins are linked in: no {LOGGING_SANDBOX}")
    def test_a_sandbox_around_another(self):
        run = self.ipybox("run", "--plugin-dir", str(LOGGING_SANDBOX.parent), "--sandbox", "logging", "--log-level", "info",
                          "-c", "print(1)")
        self.assertEqual((run.returncode, run.stdout), (0, "1\n"), run.stderr)
        self.assertIn(f" in {self.directory}", run.stderr)
        # The inner command is interrupted, and its state is there afterwards.
        run = self.ipybox("run", "--plugin-dir", str(LOGGING_SANDBOX.parent), "--sandbox", "logging", "--timeout", "2", "-c",
                          "import time\ntry: time.sleep(60)\nfinally: print('interrupted')")
        self.assertEqual((run.returncode, run.stdout), (1, "interrupted\n"), run.stderr)

    def test_playwright_over_both_http_transports(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        modules = Path(os.environ["IPYBOX_TEST_NODE_MODULES"])
        server = subprocess.Popen([modules / "node/bin/node", modules / "@playwright/mcp/cli.js", "--port", str(port)],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        self.assertIn("Listening", server.stderr.readline())
        for path in ("mcp", "sse"):
            params = json.dumps({"url": f"http://localhost:{port}/{path}"})
            run = self.ipybox("apigen", "playwright", "--server-params", params, "--out", path)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("def run(", (self.directory / path / "playwright" / "browser_navigate.py").read_text())

    def test_apigen(self):
        tools = self.directory / "tools.json"
        tools.write_text(json.dumps({"tools": [
            {"name": "get-it", "description": "Gets it.", "inputSchema": {
                "type": "object", "properties": {"user-id": {"type": "integer"}}, "required": ["user-id"]}}]}))
        run = self.ipybox("apigen", "it", "--tools-json", "tools.json", "--out", "out")
        self.assertEqual(run.returncode, 0, run.stderr)
        module = (self.directory / "out/it/get_it.py").read_text()
        self.assertIn('alias="user-id"', module)
        self.assertEqual(self.ipybox("apigen", "it", "--tools-json", "tools.json", "--stdout", "get-it").stdout, module)
        current = self.ipybox("apigen", "it", "--tools-json", "tools.json", "--out", "out", "--check")
        self.assertEqual((current.returncode, current.stdout), (0, ""))
        tools.write_text(tools.read_text().replace("Gets it.", "Fetches it."))
        changed = self.ipybox("apigen", "it", "--tools-json", "tools.json", "--out", "out", "--check")
        self.assertEqual(changed.returncode, 1)
        self.assertIn("~ get_it.py", changed.stdout)
        self.assertEqual((self.directory / "out/it/get_it.py").read_text(), module)

        server = json.dumps({"command": "python3", "args": ["${SUPPORT}/mcp_server.py"]})
        live = self.ipybox("apigen", "own", "--server-params", server, "--out", "out")
        self.assertEqual(live.returncode, 0, live.stderr)
        self.assertTrue((self.directory / "out/own/echo.py").exists())
        self.assertEqual(self.ipybox("apigen", "own", "--config", "mcp.json", "--out", "out").returncode, 0)

        self.assert_refused(self.ipybox("apigen", "class", "--tools-json", "tools.json", "--out", "o"), "class")
        self.assert_refused(self.ipybox("apigen", "other", "--config", "mcp.json", "--out", "o"), "other", "own")
        self.assert_refused(self.ipybox("apigen", "x", "--server-params", "{", "--out", "o"), "--server-params", "line 1")
        self.assert_refused(self.ipybox("apigen", "x", "--out", "o"), "--server-params", "--config", "--tools-json")


class AuthTest(ProgramTest):
    """`ipybox auth` against an authorization server and an MCP server in this process."""

    def setUp(self):
        super().setUp()
        test = self
        self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status, body, **headers):
                text = json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_GET(self):
                if self.path == "/.well-known/oauth-protected-resource/mcp":
                    self.answer(200, {"resource": test.origin + "/mcp", "authorization_servers": [test.origin]})
                elif self.path == "/.well-known/oauth-authorization-server":
                    self.answer(200, {
                        "issuer": test.origin, "authorization_endpoint": test.origin + "/authorize",
                        "token_endpoint": test.origin + "/token", "registration_endpoint": test.origin + "/register",
                        "revocation_endpoint": test.origin + "/revoke", "code_challenge_methods_supported": ["S256"],
                        "token_endpoint_auth_methods_supported": ["none"]})
                else:
                    self.answer(404, {})

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                test.asked.append((self.path, body))
                if self.path == "/mcp":
                    self.answer(401, {}, WWW_Authenticate='Bearer scope="read"')
                elif self.path == "/register":
                    self.answer(201, {"client_id": "the-client"})
                elif self.path == "/token":
                    self.answer(200, {"access_token": "the-access-token", "token_type": "Bearer", "expires_in": 3600,
                                      "refresh_token": "the-refresh-token"})
                else:
                    self.answer(200, {})

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.config.write_text(json.dumps({"mcpServers": {
            "docs": {"url": self.origin + "/mcp"}, "own": {"command": "python3"}}}))
        self.environment = {"XDG_DATA_HOME": str(self.directory / "data")}
        if os.geteuid() == 0:
            os.chown(self.directory, 0, 0)

    def auth(self, *arguments):
        return self.ipybox("auth", *arguments, "--config", "mcp.json", env=self.environment)

    def login(self, answer):
        """Logs in as a person who opens the page's address elsewhere and types back `answer(query)`."""
        with subprocess.Popen(
                [PROGRAM, "auth", "login", "docs", "--config", "mcp.json", "--no-browser"], cwd=self.directory,
                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**ENVIRONMENT, **self.environment}) as process:
            self.addCleanup(process.kill)
            page = next(line for line in iter(process.stderr.readline, "") if line.startswith("http"))
            query = dict(parse_qsl(urlsplit(page.strip()).query))
            out, err = process.communicate(answer(query) + "\n", timeout=60)
        return process.returncode, out, err

    def test_login_status_and_logout(self):
        before = self.auth("status", "docs")
        self.assertEqual((before.returncode, before.stdout), (1, "docs: not logged in\n"))
        code, out, err = self.login(
            lambda query: f"\n  {query['redirect_uri']}?code=the-code&state={query['state']}&iss={self.origin}  ")
        self.assertEqual(code, 0, err)
        self.assertIn(f"docs: logged in at {self.origin} as client the-client, scope read, expires", out)
        store = self.directory / "data/ipybox/tokens.json"
        self.assertEqual((store.stat().st_mode & 0o777, store.parent.stat().st_mode & 0o777), (0o600, 0o700))
        self.assertEqual(self.auth("status", "docs").stdout, out)
        self.assertEqual(self.auth("status", "docs").returncode, 0)
        after = self.auth("logout", "docs")
        self.assertEqual((after.returncode, after.stdout), (0, "docs: logged out\n"))
        self.assertIn(("/revoke", "token=the-refresh-token&client_id=the-client"), self.asked)
        self.assertEqual(self.auth("status", "docs").returncode, 1)
        self.assertNotIn("the-", store.read_text())

    def test_what_belongs_to_another_login_is_refused(self):
        code, out, err = self.login(lambda query: query["redirect_uri"] + "?code=the-code&state=guessed")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("its state differs", err)
        self.assertNotIn("/token", [path for path, _ in self.asked])

    def test_refusals(self):
        self.assert_refused(self.auth("login", "own"), "own", "command")
        self.assert_refused(self.auth("login", "absent"), "absent", "docs")
        self.assert_refused(self.auth("login", "docs", "--device"), "device code")
        self.auth("status", "docs")
        data = self.directory / "data/ipybox"
        data.mkdir(parents=True)
        data.chmod(0o755)
        self.assert_refused(self.auth("status", "docs"), "chmod 700")


if __name__ == "__main__":
    unittest.main()
