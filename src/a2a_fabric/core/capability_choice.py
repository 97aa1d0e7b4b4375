"""Which capability of an agent answers a message that names none: one rule for all doors.

The only capability of an agent is always right. Of several, the one declared `default: true` answers; else the one
whose name, triggers or description share most words with the message; else one that is made for conversation; else the
first that takes such input. The reply says which capability answered and why, so that its caller can name another one.

Which agent answers a message that names none is decided in `core.word_routing` and `operations.routing`.

A capability that may change something outside is never taken for want of a better one: the message must have its whole
name or a whole trigger, or the operator must have made it the default, or the caller must have named an agent that has
no other. If nothing else is left, the message is refused. Such a capability is declared `side_effects: writes`; or it
was learnt from the agent (`is_learnt`), declares nothing and takes typed arguments, as tools of MCP servers without
annotations do: then words would only become one of its arguments. A capability that takes the words themselves reads
the message and can refuse it. Arguments without words choose the only capability that they fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, normalize_name
from a2a_fabric.core.call import Input, bind_arguments
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.search import parse_query, stem_words

UNKNOWN_CAPABILITY = Capability(name="message")  # of an agent that has not said what it can do
_CONVERSATION_NAMES = frozenset({"message", "chat", "ask", "default"})
_PHRASE_WEIGHT, _NAME_WEIGHT, _DESCRIPTION_WEIGHT = 10.0, 2.0, 1.0
_MAX_TEXT, _MAX_DESCRIPTION, _MAX_TRIGGER = 4000, 500, 256  # characters that are compared
_MAX_TRIGGERS = 20  # of one capability
_MAX_NEW_TEXT = 50_000  # characters of capabilities that are read for one message
_MAX_CACHED = 4000
_MAX_CHOICES, _MAX_STEMS = 500, 1000  # choices that are kept, and stems of the capabilities of each
_MAX_CAPABILITIES = 1000
_MAX_LISTED = 12  # names in a refusal


class CapabilityChoice(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` is a sentence for people; None if there was nothing to choose from."""

    capability: Capability
    reason: str | None = None


class AgentChoice(msgspec.Struct, frozen=True, kw_only=True):
    manifest: Manifest
    reason: str | None = None


def choose_unnamed_capability(
    capabilities: Sequence[Capability], call_input: Input, *, is_learnt: bool
) -> CapabilityChoice:
    """Raises BadInput if every capability that could be meant changes something outside."""
    if len(capabilities) < 2:
        return CapabilityChoice(capability=capabilities[0] if capabilities else UNKNOWN_CAPABILITY)
    has_words_alone = call_input.task and not call_input.context and not call_input.attachments
    if has_words_alone:
        choice = _find_choice_without_words(capabilities, call_input.task, is_learnt=is_learnt)
        if choice is not None:
            return choice
    default = next((each for each in capabilities if each.default), None)
    if default is not None:
        return _make_choice(default, "it is the agent's default")
    ranked = sorted(capabilities, key=lambda each: not fits_input(each, call_input))
    scores = _score_offers(ranked, call_input.task, is_learnt=is_learnt)
    if scores and (best := max(scores)) > 0:
        return _make_choice(ranked[scores.index(best)], "its words are the nearest to those of the message")
    choice = _choose_without_words(capabilities, ranked, call_input, is_learnt=is_learnt)
    if has_words_alone:
        _remember_choice_without_words(capabilities, choice, is_learnt=is_learnt)
    return choice


class _ChoiceWithoutWords(NamedTuple):
    """What is chosen for words of which no capability has one: that depends on the capabilities alone."""

    capabilities: Sequence[Capability]  # the same object; the entry keeps it alive
    stems: frozenset[str]  # of all of them
    choice: CapabilityChoice


# By the identity of the capabilities. Most messages are words alone, and have no word of any capability.
_without_words: dict[tuple[int, bool], _ChoiceWithoutWords] = {}


