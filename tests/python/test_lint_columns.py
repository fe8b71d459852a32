"""scripts/lint_columns.py names lines that are too long, and not what nothing can break."""
import importlib.util
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "lint_columns.py"
spec = importlib.util.spec_from_file_location("lint_columns", SCRIPT)
lint = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lint)


class Columns(unittest.TestCase):
    def test_a_hundred_are_enough(self):
        self.assertEqual(lint.findings("x" * 100 + "\n" + "x" * 101 + "\n"), [2])

    def test_columns_are_characters(self):
        self.assertEqual(lint.findings("é" * 100), [])

    def test_text_of_raw_strings_does_not_count(self):
        text = "x" * 120
        self.assertEqual(lint.findings(f'f(R"({text})");\nf(R"a(\n{text})"\n)a");\n{text}'), [5])

    def test_what_stands_beside_raw_strings_counts(self):
        self.assertEqual(lint.findings('f(R"(x)");' + " " * 100 + "// why"), [1])

    def test_ordinary_strings_count(self):
        self.assertEqual(lint.findings('f("' + "x" * 120 + '");'), [1])
