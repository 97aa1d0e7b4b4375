"""What prompts and resources of agents are called here, and whose they are.

Each gets a name of its own: a prompt one that every client takes, a resource a URI that
says which agent has it and holds the agent's own URI. A template is the agent's template
behind a prefix, so that what it expands to is the agent's URI behind that prefix.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, unquote

from a2a_fabric.doors.mcp import names

AGENTS = "fabric://agents/"

_RESOURCES = "resources"
_TEMPLATES = "templates"

Key = tuple[str, str]  # an agent's id, and a name or URI of its own


class Addresses:
    """Names that were given stay, whoever else comes or goes."""

    def __init__(self) -> None:
        self._known: dict[Key, str] = {}

    def of_prompts(self, keys: Iterable[Key]) -> dict[Key, str]:
        """A name for each."""
        given = names.assign({key: dotted(key) for key in keys}, self._known)
        self._known = names.remembered(given, self._known)
        return given

    def of_resource(self, key: Key) -> str:
        agent_id, uri = key
        return f"{AGENTS}{agent_id}/{_RESOURCES}/{quote(uri, safe='')}"

    def of_template(self, key: Key) -> str:
        agent_id, template = key
        return f"{AGENTS}{agent_id}/{_TEMPLATES}/{template}"

    def at(self, uri: str) -> Key | None:
        """Whose resource has this URI, listed or not; None if the URI does not say."""
        if not uri.startswith(AGENTS):
            return None
        agent_id, _, rest = uri.removeprefix(AGENTS).partition("/")
        kind, _, inner = rest.partition("/")
        if not inner or kind not in (_RESOURCES, _TEMPLATES):
            return None
        if kind == _TEMPLATES:
            return agent_id, inner
        try:
            return agent_id, unquote(inner, errors="strict")
        except UnicodeDecodeError:
            return None


def dotted(key: Key) -> str:
    """The canonical name of a prompt."""
    return ".".join(key)
