"""The time to choose an agent by words, by the number of agents, beside a scan of all their phrases; and the times to
read a registry of 10,000 agents and to check 1,000 folders."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.federation import WordRouting
from a2a_fabric.core.word_index import WordIndex
from a2a_fabric.core.word_routing import WordRouter, WordRules
from a2a_fabric.federation.lint import lint_path
from a2a_fabric.federation.scaffold import build_files
from a2a_fabric.federation.settings import FederationSettings
from a2a_fabric.federation.source import FederationSource

COUNTS = (100, 1_000, 10_000)
REQUESTS = 200
FOLDERS = 1_000
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
    _run_files()


def _run_files() -> None:
    with tempfile.TemporaryDirectory() as root:
        registry = _write_registry(Path(root), COUNTS[-1])
        folders = _write_folders(Path(root) / "agents", FOLDERS)
        source = FederationSource(registry, FederationSettings())
        reading = _measure(lambda path: asyncio.run(source.load()), str(registry))
        agents, problems = len(asyncio.run(source.load())), source.problems
        linting = _measure(lambda path: lint_path(Path(path)), str(folders))
    if agents != COUNTS[-1] or problems:
        raise RuntimeError(f"{agents} of {COUNTS[-1]} agents were read: {problems}")
    print("\n| files | s |")
    print("|---|---|")
    print(f"| reading a registry of {COUNTS[-1]:,} agents | {reading:.2f} |")
    print(f"| `agents lint` of {FOLDERS:,} folders | {linting:.2f} |")


def _write_registry(root: Path, count: int) -> Path:
    entries = {
        agent.agent_id: {
            "location": {"type": "remote", "kind": "agent", "url": f"http://127.0.0.1:9/{agent.agent_id}"},
            "description": "Works.",
            "signals": list(agent.signals),
            "skills": [
                {"id": each.name, "description": "Works.", "triggers": list(each.triggers)}
                for each in agent.capabilities
            ],
        }
        for agent in _make_agents(count)
    }
    path = root / "registry.json"
    path.write_bytes(msgspec.json.encode({"version": "3.0", "agents": entries}))
    return path


def _write_folders(root: Path, count: int) -> Path:
    for number in range(count):
        folder = root / f"agent-{number}"
        for name, text in build_files(folder.name, "claude").items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    return root


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
