"""Checks that generated packages hold nothing but what the generator writes.

Usage: check_modules.py [--import] DIR...

Each module must parse without a warning and consist of the known statements; no text of a schema
may be anything but a literal. With --import, each is imported too, on ipybox_kernel of
$IPYBOX_TEST_PYTHON_PACKAGE, again without a warning. Prints one line a finding; exit code 1 if any.
"""
from __future__ import annotations

import ast
import importlib
import io
import os
import re
import sys
import tokenize
import types
import warnings
from pathlib import Path

IMPORTS = {
    "__future__": {"annotations"},
    "typing": {"Annotated", "Any", "Literal", "Sequence", "overload"},
    "pydantic": {"Field", "RootModel"},
    "typing_extensions": {"TypeAliasType"},
    "ipybox_kernel": {"Model", "NotObject", "Open", "Out", "asynchronous", "call", "call_async", "coroutine", "object_rule", "one_of", "pattern", "rule", "SafeInt", "unique"},
}
PLAIN_TYPES = {"str", "int", "float", "bool", "list", "dict", "tuple"}
CHECKS = {"Field", "rule", "pattern", "one_of"}
COMMENTS = {
    "# --- your code below is kept ---",
    "# pyright: ignore",
    "# a key that is not valid Unicode is left out",
    "# also checked by the host",
    "# has a pattern that is not checked here",
    "# the host checks what is beyond these types",
    "# too large to be typed; the host checks the arguments",
    "# too deeply nested to be typed; checked by the host",
    "# too many values to list; checked by the host",
}
MARKER = "\n# --- your code below is kept ---\n"
# What would show a reader something else than Python reads, or end a line for one of them only.
DECEPTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")


class Finding(Exception):
    pass


def need(condition: bool, node: ast.AST | None, what: str) -> None:
    if not condition:
        raise Finding(f"line {getattr(node, 'lineno', '?')}: {what}")


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def check_literal(node: ast.AST) -> None:
    try:
        ast.literal_eval(node)  # type: ignore[arg-type]
    except ValueError as error:
        raise Finding(f"line {getattr(node, 'lineno', '?')}: not a literal: {ast.unparse(node)[:80]}") from error


