"""An index of the phrases by which agents are chosen: triggers and names of skills, signals, and names of agents.

A request is compared with the index word by word, so the cost grows with the length of the request and not with the
number of agents. A phrase of very many agents says little about any of them: only the first `_MAX_HEAD` of its agents
are considered because of it alone, but it still counts for agents that are considered because of another phrase.

Agents that registered themselves are indexed by their owner. They answer only requests of that owner, so no stranger's
phrases cost or displace anything."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.capability_choice import may_change_something
from a2a_fabric.core.words import MAX_PHRASE_WORDS, Word, fold_phrase, measure_phrase

_MAX_HEAD = 32  # agents of one phrase
_MAX_CAPABILITIES = 200  # of one agent
_MAX_TRIGGERS = 50  # of one capability
_MAX_SIGNALS = 200  # of one agent
_STRIDE = 5000  # unchanged agents that one step of an update passes


class PhraseMatch(NamedTuple):
    """A phrase that occurs in a request, and the agents that have it."""

    phrase: str
    position: int  # of its first word
    agents: Mapping[str, float]
    head: Iterable[str]


class PhraseTable:
    """Phrases, and for each agent (or skill) that has one how specific it is there."""

    def __init__(self) -> None:
        self.agents: dict[str, dict[str, float]] = {}
        self._beginnings: dict[str, int] = {}  # of phrases of several words, and of how many
        self._heads: dict[str, list[str]] = {}

    def add(self, phrase: str, agent_id: str, weight: float) -> None:
        agents = self.agents.get(phrase)
        if agents is None:
            self.agents[phrase] = {agent_id: weight}
            if " " in phrase:
                for beginning in _iter_beginnings(phrase):
                    self._beginnings[beginning] = self._beginnings.get(beginning, 0) + 1
            return
        agents[agent_id] = max(weight, agents.get(agent_id, 0.0))
        self._heads.pop(phrase, None)

    def remove(self, phrase: str, agent_id: str) -> None:
        agents = self.agents.get(phrase)
        if agents is None or agents.pop(agent_id, None) is None:
            return
        self._heads.pop(phrase, None)
        if agents:
            return
        del self.agents[phrase]
        if " " in phrase:
            for beginning in _iter_beginnings(phrase):
                self._beginnings[beginning] -= 1
                if not self._beginnings[beginning]:
                    del self._beginnings[beginning]

    def find(self, words: Sequence[Word]) -> Iterator[PhraseMatch]:
        """Each phrase once, where it occurs first."""
        seen: set[str] = set()
        for position in range(len(words)):
            for phrase in self._extend("", words, position, MAX_PHRASE_WORDS):
                if phrase not in seen:
                    seen.add(phrase)
                    yield PhraseMatch(phrase, position, self.agents[phrase], self._find_head(phrase))

    def _extend(self, beginning: str, words: Sequence[Word], position: int, most: int) -> Iterator[str]:
        for form in words[position].forms:
            phrase = f"{beginning}{form}"
            if phrase in self.agents:
                yield phrase
            if most > 1 and position + 1 < len(words) and phrase in self._beginnings:
                yield from self._extend(f"{phrase} ", words, position + 1, most - 1)

    def _find_head(self, phrase: str) -> Iterable[str]:
        agents = self.agents[phrase]
        if len(agents) <= _MAX_HEAD:
            return agents
        head = self._heads.get(phrase)
        if head is None:
            head = sorted(sorted(agents), key=agents.__getitem__, reverse=True)[:_MAX_HEAD]
            self._heads[phrase] = head
        return head


class PhraseGroup:
    """The agents of one owner. The operator's agents are one group."""

    def __init__(self) -> None:
        self.triggers = PhraseTable()
        self.signals = PhraseTable()
        self.names = PhraseTable()

    @property
    def is_empty(self) -> bool:
        return not (self.triggers.agents or self.signals.agents or self.names.agents)


