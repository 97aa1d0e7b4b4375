"""A function's signature as a capability: the schemas to publish, and the values to call the function with.

Type hints are the schema. A parameter annotated `Call` (or just named `call`) gets the
envelope, one annotated `Emit` (or just named `emit`) the emitter; neither is an argument.
A parameter annotated `list[Part]`, of any name, gets the call's attachments.
A function that takes only task, context and attachments gets the envelope's input as it is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from a2a_fabric.core.call import Attachment, Call, Input
from a2a_fabric.core.content import ATTACHMENTS, check_attachments, parts_from_input
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.part import Part
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result

_REF = "#/$defs/{name}"


def schema_from_type(kind: Any) -> dict[str, Any]:
    """The schema of a type. Raises TypeError for a type that JSON cannot carry."""
    (schema,), definitions = msgspec.json.schema_components([kind], ref_template=_REF)
    if "$ref" in schema:
        schema, definitions = _inline_reference(schema["$ref"], definitions)
    return {**schema, "$defs": definitions} if definitions else schema


def _inline_reference(ref: str, definitions: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    own_name = ref.rpartition("/")[2]
    is_recursive = ref.encode() in msgspec.json.encode(definitions)
    remaining = {name: schema for name, schema in definitions.items() if name != own_name or is_recursive}
    return definitions[own_name], remaining


def result_schema_from_hint(returns: Any) -> dict[str, Any] | None:
    """The schema of the object that a returned value becomes; None if the hint does not describe it."""
    if returns in (Result, Part) or Part in get_args(returns):
        return None
    try:
        schema = schema_from_type(returns)
    except TypeError:
        return None
    kind = schema.get("type")
    if kind == "object":
        return schema if "properties" in schema else None
    if not isinstance(kind, str) or kind == "null":
        return None
    definitions = schema.pop("$defs", None)
    key = "answer" if kind == "string" else "result"
    wrapped = {"type": "object", "properties": {key: schema}, "required": [key]}
    return {**wrapped, "$defs": definitions} if definitions else wrapped


Function = Callable[..., Any]

_ENVELOPE = frozenset({"task", "context", ATTACHMENTS})
_ERROR_LOCATION = re.compile(r"(?P<what>.*) - at `\$\.?(?P<where>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`")
_NAMED_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters of one function, and how JSON values are bound to them."""

    arguments: type[msgspec.Struct]
    takes_call: str | None  # the parameter's name
    takes_emit: str | None
    takes_parts: str | None  # the parameter's name; its argument is always `attachments`
    takes_rest: bool  # the function has **keywords

    @property
    def names(self) -> tuple[str, ...]:
        return self.arguments.__struct_fields__

    @property
    def takes_attachments(self) -> bool:
        """Whether the function receives attachments."""
        return ATTACHMENTS in self.names or self.takes_call is not None or self.takes_rest

    @property
    def schema(self) -> dict[str, Any] | None:
        """The published input schema; None for a function that takes task and context as they are."""
        names = set(self.names)
        if names <= _ENVELOPE and names & {"context", ATTACHMENTS}:
            return None
        schema = schema_from_type(self.arguments)
        schema.pop("title", None)
        return schema

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments for these JSON values. Raises BadInput with the name of a wrong one."""
        try:
            decoded = msgspec.convert(arguments, self.arguments, str_keys=True)
        except msgspec.ValidationError as exc:
            raise _argument_error(str(exc)) from exc
        values = {name: value for name in self.names if (value := getattr(decoded, name)) is not UNSET}
        if self.takes_rest:
            values |= {name: value for name, value in arguments.items() if name not in self.names}
        if self.takes_parts and ATTACHMENTS in values:
            call_input = Input(attachments=tuple(values.pop(ATTACHMENTS) or ()))
            check_attachments(call_input)
            values[self.takes_parts] = list(parts_from_input(call_input))
        return values


def read_parameters(function: Function) -> Parameters:
    """Read a function's signature. Raises TypeError with the parameter that cannot be an argument, and the reason."""
    hints = _read_hints(function)
    signature = inspect.signature(function)
    call = emit = parts = None
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in _iterate_named(function, signature):
        hint = hints.get(parameter.name, Any)
        if _is_special(parameter, hint, "call", Call):
            call = parameter.name
        elif _is_special(parameter, hint, "emit", Emit):
            emit = parameter.name
        elif _is_parts(hint):
            if parts is not None or ATTACHMENTS in signature.parameters.keys() - {parameter.name}:
                raise TypeError(f"{_qualified_name(function)}: only one parameter can take what is attached to a call")
            parts = parameter.name
            fields.append(_field(function, parameter.replace(name=ATTACHMENTS), list[Attachment]))
        else:
            fields.append(_field(function, parameter, hint))
    takes_rest = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True)
    return Parameters(arguments=arguments, takes_call=call, takes_emit=emit, takes_parts=parts, takes_rest=takes_rest)


def read_return_hint(function: Function) -> Any:
    return _read_hints(function).get("return", Any)


def _read_hints(function: Function) -> dict[str, Any]:
    is_plain = inspect.isroutine(function) or inspect.isclass(function)
    try:
        return get_type_hints(function if is_plain else type(function).__call__, include_extras=True)
    except NameError as exc:
        raise TypeError(f"{_qualified_name(function)}: a type hint cannot be resolved: {exc}") from exc


def _iterate_named(function: Function, signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    for parameter in signature.parameters.values():
        if parameter.kind in _NAMED_KINDS:
            yield parameter
        elif parameter.kind is not parameter.VAR_KEYWORD:
            raise TypeError(f"{_qualified_name(function)}: arguments come by name, so '{parameter}' can never be given")


def _is_special(parameter: inspect.Parameter, hint: Any, name: str, kind: Any) -> bool:
    return hint == kind or (parameter.name == name and hint is Any)


def _is_parts(hint: Any) -> bool:
    """`list[Part]`, or the same as a sequence, or with `| None`."""
    kinds = [hint, *get_args(hint)] if get_origin(hint) in (Union, UnionType) else [hint]
    return any(get_origin(kind) in (list, Sequence) and get_args(kind) == (Part,) for kind in kinds)


def _field(function: Function, parameter: inspect.Parameter, hint: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    try:
        schema_from_type(hint)
    except TypeError as exc:
        detail = str(exc).splitlines()[-1]
        raise TypeError(
            f"{_qualified_name(function)}: parameter '{parameter.name}' cannot come from JSON: {detail}"
        ) from exc
    default = parameter.default
    if default is parameter.empty:
        return parameter.name, hint
    if default is None:
        return parameter.name, Union[hint, None], None  # noqa: UP007  # `|` is not defined for every hint
    if isinstance(default, str | int | float) and type(default) in (str, int, float, bool):
        return parameter.name, hint, default
    # Left out of the call, so that the function's own default applies.
    return parameter.name, Union[hint, UnsetType], UNSET  # noqa: UP007


def _argument_error(message: str) -> BadInput:
    if missing := _MISSING.fullmatch(message):
        return BadInput(f"Argument '{missing['name']}' is missing", argument=missing["name"])
    if location := _ERROR_LOCATION.fullmatch(message):
        return BadInput(f"Argument '{location['where']}' is wrong: {location['what']}", argument=location["where"])
    return BadInput(f"The arguments are wrong: {message}")


def _qualified_name(function: Function) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
