"""Runtime: single Python functions of Agent Zero, called through its "RFC" endpoint.

That endpoint runs any function of any module for every client with the password. So only functions that the
manifest lists can be called; any other call is refused before a request is sent."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from a2a_fabric.core.agent import Capability, Manifest, Status, normalize_name
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import add_notes, bind_arguments, describe_unbound_attachments
from a2a_fabric.core.errors import BadInput, CapabilityNotFound
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result, to_json_object
from a2a_fabric.outbound.port import HTTPReply
from a2a_fabric.runtimes.agentzero.endpoint import AgentZeroEndpoint, RemoteFunction, VersionedPath
from a2a_fabric.runtimes.context import complete_manifest
from a2a_fabric.runtimes.probe import probe_page
from a2a_fabric.runtimes.upstream import JSONAPIClient, decode_reply, is_success

Functions = Mapping[str, RemoteFunction]


def read_functions(manifest: Manifest, endpoint: AgentZeroEndpoint) -> tuple[Functions, str]:
    """The functions by their folded names, and the password. Raises BadInput."""
    functions = {normalize_name(function.public_name): function for function in endpoint.functions}
    if not functions:
        raise _bad_endpoint(manifest, "RFC runs code, so it is off until `functions` lists each module and function")
    if len(functions) < len(endpoint.functions):
        raise _bad_endpoint(manifest, "two of its `functions` have the same name; give one of them another `name`")
    if not endpoint.password:
        raise _bad_endpoint(manifest, "RFC needs a `password`, as env:NAME")
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


def _bad_endpoint(manifest: Manifest, why: str) -> BadInput:
    return BadInput(f"Agent '{manifest.agent_id}' has a bad endpoint: {why}", agent_id=manifest.agent_id)
