"""Runs the MCP conformance suite of npm and reads its verdicts."""
from __future__ import annotations

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

REVISIONS = ("2025-11-25", "2026-07-28")

_MODULES = Path(os.environ["IPYBOX_TEST_NODE_MODULES"])
_SUITE = _MODULES / "@modelcontextprotocol" / "conformance"
_VERDICT = re.compile(r"^([✓✗]) (\S+): (\d+) passed, (\d+) failed", re.MULTILINE)


def program(name: str) -> Path:
    """A program of the build under test, from its folder tests/."""
    return Path(os.environ["IPYBOX_TEST_PROGRAM"]).parent / "tests" / name


def required(revision: str, role: str) -> set[str]:
    """The scenarios that a revision requires of a "client" or a "server"."""
    names: set[str] = set()
    section = ""
    for line in (_SUITE / "requirements" / f"{revision}.yaml").read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            section = line.rstrip(":")
        elif section == role and line.startswith("  - "):
            names.add(line[4:].strip())
    return names


class ConformanceCase(unittest.TestCase):
    """Adds the check that all required scenarios pass; there are no expected failures."""

    role = ""
    unscored: frozenset[str] = frozenset()
    """Scenarios that no revision requires, and that have to pass all the same."""

    def check(self, revision: str, *arguments: str) -> None:
        """Runs a revision's scenarios, `arguments` saying against what."""
        wanted = required(revision, self.role)
        self.assertGreater(len(wanted), 15, "the suite's list of requirements could not be read")
        with tempfile.TemporaryDirectory() as results:
            run = subprocess.run(
                [_MODULES / ".bin" / "node", _SUITE / "dist" / "index.js", self.role, *arguments,
                 "--requirements", revision, "-o", results],
                capture_output=True, text=True, timeout=600, env={**os.environ, "NO_COLOR": "1"})
            verdicts = {name: mark == "✓" and int(passed) > 0 and int(failed) == 0
                        for mark, name, passed, failed in _VERDICT.findall(run.stdout)}
            for name in sorted(wanted | self.unscored & verdicts.keys()):
                with self.subTest(scenario=name):
                    self.assertTrue(verdicts.get(name), f"{name} of {revision}:\n" + self._report(results, name))
            missing = self.unscored - verdicts.keys()
            self.assertFalse(missing, f"not run for {revision}: {missing}")
            self.assertEqual(run.returncode, 0, run.stdout[-4000:] + run.stderr[-4000:])

    @staticmethod
    def _report(results: str, name: str) -> str:
        """What the suite and the program under test said about a scenario."""
        texts = []
        for folder in sorted(Path(results).glob(f"*{name}-2*")) or sorted(Path(results).glob(f"{name}-2*")):
            texts += [f"{path.name}: {path.read_text()[-6000:]}"
                      for path in sorted(folder.iterdir()) if path.is_file()]
        return "\n".join(texts) or "it was not run"
