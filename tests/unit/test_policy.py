"""Scopes and trust tiers: what a caller may do, what it may know of, and in which words it is refused."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from a2a_fabric.config import Config
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import ConfigError, Forbidden
from a2a_fabric.core.policy import (
    check_inbox,
    check_metrics,
    check_publish,
    check_register,
    check_send,
    check_subscribe,
    find_console_role,
    find_refusal,
    find_refusal_of_unknown,
    has_no_rights,
    has_scope,
    has_scope_kind,
    is_limited,
    may_know_topic,
    narrow_manifest,
)
from a2a_fabric.core.scopes import is_known_scope
from a2a_fabric.identity.settings import IssuerSettings
from a2a_fabric.identity.token_verifiers import principal_from_claims
from a2a_fabric.node.identity import collect_shared_keys
from a2a_fabric.registry.catalog import Catalog
from tests.marks import requirement
from tests.unit.made import agent


def caller(*scopes: str, **more: Any) -> Principal:
    return Principal(**{"principal_id": "carol", "trust": "local", "scp": scopes, **more})


UNLIMITED = caller(scp=None)
PERCY = agent("percy", "reason", "plan", trust_tier="org")


def may(check: Any, *arguments: Any, **more: Any) -> bool:
    try:
        check(*arguments, **more)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(
    ("scopes", "seen"),
    [
        (["*"], ["reason", "plan"]),
        (["agent:*"], ["reason", "plan"]),
        (["agent:percy"], ["reason", "plan"]),
        (["agent:per*"], ["reason", "plan"]),
        (["agent:percy2"], None),
        (["agent:perc"], None),
        (["capability:PLAN"], ["plan"]),
        (["capability:pl*"], ["plan"]),
        (["capability:nothing"], None),
        (["tool:*", "metrics", "register", "message:percy", "inbox:percy", "topic:*"], None),
        ([], None),
    ],
)
def test_a_caller_sees_of_an_agent_what_it_may_call(scopes: list[str], seen: list[str] | None) -> None:
    found = narrow_manifest(caller(*scopes), PERCY)
    assert (None if found is None else [each.name for each in found.capabilities]) == seen
    for name in ("reason", "plan"):
        assert (find_refusal(caller(*scopes), PERCY, name) is None) is (seen is not None and name in seen)


@requirement("001-29")
def test_both_lists_of_a_mandate_bind() -> None:
    both = caller("agent:percy", cap=("capability:plan",))
    assert [each.name for each in (narrow_manifest(both, PERCY) or PERCY).capabilities] == ["plan"]
    assert narrow_manifest(caller("agent:percy", cap=("agent:coder",)), PERCY) is None
    assert has_no_rights(caller("*", cap=()))


@pytest.mark.parametrize("scopes", [(), ("read", "openid"), ("agent",), ("agent:",), ("topic",), ("", ":", "x:y")])
def test_words_that_are_no_scopes_allow_nothing(scopes: tuple[str, ...]) -> None:
    assert has_no_rights(caller(*scopes))
    assert not any(map(is_known_scope, scopes))


def test_a_list_that_is_not_there_limits_nothing() -> None:
    assert not has_no_rights(UNLIMITED)
    assert not is_limited(UNLIMITED)
    assert not is_limited(caller("agent:x", "*"))
    assert is_limited(caller(scp=None, trust="org"))


@requirement("001-41")
@pytest.mark.parametrize("trust", ["local", "org", "public"])
@pytest.mark.parametrize("scopes", [None, ("agent:percy",), ("capability:reason",), ("agent:coder",), ()])
def test_an_agent_that_is_out_of_reach_is_refused_like_one_that_is_not_there(trust: Any, scopes: Any) -> None:
    who = Principal(trust=trust, scp=scopes)
    hidden = agent("vault", "open", trust_tier="local")
    for capability in ("open", "reason"):
        told, unknown = find_refusal(who, hidden, capability), find_refusal_of_unknown(who, "vault", capability)
        if told is not None:
            assert told == unknown
        elif unknown is not None:  # allowed by scope, but of an agent without it: then the planner does not find it
            assert narrow_manifest(who, hidden) is None


def test_each_kind_of_scope_opens_what_it_names_and_nothing_else() -> None:
    opens: dict[str, set[str]] = {
        "agent:percy": {"send"}, "message:percy": {"send"}, "message:*": {"send"}, "inbox:percy": {"inbox"},
        "register:percy": {"inbox", "register"}, "register": {"inbox", "register"},
        "topic:a.b": {"publish", "subscribe"}, "topic:a.*": {"publish", "subscribe"},
        "publish:a.b": {"publish"}, "subscribe:a.b": {"subscribe"},
        "metrics": {"metrics"}, "tool:percy": set(), "capability:percy": set(), "topic:a": set(), "topic:b*": set(),
        "*": {"send", "inbox", "register", "publish", "subscribe", "metrics"},
    }  # fmt: skip
    for scope, opened in opens.items():
        who = caller(scope)
        done = {
            "send": may(check_send, who, "percy", PERCY),
            "inbox": may(check_inbox, who, "percy", is_own=False),
            "register": may(check_register, who, "percy"),
            "publish": may(check_publish, who, "a.b"),
            "subscribe": may(check_subscribe, who, "a.b"),
            "metrics": may(check_metrics, who),
        }
        assert {name for name, is_open in done.items() if is_open} == opened, scope
        assert may_know_topic(who, "a.b") is not {"publish", "subscribe"}.isdisjoint(opened), scope
        assert has_scope_kind(who, scope.partition(":")[0]) or scope == "*"


def test_callers_of_public_trust_have_only_what_a_scope_says() -> None:
    stranger = Principal(trust="public")
    assert not has_scope(stranger, "topic:x")
    assert not may(check_inbox, stranger, "anonymous", is_own=True)
    assert not may(check_register, stranger, "x")
    assert may(check_register, Principal(trust="public", scp=("register",)), "x")
    assert find_refusal(stranger, agent("p", "x", trust_tier="public"), "x") is None


def test_metrics_name_all_agents_so_they_are_for_callers_of_full_trust() -> None:
    assert may(check_metrics, caller("metrics"))
    assert not may(check_metrics, caller("metrics", trust="org"))


def test_a_message_is_brought_only_to_agents_of_the_caller_s_tiers() -> None:
    inner = agent("vault", "open", trust_tier="local")
    assert may(check_send, UNLIMITED, "anybody", None)
    staff = caller(scp=None, trust="org")
    assert may(check_send, staff, "percy", PERCY)
    assert not may(check_send, staff, "vault", inner)
    assert not may(check_send, staff, "nobody", None)


@requirement("001-29")
def test_the_cap_of_a_token_narrows_it_also_to_nothing() -> None:
    issuer = IssuerSettings(id="corp", issuer="https://login.example", scopes=("agent:*",))
    for cap, left in (
        (["capability:plan"], ("capability:plan",)), ("plan agent:x", ("agent:x", "capability:plan")), ([], ()),
        (7, ()), (None, ()),
    ):  # fmt: skip
        found = principal_from_claims({"sub": "alice", "cap": cap}, issuer, "jwt", None)
        assert found.cap == left
        assert has_no_rights(found) is (left == ())
    assert principal_from_claims({"sub": "alice"}, issuer, "jwt", None).cap is None


def test_a_scope_that_is_none_stops_the_start() -> None:
    from_file = {"auth": {"keys": [{"id": "carol", "key": "the-key-of-carol", "scopes": ["agents:percy"]}]}}
    with pytest.raises(ConfigError, match=r"auth: keys: carol: 'agents:percy' is not a scope"):
        collect_shared_keys(msgspec.convert(from_file, Config), None)


def test_a_view_of_ten_thousand_agents_is_made_once() -> None:
    catalog = Catalog(many(10_000))
    assert catalog.view_for(UNLIMITED) is catalog
    for scopes, number in (
        (("agent:a7",), 1),
        (("capability:c5",), 100),
        (tuple(f"agent:a{n}" for n in range(500)), 500),
    ):
        began_at = time.perf_counter()
        view = catalog.view_for(caller(*scopes))
        assert len(view.agents) == number
        assert all(catalog.view_for(caller(*scopes)) is view for _ in range(100))
        assert time.perf_counter() - began_at < 5.0
    assert Catalog(many(10)).view_for(caller("agent:a7")).get("a7") is not None


def many(number: int) -> list[Manifest]:
    return [agent(f"a{n}", f"c{n % 100}", f"d{n}") for n in range(number)]


@pytest.mark.parametrize(
    ("principal", "role"),
    [
        (Principal(mode="psk", principal_id="psk", trust="local"), "operator"),
        (Principal(mode="psk", principal_id="a", trust="local"), None),
        (Principal(mode="psk", principal_id="a", trust="local", scp=("*",)), None),
        (Principal(mode="psk", principal_id="a", trust="local", scp=("console:*",)), None),
        (Principal(mode="psk", principal_id="a", trust="local", scp=("console:view",)), "viewer"),
        (Principal(mode="psk", principal_id="a", trust="local", scp=("console:operate",)), "operator"),
        (Principal(mode="psk", principal_id="a", trust="org", scp=("console:operate",)), None),
        (Principal(mode="psk", principal_id="a", trust="local", scp=("console:operate",), cap=("agent:x",)), None),
        (Principal(mode="jwt", principal_id="i:a", trust="local", scp=("console:operate",)), "viewer"),
        (Principal(mode="jwt", principal_id="i:a", trust="local", scp=("console:view",)), "viewer"),
        (Principal(mode="passport", principal_id="a", trust="local", scp=("console:operate",)), "viewer"),
    ],
)
def test_only_a_scope_that_names_it_opens_the_console_and_no_token_makes_an_operator(
    principal: Principal, role: str | None
) -> None:
    assert find_console_role(principal) == role
