"""A call: what every door builds, every step passes on and every runtime receives.

The one shape of the gateway is a handler: it takes a call, emits events, returns the result. A
runtime is a handler. A step wraps a handler. A door calls a handler. So the life of a call is the
list handed to `compose`, read from top to bottom.

An agent keeps its memory of a conversation under the id that it is sent. Two callers may choose
the same id, by chance or on purpose, so runtimes send `derive_conversation_id(call)`, which is
bound to the caller. This needs no secret and no state: the same caller gets the same id on every
node and after every restart, and no caller can name an id that is bound to another caller. The
caller's own id stays readable after the first dot.

Arguments are bound the same way for every door. A capability with an input schema gets
`context` as its arguments. `task` fills the property called `task`, or else the only required
string property that is still missing; attachments fill a list called `attachments`, if the
schema has one. A capability without a schema gets task, context and attachments as they are.

Attachments are files, links and data in the envelope; most other protocols have media parts
instead. A runtime takes the parts of a call, sends what its protocol can carry and adds a note
for the rest. A door turns the parts of a request into attachments, and the parts of a result
into its own format."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from types import FunctionType, MethodType
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote

import msgspec

from a2a_fabric.core.agent import Capability, TrustTier
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.propagation import (
    DELEGATION_HEADER,
    TRACE_META_KEY,
    Trace,
    chain_to_metadata,
    encode_chain_header,
    format_traceparent,
)
from a2a_fabric.core.result import Answers, AnyJSON, Event, OriginalMessage, Part, PartKind, Result
from a2a_fabric.core.rules import Entry
from a2a_fabric.core.view import View

AuthMode = Literal["psk", "passport", "mandate", "mtls", "jwt", "oauth2", "api_key", "none"]
Format = Literal["text", "json", "toolcalls"]

DEFAULT_TIMEOUT_MS = 60_000
MAX_CONVERSATION_ID = 256  # characters; most nodes and platforms take no longer id
_NO_HEADERS: Mapping[str, str] = {}
_DELEGATED_MODES = ("passport", "mandate")
_CALLER_DIGITS = 32  # hexadecimal digits, 128 bits


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, on whose behalf it calls, and its scopes. It is the envelope's `auth` block, but for what
    `hide_private` leaves out.

    `principal_id` is who answers for the call; with a passport or a mandate, `delegate_id` is the agent that calls for
    it. `narrowed_by` is set only where `scp` is: it comes from a second credential of the request.
    """

    mode: AuthMode = "none"
    principal_id: str | None = None
    agent_passport_id: str | None = None
    signature: str | None = None
    key_id: str | None = None
    delegate_id: str | None = None
    mandate_id: str | None = None
    cog_id: str | None = None
    cap: tuple[str, ...] | None = None
    scp: tuple[str, ...] | None = None
    trust: TrustTier = "public"
    delegated_by: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET  # earlier delegates, who passed a mandate on
    actors: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET  # of a signed identity: the principal, then its actors
    mandate: str | msgspec.UnsetType = msgspec.UNSET  # the mandate itself, to be passed on; agents never see it here
    narrowed_by: tuple[tuple[str, ...], ...] | msgspec.UnsetType = msgspec.UNSET  # further scopes that must allow, too
    views: tuple[View, ...] | msgspec.UnsetType = msgspec.UNSET  # the caller sees only what all of them include
    entry: Entry | msgspec.UnsetType = msgspec.UNSET  # set where the node has rules (`policy`), or is in a mesh


def has_rules(principal: Principal) -> bool:
    """Whether rules of the operator hold for this caller now."""
    return bool(principal.entry) and principal.entry.rules is not None  # type: ignore[union-attr]  # it is set


def hide_private(principal: Principal) -> Principal:
    """The principal as agents get it. Views and rules name agents and tools that are no business of theirs, and a
    mandate could be used by everybody who has it.
    """
    if principal.views or principal.mandate or principal.entry:
        return msgspec.structs.replace(principal, views=msgspec.UNSET, mandate=msgspec.UNSET, entry=msgspec.UNSET)
    return principal


