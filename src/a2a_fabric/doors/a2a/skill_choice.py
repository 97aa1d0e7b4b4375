"""What a message asks for: the capability and its input, at the gateway also the agent; or the answers to questions.

A skill is named in the metadata (`skill`) or in a data part (`{"skill": "add", "arguments": {...}}`). A message
without one goes to an A2A agent as it is; at other agents the rule of `core.capability_choice` decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import HEALTH_RANK, TRUST_RANK, Capability, Manifest
from a2a_fabric.core.call import (
    KIND_KEY,
    Attachment,
    Input,
    Principal,
    accepts_attachments,
    attachment_from_part,
    owner_from_principal,
)
from a2a_fabric.core.capability_choice import choose_unnamed_capability
from a2a_fabric.core.result import PART_KINDS, Answer, Part, Question, Questions
from a2a_fabric.core.routing import may_answer_unnamed
from a2a_fabric.core.tasks import iterate_in_slices
from a2a_fabric.doors.a2a.errors import A2AProtocolError, invalid_params_error
from a2a_fabric.doors.a2a.requests import UserMessage
from a2a_fabric.gateway import Gateway
from a2a_fabric.messages.answers import content_from_input, has_form_field, list_form_fields
from a2a_fabric.operations.routing import FindLastAgent, MessageChoice, RequestRouting

SKILL_KEY, ARGUMENTS_KEY, ENVELOPE_KEY = "skill", "arguments", "a2a"
_SKILL_KEYS = ("skill", "skillId", "skill_id")
_ALWAYS_ACCEPTED_MEDIA = ("text/", "application/json")
_MAX_LISTED_SKILLS = 12


def input_from_parts(parts: Sequence[Part]) -> Input:
    """Text is the task, objects are the context, everything else is attached."""
    texts: list[str] = []
    context: dict[str, Any] = {}
    attachments: list[Attachment] = []
    for part in parts:
        if KIND_KEY in part.meta or part.name or part.kind not in ("text", "json"):
            attachments.append(_attachment_from_part(part))
        elif part.text is not None:
            texts.append(part.text)
        elif isinstance(part.data, dict) and context.keys().isdisjoint(part.data):
            context.update(part.data)
        else:
            attachments.append(_attachment_from_part(part))
    return Input(task="\n".join(texts), context=context, attachments=tuple(attachments))


def _attachment_from_part(part: Part) -> Attachment:
    """Restores the kind of a part from its metadata, for kinds that A2A does not have."""
    kind = part.meta.get(KIND_KEY)
    if kind not in PART_KINDS:
        return attachment_from_part(part)
    meta = {key: value for key, value in part.meta.items() if key != KIND_KEY}
    content: dict[str, Any] = {"text": part.text, "data": part.data, "blob": part.blob, "url": part.url}
    return attachment_from_part(Part(kind=kind, mime_type=part.mime_type, name=part.name, meta=meta, **content))


def find_named_skill(user_message: UserMessage) -> str | None:
    for name in _SKILL_KEYS:
        if isinstance(value := user_message.get_metadata(name), str) and value:
            return value
    for part in user_message.parts:
        if part.kind == "json" and isinstance(part.data, dict) and isinstance(part.data.get(SKILL_KEY), str):
            return str(part.data[SKILL_KEY])
    return None


class MessageTarget(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` says why this capability answers, if the message names none."""

    capability: str
    input: Input
    reason: str | None = None


def may_speak_a2a(manifest: Manifest) -> bool:
    """Whether the agent is reached by A2A, or may turn out to be."""
    kind = manifest.runtime or manifest.implied_runtime
    return kind == "a2a" or (kind is None and str(manifest.endpoint.get("uri", "")).startswith("http"))


def choose_capability(
    manifest: Manifest, user_message: UserMessage, *, is_learnt: bool, passes_as_it_is: bool = False
) -> MessageTarget:
    """`is_learnt`: the agent said itself what it offers.

    `passes_as_it_is`: an agent that chooses its skill itself; the capability is only for the call's own record.

    Raises A2AProtocolError.
    """
    skill, message_input = find_named_skill(user_message), input_from_parts(user_message.parts)
    capability, reason = None, None
    if skill is not None:
        capability = manifest.find_capability(skill)
        if capability is None and SKILL_KEY in message_input.context and not user_message.get_metadata(SKILL_KEY):
            _check_skill_argument(manifest, skill)
            skill = None
        else:
            message_input = _remove_skill_key(message_input, capability)
    if skill is None:
        choice = choose_unnamed_capability(manifest.capabilities, message_input, is_learnt=is_learnt)
        capability, reason = choice.capability, choice.reason
    if capability is None:
        return MessageTarget(capability=str(skill), input=message_input)
    if passes_as_it_is and skill is None:
        return MessageTarget(capability=capability.name, input=message_input)
    _check_media(manifest, capability, user_message.parts)
    message_input = _add_envelope(message_input, capability, user_message)
    return MessageTarget(capability=capability.name, input=message_input, reason=reason)


def _check_skill_argument(manifest: Manifest, skill: str) -> None:
    """Raises A2AProtocolError for a name that is neither a skill nor an argument of one."""
    capabilities = manifest.capabilities
    if len(capabilities) < 2 or any(SKILL_KEY in _get_schema_properties(each) for each in capabilities):
        return
    names = ", ".join(each.name for each in capabilities[:_MAX_LISTED_SKILLS])
    problem = f"'{skill[:64]}' is not a skill of '{manifest.agent_id}'. "
    raise invalid_params_error(
        f"{problem}Name a skill of '{manifest.agent_id}' in metadata.skill: {names}", "metadata.skill"
    )


