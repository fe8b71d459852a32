"""The runtime of generated tool modules: their base classes, their checks and the call itself."""
from __future__ import annotations

import contextlib
import datetime
import decimal
import difflib
import enum
import functools
import importlib
import inspect
import json
import numbers
import os
import pathlib
import re
import sys
import types
import uuid
import warnings
from contextvars import ContextVar
from typing import Annotated, Any, Callable, ClassVar, Coroutine, ParamSpec, TypeVar, Union, get_args, get_origin, overload

from pydantic import (
    AfterValidator, BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, RootModel, SerializerFunctionWrapHandler, TypeAdapter, ValidationError,
    model_serializer, model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

import ipybox_kernel
from ipybox_kernel import client
from ipybox_kernel.results import Parts

_P = ParamSpec("_P")
_R = TypeVar("_R")
_F = TypeVar("_F", bound=Callable[..., Any])
_M = TypeVar("_M", bound=BaseModel)
_Check = Callable[[Any], "str | None"]


# ---- models ---------------------------------------------------------------------------------


def _to_json(value: Any) -> Any:
    """Python values that mean a JSON value, as that value: dates, paths, UUIDs, enums, numpy numbers."""
    if isinstance(value, enum.Enum):
        return _to_json(value.value)
    if value is None or isinstance(value, (str, int, float, BaseModel)):
        return value
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            raise ValueError(f"{value!r} is no number in JSON; pass None or a text instead")
        return value
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_json(item) for item in value]
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (pathlib.PurePath, uuid.UUID)):
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return value


def _holds_decimal(value: Any) -> bool:
    if isinstance(value, decimal.Decimal):
        return True
    if isinstance(value, BaseModel):
        return _holds_decimal(vars(value)) or _holds_decimal(value.__pydantic_extra__)
    if isinstance(value, dict):
        return any(map(_holds_decimal, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_holds_decimal, value))


def _rounded(value: Any) -> Any:
    """A copy in which decimals are the numbers that pydantic and the checks know."""
    if isinstance(value, decimal.Decimal):
        # Integers that a float cannot hold, and what is written as one.
        large = 15 <= value.adjusted() < 4300 and value == value.to_integral_value()
        return int(value) if large or str(value).lstrip("-").isdigit() else float(value)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _restored(value: Any, exact: Any) -> Any:
    """What became of `exact` when it was rounded and validated, with its decimals put back."""
    if isinstance(exact, decimal.Decimal):
        if isinstance(value, bool) or (isinstance(value, int) and str(value) == str(exact)):
            return value
        # A number, or what pydantic's JSON mode writes of a decimal.
        return exact if isinstance(value, (int, float)) or value == str(exact) else value
    if isinstance(value, BaseModel) and isinstance(exact, dict):
        fields = type(value).model_fields
        for values in (vars(value), value.__pydantic_extra__ or {}):
            for name in values:
                wire = fields[name].alias or name if name in fields else name
                if wire in exact or name in exact:
                    values[name] = _restored(values[name], exact[wire if wire in exact else name])
    elif isinstance(value, dict) and isinstance(exact, dict):
        return {key: _restored(item, exact[key]) if key in exact else item for key, item in value.items()}
    elif isinstance(value, (list, tuple)) and isinstance(exact, (list, tuple)) and len(value) == len(exact):
        return type(value)(map(_restored, value, exact))
    return value


def _wire(model: BaseModel) -> Any:
    """A model as it is sent."""
    wire = model.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings="none")
    if not _holds_decimal(model):
        return wire
    return _restored(wire, model.model_dump(mode="python", by_alias=True, exclude_unset=True, warnings="none"))


def _with_integers(data: Any, places: list[tuple[Any, ...]]) -> Any:
    """A copy in which 5.0 is 5 at those places: an integer as well in JSON Schema, and none when pydantic is strict."""
    if not places:
        return data
    if isinstance(data, float):
        return int(data) if data.is_integer() else data
    if not isinstance(data, (dict, list)):
        return data
    keys = list(data) if isinstance(data, dict) else range(len(data))
    # A place also says which branch of a union was tried.
    below = {key: [place[n + 1:] for place in places for n, part in enumerate(place) if part == key] for key in keys}
    changed = {key: _with_integers(data[key], below[key]) for key in keys}
    return changed if isinstance(data, dict) else list(changed.values())


def _validated(handler: ModelWrapValidatorHandler[Any], data: dict[str, Any]) -> Any:
    try:
        return handler(data)
    except ValidationError as error:
        places = [found["loc"] for found in error.errors(include_url=False, include_context=False)
                  if found["type"] == "int_type" and isinstance(found["input"], float) and found["input"].is_integer()]
        if not places:
            raise
    return handler(_with_integers(data, [(*place, None) for place in places]))


