"""An A2A request, whichever binding it came through: its caller, agent, version and extensions, and its parameters.

A request without a version is a 0.3 request, as the specification says. An agent declares extensions in
`metadata.a2a.extensions` of its manifest; a caller names the extensions it supports in the header `A2A-Extensions`
or in the message. An extension that both name is active for the request, and the reply lists it.

Parameters of every dialect are parsed into one set of structs; unknown fields stay in the raw message. Field names may
also be written in snake case (`task_id` for `taskId`), as JSON of protos allows. Only fields of the protocol are
converted; keys inside free data belong to the sender. Only required fields are checked here.

Messages have structs of their own here, beside those for replies in `protocols.a2a.decode`. A request is refused with
the name of the wrong field (an id that is missing or too long, a negative count), which msgspec reads off the types. A
reply is read as far as it makes sense, and no limit for callers may make it unreadable. One type cannot declare both.
Parts have no such limits, so both directions share `WirePart`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.job import JOB_STATES, JobState, states_from_word
from a2a_fabric.core.propagation import MANDATE_META_KEY, PASSPORT_META_KEY, Trace
from a2a_fabric.core.result import Part
from a2a_fabric.doors.a2a.errors import A2AProtocolError, invalid_params_error
from a2a_fabric.identity.resolver import MessageCredential
from a2a_fabric.protocols.a2a.models import A2APushConfig, A2AVersion, Dialect, WirePart, parse_part

VERSION_HEADER = b"a2a-version"
_VERSION_PATTERN = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d+)?")
SUPPORTED_VERSIONS: tuple[A2AVersion, ...] = ("1.0", "0.3")


def parse_version(value: str | None, supported: tuple[A2AVersion, ...] = SUPPORTED_VERSIONS) -> A2AVersion:
    """Patch versions are ignored. Raises A2AProtocolError."""
    requested = (value or "").strip() or "0.3"
    match = _VERSION_PATTERN.fullmatch(requested)
    for version in supported:
        if match is not None and f"{match[1]}.{match[2]}" == version:
            return version
    raise A2AProtocolError(
        "VERSION_NOT_SUPPORTED",
        f"A2A version '{requested[:32]}' is not supported; supported versions: {', '.join(supported)}",
    )


def is_0_3_request(value: str | None) -> bool:
    """Whether a client that sent this version, or none, expects the error codes of 0.3."""
    requested = (value or "").strip()
    return not requested or requested.startswith("0.")


def require_version(version: A2AVersion, actual: A2AVersion, subject: str) -> None:
    """Raises A2AProtocolError."""
    if version != actual:
        raise A2AProtocolError(
            "VERSION_NOT_SUPPORTED", f"{subject} belongs to A2A {version}: send the header 'A2A-Version: {version}'"
        )


EXTENSION_HEADERS: dict[A2AVersion, bytes] = {"1.0": b"a2a-extensions", "0.3": b"x-a2a-extensions"}
SCHEMAS_EXTENSION = "urn:a2a-fabric:skill-schemas"  # of this gateway: the schemas of the skills, in the card
PROFILE_EXTENSION = "urn:a2a-fabric:agent-profile"  # of this gateway: role, signals and context of an agent
_METADATA_KEY = "a2a"


class A2AExtension(msgspec.Struct, frozen=True, kw_only=True):
    uri: str
    description: str = ""
    required: bool = False
    params: dict[str, Any] = {}


def read_declared_extensions(manifest: Manifest) -> tuple[A2AExtension, ...]:
    """Metadata may hold anything, so values of another form are ignored."""
    section = manifest.metadata.get(_METADATA_KEY)
    try:
        return msgspec.convert(
            section.get("extensions", ()) if isinstance(section, dict) else (), tuple[A2AExtension, ...]
        )
    except msgspec.ValidationError:
        return ()


class ExtensionNegotiation:
    """The extensions of one request. `active` grows: the agent may be chosen only after the headers are read."""

    def __init__(self, requested: str = "") -> None:
        self.active: list[str] = []
        self.requested = tuple(dict.fromkeys(each.strip() for each in requested.split(",") if each.strip()))

    def activate(self, manifest: Manifest, in_message: Iterable[str] = ()) -> None:
        """Activate the extensions of the agent that the header or the message names."""
        requested = {*self.requested, *in_message}
        if requested:
            self.active += [
                each for each in _list_offered_extensions(manifest) if each in requested and each not in self.active
            ]

    def check_required(self, manifest: Manifest, in_message: Iterable[str] = ()) -> None:
        """Raises A2AProtocolError if the agent requires an extension that the request does not name."""
        self.activate(manifest, in_message)
        if _METADATA_KEY not in manifest.metadata:
            return
        requested = {*self.requested, *in_message}
        missing = [
            each.uri for each in read_declared_extensions(manifest) if each.required and each.uri not in requested
        ]
        if missing:
            problem = f"'{manifest.agent_id}' requires these extensions: {', '.join(missing)}"
            raise A2AProtocolError(
                "EXTENSION_SUPPORT_REQUIRED", f"{problem}; name them in A2A-Extensions", uris=" ".join(missing)
            )

    def build_headers(self, version: A2AVersion) -> list[tuple[bytes, bytes]]:
        """The reply header that lists the active extensions."""
        value = ", ".join(each for each in self.active if _is_header_safe(each))
        return [(EXTENSION_HEADERS[version], value.encode())] if value else []


def _list_offered_extensions(manifest: Manifest) -> list[str]:
    """All extensions in the agent's card."""
    has_schemas = any(each.input_schema is not None or each.output_schema is not None for each in manifest.capabilities)
    return [
        *dict.fromkeys(each.uri for each in read_declared_extensions(manifest)),
        *([SCHEMAS_EXTENSION] if has_schemas else []),
    ]


