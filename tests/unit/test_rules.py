"""The operator's rules: first match, both halves, and what a refusal may give away."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.active_policy import ActivePolicy
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Principal, hide_private
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.policy import find_refusal, find_refusal_of_unknown, is_limited, narrow_manifest
from a2a_fabric.core.rules import CallerFacts, Policy, PolicyRule, RuleSet

FILES = Manifest(
    agent_id="files",
    endpoint={},
    trust_tier="org",
    audience="work",
    tags=("disk",),
    capabilities=(
        Capability(name="read-file", side_effects="reads"),
        Capability(name="write-file", side_effects="writes"),
        Capability(name="format"),
    ),
)
OPEN = Manifest(agent_id="open", endpoint={})
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC).timestamp()  # a Wednesday
CI = Principal(mode="psk", principal_id="ci", trust="local")


def rules(*tables: dict[str, Any]) -> Policy:
    return Policy(
        [msgspec.convert({"name": f"r{n}", "effect": "deny", **each}, PolicyRule) for n, each in enumerate(tables)]
    )


def selected(policy: Policy, now: float = NOON, **facts: Any) -> RuleSet | None:
    return policy.select(CallerFacts(**{"principal_id": "ci", "trust": "local", **facts}), now)


def verdict(
    table: dict[str, Any], manifest: Manifest = FILES, capability: str = "read_file", **facts: Any
) -> str | None:
    found = selected(rules(table), **facts)
    return None if found is None else found.decide(manifest, capability).rule


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        ({"principals": ["c?", "x"]}, {}),
        ({"principals": ["corp:*"]}, {"principal_id": "corp:alice"}),
        ({"delegates": ["bot-*"]}, {"delegate_id": "bot-7"}),
        ({"on_behalf_of": ["alice"]}, {"on_behalf_of": "alice"}),
        ({"trust": ["local", "org"]}, {}),
        ({"doors": ["mcp"]}, {"door": "mcp"}),
        ({"origins": ["10.0.0.0/8"]}, {"address": "10.1.2.3"}),
        ({"origins": ["10.0.0.0/8"]}, {"address": "::ffff:10.1.2.3"}),
        ({"origins": ["2001:db8::/32"]}, {"address": "2001:db8::1"}),
        ({"origins": ["https://*.example.com"]}, {"site": "https://App.example.com"}),
        ({"when": {"days": ["wed"]}}, {}),
        ({"when": {"hours": "09:00-18:00"}}, {}),
        ({"when": {"hours": "20:00-13:00", "timezone": "UTC"}}, {}),
        ({"when": {"hours": "13:00-14:00", "timezone": "Europe/Berlin"}}, {}),
        ({"when": {"since": "2026-11-18T12:00:00Z", "until": "2026-11-18T12:00:01Z"}}, {}),
        ({"agents": ["fi*"]}, {}),
        ({"agents": ["files"], "capabilities": ["READ file"]}, {}),
        ({"capabilities": ["read*"]}, {}),
        ({"side_effects": ["reads"]}, {}),
        ({"tiers": ["org"], "audiences": ["work"], "tags": ["di?k"]}, {}),
        ({}, {}),
    ],
)  # fmt: skip
def test_a_rule_matches_when_all_that_it_names_matches(table: dict[str, Any], facts: dict[str, Any]) -> None:
    assert verdict(table, **facts) == "r0"


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        ({"principals": []}, {}),
        ({"principals": ["CI"]}, {}),
        ({"delegates": ["*"]}, {}),
        ({"on_behalf_of": ["*"]}, {}),
        ({"trust": ["public"]}, {}),
        ({"doors": ["mcp"]}, {"door": "rest"}),
        ({"origins": ["10.0.0.0/8"]}, {"address": "11.0.0.1"}),
        ({"origins": ["10.0.0.0/8"]}, {"address": "no address"}),
        ({"origins": ["10.0.0.0/8"]}, {}),
        ({"origins": ["https://example.com"]}, {"site": "https://example.com.evil"}),
        ({"when": {"days": ["thu"]}}, {}),
        ({"when": {"hours": "12:01-12:00"}}, {}),
        ({"when": {"since": "2026-11-18T12:00:01Z"}}, {}),
        ({"when": {"until": "2026-11-18T12:00:00Z"}}, {}),
        ({"agents": ["fi"]}, {}),
        ({"agents": ["files"], "capabilities": ["write*"]}, {}),
        ({"side_effects": ["writes", "none"]}, {}),
        ({"tiers": ["public"]}, {}),
        ({"audiences": ["personal"]}, {}),
        ({"tags": ["net"]}, {}),
    ],
)  # fmt: skip
def test_a_rule_does_not_match_when_one_thing_differs(table: dict[str, Any], facts: dict[str, Any]) -> None:
    assert verdict(table, **facts) is None


def test_the_first_rule_that_matches_decides_however_it_is_found() -> None:
    found = selected(
        rules(
            {"effect": "allow", "capabilities": ["read-file"]},
            {"agents": ["files"]},
            {"effect": "allow", "agents": ["*"]},
        )
    )
    assert found is not None
    assert found.decide(FILES, "read_file").rule == "r0"
    assert found.denies(FILES, "write_file")
    assert found.decide(OPEN, "anything").rule == "r2"


def test_what_declares_no_side_effects_counts_as_writing() -> None:
    assert verdict({"side_effects": ["writes"]}, capability="format") == "r0"
    assert verdict({"side_effects": ["writes"]}, OPEN, "anything") == "r0"
    assert verdict({"side_effects": ["none", "reads"]}, OPEN, "anything") is None


def test_all_of_an_agent_is_denied_if_something_of_it_is() -> None:
    for table, is_denied in (
        ({"side_effects": ["writes"]}, True), ({"capabilities": ["read-file"]}, True),
        ({"capabilities": ["delete"]}, False), ({"agents": ["other"]}, False),
    ):  # fmt: skip
        found = selected(rules(table))
        assert found is not None
        assert found.denies(FILES, "*") is is_denied
    found = selected(rules({"capabilities": ["delete"]}))
    assert found is not None
    assert not found.hides_unlisted(OPEN)
    assert found.denies(OPEN, "*")  # it may have such a capability
    spared = selected(rules({"effect": "allow", "agents": ["open"]}, {"capabilities": ["delete"]}))
    assert spared is not None
    assert not spared.denies(OPEN, "*")


def bound(policy: ActivePolicy, principal: Principal = CI) -> Principal:
    return policy.bind(principal, "mcp", "", "")


def active(*tables: dict[str, Any]) -> ActivePolicy:
    return ActivePolicy(rules(*tables).rules, lambda: NOON)


def test_a_caller_sees_what_the_rules_leave() -> None:
    caller = bound(active({"side_effects": ["writes"]}))
    assert is_limited(caller)
    shown = narrow_manifest(caller, FILES)
    assert shown is not None
    assert [each.name for each in shown.capabilities] == ["read-file"]
    assert narrow_manifest(caller, OPEN) is None
    assert narrow_manifest(bound(active({"agents": ["f*"]})), FILES) is None
    assert not is_limited(bound(active({"effect": "allow"})))


def test_a_refusal_is_the_same_whether_there_is_such_an_agent_or_not() -> None:
    tables: list[dict[str, Any]] = [
        {"agents": ["secret-*"]}, {"tiers": ["org"]}, {"side_effects": ["writes"]}, {"tags": ["disk"]},
    ]  # fmt: skip
    for first in tables:
        for second in tables:
            caller = bound(active(first, second))
            for capability in ("write-file", "no-such"):
                refused = find_refusal(caller, FILES, capability)
                if refused is None:
                    continue
                shown = getattr(refused, "public", refused)
                assert find_refusal_of_unknown(caller, "files", capability) == shown


def test_the_operator_may_know_what_there_is() -> None:
    operator = bound(active({"tiers": ["org"]}), Principal(mode="psk", principal_id="psk", trust="local"))
    assert (
        find_refusal(operator, FILES, "read_file")
        == "rule 'r0' denies this caller capability 'read_file' of agent 'files'"
    )
    assert find_refusal_of_unknown(operator, "nothing", "x") is None


def test_a_caller_is_the_same_before_and_after_its_rules_change() -> None:
    policy = active({"agents": ["files"]})
    before = bound(policy)
    assert bound(policy) is before
    policy.replace(rules({"agents": ["other"]}).rules)
    after = bound(policy, before)
    assert (before, hash(before)) == (after, hash(after)) == (CI, hash(CI))
    assert find_refusal(after, FILES, "read_file") is None
    policy.replace(())
    assert bound(policy, after).entry is msgspec.UNSET


def test_rules_are_neither_stored_nor_sent() -> None:
    caller = bound(active({"agents": ["files"], "origins": ["10.0.0.0/8"]}))
    stored = msgspec.json.decode(msgspec.json.encode(caller), type=Principal)
    assert b"files" not in msgspec.json.encode(caller)
    assert stored.entry
    assert stored.entry.rules is None
    assert b"entry" not in msgspec.json.encode(hide_private(caller))


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        ([{"name": "a"}, {"name": "a"}], "two rules named 'a'"),
        ([{"when": {"hours": "9-17"}}], "is not HH:MM-HH:MM"),
        ([{"when": {"hours": "09:00-09:00"}}], "names no time"),
        ([{"when": {"timezone": "Mars/Olympus"}}], "no time zone"),
        ([{"when": {"timezone": "../../etc/passwd"}}], "no time zone"),
        ([{"origins": ["10.0.0.1/8"]}], "neither a network"),
        ([{"origins": ["example.com"]}], "neither a network"),
    ],
)
def test_a_rule_that_cannot_be_read_is_named(tables: list[dict[str, Any]], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        rules(*tables)


def test_a_broken_policy_keeps_the_old_one() -> None:
    policy = active({"agents": ["files"]})
    broken = msgspec.convert({"name": "x", "effect": "deny", "when": {"hours": "x"}}, PolicyRule)
    with pytest.raises(ConfigError):
        policy.replace([broken])
    assert find_refusal(bound(policy), FILES, "read_file") is not None


NAMES = st.sampled_from(["files", "other", "f*", "*", "f?les", ""])
TABLES = st.fixed_dictionaries(
    {"effect": st.sampled_from(["allow", "deny"])},
    optional={
        "principals": st.lists(st.sampled_from(["ci", "c*", "bob"]), max_size=2),
        "agents": st.lists(NAMES, max_size=2),
        "capabilities": st.lists(st.sampled_from(["read-file", "read*", "write_file", "*"]), max_size=2),
        "side_effects": st.lists(st.sampled_from(["none", "reads", "writes"]), max_size=2),
        "tiers": st.lists(st.sampled_from(["local", "org", "public"]), max_size=2),
    },
)


@given(st.lists(TABLES, max_size=8), st.sampled_from(["read-file", "write-file", "format", "no-such"]))
def test_the_index_changes_no_verdict(tables: list[dict[str, Any]], capability: str) -> None:
    """Rule by rule, without any index, the same rule decides; and a denial has a rule that names alone suggest."""
    expected = next((n for n, each in enumerate(tables) if verdict({**each, "name": "r0"}, FILES, capability)), None)
    found = selected(rules(*tables))
    decided = None if found is None else found.decide(FILES, capability)
    assert (None if decided is None else decided.rule) == (None if expected is None else f"r{expected}")
    if found is not None and decided is not None and decided.effect == "deny":
        assert found.find_denial_by_name("files", capability) is not None
