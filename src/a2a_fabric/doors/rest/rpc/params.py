"""The parameters of the RPC methods."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from a2a_fabric.doors.rest.models import Name, Part

Parts = Annotated[tuple[Part, ...], Meta(max_length=1000)]


class RpcDiscoverParams(msgspec.Struct, frozen=True, kw_only=True):
    capability: Name | None = None


class RpcSendParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: Name
    parts: Annotated[Parts, Meta(min_length=1)]
    context_id: Name | None = None
    capability: Name | None = None


class RpcTaskParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    task_id: Name


class RpcListTasksParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    status: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    since: Annotated[str | float | None, Meta(description="A time: ISO 8601, or milliseconds since 1970.")] = None
    agent_id: Name | None = None


class StatusTransition(msgspec.Struct, frozen=True, kw_only=True):
    to: Name
    from_: Name | None = msgspec.field(default=None, name="from")


class RpcUpdateStatusParams(RpcTaskParams, frozen=True, kw_only=True, rename="camel"):
    status: StatusTransition | Name


class RpcNewTask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A task as the client library holds it. Fields that only the gateway sets are ignored."""

    agent_id: Name
    id: Name | None = None
    name: str | None = None
    parts: Parts = ()
    input: dict[str, Any] = {}
    context_id: Name | None = None
    metadata: dict[str, Any] = {}
    created_at: str | None = None  # of a task that the client received from here


class RpcExecuteParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The client sends one of the last two fields when it wants the task's events."""

    task: RpcNewTask
    auth_token: str | None = None
    last_event_id: str | int | None = None


class RpcResubscribeParams(RpcTaskParams, frozen=True, kw_only=True, rename="camel"):
    last_event_id: str | int | None = None


class RpcArtifact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    id: Name
    type: Literal["text", "file", "data", "log"]
    content: dict[str, Any]
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    metadata: dict[str, Any] = {}


class RpcUploadParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    artifact: RpcArtifact


class RpcArtifactParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    artifact_id: Annotated[str, Meta(min_length=1, max_length=600)]


class RpcPushConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    enabled: bool = True
    endpoint: Annotated[str, Meta(max_length=2048)] | UnsetType = UNSET
    auth_token: Annotated[str, Meta(max_length=4096)] | UnsetType = UNSET
    events: tuple[str, ...] = ()


class RpcSetPushParams(RpcTaskParams, frozen=True, kw_only=True, rename="camel"):
    config: RpcPushConfig


class RpcStreamQuery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: Name | None = None
    task_id: Name | None = None
