"""`ipybox policy test`, and the recipes of docs/approval.md."""
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

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


if __name__ == "__main__":
    unittest.main()