def _add_envelope(message_input: Input, capability: Capability, user_message: UserMessage) -> Input:
    """Adds the message's own fields if the schema of the capability has a property `a2a`."""
    if ENVELOPE_KEY not in _get_schema_properties(capability) or ENVELOPE_KEY in message_input.context:
        return message_input
    context = {**message_input.context, ENVELOPE_KEY: build_envelope(user_message)}
    return Input(task=message_input.task, context=context, attachments=message_input.attachments)


def build_envelope(user_message: UserMessage) -> dict[str, Any]:
    """The fields of the message other than its content: ids, metadata, extensions."""
    return {key: value for key, value in user_message.raw.items() if key not in ("parts", "content", "kind", "role")}


def _remove_skill_key(message_input: Input, capability: Capability | None) -> Input:
    """Takes the skill's name out of a data part, and its `arguments` out of their object."""
    if not isinstance(message_input.context.get(SKILL_KEY), str) or SKILL_KEY in _get_schema_properties(capability):
        return message_input
    remaining = {key: value for key, value in message_input.context.items() if key != SKILL_KEY}
    arguments = remaining.get(ARGUMENTS_KEY)
    if isinstance(arguments, dict) and ARGUMENTS_KEY not in _get_schema_properties(capability):
        remaining = {**{key: value for key, value in remaining.items() if key != ARGUMENTS_KEY}, **arguments}
    return Input(task=message_input.task, context=remaining, attachments=message_input.attachments)


def _get_schema_properties(capability: Capability | None) -> dict[str, Any]:
    properties = (capability.input_schema or {}).get("properties") if capability else None
    return properties if isinstance(properties, dict) else {}


def _check_media(manifest: Manifest, capability: Capability, parts: Iterable[Part]) -> None:
    """Raises A2AProtocolError for content that the capability neither declares nor has an argument for."""
    if "file" in capability.modalities or accepts_attachments(capability.input_schema):
        return
    for part in parts:
        media = (part.mime_type or "").lower()
        if (part.blob is None and part.url is None) or media.startswith(_ALWAYS_ACCEPTED_MEDIA):
            continue
        if media.partition("/")[0] not in capability.modalities:
            accepted = f"'{capability.name}' of '{manifest.agent_id}' accepts only {', '.join(capability.modalities)}"
            raise A2AProtocolError("CONTENT_TYPE_NOT_SUPPORTED", f"Media type '{media[:80] or 'unknown'}': {accepted}")


class SkillRouter:
    """Chooses the agent for a message to the gateway itself: by the skill that it names, else by its words."""

    def __init__(self, gateway: Gateway, routing: RequestRouting) -> None:
        self._gateway = gateway
        self._routing = routing

    async def take_switch(self, user_message: UserMessage, principal: Principal, context_id: str) -> str | None:
        """What the node answers to a message that only switches to another agent; None for any other message."""
        if find_named_skill(user_message) is not None:
            return None
        return await self._routing.take_switch(principal, input_from_parts(user_message.parts).task, context_id)

    async def choose_agent(
        self, user_message: UserMessage, principal: Principal, find_last: FindLastAgent
    ) -> MessageChoice:
        """Raises A2AProtocolError if no agent has the skill, or if this caller may ask none; NoAgentFits."""
        skill, caller = find_named_skill(user_message), owner_from_principal(principal)
        if skill is None:
            text = input_from_parts(user_message.parts).task
            return await self._routing.choose_agent(principal, text, user_message.context_id or None, find_last)
        registry = self._gateway.registry
        offering = (await registry.prepare_view(principal)).find_by_capability(skill)
        best: list[Manifest] = []

        def rank(manifest: Manifest) -> tuple[int, int]:
            return HEALTH_RANK[registry.health.get(manifest.agent_id).status], TRUST_RANK[manifest.trust_tier]

        async for manifests in iterate_in_slices(offering):
            candidates = [*best, *(each for each in manifests if may_answer_unnamed(each, caller))]
            best = [min(candidates, key=rank)] if candidates else []
        if not best:
            raise invalid_params_error(f"No agent has the skill '{skill[:64]}'", "metadata.skill")
        return MessageChoice(manifest=best[0])


ACTION_KEY = "action"


def parse_answers(user_message: UserMessage, questions: Questions) -> dict[str, Answer]:
    """Text answers a single question; a data part answers several, keyed like the questions.

    Raises A2AProtocolError.
    """
    action = user_message.get_metadata(ACTION_KEY)
    if action in ("decline", "cancel"):
        return {key: Answer(action=action) for key in questions.questions}
    message_input = input_from_parts(user_message.parts)
    answers_by_key = {key: value for key, value in message_input.context.items() if key in questions.questions}
    if len(questions.questions) > 1 or (
        len(answers_by_key) == 1 and len(message_input.context) == 1 and not has_form_field(questions, answers_by_key)
    ):
        missing = questions.questions.keys() - answers_by_key.keys()
        if missing:
            raise invalid_params_error(
                f"Answer in a data part, keyed by question; missing: {', '.join(sorted(missing))}"
            )
        return {key: Answer(content=value) for key, value in answers_by_key.items()}
    return {
        key: Answer(content=_build_content(question, user_message)) for key, question in questions.questions.items()
    }


def _build_content(question: Question, user_message: UserMessage) -> Any:
    """Adds the message's own fields if the form has a field `a2a`."""
    content = content_from_input(question, input_from_parts(user_message.parts))
    if isinstance(content, dict) and ENVELOPE_KEY in list_form_fields(question) and ENVELOPE_KEY not in content:
        return {**content, ENVELOPE_KEY: build_envelope(user_message)}
    return content
