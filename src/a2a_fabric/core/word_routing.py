"""Which agent a request in words is for: a pure decision from the words, the agents' phrases and a registry's rules.

In this order: an agent that the request addresses by name; a skill whose id it contains and that the skill index
knows; the longest trigger of a skill; the most specific signals of an agent. Words between quotation marks are what
the request is about, so they count only if nothing else decides. Equal agents are ordered by how early their phrase
stands in the request, then by health, then by id, so the same request always has the same answer.

A request for several agents is divided at the registry's connecting phrases, and only there where both sides are for
different agents and the phrase connects: "then" in "if it rains then stay" or in "since then" does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from a2a_fabric.core.agent import HEALTH_RANK, Manifest, Status
from a2a_fabric.core.call import Input
from a2a_fabric.core.capability_choice import choose_unnamed_capability
from a2a_fabric.core.coordination import find_refusal_of_delegation, find_rule_target, list_rules
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.federation import WordRouting
from a2a_fabric.core.routing import may_answer_unnamed
from a2a_fabric.core.word_index import PhraseMatch, PhraseTable, WordIndex, list_trigger_phrases
from a2a_fabric.core.words import (
    MAX_PHRASE_WORDS,
    MAX_TEXT,
    Word,
    contains_phrase,
    fold_phrase,
    measure_phrase,
    split_words,
)

MatchKind = Literal["name", "skill", "trigger", "signal"]

MAX_CANDIDATES = 5
SWITCH_COMMANDS = ("talk to", "switch to")  # of a node whose registries name none
_KINDS: tuple[MatchKind, ...] = ("signal", "trigger", "skill", "name")  # each decides before those in front of it
_FURTHER_SHARE = 0.35  # what a further phrase of the same agent counts, of its own weight
_MAX_PARTS = 8
_MAX_SHOWN = 200  # characters of a phrase in a reason
_GREETINGS = frozenset({"hey", "hi", "hello", "ok", "okay", "dear", "please"})
_REQUEST_VERBS = frozenset({"ask", "tell", "let", "have", "message", "ping"})
_BEFORE_VERB = frozenset({"please", "you", "to", "me", "ll", "and", "then", "also", "just"})
_AFTER_ADDRESS = tuple(",:;!–—，：")
_CONDITIONS = frozenset({"if", "when", "whenever", "once", "unless", "while"})
_NOT_CONNECTED_AFTER = frozenset({"back", "by", "since", "until", "till", "even", "every", "from", "before", "just"})
_SEQUENTIAL = frozenset({"then", "after", "afterward", "afterwards", "next", "finally", "subsequently"})
_REFERENCES = frozenset({"it", "them", "that", "those", "these", "this", "result", "both", "same"})
_BACK_PHRASES = ("switch back to", "go back to", "switch back", "go back", "back to")
_LEADING_WORDS = _GREETINGS | {"can", "could", "i", "want", "would", "like", "you", "me", "let", "now", "d", "to"}
_QUOTED = Word("\0", ("\0",), 0, 0, True, False)  # stands for what is between quotation marks


class NoAgentFits(BadInput):
    """The request fits no agent that this caller may ask."""

    def __init__(self, reason: str, candidates: Sequence[RouteCandidate] = ()) -> None:
        super().__init__(reason, field="text", candidates=[msgspec.to_builtins(each) for each in candidates] or None)


class RouteCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that a request may be for; `why` are sentences for people."""

    agent_id: str
    capability: str | None
    score: int
    why: tuple[str, ...]


class RequestPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a request for several agents; `depends_on` are the ids of parts whose results it needs."""

    id: str
    text: str
    agent_id: str
    capability: str | None
    reason: str
    depends_on: tuple[str, ...] = ()


class WordRoute(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`agent_id` is None if no agent fits; then the candidates are the nearest agents."""

    agent_id: str | None
    capability: str | None
    reason: str
    candidates: tuple[RouteCandidate, ...]
    parts: tuple[RequestPart, ...] = ()


class SwitchCommand(NamedTuple):
    """`agent_id` is None for the command that ends direct talk; `rest` is what the request says besides."""

    agent_id: str | None
    rest: str


