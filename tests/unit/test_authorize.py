from __future__ import annotations

from typing import Any

import pytest

from a2a_fabric.core.call import Principal, compose, ignore_event
from a2a_fabric.core.errors import Forbidden
from a2a_fabric.core.policy import find_refusal
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.steps.entry import authorize
from a2a_fabric.testing import ScriptedRuntime
from tests.unit.made import Known, agent, call, validate

TIERS = ("local", "org", "public")


@pytest.mark.parametrize("mine", TIERS)
@pytest.mark.parametrize("theirs", TIERS)
def test_who_is_trusted_as_much_as_the_agent_asks_for_may_call(mine: Any, theirs: Any) -> None:
    refused = find_refusal(Principal(trust=mine), agent("percy", "reason", trust_tier=theirs), "reason")
    assert (refused is None) is (TIERS.index(mine) <= TIERS.index(theirs))


async def test_what_policy_refuses_never_reaches_the_agent() -> None:
    percy = ScriptedRuntime(agent("percy", "reason", trust_tier="local"))
    handler = authorize(Known(percy.manifest))(percy)
    with pytest.raises(
        Forbidden, match=r"^Refused by policy: there is no agent 'percy' for callers of trust tier 'public'"
    ) as caught:
        await handler(call(auth=Principal(trust="public")), ignore_event)
    assert caught.value.details == {"agent_id": "percy", "capability": "reason"}
    assert percy.calls == []
    await handler(call(), ignore_event)
    assert len(percy.calls) == 1


@pytest.mark.parametrize("limits", [{"scp": ("agent:coder",)}, {"cap": ()}, {"scp": ("*",), "cap": ("agent:x",)}])
async def test_delegation_scopes_and_capabilities_both_bind(limits: dict[str, Any]) -> None:
    percy = ScriptedRuntime(agent("percy", "reason"))
    handler = authorize(Known(percy.manifest))(percy)
    with pytest.raises(Forbidden, match="outside the scopes"):
        await handler(call(auth=Principal(trust="local", **limits)), ignore_event)


async def test_tools_have_scopes_of_their_own() -> None:
    tool = agent("math.calculate", "eval", category="math", trust_tier="public")
    for scope, allowed in [("tool:*", True), ("tool:math.calculate", True), ("agent:*", False), ("*", True)]:
        assert (find_refusal(Principal(scp=(scope,)), tool, "eval") is None) is allowed


async def test_a_stranger_learns_nothing_of_the_schema() -> None:
    """Who may not call is told so, whatever the arguments."""
    percy = ScriptedRuntime(agent("percy", "reason", trust_tier="local"))
    find = Catalog([percy.manifest]).get
    handler = compose([authorize(Known(percy.manifest)), validate(find)], percy)
    with pytest.raises(Forbidden):
        await handler(call(auth=Principal(trust="public"), context={"bad": 1}), ignore_event)
