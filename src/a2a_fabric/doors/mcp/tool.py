"""A tool as `tools/list` shows it: schemas, hints for the client, and the canonical name in title and `_meta`."""

from __future__ import annotations

from typing import Any

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.arguments import ATTACHMENTS
from a2a_fabric.core.part import ANY_JSON
from a2a_fabric.operations import Operation

NAME_KEY = "a2a-fabric/name"
AGENT_KEY = "a2a-fabric/agent"

# What a capability that declares no schema takes: words, and whatever belongs to them.
_FREE_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "What is to be done, in words."},
        "context": {"type": "object", "description": "Arguments and background, as JSON."},
        ATTACHMENTS: {
            "type": "array",
            "description": "Files (base64), links and data.",
            "items": {
                "type": "object",
                "properties": {
                    "type": {"enum": ["file", "url", "data"]},
                    "content": ANY_JSON,
                    "mime_type": {"type": "string"},
                    "name": {"type": "string"},
                },
                "required": ["type", "content"],
            },
        },
    },
}


def describe_operation(name: str, operation: Operation[Any]) -> dict[str, Any]:
    read_only = operation.read_only
    return {
        "name": name,
        "title": operation.name,
        "description": operation.description,
        "inputSchema": input_schema_of(operation.input_schema),
        "outputSchema": operation.output_schema,
        "annotations": {
            "readOnlyHint": read_only,
            "destructiveHint": not read_only,
            "idempotentHint": read_only,
            "openWorldHint": not read_only,
        },
        "_meta": {NAME_KEY: operation.name},
    }


def describe_capability(name: str, dotted: str, manifest: Manifest, capability: Capability) -> dict[str, Any]:
    tool: dict[str, Any] = {
        "name": name,
        "title": dotted,
        "description": capability.description or manifest.description or f"{capability.name} of {manifest.agent_id}",
        "inputSchema": input_schema_of(capability.input_schema),
        "annotations": _hints(capability),
        "_meta": {NAME_KEY: dotted, AGENT_KEY: manifest.agent_id},
    }
    output = capability.output_schema
    if output is not None and output.get("type") == "object":  # before 2026 nothing else may stand here
        tool["outputSchema"] = output
    return tool


def input_schema_of(declared: dict[str, Any] | None) -> dict[str, Any]:
    """MCP wants an object at the top."""
    if declared is None:
        return _FREE_FORM
    return declared if declared.get("type") == "object" else {**declared, "type": "object"}


def _hints(capability: Capability) -> dict[str, bool]:
    """Only what was declared: a client assumes the worst of everything else."""
    hints: dict[str, bool] = {}
    if capability.side_effects is not None:
        hints["readOnlyHint"] = capability.side_effects != "writes"
        hints["destructiveHint"] = capability.side_effects == "writes"
        hints["openWorldHint"] = capability.side_effects != "none"
    if capability.idempotent is not None:
        hints["idempotentHint"] = capability.idempotent
    return hints