class _Evidence:
    """What speaks for one agent."""

    __slots__ = ("agent_id", "kind", "matches", "position", "signals", "triggers")

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.kind: MatchKind = "signal"
        self.position = 1 << 30
        self.triggers: list[float] = []
        self.signals: list[float] = []
        self.matches: list[tuple[MatchKind, str]] = []

    def add(self, kind: MatchKind, phrase: str, position: int, weight: float) -> None:
        if _KINDS.index(kind) > _KINDS.index(self.kind):
            self.kind, self.position = kind, position
        elif kind == self.kind:
            self.position = min(self.position, position)
        if kind == "trigger":
            self.triggers.append(weight)
        elif kind == "signal":
            self.signals.append(weight)
        self.matches.append((kind, phrase))

    @property
    def score(self) -> int:
        if self.kind in ("name", "skill"):
            return 100 if self.kind == "name" else 97
        if self.kind == "trigger":
            return min(95, round(75 + 5 * _add_up(self.triggers) + _add_up(self.signals)))
        return min(74, round(74 * (1.0 - math.exp(-_add_up(self.signals)))))


class WordRules:
    """The rules of a node's registries, prepared for comparison."""

    def __init__(self, routing: WordRouting) -> None:
        self.routing = routing
        self.skill_index = routing.skill_index
        self.orchestrator = fold_phrase(routing.orchestrator)
        self.switch_commands = _fold_all((*(routing.switch_commands or SWITCH_COMMANDS), *_BACK_PHRASES))
        self.connectors = _fold_all(routing.multi_agent_triggers)
        self.skills = PhraseTable()
        for skill in routing.skill_index:
            if phrase := fold_phrase(skill):
                self.skills.add(phrase, skill, measure_phrase(phrase))


