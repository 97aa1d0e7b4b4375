"""An author's function as a capability: the schemas to publish, the values to call it with, and how it is run.

Type hints are the schema. A parameter annotated `Call` (or just named `call`) gets the
envelope, one annotated `Emit` (or just named `emit`) the emitter; neither is an argument.
A parameter annotated `list[Part]`, of any name, gets the call's attachments.
A function that takes only task, context and attachments gets the envelope's input as it is.

A function is plain, async, a generator or an async generator. What it yields becomes events;
what it returns (or yields as its last object) is the result. Content that is more than JSON is
a `Part` or a list of them: returned, it is the answer; yielded, it is an artifact and is added
to the answer in the end. Plain functions and generators run in threads, so they never block the loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import re
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from a2a_fabric.core.call import (
    ATTACHMENTS,
    Attachment,
    Call,
    CallerEmitter,
    Emit,
    Input,
    check_attachments,
    parts_from_input,
    result_from_parts,
)
from a2a_fabric.core.errors import BadInput, UpstreamFailed
from a2a_fabric.core.result import Event, Part, Result, artifact, to_json_object, token
from a2a_fabric.core.threads import run_in_worker_thread

Function = Callable[..., Any]

TEXT_LIMIT = 16 * 1024 * 1024  # characters of yielded text that are kept, in case the function returns no result

_END = object()
_EVENTS_PER_YIELD = 32  # events without a pause
_REF = "#/$defs/{name}"
_ENVELOPE = frozenset({"task", "context", ATTACHMENTS})
_ERROR_LOCATION = re.compile(r"(?P<what>.*) - at `\$\.?(?P<where>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`")
_NAMED_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


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


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
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


def is_async(function: Function) -> bool:
    """Whether the function can be called inside the event loop without blocking it."""
    return any(
        check(candidate)
        for candidate in (function, getattr(function, "__call__", None))  # noqa: B004  # the method, not callability
        for check in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    )


def is_generator(function: Function) -> bool:
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


async def run_function(function: Function, values: dict[str, Any], emit: Emit, *, is_async: bool) -> Result:
    """Call the function and wait for its end. Its exceptions are passed on unchanged."""
    produced = function(**values) if is_async else await run_in_worker_thread(function, **values)
    if inspect.isawaitable(produced):
        produced = await produced
    if inspect.isgenerator(produced):
        produced = _iterate_in_threads(produced)
    if inspect.isasyncgen(produced):
        async with aclosing(produced):
            return await _collect(produced, emit)
    return to_result(produced)


def to_result(value: Any) -> Result:
    if isinstance(value, Result):
        return value
    if isinstance(value, Part):
        return result_from_parts([value])
    if isinstance(value, list | tuple) and value and all(isinstance(each, Part) for each in value):
        return result_from_parts(value)
    try:
        return Result(data=to_json_object(msgspec.to_builtins(value, str_keys=True)))
    except (TypeError, RecursionError) as exc:
        raise UpstreamFailed(f"The agent answered with something that is not JSON: {exc}") from exc


def to_event(item: Any) -> Event:
    """The event for a value passed to `emit`, which is an event or text."""
    if isinstance(item, Event):
        return item
    if isinstance(item, str):
        return token(item)
    raise TypeError(f"An event or a str can be emitted, not {type(item).__name__}")


async def _collect(items: AsyncIterator[Any], emit: Emit) -> Result:
    """Emit each item. The last object is the result, earlier ones are artifacts; without objects, the text is."""
    answer: Result | None = None
    text_buffer = _TextBuffer()
    parts: list[Part] = []
    async for item in items:
        if isinstance(item, str | Event):
            event = to_event(item)
            text_buffer.add(event)
            await emit(event)
        elif isinstance(item, Part):
            parts.append(item)
            await emit(artifact(_to_builtins(item)))
        elif item is not None:
            if answer is not None:
                await emit(artifact(answer.data))
            answer = to_result(item)
    if answer is None:
        answer = Result(data={"answer": text_buffer.text} if text_buffer.text or not parts else {})
    return replace(answer, parts=(*parts, *answer.parts)) if parts else answer


def _to_builtins(part: Part) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = msgspec.to_builtins(part, str_keys=True)
    except (TypeError, RecursionError) as exc:
        raise UpstreamFailed(f"The agent made a part that is not JSON: {exc}") from exc
    return plain


class _TextBuffer:
    """The text of a stream, kept as long as it may become the result."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0

    def add(self, event: Event) -> None:
        if event.kind == "token" and self._size <= TEXT_LIMIT:
            text = str(event.data.get("text", ""))
            self._parts.append(text)
            self._size += len(text)

    @property
    def text(self) -> str:
        if self._size > TEXT_LIMIT:
            raise UpstreamFailed(f"The agent streamed more than {TEXT_LIMIT} characters and returned no result")
        return "".join(self._parts)


async def _iterate_in_threads(generator: Generator[Any, Any, Any]) -> AsyncIterator[Any]:
    """A plain generator, each step in a thread."""
    steps = _ThreadedGenerator(generator)
    try:
        while (item := await run_in_worker_thread(steps.next)) is not _END:
            yield item
    finally:
        await asyncio.to_thread(steps.close)


class _ThreadedGenerator:
    """Closing does not wait for a running step: the thread of that step closes the generator afterwards."""

    def __init__(self, generator: Generator[Any, Any, Any]) -> None:
        self._generator = generator
        self._running = threading.Lock()
        self._is_over = False

    def next(self) -> Any:
        try:
            with self._running:
                return next(self._generator, _END)
        finally:
            if self._is_over:
                self.close()

    def close(self) -> None:
        self._is_over = True
        if self._running.acquire(blocking=False):
            try:
                self._generator.close()
            finally:
                self._running.release()


class YieldingEmitter(CallerEmitter):
    """Yields to the event loop regularly, so that code that never waits can still be cancelled."""

    _events_since_yield = 0

    async def __call__(self, event: Event) -> None:
        await super().__call__(event)
        self._events_since_yield += 1
        if self._events_since_yield >= _EVENTS_PER_YIELD:
            self._events_since_yield = 0
            await asyncio.sleep(0)


class Emitter:
    """Accepts events and text; awaited by async functions."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def __call__(self, item: Any) -> Any:
        return self._send(to_event(item))

    async def _send(self, event: Event) -> None:
        """Always a coroutine, because an author may make a task of it."""
        await self._emit(event)

    def close(self) -> None:
        """The call has ended, so no further events are accepted."""


class ThreadEmitter(Emitter):
    """Blocks its thread until the event is delivered; raises CancelledError if the call has ended."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._loop = asyncio.get_running_loop()
        self._delivering: concurrent.futures.Future[None] | None = None
        self._is_closed = False

    def __call__(self, item: Any) -> None:
        event = to_event(item)
        if not self._is_closed:
            self._delivering = asyncio.run_coroutine_threadsafe(self._deliver(event), self._loop)
        if self._is_closed or self._delivering is None:
            raise concurrent.futures.CancelledError("The call was cancelled")
        self._delivering.result()

    async def _deliver(self, event: Event) -> None:
        if not self._is_closed:
            await self._emit(event)

    def close(self) -> None:
        self._is_closed = True
        if self._delivering is not None:
            self._delivering.cancel()
