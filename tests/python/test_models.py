"""The runtime of generated modules: what reaches the wire, what is refused, how answers are typed."""
from __future__ import annotations

import asyncio
import datetime
import importlib
import pathlib
import sys
import tempfile
import unittest
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

from pydantic import Field, RootModel, ValidationError  # noqa: E402

import ipybox_kernel  # noqa: E402

models = importlib.import_module("ipybox_kernel.models")
Model, Open, Out = models.Model, models.Open, models.Out


class Inner(Open):
    note: str | None = None


class Params(Model):
    query: str = "x"
    user_id: Annotated[str | None, Field(alias="user-id")] = None
    limit: int | None = None
    after: str | None = None
    inner: Inner | None = None
    __nullable__ = ("after",)


class Item(Out):
    id: int
    name: str | None = None


class Result(Out):
    items: list[Item]
    total: int | None = None


def run(params: Params | None = None, /, **kwargs: Any) -> Result:
    return models.call("server", "tool", Params, params, kwargs, Result)


class Wire(unittest.TestCase):
    def sent(self, *args: Any, **kwargs: Any) -> Any:
        with mock.patch.object(ipybox_kernel, "_send", return_value={"items": []}) as send:
            run(*args, **kwargs)
        (server, tool, arguments), _ = send.call_args
        self.assertEqual((server, tool), ("server", "tool"))
        return arguments

    def test_only_what_was_set_is_sent_under_its_wire_name(self) -> None:
        self.assertEqual(self.sent(), {})
        self.assertEqual(self.sent(query="x", user_id="u"), {"query": "x", "user-id": "u"})
        self.assertEqual(self.sent({"user-id": "u"}), {"user-id": "u"})
        self.assertEqual(self.sent(Params(user_id="u", limit=3)), {"user-id": "u", "limit": 3})

    def test_none_is_null_only_where_null_is_allowed(self) -> None:
        self.assertEqual(self.sent(limit=None, after=None, user_id=None), {"after": None})
        self.assertEqual(self.sent(inner={"note": None, "other": None}), {"inner": {"other": None}})

    def test_python_values_become_json(self) -> None:
        values = {
            "date": datetime.date(2024, 1, 2), "path": pathlib.PurePosixPath("/a"), "id": uuid.UUID(int=1),
            "set": {1}, "tuple": ("a", 1.0),
        }
        self.assertEqual(
            self.sent(query=pathlib.PurePosixPath("/q"), inner=values),
            {"query": "/q", "inner": {"date": "2024-01-02", "path": "/a", "id": str(uuid.UUID(int=1)), "set": [1],
                                      "tuple": ["a", 1.0]}},
        )

    def test_wrong_arguments_never_leave(self) -> None:
        for kwargs in ({"unknown": 1}, {"limit": "many"}, {"query": 5}, {"inner": []}):
            with self.subTest(kwargs), self.assertRaises(ValidationError):
                self.sent(**kwargs)
        with self.assertRaises(TypeError):
            self.sent(Params(), query="x")
        with self.assertRaises(TypeError):
            self.sent("query")

    def test_types_are_those_of_the_wire(self) -> None:
        for kwargs in ({"limit": "5"}, {"limit": True}, {"limit": 5.5}, {"query": 5}, {"user_id": b"u"}):
            with self.subTest(kwargs), self.assertRaises(ValidationError):
                self.sent(**kwargs)
        whole = self.sent(limit=5.0)["limit"]  # an integer in JSON Schema
        self.assertEqual((whole, type(whole)), (5, int))

    def refusal(self, model: type[Any], **given: Any) -> list[str]:
        with self.assertRaises(ValidationError) as caught:
            models._arguments("shop.buy", model, None, given)
        first, *lines = str(caught.exception).splitlines()
        self.assertIn("shop.buy", first)
        return [line.strip() for line in lines if "For further information" not in line]

    def test_errors_say_what_to_write(self) -> None:
        lines = " ".join(self.refusal(Params, querry="x", limit="many", inner={"note": 5}))
        for text in ("querry is no argument; did you mean query?", "limit should be a valid integer",
                     "`inner.note` should be a valid string"):
            self.assertIn(text, " ".join(lines.split()))
        self.assertIn("there are: query, user-id, limit, after, inner", " ".join(self.refusal(Params, zzz=1)))

    def test_a_union_tells_of_the_branch_that_is_meant(self) -> None:
        class Circle(Open):
            kind: Literal["circle"]
            radius: float

        class Square(Open):
            kind: Literal["square"]
            width: float

        class Shaped(Model):
            shapes: list[Annotated[Circle | Square, Field(discriminator="kind")]]

        lines = self.refusal(Shaped, shapes=[{"kind": "circle", "radius": 1}, {"kind": "square"}])
        self.assertEqual(lines[0], "`shapes[1].width`")
        self.assertEqual(len([line for line in lines if "missing" in line]), 1, lines)
        self.assertIn("circle", " ".join(self.refusal(Shaped, shapes=[{"kind": "cube"}])))

    def test_run_async(self) -> None:
        run_async = models.asynchronous(run)
        with mock.patch.object(ipybox_kernel, "_send_async", new=mock.AsyncMock(return_value={"items": [{"id": 1}]})) as send:
            result = asyncio.run(run_async(limit=2))
        send.assert_awaited_once_with("server", "tool", {"limit": 2})
        self.assertEqual(result.items[0].id, 1)


    def test_a_run_that_is_a_coroutine(self) -> None:
        async def run(params: Params | None = None, /, **kwargs: Any) -> Result:
            return await models.call_async("server", "tool", Params, params, kwargs, Result)

        self.assertIs(models.coroutine(run), run)
        with mock.patch.object(ipybox_kernel, "_send_async", new=mock.AsyncMock(return_value={"items": [{"id": 1}]})) as send:
            result = asyncio.run(run(limit=2))
        send.assert_awaited_once_with("server", "tool", {"limit": 2})
        self.assertEqual(result.items[0].id, 1)
        with self.assertRaises(ValidationError):
            asyncio.run(run(limit="many"))