class WordRouter:
    """Decides for one caller: `index` has only agents that this caller may call."""

    def __init__(self, index: WordIndex, rules: WordRules, caller: str, find_status: Callable[[str], Status]) -> None:
        self._index = index
        self._rules = rules
        self._caller = caller
        self._find_status = find_status

    def rank(self, text: str) -> list[RouteCandidate]:
        """The best agents for a request, the best first; empty if no phrase of any agent is in it."""
        return [candidate for candidate, _ in self._rank(text, split_words(text))]

    def route(self, text: str) -> WordRoute | None:
        """None if no phrase of any agent is in the request."""
        candidates = self.rank(text)
        if not candidates:
            return None
        best = candidates[0]
        reason = f"'{best.agent_id}' answers, because {best.why[0]}."
        route = WordRoute(
            agent_id=best.agent_id, capability=best.capability, reason=reason, candidates=tuple(candidates)
        )
        return self.apply_rules(route, text, is_by_words=True)

    def apply_rules(self, route: WordRoute, text: str, *, is_by_words: bool) -> WordRoute:
        """The route to the agent to which a rule of the chosen agent's card hands such requests; else the same route.

        Only along the cards of both agents, once, and never to an agent that words may not choose.
        """
        manifest = self._index.manifests.get(route.agent_id or "")
        if manifest is None:
            return route
        for rule in list_rules(manifest):
            target = find_rule_target(rule)
            if target is None or target.is_forbidden or (rule.scope == "domain" and not is_by_words):
                continue
            delegate, phrase = self._index.manifests.get(target.agent_id), fold_phrase(rule.condition)
            is_meant = bool(phrase) and contains_phrase(split_words(text), phrase)
            if not is_meant or delegate is None or not self._may_take_over(manifest, delegate):
                continue
            capability = self._choose_capability(delegate, text)
            if capability is not None:
                why = f"'{manifest.agent_id}' hands requests with '{phrase[:_MAX_SHOWN]}' over to it"
                chosen = RouteCandidate(agent_id=delegate.agent_id, capability=capability, score=100, why=(why,))
                others = (each for each in route.candidates if each.agent_id != delegate.agent_id)
                return WordRoute(
                    agent_id=delegate.agent_id,
                    capability=capability,
                    reason=f"'{delegate.agent_id}' answers, because {why}.",
                    candidates=(chosen, *others)[:MAX_CANDIDATES],
                )
        return route

    def _may_take_over(self, manifest: Manifest, delegate: Manifest) -> bool:
        may_answer = may_answer_unnamed(delegate, self._caller)
        return may_answer and find_refusal_of_delegation(manifest, delegate) is None

    def find_switch(self, text: str) -> SwitchCommand | None:
        """The agent that the caller wants to talk to from now on, if the request says so."""
        words = split_words(text)
        start = next((at for at, word in enumerate(words) if word.folded not in _LEADING_WORDS), len(words))
        for begin in dict.fromkeys((0, start)):
            for command in self._rules.switch_commands:
                switch = _match_switch(text, words[begin:], command, self._find_switch_name)
                if switch is not None:
                    return switch
        return None

    def split(self, text: str) -> tuple[RequestPart, ...]:
        """The parts of a request for several agents; empty if it is for one."""
        words = split_words(text)
        cuts = list(_iter_cuts(words, self._rules.connectors))[: _MAX_PARTS - 1]
        if not cuts:
            return ()
        pieces = _cut(text, words, cuts)
        joined = self._join_pieces(text, pieces)
        return _make_parts(text, joined) if len(joined) > 1 else ()

    def _join_pieces(self, text: str, pieces: Sequence[_Piece]) -> list[tuple[_Piece, WordRoute]]:
        """Pieces that are for the same agent, or for none, belong together."""
        joined: list[tuple[_Piece, WordRoute | None]] = []
        for piece in pieces:
            route = self.route(text[piece.start : piece.end])
            if joined:
                before, route_before = joined[-1]
                is_same = route is None or route_before is None or route.agent_id == route_before.agent_id
                if is_same:
                    whole = _Piece(before.start, piece.end, before.connector)
                    joined[-1] = whole, self.route(text[whole.start : whole.end])
                    continue
            joined.append((piece, route))
        return [(piece, route) for piece, route in joined if route is not None]

    def _rank(self, text: str, words: Sequence[Word]) -> list[tuple[RouteCandidate, _Evidence]]:
        has_quotes = any(word.is_quoted for word in words)
        evidence = self._gather(text, [_QUOTED if word.is_quoted else word for word in words] if has_quotes else words)
        if not evidence and has_quotes:
            evidence = self._gather(text, words)
        ranked: list[tuple[RouteCandidate, _Evidence]] = []
        for each in sorted(evidence, key=self._order):
            candidate = self._make_candidate(each, text, is_best=not ranked)
            if candidate is not None:
                ranked.append((candidate, each))
                if len(ranked) == MAX_CANDIDATES:
                    break
        return ranked

    def _order(self, evidence: _Evidence) -> tuple[float, ...] | tuple[object, ...]:
        return (
            -_KINDS.index(evidence.kind),
            -_add_up(evidence.triggers),
            not self._is_indexed(evidence),
            -_add_up(evidence.signals),
            evidence.position,
            HEALTH_RANK[self._find_status(evidence.agent_id)],
            evidence.agent_id,
        )

    def _is_indexed(self, evidence: _Evidence) -> bool:
        """Whether the skill index says that this agent answers the skill whose trigger was found."""
        if evidence.kind != "trigger" or not self._rules.skill_index:
            return False
        capability = self._find_capability(evidence)
        return capability is not None and self._rules.skill_index.get(capability) == evidence.agent_id

    def _gather(self, text: str, words: Sequence[Word]) -> list[_Evidence]:
        by_agent: dict[str, _Evidence] = {}
        groups = self._index.groups_for(self._caller)
        for group in groups:
            for found in group.names.find(words):
                if _is_addressed(text, words, found):
                    for agent_id in found.head:
                        _evidence_of(by_agent, agent_id).add("name", found.phrase, found.position, 1.0)
        for found in self._rules.skills.find(words):
            for skill, measure in found.agents.items():
                agent_id = self._rules.skill_index[skill]
                manifest = self._index.manifests.get(agent_id)
                if manifest is not None and manifest.find_capability(skill) is not None:
                    kind: MatchKind = "skill" if measure > 1 else "trigger"  # one word is a common word as well
                    _evidence_of(by_agent, agent_id).add(kind, found.phrase, found.position, measure)
        for group in groups:
            triggers, signals = list(group.triggers.find(words)), list(group.signals.find(words))
            for found in (*triggers, *signals):
                for agent_id in found.head:
                    _evidence_of(by_agent, agent_id)
            _add_all(by_agent, triggers, "trigger")
            _add_all(by_agent, signals, "signal")
        return list(by_agent.values())

    def _make_candidate(self, evidence: _Evidence, text: str, *, is_best: bool) -> RouteCandidate | None:
        """None if the words name no capability of the agent that they may choose: see `core.capability_choice`.

        For all but the best agent only a skill or a trigger tells the capability, because reading all words costs more
        than the rest of the decision.
        """
        manifest = self._index.manifests[evidence.agent_id]
        capability = self._find_capability(evidence)
        if capability is None and is_best:
            capability = self._choose_capability(manifest, text)
            if capability is None:
                return None
        why = tuple(dict.fromkeys(_explain(kind, phrase) for kind, phrase in _sort_matches(evidence.matches)))
        return RouteCandidate(
            agent_id=evidence.agent_id, capability=capability, score=evidence.score, why=why[:MAX_CANDIDATES]
        )

    def _find_capability(self, evidence: _Evidence) -> str | None:
        """The capability of the skill or the longest trigger that was found."""
        manifest = self._index.manifests[evidence.agent_id]
        for kind, phrase in _sort_matches(evidence.matches):
            if kind == "skill" or (kind == "trigger" and phrase.count(" ") == 0):
                named = next((each for each in manifest.capabilities if fold_phrase(each.name) == phrase), None)
                if named is not None and self._rules.skill_index.get(named.name) == manifest.agent_id:
                    return named.name
            if kind == "trigger":
                for each in manifest.capabilities:
                    if phrase in list_trigger_phrases(each):
                        return each.name
        return None

    def _choose_capability(self, manifest: Manifest, text: str) -> str | None:
        """None if the words may choose none of the agent's capabilities."""
        call_input, is_learnt = Input(task=text[:MAX_TEXT]), manifest.agent_id in self._index.learnt
        try:
            return choose_unnamed_capability(manifest.capabilities, call_input, is_learnt=is_learnt).capability.name
        except BadInput:
            return None

    def _find_switch_name(self, name: str) -> str | None:
        """The agent of a folded name; the empty id stands for the orchestrator, which ends direct talk."""
        if self._rules.orchestrator and name == self._rules.orchestrator:
            return ""
        for group in self._index.groups_for(self._caller):
            agents = group.names.agents.get(name)
            if agents:
                return min(agents)
        return None


