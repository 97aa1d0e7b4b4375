"""What a message asks for: the capability and its input, at the gateway also the agent; or the answers to questions.

A skill is named in the metadata (`skill`) or in a data part (`{"skill": "add", "arguments": {...}}`). Without a name,
an agent with one capability gets that one; an agent with several needs text that mentions exactly one of them, or
input that fits exactly one. Nothing else is guessed, because a wrong guess could do harm."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from a2a_fabric.core.agent import HEALTH_RANK, TRUST_RANK, Capability, Manifest, normalize_name
from a2a_fabric.core.call import Attachment, Input, Principal, owner_from_principal
from a2a_fabric.core.content import KIND_KEY, accepts_attachments, attachment_from_part, bind_arguments
from a2a_fabric.core.part import PART_KINDS, Part
from a2a_fabric.core.question import Answer, Question, Questions
from a2a_fabric.core.routing import may_answer_unnamed
from a2a_fabric.doors.a2a.errors import A2AProtocolError, invalid_params_error
from a2a_fabric.doors.a2a.parse import UserMessage
from a2a_fabric.gateway import Gateway

SKILL_KEY, ARGUMENTS_KEY, ENVELOPE_KEY = "skill", "arguments", "a2a"
_SKILL_KEYS = ("skill", "skillId", "skill_id")
_CHAT_CAPABILITIES = frozenset({"message", "chat", "ask", "default"})
_ALWAYS_ACCEPTED_MEDIA = ("text/", "application/json")
_MAX_LISTED_SKILLS = 12
_WORD_PATTERN = re.compile(r"[\w-]+")


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


def choose_capability(manifest: Manifest, user_message: UserMessage) -> tuple[str, Input]:
    """The capability's name and its input. Raises A2AProtocolError."""
    skill, message_input = find_named_skill(user_message), input_from_parts(user_message.parts)
    if skill is not None:
        capability = manifest.find_capability(skill)
        if capability is None and SKILL_KEY in message_input.context and not user_message.get_metadata(SKILL_KEY):
            skill = None  # the agent itself has an argument named `skill`
        else:
            message_input = _remove_skill_key(message_input, capability)
    if skill is None:
        guess = _guess_capability(manifest, message_input)
        skill, capability = guess.name, guess
    if capability is None:
        return skill, message_input
    _check_media(manifest, capability, user_message.parts)
    return capability.name, _add_envelope(message_input, capability, user_message)


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


def _guess_capability(manifest: Manifest, message_input: Input) -> Capability:
    capabilities = manifest.capabilities
    if len(capabilities) == 1:
        return capabilities[0]
    if not capabilities:
        return Capability(name="message")  # the agent declares no capabilities
    mentioned = _find_mentioned(capabilities, message_input.task)
    fitting = [each for each in (mentioned or capabilities) if _fits_input(each, message_input)]
    chat_capabilities = [each for each in fitting if normalize_name(each.name) in _CHAT_CAPABILITIES]
    for candidates in (mentioned, fitting, chat_capabilities):
        if len(candidates) == 1:
            return candidates[0]
    names = ", ".join(each.name for each in capabilities[:_MAX_LISTED_SKILLS])
    unknown_skill = message_input.context.get(SKILL_KEY)
    problem = (
        f"'{unknown_skill[:64]}' is not a skill of '{manifest.agent_id}'. " if isinstance(unknown_skill, str) else ""
    )
    hint = f"Name a skill of '{manifest.agent_id}' in metadata.skill: {names}"
    raise invalid_params_error(problem + hint, "metadata.skill")


def _find_mentioned(capabilities: Iterable[Capability], text: str) -> list[Capability]:
    """The capabilities whose name or trigger occurs in the text."""
    normalized = f" {' '.join(_WORD_PATTERN.findall(text.lower()))} "
    return [
        each
        for each in capabilities
        if any(
            f" {name.lower()} " in normalized
            for name in (each.name, normalize_name(each.name).replace("_", " "), *each.triggers)
        )
    ]