class Answers(unittest.TestCase):
    def answer(self, value: Any) -> Any:
        with mock.patch.object(ipybox_kernel, "_send", return_value=value):
            return run()

    def test_structured_and_json_text(self) -> None:
        for value in ({"items": [{"id": 1, "new": [2]}], "x": 1}, '{"items": [{"id": 1, "new": [2]}], "x": 1}'):
            result = self.answer(value)
            self.assertIsInstance(result.items[0], Item)
            self.assertEqual(result.items[0].new, [2])
            self.assertEqual(result.model_dump(exclude_unset=True), {"items": [{"id": 1, "new": [2]}], "x": 1})

    def test_an_answer_off_its_schema_is_not_lost(self) -> None:
        self.assertEqual(self.answer("no hits").text, "no hits")
        image = object()
        self.assertIs(self.answer([image]).content[0], image)
        result = self.answer({"items": [{"id": "seven"}, {"id": 8}], "total": "many", "more": 1})
        self.assertEqual((result.items[0].id, result.items[1].id, result.total, result.more), ("seven", 8, "many", 1))

    def test_root_results(self) -> None:
        class Numbers(RootModel[list[int]]):
            pass

        self.assertEqual(models._result([1, 2], Numbers).root, [1, 2])
        self.assertEqual(models._result("text", Numbers).root, "text")

    def test_without_an_output_schema_it_is_what_came(self) -> None:
        for value in ("text", {"a": 1}, [b"media"], None):
            self.assertIs(models._result(value, None), value)


class Priced(Model):
    price: Annotated[int | float, Field(ge=0)] = 0
    unit_price: Annotated[float | None, Field(alias="unit-price")] = None
    count: int = 0
    values: list[int | float] = []
    inner: Inner | None = None
    inners: list[Inner] = []
    anything: Any = None


class Bill(Out):
    total: int | float
    rows: list[Item] | None = None


