"""examples/python with models that replay an exchange; kernel, tools, sandbox and frameworks are real."""
import itertools
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import OWN_SERVER, PYTHON, ROOT, SUPPORT, Workspace, environment, virtual_environment  # noqa: E402

sys.path.insert(0, str(SUPPORT))
from chat_server import ChatServer  # noqa: E402

EXAMPLES = ROOT / "examples/python"
KEY = "sk-key-of-the-test-0123456789"
TWO_CALLS = ("from mcptools.own import add, echo\nsum = add.run(a=2, b=3).sum\n"
             "print(echo.run(text=f'it is {sum}'))")
numbers = itertools.count()


def message(content=None, *calls):
    """An answer as chat-completions endpoints give it: text, or calls of tools."""
    body = {"role": "assistant", "content": content}
    if calls:
        body["tool_calls"] = [{"id": f"call_{next(numbers)}", "type": "function",
                               "function": {"name": name, "arguments": json.dumps(arguments)}}
                              for name, arguments in calls]
    return 200, {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "replay", "choices": [
        {"index": 0, "message": body, "finish_reason": "tool_calls" if calls else "stop"}]}


def code(text):
    return "execute_ipython_cell", {"code": text}


class Example:
    """Tests of one example: its file, and what it needs of PyPI."""

    EXAMPLE = ""
    PACKAGES = []
    AFTER_A_QUESTION = ()  # what the model has to call when a cell asks more than once

    def agent(self, *answers, typed):
        """Runs the agent on a replayed exchange, with a person who types lines; its output, and what
        the model got to read of its cells."""
        server = ChatServer(answers)
        self.addCleanup(server.close)
        (self.workspace / "mcp.json").write_text(json.dumps({"mcpServers": {"own": OWN_SERVER}}))
        python = sys.executable
        if self.PACKAGES:
            python = virtual_environment(self.EXAMPLE.removesuffix(".py"), self.PACKAGES) / "bin/python"
        env = environment(AGENT_BASE_URL=server.url, AGENT_MODEL="replay", AGENT_API_KEY=KEY, IPYBOX_PYTHON=PYTHON,
                          LANGSMITH_TRACING="false", OPENAI_AGENTS_DISABLE_TRACING="1")
        done = subprocess.run([python, EXAMPLES / self.EXAMPLE, "Add 2 and 3.", "mcp.json"], cwd=self.workspace,
                              input="".join(line + "\n" for line in typed), capture_output=True, text=True,
                              timeout=180, env=env, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        headers = {name.lower(): value for name, value in server.requests[0][1].items()}
        self.assertEqual(headers["authorization"], "Bearer " + KEY)
        read = [entry["content"] for entry in server.requests[-1][2]["messages"] if entry["role"] == "tool"]
        return done.stdout, ["".join(part["text"] for part in text) if isinstance(text, list) else text
                             for text in read]

    def test_an_exchange(self):
        shown, read = self.agent(
            message(None, code("x = 20\nprint(x + 1)")),
            message("Both in one cell.", code(TWO_CALLS)), *self.AFTER_A_QUESTION,
            message(None, code("import os\nprint([k for k in os.environ if 'AGENT' in k], sum)\n1/0")),
            message("The sum is 5."), typed=["y", "y"])
        self.assertIn("own.add(a=2, b=3)\nMay it? [y/N] ", shown)
        self.assertIn("own.echo(text='it is 5')\nMay it? [y/N] ", shown)
        self.assertTrue(shown.endswith("The sum is 5.\n"), shown)
        self.assertEqual(read[0], "21")
        self.assertIn("it is 5", read[1:-1])
        self.assertIn("ZeroDivisionError", read[-1])
        self.assertNotIn(KEY, "".join(read))

    def test_a_no(self):
        shown, read = self.agent(message(None, code(TWO_CALLS)), message("I may not."), typed=["n"])
        self.assertEqual(shown.count("May it?"), 1)
        self.assertTrue(shown.endswith("I may not.\n"), shown)
        self.assertRegex(read[0], "ApprovalRejectedError.*said no")


class AgentLoopTest(Example, Workspace):
    EXAMPLE = "agent_loop.py"


class LangGraphTest(Example, Workspace):
    EXAMPLE = "langgraph_agent.py"
    PACKAGES = ["langgraph>=1,<2", "langchain-openai>=1,<2"]


class PydanticAITest(Example, Workspace):
    EXAMPLE = "pydantic_ai_agent.py"
    PACKAGES = ["pydantic-ai-slim[openai]>=2,<3"]


class OpenAIAgentsTest(Example, Workspace):
    EXAMPLE = "openai_agents_agent.py"
    PACKAGES = ["openai-agents>=0.24,<0.25"]
    AFTER_A_QUESTION = (message(None, ("go_on", {})),)


if __name__ == "__main__":
    unittest.main()