def _is_header_safe(uri: str) -> bool:
    return uri.isascii() and uri.isprintable() and not any(letter in uri for letter in ", ")


class A2ARequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """`agent` is None at the gateway's own address. `last_event_id` is the last event that a returning client has."""

    principal: Principal
    trace: Trace
    agent: Manifest | None = None
    base_url: str = ""  # as this caller reaches the node; empty if not known
    last_event_id: int | None = None
    extensions: ExtensionNegotiation = msgspec.field(default_factory=ExtensionNegotiation)
    delegation_chain: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    dialect: Dialect = "1.0"  # of the request and its reply
    version: A2AVersion = "1.0"  # of the client; the SDK translates 0.3 over gRPC into the dialect of 1.0


FieldShape = Mapping[str, Any]  # the fields whose values have fields of the protocol

FLAT_SHAPE: FieldShape = {}
_AUTHENTICATION_SHAPE: FieldShape = {"authentication": FLAT_SHAPE}
PUSH_SHAPE: FieldShape = {
    **_AUTHENTICATION_SHAPE,
    "pushNotificationConfig": _AUTHENTICATION_SHAPE,
    "config": {**_AUTHENTICATION_SHAPE, "pushNotificationConfig": _AUTHENTICATION_SHAPE},
}
_MESSAGE_SHAPE: FieldShape = {"parts": {"file": FLAT_SHAPE}, "content": {"file": FLAT_SHAPE}}
SEND_SHAPE: FieldShape = {
    "message": _MESSAGE_SHAPE,
    "request": _MESSAGE_SHAPE,
    "configuration": {
        "taskPushNotificationConfig": _AUTHENTICATION_SHAPE,
        "pushNotificationConfig": _AUTHENTICATION_SHAPE,
        "pushNotification": _AUTHENTICATION_SHAPE,
    },
}


