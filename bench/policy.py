"""The time that the operator's rules take for each call, by their number."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence

from a2a_fabric.core.active_policy import ActivePolicy
from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.call import Principal
from a2a_fabric.core.policy import find_refusal
from a2a_fabric.core.rules import CallerFacts, Policy, PolicyRule

COUNTS = (0, 10, 1_000)
TIMES = 2000
_AGENT = Manifest(agent_id="agent-7", endpoint={}, capabilities=(Capability(name="echo"),))
_CALLER = Principal(mode="psk", principal_id="caller-7", trust="local")
_FACTS = CallerFacts("caller-7", trust="local", door="mcp")


def run() -> None:
    print("\n| rules | each call µs | first call of a caller to an agent µs | the same, all rules with patterns µs |")
    print("|---|---|---|---|")
    for count in COUNTS:
        literal = [_make_rule(n, f"caller-{n % 50}", f"agent-{n}") for n in range(count)]
        patterns = [_make_rule(n, f"caller-{n % 50}*", f"agent-{n}-*") for n in range(count)]
        figures = (_time_repeated(literal), _time_first(literal), _time_first(patterns))
        print(f"| {count:,} | {' | '.join(f'{each * 1e6:.1f}' for each in figures)} |")


def _make_rule(number: int, principal: str, agent: str) -> PolicyRule:
    return PolicyRule(name=f"rule-{number}", effect="deny", principals=(principal,), agents=(agent,), tiers=("public",))


def _time_repeated(rules: Sequence[PolicyRule]) -> float:
    """Binding at the door, and again in the step *authorize*, and the verdict."""
    policy = ActivePolicy(rules)

    def decide() -> None:
        if policy.policy is None:
            find_refusal(_CALLER, _AGENT, "echo")
            return
        bound = policy.bind(_CALLER, "mcp", "", "")
        find_refusal(policy.bind(bound, "mcp", "", ""), _AGENT, "echo")

    decide()
    return _measure(decide, lambda: None)


def _time_first(rules: Sequence[PolicyRule]) -> float:
    """Nothing is remembered of this caller and this agent."""
    policy = Policy(rules)

    def decide() -> None:
        selected = policy.select(_FACTS, 0.0)
        if selected is not None:
            selected.decide(_AGENT, "echo")

    return _measure(decide, policy.forget)


def _measure(work: Callable[[], None], prepare: Callable[[], None]) -> float:
    gc.collect()
    times = []
    for _ in range(TIMES):
        prepare()
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
