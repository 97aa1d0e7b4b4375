"""What each method takes."""

from __future__ import annotations

from typing import Annotated, Any

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


class Execute(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    task: NewTask
    last_event_id: str | int | None = None


class Resubscribe(TaskArgument, frozen=True, kw_only=True, rename="camel"):
    last_event_id: str | int | None = None


class Artifact(TaskArgument, frozen=True, kw_only=True, rename="camel"):
    artifact_id: Name


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
