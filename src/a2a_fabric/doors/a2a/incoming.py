"""Requests as they come, in each dialect, read into one shape. What is not understood is kept with the message.

Only what a request must have is checked here; whether it makes sense is for others to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from a2a_fabric.a2a_wire.parts import Dialect, WirePart, part_in
from a2a_fabric.core.part import Part
from a2a_fabric.core.states import JOB_STATES, JobState, states_meant
from a2a_fabric.doors.a2a.faults import Fault, invalid
from a2a_fabric.doors.a2a.shapes import PushConfig
from a2a_fabric.doors.a2a.spelling import FLAT, PUSH, SENDING, respelt

S = TypeVar("S")

_ROLES = frozenset({"ROLE_USER", "ROLE_AGENT", "user", "agent"})
_LARGEST = 2**31 - 1
_CONTENTS = ("text", "raw", "url", "data", "file")

Name = Annotated[str, Meta(max_length=256)]
Id = Annotated[str, Meta(min_length=1, max_length=256)]
Count = Annotated[int, Meta(ge=0, le=_LARGEST)]


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
    reference_task_ids: list[str] | None = None


class _Params(msgspec.Struct, rename="camel"):
    message: _Message | None = None
    request: _Message | None = None  # how some write 0.3's proto
    configuration: _Configuration | None = None
    metadata: dict[str, Any] | None = None
    tenant: str | None = None


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """A message to an agent, and how its sender wants to be answered."""

    message_id: str
    parts: tuple[Part, ...]
    raw: dict[str, Any]
    dialect: Dialect
    context_id: str = ""
    task_id: str = ""
    metadata: dict[str, Any] = {}
    request_metadata: dict[str, Any] = {}
    extensions: tuple[str, ...] = ()
    waits: bool = True
    history_length: int | None = None
    modes: tuple[str, ...] = ()
    push: PushConfig | None = None
    tenant: str = ""

    def told(self, name: str) -> Any:
        """Something of ours in the message's metadata, or in that of the request."""
        return self.metadata.get(name, self.request_metadata.get(name))


class TaskArgument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    history_length: Count | None = None
    tenant: str | None = None


class ListParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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
        """Raises Fault for a word that there is not."""
        if not self.status or self.status == "TASK_STATE_UNSPECIFIED":
            return ()
        if self.status == "TASK_STATE_AUTH_REQUIRED":
            return ("input_required",)
        found = states_meant(self.status, "a2a")
        if not found:
            raise invalid(f"'{self.status[:64]}' is no state of a task", "status")
        return found if found != JOB_STATES else ()

    @property
    def after(self) -> float:
        """Raises Fault for what is no moment."""
        if not self.status_timestamp_after:
            return 0.0
        try:
            return datetime.fromisoformat(self.status_timestamp_after.replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError) as exc:
            raise invalid("statusTimestampAfter is no ISO 8601 moment", "statusTimestampAfter") from exc


