"""The blocking facade has what the executor has."""
import re
import unittest
from pathlib import Path

HEADERS = Path(__file__).resolve().parents[2] / "include/ipybox/executor"


def methods(header, name):
    """The names of a class's public methods, but for constructors and operators."""
    text = (HEADERS / header).read_text()
    body = text[text.index(f"\nclass {name} {{"):]
    public = body[body.index("\npublic:\n"):]
    public = re.sub(r"\n    class .*?\n    };", "", public[:public.index("\nprivate:\n")], flags=re.S)
    declared = re.findall(r"^    (?:[\w:<>,]+[&*]? )+&?(\w+)\(", public, flags=re.M)
    return {method for method in declared if method != name}


class FacadeTest(unittest.TestCase):
    def test_it_has_every_method(self):
        known = methods("code_executor.hpp", "CodeExecutor")
        self.assertLessEqual({"start", "stream", "set_policy", "list_tools", "workspace", "read_here", "kernel_id"}, known)
        self.assertEqual(known - methods("blocking.hpp", "BlockingCodeExecutor"), set())


if __name__ == "__main__":
    unittest.main()
