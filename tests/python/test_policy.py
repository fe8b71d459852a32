"""`ipybox policy test`, and the recipes of docs/approval.md."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, os.environ["IPYBOX_TEST_SUPPORT"])
from chat_server import ChatServer  # noqa: E402

PROGRAM = os.environ["IPYBOX_TEST_PROGRAM"]
ROOT = Path(os.environ["IPYBOX_TEST_SUPPORT"]).parent.parent
RECIPES = ROOT / "examples/policies"
ALLOW, DENY, MISTAKE, ASK = 0, 1, 2, 3


def policy_test(file, *arguments, **call):
    call = {"server": "files", "tool": "read_file", **call}
    return subprocess.run([PROGRAM, "policy", "test", str(file), "--call", json.dumps(call), *arguments],
                          capture_output=True, text=True, timeout=60)


class RecipeTest(unittest.TestCase):
    def check(self, recipe, *expected):
        for code, call in expected:
            run = policy_test(RECIPES / recipe, **call)
            self.assertEqual(run.returncode, code, f"{recipe} {call}: {run.stdout}{run.stderr}")

    def test_read_only_auto(self):
        self.check("read_only_auto.json",
                   (ALLOW, {"annotations": {"readOnlyHint": True}}),
                   (ASK, {"annotations": {"readOnlyHint": False}}),
                   (ASK, {}))

    def test_ask_for_writes(self):
        def write(path):
            return {"tool": "write_file", "annotations": {"readOnlyHint": False}, "arguments": {"path": path}}

        self.check("ask_for_writes.json",
                   (ALLOW, {"annotations": {"readOnlyHint": True}}),
                   (ALLOW, write("drafts/a.txt")),
                   (ALLOW, write("/home/me/project/drafts/b/../a.txt")),
                   (ASK, write("drafts/../a.txt")),
                   (ASK, write("/home/me/project/drafts-of-others/a.txt")),
                   (DENY, write("~/project/drafts/a.txt")),
                   (ASK, {"server": "ipybox", "tool": "shell", "origin": "shell", "arguments": {"cmd": "ls"}}))

    def test_never_delete(self):
        self.check("never_delete.json",
                   (ASK, {}),
                   (DENY, {"tool": "delete_file"}),
                   (DENY, {"tool": "query", "arguments": {"query": "select 1;\ndrop table x"}}),
                   (ASK, {"tool": "query", "arguments": {"query": "select dropped from x"}}))

    def test_budgeted_search(self):
        self.check("budgeted_search.json",
                   (ALLOW, {"server": "web", "tool": "web_search", "arguments": {"query": "x"}}),
                   (DENY, {"server": "web", "tool": "web_search", "arguments": {"query": "x", "limit": 1000}}),
                   (ALLOW, {"server": "web", "tool": "fetch", "arguments": {"url": "https://en.wikipedia.org/wiki/X"}}),
                   (DENY, {"server": "web", "tool": "fetch", "arguments": {"url": "https://wikipedia.org.evil.net/"}}),
                   (DENY, {"server": "web", "tool": "fetch", "arguments": {"url": "https://x@en.wikipedia.org/"}}),
                   (DENY, {}))


    def test_the_recipes_are_those_of_the_documentation(self):
        text = (ROOT / "docs/approval.md").read_text()
        for recipe in sorted(RECIPES.iterdir()):
            self.assertIn(recipe.read_text().strip(), text, f"docs/approval.md shows another {recipe.name}")


class PolicyTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.file = Path(directory.name) / "policy.json"

    def test_explains_which_rule_decided_and_which_nearly_did(self):
        self.file.write_text(json.dumps({"first_match": [{"rules": [
            {"name": "mine", "when": {"tool": "write_*", "arguments": {"/path": {"under": "/mine"}}}, "then": "allow"},
            {"name": "git", "when": {"server": "git", "tool": "push"}, "then": "deny"},
            {"name": "rest", "then": {"deny": "not here"}}]}, "allow"]}))
        run = policy_test(self.file, tool="write_file", arguments={"path": "/other/\x1b[2J"})
        self.assertEqual(run.returncode, DENY)
        self.assertEqual(run.stdout.splitlines()[:2], [
            r"deny: files.write_file(path='/other/\x1b[2J')", "decided by rules: rule 1 (mine)"])
        self.assertIn("rule 1 (mine): cannot be told, denies", run.stdout)
        self.assertNotIn("\x1b", run.stdout)
        run = policy_test(self.file, tool="write_file", arguments={"path": "/other/x"})
        self.assertEqual(run.stdout.splitlines(), [
            "deny: files.write_file(path='/other/x')",
            "decided by rules: rule 3 (rest)",
            "reason: not here",
            "  first_match/0/rules/0, rule 1 (mine): does not fit, but nearly",
            "    arguments/~1path/under does not hold: '/other/x'",
            "  first_match/0/rules/1, rule 2 (git): does not fit",
            '    server does not hold: "files"',
            '    tool does not hold: "write_file"',
            "  first_match/0/rules/2, rule 3 (rest): fits, denies",
        ])
        report = json.loads(policy_test(self.file, "--json", tool="write_file", arguments={"path": "/mine/x"}).stdout)
        self.assertEqual((report["verdict"], report["by"]), ("allow", "rules: rule 1 (mine)"))
        self.assertEqual([rule["fits"] for rule in report["rules"]], ["yes", "no", "yes"])

    def test_a_question_that_changes_nothing_is_none(self):
        self.file.write_text('{"all_of": ["ask", {"deny": {"reason": "closed"}}]}')
        run = policy_test(self.file)
        self.assertEqual((run.returncode, run.stdout.splitlines()[0]), (DENY, "deny: files.read_file()"))
        self.file.write_text('{"any_of": ["console", "allow"]}')
        self.assertEqual(policy_test(self.file).returncode, ALLOW)
        self.file.write_text('{"first_match": ["console", "allow"]}')
        self.assertEqual(policy_test(self.file).returncode, ASK)
        self.file.write_text('{"rules": [{"when": {"tool": "x"}, "then": "allow"}]}')
        run = policy_test(self.file)
        self.assertEqual(run.returncode, DENY)
        self.assertIn("no policy judges this call", run.stdout)

    def test_mistakes(self):
        def refused(policy, *words, **call):
            self.file.write_text(policy)
            run = policy_test(self.file, **call)
            self.assertEqual((run.returncode, run.stdout, len(run.stderr.splitlines())), (MISTAKE, "", 1), run.stderr)
            for word in words:
                self.assertIn(word, run.stderr)

        refused('{"rules": [{"then": "allow"}, {"when": {"arguments": {"/path": {"below": "/x"}}}, "then": "ask"}]}',
                "policy.json: rules/1/when/arguments/~1path: unknown key \"below\"; accepted: present, equals")
        refused("{\n oops", "policy.json", "line 2")
        refused('"nosuch"', "nosuch", "allow", "rules")
        refused('{"rules": [{"then": "deny", "when": {\n"tool": "a\\\\", "tool": "b"}}]}', "line 2", '"tool" stands twice')
        refused('{"first_match": []}', "policy.json/first_match", "at least one policy")
        refused('"allow"', "--call: unknown key \"tol\"", "accepted: server, tool", tol="x")
        refused('"allow"', "--call: origin must be mcp, shell", origin="mars")


class RememberedTest(unittest.TestCase):
    """`ipybox policy list` and `forget`, and what `ipybox doctor` says of them."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.home = Path(directory.name)
        self.file = self.home / "ipybox/always.json"
        self.file.parent.mkdir()

    def ipybox(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, cwd=self.home,
                              env={**os.environ, "XDG_CONFIG_HOME": str(self.home)})

    def write(self, *rules):
        self.file.write_text(json.dumps({"rules": rules}))
        self.file.chmod(0o600)

    def rules(self):
        def granted(server, *tools):
            return {"since": "2026-01-02T03:04:05Z", "server": server, "tools": {tool: {"hash": "00"} for tool in tools}}

        def when(tool):
            return {"server": "files", "tool": tool, "origin": "mcp"}

        self.write({"when": when("read"), "then": "allow", "granted": granted("npx files ${DIR}", "read")},
                   {"when": when("write"), "then": "allow", "expires": "2020-01-01T00:00:00Z",
                    "granted": granted("npx files ${DIR}", "write")},
                   {"when": when("old\x1b[2J"), "then": "allow"},
                   {"when": {"tool": "rm"}, "then": "deny"},
                   {"when": {"server": "web"}, "then": "allow", "expires": "2999-01-01T00:00:00Z",
                    "granted": granted("https://host/mcp", "get", "po st")},
                   {"when": {"origin": "shell", "schema": {"const": {"cmd": "ls"}}}, "then": "allow"})

    def test_lists_for_what_and_until_when(self):
        self.assertIn("nothing is remembered in", self.ipybox("policy", "list").stdout)
        self.rules()
        run = self.ipybox("policy", "list")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(run.stdout.splitlines(), [
            '1  allows {"server":"files","tool":"read","origin":"mcp"}',
            "   server: npx files ${DIR}",
            "   tools: read",
            "   since 2026-01-02T03:04:05Z",
            "   holds",
            '2  allows {"server":"files","tool":"write","origin":"mcp"}',
            "   server: npx files ${DIR}",
            "   tools: write",
            "   since 2026-01-02T03:04:05Z until 2020-01-01T00:00:00Z",
            "   stale: expired",
            r'3  allows {"server":"files","tool":"old\u001b[2J","origin":"mcp"}',
            "   stale: it does not say what server and tools it was made for, so tools are asked about",
            '4  denies {"tool":"rm"}',
            "   holds",
            '5  allows {"server":"web"}',
            "   server: https://host/mcp",
            "   tools: get 'po st'",
            "   since 2026-01-02T03:04:05Z until 2999-01-01T00:00:00Z",
            "   holds",
            '6  allows {"origin":"shell","schema":{"const":{"cmd":"ls"}}}',
            "   holds"])
        report = json.loads(self.ipybox("policy", "list", "--json").stdout)
        self.assertEqual(report["file"], str(self.file))
        self.assertEqual([rule["number"] for rule in report["rules"]], [1, 2, 3, 4, 5, 6])
        self.assertEqual(report["rules"][4]["tools"], ["get", "po st"])
        self.assertEqual(report["rules"][1]["stale"], "expired")

    def test_a_configuration_tells_which_servers_there_are(self):
        self.rules()
        config = self.home / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"x": {"command": "npx", "args": ["files", "${DIR}"]}}}))
        report = json.loads(self.ipybox("policy", "list", "--json", "--config", str(config)).stdout)
        self.assertEqual(report["rules"][0]["stale"], "")
        self.assertEqual(report["rules"][4]["stale"], f"no server of {config} is the one that it was made for")

    def test_forgets_by_number(self):
        self.rules()
        run = self.ipybox("policy", "forget", "2", "3")
        self.assertEqual((run.returncode, run.stdout), (0, f"forgotten; 4 left in {self.file}\n"), run.stderr)
        left = json.loads(self.file.read_text())["rules"]
        self.assertEqual([rule["when"].get("tool") for rule in left], ["read", "rm", None, None])
        run = self.ipybox("policy", "forget", "5")
        self.assertEqual(run.returncode, MISTAKE)
        self.assertIn("has no rule 5, but 4", run.stderr)
        self.assertEqual(self.ipybox("policy", "forget", "0").returncode, MISTAKE)
        self.assertEqual(self.ipybox("policy", "forget").returncode, MISTAKE)
        self.assertEqual(len(json.loads(self.file.read_text())["rules"]), 4)

    def test_doctor_counts_the_stale_and_fails_on_a_mistake(self):
        self.rules()
        self.assertIn(f"ok      remembered rules: 6 in {self.file}; 2 of them stale: `ipybox policy list`",
                      self.ipybox("doctor").stdout)
        self.write({"then": "alow"})
        run = self.ipybox("doctor")
        self.assertEqual(run.returncode, 1)
        self.assertIn(f"FAILED  remembered rules: {self.file}, rules/0/then: accepted:", run.stdout)
        self.assertEqual(self.ipybox("policy", "list").returncode, MISTAKE)


