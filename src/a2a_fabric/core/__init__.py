"""The center of the gateway: values, events, errors, ports and decisions. It knows no protocol, HTTP, SQL or settings.

The names below are for authors of plug-ins. Each is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from a2a_fabric.core.agent import Capability, Health, Manifest, Status
    from a2a_fabric.core.call import (
        Attachment,
        Call,
        CallerEmitter,
        Emit,
        Handler,
        Input,
        Principal,
        Step,
        Target,
        add_notes,
        bind_arguments,
        derive_conversation_id,
        describe_unsupported_parts,
        ignore_event,
        parts_from_input,
    )
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
    from a2a_fabric.core.ports import (
        AgentHost,
        AgentSource,
        DoorPlugin,
        EnforcesDeadline,
        NoSettings,
        Runtime,
        RuntimePlugin,
        StorePlugin,
    )
    from a2a_fabric.core.propagation import Trace
    from a2a_fabric.core.result import (
        Answers,
        Event,
        Part,
        Question,
        Questions,
        Result,
        artifact,
        make_input_required,
        progress,
        status,
        token,
    )
    from a2a_fabric.core.stores import Store

_MODULES = ("agent", "call", "errors", "ports", "propagation", "result", "stores")

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
