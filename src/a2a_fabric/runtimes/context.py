"""What every runtime is given besides its agent's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.callbacks import Callbacks
from a2a_fabric.core.errors import BadInput
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import HTTPClient

E = TypeVar("E", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True)
class RuntimeContext:
    """Shared by all runtimes of a node; whoever built it owns and closes what is inside."""

    http: HTTPClient
    base: Path  # relative paths in a manifest start here
    guard: Guard | None = None  # of `http`, for runtimes that connect by themselves; None: any address will do
    reply_bytes: int = 16 * 1024 * 1024
    mounted: Mapping[str, Any] = field(default_factory=dict)  # Python agents of this process, by agent_id
    callbacks: Callbacks = field(default_factory=Callbacks)  # where agents leave word; unless told, nowhere
    options: Mapping[str, Any] = field(default_factory=dict)  # settings of single runtimes, by kind


def decode_endpoint(manifest: Manifest, kind: type[E]) -> E:
    """The manifest's endpoint as the runtime's own struct; raises BadInput naming agent and field."""
    try:
        return msgspec.convert(manifest.endpoint, kind)
    except msgspec.ValidationError as exc:
        raise BadInput(f"Agent '{manifest.agent_id}' has a bad endpoint: {exc}", agent_id=manifest.agent_id) from exc
