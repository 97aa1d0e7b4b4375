"""`Operation`: a name, a struct of arguments, and a handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import to_portable_schema
from a2a_fabric.core.call import Emit, Principal
from a2a_fabric.core.errors import BadInput, OutOfScope
from a2a_fabric.core.policy import has_scope_kind
from a2a_fabric.core.propagation import MaybeChain, Trace, continue_trace
from a2a_fabric.core.result import Answers, OriginalMessage, Result
from a2a_fabric.core.scopes import is_known_scope
from a2a_fabric.jobs.settings import JobOptions

A = TypeVar("A")

ADMIN_PREFIX = "fabric.admin."  # of operations for operators (`admin`), which are no tools
OBJECT_SCHEMA: dict[str, Any] = {"type": "object"}


class TraceRef(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's trace, which the call continues."""

    trace_id: str
    span_id: str | None = None
    parent_span_id: str | None = None
    sampled: bool = True
    sign: bool = False  # `POST /mcp/call` answers with a signature in `trace`; other doors have no place for one

    def to_trace(self) -> Trace:
        """Raises BadInput."""
        try:
            sampled = msgspec.UNSET if self.sampled else False
            return continue_trace(self.trace_id, self.span_id or self.parent_span_id, sampled=sampled)
        except ValueError as exc:
            raise BadInput(f"Bad trace: {exc}", field="trace") from exc


class TracedArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments that every operation accepts."""

    trace: Annotated[TraceRef | None, Meta(description="Continue this trace.")] = None


class OperationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, its trace, whether it receives events, and its answers to an agent's questions.

    Doors set `job_options` to make the call a job; `after` is the last event that a returning reader has;
    `delegation_chain` is that of the message or its header, for calls whose arguments have none.
    """

    trace: Trace
    principal: Principal
    stream: bool = False
    answers: Answers | msgspec.UnsetType = msgspec.UNSET
    job_options: JobOptions | None = None
    after: int | None = None
    delegation_chain: MaybeChain = msgspec.UNSET
    original: OriginalMessage | msgspec.UnsetType = msgspec.UNSET  # what the door says to a runtime of its protocol


class PreparedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request; the door adds the caller and runs it."""

    run: Callable[[OperationRequest, Emit], Awaitable[Result]]
    stream: bool = False
    trace: TraceRef | None = None
    is_call: bool = False  # the pipeline logs calls, the door logs other operations
    after: int | None = None  # for event streams: the number of the last event that the reader has


_PATTERN_DESCRIPTIONS = {  # by a part of the pattern
    "A-Za-z0-9._-": "letters, digits, '.', '_' and '-', the first one a letter or a digit",
    "x00-": "one line without control characters",
}


class Operation(Generic[A]):
    """One `fabric.*` operation.

    `scopes` are kinds of scopes, of which a caller needs one; with none, the handler itself shows and does only what
    this caller's scopes allow.
    """

    def __init__(
        self,
        name: str,
        description: str,
        arguments: type[A],
        handler: Callable[[A, OperationRequest, Emit], Awaitable[Result]],
        *,
        scopes: tuple[str, ...],
        output: dict[str, Any] = OBJECT_SCHEMA,
        is_call: bool = False,
        read_only: bool = True,
    ) -> None:
        self.name = name
        self.description = description
        self.output_schema = output
        self.scopes = scopes
        self.is_call = is_call
        self.read_only = read_only
        self._arguments_type: Any = arguments
        self._handler = handler
        self._decoder: msgspec.json.Decoder[A] | None = None  # built by the first request: most are never used
        self._has_stream, self._has_after = hasattr(arguments, "stream"), hasattr(arguments, "after")

    @property
    def input_schema(self) -> dict[str, Any]:
        return build_plain_schema(self._arguments_type)

    def rename(self, name: str) -> Operation[A]:
        """The same operation under another name."""
        return Operation(
            name,
            self.description,
            self._arguments_type,
            self._handler,
            scopes=self.scopes,
            output=self.output_schema,
            is_call=self.is_call,
            read_only=self.read_only,
        )

    def is_open_to(self, principal: Principal) -> bool:
        return not self.scopes or has_scope_kind(principal, *self.scopes)

    def prepare(self, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        """Decode the arguments straight into their struct; raises Forbidden, and BadInput naming the field."""
        if self.scopes and not self.is_open_to(principal):
            needed = " or ".join(f"`{kind}`" for kind in self.scopes)
            scope = self.scopes[0] if is_known_scope(self.scopes[0]) else f"{self.scopes[0]}:*"
            raise OutOfScope(f"{self.name} needs a scope of the kind {needed}", scope, tool=self.name)
        if self._decoder is None:
            self._decoder = msgspec.json.Decoder(self._arguments_type)
        arguments = decode_arguments(self._decoder, raw, self.name)

        fields: Any = arguments
        handler = self._handler

        def run(request: OperationRequest, emit: Emit) -> Awaitable[Result]:  # cheaper to call than a `partial`
            return handler(arguments, request, emit)

        return PreparedOperation(
            run=run,
            stream=fields.stream if self._has_stream else False,
            trace=fields.trace,
            is_call=self.is_call,
            after=fields.after if self._has_after else None,
        )


def decode_arguments(decoder: msgspec.json.Decoder[A], raw: msgspec.Raw, operation: str) -> A:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as exc:
        text = _describe_pattern(str(exc))
        location = text.partition(" - at `$")[2]
        field = location.removeprefix(".").removesuffix("`") or None
        raise BadInput(f"Bad arguments for {operation}: {text}", tool=operation, field=field) from exc
    except (msgspec.DecodeError, RecursionError, ValueError) as exc:
        raise BadInput(f"Bad arguments for {operation}: {str(exc)[:200]}", tool=operation) from exc


def _describe_pattern(message: str) -> str:
    """Replace the regular expression in a message by a description."""
    before, _, after = message.partition("matching regex ")
    pattern, _, location = after.partition(" - at ")
    description = next((description for piece, description in _PATTERN_DESCRIPTIONS.items() if piece in pattern), None)
    return f"{before}of {description} - at {location}" if description and location else message


@cache
def build_plain_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a struct, with its top level inlined. Callers must not change it."""
    schema = to_portable_schema(msgspec.json.schema(kind))
    definitions = schema.get("$defs", {})
    top = definitions.pop(kind.__name__, schema) if "$ref" in schema else schema
    return {**top, "$defs": definitions} if definitions else dict(top)