def make_no_fit_reason(nearest: Iterable[str]) -> str:
    names = ", ".join(f"'{agent_id}'" for agent_id in nearest)
    if not names:
        return "No agent fits these words. Name the agent that you mean; the list of agents says what each one does."
    hint = "Name the agent that you mean; one that can only change something is never chosen by words."
    return f"No agent fits; the nearest are {names}. {hint}"


class _Piece(NamedTuple):
    """A part of a text, and the connecting phrase in front of it."""

    start: int
    end: int
    connector: str


def _fold_all(phrases: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, map(fold_phrase, phrases))))


def _evidence_of(by_agent: dict[str, _Evidence], agent_id: str) -> _Evidence:
    evidence = by_agent.get(agent_id)
    if evidence is None:
        evidence = by_agent[agent_id] = _Evidence(agent_id)
    return evidence


def _add_all(by_agent: Mapping[str, _Evidence], matches: Sequence[PhraseMatch], kind: MatchKind) -> None:
    """A phrase that many agents have says less about each of them."""
    for found in matches:
        rarity = 1.0 / (1.0 + 0.25 * (len(found.agents).bit_length() - 1)) if kind == "signal" else 1.0
        if len(found.agents) <= len(by_agent):
            pairs = [(agent_id, weight) for agent_id, weight in found.agents.items() if agent_id in by_agent]
        else:
            pairs = [(agent_id, found.agents[agent_id]) for agent_id in by_agent if agent_id in found.agents]
        for agent_id, weight in pairs:
            by_agent[agent_id].add(kind, found.phrase, found.position, weight * rarity)


def _add_up(weights: Sequence[float]) -> float:
    """The strongest phrase counts fully, each other one a part of its weight."""
    if not weights:
        return 0.0
    strongest = max(weights)
    return round(strongest + _FURTHER_SHARE * (sum(weights) - strongest), 6)


def _sort_matches(matches: Iterable[tuple[MatchKind, str]]) -> list[tuple[MatchKind, str]]:
    return sorted(matches, key=lambda match: (-_KINDS.index(match[0]), -measure_phrase(match[1]), match[1]))


def _explain(kind: MatchKind, phrase: str) -> str:
    shown = phrase[:_MAX_SHOWN]
    if kind == "name":
        return f"the request addresses it as '{shown}'"
    if kind == "skill":
        return f"the request names its skill '{shown}'"
    return f"the request has its {kind} '{shown}'"


