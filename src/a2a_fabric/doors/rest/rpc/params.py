"""What each method takes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from a2a_fabric.doors.rest.wire import Name, Part

Parts = Annotated[tuple[Part, ...], Meta(max_length=1000)]


class Discover(msgspec.Struct, frozen=True, kw_only=True):
    capability: Name | None = None


class Send(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: Name
    parts: Annotated[Parts, Meta(min_length=1)]
    context_id: Name | None = None
    capability: Name | None = None


class TaskArgument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    task_id: Name


class ListTasks(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    status: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    since: Annotated[str | float | None, Meta(description="A moment: ISO 8601, or milliseconds since 1970.")] = None
    agent_id: Name | None = None


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    to: Name
    from_: Name | None = msgspec.field(default=None, name="from")


class UpdateStatus(TaskArgument, frozen=True, kw_only=True, rename="camel"):
    status: Transition | Name


class NewTask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A task as the library holds it; most of it is ours to say."""

    agent_id: Name
    id: Name | None = None
    name: str | None = None
    parts: Parts = ()
    input: dict[str, Any] = {}
    context_id: Name | None = None
    metadata: dict[str, Any] = {}
    created_at: str | None = None  # if it is one that we gave away


class Execute(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The client's two ways to ask, for the task and for its events, differ in nothing but the last two."""

    task: NewTask
    auth_token: str | None = None
    last_event_id: str | int | None = None


class Resubscribe(TaskArgument, frozen=True, kw_only=True, rename="camel"):
    last_event_id: str | int | None = None


class NewArtifact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    id: Name
    type: Literal["text", "file", "data", "log"]
    content: dict[str, Any]
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    metadata: dict[str, Any] = {}


class Upload(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    artifact: NewArtifact


class ArtifactArgument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    artifact_id: Annotated[str, Meta(min_length=1, max_length=600)]


class PushConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    enabled: bool = True
    endpoint: Annotated[str, Meta(max_length=2048)] | UnsetType = UNSET
    auth_token: Annotated[str, Meta(max_length=4096)] | UnsetType = UNSET
    events: tuple[str, ...] = ()


class SetPush(TaskArgument, frozen=True, kw_only=True, rename="camel"):
    config: PushConfig


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: Name | None = None
    task_id: Name | None = None