class Module:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        self.imported: set[str] = set()

    def check(self) -> None:
        runs: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                allowed = IMPORTS.get(node.module or "", set())
                names = {alias.name for alias in node.names}
                need(node.level == 0 and names <= allowed and not any(a.asname for a in node.names), node, "an import")
                self.imported |= names
        self.names |= {
            target.id for node in self.tree.body if isinstance(node, ast.Assign) for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "TypeAliasType"
        }
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                continue
            if isinstance(node, ast.ClassDef):
                self.model(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                runs.append(node)
            elif isinstance(node, ast.Assign):
                self.assignment(node)
            else:
                rebuild = re.fullmatch(r"(\w+)\.model_rebuild\(\)", ast.unparse(node))
                need(rebuild is not None and rebuild[1] in self.names, node, f"a statement: {ast.unparse(node)[:80]}")
        need(len(runs) in (1, 3), None, f"{len(runs)} functions")
        self.run(runs[-1], "params: Any=None, /, **kwargs: Any" if runs[1:] else "params: Params | dict[str, Any] | None=None, /")
        need(len({type(node) for node in runs}) == len({ast.unparse(node.returns or node) for node in runs}) == 1, runs[0], "unlike functions")
        for node in runs[:-1]:
            need(node.name == "run" and [ast.unparse(each) for each in node.decorator_list] == ["overload"], node, "an overload")
            need([ast.unparse(each) for each in node.body] == ["..."], node, "the body of an overload")
        if runs[1:]:
            need(ast.unparse(runs[0].args) == "params: Params | dict[str, Any], /", runs[0], "parameters")
            self.keywords(runs[1].args)

    def keywords(self, names: ast.arguments) -> None:
        need(not names.args and not names.posonlyargs and names.vararg is None, None, "parameters that are no keywords")
        need(names.kwarg is None or ast.unparse(names.kwarg) == "more: Any", None, "other keywords")
        for name, value in zip(names.kwonlyargs, names.kw_defaults):
            need(name.annotation is not None, name, "a parameter")
            assert name.annotation is not None
            self.annotation(name.annotation)
            if value:
                check_literal(value)

    def assignment(self, node: ast.Assign) -> None:
        need(len(node.targets) == 1 and isinstance(node.targets[0], ast.Name), node, "an assignment")
        name = node.targets[0].id  # type: ignore[attr-defined]
        if name == "run_async":
            need(ast.unparse(node.value) in ("asynchronous(run)", "coroutine(run)"), node, "run_async")
            return
        value = node.value
        need(isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeAliasType" and not value.keywords, node, "an alias")
        assert isinstance(value, ast.Call)
        need(len(value.args) == 2 and ast.literal_eval(value.args[0]) == name, node, "an alias")
        self.annotation(ast.parse(ast.literal_eval(value.args[1]), mode="eval").body)

    def model(self, node: ast.ClassDef) -> None:
        need(not node.decorator_list and not node.keywords and len(node.bases) == 1, node, "a class")
        base = node.bases[0]
        if isinstance(base, ast.Subscript):
            need(ast.unparse(base.value) == "RootModel", node, "a base class")
            self.annotation(base.slice)
        else:
            need(ast.unparse(base) in {"Model", "Open", "Out"}, node, "a base class")
        for inner in node.body:
            if isinstance(inner, ast.Pass) or is_text(inner):
                continue
            if isinstance(inner, ast.AnnAssign):
                need(isinstance(inner.target, ast.Name), inner, "a field")
                self.annotation(inner.annotation)
                if inner.value:
                    check_literal(inner.value)
                continue
            need(isinstance(inner, ast.Assign) and len(inner.targets) == 1, inner, f"in a class: {ast.unparse(inner)[:80]}")
            assert isinstance(inner, ast.Assign)
            name = ast.unparse(inner.targets[0])
            if name == "__nullable__":
                check_literal(inner.value)
            else:
                call = inner.value
                need(name == "_rule" and isinstance(call, ast.Call) and ast.unparse(call.func) == "object_rule"
                     and len(call.args) == 1 and not call.keywords, inner, f"in a class: {name}")
                assert isinstance(call, ast.Call)
                check_literal(call.args[0])

    def annotation(self, node: ast.AST) -> None:
        if isinstance(node, ast.Constant):
            need(node.value is None, node, "a constant as a type")
        elif isinstance(node, ast.Name):
            need(node.id in PLAIN_TYPES | self.names | (self.imported & {"Any", "NotObject", "SafeInt"}), node, f"an unknown type {node.id}")
        elif isinstance(node, ast.BinOp):
            need(isinstance(node.op, ast.BitOr), node, "an operator")
            self.annotation(node.left)
            self.annotation(node.right)
        elif isinstance(node, ast.Subscript):
            origin = ast.unparse(node.value)
            arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            need(origin in PLAIN_TYPES or origin in self.imported & {"Annotated", "Literal", "Sequence"}, node, f"{origin}[]")
            if origin == "Literal":
                for argument in arguments:
                    check_literal(argument)
                return
            self.annotation(arguments[0])
            for argument in arguments[1:]:
                self.metadata(argument) if origin == "Annotated" else self.annotation(argument)
        else:
            raise Finding(f"line {getattr(node, 'lineno', '?')}: a type: {ast.unparse(node)[:80]}")

    def metadata(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            need(node.id == "unique" and "unique" in self.imported, node, "metadata")
            return
        need(isinstance(node, ast.Call) and ast.unparse(node.func) in CHECKS & self.imported, node, "metadata")
        assert isinstance(node, ast.Call)
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            check_literal(argument)

    def run(self, node: ast.FunctionDef | ast.AsyncFunctionDef, parameters: str) -> None:
        need(node.name == "run" and not node.decorator_list, node, f"a function {node.name}")
        need(ast.unparse(node.args) == parameters, node, "parameters")
        body = node.body[1:] if is_text(node.body[0]) else node.body
        need(len(body) == 1 and isinstance(body[0], ast.Return), node, "the body of run()")
        call = body[0].value  # type: ignore[attr-defined]
        coroutine = isinstance(node, ast.AsyncFunctionDef)
        if coroutine:
            need(isinstance(call, ast.Await), node, "the call")
            call = call.value
        need(isinstance(call, ast.Call) and ast.unparse(call.func) == ("call_async" if coroutine else "call") and not call.keywords, node, "the call")
        for argument in call.args[:2]:
            need(isinstance(argument, ast.Constant) and isinstance(argument.value, str), node, "the call")
        rest = [ast.unparse(argument) for argument in call.args[2:]]
        given = "kwargs" if node.args.kwarg else "{}"
        need(rest in (["Params", "params", given], ["Params", "params", given, "Result"]), node, "the call")


def check_file(path: Path, load: bool) -> None:
    text = path.read_bytes().decode("utf-8")
    if deceptive := DECEPTIVE.search(text):
        raise Finding(f"an invisible character {deceptive[0]!r}")
    tree = ast.parse(text)
    code = compile(text, str(path), "exec")
    if path.name == "__init__.py":
        need(len(tree.body) == 1 and is_text(tree.body[0]), None, "the package is not one docstring")
        return
    need(text.endswith(MARKER), None, "no marker at the end")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.string not in COMMENTS:
            raise Finding(f"a comment: {token.string[:80]}")
    Module(tree).check()
    if load:
        module = types.ModuleType(f"generated.{path.stem}")
        sys.modules[module.__name__] = module  # where pydantic looks names up
        try:
            exec(code, module.__dict__)
        finally:
            del sys.modules[module.__name__]


def main(arguments: list[str]) -> int:
    load = "--import" in arguments
    if load:
        sys.path.insert(0, os.environ["IPYBOX_TEST_PYTHON_PACKAGE"])
        importlib.import_module("ipybox_kernel.models")
    findings = files = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in (file for folder in arguments if folder != "--import" for file in sorted(Path(folder).rglob("*.py"))):
            files += 1
            try:
                check_file(path, load)
            except Exception as error:  # whatever it is, it is a finding
                findings += 1
                print(f"{path}: {type(error).__name__}: {str(error)[:300]} {str(error)[-200:]}".replace("\n", " "))
    print(f"{files} modules, {findings} findings")
    return 1 if findings or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