def said(decision, rationale="because"):
    """An answer as chat-completions endpoints give it."""
    text = decision if rationale is None else json.dumps({"decision": decision, "rationale": rationale})
    return 200, {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}


class ModelApproverTest(unittest.TestCase):
    """examples/model_approver: the policy, the plugin and the program; only the model is scripted."""
    KEY = "sk-key-of-the-test-0123456789"

    def judge(self, *answers, **call):
        # A test of a policy asks it twice, for a yes and a no of a person.
        chat = ChatServer([answer for answer in answers for _ in range(2)])
        self.addCleanup(chat.close)
        with tempfile.TemporaryDirectory() as directory:
            policy = (ROOT / "examples/model_approver/policy.json").read_text()
            program = ROOT / "examples/model_approver/approver.py"
            file = Path(directory) / "policy.json"
            file.write_text(policy.replace("/usr/local/lib/ipybox/approver.py", str(program)))
            call = {"server": "files", "tool": "read_file", **call}
            run = subprocess.run([PROGRAM, "policy", "test", str(file), "--call", json.dumps(call)],
                                 capture_output=True, text=True, timeout=60,
                                 env={**os.environ, "MODEL_URL": chat.url, "MODEL_NAME": "tiny", "MODEL_KEY": self.KEY})
        self.assertNotIn(self.KEY, run.stdout + run.stderr)
        return run, chat.requests

    def test_the_model_decides(self):
        run, requests = self.judge(said("allow", "it only reads"), arguments={"path": "/x"})
        self.assertEqual(run.returncode, ALLOW, run.stdout + run.stderr)
        path, headers, body = requests[0]
        self.assertEqual((path, headers["Authorization"]), ("/v1/chat/completions", f"Bearer {self.KEY}"))
        self.assertEqual(body["model"], "tiny")
        told = json.loads(body["messages"][1]["content"])
        self.assertEqual((told["server"], told["tool"], told["arguments"]), ("files", "read_file", {"path": "/x"}))
        run, _ = self.judge(said("deny", "it reveals a key"))
        self.assertEqual(run.returncode, DENY)
        self.assertIn("decided by command approver.py", run.stdout)
        self.assertIn("reason: tiny: it reveals a key", run.stdout)
        run, _ = self.judge(said("ask"))
        self.assertEqual(run.returncode, ASK)

    def test_whatever_goes_wrong_denies(self):
        for answer in (said("Sure, go ahead!", None), said("yes"), (500, {"error": {}}), (200, {}), said("allow", 5)):
            run, requests = self.judge(answer)
            self.assertEqual(run.returncode, DENY, f"{answer}: {run.stdout}{run.stderr}")
            self.assertIn("the approver failed: it ended with exit code 1", run.stdout)
            self.assertEqual(len(requests), 2)

    def test_rules_come_before_the_model(self):
        run, requests = self.judge(said("allow"), tool="delete_file")
        self.assertEqual((run.returncode, requests), (DENY, []))
        run, requests = self.judge(said("allow"), tool="pay_invoice")
        self.assertEqual((run.returncode, requests), (ASK, []))
        self.assertIn("rule 2 (payments): fits, asks each time", run.stdout)


if __name__ == "__main__":
    unittest.main()
