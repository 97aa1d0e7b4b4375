"""The time to choose an agent by words, by the number of agents, beside a scan of all their phrases."""

from __future__ import annotations

import gc
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.federation import WordRouting
from a2a_fabric.core.word_index import WordIndex
from a2a_fabric.core.word_routing import WordRouter, WordRules

COUNTS = (100, 1_000, 10_000)
REQUESTS = 200
SCANNED = 5  # requests, because a scan of 10,000 agents takes long
_SYLLABLES = (
    "ka",
    "lo",
    "mi",
    "ru",
    "sen",
    "tor",
    "vel",
    "bra",
    "dun",
    "fis",
    "gol",
    "hap",
    "jer",
    "nix",
    "pon",
    "qua",
)
_COMMON = ("report", "data", "plan", "meeting", "list", "help", "work", "team", "check", "order")


def run() -> None:
    print("\n| agents (10 signals, 5 skills each) | load, s | decision, median µs | p99 µs | naive scan, µs |")
    print("|---|---|---|---|---|")
    for count in COUNTS:
        agents = _make_agents(count)
        rules = WordRules(WordRouting(skill_index={c.name: a.agent_id for a in agents for c in a.capabilities}))
        index = WordIndex()
        gc.collect()
        began = time.perf_counter()
        for _ in index.update(agents):
            pass
        load = time.perf_counter() - began
        router = WordRouter(index, rules, "", lambda agent_id: "online")
        texts = _make_requests(agents)
        router.route(texts[0])
        times = sorted(_measure(router.route, text) for text in texts)
        scans = [_measure(partial(_scan, agents), text) for text in texts[:SCANNED]]
        row = (statistics.median(times), times[int(len(times) * 0.99)], statistics.median(scans))
        print(f"| {count:,} | {load:.2f} | " + " | ".join(f"{each * 1e6:,.0f}" for each in row) + " |")


def _measure(route: Callable[[str], object], text: str) -> float:
    began = time.perf_counter()
    route(text)
    return time.perf_counter() - began


def _make_word(rng: random.Random) -> str:
    return "".join(rng.choice(_SYLLABLES) for _ in range(3))


def _make_agents(count: int) -> list[Manifest]:
    """Nine signals and the triggers are an agent's own; the last signal is one of ten that all agents share."""
    rng = random.Random(7)
    return [
        Manifest(
            agent_id=f"agent-{number:05}",
            endpoint={},
            signals=(*(f"{_make_word(rng)} {_make_word(rng)}" for _ in range(4)), *(_make_word(rng) for _ in range(5)),
                     rng.choice(_COMMON)),
            capabilities=tuple(
                Capability(name=f"skill-{number}-{skill}", triggers=(f"{_make_word(rng)} the {_make_word(rng)}",))
                for skill in range(5)
            ),
        )
        for number in range(count)
    ]  # fmt: skip


def _make_requests(agents: Sequence[Manifest]) -> list[str]:
    """A trigger, a signal or a common word of a random agent, in a sentence."""
    rng = random.Random(11)
    texts = []
    for number in range(REQUESTS):
        agent = rng.choice(agents)
        phrase = (agent.capabilities[number % 5].triggers[0], agent.signals[number % 9], agent.signals[-1])[number % 3]
        texts.append(f"Could you please {phrase} for the people of the team before we meet on Friday, thank you?")
    return texts


def _scan(agents: Sequence[Manifest], text: str) -> str | None:
    """What one writes first: every phrase of every agent as a regular expression."""
    best: tuple[int, str] | None = None
    for agent in agents:
        triggers = [trigger for capability in agent.capabilities for trigger in capability.triggers]
        for phrase in (*triggers, *agent.signals):
            found = re.search(rf"\b{re.escape(phrase)}\b", text, re.IGNORECASE)
            if found and (best is None or len(phrase) > best[0]):
                best = len(phrase), agent.agent_id
    return None if best is None else best[1]