def _to_camel_case(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


_CAMEL_NAMES = {
    name: _to_camel_case(name)
    for name in (
        "accepted_output_modes",
        "config_id",
        "context_id",
        "file_with_bytes",
        "file_with_uri",
        "history_length",
        "include_artifacts",
        "media_type",
        "message_id",
        "mime_type",
        "page_size",
        "page_token",
        "push_notification",
        "push_notification_config",
        "push_notification_config_id",
        "reference_task_ids",
        "return_immediately",
        "status_timestamp_after",
        "task_id",
        "task_push_notification_config",
    )
}
_SNAKE_NAMES = frozenset(_CAMEL_NAMES)


def to_camel_fields(value: Any, shape: FieldShape) -> Any:
    """Returns the same object if all names are in camel case, as they nearly always are.

    If a field is there in both spellings, the one in camel case counts.
    """
    return value if _has_camel_fields(value, shape) else _convert_fields(value, shape)


def _has_camel_fields(value: Any, shape: FieldShape) -> bool:
    """Runs for every message: plain loops are several times as fast as `all` with a generator."""
    if isinstance(value, dict):
        if not _SNAKE_NAMES.isdisjoint(value):
            return False
        for name in shape:
            if name in value and not _has_camel_fields(value[name], shape[name]):
                return False
    elif isinstance(value, list):
        for each in value:
            if not _has_camel_fields(each, shape):
                return False
    return True


def _convert_fields(fields: Any, shape: FieldShape) -> Any:
    if isinstance(fields, list):
        return [_convert_fields(each, shape) for each in fields]
    if not isinstance(fields, dict):
        return fields
    converted = {_CAMEL_NAMES[name]: value for name, value in fields.items() if name in _SNAKE_NAMES}
    merged = {**converted, **{name: value for name, value in fields.items() if name not in _SNAKE_NAMES}}
    return {name: _convert_fields(value, shape[name]) if name in shape else value for name, value in merged.items()}


S = TypeVar("S")

_ROLES = frozenset({"ROLE_USER", "ROLE_AGENT", "user", "agent"})
_MAX_INT32 = 2**31 - 1
_CONTENT_FIELDS = ("text", "raw", "url", "data", "file")

Name = Annotated[str, Meta(max_length=256)]
_MAX_REFERENCES = 100  # each of them is looked up
Id = Annotated[str, Meta(min_length=1, max_length=256)]
Count = Annotated[int, Meta(ge=0, le=_MAX_INT32)]


class _Authentication(msgspec.Struct, rename="camel"):
    scheme: str | None = None
    schemes: list[str] | None = None
    credentials: str | None = None


class _Push(msgspec.Struct, rename="camel"):
    id: Name | None = None
    task_id: Name | None = None
    url: str | None = None
    token: Annotated[str, Meta(max_length=4096)] | None = None
    authentication: _Authentication | None = None


class _Configuration(msgspec.Struct, rename="camel"):
    accepted_output_modes: list[str] | None = None
    history_length: Count | None = None
    return_immediately: bool | None = None
    blocking: bool | None = None
    task_push_notification_config: _Push | None = None
    push_notification_config: _Push | None = None
    push_notification: _Push | None = None


class _Message(msgspec.Struct, rename="camel"):
    message_id: Id
    role: str
    parts: list[dict[str, Any]] | None = None
    content: list[dict[str, Any]] | None = None
    context_id: Name | None = None
    task_id: Name | None = None
    metadata: dict[str, Any] | None = None
    extensions: list[str] | None = None
    reference_task_ids: Annotated[list[str], Meta(max_length=_MAX_REFERENCES)] | None = None


class _Params(msgspec.Struct, rename="camel"):
    message: _Message | None = None
    request: _Message | None = None  # of the 0.3 protos
    configuration: _Configuration | None = None
    metadata: dict[str, Any] | None = None
    tenant: str | None = None


class UserMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to an agent, and how its sender wants the reply."""

    message_id: str
    parts: tuple[Part, ...]
    raw: dict[str, Any]
    request: dict[str, Any]  # all parameters, the message included
    dialect: Dialect
    context_id: str = ""
    task_id: str = ""
    metadata: dict[str, Any] = {}
    request_metadata: dict[str, Any] = {}
    extensions: tuple[str, ...] = ()
    is_blocking: bool = True
    history_length: int | None = None
    output_modes: tuple[str, ...] = ()
    push: A2APushConfig | None = None
    tenant: str = ""

    def get_metadata(self, name: str) -> Any:
        """A value from the metadata of the message, or else of the request."""
        return self.metadata.get(name, self.request_metadata.get(name))


class A2ATaskParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    history_length: Count | None = None
    tenant: str | None = None


class ListTasksParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    context_id: str | None = None
    status: str | None = None
    page_size: int | None = None
    page_token: str | None = None
    history_length: Count | None = None
    status_timestamp_after: str | None = None
    include_artifacts: bool | None = None
    tenant: str | None = None

    @property
    def states(self) -> tuple[JobState, ...]:
        """Raises A2AProtocolError for an unknown state."""
        if not self.status or self.status == "TASK_STATE_UNSPECIFIED":
            return ()
        if self.status == "TASK_STATE_AUTH_REQUIRED":
            return ("input_required",)
        matching_states = states_from_word(self.status, "a2a")
        if not matching_states:
            raise invalid_params_error(f"'{self.status[:64]}' is not a task state", "status")
        return matching_states if matching_states != JOB_STATES else ()

    @property
    def changed_after(self) -> float:
        """Raises A2AProtocolError for an invalid timestamp."""
        if not self.status_timestamp_after:
            return 0.0
        try:
            return datetime.fromisoformat(self.status_timestamp_after.replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError) as exc:
            raise invalid_params_error(
                "statusTimestampAfter must be an ISO 8601 timestamp", "statusTimestampAfter"
            ) from exc


class PushConfigParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A configuration and its task; 0.3 uses other names for the two ids."""

    task_id: str | None = None
    id: str | None = None
    push_notification_config_id: str | None = None
    tenant: str | None = None


class ExtendedCardParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    tenant: str | None = None


def parse_params(params: Any, kind: type[S]) -> S:
    """Raises A2AProtocolError, which names the field."""
    return _convert(to_camel_fields(params, FLAT_SHAPE), kind)


def _convert(params: Any, kind: type[S]) -> S:
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as exc:
        text = str(exc)
        field = text.partition(" - at `$")[2].removeprefix(".").removesuffix("`")
        raise invalid_params_error(f"Invalid params: {text}"[:300], field or None) from exc


_CREDENTIAL_KEYS: dict[str, Literal["passport", "mandate"]] = {
    PASSPORT_META_KEY: "passport",
    MANDATE_META_KEY: "mandate",
}
_METADATA_PATHS = ("message", "request", "")  # "": that of the request itself


def take_credentials(params: Any) -> tuple[Any, list[MessageCredential]]:
    """The parameters without the passports and mandates in the metadata of message and request, and these.

    They are for this node; the agent must not get them.
    """
    credentials: list[MessageCredential] = []
    for path in _METADATA_PATHS if isinstance(params, dict) else ():
        holder = params.get(path) if path else params
        metadata = holder.get("metadata") if isinstance(holder, dict) else None
        if not isinstance(metadata, dict) or metadata.keys().isdisjoint(_CREDENTIAL_KEYS):
            continue
        credentials += (
            (kind, metadata[key]) for key, kind in _CREDENTIAL_KEYS.items() if metadata.get(key) is not None
        )
        rest = {name: value for name, value in metadata.items() if name not in _CREDENTIAL_KEYS}
        cleaned = {**holder, "metadata": rest}
        params = {**params, path: cleaned} if path else cleaned
    return params, credentials


def parse_user_message(params: Any, dialect: Dialect) -> UserMessage:
    """Raises A2AProtocolError."""
    params = to_camel_fields(params, SEND_SHAPE)
    send_params = _convert(params, _Params)
    key = "message" if send_params.message is not None else "request"
    message = send_params.message or send_params.request
    if message is None:
        raise invalid_params_error("Invalid params: `message` is missing", "message")
    if message.role not in _ROLES:
        raise invalid_params_error("Invalid params: `message.role` must be user or agent", "message.role")
    wire_parts = message.parts if message.parts is not None else message.content
    if not wire_parts:
        raise invalid_params_error("Invalid params: a message needs at least one part", "message.parts")
    config = send_params.configuration or _Configuration()
    push = config.task_push_notification_config or config.push_notification_config or config.push_notification
    return UserMessage(
        message_id=message.message_id,
        parts=_parse_parts(wire_parts, dialect),
        raw=params[key],
        request=params,
        dialect=dialect,
        context_id=message.context_id or "",
        task_id=message.task_id or "",
        metadata=message.metadata or {},
        request_metadata=send_params.metadata or {},
        extensions=tuple(message.extensions or ()),
        is_blocking=_is_blocking(send_params.configuration, dialect),
        history_length=config.history_length,
        output_modes=tuple(config.accepted_output_modes or ()),
        push=None if push is None else _build_push_config(push, ""),
        tenant=send_params.tenant or "",
    )


def _is_blocking(config: _Configuration | None, dialect: Dialect) -> bool:
    """In 0.3 a request blocks unless it says otherwise. The JSON form of protos leaves out every `false`."""
    if config is None:
        return True
    if dialect == "1.0":
        return not config.return_immediately
    return config.blocking is True if dialect == "0.3 proto" else config.blocking is not False


def _parse_parts(wire_parts: Sequence[dict[str, Any]], dialect: Dialect) -> tuple[Part, ...]:
    """Raises A2AProtocolError for an object that is not exactly one part."""
    parts: list[Part] = []
    for index, each in enumerate(wire_parts):
        field = f"message.parts[{index}]"
        if sum(1 for name in _CONTENT_FIELDS if each.get(name) is not None or (name == "data" and "data" in each)) != 1:
            raise invalid_params_error(f"Invalid params: {field} needs exactly one of text, raw, url and data", field)
        part = parse_part(msgspec.convert(each, WirePart), dialect)
        if part is None:
            raise invalid_params_error(f"Invalid params: {field} does not have the form of its kind", field)
        parts.append(part)
    return tuple(parts)


def parse_push_config(params: Any, dialect: Dialect, task_id: str | None = None) -> A2APushConfig:
    """The configuration to set; over HTTP the path has the task's id. Raises A2AProtocolError."""
    if not isinstance(params, dict):
        raise invalid_params_error("Invalid params: they must be an object")
    params = to_camel_fields(params, PUSH_SHAPE)
    inner, push_task_id = params, task_id or params.get("taskId")
    if dialect != "1.0":
        inner = params.get("pushNotificationConfig") or params.get("config") or params
        inner = inner.get("pushNotificationConfig", inner) if isinstance(inner, dict) else inner
    if not isinstance(push_task_id, str) or not push_task_id:
        raise invalid_params_error("Invalid params: `taskId` is missing", "taskId")
    push = _convert(inner, _Push)
    if dialect == "0.3 proto" and not push.id and isinstance(params.get("configId"), str):
        push.id = params["configId"]
    return _build_push_config(push, push_task_id)


def _build_push_config(push: _Push, task_id: str) -> A2APushConfig:
    if not push.url:
        raise invalid_params_error("Invalid params: `url` is missing", "url")
    authentication = push.authentication or _Authentication()
    return A2APushConfig(
        task_id=task_id,
        id=push.id or "",
        url=push.url,
        token=push.token or "",
        scheme=authentication.scheme or next(iter(authentication.schemes or ()), ""),
        credentials=authentication.credentials or "",
    )


def params_from_query(query: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of a GET, converted to their types. Raises A2AProtocolError."""
    params: dict[str, Any] = {}
    for name, value in query.items():
        if name == "includeArtifacts":
            params[name] = value.lower() == "true"
        elif name in ("pageSize", "historyLength"):
            digits = value.removeprefix("-")
            if not (digits.isascii() and digits.isdigit()) or len(digits) > 10:
                raise invalid_params_error(f"Invalid params: {name} must be an integer", name)
            params[name] = int(value)
        else:
            params[name] = value
    return params


def require_object(params: Any) -> dict[str, Any]:
    """Raises A2AProtocolError."""
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise A2AProtocolError("INVALID_PARAMS", "Invalid params: they must be an object")
    return params
