"""Schemas are judged when an agent joins: one that registers is refused, what an agent says of itself is put right.

Whoever registers an agent reads the answer and can change the schema. The author of an MCP server or an
OpenAPI document is far away, so a tool whose schema this node cannot check stays usable: its schema is
passed on as it is, the agent alone checks the arguments, and the agent's metadata says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.agent import Capability, Manifest
from a2a_fabric.core.errors import BadInput
from a2a_fabric.schemas.graph import BadSchema
from a2a_fabric.schemas.limits import check_size, judge, measure
from a2a_fabric.schemas.validators import UNCHECKED, compile_schema

MAX_SCHEMA_BYTES_OF_AGENT = 16 * 1024 * 1024  # that an agent says of itself, all capabilities together

_SHORT = 16 * 1024  # bytes of schemas that are judged at once, without a thread
_DEEP = 1000
_MOST_KNOWN = 20_000
_PLAIN_OBJECT: dict[str, Any] = {"type": "object"}

_log = logging.getLogger(__name__)
_known: dict[bytes, str | None] = {}  # problems by digest of the schema: agents are asked again and again
_logged: dict[str, int] = {}  # hash of the problems that the log has named, by agent

T = TypeVar("T")


async def check_registration(manifest: Manifest) -> None:
    """Raises BadInput if a schema cannot be used."""
    await _apart_if_long(_check_registration, manifest)


async def admit_learnt(manifest: Manifest) -> Manifest:
    """The manifest with the schemas that this node cannot check marked, and those that are too large left out."""
    if not any(each.input_schema or each.output_schema for each in manifest.capabilities):
        return manifest
    return await _apart_if_long(_admit_learnt, manifest)


async def _apart_if_long(judging: Callable[[Manifest], T], manifest: Manifest) -> T:
    """Judging is Python, which a thread does beside the event loop; a short manifest is not worth one."""
    schemas = [schema for each in manifest.capabilities for schema in (each.input_schema, each.output_schema)]
    size, depth = measure(schemas, _SHORT, _DEEP)
    if size <= _SHORT and depth <= _DEEP:
        return judging(manifest)
    return await asyncio.to_thread(judging, manifest)


def find_unbounded(manifest: Manifest) -> Iterator[tuple[int, str, str]]:
    """Number of the capability, field and reason of each schema that causes unbounded work; validity is not judged."""
    for number, capability in enumerate(manifest.capabilities):
        for field, problem in (
            ("input_schema", judge(capability.input_schema).problem if capability.input_schema else None),
            ("output_schema", _oversize(capability.output_schema)),
        ):
            if problem is not None:
                yield number, field, f"The {field.replace('_', ' ')} of capability '{capability.name}' {problem}"


def _check_registration(manifest: Manifest) -> None:
    for number, capability in enumerate(manifest.capabilities):
        for field, problem in (
            ("input_schema", _problem_of(capability.input_schema)),
            ("output_schema", _oversize(capability.output_schema)),
        ):
            if problem is not None:
                raise BadInput(
                    f"Agent '{manifest.agent_id}' cannot be registered: the {field.replace('_', ' ')} of capability "
                    f"'{capability.name}' {problem}",
                    agent_id=manifest.agent_id,
                    field=f"capabilities[{number}].{field}",
                )


def _admit_learnt(manifest: Manifest) -> Manifest:
    problems: dict[str, str] = {}
    left = MAX_SCHEMA_BYTES_OF_AGENT
    capabilities = []
    for capability in manifest.capabilities:
        admitted, size = _admit(capability, left, problems)
        capabilities.append(admitted)
        left -= size
    if all(kept is given for kept, given in zip(capabilities, manifest.capabilities, strict=True)) and not problems:
        return manifest
    _log_once(manifest.agent_id, problems)
    metadata = {**manifest.metadata, UNCHECKED: problems} if problems else manifest.metadata
    return replace(manifest, capabilities=tuple(capabilities), metadata=metadata)


def _log_once(agent_id: str, problems: dict[str, str]) -> None:
    """Agents are asked again and again; the log says it when something changed."""
    if not problems or _logged.get(agent_id) == (digest := hash(frozenset(problems.items()))):
        return
    if len(_logged) >= _MOST_KNOWN:
        _logged.clear()
    _logged[agent_id] = digest
    name, reason = next(iter(problems.items()))
    said = "%d input schemas of agent %s are not checked here, for example that of '%s': %s"
    _log.warning(said, len(problems), agent_id, name, reason)


def _admit(capability: Capability, room: int, problems: dict[str, str]) -> tuple[Capability, int]:
    """The capability as it is kept, and how many bytes its schemas have; `room` is what they may have."""
    used = 0
    changes: dict[str, Any] = {}
    for field in ("input_schema", "output_schema"):
        schema = getattr(capability, field)
        if not schema:
            continue
        problem = None
        try:
            size = check_size(schema)
            if used + size > room:
                raise BadSchema(f"is left out: those before it are {MAX_SCHEMA_BYTES_OF_AGENT} bytes already")
            used += size
        except BadSchema as exc:
            problem = str(exc)
            changes[field] = _PLAIN_OBJECT if field == "input_schema" else None
        if field == "input_schema" and problem is None:
            problem = _problem_of_sized(schema)
            if problem is not None and not _is_readable(schema):
                changes[field] = _PLAIN_OBJECT
        if field == "input_schema" and problem is not None:
            problems[capability.name] = f"its schema {problem}; the agent itself checks the arguments"
    return (replace(capability, **changes) if changes else capability), used


def _is_readable(schema: dict[str, Any] | None) -> bool:
    """Whether doors and clients that look for the names of arguments find them where they belong."""
    known = schema or {}
    properties, required = known.get("properties", {}), known.get("required", [])
    return (
        isinstance(properties, dict)
        and all(isinstance(each, dict | bool) for each in properties.values())
        and isinstance(required, list)
        and all(isinstance(each, str) for each in required)
    )


def _problem_of(schema: dict[str, Any] | None) -> str | None:
    """Why a schema cannot be used, to follow its name in a sentence."""
    return (_oversize(schema) or _problem_of_sized(schema)) if schema else None


def _problem_of_sized(schema: dict[str, Any]) -> str | None:
    try:
        digest = blake2b(msgspec.json.encode(schema), digest_size=16).digest()
    except (TypeError, ValueError, RecursionError):
        return "is not JSON"
    try:
        return _known[digest]
    except KeyError:
        problem = _compile_problem(schema)
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[digest] = problem
    return problem


def _compile_problem(schema: dict[str, Any]) -> str | None:
    try:
        compile_schema(schema)
    except BadSchema as exc:
        return str(exc)
    return None


def _oversize(schema: Any) -> str | None:
    try:
        check_size(schema)
    except BadSchema as exc:
        return str(exc)
    return None