class Numbers(unittest.TestCase):
    def arguments(self, params: Any = None, **kwargs: Any) -> Any:
        return models._arguments("shop.buy", Priced, params, kwargs)

    def test_decimals_are_sent_with_their_digits(self) -> None:
        sent = self.arguments(
            price=Decimal("0.1000"), unit_price=Decimal("3.30"), count=Decimal("123456789012345678901.0"),
            values=[Decimal("1.10"), 2, 10 ** 30], inner={"extra": Decimal("2.50")}, inners=[{"x": {"y": Decimal("0.30")}}],
            anything={"a": [Decimal("1E+2"), (Decimal("-0.0"),)]})
        self.assertEqual(models.client._encode(sent), '{"price":0.1000,"unit-price":3.30,"count":123456789012345678901.0,'
                         '"values":[1.10,2,1000000000000000000000000000000],"inner":{"extra":2.50},"inners":[{"x":{"y":0.30}}],'
                         '"anything":{"a":[1E+2,[-0.0]]}}')
        params = Priced(inner=Inner(extra=Decimal("1.20")))
        params.price = Decimal("5.50")
        params.anything = Inner(extra=Decimal("7.70"))
        self.assertEqual(models.client._encode(self.arguments(params)), '{"price":5.50,"inner":{"extra":1.20},"anything":{"extra":7.70}}')

    def test_decimals_are_checked(self) -> None:
        for wrong in (Decimal("-0.5"), Decimal("NaN"), Decimal("-Infinity"), Decimal("sNaN"), Decimal("1e9999")):
            with self.subTest(wrong), self.assertRaises(ValidationError):
                self.arguments(price=wrong)
        with self.assertRaises(ValidationError):
            self.arguments(count=Decimal("1.5"))

    def test_exact_results(self) -> None:
        text = b'{"total": 0.10, "rows": [{"id": 123456789012345678901, "weight": 1e2}], "more": [2.50, 3]}'
        result = models._result(models.client.decode(text), Bill)
        self.assertEqual((result.total, result.rows[0].id, result.rows[0].weight, result.more), (0.1, 123456789012345678901, 100.0, [2.5, 3]))
        with mock.patch.object(models.client, "exact_numbers", True):
            for given in (models.client.decode(text), text.decode()):
                result = models._result(given, Bill)
                shown = (result.total, result.rows[0].id, result.rows[0].weight, result.more)
                self.assertEqual(repr(shown), "(Decimal('0.10'), 123456789012345678901, Decimal('1E+2'), [Decimal('2.50'), 3])")
            broken = models._result(models.client.decode(b'{"total": "none", "more": 2.50}'), Bill)
            self.assertEqual((broken.total, repr(broken.more)), ("none", "Decimal('2.50')"))
            self.assertEqual(repr(models._result([Decimal("1.50")], RootModel[list[float]]).root), "[Decimal('1.50')]")