class Attachment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content that comes with the task: `file` is base64, `url` a link, `data` any JSON."""

    type: Literal["file", "url", "data"]
    content: AnyJSON = None
    mime_type: str | None = None
    name: str | None = None
    kind: PartKind | msgspec.UnsetType = msgspec.UNSET  # set where the media type does not imply it
    meta: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class Target(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    capability: str
    timeout_ms: int = DEFAULT_TIMEOUT_MS


class Input(msgspec.Struct, frozen=True, kw_only=True):
    task: str = ""
    context: dict[str, Any] = {}
    attachments: tuple[Attachment, ...] = ()
    arguments: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET  # bound to the capability of the attempt by routing


class ResponseForm(msgspec.Struct, frozen=True, kw_only=True):
    stream: bool = False
    format: Format = "text"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to one capability. Its JSON encoding is the envelope of the Fabric protocol.

    With `answers` it continues an earlier call that ended with questions. Calls with the same
    `conversation_id` reach the same session of an agent that keeps sessions. A call that came over
    other nodes carries their entries in `delegation_chain` (see `core.propagation`).
    """

    trace: Trace
    auth: Principal
    target: Target
    input: Input
    response: ResponseForm = ResponseForm()
    answers: Answers | msgspec.UnsetType = msgspec.UNSET
    conversation_id: str | msgspec.UnsetType = msgspec.UNSET
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    on_behalf_of: Principal | msgspec.UnsetType = msgspec.UNSET  # as the calling node reports it; it grants nothing
    any_agent: bool | msgspec.UnsetType = msgspec.UNSET  # the caller named only a capability; the node chose `target`
    original: OriginalMessage | msgspec.UnsetType = msgspec.UNSET  # for the target alone, not for a fallback


def make_propagation_headers(call: Call, others: Mapping[str, str] = _NO_HEADERS) -> dict[str, str]:
    """HTTP headers with the call's trace and delegation chain, after the `others`."""
    if not call.delegation_chain:
        return {**others, "traceparent": format_traceparent(call.trace)}
    return {
        **others,
        "traceparent": format_traceparent(call.trace),
        DELEGATION_HEADER: encode_chain_header(call.delegation_chain),
    }


def make_propagation_metadata(call: Call) -> dict[str, Any]:
    """The same for the metadata of a message, in protocols that have it."""
    return {TRACE_META_KEY: format_traceparent(call.trace), **chain_to_metadata(call.delegation_chain)}


def owner_from_principal(principal: Principal) -> str:
    """The key under which a principal's jobs, registrations and conversations are found again."""
    return f"{principal.mode}:{caller_name(principal) or ''}"


def caller_name(principal: Principal) -> str | None:
    """The name of the caller among others. An agent that calls for a principal has a name, and so an inbox, jobs and
    conversations, of its own: other agents of the principal may have been given other scopes.
    """
    if principal.mode not in _DELEGATED_MODES or principal.delegate_id is None:
        return principal.principal_id
    issuer, _, subject = (principal.principal_id or "").partition(":")
    # Names of issuers have no `~`. A delegate chooses the names of those to whom it passes its mandate on, so its own
    # name comes before theirs.
    names = (issuer, *(principal.delegated_by or ()), principal.delegate_id)
    return f"{'~'.join(quote(name, safe='').replace('~', '%7E') for name in names)}:{subject}"


def derive_conversation_id(call: Call) -> str | None:
    """The id that the agent gets for the call's conversation; None if the call belongs to none."""
    return bind_to_caller(call, call.conversation_id) if call.conversation_id else None


def bind_to_caller(call: Call, name: str) -> str:
    """The same text only for the same name from the same caller.

    A node that calls on behalf of others counts as a different caller for each of them.
    """
    caller = owner_from_principal(call.auth)
    if call.on_behalf_of:
        caller = f"{caller} for {owner_from_principal(call.on_behalf_of)}"
    bound_id = f"{_caller_prefix(caller)}.{name}"
    return bound_id if len(bound_id) <= MAX_CONVERSATION_ID else _digest(bound_id)


@lru_cache(maxsize=4096)
def _caller_prefix(caller: str) -> str:
    return _digest(caller)[:_CALLER_DIGITS]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


F = TypeVar("F", bound=Callable[..., Any])
Emit = Callable[[Event], Awaitable[None]]
Handler = Callable[[Call, Emit], Awaitable[Result]]
Step = Callable[[Handler], Handler]


