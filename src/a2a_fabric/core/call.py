"""The canonical envelope: what every door builds and every runtime receives."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.part import AnyJSON, PartKind
from a2a_fabric.core.question import Answers
from a2a_fabric.core.trace import Trace

AuthMode = Literal["psk", "passport", "mtls", "jwt", "oauth2", "api_key", "none"]
Format = Literal["text", "json", "toolcalls"]

DEFAULT_TIMEOUT_MS = 60_000


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
    """Content that comes with the words: `file` is base64, `url` a link, `data` any JSON. See `core.content`."""

    type: Literal["file", "url", "data"]
    content: AnyJSON = None
    mime_type: str | None = None
    name: str | None = None
    kind: PartKind | msgspec.UnsetType = msgspec.UNSET  # if the media type does not say it
    meta: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class Target(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    capability: str
    timeout_ms: int = DEFAULT_TIMEOUT_MS


class Input(msgspec.Struct, frozen=True, kw_only=True):
    task: str = ""
    context: dict[str, Any] = {}
    attachments: tuple[Attachment, ...] = ()
    arguments: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET  # for the capability that routing asks next


class ResponseForm(msgspec.Struct, frozen=True, kw_only=True):
    stream: bool = False
    format: Format = "text"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to one capability. Its encoding is the envelope of document 001.

    With `answers` it goes on where an earlier call met a question. Calls of one
    conversation reach the same session of agents that keep one. A call that came over
    other nodes says which (`core.delegation`), and whom the last of them speaks for.
    """

    trace: Trace
    auth: Principal
    target: Target
    input: Input
    response: ResponseForm = ResponseForm()
    answers: Answers | msgspec.UnsetType = msgspec.UNSET
    conversation_id: str | msgspec.UnsetType = msgspec.UNSET
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    on_behalf_of: Principal | msgspec.UnsetType = msgspec.UNSET  # as that node says; it allows nothing here
    any_agent: bool | msgspec.UnsetType = msgspec.UNSET  # the caller named a capability only, and `target` was chosen
