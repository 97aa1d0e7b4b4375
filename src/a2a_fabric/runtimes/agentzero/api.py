"""Runtimes: Agent Zero through its own HTTP API, by messages or by calls of single Python functions ("RFC").

A message is answered when the agent is done. The API cannot cancel: if the caller leaves, the connection is closed,
and the agent may go on working. The RFC endpoint runs any function of any module for every client with the password.
So only functions that the manifest lists can be called; any other call is refused before a request is sent."""

from __future__ import annotations

import hashlib
import hmac
import json
import mimetypes
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Status, normalize_name
from a2a_fabric.core.call import Call, Emit, add_notes, bind_arguments, describe_unbound_attachments, parts_from_input
from a2a_fabric.core.errors import CapabilityNotFound
from a2a_fabric.core.result import Part, Result, to_json_object
from a2a_fabric.outbound.port import HTTPReply
from a2a_fabric.runtimes.agentzero.endpoint import (
    AgentZeroEndpoint,
    RemoteFunction,
    VersionedPath,
    extract_object,
    prompt_from_call,
    text_from_part,
)
from a2a_fabric.runtimes.context import bad_endpoint, complete_manifest
from a2a_fabric.runtimes.prompt import DEFAULT_CAPABILITY
from a2a_fabric.runtimes.remote_work import ContextIds
from a2a_fabric.runtimes.upstream import (
    JSONAPIClient,
    decode_object_or_empty,
    decode_reply,
    is_success,
    probe_page,
    read_excerpt,
)

_CONTEXT_LOST_NOTE = "the agent no longer knew the conversation, so a new one was started"


class _MessageReply(msgspec.Struct, frozen=True, kw_only=True):
    context_id: str = ""
    response: Any = None


class AgentZeroMessageRuntime:
    def __init__(self, manifest: Manifest, endpoint: AgentZeroEndpoint, api: JSONAPIClient) -> None:
        self._manifest = manifest
        self._endpoint = endpoint
        self._api = api
        self._messages = VersionedPath(api, "api_message")
        self._context_ids = ContextIds()

    async def __call__(self, call: Call, emit: Emit) -> Result:
        context_id, notes = self._context_ids.find(call), list[str]()
        reply = await self._messages.post(self._render_body(call, context_id), call)
        if context_id and _is_context_lost(reply):
            self._context_ids.forget(call)
            notes.append(_CONTEXT_LOST_NOTE)
            reply = await self._messages.post(self._render_body(call, ""), call)
        if not is_success(reply.status):
            raise self._api.build_error(reply.status, read_excerpt(reply.body))
        answer = decode_reply(reply.body, _MessageReply)
        self._context_ids.remember(call, answer.context_id)
        result = Result(data=to_json_object(answer.response))
        return add_notes(extract_object(result, self._manifest, call), notes)

    async def health(self) -> Status:
        return await probe_page(self._api.http, f"{self._api.uri}/health", self._api.headers)

    async def describe(self) -> Manifest:
        """The API publishes no description; the agent can be asked anything."""
        ask = Capability(name=DEFAULT_CAPABILITY, description="Ask Agent Zero.", modalities=("text", "file"))
        return complete_manifest(
            self._manifest, Manifest(agent_id=self._manifest.agent_id, endpoint={}, capabilities=(ask,))
        )

    async def aclose(self) -> None:
        """The HTTP client belongs to the node, so there is nothing to close."""

    def _render_body(self, call: Call, context_id: str) -> dict[str, Any]:
        parts = parts_from_input(call.input)
        texts = (prompt_from_call(self._manifest, call), *map(text_from_part, parts))
        fields = {
            "message": "\n\n".join(filter(None, texts)),
            "context_id": context_id,
            "attachments": _render_attachments(parts),
            "lifetime_hours": self._endpoint.lifetime_hours,
            "project_name": None if context_id else self._endpoint.project,
            "agent_profile": None if context_id else self._endpoint.profile,
        }
        return {name: value for name, value in fields.items() if value}


