"""Generated APIs as their readers meet them: Python without warnings, Pyright in strict mode, and
docs/apigen.md. The tools are those of two real servers and, if the corpora lie beside the checkout,
a sample of them (all, with IPYBOX_TEST_ALL_APIS)."""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ["IPYBOX_TEST_PROGRAM"]
PYTHON = os.environ["IPYBOX_TEST_PYTHON"]
SUPPORT = Path(os.environ["IPYBOX_TEST_SUPPORT"])
MODULES = Path(os.environ["IPYBOX_TEST_NODE_MODULES"])
CORPUS = SUPPORT.parents[2] / "shared" / "corpus"
MARKER = "# --- your code below is kept ---\n"
SERVERS = {"files": ("server-filesystem", "/tmp"), "everything": ("server-everything", "stdio")}


class ApigenTest(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ipybox-apigen-"))
        self.addCleanup(shutil.rmtree, self.directory)

    def apigen(self, *arguments: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run([PROGRAM, "apigen", *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              cwd=self.directory)

    def from_server(self, name: str, *arguments: Any) -> str:
        package, argument = SERVERS[name]
        script = MODULES / "@modelcontextprotocol" / package / "dist" / "index.js"
        params = {"command": "node", "args": [str(script), argument]}
        run = self.apigen(name, "--server-params", json.dumps(params), *arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def from_tools(self, name: str, tools: list[Any], *arguments: Any) -> str:
        file = self.directory / "tools.json"
        file.write_text(json.dumps(tools))
        run = self.apigen(name, "--tools-json", file, *arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout


class Modules(ApigenTest):
    def generate(self, out: Path) -> int:
        for name in SERVERS:
            self.from_server(name, "--out", out)
        self.from_tools("coroutines", [
            {"name": "typed", "inputSchema": {"type": "object", "properties": {
                "a": {"properties": {"b": {"type": "string"}}},
                "box": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}], "minItems": 2, "maxItems": 2}}},
             "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}}, {"name": "untyped"}], "--async-api", "--out", out)
        if not CORPUS.is_dir():
            print(f"test_apigen: no corpora in {CORPUS}; only the servers' own tools are checked", file=sys.stderr)
        step = 1 if "IPYBOX_TEST_ALL_APIS" in os.environ else 40
        for file in sorted(CORPUS.glob("*.json")):
            servers: dict[str, list[Any]] = {}
            for tool in json.loads(file.read_text())[::step]:
                servers.setdefault(tool["server"], []).append(tool)
            for number, tools in enumerate(servers.values()):
                self.from_tools(f"{file.stem}_{number}", tools, "--out", out)
        return sum(1 for _ in out.rglob("*.py"))

    def test_python_and_pyright_accept_them(self) -> None:
        out = self.directory / "out"
        count = self.generate(out)
        self.assertGreater(count, 25)

        check = subprocess.run([PYTHON, "-W", "error", SUPPORT / "check_modules.py", "--import", out],
                               capture_output=True, text=True)
        self.assertEqual((check.returncode, check.stdout), (0, f"{count} modules, 0 findings\n"), check.stderr)

        # A user's mistake has to be found, or the types are worth nothing.
        right = (
            "from out.files.edit_file import run as edit\n"
            "from out.files.read_text_file import Params, run\n"
            "from out.coroutines.typed import run as begin, run_async\n"
            "async def both() -> int | None: return (await begin(a={'b': 'x'})).n or (await run_async()).n\n"
            "print(run(Params(path='notes.txt', tail=3)).content.upper())\n"
            "edit(path='x', edits=({'oldText': 'a', 'newText': 'b'},), dryRun=True)\n"
            "edit({'path': 'x', 'edits': []})\n"
            "async def boxes() -> None: await begin(box=(1, 'a')); await begin(box=[1, 'a'])\n")
        wrong = ("run(Params(path=5))\n", "run(path='x').contents\n", "run(pth='x')\n", "run(path='x', tail='3')\n", "run()\n",
                 "edit(path='x')\n", "edit(path='x', edits=5)\n",
                 "async def turned() -> None: await begin(box=('a', 1))\n", "async def five() -> None: await begin(box=5)\n")
        (self.directory / "user.py").write_text(right + "".join(wrong))
        first = right.count("\n") + 1
        lines = set(range(first, first + len(wrong)))
        mypy = subprocess.run([PYTHON, "-m", "mypy", "--strict", "--follow-imports=silent", "user.py"], capture_output=True, text=True,
                              cwd=self.directory, env={**os.environ, "MYPYPATH": os.environ["IPYBOX_TEST_PYTHON_PACKAGE"]})
        self.assertEqual({int(line) for line in re.findall(r"^user\.py:(\d+): error", mypy.stdout, re.M)}, lines, mypy.stdout + mypy.stderr)
        config = self.directory / "pyrightconfig.json"
        config.write_text(json.dumps({
            "include": ["out", "user.py"], "typeCheckingMode": "strict", "pythonVersion": "3.11",
            "extraPaths": [os.environ["IPYBOX_TEST_PYTHON_PACKAGE"]]}))
        pyright = subprocess.run(
            ["node", MODULES / "pyright" / "index.js", "--project", config, "--pythonpath", PYTHON, "--outputjson"],
            capture_output=True, text=True)
        report = json.loads(pyright.stdout)
        findings = [f"{item['file']}:{item['range']['start']['line'] + 1} {item.get('rule')}: {item['message']}"
                    for item in report["generalDiagnostics"]]
        self.assertEqual([line for line in findings if "/out/" in line], [])
        self.assertEqual({int(re.search(r":(\d+) ", line)[1]) for line in findings}, lines, findings)
        self.assertEqual(report["summary"]["filesAnalyzed"], count + 1)


class Shapes(ApigenTest):
    """What JSON Schema allows reaches the server as it was given, and what it forbids does not; the
    judge is the jsonschema library."""

    TREE = {"$defs": {"tree": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/tree"}}]}},
            "properties": {"a": {"$ref": "#/$defs/tree"}}}
    OPEN = {"properties": {"kind": {"type": "string"}}, "additionalProperties": True}
    CASES: list[tuple[dict[str, Any], list[Any]]] = [
        ({"properties": {"a": {"properties": {"b": {"type": "integer"}}}}},
         [{"a": 5}, {"a": "5"}, {"a": None}, {"a": {"b": 1}}, {"a": {"b": []}}, {"a": [{"b": []}]}]),
        ({"properties": {"a": {"properties": {"b": {}}, "required": ["b"], "minLength": 2, "not": {"const": 3}}}},
         [{"a": "long"}, {"a": "x"}, {"a": 3}, {"a": 4}, {"a": {"b": 1}}, {"a": {}}]),
        ({"properties": {"a": {"additionalProperties": False}}}, [{"a": {}}, {"a": {"x": 1}}, {"a": 1}]),
        ({"properties": {"a": {"anyOf": [{"type": "integer"}, {"properties": {"b": {"type": "null"}}}]}}},
         [{"a": "5"}, {"a": 5}, {"a": {"b": None}}, {"a": {"b": 1}}]),
        ({**OPEN, "if": {"properties": {"kind": {"const": "x"}}, "required": ["kind"]},
          "then": {"properties": {"b": {"type": "string"}}}},
         [{"kind": "x", "b": "text"}, {"kind": "x", "b": 1}, {"kind": "y", "b": 1}, {"b": {"c": [1]}}]),
        ({**OPEN, "if": {"properties": {"kind": {"const": "x"}}}, "else": {"properties": {"b": {"type": "integer"}}}},
         [{"kind": "x", "b": "5"}, {"kind": "y", "b": 5}, {"kind": "y", "b": [5]}]),
        ({"properties": {"a": {"if": {"type": "string"}}}}, [{"a": 1}, {"a": "x"}, {"a": None}]),
        ({"properties": {"a": {"type": "object", "if": {"properties": {"b": {"const": 1}}}, "unevaluatedProperties": False}}},
         [{"a": {"b": 1}}, {"a": {"b": 2}}, {"a": {}}]),
        ({**OPEN, "anyOf": [{"properties": {"b": {"type": "boolean"}}, "required": ["b"]}, {"required": ["kind"]}]},
         [{"kind": "x", "b": 0}, {"b": True}, {"b": "x"}, {"kind": "x", "b": {"c": "5"}}]),
        ({**OPEN, "enum": [{"kind": "x"}, {"kind": "y", "z": 1}]}, [{"kind": "x"}, {"kind": "y"}, {"kind": "y", "z": 1}]),
        (TREE, [{"a": json.loads("[" * depth + leaf + "]" * depth)} for depth in (3, 60, 120) for leaf in ('"x"', "1")]),
    ]

    def test_they_mean_what_the_standard_says(self) -> None:
        import jsonschema

        tools = [{"name": f"t{number}", "inputSchema": {"type": "object", **schema}} for number, (schema, _) in enumerate(self.CASES)]
        self.from_tools("shapes", tools, "--out", self.directory / "out")
        script = self.directory / "send.py"
        script.write_text(
            "import importlib, json, sys, ipybox_kernel\n"
            "for name, values in json.load(sys.stdin):\n"
            "    run = importlib.import_module('out.shapes.' + name).run\n"
            "    sent = []\n"
            "    ipybox_kernel._send = lambda server, tool, arguments: sent.append(arguments)\n"
            "    for value in values:\n"
            "        try:\n"
            "            run(value)\n"
            "        except ValueError as error:\n"
            "            sent.append(None)\n"
            "    print(json.dumps(sent))\n")
        run = subprocess.run([PYTHON, "-W", "error", script], capture_output=True, text=True, cwd=self.directory,
                             env={**os.environ, "PYTHONPATH": os.environ["IPYBOX_TEST_PYTHON_PACKAGE"]},
                             input=json.dumps([(tool["name"], values) for tool, (_, values) in zip(tools, self.CASES)]))
        self.assertEqual(run.returncode, 0, run.stderr)
        verdicts = set()
        for tool, (_, values), line in zip(tools, self.CASES, run.stdout.splitlines(), strict=True):
            judge = jsonschema.Draft202012Validator(tool["inputSchema"])
            for value, sent in zip(values, json.loads(line), strict=True):
                valid = judge.is_valid(value)
                verdicts.add(valid)
                self.assertEqual(json.dumps(sent), json.dumps(value if valid else None), (tool["inputSchema"], value))
        self.assertEqual(verdicts, {True, False})


class Documentation(ApigenTest):
    """docs/apigen.md shows what the generator makes."""

    TEXT = (ROOT / "docs" / "apigen.md").read_text()

    def blocks(self) -> list[tuple[str, str]]:
        return re.findall(r"^```(\w*)\n(.*?)^```$", self.TEXT, re.DOTALL | re.MULTILINE)

    def test_packages_and_modules(self) -> None:
        out = self.directory / "out"
        previous = ("", "")
        compared = 0
        for language, text in self.blocks():
            package = re.match(r'"""Tools of the MCP server (\w+),', text)
            call = re.search(r'return call\("(\w+)", "([^"]+)"', text)
            if package:
                self.from_server(package[1], "--out", out)
                self.assertEqual(text, (out / package[1] / "__init__.py").read_text())
            elif call and previous[0] == "json":
                self.assertEqual(text, self.from_tools(call[1], [json.loads(previous[1])], "--stdout", call[2]))
            elif call:
                self.assertEqual(text, self.from_server(call[1], "--stdout", call[2]))
            compared += bool(package or call)
            previous = (language, text)
        self.assertEqual(compared, 4)

    def test_table_of_fields(self) -> None:
        rows = re.findall(r"^\| `(\{.*?\})` \| `(.*)` \|$", self.TEXT, re.MULTILINE)
        self.assertGreater(len(rows), 10)
        tools = [{"name": f"t{number}", "inputSchema": {
            "type": "object", "required": ["a"], "properties": {"a": json.loads(schema)}}} for number, (schema, _) in enumerate(rows)]
        self.from_tools("table", tools, "--out", self.directory / "out")
        for number, (schema, field) in enumerate(rows):
            module = (self.directory / "out" / "table" / f"t{number}.py").read_text()
            self.assertIn(f"    {field.replace(chr(92) + '|', '|')}\n", module, schema)


class Command(ApigenTest):
    TOOLS = [{"name": "one", "description": "One."}, {"name": "two words"}]

    def test_own_code_survives(self) -> None:
        self.from_tools("it", self.TOOLS, "--out", "out")
        module = self.directory / "out" / "it" / "one.py"
        own = "\nimport re\n\n\ndef run_parsed() -> int:\n    return 1\n"
        module.write_text(module.read_text() + own)
        self.assertEqual(self.from_tools("it", self.TOOLS, "--out", "out", "--check"), "")
        changed = [{**self.TOOLS[0], "description": "Uno."}, self.TOOLS[1]]
        self.assertIn("written", self.from_tools("it", changed, "--out", "out"))
        self.assertIn("Uno.", module.read_text())
        self.assertTrue(module.read_text().endswith(MARKER + own))
        (self.directory / "tools.json").write_text("[]")
        check = self.apigen("it", "--tools-json", "tools.json", "--out", "out", "--check")
        self.assertEqual((check.returncode, check.stdout), (1, "~ __init__.py\n- one.py with own code\n- two_words.py\n"))
        removed = self.apigen("it", "--tools-json", "tools.json", "--out", "out")
        self.assertEqual((removed.returncode, removed.stdout), (0, "it: 0 tools, written to out/it\n"))
        self.assertIn("one.py with own code is removed", removed.stderr)

    def test_one_module(self) -> None:
        self.assertIn('call("it", "two words"', self.from_tools("it", self.TOOLS, "--stdout", "two words"))
        wrong = self.apigen("it", "--tools-json", "tools.json", "--stdout", "three")
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))
        self.assertEqual(wrong.stderr, 'ipybox: --stdout: no tool is named "three"; there are: one, two words\n')
        both = self.apigen("it", "--tools-json", "tools.json", "--stdout", "one", "--check")
        self.assertEqual((both.returncode, len(both.stderr.splitlines())), (2, 1))

    def test_a_tool_without_a_module_is_named_and_the_others_are_written(self) -> None:
        (self.directory / "tools.json").write_text(json.dumps([*self.TOOLS, {"name": "one"}, {"name": ""}]))
        run = self.apigen("it", "--tools-json", "tools.json", "--out", "out")
        self.assertEqual((run.returncode, run.stdout), (1, "it: 2 tools, written to out/it\n"))
        self.assertIn('no API for "": it has no name\n', run.stderr)
        self.assertIn('no API for "one": another tool has the same name\n', run.stderr)

    def test_what_cannot_be_written(self) -> None:
        self.from_tools("it", self.TOOLS, "--out", "out")
        (self.directory / "file").write_text("")
        for out, named in {"file": "file", "file/below": "file", "/proc/nowhere": "/proc/nowhere", "": "--out"}.items():
            run = self.apigen("it", "--tools-json", "tools.json", "--out", out)
            self.assertEqual((run.returncode, len(run.stderr.splitlines())), (2, 1), run.stderr)
            self.assertIn(named, run.stderr)
            self.assertNotIn("filesystem error", run.stderr)


if __name__ == "__main__":
    unittest.main()
