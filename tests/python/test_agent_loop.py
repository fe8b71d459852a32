"""examples/agent_loop against an endpoint that replays an exchange; kernel, tools and sandbox are real."""
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SUPPORT = Path(os.environ["IPYBOX_TEST_SUPPORT"])
PROGRAM = Path(os.environ["IPYBOX_TEST_PROGRAM"]).parent / "examples/agent_loop/agent_loop"
sys.path.insert(0, str(SUPPORT))
from chat_server import ChatServer  # noqa: E402
from terminal import PROMPT, converse  # noqa: E402

KEY = "sk-key-of-the-test-0123456789"
numbers = itertools.count()


def message(content=None, *codes):
    """An answer as chat-completions endpoints give it: text, or code actions."""
    calls = [{"id": f"call_{next(numbers)}", "type": "function",
              "function": {"name": "execute_ipython_cell", "arguments": json.dumps({"code": code})}}
             for code in codes]
    body = {"role": "assistant", "content": content}
    if calls:
        body["tool_calls"] = calls
    return 200, {"id": "chatcmpl-1", "object": "chat.completion", "choices": [
        {"index": 0, "message": body, "finish_reason": "tool_calls" if calls else "stop"}]}


@unittest.skipUnless(PROGRAM.exists(), f"the examples are built with shared plugins only: no {PROGRAM}")
class AgentLoopTest(unittest.TestCase):
    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix="ipybox-agent-"))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        os.chmod(self.directory, 0o755)
        if os.geteuid() == 0:  # the sandbox drops root
            os.chown(self.directory, 65534, 65534)
        (self.directory / "mcp.json").write_text(json.dumps({"mcpServers": {"own": {
            "command": "python3", "args": [str(SUPPORT / "mcp_server.py")]}}}))

    def agent(self, *answers, typed=None):
        """Runs the agent on a replayed exchange, with a person at a terminal if there is something to type; returns
        its end, and the requests it made. What a terminal shows is stdout and stderr."""
        server = ChatServer(answers)
        self.addCleanup(server.close)
        command = [PROGRAM, "Add 2 and 3, then tell the person.", "mcp.json"]
        env = {"PATH": os.environ["PATH"], "IPYBOX_PYTHON": os.environ["IPYBOX_TEST_PYTHON"],
               "IPYBOX_PLUGIN_PATH": os.environ["IPYBOX_TEST_PLUGINS"], "AGENT_BASE_URL": server.url,
               "AGENT_MODEL": "replay", "AGENT_API_KEY": KEY, "NO_COLOR": "1",
               "XDG_CONFIG_HOME": str(self.directory / "settings")}
        if typed is None:
            run = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=120, env=env,
                                 stdin=subprocess.DEVNULL, start_new_session=True)
            return run, server.requests
        status, seen = converse(command, typed, PROMPT, self.directory, env)
        return subprocess.CompletedProcess(command, status, seen, seen), server.requests

    @staticmethod
    def feedback(requests):
        """What the model got to read, cell by cell."""
        return [entry["content"] for entry in requests[-1][2]["messages"] if entry["role"] == "tool"]

    def test_code_actions_until_an_answer(self):
        run, requests = self.agent(
            message(None, "from ipybox_kernel import tools\nprint(tools.search('sum of numbers', limit=1))"),
            message("Both in one cell.", "from mcptools.own import add, echo\nsum = add.run(a=2, b=3).sum\n"
                    "print(echo.run(text=f'it is {sum}'))"),
            message(None, "print(sum + 1)", "import os\nprint([k for k in os.environ if 'AGENT' in k])", "1/0"),
            message("The sum is 5.\x1b[2J"),
            typed=["y\n"])
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertTrue(run.stdout.endswith("\nThe sum is 5.\r\n"), run.stdout)
        cells = self.feedback(requests)
        self.assertEqual(cells[0], "own.add(a, b) – Adds two numbers.")
        self.assertEqual(cells[1:4], ["it is 5", "6", "[]"])
        self.assertIn("ZeroDivisionError", cells[4])
        # The server calls add read-only, but not echo: about that, the person was asked.
        self.assertIn("Question 1: own.echo\r\n  'text': 'it is 5'\r\n", run.stderr)
        self.assertNotIn("own.add", run.stderr.replace("from mcptools.own import add", ""))

        paths, headers, bodies = zip(*requests)
        self.assertEqual(set(paths), {"/v1/chat/completions"})
        for header in headers:
            self.assertEqual(header["Authorization"], f"Bearer {KEY}")
        self.assertEqual({body["model"] for body in bodies}, {"replay"})
        self.assertEqual(bodies[0]["tools"][0]["function"]["name"], "execute_ipython_cell")
        self.assertEqual([entry["role"] for entry in bodies[3]["messages"]],
                         ["system", "user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "tool", "tool"])
        # Each result names its call, as endpoints demand.
        asked = [call["id"] for entry in bodies[3]["messages"] for call in entry.get("tool_calls") or ()]
        self.assertEqual(asked, [entry["tool_call_id"] for entry in bodies[3]["messages"] if entry["role"] == "tool"])

    def test_a_refusal_is_told_to_the_code(self):
        for typed, why in ((["n\n"], ": the user said no"), (None, ": ")):  # nobody there is a no
            run, requests = self.agent(
                message(None, "from mcptools.own import echo\ntry:\n    echo.run(text='x')\n"
                        "except Exception as error:\n    print(type(error).__name__, error)"),
                message("Refused."), typed=typed)
            self.assertEqual(run.returncode, 0, run.stderr)
            (told,) = self.feedback(requests)
            self.assertTrue(told.startswith(f"ApprovalRejectedError approval request for own.echo rejected{why}"), told)

    def test_long_output_is_cut_and_a_dead_kernel_replaced(self):
        run, requests = self.agent(
            message(None, "print('x' + 'ä' * 25000)", "import os; os._exit(1)", "print('a new one')"), message("Done."))
        self.assertEqual((run.returncode, run.stdout), (0, "Done.\n"), run.stderr)
        cut, dead, alive = self.feedback(requests)
        self.assertRegex(cut, r"^xä+\n\[cut after 20000 characters\]$")
        self.assertLess(len(cut), 20100)
        self.assertIn("kernel", dead)
        self.assertEqual(alive, "a new one")

    def test_an_endpoint_that_fails_ends_it(self):
        run, _ = self.agent((401, {"error": {"message": "no such key"}}))
        self.assertEqual(run.returncode, 1)
        self.assertIn("/v1/chat/completions answers 401", run.stderr)
        self.assertIn("no such key", run.stderr)
        self.assertNotIn(KEY, run.stderr + run.stdout)

    def test_calls_that_the_model_invents_are_corrected(self):
        status, wrong = message(None, "1")
        wrong["choices"][0]["message"]["tool_calls"][0]["function"] = {"name": "rm", "arguments": "{"}
        run, requests = self.agent((status, wrong), message("So be it."))
        self.assertEqual((run.returncode, run.stdout), (0, "So be it.\n"), run.stderr)
        self.assertIn("execute_ipython_cell", self.feedback(requests)[0])
