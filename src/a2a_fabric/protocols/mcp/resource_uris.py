"""Addresses of agents' resources at the gateway, and the agents' own addresses in them.

A resource that an agent knows as `note://today` is `fabric://agents/ID/resources/note%3A%2F%2Ftoday` here. The user
interface of an MCP App keeps its scheme, because clients find it by that: `ui://clock/app.html` of the agent `ID` is
`ui://a2a-fabric/ID/resources/clock%2Fapp.html`. So no two agents share an address, whatever they call their resources,
and an address alone tells which agent is meant. The slash in the id of another node's agent is written as `%2F`."""

from __future__ import annotations

from urllib.parse import quote, unquote

AGENT_URI_PREFIX = "fabric://agents/"
UI_SCHEME = "ui://"
_UI_PREFIX = "ui://a2a-fabric/"
_RESOURCES = "resources"
_TEMPLATES = "templates"
_SLASH = "%2F"

ItemKey = tuple[str, str]  # an agent's id, and the agent's own name or URI of an item


def make_resource_uri(agent_id: str, uri: str) -> str:
    """The URI at the gateway of a resource that an agent knows by `uri`."""
    prefix, rest = _split_scheme(uri)
    return f"{prefix}{agent_id.replace('/', _SLASH)}/{_RESOURCES}/{quote(rest, safe='')}"


def make_template_uri(agent_id: str, template: str) -> str:
    """The same for a template, whose variables stay as they are."""
    prefix, rest = _split_scheme(template)
    return f"{prefix}{agent_id.replace('/', _SLASH)}/{_TEMPLATES}/{rest}"


def is_public_uri(uri: str) -> bool:
    """Whether the URI is one of the gateway, and not an agent's own."""
    return uri.startswith((AGENT_URI_PREFIX, _UI_PREFIX))


def parse_resource_uri(uri: str) -> ItemKey | None:
    """The agent and the original URI in this URI, listed or not; None if the URI names no item of an agent."""
    prefix, scheme = (_UI_PREFIX, UI_SCHEME) if uri.startswith(_UI_PREFIX) else (AGENT_URI_PREFIX, "")
    written_id, _, rest = uri.removeprefix(prefix).partition("/")
    agent_id = written_id.replace(_SLASH, "/")
    kind, _, original = rest.partition("/")
    if not original or kind not in (_RESOURCES, _TEMPLATES):
        return None
    if kind == _TEMPLATES:
        return agent_id, scheme + original
    try:
        return agent_id, scheme + unquote(original, errors="strict")
    except UnicodeDecodeError:
        return None


def _split_scheme(uri: str) -> tuple[str, str]:
    """The prefix of its address at the gateway, and the text that follows the agent's id there."""
    return (_UI_PREFIX, uri.removeprefix(UI_SCHEME)) if uri.startswith(UI_SCHEME) else (AGENT_URI_PREFIX, uri)
