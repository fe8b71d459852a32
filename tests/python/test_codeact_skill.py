"""The skill of the Claude Code plugins does what it says: its code is executed as it stands there."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKILL = ROOT / "claude/skills/codeact"
SERVER = Path(os.environ["IPYBOX_TEST_NODE_MODULES"]) / "@modelcontextprotocol/server-filesystem/dist/index.js"


def blocks(file):
    """The Python of a page: (place it goes to, text); a cell to be executed has no place."""
    for text in re.findall(r"^```python\n(.*?)^```$", file.read_text(), re.M | re.S):
        place = re.match(r"# (append to )?(\S+\.py)\n", text)
        yield (place[2], bool(place[1]), text[place.end():]) if place else (None, False, text)


class SkillTest(unittest.TestCase):
    def setUp(self):
        self.workspace = Path(tempfile.mkdtemp(prefix="ipybox-skill-"))
        self.addCleanup(shutil.rmtree, self.workspace, ignore_errors=True)
        reports = self.workspace / "reports"
        (reports / "drafts").mkdir(parents=True)
        (reports / "sales.md").write_text("Sales rose in spring and fell in summer.\n")
        (reports / "staff.md").write_text("Nobody left.\n")
        self.config = self.workspace / "mcp.json"
        self.config.write_text(json.dumps({"mcpServers": {"files": {
            "command": "node", "args": [str(SERVER), "${WORKSPACE}"]}}}))
        if os.geteuid() == 0:  # the sandbox drops root
            for path in (self.workspace, *self.workspace.rglob("*")):
                os.chown(path, 65534, 65534)
        os.chmod(self.workspace, 0o755)

    def cell(self, code):
        run = subprocess.run(
            [os.environ["IPYBOX_TEST_PROGRAM"], "run", "--config", "mcp.json", "--approve", "allow", "-c", code],
            cwd=self.workspace, capture_output=True, text=True, timeout=120,
            env={"PATH": os.environ["PATH"], "IPYBOX_PYTHON": os.environ["IPYBOX_TEST_PYTHON"]})
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def follow(self, page):
        """Writes the page's files as it says and returns what its cells print."""
        printed = []
        for place, append, text in blocks(SKILL / page):
            if place is None:
                printed.append(self.cell(text))
                continue
            path = self.workspace / place
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a" if append else "w", encoding="utf-8") as file:
                file.write(text)
        return printed

    def test_every_step(self):
        found, printed = self.follow("SKILL.md")
        self.assertIn("files.read_text_file(path, tail?, head?) – ", found)
        self.assertIn("files.list_directory", found)
        self.assertEqual(printed, "2 reports; the longest is sales.md\n")
        # The directory of the tools is there now, as for an agent that looks for them.
        self.assertIn("list_directory: ", (self.workspace / "mcptools/files/__init__.py").read_text())
        self.assertEqual(self.follow("references/output-parsers.md"), ["['drafts', 'sales.md', 'staff.md']\n"])
        self.assertEqual(self.follow("references/saving-code-actions.md"), ["name='sales.md' words=8\n"])
        # What was appended is still there, although the API was generated again for each run.
        self.assertIn("def run_parsed(", (self.workspace / "mcptools/files/list_directory.py").read_text())
        with self.assertRaisesRegex(AssertionError, "not a line of list_directory: 'oops'"):
            self.cell("from mcpparse.files.list_directory import parse\nparse('[FILE] a\\noops')")

    def test_what_is_said_of_tools_is_as_documented(self):
        page = (ROOT / "docs/apigen.md").read_text()
        examples = [re.sub("^  ", "", text, flags=re.M) for text in re.findall(r"^  ```\n(.*?)^  ```$", page, re.M | re.S)]
        self.assertEqual(len(examples), 2)
        said = self.cell("from ipybox_kernel import tools\n"
                         "print(tools.search('change a line of a file', 'edit text', limit=3))\n"
                         "print(tools.describe('files.edit_file'))\nprint(tools.stubs('files'))")
        for example in examples:
            self.assertIn(example, said)
        self.assertIn("\nread_file(path: str", said)

    def test_its_front_matter_and_links(self):
        text = (SKILL / "SKILL.md").read_text()
        front = re.match(r"---\nname: ([a-z0-9-]{1,64})\ndescription: (.+)\n---\n", text)
        self.assertIsNotNone(front)
        self.assertEqual(front[1], SKILL.name)
        self.assertLessEqual(len(front[2]), 1024)
        for link in re.findall(r"\]\(([^)]+)\)", text):
            self.assertTrue((SKILL / link).is_file(), link)
