"""The center of the gateway: values, events, errors, ports and decisions. It knows no protocol, HTTP, SQL or settings.

The names below are for authors of plug-ins. Each is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from a2a_fabric.core.agent import Capability, Health, Manifest, Status
    from a2a_fabric.core.call import Attachment, Call, Input, Principal, Target, derive_conversation_id
    from a2a_fabric.core.content import add_notes, bind_arguments, describe_unsupported_parts, parts_from_input
    from a2a_fabric.core.errors import (
        AgentBusy,
        AgentOffline,
        BadInput,
        CallTimeout,
        CapabilityNotFound,
        ConfigError,
        FabricError,
        NotReached,
        OperatorText,
        StoreError,
        UpstreamFailed,
        UpstreamInterrupted,
        UpstreamRefused,
    )
    from a2a_fabric.core.events import Event, artifact, progress, status, token
    from a2a_fabric.core.part import Part
    from a2a_fabric.core.pipeline import CallerEmitter, Emit, Handler, Step, ignore_event
    from a2a_fabric.core.plugin import DoorPlugin, NoSettings, RuntimePlugin, StorePlugin
    from a2a_fabric.core.ports import AgentHost, AgentSource, EnforcesDeadline, Runtime
    from a2a_fabric.core.question import Answers, Question, Questions
    from a2a_fabric.core.result import Result, make_input_required
    from a2a_fabric.core.stores import Store
    from a2a_fabric.core.trace import Trace

_MODULES = (
    "agent", "call", "content", "errors", "events", "part", "pipeline", "plugin", "ports", "question", "result",
    "stores", "trace",
)  # fmt: skip

__all__ = [
    "AgentBusy",
    "AgentHost",
    "AgentOffline",
    "AgentSource",
    "Answers",
    "Attachment",
    "BadInput",
    "Call",
    "CallTimeout",
    "CallerEmitter",
    "Capability",
    "CapabilityNotFound",
    "ConfigError",
    "DoorPlugin",
    "Emit",
    "EnforcesDeadline",
    "Event",
    "FabricError",
    "Handler",
    "Health",
    "Input",
    "Manifest",
    "NoSettings",
    "NotReached",
    "OperatorText",
    "Part",
    "Principal",
    "Question",
    "Questions",
    "Result",
    "Runtime",
    "RuntimePlugin",
    "Status",
    "Step",
    "Store",
    "StoreError",
    "StorePlugin",
    "Target",
    "Trace",
    "UpstreamFailed",
    "UpstreamInterrupted",
    "UpstreamRefused",
    "add_notes",
    "artifact",
    "bind_arguments",
    "derive_conversation_id",
    "describe_unsupported_parts",
    "ignore_event",
    "make_input_required",
    "parts_from_input",
    "progress",
    "status",
    "token",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            if (value := getattr(import_module(f"{__name__}.{module}"), name, None)) is not None:
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
