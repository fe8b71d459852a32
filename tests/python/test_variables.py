"""What is told of a kernel's variables, and that no code of theirs runs for it."""
from __future__ import annotations

import array
import os
import sys
import unittest

sys.path.insert(0, os.environ["IPYBOX_TEST_PYTHON_PACKAGE"])

from ipybox_kernel.variables import class_name, short, size_of, variables  # noqa: E402


def _told(*_: object, **__: object) -> None:
    raise AssertionError("code of the user's ran")


class _Meta(type):
    __repr__ = __hash__ = __eq__ = __instancecheck__ = __getattribute__ = _told  # type: ignore[assignment]


class _Name:
    __get__ = _told


class Hostile(metaclass=_Meta):
    __repr__ = __str__ = __len__ = __hash__ = __eq__ = __getattribute__ = __sizeof__ = _told  # type: ignore[assignment]
    __class__ = property(_told)  # type: ignore[assignment]
    __iter__ = __index__ = __buffer__ = __format__ = __bool__ = _told


class HostileList(list):  # type: ignore[type-arg]
    __repr__ = __len__ = __iter__ = _told  # type: ignore[assignment]


class HostileText(str):
    __repr__ = __len__ = __getitem__ = __startswith__ = _told  # type: ignore[assignment]


class NamedByCode:
    __module__ = _Name()  # type: ignore[assignment]


class VariablesTest(unittest.TestCase):
    def test_builtin_values(self) -> None:
        for value in (None, ..., True, 1, -1.5, 2j, "text", b"\0", [1, "a"], (1,), (), {"k": [1]}, {1}, set(),
                      frozenset(), frozenset({1}), range(3), bytearray(b"x")):
            self.assertEqual(short(value), repr(value))
        self.assertEqual(size_of("äö"), 2)
        self.assertEqual(size_of({1: 2}), 1)
        self.assertEqual(size_of(array.array("d", [1, 2])), 16)
        self.assertIsNone(size_of(1))
        self.assertIsNone(size_of(range(1 << 70)))

    def test_everything_is_bounded(self) -> None:
        loop: list[object] = []
        loop.extend([loop] * 100)
        deep: list[object] = []
        for _ in range(100_000):
            deep = [deep]
        for value in ("x" * 10**7, 1 << 10**7, loop, deep, list(range(10**6)), {n: "y" * 999 for n in range(99)}):
            self.assertLessEqual(len(short(value)), 200)
        many = variables({f"v{n}": n for n in range(5000)}, {})
        self.assertEqual(len(many), 1000)
        while deep:  # not by the interpreter's own recursion
            deep = deep[0]  # type: ignore[assignment]

    def test_no_code_of_the_users_runs(self) -> None:
        namespace = {
            "one": Hostile(), "kind": Hostile, "all": HostileList([1]), "text": HostileText("x"), "named": NamedByCode(),
            "inside": [Hostile(), {"k": HostileText("y")}, HostileList()],
        }
        told = {name: (kind, size, value) for name, kind, size, value in variables(namespace, {})}
        this = __name__
        self.assertEqual(told["one"], (f"{this}.Hostile", None, f"<{this}.Hostile>"))
        self.assertEqual(told["kind"], (f"{this}._Meta", None, f"<{this}._Meta>"))
        self.assertEqual(told["all"], (f"{this}.HostileList", None, f"<{this}.HostileList>"))
        self.assertEqual(told["text"][2], f"<{this}.HostileText>")
        self.assertEqual(told["named"][0], "NamedByCode")
        self.assertEqual(told["inside"][:2], ("list", 3))

    def test_what_is_not_the_users_is_left_out(self) -> None:
        hidden = {"exit": object()}
        namespace = {**hidden, "_": 1, "__name__": "x", "In": [], 5: 1, "mine": 2}
        names = [name for name, *_ in variables(namespace, {**hidden, "In": namespace["In"]})]  # type: ignore[arg-type]
        self.assertEqual(names, ["mine"])
        self.assertEqual([name for name, *_ in variables({"exit": 1}, hidden)], ["exit"])

    def test_types(self) -> None:
        self.assertEqual(class_name(int), "int")
        self.assertEqual(class_name(type(os)), "module")
        self.assertEqual(class_name(array.array), "array.array")
        self.assertEqual(short(HostileList), f"<class {__name__}.HostileList>")


if __name__ == "__main__":
    unittest.main()