class PushArgument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which config of which task; 0.3 names them otherwise."""

    task_id: str | None = None
    id: str | None = None
    push_notification_config_id: str | None = None
    tenant: str | None = None


class CardArgument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    tenant: str | None = None


def read(params: Any, kind: type[S]) -> S:
    """Raises Fault, naming the field."""
    return _converted(respelt(params, FLAT), kind)


def _converted(params: Any, kind: type[S]) -> S:
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as exc:
        text = str(exc)
        place = text.partition(" - at `$")[2].removeprefix(".").removesuffix("`")
        raise invalid(f"Invalid params: {text}"[:300], place or None) from exc


def read_asking(params: Any, dialect: Dialect) -> Asking:
    """Raises Fault."""
    params = respelt(params, SENDING)
    given = _converted(params, _Params)
    key = "message" if given.message is not None else "request"
    message = given.message or given.request
    if message is None:
        raise invalid("Invalid params: `message` is missing", "message")
    if message.role not in _ROLES:
        raise invalid("Invalid params: `message.role` is neither user nor agent", "message.role")
    listed = message.parts if message.parts is not None else message.content
    if not listed:
        raise invalid("Invalid params: a message has at least one part", "message.parts")
    config = given.configuration or _Configuration()
    return Asking(
        message_id=message.message_id,
        parts=_parts(listed, dialect),
        raw=params[key],
        dialect=dialect,
        context_id=message.context_id or "",
        task_id=message.task_id or "",
        metadata=message.metadata or {},
        request_metadata=given.metadata or {},
        extensions=tuple(message.extensions or ()),
        waits=_waits(config, dialect),
        history_length=config.history_length,
        modes=tuple(config.accepted_output_modes or ()),
        push=_wanted(config),
        tenant=given.tenant or "",
    )


def _waits(config: _Configuration, dialect: Dialect) -> bool:
    """Unless something else is said, until there is something to answer. 0.3 over HTTP leaves false unsaid."""
    if dialect == "1.0":
        return not config.return_immediately
    return config.blocking is not False


def _wanted(config: _Configuration) -> PushConfig | None:
    given = config.task_push_notification_config or config.push_notification_config or config.push_notification
    return None if given is None else _push_config(given, "")


def _parts(listed: Sequence[dict[str, Any]], dialect: Dialect) -> tuple[Part, ...]:
    """Raises Fault for what is no part, or two at once."""
    read_parts: list[Part] = []
    for number, each in enumerate(listed):
        where = f"message.parts[{number}]"
        if sum(1 for name in _CONTENTS if each.get(name) is not None or (name == "data" and "data" in each)) != 1:
            raise invalid(f"Invalid params: {where} needs exactly one of text, raw, url and data", where)
        part = part_in(msgspec.convert(each, WirePart), dialect)
        if part is None:
            raise invalid(f"Invalid params: {where} is not of the form that its kind has", where)
        read_parts.append(part)
    return tuple(read_parts)


def read_push(params: Any, dialect: Dialect, task_id: str | None = None) -> PushConfig:
    """A config to be set; over HTTP the path says of which task. Raises Fault."""
    if not isinstance(params, dict):
        raise invalid("Invalid params: an object is needed")
    params = respelt(params, PUSH)
    inner, found = params, task_id or params.get("taskId")
    if dialect != "1.0":
        inner = params.get("pushNotificationConfig") or params.get("config") or params
        inner = inner.get("pushNotificationConfig", inner) if isinstance(inner, dict) else inner
    if not isinstance(found, str) or not found:
        raise invalid("Invalid params: `taskId` is missing", "taskId")
    given = _converted(inner, _Push)
    if dialect == "0.3 proto" and not given.id and isinstance(params.get("configId"), str):
        given.id = params["configId"]
    return _push_config(given, found)


def _push_config(given: _Push, task_id: str) -> PushConfig:
    if not given.url:
        raise invalid("Invalid params: `url` is missing", "url")
    how = given.authentication or _Authentication()
    return PushConfig(
        task_id=task_id,
        id=given.id or "",
        url=given.url,
        token=given.token or "",
        scheme=how.scheme or next(iter(how.schemes or ()), ""),
        credentials=how.credentials or "",
    )


def from_query(query: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of a GET, of their kinds. Raises Fault."""
    given: dict[str, Any] = {}
    for name, value in query.items():
        if name == "includeArtifacts":
            given[name] = value.lower() == "true"
        elif name in ("pageSize", "historyLength"):
            digits = value.removeprefix("-")
            if not (digits.isascii() and digits.isdigit()) or len(digits) > 10:
                raise invalid(f"Invalid params: {name} is no integer", name)
            given[name] = int(value)
        else:
            given[name] = value
    return given


def needs_object(params: Any) -> dict[str, Any]:
    """Raises Fault."""
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise Fault("INVALID_PARAMS", "Invalid params: an object is needed")
    return params