def _find_choice_without_words(
    capabilities: Sequence[Capability], text: str, *, is_learnt: bool
) -> CapabilityChoice | None:
    known = _without_words.get((id(capabilities), is_learnt))
    if known is None or known.capabilities is not capabilities:
        return None
    return known.choice if known.stems.isdisjoint(stem_words(text[:_MAX_TEXT])) else None


def _remember_choice_without_words(
    capabilities: Sequence[Capability], choice: CapabilityChoice, *, is_learnt: bool
) -> None:
    words = [known[1] for each in capabilities if (known := _words.get(id(each))) is not None and known[0] is each]
    stems = frozenset(chain.from_iterable(chain(each.in_names, each.in_description) for each in words))
    if len(words) < len(capabilities) or len(stems) > _MAX_STEMS:
        return  # some were not read yet (see `_read_all_words`), or there are too many words to keep
    if len(_without_words) >= _MAX_CHOICES:
        _without_words.clear()
    _without_words[id(capabilities), is_learnt] = _ChoiceWithoutWords(capabilities, stems, choice)


def _choose_without_words(
    capabilities: Sequence[Capability], ranked: Sequence[Capability], call_input: Input, *, is_learnt: bool
) -> CapabilityChoice:
    """`ranked` are those that fit the input first. Raises BadInput."""
    harmless = [each for each in ranked if not may_change_something(each, is_learnt=is_learnt)]
    if not call_input.task and (fitting := _find_only_fitting(ranked, call_input)) is not None:
        return _make_choice(fitting, "it is the only one that takes such arguments")
    if not harmless:
        names = ", ".join(each.name for each in capabilities[:_MAX_LISTED])
        problem = f"The message names no capability, and each of these may change something: {names}"
        raise BadInput(f"{problem}. Name the one you mean", field="capability")
    for each in harmless:
        if normalize_name(each.name) in _CONVERSATION_NAMES and fits_input(each, call_input):
            return _make_choice(each, "it is made for conversation")
    is_fitting = fits_input(harmless[0], call_input)
    return _make_choice(harmless[0], "it is the first that takes such input" if is_fitting else "it is the first")


def _find_only_fitting(ranked: Sequence[Capability], call_input: Input) -> Capability | None:
    """Of capabilities in which those that fit come first; None also for one that is declared to change something."""
    is_only = fits_input(ranked[0], call_input) and not fits_input(ranked[1], call_input)
    return ranked[0] if is_only and ranked[0].side_effects != "writes" else None


def may_change_something(capability: Capability, *, is_learnt: bool) -> bool:
    """Whether it is declared to change something outside, or was learnt, does not say so, and takes typed arguments."""
    if capability.side_effects is not None or not is_learnt:
        return capability.side_effects == "writes"
    schema = capability.input_schema
    takes_words = schema is None or "task" in _get_properties(schema)
    return not takes_words and normalize_name(capability.name) not in _CONVERSATION_NAMES


def _score_offers(capabilities: Sequence[Capability], text: str, *, is_learnt: bool) -> list[float]:
    """The scores of the first capabilities.

    0 for one that may change something, unless its whole name is in the text.
    """
    considered = capabilities[:_MAX_CAPABILITIES]
    return [
        0.0 if score < _PHRASE_WEIGHT and may_change_something(each, is_learnt=is_learnt) else score
        for each, score in zip(considered, score_words(considered, text), strict=True)
    ]


def _make_choice(capability: Capability, why: str) -> CapabilityChoice:
    reason = f"The message names no capability. '{capability.name}' answers, because {why}."
    return CapabilityChoice(capability=capability, reason=reason)


