"""A call: what every door builds, every step passes on and every runtime receives.

An agent keeps its memory of a conversation under the id that it is sent. Two callers may choose
the same id, by chance or on purpose, so runtimes send `derive_conversation_id(call)`, which is
bound to the caller. This needs no secret and no state: the same caller gets the same id on every
node and after every restart, and no caller can name an id that is bound to another caller. The
caller's own id stays readable after the first dot."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Literal

import msgspec

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.part import AnyJSON, PartKind
from a2a_fabric.core.question import Answers
from a2a_fabric.core.trace import Trace

AuthMode = Literal["psk", "passport", "mtls", "jwt", "oauth2", "api_key", "none"]
Format = Literal["text", "json", "toolcalls"]

DEFAULT_TIMEOUT_MS = 60_000
MAX_CONVERSATION_ID = 256  # characters; most nodes and platforms take no longer id
_CALLER_DIGITS = 32  # hexadecimal digits, 128 bits


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who is calling, on whose behalf, with which scopes. It is the envelope's `auth` block."""

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


class Attachment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content that comes with the task: `file` is base64, `url` a link, `data` any JSON. See `core.content`."""

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
    other nodes carries their entries in `delegation_chain` (see `core.delegation`).
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


def owner_from_principal(principal: Principal) -> str:
    """The key under which a principal's jobs, registrations and conversations are found again."""
    return f"{principal.mode}:{principal.principal_id}" if principal.principal_id else f"{principal.mode}:"


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
