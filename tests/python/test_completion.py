"""How a line goes on, and that no code of the user's runs to find out."""
from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
import types
import unittest
import warnings
from pathlib import Path

sys.path.insert(0, os.environ["IPYBOX_TEST_PYTHON_PACKAGE"])

from ipybox_kernel.completion import complete  # noqa: E402

MAGICS = {"line": {"time": None, "timeit": None}, "cell": {"time": None, "bash": None}}


def _told(*_: object, **__: object) -> None:
    raise AssertionError("code of the user's ran")


class _Descriptor:
    __get__ = _told


class Hostile:
    __getattr__ = __dir__ = __len__ = __iter__ = __bool__ = __getitem__ = _told
    described = _Descriptor()

    def __init__(self) -> None:
        self.__dict__.update(inner={"key one": 1})

    @property
    def told(self) -> None:
        _told()

    def method(self, first: int, *, second: int = 0) -> None:
        pass


class HostileMeta(type):
    __getattribute__ = __dir__ = __getattr__ = __instancecheck__ = _told  # type: ignore[assignment]


class Model(metaclass=HostileMeta):
    some_name = 1


@dataclasses.dataclass
class Point:
    across: int
    down: int


class CompletionTest(unittest.TestCase):
    def setUp(self) -> None:
        self.names = {"os": os, "json": json, "hostile": Hostile(), "Model": Model, "model": object.__new__(Model), "Point": Point,
                      "words": {"abc": 1, "abd": 2, 3: 4}, "number_one": 1, "_private": 2}

    def found(self, code: str) -> list[str]:
        typed, matches = complete(code, self.names, MAGICS)
        self.assertTrue(code.endswith(typed))
        for match in matches:
            self.assertTrue(match.startswith(typed), (typed, match))
        return matches

    def test_names(self) -> None:
        self.assertEqual(self.found("print(number_o"), ["number_one"])
        self.assertIn("lambda", self.found("x = lam"))
        self.assertIn("range", self.found("for i in ran"))
        self.assertEqual(self.found("_priv"), ["_private"])
        for nothing in ("", "x = ", "1.", "'abc'.", "(x).", "# num", "'num", "unknown.", "number_one.nothing.", "a]num"):
            self.assertEqual(self.found(nothing), [], nothing)

    def test_attributes(self) -> None:
        self.assertEqual(self.found("os.path.joi"), ["join"])
        self.assertEqual(self.found("json.dum"), ["dump", "dumps"])
        self.assertIn("real", self.found("number_one."))
        self.assertNotIn("__class__", self.found("number_one."))
        self.assertIn("__class__", self.found("number_one.__c"))

    def test_no_code_of_the_users_runs(self) -> None:
        self.assertEqual(self.found("hostile."), ["described", "inner", "method", "told"])
        self.assertEqual(self.found("hostile.told."), [])
        self.assertEqual(self.found("hostile.described."), [])
        self.assertEqual(self.found("hostile.inner.item"), ["items"])
        self.assertEqual(self.found("hostile['"), [])
        self.assertEqual(self.found("hostile.inner['key"), ["key one"])
        self.assertIn("some_name", self.found("Model.some"))
        self.assertIn("some_name", self.found("model.some"))
        self.assertEqual(self.found("Model("), [])

    def test_no_code_of_a_modules_runs(self) -> None:
        asked: list[str] = []

        class Places:
            def __iter__(self) -> None:
                asked.append("where its modules lie")

        package = types.ModuleType("hostile_package")
        package.__path__ = Places()  # type: ignore[assignment]
        sys.modules["hostile_package"] = package
        self.addCleanup(sys.modules.pop, "hostile_package")
        self.assertEqual(self.found("import hostile_package.x"), [])
        self.assertEqual(asked, [])

    def test_long_lines(self) -> None:
        """Of a line of any length the answer is there within a part of the two seconds that it is waited for."""
        for begin, end in (("x" * 65000, " + "), ("x." * 32000, "! + "), ("x " * 32000, ""), ("x = [" + "1.5, " * 13000, "")):
            began = time.process_time()
            self.assertEqual(self.found(begin + end + "number_o"), ["number_one"])
            self.found(begin + "!")
            self.assertLess(time.process_time() - began, 1)

    def test_parameters(self) -> None:
        self.assertEqual(self.found("hostile.method("), ["first=", "second="])
        self.assertEqual(self.found("hostile.method(print(1), sec"), ["second="])
        self.assertEqual(self.found("Point(ac"), ["across="])
        self.assertEqual(self.found("json.dumps(words, sort_k"), ["sort_keys="])

    def test_keys_and_files(self) -> None:
        self.assertEqual(self.found("words['a"), ["abc", "abd"])
        self.assertEqual(self.found('words["abc'), ["abc"])
        with tempfile.TemporaryDirectory() as place:
            Path(place, "data.csv").touch()
            Path(place, "data").mkdir()
            self.assertEqual(self.found(f"open('{place}/da"), [f"{place}/data.csv", f"{place}/data/"])
            self.assertEqual(self.found(f"open('{place}/nothing/da"), [])

    def test_modules_are_not_imported(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            package = Path(place, "loud_package")
            (package / "inner").mkdir(parents=True)
            for file in (package / "__init__.py", package / "inner/__init__.py", package / "inner/leaf.py"):
                file.write_text("import colorsys as colours\nraise AssertionError('it ran')\ndef work(): pass\nLIMIT: int = 5\n")
            sys.path.insert(0, place)
            self.addCleanup(sys.path.remove, place)
            self.assertEqual(self.found("import loud_p"), ["loud_package"])
            self.assertEqual(self.found("import os, loud_p"), ["loud_package"])
            self.assertEqual(self.found("import loud_package.inn"), ["loud_package.inner"])
            self.assertEqual(self.found("from loud_package.inner import "), ["LIMIT", "colours", "leaf", "work"])
            self.assertEqual(self.found("from loud_package.inner.leaf import wo"), ["work"])
            self.assertEqual(self.found("from loud_package.inner.leaf import LIMIT, col"), ["colours"])
            self.assertFalse([name for name in sys.modules if name.startswith("loud_package")])
            (package / "warned.py").write_text("PATTERN = '\\d'\n")
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                self.assertEqual(self.found("from loud_package.warned import "), ["PATTERN"])
            self.assertEqual(warned, [])
            # Such a package has no list of its places.
            Path(place, "bare_package/inner").mkdir(parents=True)
            import bare_package  # type: ignore[import-not-found]
            self.addCleanup(sys.modules.pop, "bare_package")
            self.assertIsNot(type(bare_package.__path__), list)
            self.assertEqual(self.found("import bare_package.inn"), ["bare_package.inner"])
        self.assertEqual(self.found("from json import dum"), ["dump", "dumps"])
        self.assertEqual(self.found("import math.x"), [])

    def test_magics(self) -> None:
        self.assertEqual(self.found("%ti"), ["%time", "%timeit"])
        self.assertEqual(self.found("%%ba"), ["%%bash"])
        self.assertEqual(self.found("x %ti"), [])

    def test_tables_of_pandas(self) -> None:
        import pandas

        self.names["table"] = pandas.DataFrame({"first column": [1], "second": [2]})
        self.assertEqual(self.found("table['fi"), ["first column"])
        self.assertEqual(self.found("table.seco"), ["second"])


if __name__ == "__main__":
    unittest.main()
