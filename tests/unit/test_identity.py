from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import DEFAULT_TIMEOUT_MS, Call, Principal
from a2a_fabric.core.errors import AuthInvalid, CallerError, Forbidden, Unauthenticated
from a2a_fabric.identity.resolver import Credentials, Resolver
from a2a_fabric.identity.shared_keys import SharedKey, SharedKeys
from tests.fixtures.node import PSK, running
from tests.marks import requirement
from tests.unit.made import call as made_call

KEYS = SharedKeys(
    [
        SharedKey(principal_id="alice", secret="alices-key"),
        SharedKey(principal_id="bob", secret="bobs-key", scopes=("agent:percy",), trust="org"),
    ]
)
HERE = Principal(mode="none", principal_id="anonymous", trust="local")
OUTSIDE = Principal(mode="none", principal_id="anonymous", trust="public")


class Door:
    """A resolver with its counts."""

    def __init__(self, anonymous: Principal | None = None, keys: SharedKeys = KEYS) -> None:
        self.counted: list[tuple[str, str]] = []
        self.resolve = Resolver(keys, anonymous, lambda mode, status: self.counted.append((mode, status)))

    def refusal(self, **shown: Any) -> type[CallerError]:
        with pytest.raises(CallerError) as caught:
            self.resolve(Credentials(**shown))
        assert "alices-key" not in caught.value.message
        return type(caught.value)


def test_a_bearer_key_names_its_principal_with_scopes_and_trust() -> None:
    door = Door()
    bob = door.resolve(Credentials(authorization="Bearer bobs-key"))
    assert (bob.mode, bob.principal_id, bob.scp, bob.trust) == ("psk", "bob", ("agent:percy",), "org")
    assert door.resolve(Credentials(authorization="bearer   alices-key ")).principal_id == "alice"
    assert door.resolve(Credentials(api_key="alices-key")).principal_id == "alice"
    assert door.counted == [("psk", "success")] * 3


@pytest.mark.parametrize(
    "authorization",
    ["Bearer wrong", "Bearer", "Bearer ", "", "Basic YTpi", "alices-key", "Bearer alices-key x", "Bearer ALICES-KEY"],
)
def test_what_is_not_exactly_a_key_is_refused(authorization: str) -> None:
    door = Door(anonymous=HERE)
    assert door.refusal(authorization=authorization) is AuthInvalid
    assert door.counted[0][1] == "denied"


def test_a_wrong_authorization_is_not_saved_by_a_right_api_key() -> None:
    assert Door().refusal(authorization="Basic x", api_key="alices-key") is AuthInvalid


def test_without_credentials_the_mode_is_none_where_that_is_allowed() -> None:
    assert Door().refusal() is Unauthenticated
    door = Door(anonymous=HERE)
    assert door.resolve(Credentials(host="127.0.0.1:8000")) is HERE
    assert door.counted == [("none", "success")]


@pytest.mark.parametrize(
    "shown",
    [
        {"host": "evil.example"},
        {"host": "127.evil.example"},
        {"host": "localhost.evil.example:8000"},
        {"host": "localhost", "origin": "https://evil.example"},
        {"host": "127.0.0.1", "origin": "http://127.0.0.1.evil.example"},
        {"host": "127.0.0.1", "origin": "null"},
        {"host": "10.0.0.7:8000"},
    ],
)
def test_pages_of_other_sites_are_not_this_machine_whatever_their_name(shown: dict[str, Any]) -> None:
    """A browser lets any page call loopback, under a name that its owner may point there."""
    assert Door(anonymous=HERE).refusal(**shown) is Forbidden
    assert Door(anonymous=OUTSIDE).resolve(Credentials(**shown)) is OUTSIDE
    key = Credentials(authorization="Bearer alices-key", **shown)
    assert Door(anonymous=HERE).resolve(key).principal_id == "alice"


@pytest.mark.parametrize(
    "shown",
    [
        {"host": "localhost:8000"},
        {"host": "Localhost"},
        {"host": "127.0.0.1"},
        {"host": "[::1]:8000"},
        {"host": "localhost", "origin": "http://localhost:3000"},
        {},
    ],
)
def test_programs_of_this_machine_are_let_in(shown: dict[str, Any]) -> None:
    assert Door(anonymous=HERE).resolve(Credentials(**shown)) is HERE


@given(st.text(max_size=50), st.text(max_size=50) | st.none(), st.text(max_size=50) | st.none())
def test_nothing_a_stranger_shows_breaks_the_resolver(authorization: str, host: str | None, origin: str | None) -> None:
    with pytest.raises(CallerError):
        Door(anonymous=HERE, keys=SharedKeys([])).resolve(
            Credentials(authorization=authorization, host=host, origin=origin)
        )


def test_keys_are_not_kept_in_the_clear() -> None:
    assert "alices-key" not in repr(vars(KEYS))
    assert len(KEYS) == 2


@requirement("001-08")
async def test_identity_then_shape_then_trace_then_the_envelope() -> None:
    received: list[Call] = []
    percy = Agent("percy")

    @percy.capability
    async def reason(task: str, call: Call) -> str:
        received.append(call)
        return task

    wanted = {"name": "fabric.call", "arguments": {"agent_id": "percy", "capability": "reason", "task": "hi"}}
    async with running(percy) as node:
        nameless = await node.send("POST", "/mcp/call", json={"arguments": 1}, token=None)
        shapeless = await node.send("POST", "/mcp/call", json={"arguments": 1}, token=PSK)
        answered = await node.send("POST", "/mcp/call", json=wanted, token=PSK)
    assert [reply.status for reply in (nameless, shapeless, answered)] == [401, 400, 200]
    (call,) = received
    assert answered.json["trace"]["trace_id"] == call.trace.trace_id
    assert (call.auth.mode, call.auth.principal_id) == ("psk", "psk")
    assert (call.target.agent_id, call.input.task) == ("percy", "hi")
    assert len({reply.json["trace"]["trace_id"] for reply in (shapeless, nameless, answered)}) == 3


@requirement("001-31", "001-32", "001-33", "001-34", "001-30")
def test_the_envelope_has_the_documented_blocks() -> None:
    envelope = msgspec.json.decode(msgspec.json.encode(made_call(timeout_ms=DEFAULT_TIMEOUT_MS)))
    assert set(envelope) == {"trace", "auth", "target", "input", "response"}
    assert {"trace_id", "span_id", "parent_span_id"} == set(envelope["trace"])
    assert {"mode", "principal_id", "agent_passport_id", "signature", "key_id"} <= set(envelope["auth"])
    assert envelope["target"] == {"agent_id": "percy", "capability": "reason", "timeout_ms": 60_000}
    assert envelope["input"] == {"task": "think", "context": {}, "attachments": []}
    assert envelope["response"] == {"stream": False, "format": "text"}