def _is_addressed(text: str, words: Sequence[Word], found: PhraseMatch) -> bool:
    """Whether a name is that of the addressee: "@basil", "Basil, …", "ask Basil …"; not "put basil in the soup"."""
    first = words[found.position]
    last = words[found.position + found.phrase.count(" ")]
    before = words[found.position - 1] if found.position else None
    if first.start and text[first.start - 1] == "@":
        return True
    if all(word.folded in _GREETINGS for word in words[: found.position]):
        return text[last.end :].lstrip().startswith(_AFTER_ADDRESS)
    if before is None or before.folded not in _REQUEST_VERBS:
        return False
    return before.begins_clause or words[found.position - 2].folded in _BEFORE_VERB


def _match_switch(
    text: str, words: Sequence[Word], command: str, find_agent: Callable[[str], str | None]
) -> SwitchCommand | None:
    """A command at the beginning of a request, and the name after it; `rest` is what comes after the name."""
    length = command.count(" ") + 1
    if [word.folded for word in words[:length]] != command.split(" "):
        return None
    for end in range(min(len(words), length + MAX_PHRASE_WORDS), length, -1):
        name = " ".join(word.folded for word in words[length:end])
        agent_id = find_agent(name)
        if agent_id is not None and _ends_command(words, end):
            rest = text[words[end - 1].end :].lstrip(" ,.:;!?-–—\n")
            rest_words = rest.split(maxsplit=1)
            if rest_words and rest_words[0].lower() == "and":
                rest = rest_words[1] if len(rest_words) > 1 else ""
            return SwitchCommand(agent_id or None, rest)
    is_back = command in _BACK_PHRASES and len(words) <= length
    return SwitchCommand(None, "") if is_back else None


def _ends_command(words: Sequence[Word], end: int) -> bool:
    """Whether the command ends after this word: "talk to Basil about fish" is a request, and not a command."""
    return end == len(words) or words[end].begins_clause or words[end].folded in ("and", "please")


def _iter_cuts(words: Sequence[Word], connectors: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Where connecting phrases stand between two parts: the index of the first word, and after the last one."""
    phrases = sorted(connectors, key=lambda phrase: -phrase.count(" "))
    at = 1
    while at < len(words) - 1:
        phrase = next((each for each in phrases if _stands_at(words, at, each)), None)
        if phrase is not None and _connects(words, at, phrase):
            end = at + phrase.count(" ") + 1
            if end < len(words):
                yield at, end
            at = end
        at += 1


def _stands_at(words: Sequence[Word], at: int, phrase: str) -> bool:
    parts = phrase.split(" ")
    found = words[at : at + len(parts)]
    return [word.folded for word in found] == parts and not any(word.is_quoted for word in found)


def _connects(words: Sequence[Word], at: int, phrase: str) -> bool:
    """A single word connects only between two clauses; no phrase connects a condition with what follows from it."""
    clause = at
    while clause > 0 and not words[clause].begins_clause:
        clause -= 1
    start = max(0, clause - 1) if clause == at else clause
    while start > 0 and not words[start].begins_clause:
        start -= 1
    if any(word.folded in _CONDITIONS for word in words[start:at]):
        return False
    return " " in phrase or words[at - 1].folded not in _NOT_CONNECTED_AFTER


def _cut(text: str, words: Sequence[Word], cuts: Sequence[tuple[int, int]]) -> list[_Piece]:
    pieces: list[_Piece] = []
    begin, connector = 0, ""
    for at, after in [*cuts, (len(words), len(words))]:
        end = at
        while end > begin and words[end - 1].folded in ("and", "but"):
            end -= 1
        if end > begin:
            pieces.append(_Piece(words[begin].start, words[end - 1].end, connector))
            connector = " ".join(word.folded for word in words[at:after])
        begin = after
    return pieces


def _make_parts(text: str, pieces: Sequence[tuple[_Piece, WordRoute]]) -> tuple[RequestPart, ...]:
    """A part needs the result of the part before it if its connecting phrase or its words say so."""
    parts: list[RequestPart] = []
    for number, (piece, route) in enumerate(pieces, 1):
        part_text = text[piece.start : piece.end]
        words = {word.folded for word in split_words(part_text)}
        is_dependent = number > 1 and bool(
            not _SEQUENTIAL.isdisjoint(piece.connector.split(" ")) or not _REFERENCES.isdisjoint(words)
        )
        parts.append(
            RequestPart(
                id=f"part{number}",
                text=part_text,
                agent_id=str(route.agent_id),
                capability=route.capability,
                reason=route.reason,
                depends_on=(f"part{number - 1}",) if is_dependent else (),
            )
        )
    return tuple(parts)
