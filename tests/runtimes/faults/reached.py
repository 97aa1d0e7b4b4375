"""The runtimes of the fault suite. A new one joins by a line: its name, and what its manifest says of a place.

`at` is for agents that are reached at an address, `by` for agents that are a program.
Some protocols begin with a conversation about who is there. They stand here twice:
things go wrong at once, or, after a greeting that is as it should be, in the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fixtures.faulty import Greeting, no_greeting
from tests.runtimes.faults import greetings

CAPABILITY = "act"


@dataclass(frozen=True)
class Reached:
    """One way to an agent. `endpoint` takes a URL, or a command.

    `starts`: it has to be met before it can be asked, and a call that waits for that in vain says that it is offline.
    `told`: a pattern of its own words for a peer that does not speak its protocol.
    """

    name: str
    runtime: str
    endpoint: Callable[[Any], dict[str, Any]]
    starts: bool = False
    greeting: Greeting = no_greeting
    told: str = r"\b\B"  # nothing

    @property
    def is_met(self) -> bool:
        """Whether what goes wrong goes wrong in the call itself."""
        return not self.starts or self.greeting is not no_greeting

    def agent_id(self, wrong: str) -> str:
        return f"{self.name}.{re.sub('[^a-zA-Z0-9]+', '-', wrong)}"

    def manifest(self, place: str | list[str], wrong: str) -> dict[str, Any]:
        return {
            "agent_id": self.agent_id(wrong),
            "runtime": self.runtime,
            "endpoint": self.endpoint(place),
            "capabilities": [{"name": CAPABILITY, "streaming": True, "idempotent": False}],
        }


def at(
    name: str,
    runtime: str,
    path: str = "",
    *,
    starts: bool = False,
    greeting: Greeting = no_greeting,
    told: str = Reached.told,
    **more: Any,
) -> Reached:
    return Reached(name, runtime, lambda url: {"uri": url + path, **more}, starts, greeting, told)


def by(name: str, runtime: str, *, starts: bool = False, **more: Any) -> Reached:
    return Reached(name, runtime, lambda command: {"command": command, **more}, starts)


def grpc(name: str, runtime: str) -> Reached:
    """Its connections begin with words of their own, before any request."""

    def endpoint(url: str) -> dict[str, Any]:
        return {"uri": url.replace("http", "grpc", 1)}

    return Reached(name, runtime, endpoint, starts=True, told="HTTP/2")


def openapi(name: str, greeting: Greeting = no_greeting) -> Reached:
    """Its document is read before its operations can be called."""
    return Reached(name, "http", lambda url: {"openapi": f"{url}/openapi.json"}, True, greeting, "OpenAPI document")


FUNCTION = {"module": "helpers.files", "function": CAPABILITY}

AT_AN_ADDRESS: tuple[Reached, ...] = (
    at("http", "http", "/agent"),
    at("http_template", "http", "/ask", request={"q": "$task"}, reply="/answer"),
    at("http_template", "http", "/api", request={"say": "$task"}, reply="said"),
    openapi("http_openapi"),
    openapi("http_openapi_met", greeting=greetings.openapi),
    at("mcp_handshake", "mcp", "/mcp", starts=True, era="handshake", backoff=0.0),
    at("mcp_handshake_met", "mcp", "/mcp", starts=True, greeting=greetings.mcp, era="handshake", backoff=0.0),
    at("mcp_stateless", "mcp", "/mcp", starts=True, era="stateless", backoff=0.0),
    at("mcp_stateless_met", "mcp", "/mcp", starts=True, greeting=greetings.mcp, era="stateless", backoff=0.0),
    at("a2a", "a2a", starts=True, told="No agent card"),
    at("a2a_jsonrpc_met", "a2a", starts=True, greeting=greetings.a2a, binding="jsonrpc"),
    at("a2a_http_met", "a2a", starts=True, greeting=greetings.a2a, binding="http"),
    grpc("a2a_grpc", "a2a"),
    at("agentzero_a2a", "agentzero"),
    at("agentzero_api", "agentzero", protocol="api", token="secret"),
    at("agentzero_rfc", "agentzero", protocol="rfc", password="secret", functions=[FUNCTION]),
    at("acp", "acp"),
    at("acp_sync", "acp", mode="sync"),
    at("acp_async", "acp", mode="async"),
    at("rpc", "rpc", "/rpc"),
    at("rest", "rest", "/v1", agent="far"),
    at("rest_messages", "rest", "/v1", agent="far", mode="messages"),
    at("fabric", "fabric", agent="far", told="the reply is not from a Fabric node"),
    grpc("grpc", "grpc"),
)
A_PROGRAM: tuple[Reached, ...] = (
    by("process_jsonl", "process", grace=0.1, backoff=0.0),
    by("process_oneshot", "process", protocol="oneshot"),
    by("mcp_stdio", "mcp", starts=True, grace=0.1, backoff=0.0),
    by("claude", "claude", grace=0.1),
    by("agent_client", "agent-client", starts=True, grace=0.1, backoff=0.0, cancel_timeout=0.1),
)
