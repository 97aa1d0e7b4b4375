"""What a message asks for: which capability of the agent, with which input; at the gateway, also of which agent.

A skill is named in the metadata (`skill`), or by a data part (`{"skill": "add", "arguments": {...}}`). Without,
nothing is guessed that could do harm: an agent with one capability has that one, one with several needs words
that name exactly one of them, or input that fits exactly one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from a2a_fabric.core.agent import TRUST_RANK, Capability, Manifest, Status, fold
from a2a_fabric.core.arguments import arguments_for, takes_attachments
from a2a_fabric.core.call import Attachment, Input, Principal
from a2a_fabric.core.content import KIND_KEY, attachment_of
from a2a_fabric.core.job import owner_of
from a2a_fabric.core.part import PART_KINDS, Part
from a2a_fabric.core.routing import may_answer_unnamed
from a2a_fabric.doors.a2a.faults import Fault, invalid
from a2a_fabric.doors.a2a.incoming import Asking
from a2a_fabric.gateway import Gateway

SKILL, ARGUMENTS, ENVELOPE = "skill", "arguments", "a2a"
_NAMES = ("skill", "skillId", "skill_id")
_CHATTY = frozenset({"message", "chat", "ask", "default"})
_ALWAYS_READ = ("text/", "application/json")
_SHOWN = 12
_WORD = re.compile(r"[\w-]+")
_HEALTH_RANK: dict[Status, int] = {"online": 0, "unknown": 1, "degraded": 2, "offline": 3}


def input_of(parts: Sequence[Part]) -> Input:
    """Text is the task, objects are the context, everything else comes along."""
    words: list[str] = []
    context: dict[str, Any] = {}
    attachments: list[Attachment] = []
    for part in parts:
        if KIND_KEY in part.meta or part.name or part.kind not in ("text", "json"):
            attachments.append(_attached(part))
        elif part.text is not None:
            words.append(part.text)
        elif isinstance(part.data, dict) and context.keys().isdisjoint(part.data):
            context.update(part.data)
        else:
            attachments.append(_attached(part))
    return Input(task="\n".join(words), context=context, attachments=tuple(attachments))


def _attached(part: Part) -> Attachment:
    """With the kind that it is said to be, where the protocol has no word for it."""
    kind = part.meta.get(KIND_KEY)
    if kind not in PART_KINDS:
        return attachment_of(part)
    meta = {key: value for key, value in part.meta.items() if key != KIND_KEY}
    told: dict[str, Any] = {"text": part.text, "data": part.data, "blob": part.blob, "url": part.url}
    return attachment_of(Part(kind=kind, mime_type=part.mime_type, name=part.name, meta=meta, **told))


def named_skill(asking: Asking) -> str | None:
    for name in _NAMES:
        if isinstance(found := asking.told(name), str) and found:
            return found
    for part in asking.parts:
        if part.kind == "json" and isinstance(part.data, dict) and isinstance(part.data.get(SKILL), str):
            return str(part.data[SKILL])
    return None


def chosen(manifest: Manifest, asking: Asking) -> tuple[str, Input]:
    """The capability's name and its input. Raises Fault."""
    named, given = named_skill(asking), input_of(asking.parts)
    if named is not None:
        known = manifest.capability(named)
        if known is None and SKILL in given.context and not asking.told(SKILL):
            named = None  # an argument of the agent's own that is only called so
        else:
            given = _without_name(given, known)
    if named is None:
        found = _guessed(manifest, given)
        named, known = found.name, found
    if known is None:
        return named, given
    _check_media(manifest, known, asking.parts)
    return known.name, _with_envelope(given, known, asking)


def _with_envelope(given: Input, known: Capability, asking: Asking) -> Input:
    """An agent whose schema has a property `a2a` also gets what the message says of itself."""
    if ENVELOPE not in _properties(known) or ENVELOPE in given.context:
        return given
    context = {**given.context, ENVELOPE: envelope_of(asking)}
    return Input(task=given.task, context=context, attachments=given.attachments)


def envelope_of(asking: Asking) -> dict[str, Any]:
    """What a message says of itself."""
    return {key: value for key, value in asking.raw.items() if key not in ("parts", "content", "kind", "role")}