def score_words(capabilities: Sequence[Capability], text: str) -> list[float]:
    """How much the words of each capability have in common with the text; 0 for nothing.

    A word that many of the capabilities have says little. A whole name or trigger that occurs in the text says most.
    """
    stems = stem_words(text[:_MAX_TEXT])
    all_stems = frozenset(stems)
    words = list(_read_all_words(capabilities))
    if all(all_stems.isdisjoint(each.in_names) and all_stems.isdisjoint(each.in_description) for each in words):
        return [0.0] * len(capabilities)  # most messages have no word of any capability
    query, phrase = _list_stems(text[:_MAX_TEXT]), f" {' '.join(stems)} "
    name_stems = [query & each.in_names for each in words]
    description_stems = [query & each.in_description for each in words]
    spread = Counter(stem for pair in zip(name_stems, description_stems, strict=True) for stem in set().union(*pair))
    return [
        sum(_NAME_WEIGHT / spread[stem] for stem in in_names)
        + sum(_DESCRIPTION_WEIGHT / spread[stem] for stem in in_description - in_names)
        + _PHRASE_WEIGHT * any(parts <= all_stems and whole in phrase for parts, whole in each.phrases)
        for each, in_names, in_description in zip(words, name_stems, description_stems, strict=True)
    ]


class _CapabilityWords(NamedTuple):
    """The stems of a capability, and its name and triggers as phrases, each with its stems."""

    in_names: frozenset[str] = frozenset()
    in_description: frozenset[str] = frozenset()
    phrases: tuple[tuple[frozenset[str], str], ...] = ()


_NO_WORDS = _CapabilityWords()
# By the identity of the capability, which the entry keeps alive.
_words: dict[int, tuple[Capability, _CapabilityWords]] = {}


def _read_all_words(capabilities: Iterable[Capability]) -> Iterator[_CapabilityWords]:
    """Reading the words of a thousand capabilities takes half a second, in which the node does nothing else.

    So one message reads only so many new ones, and those that it does not reach count for nothing; the next message
    reads on.
    """
    budget = _MAX_NEW_TEXT
    for each in capabilities:
        known = _words.get(id(each))
        if known is not None and known[0] is each:
            yield known[1]
        elif budget > 0:
            budget -= len(each.name) + sum(map(len, each.triggers)) + len(each.description)
            yield _read_words(each)
        else:
            yield _NO_WORDS


def _read_words(capability: Capability) -> _CapabilityWords:
    names = [stem_words(name[:_MAX_TRIGGER]) for name in (capability.name, *capability.triggers[:_MAX_TRIGGERS])]
    words = _CapabilityWords(
        in_names=frozenset(chain.from_iterable(names)),
        in_description=frozenset(_list_stems(capability.description[:_MAX_DESCRIPTION])),
        phrases=tuple((frozenset(name), f" {' '.join(name)} ") for name in names if name),
    )
    if len(_words) >= _MAX_CACHED:
        _words.clear()
    _words[id(capability)] = capability, words
    return words


def _list_stems(text: str) -> set[str]:
    """Without the words that say nothing, as long as there are others."""
    return {stem for _, stem in parse_query(text)}


def fits_input(capability: Capability, call_input: Input) -> bool:
    """Whether all required arguments are there, the text becomes one of them, and the schema has them all."""
    if not call_input.task or call_input.context or call_input.attachments:
        return _fits(capability, call_input)
    known = _taking_words.get(id(capability))  # most messages are words alone, so it depends on the schema only
    if known is None or known[0] is not capability:
        if len(_taking_words) >= _MAX_CACHED:
            _taking_words.clear()
        known = _taking_words[id(capability)] = capability, _fits(capability, call_input)
    return known[1]


# By the identity of the capability, which the entry keeps alive: whether it takes words alone.
_taking_words: dict[int, tuple[Capability, bool]] = {}


def _fits(capability: Capability, call_input: Input) -> bool:
    schema = capability.input_schema
    if schema is None:
        return True
    arguments = bind_arguments(capability, call_input)
    known = _get_properties(schema)
    text_is_used = not call_input.task or len(arguments) > len(call_input.context)
    return (
        text_is_used
        and all(key in arguments for key in schema.get("required", ()))
        and arguments.keys() <= known.keys()
    )


def _get_properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}
