"""Every path that a node's doors have declared, for tests that ask at all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress

from starlette.routing import Route

from a2a_fabric.doors.a2a.http import A2ARoute, resolve_path
from tests.fixtures.node import Node, Reply

# A2A's paths are no list in the code: `place_of` reads them. One of each form.
A2A_BELOW = (
    "", "/message:send", "/message:stream", "/tasks", "/extendedAgentCard", "/card", "/tasks/t", "/tasks/t:cancel",
    "/tasks/t:subscribe", "/tasks/t/pushNotificationConfigs", "/tasks/t/pushNotificationConfigs/c",
    "/.well-known/agent-card.json", "/.well-known/agent.json",
)  # fmt: skip
_IDS = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f]{16}")
_TIMES = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+Z?|[0-9a-f]{8}\.\d+|\b\d{10,}(\.\d+)?|\"uptime_seconds\":[\d.]+")


def paths_of(node: Node, agent_id: str) -> Iterator[tuple[str, str]]:
    """Every method and path that a door has declared, with the agent's id and `x` for what callers fill in."""
    for door in node.fabric.doors:
        for path in door.hot:
            yield from ((verb, path) for verb in ("GET", "POST"))
        for route in door.routes:
            if isinstance(route, Route):
                filled = re.sub(r"\{(\w+)(:\w+)?\}", lambda found: agent_id if "agent" in found[1] else "x", route.path)
                yield from ((verb, filled) for verb in sorted(route.methods or {"GET", "POST"}))
            elif isinstance(route, A2ARoute):
                yield from a2a_paths(agent_id)


def a2a_paths(agent_id: str) -> Iterator[tuple[str, str]]:
    for above in ("/gateway", f"/agents/{agent_id}"):
        for below in (*A2A_BELOW, *(f"/v1{each}" for each in A2A_BELOW if each.startswith(("/message", "/tasks")))):
            place = resolve_path(above + below)
            assert place is not None
            yield from ((verb, above + below) for verb in place.methods)
    yield "GET", "/.well-known/agent-card.json"


def words_of(reply: Reply, *, instead_of: str = "") -> tuple[int, bytes]:
    """What a reply says, without ids and times, and without the name of the agent that was asked for."""
    body = reply.body
    with suppress(ValueError):  # the order of keys says nothing
        body = json.dumps(json.loads(body), sort_keys=True).encode()
    body = _TIMES.sub(b"", _IDS.sub(b"", body))
    return reply.status, body.replace(instead_of.encode(), b"NAME") if instead_of else body
