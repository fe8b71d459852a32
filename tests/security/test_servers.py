"""MCP servers run on the host: nothing that code put into the workspace becomes part of them.

Each way is tried with a real server, at a second start of ipybox and at a restart of the server in the same one; and with
the server started in the workspace, as it is configured then, where the same gets through.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import AS_ROOT, SUPPORT, InSandbox, Place, kernel_flags  # noqa: E402

NODE_SERVERS = Path(os.environ["IPYBOX_TEST_NODE_MODULES"]).resolve() / "@modelcontextprotocol"
TRUSTED = {"cwd": "${WORKSPACE}", "trust_cwd": True}  # the contrast: a person wants it so

# Ends the server of this run, whose next call starts it again.
RESTART = """
from mcptools.own import die, echo
try:
    die.run(die.Params())
except Exception:
    pass
"""


class Servers(InSandbox):
    def setUp(self) -> None:
        self.place = self.enterContext(Place())
        self.marks = self.place.root / "marks"
        self.marks.mkdir()
        self.marks.chmod(0o777)  # whoever runs it can tell
        self.config = self.place.root / "servers.json"

    def configure(self, **params: object) -> None:
        self.config.write_text(json.dumps({"mcpServers": {"own": params}}))

    def run_code(self, code: str, *options: str, works: bool = True) -> str:
        given = [*kernel_flags(self.kernel, self.sandbox), "--config", str(self.config), "--approve", "allow", *options]
        outcome = self.place.run(code, given, self.sandbox)
        if works:
            self.assertEqual(outcome.status, 0, outcome.output + outcome.errors)
        return outcome.output + outcome.errors

    def ran(self) -> set[str]:
        """Which plants ran on the host."""
        return {path.name for path in self.marks.iterdir()}

    def python_plants(self) -> str:
        """Code for the kernel: modules that the server imports, and one that Python itself imports if it finds it."""
        return "".join(f"open({name + '.py'!r}, 'w').write({f'open({str(self.marks / name)!r}, chr(119)).close(); raise SystemExit(1)'!r})\n"
                       for name in ("json", "argparse", "sitecustomize", "usercustomize"))

    def test_a_module_planted_in_the_workspace_is_not_imported(self) -> None:
        server = {"command": "python3", "args": ["-m", "mcp_server"], "env": {"PYTHONPATH": str(SUPPORT)}}
        self.configure(**server)
        self.run_code(self.python_plants() + RESTART + "print(echo.run(echo.Params(text='again')))")
        self.assertTrue((self.place.workspace / "json.py").exists())
        self.assertEqual(self.ran(), set())
        self.assertIn("again", self.run_code("from mcptools.own import echo\nprint(echo.run(echo.Params(text='again')))"))
        self.assertEqual(self.ran(), set())
        self.configure(**server, **TRUSTED)
        self.run_code("print(1)", works=False)
        self.assertTrue(self.ran() & {"json", "argparse"}, self.ran())

    def test_a_package_planted_in_the_workspace_is_not_what_npx_runs(self) -> None:
        # As `npm install --global` leaves it; npx needs no network for it.
        prefix = self.place.root / "npm"
        for directory in (prefix / "lib/node_modules/@modelcontextprotocol", prefix / "bin"):
            directory.mkdir(parents=True)
        (prefix / "lib/node_modules/@modelcontextprotocol/server-filesystem").symlink_to(NODE_SERVERS / "server-filesystem")
        (prefix / "bin/mcp-server-filesystem").symlink_to("../lib/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js")
        npm = {"npm_config_prefix": str(prefix), "npm_config_offline": "true", "npm_config_update_notifier": "false"}
        server = {"command": "npx", "args": ["-y", "mcp-server-filesystem", "${WORKSPACE}"], "env": npm}
        self.configure(**server)
        plant = f"""
import json, os
package = 'node_modules/@modelcontextprotocol/server-filesystem'
os.makedirs(package), os.makedirs('node_modules/.bin')
with open(package + '/package.json', 'w') as file:
    json.dump({{'name': '@modelcontextprotocol/server-filesystem', 'version': '9999.0.0', 'bin': {{'mcp-server-filesystem': 'plant.js'}}}}, file)