class WordIndex:
    """The phrases of a catalog's agents; an update reads only agents that changed.

    `find_learnt` says of an agent, by id, whether its capabilities were learnt by asking it.
    """

    def __init__(self, find_learnt: Callable[[str], bool] = lambda agent_id: False) -> None:
        self.manifests: dict[str, Manifest] = {}
        self.learnt: set[str] = set()  # agents, as they were when they were read
        self._find_learnt = find_learnt
        self._groups: dict[str | None, PhraseGroup] = {}

    def update(self, agents: Sequence[Manifest]) -> Generator[None]:
        """Update in small steps; between two of them the index can be read."""
        for agent_id in self.manifests.keys() - set(map(attrgetter("agent_id"), agents)):
            self._remove(self.manifests.pop(agent_id))
            yield
        for number, manifest in enumerate(agents, 1):
            indexed = self.manifests.get(manifest.agent_id)
            if indexed is not manifest and indexed != manifest:
                if indexed is not None:
                    self._remove(indexed)
                self.manifests[manifest.agent_id] = manifest
                self._add(manifest)
                yield
            elif number % _STRIDE == 0:
                yield

    def groups_for(self, caller: str) -> list[PhraseGroup]:
        """The operator's agents, and those that the caller registered."""
        return [group for owner in (None, caller) if (group := self._groups.get(owner)) is not None]

    def _add(self, manifest: Manifest) -> None:
        group = self._groups.setdefault(manifest.registered_by, PhraseGroup())
        is_learnt = self._find_learnt(manifest.agent_id)
        (self.learnt.add if is_learnt else self.learnt.discard)(manifest.agent_id)
        for table, phrase, weight in _iter_phrases(group, manifest, is_learnt):
            table.add(phrase, manifest.agent_id, weight)

    def _remove(self, manifest: Manifest) -> None:
        group = self._groups[manifest.registered_by]
        for table, phrase, _ in _iter_phrases(group, manifest, manifest.agent_id in self.learnt):
            table.remove(phrase, manifest.agent_id)
        self.learnt.discard(manifest.agent_id)
        if group.is_empty:
            del self._groups[manifest.registered_by]


def list_trigger_phrases(capability: Capability) -> list[str]:
    """The folded triggers of a capability, and its name if that has several words: one word is a common word, too."""
    name = fold_phrase(capability.name)
    phrases = [folded for each in capability.triggers[:_MAX_TRIGGERS] if (folded := fold_phrase(each))]
    return [*phrases, name] if " " in name else phrases


def may_answer_signals(manifest: Manifest, *, is_learnt: bool) -> bool:
    """Not if all that it can do may change something outside: then its words alone must not choose it."""
    return not manifest.capabilities or not all(
        may_change_something(each, is_learnt=is_learnt) for each in manifest.capabilities
    )


def _iter_phrases(group: PhraseGroup, manifest: Manifest, is_learnt: bool) -> Iterator[tuple[PhraseTable, str, float]]:
    """The phrases of an agent; of its signals the first ones are the most specific."""
    for capability in manifest.capabilities[:_MAX_CAPABILITIES]:
        for phrase in list_trigger_phrases(capability):
            yield group.triggers, phrase, measure_phrase(phrase)
    signals = manifest.signals[:_MAX_SIGNALS] if may_answer_signals(manifest, is_learnt=is_learnt) else ()
    for position, signal in enumerate(signals):
        if phrase := fold_phrase(signal):
            weight = (1.0 - 0.5 * position / len(signals)) * (0.6 + 0.4 * measure_phrase(phrase))
            yield group.signals, phrase, weight
    for name in (manifest.agent_id, manifest.display_name):
        if phrase := fold_phrase(name):
            yield group.names, phrase, 1.0


def _iter_beginnings(phrase: str) -> Iterator[str]:
    at = phrase.find(" ")
    while at >= 0:
        yield phrase[:at]
        at = phrase.find(" ", at + 1)