def bind_call(function: F) -> F:
    """The same, as a function or a method: CPython calls an object with `__call__` by a detour through its type."""
    is_bound = isinstance(function, FunctionType | MethodType)
    return function if is_bound else cast(F, getattr(function, "__call__"))  # noqa: B004, B009  # mypy knows no attribute


def compose(steps: Sequence[Step], last: Handler) -> Handler:
    """Wrap `last` in `steps`, the first one outermost."""
    last = bind_call(last)
    for step in reversed(steps):
        last = step(last)
    return last


class _Delivered:
    """Awaiting it takes no step of the event loop, and it can be awaited again and again."""

    __slots__ = ()

    def __await__(self) -> Generator[None]:
        yield from ()


# What an emitter may return for an event that has left already, so that a stream needs no coroutine for each event.
DELIVERED: Awaitable[None] = _Delivered()


async def ignore_event(event: Event) -> None:
    """The emitter for a caller that wants only the result."""


class CallerEmitter:
    """An emitter that remembers what the caller's own emitter raised, to tell it from failures of the agent."""

    def __init__(self, emit: Emit) -> None:
        self.failure: BaseException | None = None  # why the caller no longer receives events
        self._emit = emit

    @property
    def is_caller_gone(self) -> bool:
        return self.failure is not None

    async def __call__(self, event: Event) -> None:
        try:
            await self._emit(event)
        except BaseException as exc:
            self.failure = exc
            raise


ATTACHMENTS = "attachments"


def bind_arguments(capability: Capability | None, call_input: Input) -> dict[str, Any]:
    """Arguments that routing has already bound are kept, since routing uses the current catalog."""
    if call_input.arguments is not msgspec.UNSET:
        return call_input.arguments
    schema = capability.input_schema if capability else None
    if schema is None:
        return _arguments_without_schema(call_input)
    arguments = dict(call_input.context)
    if call_input.task and (task_property := _find_task_property(schema, arguments)) is not None:
        arguments[task_property] = call_input.task
    if call_input.attachments and ATTACHMENTS not in arguments and accepts_attachments(schema):
        arguments[ATTACHMENTS] = msgspec.to_builtins(list(call_input.attachments))
    return arguments


def accepts_attachments(schema: dict[str, Any] | None) -> bool:
    """Whether a capability with this schema has a place for what comes with the words: a list of objects."""
    if schema is None:
        return True
    properties = schema.get("properties")
    attachment_schema = properties.get(ATTACHMENTS) if isinstance(properties, dict) else None
    if not isinstance(attachment_schema, dict):
        return attachment_schema is True
    items = attachment_schema.get("items", True)
    item_type = items.get("type", "object") if isinstance(items, dict) else "object" if items else "nothing"
    return _allows_type(attachment_schema.get("type", "array"), "array") and _allows_type(item_type, "object")


def _allows_type(types: Any, type_name: str) -> bool:
    return type_name in types if isinstance(types, list) else bool(types == type_name)


def _arguments_without_schema(call_input: Input) -> dict[str, Any]:
    arguments: dict[str, Any] = {"task": call_input.task, "context": call_input.context}
    if call_input.attachments:
        arguments[ATTACHMENTS] = msgspec.to_builtins(list(call_input.attachments))
    return arguments


def _find_task_property(schema: dict[str, Any], arguments: dict[str, Any]) -> str | None:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return None
    if "task" in properties:
        return None if "task" in arguments else "task"
    missing = [
        name for name in schema.get("required", ()) if name not in arguments and _is_string_schema(properties.get(name))
    ]
    return missing[0] if len(missing) == 1 else None