with open(package + '/plant.js', 'w') as file:
    file.write('#!/usr/bin/env node\\nrequire("fs").writeFileSync({json.dumps(str(self.marks / "npx"))}, "")\\n')
os.chmod(package + '/plant.js', 0o755)
os.symlink('../@modelcontextprotocol/server-filesystem/plant.js', 'node_modules/.bin/mcp-server-filesystem')
"""
        self.run_code(plant)
        listed = self.run_code("from mcptools.own import list_directory as ls\nprint(ls.run(ls.Params(path=%r)))" % str(self.place.workspace))
        self.assertIn("node_modules", listed)
        self.assertEqual(self.ran(), set())
        self.configure(**server, **TRUSTED)
        self.run_code("print(1)", works=False)
        self.assertEqual(self.ran(), {"npx"})

    def test_a_script_in_the_workspace_is_not_run_by_its_old_name(self) -> None:
        server = {"command": "python3", "args": ["server.py"]}
        self.configure(**server)
        self.place.file("workspace/server.py", f"open({str(self.marks / 'script')!r}, 'w').close()")
        told = self.run_code("print(1)", works=False)
        self.assertIn('MCP server own: "server.py" is a relative path', told)
        self.assertIn('write "args": ["${WORKSPACE}/server.py"]', told)
        self.assertEqual(self.ran(), set())
        self.configure(**server, **TRUSTED)
        self.run_code("print(1)", works=False)
        self.assertEqual(self.ran(), {"script"})

    @unittest.skipUnless(AS_ROOT, "who is not root cannot start servers as somebody else")
    def test_servers_of_root_are_out_of_the_codes_reach(self) -> None:
        report = "import os, runpy; open({!r}, 'w').write(str(os.getuid()) + chr(10) + os.environ['HOME']); runpy.run_path({!r}, run_name='__main__')"
        mark = self.marks / "identity"
        server = {"command": "python3", "args": ["-c", report.format(str(mark), str(SUPPORT / "mcp_server.py"))]}
        code = "import os; os.path.exists('who') and os.unlink('who'); open('who', 'w').close()"

        def users(*options: str) -> tuple[int, int, str]:
            """The kernel's user, the server's, and its home."""
            mark.unlink(missing_ok=True)
            self.run_code(code, *options)
            uid, home = mark.read_text().split()
            return (self.place.workspace / "who").stat().st_uid, int(uid), home

        self.configure(**server)
        kernel, own, home = users()
        self.assertEqual(kernel, 65534)
        self.assertNotIn(own, (0, 65534))
        self.assertEqual((os.stat(home).st_uid, os.stat(home).st_mode & 0o777), (own, 0o700))
        self.assertIn("refused", self.run_code(f"""
try:
    open({home + '/planted'!r}, 'w')
    print('ESCAPED')
except OSError as error:
    print('refused', error)
"""))
        # Not even when the kernel is given the number that servers have.
        self.place.workspace.chmod(0o777)
        kernel, other, _ = users("--sandbox-user", str(own))
        self.assertEqual(kernel, own)
        self.assertNotIn(other, (0, own))
        self.configure(**server, user=own)
        self.assertIn(f"the kernel runs as uid {own}", self.run_code(code, "--sandbox-user", str(own), works=False))
        # The contrast: configured to keep root's rights, it has them.
        self.configure(**server, user="root")
        self.assertEqual(users()[1], 0)


class InBubblewrap(Servers, unittest.TestCase):
    pass


class InSrt(Servers, unittest.TestCase):
    sandbox = "srt"
    test_a_script_in_the_workspace_is_not_run_by_its_old_name = None  # no kernel plants it, so no sandbox matters


class OfAGateway(Servers, unittest.TestCase):
    """What starts servers is the same for every backend; once is enough to see that it is."""

    kernel = "gateway"
    test_a_script_in_the_workspace_is_not_run_by_its_old_name = test_servers_of_root_are_out_of_the_codes_reach = None
    test_a_package_planted_in_the_workspace_is_not_what_npx_runs = None


if __name__ == "__main__":
    unittest.main()