def _without_name(given: Input, known: Capability | None) -> Input:
    """A data part that names the skill may also hold its arguments."""
    if not isinstance(given.context.get(SKILL), str) or SKILL in _properties(known):
        return given
    rest = {key: value for key, value in given.context.items() if key != SKILL}
    inner = rest.get(ARGUMENTS)
    if isinstance(inner, dict) and ARGUMENTS not in _properties(known):
        rest = {**{key: value for key, value in rest.items() if key != ARGUMENTS}, **inner}
    return Input(task=given.task, context=rest, attachments=given.attachments)


def _guessed(manifest: Manifest, given: Input) -> Capability:
    offered = manifest.capabilities
    if len(offered) == 1:
        return offered[0]
    if not offered:
        return Capability(name="message")  # it has not said what it does, so it is asked
    called = _mentioned(offered, given.task)
    fitting = [each for each in (called or offered) if _fits(each, given)]
    chatty = [each for each in fitting if fold(each.name) in _CHATTY]
    for candidates in (called, fitting, chatty):
        if len(candidates) == 1:
            return candidates[0]
    listed = ", ".join(each.name for each in offered[:_SHOWN])
    unknown = given.context.get(SKILL)
    sorry = f"'{unknown[:64]}' is no skill of '{manifest.agent_id}'. " if isinstance(unknown, str) else ""
    ask = f"Say which skill of '{manifest.agent_id}' is meant, in metadata.skill: {listed}"
    raise invalid(sorry + ask, "metadata.skill")


def _mentioned(offered: Iterable[Capability], words: str) -> list[Capability]:
    """Those whose name or trigger stands in the words."""
    said = f" {' '.join(_WORD.findall(words.lower()))} "
    return [
        each
        for each in offered
        if any(f" {name.lower()} " in said for name in (each.name, fold(each.name).replace("_", " "), *each.triggers))
    ]


def _fits(capability: Capability, given: Input) -> bool:
    schema = capability.input_schema
    if schema is None:
        return True
    arguments = arguments_for(capability, given)
    required, known = schema.get("required", ()), _properties(capability)
    words_have_a_place = not given.task or len(arguments) > len(given.context)
    return words_have_a_place and all(key in arguments for key in required) and all(key in known for key in arguments)


def _properties(capability: Capability | None) -> dict[str, Any]:
    found = (capability.input_schema or {}).get("properties") if capability else None
    return found if isinstance(found, dict) else {}


def _check_media(manifest: Manifest, capability: Capability, parts: Iterable[Part]) -> None:
    """Content that the capability neither declares nor has a place for. Raises Fault."""
    if "file" in capability.modalities or takes_attachments(capability.input_schema):
        return
    for part in parts:
        media = (part.mime_type or "").lower()
        if (part.blob is None and part.url is None) or media.startswith(_ALWAYS_READ):
            continue
        if media.partition("/")[0] not in capability.modalities:
            told = f"'{capability.name}' of '{manifest.agent_id}' takes {', '.join(capability.modalities)} only"
            raise Fault("CONTENT_TYPE_NOT_SUPPORTED", f"Media type '{media[:80] or 'unknown'}': {told}")


class Gateways:
    """Who is asked, when nobody in particular is: routing by skill."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def agent_for(self, asking: Asking, principal: Principal) -> Manifest:
        """Raises Fault if nobody does it, or it is not clear what is meant."""
        skill, caller = named_skill(asking), owner_of(principal)
        if skill is not None:
            offering = self._gateway.registry.seen_by(principal).offering(skill)
            return self._best([each for each in offering if may_answer_unnamed(each, caller)], skill)
        words = input_of(asking.parts).task
        agents = self._gateway.registry.seen_by(principal).agents
        seen = [each for each in agents if may_answer_unnamed(each, caller)]
        if len(seen) == 1:
            return seen[0]
        found = [each for each in seen if _addresses(each, words)] or [
            each for each in seen if _mentioned(each.capabilities, words)
        ]
        return self._best(found, "")

    def _best(self, found: Sequence[Manifest], skill: str) -> Manifest:
        health = self._gateway.registry.health
        if not found:
            raise invalid(
                f"No agent has the skill '{skill[:64]}'" if skill else "Say which skill is meant, in metadata.skill",
                "metadata.skill",
            )
        return min(found, key=lambda each: (_HEALTH_RANK[health.of(each.agent_id).status], TRUST_RANK[each.trust_tier]))


def _addresses(manifest: Manifest, words: str) -> bool:
    """Whether its id, its name or one of its tags stands in the words."""
    said = set(_WORD.findall(words.lower()))
    names = {manifest.agent_id.lower(), manifest.display_name.lower(), *(tag.lower() for tag in manifest.tags)}
    return not said.isdisjoint(names)