def _fits_input(capability: Capability, message_input: Input) -> bool:
    schema = capability.input_schema
    if schema is None:
        return True
    arguments = bind_arguments(capability, message_input)
    required, properties = schema.get("required", ()), _get_schema_properties(capability)
    text_is_used = not message_input.task or len(arguments) > len(message_input.context)
    return text_is_used and all(key in arguments for key in required) and all(key in properties for key in arguments)


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
    """Chooses the agent for a message to the gateway itself, by skill."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def choose_agent(self, user_message: UserMessage, principal: Principal) -> Manifest:
        """Raises A2AProtocolError if no agent has the skill, or if no skill can be told from the message."""
        skill, caller = find_named_skill(user_message), owner_from_principal(principal)
        if skill is not None:
            offering = self._gateway.registry.visible_to(principal).find_by_capability(skill)
            return self._choose_best([each for each in offering if may_answer_unnamed(each, caller)], skill)
        text = input_from_parts(user_message.parts).task
        agents = self._gateway.registry.visible_to(principal).agents
        candidates = [each for each in agents if may_answer_unnamed(each, caller)]
        if len(candidates) == 1:
            return candidates[0]
        matches = [each for each in candidates if _mentions_agent(each, text)] or [
            each for each in candidates if _find_mentioned(each.capabilities, text)
        ]
        return self._choose_best(matches, "")

    def _choose_best(self, candidates: Sequence[Manifest], skill: str) -> Manifest:
        health = self._gateway.registry.health
        if not candidates:
            raise invalid_params_error(
                f"No agent has the skill '{skill[:64]}'" if skill else "Name a skill in metadata.skill",
                "metadata.skill",
            )
        return min(
            candidates, key=lambda each: (HEALTH_RANK[health.get(each.agent_id).status], TRUST_RANK[each.trust_tier])
        )


def _mentions_agent(manifest: Manifest, text: str) -> bool:
    """Whether the agent's id, name or one of its tags occurs in the text."""
    text_words = set(_WORD_PATTERN.findall(text.lower()))
    names = {manifest.agent_id.lower(), manifest.display_name.lower(), *(tag.lower() for tag in manifest.tags)}
    return not text_words.isdisjoint(names)


ACTION_KEY = "action"
_SCALAR_TYPES = ("integer", "number", "boolean")


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
        len(answers_by_key) == 1 and len(message_input.context) == 1 and not _has_form_field(questions, answers_by_key)
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


def _has_form_field(questions: Questions, keys: Iterable[str]) -> bool:
    """Whether the form of the only question has a field with one of these names."""
    [question] = questions.questions.values()
    return any(key in (question.schema or {}).get("properties", {}) for key in keys)


def _build_content(question: Question, user_message: UserMessage) -> Any:
    """Adds the message's own fields if the form has a field `a2a`."""
    content = _content_from_parts(question, user_message.parts)
    if isinstance(content, dict) and ENVELOPE_KEY in _list_form_fields(question) and ENVELOPE_KEY not in content:
        return {**content, ENVELOPE_KEY: build_envelope(user_message)}
    return content


def _content_from_parts(question: Question, parts: Iterable[Part]) -> Any:
    message_input = input_from_parts(tuple(parts))
    if message_input.context:
        return message_input.context
    if not message_input.task:
        return [msgspec.to_builtins(each) for each in message_input.attachments] or ""
    field = _find_only_field(question)
    if field is None:
        return message_input.task
    name, schema = field
    return {name: _convert_text(schema.get("type"), message_input.task)}


def _find_only_field(question: Question) -> tuple[str, dict[str, Any]] | None:
    properties = _list_form_fields(question)
    required = [name for name in (question.schema or {}).get("required", ()) if name in properties]
    names = required if len(required) == 1 else list(properties)
    if len(names) != 1 or not isinstance(properties[names[0]], dict):
        return None
    return names[0], properties[names[0]]


def _list_form_fields(question: Question) -> dict[str, Any]:
    properties = (question.schema or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def _convert_text(kind: Any, text: str) -> Any:
    """The text as a number or boolean if the field is one; text that cannot be converted stays as it is."""
    if kind not in _SCALAR_TYPES:
        return text
    try:
        return msgspec.json.decode(text.strip().encode())
    except msgspec.DecodeError:
        return text
