"""MCP Apps, the extension `io.modelcontextprotocol/ui`: what the `_meta` of a tool says of its user interface.

A tool names a `ui://` resource, which the client shows beside the tool's results. `visibility` says who calls the
tool: the model, or the user interface, which the specification calls the app. `_meta` comes from servers, so nothing
in it may pass for the node's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a_fabric.protocols.mcp.resource_uris import UI_SCHEME, make_resource_uri

UI_EXTENSION = "io.modelcontextprotocol/ui"
UI_SETTINGS: dict[str, Any] = {"mimeTypes": ["text/html;profile=mcp-app"]}
OWN_PREFIX = "a2a-fabric/"  # of all keys that the node itself adds to `_meta`
_OLD_URI_KEY = "ui/resourceUri"


def drop_own_keys(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """A server's `_meta` without keys that would pass for the node's own."""
    return {key: value for key, value in (meta or {}).items() if not key.startswith(OWN_PREFIX)}


def to_public_tool_meta(meta: Mapping[str, Any], agent_id: str) -> dict[str, Any]:
    """The `_meta` of an agent's tool as clients get it: each `ui://` address in it is one of the gateway."""
    return {key: _replace_addresses(value, agent_id) for key, value in drop_own_keys(meta).items()}


def _replace_addresses(value: Any, agent_id: str) -> Any:
    if isinstance(value, str):
        return make_resource_uri(agent_id, value) if value.startswith(UI_SCHEME) else value
    if isinstance(value, dict):
        return {key: _replace_addresses(each, agent_id) for key, each in value.items()}
    return [_replace_addresses(each, agent_id) for each in value] if isinstance(value, list) else value


def find_ui_uri(meta: Mapping[str, Any]) -> str | None:
    """The server's own address of a tool's user interface, under the present key or the older one."""
    ui = meta.get("ui")
    uri = ui.get("resourceUri") if isinstance(ui, dict) else None
    uri = uri if uri is not None else meta.get(_OLD_URI_KEY)
    return uri if isinstance(uri, str) and uri.startswith(UI_SCHEME) else None


def may_app_call(meta: Mapping[str, Any]) -> bool:
    """Whether the user interface of the server may call the tool. Without `visibility` it may."""
    ui = meta.get("ui")
    visibility = ui.get("visibility") if isinstance(ui, dict) else None
    return not isinstance(visibility, list) or "app" in visibility