def _render_attachments(parts: Iterable[Part]) -> list[dict[str, str]]:
    """Agent Zero saves each file under its name, so the names must be unique."""
    files: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        if part.blob is not None:
            name = part.name or f"attachment-{number}{mimetypes.guess_extension(part.mime_type or '') or ''}"
            files[name if name not in files else f"{number}-{name}"] = part.blob
    return [{"filename": name, "base64": content} for name, content in files.items()]


def _is_context_lost(reply: HTTPReply) -> bool:
    """Agent Zero forgets a context after its lifetime, and when it restarts."""
    return reply.status == 404 and "context" in str(decode_object_or_empty(reply.body).get("error", "")).lower()


Functions = Mapping[str, RemoteFunction]


def read_functions(manifest: Manifest, endpoint: AgentZeroEndpoint) -> tuple[Functions, str]:
    """The functions by their folded names, and the password. Raises BadInput."""
    functions = {normalize_name(function.public_name): function for function in endpoint.functions}
    if not functions:
        raise bad_endpoint(
            manifest.agent_id, "RFC runs code, so it is off until `functions` lists each module and function"
        )
    if len(functions) < len(endpoint.functions):
        raise bad_endpoint(
            manifest.agent_id, "two of its `functions` have the same name; give one of them another `name`"
        )
    if not endpoint.password:
        raise bad_endpoint(manifest.agent_id, "RFC needs a `password`, as env:NAME")
    return functions, endpoint.password


def sign_request(request: Mapping[str, Any], password: str) -> dict[str, str]:
    """The body of a request: the request as text, and its HMAC with the password."""
    text = json.dumps(request)
    return {"rfc_input": text, "hash": hmac.new(password.encode(), text.encode(), hashlib.sha256).hexdigest()}


class AgentZeroFunctionRuntime:
    def __init__(self, manifest: Manifest, functions: Functions, password: str, api: JSONAPIClient) -> None:
        self._full_manifest = complete_manifest(manifest, _manifest_from_functions(manifest, functions))
        self._functions = functions
        self._password = password
        self._api = api
        self._rfc_path = VersionedPath(api, "rfc")

    async def __call__(self, call: Call, emit: Emit) -> Result:
        function = self._functions.get(normalize_name(call.target.capability))
        if function is None:
            offered = [each.public_name for each in self._functions.values()]
            raise CapabilityNotFound(self._full_manifest.agent_id, call.target.capability, offered)
        args, kwargs = _split_arguments(call, self._full_manifest.find_capability(call.target.capability))
        request = {"module": function.module, "function_name": function.function, "args": args, "kwargs": kwargs}
        reply = await self._rfc_path.post(sign_request(request, self._password), call)
        if not is_success(reply.status):
            raise self._api.build_error(reply.status, _error_line(reply))
        result = Result(data=to_json_object(decode_reply(reply.body, Any) if reply.body else None))
        return add_notes(result, describe_unbound_attachments(call.input, kwargs, function.public_name))

    async def health(self) -> Status:
        return await probe_page(self._api.http, f"{self._api.uri}/health", self._api.headers)

    async def describe(self) -> Manifest:
        """The functions in the manifest; Agent Zero is not asked."""
        return self._full_manifest

    async def aclose(self) -> None:
        """The HTTP client belongs to the node, so there is nothing to close."""


def _manifest_from_functions(manifest: Manifest, functions: Functions) -> Manifest:
    capabilities = tuple(
        Capability(name=each.public_name, description=each.description, input_schema=each.input_schema)
        for each in functions.values()
    )
    return Manifest(agent_id=manifest.agent_id, endpoint={}, capabilities=capabilities)


def _split_arguments(call: Call, capability: Capability | None) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments. Without a schema, the task is the first argument."""
    if capability is None or capability.input_schema is None:
        return ([call.input.task] if call.input.task else []), call.input.context
    return [], bind_arguments(capability, call.input)


def _error_line(reply: HTTPReply) -> str:
    """The line of a traceback that holds the error: the last one, or a first one without a traceback."""
    lines = [line.strip() for line in reply.body.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines or lines[0].startswith("<"):
        return ""
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