def _is_string_schema(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string"  # `true` is a schema too


KIND_KEY = "a2a-fabric/kind"  # the original kind of content that a protocol has no name for

_KIND_BY_MEDIA_TYPE: dict[str, PartKind] = {"image": "image", "audio": "audio", "video": "video"}
_BASE64_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def part_kind_from_mime_type(mime_type: str | None) -> PartKind:
    """Of bytes or a link of this media type."""
    return _KIND_BY_MEDIA_TYPE.get((mime_type or "").partition("/")[0].lower(), "file")


def parts_from_input(call_input: Input) -> tuple[Part, ...]:
    """All that came with the words."""
    return tuple(part_from_attachment(attachment) for attachment in call_input.attachments)


def part_from_attachment(attachment: Attachment) -> Part:
    content, media = attachment.content, attachment.mime_type
    kind = attachment.kind if attachment.kind is not msgspec.UNSET else None
    meta = attachment.meta if attachment.meta is not msgspec.UNSET else {}
    common: dict[str, Any] = {"mime_type": media, "name": attachment.name, "meta": meta}
    if attachment.type == "data":
        if isinstance(content, str) and kind in (None, "text", "file"):
            return Part(kind=kind or "text", text=content, **common)
        return Part(kind=kind or "json", data=content, **common)
    if attachment.type == "url":
        return Part(kind=kind or part_kind_from_mime_type(media), url=str(content), **common)
    return Part(kind=kind or part_kind_from_mime_type(media), blob=str(content or ""), **common)


def attachment_from_part(part: Part) -> Attachment:
    """The same content in the envelope; `kind` is said where the media type would not tell it."""
    attachment_type, content = _type_and_content(part)
    implied: PartKind = (
        part_kind_from_mime_type(part.mime_type)
        if attachment_type != "data"
        else "text"
        if isinstance(content, str)
        else "json"
    )
    return Attachment(
        type=attachment_type,
        content=content,
        mime_type=part.mime_type,
        name=part.name,
        kind=msgspec.UNSET if part.kind == implied else part.kind,
        meta=part.meta or msgspec.UNSET,
    )


def _type_and_content(part: Part) -> tuple[Any, Any]:
    if part.url is not None:
        return "url", part.url
    if part.blob is not None:
        return "file", part.blob
    return "data", part.text if part.text is not None else part.data


def check_attachments(call_input: Input) -> None:
    """Raises BadInput naming the first that is not what it says."""
    for number, attachment in enumerate(call_input.attachments):
        path, content = f"{ATTACHMENTS}[{number}].content", attachment.content
        if attachment.type == "file" and not (isinstance(content, str) and is_base64(content)):
            raise BadInput(f"{path} is not base64, as the content of a file must be", field=path)
        if attachment.type == "url" and not (isinstance(content, str) and content):
            raise BadInput(f"{path} is not a URL", field=path)


def is_base64(text: str) -> bool:
    """With padding and nothing else in between. Nothing is decoded, so that it costs little."""
    if len(text) % 4 or not text.isascii():
        return False
    raw = text.encode()
    rest = raw.translate(None, _BASE64_ALPHABET)
    return rest in (b"", b"=", b"==") and raw.endswith(rest)


def join_text(parts: Iterable[Part]) -> str:
    return "\n".join(part.text for part in parts if part.kind == "text" and part.text)


def result_from_parts(parts: Sequence[Part]) -> Result:
    """An answer that is nothing but content: its words are the answer, and words alone need no parts."""
    text = join_text(parts)
    is_plain = len(parts) == 1 and parts[0].kind == "text" and not parts[0].meta
    return Result(data={"answer": text} if text else {}, parts=() if is_plain else tuple(parts))


def describe_unbound_attachments(call_input: Input, arguments: Mapping[str, Any], capability: str) -> tuple[str, ...]:
    """Notes on attachments that are not among the arguments, for agents that get nothing else."""
    if not call_input.attachments or ATTACHMENTS in arguments:
        return ()
    return describe_rejected_parts(parts_from_input(call_input), capability)


def describe_rejected_parts(parts: Iterable[Part], capability: str) -> tuple[str, ...]:
    """A note for each part that the agent has no place for."""
    return tuple(f"{_describe_part(part)} was not sent: '{capability}' takes no attachments" for part in parts)


def describe_unsupported_parts(parts: Iterable[Part], protocol: str) -> tuple[str, ...]:
    """A note for each part that stays behind."""
    return tuple(f"{_describe_part(part)} was not sent: {protocol} cannot carry {part.kind} content" for part in parts)


def _describe_part(part: Part) -> str:
    return f"'{part.name}'" if part.name else f"an attachment of kind {part.kind}"


def add_notes(result: Result, notes: Sequence[str]) -> Result:
    """The result, with what was lost on the way."""
    return msgspec.structs.replace(result, notes=(*result.notes, *notes)) if notes else result