class Rules(unittest.TestCase):
    def check(self, schema: Any, valid: list[Any], invalid: list[Any]) -> None:
        rule = models._Rule(schema)
        for value in valid:
            self.assertIsNone(rule.problem(value), (schema, value))
        for value in invalid:
            self.assertIsNotNone(rule.problem(value), (schema, value))

    def test_keywords(self) -> None:
        self.check({"enum": [1, "a", [True]]}, [1, 1.0, "a", [True]], [True, [1], 2, {}])
        self.check({"multipleOf": 0.01}, [19.99, 0, "x"], [0.001])
        self.check({"exclusiveMinimum": 1, "exclusiveMaximum": 2}, [1.5], [1, 2, 0])
        self.check({"pattern": "^(?!a)"}, ["b", 1], ["a"])
        self.check({"pattern": "(broken"}, ["anything"], [])
        self.check({"patternProperties": {"^x": {"type": "string"}}, "additionalProperties": False}, [{"x1": ""}], [{"x": 1}, {"y": ""}])
        self.check({"contains": {"const": 1}, "maxContains": 1}, [[1, 2]], [[], [1, 1]])
        self.check({"prefixItems": [{"type": "string"}], "items": False}, [[], ["a"]], [[1], ["a", 1]])
        self.check({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, [{}, {"a": 1, "b": 1}], [{"a": 1}])
        self.check({"dependentRequired": {"a": ["b"]}}, [{"b": 1}], [{"a": 1}])
        self.check({"uniqueItems": True}, [[1, True, "1"]], [[1, 1.0], [{"a": [1]}, {"a": [1]}]])

    def test_patterns_left_to_the_host_refuse_nothing(self) -> None:
        unknown = {"pattern": None}
        self.check(unknown, ["a"], [])
        self.check({"not": unknown}, ["a"], [1])
        self.check({"oneOf": [unknown, {"type": "string"}]}, ["a"], [])
        self.check({"anyOf": [unknown, {"type": "integer"}], "minLength": 2}, ["ab"], ["a"])
        self.check({"if": unknown, "then": False, "else": False}, ["a"], [])
        self.check({"contains": unknown, "maxContains": 0}, [["a"]], [[], [1]])
        self.check({"patternProperties": {None: True}, "additionalProperties": False}, [{"a": 1}], [])
        self.check({"pattern": "^a*b"}, ["a" * 3000], ["a" * 1000])  # too long for backtracking

    def test_references_and_unevaluated(self) -> None:
        tree = {"$ref": "0", "$defs": {"0": {"properties": {"kids": {"items": {"$ref": "0"}}}, "required": ["n"]}}}
        self.check(tree, [{"n": 1, "kids": [{"n": 2}]}], [{"n": 1, "kids": [{}]}])
        self.check({"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}])
        self.check({"allOf": [{"properties": {"a": True}}, {"unevaluatedProperties": False}]}, [{}], [{"a": 1}])
        self.check({"contains": {"type": "string"}, "unevaluatedItems": {"type": "null"}}, [["a", None]], [["a", 1]])

    def test_what_is_deeper_than_python_goes_is_left_to_the_host(self) -> None:
        loop = {"$ref": "0", "$defs": {"0": {"anyOf": [{"type": "null"}, {"items": {"$ref": "0"}}]}}}
        value: Any = 1
        for _ in range(400):
            value = [value]
        self.check(loop, [value, [[None]]], [])
        self.check({"not": {"$ref": "0"}, "$defs": loop["$defs"]}, [value], [[[None]]])

    def test_as_metadata(self) -> None:
        class Sample(Model):
            code: Annotated[str, models.pattern(r"^\d+\Z")]
            tags: Annotated[list[Any], models.unique] = []
            kind: Annotated[Any, models.one_of(0.5, {"a": 1})] = None
            rest: Inner | models.NotObject = None
            _rule = models.object_rule({"maxProperties": 2})

        self.assertEqual(Sample(code="1", kind={"a": 1}).kind, {"a": 1})
        self.assertEqual([Sample(code="1", rest=value).rest for value in (5, "5", [{}])], [5, "5", [{}]])
        self.assertIsInstance(Sample(code="1", rest={"note": "x"}).rest, Inner)
        for bad in ({"code": "1\n"}, {"code": "1", "tags": [1, 1]}, {"code": "1", "kind": 1}, {"code": "1", "kind": 0.5, "tags": []},
                    {"code": "1", "rest": {"note": 5}}):
            with self.subTest(bad), self.assertRaises(ValidationError):
                Sample(**bad)


class RewrittenPackagesTest(unittest.TestCase):
    MODULE = ("from ipybox_kernel import asynchronous\nVERSION = {}\n"
              "def run(params=None, /, **kwargs):\n    return VERSION\nrun_async = asynchronous(run)\n")

    def write(self, root: pathlib.Path, version: int) -> None:
        fresh = root / f"fresh{version}"
        fresh.mkdir()
        (fresh / "__init__.py").write_text("")
        (fresh / "tool.py").write_text(self.MODULE.format(version))
        if (root / "apis/server").exists():
            (root / "apis/server").rename(root / f"old{version}")
        fresh.rename(root / "apis/server")

    def test_the_next_import_gets_what_was_written_anew(self):
        with tempfile.TemporaryDirectory() as directory, mock.patch.object(sys, "path", [directory, *sys.path]):
            root = pathlib.Path(directory)
            (root / "apis").mkdir()
            self.write(root, 1)
            from apis.server import tool  # noqa: PLC0415
            models.forget_rewritten()
            self.assertIs(sys.modules["apis.server.tool"], tool)
            self.write(root, 2)
            models.forget_rewritten()
            from apis.server import tool as again  # noqa: PLC0415
            self.assertEqual((tool.run(), again.run()), (1, 2))
            models.forget_rewritten()
            self.assertIs(sys.modules["apis.server.tool"], again)


if __name__ == "__main__":
    unittest.main()
