"""Checks the schemas in the manifest of a new agent: registrations are refused, discovered manifests are sanitized.

A caller who registers an agent reads the error and can change the schema. The author of an MCP server or an
OpenAPI document cannot, so a tool whose schema this node cannot check stays usable: its schema is passed on
unchanged, only the agent checks the arguments, and the agent's metadata says so."""

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
from a2a_fabric.schemas.cost import UnusableSchema, assess_schema, check_size, measure
from a2a_fabric.schemas.validators import UNCHECKED_KEY, compile_schema

MAX_SCHEMA_BYTES_OF_AGENT = 16 * 1024 * 1024  # for all capabilities of one agent together

_MAX_INLINE_BYTES = 16 * 1024  # schemas up to this size are checked without a thread
_MAX_INLINE_DEPTH = 1000
_MAX_CACHED = 20_000
_PLAIN_OBJECT: dict[str, Any] = {"type": "object"}

_log = logging.getLogger(__name__)
_problem_cache: dict[bytes, str | None] = {}  # problems by digest of the schema: agents are described repeatedly
_logged_digests: dict[str, int] = {}  # hash of the problems that were logged, by agent

T = TypeVar("T")


async def check_registered_schemas(manifest: Manifest) -> None:
    """Raises BadInput if a schema cannot be used."""
    await _run_in_thread_if_large(_check_all_schemas, manifest)


async def sanitize_discovered_manifest(manifest: Manifest) -> Manifest:
    """The manifest with its uncheckable schemas marked and its oversized schemas removed."""
    if not any(each.input_schema or each.output_schema for each in manifest.capabilities):
        return manifest
    return await _run_in_thread_if_large(_sanitize_manifest, manifest)


async def _run_in_thread_if_large(check: Callable[[Manifest], T], manifest: Manifest) -> T:
    """Check a large manifest in a thread, so that the event loop stays free; a small one needs no thread."""
    schemas = [schema for each in manifest.capabilities for schema in (each.input_schema, each.output_schema)]
    size, depth = measure(schemas, _MAX_INLINE_BYTES, _MAX_INLINE_DEPTH)
    if size <= _MAX_INLINE_BYTES and depth <= _MAX_INLINE_DEPTH:
        return check(manifest)
    return await asyncio.to_thread(check, manifest)


def find_unbounded_schemas(manifest: Manifest) -> Iterator[tuple[int, str, str]]:
    """Capability number, field and reason for each schema that causes unbounded work; validity is not checked."""
    for number, capability in enumerate(manifest.capabilities):
        for field, problem in (
            ("input_schema", assess_schema(capability.input_schema).problem if capability.input_schema else None),
            ("output_schema", _find_size_problem(capability.output_schema)),
        ):
            if problem is not None:
                yield number, field, f"The {field.replace('_', ' ')} of capability '{capability.name}' {problem}"


def _check_all_schemas(manifest: Manifest) -> None:
    for number, capability in enumerate(manifest.capabilities):
        for field, problem in (
            ("input_schema", _find_problem(capability.input_schema)),
            ("output_schema", _find_size_problem(capability.output_schema)),
        ):
            if problem is not None:
                raise BadInput(
                    f"Agent '{manifest.agent_id}' cannot be registered: the {field.replace('_', ' ')} of capability "
                    f"'{capability.name}' {problem}",
                    agent_id=manifest.agent_id,
                    field=f"capabilities[{number}].{field}",
                )


def _sanitize_manifest(manifest: Manifest) -> Manifest:
    problems: dict[str, str] = {}
    remaining_bytes = MAX_SCHEMA_BYTES_OF_AGENT
    capabilities = []
    for capability in manifest.capabilities:
        sanitized, size = _sanitize_capability(capability, remaining_bytes, problems)
        capabilities.append(sanitized)
        remaining_bytes -= size
    if all(after is before for after, before in zip(capabilities, manifest.capabilities, strict=True)) and not problems:
        return manifest
    _log_once(manifest.agent_id, problems)
    metadata = {**manifest.metadata, UNCHECKED_KEY: problems} if problems else manifest.metadata
    return replace(manifest, capabilities=tuple(capabilities), metadata=metadata)


def _log_once(agent_id: str, problems: dict[str, str]) -> None:
    """Agents are described repeatedly, so problems are logged only when they have changed."""
    if not problems or _logged_digests.get(agent_id) == (digest := hash(frozenset(problems.items()))):
        return
    if len(_logged_digests) >= _MAX_CACHED:
        _logged_digests.clear()
    _logged_digests[agent_id] = digest
    name, reason = next(iter(problems.items()))
    message = "%d input schemas of agent %s are not checked here, for example that of '%s': %s"
    _log.warning(message, len(problems), agent_id, name, reason)


def _sanitize_capability(capability: Capability, byte_budget: int, problems: dict[str, str]) -> tuple[Capability, int]:
    """The sanitized capability and the size of its schemas, which may be at most `byte_budget`."""
    used_bytes = 0
    changes: dict[str, Any] = {}
    for field in ("input_schema", "output_schema"):
        schema = getattr(capability, field)
        if not schema:
            continue
        problem = None
        try:
            size = check_size(schema)
            if used_bytes + size > byte_budget:
                raise UnusableSchema(f"is left out: the schemas before it reach {MAX_SCHEMA_BYTES_OF_AGENT} bytes")
            used_bytes += size
        except UnusableSchema as exc:
            problem = str(exc)
            changes[field] = _PLAIN_OBJECT if field == "input_schema" else None
        if field == "input_schema" and problem is None:
            problem = _find_cached_problem(schema)
            if problem is not None and not _is_readable(schema):
                changes[field] = _PLAIN_OBJECT
        if field == "input_schema" and problem is not None:
            problems[capability.name] = f"its schema {problem}; the agent itself checks the arguments"
    return (replace(capability, **changes) if changes else capability), used_bytes


def _is_readable(schema: dict[str, Any] | None) -> bool:
    """Whether doors and clients can read the names of the arguments from the schema."""
    fields = schema or {}
    properties, required = fields.get("properties", {}), fields.get("required", [])
    return (
        isinstance(properties, dict)
        and all(isinstance(each, dict | bool) for each in properties.values())
        and isinstance(required, list)
        and all(isinstance(each, str) for each in required)
    )


def _find_problem(schema: dict[str, Any] | None) -> str | None:
    """Why a schema cannot be used, as the rest of a sentence after its name."""
    return (_find_size_problem(schema) or _find_cached_problem(schema)) if schema else None


def _find_cached_problem(schema: dict[str, Any]) -> str | None:
    try:
        digest = blake2b(msgspec.json.encode(schema), digest_size=16).digest()
    except (TypeError, ValueError, RecursionError):
        return "is not JSON"
    try:
        return _problem_cache[digest]
    except KeyError:
        problem = _find_compile_problem(schema)
    if len(_problem_cache) >= _MAX_CACHED:
        _problem_cache.clear()
    _problem_cache[digest] = problem
    return problem


def _find_compile_problem(schema: dict[str, Any]) -> str | None:
    try:
        compile_schema(schema)
    except UnusableSchema as exc:
        return str(exc)
    return None


def _find_size_problem(schema: Any) -> str | None:
    try:
        check_size(schema)
    except UnusableSchema as exc:
        return str(exc)
    return None