class Model(BaseModel):
    """Arguments: what was set is sent under its wire name, an unset field is left to the server."""

    # Strict: a server takes neither "5" for a number nor True for 1.
    model_config = ConfigDict(extra="forbid", populate_by_name=True, protected_namespaces=(), allow_inf_nan=False, strict=True)

    __nullable__: ClassVar[tuple[str, ...]] = ()
    """Fields whose None is sent as null; for others it means unset."""

    @model_validator(mode="wrap")
    @classmethod
    def _accept(cls, data: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        if not isinstance(data, dict):
            return handler(data)
        exact = _to_json(data)
        if _holds_decimal(exact):
            return _restored(_validated(handler, _rounded(exact)), exact)
        return _validated(handler, exact)

    @model_serializer(mode="wrap")
    def _send(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        wire = handler(self)
        for name, field in type(self).model_fields.items():
            if name not in self.__nullable__ and getattr(self, name, 0) is None:
                wire.pop(field.alias or name, None)
                wire.pop(name, None)
        return wire


SafeInt = Annotated[int, Field(ge=-(2**53 - 1), le=2**53 - 1)]
"""What JavaScript counts exactly: the bounds that its validators write beside every integer."""


class Open(Model):
    """Arguments that may have other keys than those declared."""

    model_config = ConfigDict(extra="allow")


class Out(BaseModel):
    """Results: nothing is dropped, unknown keys are attributes too."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, protected_namespaces=())


# ---- checks beyond types --------------------------------------------------------------------


def _compile(pattern: str) -> re.Pattern[str] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError):
        return None  # a dialect that Python does not know


_compiled = functools.lru_cache(maxsize=512)(_compile)


_LONG = 2_000  # of texts that Python's backtracking is not tried on: the host checks them in linear time


def _matches(pattern: str | None, text: str) -> bool | None:
    """None when it is not for us to tell."""
    regex = _compiled(pattern) if pattern is not None and len(text) <= _LONG else None
    return None if regex is None else regex.search(text) is not None


def _freeze(value: Any) -> Any:
    """Something hashable that is equal for equal JSON values."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, dict):
        return frozenset((key, _freeze(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(_freeze(item) for item in value)
    return value


def _plain(value: Any) -> Any:
    """The value as it goes to the wire."""
    if isinstance(value, BaseModel):
        return _rounded(_wire(value))
    if isinstance(value, decimal.Decimal):
        return _rounded(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: _number(v) and (isinstance(v, int) or v.is_integer()),
    "number": _number,
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}
_Schema = Any  # a dict of keywords, or a bool


class _Rule:
    """Checks wire values against JSON Schema keywords; references lead into its own $defs."""

    def __init__(self, schema: _Schema) -> None:
        self.schema = schema
        self.definitions: dict[str, _Schema] = schema.get("$defs", {}) if isinstance(schema, dict) else {}
        self.unsure = 0  # how many patterns were left to the host

    def problem(self, value: Any) -> str | None:
        try:
            return self._check(self.schema, value, set())
        except RecursionError:
            return None  # deeper than Python goes; the host checks it

    def _valid(self, schema: _Schema, value: Any, seen: set[Any] | None = None) -> bool | None:
        """Whether the schema holds; if so, `seen` gains the keys and indices it has judged.

        None when it does but for patterns that are left to the host.
        """
        marks: set[Any] = set()
        unsure = self.unsure
        if self._check(schema, value, marks) is not None:
            return False
        if seen is not None:
            seen |= marks
        return True if unsure == self.unsure else None

    def _check(self, schema: _Schema, value: Any, seen: set[Any]) -> str | None:
        if isinstance(schema, bool):
            return None if schema else "is not allowed"
        own: set[Any] = set()
        error = self._in_place(schema, value, own) or self._value(schema, value)
        if error is None and isinstance(value, dict):
            error = self._object(schema, value, own)
        elif error is None and isinstance(value, list):
            error = self._array(schema, value, own)
        seen |= own
        return error

    def _in_place(self, schema: _Schema, value: Any, seen: set[Any]) -> str | None:
        """Schemas about the same value."""
        parts = list(schema.get("allOf", ()))
        if "$ref" in schema:
            parts.append(self.definitions.get(schema["$ref"], True))
        if isinstance(value, dict):
            parts += [part for key, part in schema.get("dependentSchemas", {}).items() if key in value]
        if "if" in schema and (holds := self._valid(schema["if"], value, seen)) is not None:
            parts.append(schema.get("then" if holds else "else", True))
        for part in parts:
            if error := self._check(part, value, seen):
                return error
        if "anyOf" in schema and all([self._valid(part, value, seen) is False for part in schema["anyOf"]]):
            return "fits none of the allowed forms"
        if "oneOf" in schema:
            fits = [self._valid(part, value, seen) for part in schema["oneOf"]]
            if all(fit is False for fit in fits) or fits.count(True) > 1:
                return "does not fit exactly one of the allowed forms"
        if "not" in schema and self._valid(schema["not"], value):
            return "has a forbidden form"
        return None

    def _matches(self, pattern: str | None, text: str) -> bool | None:
        match = _matches(pattern, text)
        self.unsure += match is None
        return match

    def _value(self, schema: _Schema, value: Any) -> str | None:
        kinds = schema.get("type", ())
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if kinds and not any(_TYPES[kind](value) for kind in kinds):
            return "must be of type " + " or ".join(kinds)
        if "const" in schema and _freeze(value) != _freeze(schema["const"]):
            return f"must be {schema['const']!r}"
        if "enum" in schema and _freeze(value) not in map(_freeze, schema["enum"]):
            return f"must be one of {schema['enum']!r}"
        if isinstance(value, str):
            if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
                return "has the wrong length"
            if "pattern" in schema and self._matches(schema["pattern"], value) is False:
                return f"must match {schema['pattern']!r}"
        elif _number(value):
            if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
                return "is out of range"
            if not schema.get("exclusiveMinimum", value - 1) < value < schema.get("exclusiveMaximum", value + 1):
                if value <= schema.get("exclusiveMinimum", float("-inf")) or value >= schema.get("exclusiveMaximum", float("inf")):
                    return "is out of range"
            if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
                return f"must be a multiple of {schema['multipleOf']}"
        return None

    def _object(self, schema: _Schema, value: dict[str, Any], seen: set[Any]) -> str | None:
        for key in schema.get("required", ()):
            if key not in value:
                return f"{key!r} is required"
        for key, needed in schema.get("dependentRequired", {}).items():
            if key in value and (missing := [other for other in needed if other not in value]):
                return f"{missing[0]!r} is required beside {key!r}"
        if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
            return "has the wrong number of keys"
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for key, item in value.items():
            if "propertyNames" in schema and (error := self._check(schema["propertyNames"], key, set())):
                return f"the key {key!r} {error}"
            parts = [properties[key]] if key in properties else []
            unsure = False
            for pattern, part in patterns.items():
                match = self._matches(pattern, key)
                unsure = unsure or match is None
                parts += [part] if match else []
            if not parts and not unsure and "additionalProperties" in schema:
                parts.append(schema["additionalProperties"])
            for part in parts:
                if error := self._check(part, item, set()):
                    return f"{key!r} {error}"
            if parts or unsure:
                seen.add(key)
            elif "unevaluatedProperties" in schema and key not in seen:
                seen.add(key)
                if error := self._check(schema["unevaluatedProperties"], item, set()):
                    return f"{key!r} {error}"
        return None

    def _array(self, schema: _Schema, value: list[Any], seen: set[Any]) -> str | None:
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return "has the wrong number of items"
        if schema.get("uniqueItems") and len({_freeze(item) for item in value}) != len(value):
            return "has items that are not unique"
        if "contains" in schema:
            fits = [self._valid(schema["contains"], item) for item in value]
            seen |= {index for index, fit in enumerate(fits) if fit is not False}
            most = schema.get("maxContains", len(value))
            if len(value) - fits.count(False) < schema.get("minContains", 1) or fits.count(True) > most:
                return "does not contain what it must"
        prefix = schema.get("prefixItems", ())
        for index, item in enumerate(value):
            if index < len(prefix):
                part = prefix[index]
            elif "items" in schema:
                part = schema["items"]
            elif "unevaluatedItems" in schema and index not in seen:
                part = schema["unevaluatedItems"]
            else:
                continue
            seen.add(index)
            if error := self._check(part, item, set()):
                return f"[{index}] {error}"
        return None


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    try:
        quotient = value / step
        return abs(quotient - round(quotient)) <= 1e-9 * max(1.0, abs(quotient))
    except OverflowError:
        return False


def _validator(problem: _Check) -> AfterValidator:
    def check(value: Any) -> Any:
        if error := problem(_plain(value)):
            raise ValueError(error)
        return value

    return AfterValidator(check)


def rule(schema: _Schema) -> AfterValidator:
    """Checks a field against JSON Schema keywords that no type says."""
    return _validator(_Rule(schema).problem)


def object_rule(schema: _Schema) -> Any:
    """The same for a whole model."""
    checker = _Rule(schema)

    def check(self: Any) -> Any:
        if error := checker.problem(_plain(self)):
            raise ValueError(error)
        return self

    return model_validator(mode="after")(check)


def pattern(regex: str) -> AfterValidator:
    """Checks that a string has a match (pydantic's own engine lacks lookaround and back-references)."""
    return rule({"pattern": regex})


def one_of(*values: Any) -> AfterValidator:
    """An enumeration that Literal cannot say."""
    return rule({"enum": list(values)})


unique = rule({"uniqueItems": True})

NotObject = Annotated[Any, rule({"not": {"type": "object"}})]
"""What else fits a schema that speaks about objects and does not say that there must be one."""


# ---- calls ----------------------------------------------------------------------------------

_awaiting: ContextVar[bool] = ContextVar("_awaiting", default=False)


def _fields_at(model: type[BaseModel], path: list[Any]) -> dict[str, Any]:
    """The fields, by wire name, of the classes that may be at a place within a model."""
    kinds: list[Any] = [model]
    for part in [*(part for part in path if isinstance(part, str)), ""]:
        fields: dict[str, Any] = {}
        inner = list(kinds)
        while inner:  # unions and containers are looked into
            kind = inner.pop()
            if inspect.isclass(kind) and issubclass(kind, BaseModel):
                fields |= {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
            else:
                inner += get_args(kind)
        if part in fields:
            kinds = [fields[part]]
    return fields


def _said(error: ValidationError, tool: str, model: type[BaseModel], data: dict[str, Any]) -> ValidationError:
    """The same error in few words: each place once, as it is written, with the nearest right name."""
    with contextlib.suppress(ValueError):
        data = _to_json(data)
    problems: dict[str, list[str]] = {}
    inputs: dict[str, Any] = {}
    for found in error.errors(include_url=False):
        kind, value, path = found["type"], data, []
        for part in found["loc"]:  # a part may also be the branch of a union that was tried
            if isinstance(value, dict) and (part in value or kind == "missing" and part == found["loc"][-1]):
                path, value = [*path, part], value.get(part)
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                path, value = [*path, part], value[part]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
        text = found["msg"].removeprefix("Value error, ").removeprefix("Input ")
        if kind == "missing":
            text = "is missing"
        elif kind == "extra_forbidden":
            names = list(_fields_at(model, path[:-1]))
            near = difflib.get_close_matches(str(path[-1]), names, 1, 0.5)
            text = "is no argument; " + (f"did you mean {near[0]}?" if near else "there are: " + ", ".join(names[:20]))
        problems.setdefault(place, [])
        if text not in problems[place]:
            problems[place].append(text)
        inputs[place] = found["input"]
    lines = [InitErrorDetails(type=PydanticCustomError("argument", "{said}", {"said": " or ".join(said).replace(" or should be", " or")}),
                              loc=(place or tool,), input=inputs[place]) for place, said in problems.items()]
    return ValidationError.from_exception_data(tool, lines)


def _arguments(tool: str, model: type[BaseModel], params: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    if params is None or isinstance(params, dict):
        given = {**(params or {}), **kwargs}
        try:
            params = model.model_validate(given)
        except ValidationError as error:
            said = _said(error, tool, model, given)
        else:
            return _wire(params)
        raise said
    elif kwargs:
        raise TypeError("pass either a Params object or keyword arguments, not both")
    elif not isinstance(params, model):
        raise TypeError(f"expected a Params object, a dict or keyword arguments, not {type(params).__name__}")
    return _wire(params)


def _salvage(model: type[_M], data: dict[str, Any]) -> _M:
    """A result that breaks its schema: what fits is typed, the rest stays as it came."""
    result, rest = model.model_construct(), dict(data)
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key in rest:
            vars(result)[name] = _salvage_value(field.annotation, rest.pop(key))
            result.__pydantic_fields_set__.add(name)
    object.__setattr__(result, "__pydantic_extra__", rest)
    result.__pydantic_fields_set__.update(rest)
    return result


def _salvage_value(kind: Any, value: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        pass
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        fitting = [argument for argument in arguments if isinstance(value, get_origin(argument) or _shape(argument))]
        return _salvage_value(fitting[0], value) if len(fitting) == 1 else value
    if origin is list and isinstance(value, list):
        return [_salvage_value(arguments[0], item) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: _salvage_value(arguments[1], item) for key, item in value.items()}
    if _shape(kind) is dict and isinstance(value, dict):
        return _salvage(kind, value)
    return value


def _shape(kind: Any) -> Any:
    return dict if inspect.isclass(kind) and issubclass(kind, Out) else ()


def _typed(answer: Any, model: type[_M]) -> _M:
    if not client.exact_numbers or not _holds_decimal(answer):
        return model.model_validate(answer)
    result = model.model_validate(_rounded(answer))
    return _restored(result, {"root": answer} if issubclass(model, RootModel) else answer)


def _result(answer: Any, model: type[_M] | None) -> Any:
    if model is None:
        return answer
    if isinstance(answer, Parts) and answer.structured is not None:
        result = _result(answer.structured, model)
        # Beside the fields, where media() finds it.
        object.__setattr__(result, "__pydantic_private__", {"_media": list(answer)})
        return result
    if isinstance(answer, str):  # a server that declares structured output but answers with text
        try:
            return _typed(client.decode(answer), model)
        except ValueError:
            return _unstructured(model, "text", answer)
    try:
        return _typed(answer, model)
    except ValidationError:
        if isinstance(answer, dict) and issubclass(model, Out):
            return _restored(_salvage(model, _rounded(answer)), answer)
        return _unstructured(model, "content", answer)


def _unstructured(model: type[_M], name: str, answer: Any) -> _M:
    return model.model_construct(answer) if issubclass(model, RootModel) else model.model_construct(**{name: answer})


@overload
def call(server: str, tool: str, model: type[BaseModel], params: Any, kwargs: dict[str, Any], result: None = None) -> Any: ...
@overload
def call(server: str, tool: str, model: type[BaseModel], params: Any, kwargs: dict[str, Any], result: type[_M]) -> _M: ...
def call(
    server: str, tool: str, model: type[BaseModel], params: Any, kwargs: dict[str, Any], result: type[_M] | None = None
) -> Any:
    """Checks the arguments, calls the tool and types what it answers.

    An answer that is not what the tool's output schema promised is still returned: as the `text`
    or `content` of an otherwise empty result, or with the fields that do not fit left untyped.
    """
    arguments = _arguments(f"{server}.{tool}", model, params, kwargs)
    if _awaiting.get():
        return _call_async(server, tool, arguments, result)
    return _result(ipybox_kernel._send(server, tool, arguments), result)


@overload
async def call_async(server: str, tool: str, model: type[BaseModel], params: Any, kwargs: dict[str, Any], result: None = None) -> Any: ...
@overload
async def call_async(server: str, tool: str, model: type[BaseModel], params: Any, kwargs: dict[str, Any], result: type[_M]) -> _M: ...
async def call_async(
    server: str, tool: str, model: type[BaseModel], params: Any, kwargs: dict[str, Any], result: type[_M] | None = None
) -> Any:
    """call() for coroutines: others run meanwhile, and cancelling it withdraws the call."""
    return await _call_async(server, tool, _arguments(f"{server}.{tool}", model, params, kwargs), result)


async def _call_async(server: str, tool: str, arguments: dict[str, Any], result: type[_M] | None) -> Any:
    return _result(await ipybox_kernel._send_async(server, tool, arguments), result)


_packages: dict[str, tuple[str, object]] = {}  # generated, imported: where each lies, and which version


def _version(folder: str) -> object:
    # The host makes all files anew. Of the folder, an overlay changes the number from cell to cell.
    try:
        init = os.stat(os.path.join(folder, "__init__.py"))
        return init.st_ino, init.st_mtime_ns
    except OSError:
        return None


def forget_rewritten() -> None:
    """Drops imported packages that the host has written again, so that the next import gets them."""
    for package, (folder, version) in list(_packages.items()):
        if _version(folder) == version:
            continue
        del _packages[package]
        for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
            del sys.modules[name]
        parent, _, child = package.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(child, None)
        importlib.invalidate_caches()


def _note_package(run: Any) -> None:
    package = run.__module__.rpartition(".")[0]
    if package and package not in _packages:
        folder = os.path.dirname(run.__code__.co_filename)
        _packages[package] = (folder, _version(folder))


def coroutine(run: _F) -> _F:
    """The run() of a module whose run() is a coroutine function: itself."""
    _note_package(run)
    return run


def asynchronous(run: Callable[_P, _R]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """The awaitable form of a module's run()."""
    _note_package(run)

    @functools.wraps(run)
    async def run_async(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        token = _awaiting.set(True)
        try:
            pending: Any = run(*args, **kwargs)
        finally:
            _awaiting.reset(token)
        return await pending

    run_async.__name__ = run_async.__qualname__ = "run_async"
    return run_async
