"""Runtime: single functions of Agent Zero's own Python, called by its "RFC".

That endpoint runs any function of any module for whoever knows the password. So nothing is
called but what the manifest lists, and whatever else is asked for is refused before anything is sent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from a2a_fabric.core.agent import Capability, Manifest, Status, fold
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import left_behind, noted
from a2a_fabric.core.errors import BadInput, CapabilityNotFound
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result, as_object
from a2a_fabric.outbound.port import Reply
from a2a_fabric.runtimes.agentzero.endpoint import AgentZeroEndpoint, Function
from a2a_fabric.runtimes.agentzero.moved import Moved
from a2a_fabric.runtimes.http_probe import probe_page
from a2a_fabric.runtimes.json_api import JSONAPI, decoded, is_good
from a2a_fabric.runtimes.published import complete

Functions = Mapping[str, Function]


def allowed(manifest: Manifest, endpoint: AgentZeroEndpoint) -> tuple[Functions, str]:
    """The functions by their folded names, and the password. Raises BadInput."""
    functions = {fold(function.called): function for function in endpoint.functions}
    if not functions:
        raise _bad(manifest, "RFC runs code, so it is off until `functions` lists each module and function")
    if len(functions) < len(endpoint.functions):
        raise _bad(manifest, "two of its `functions` have the same name; give one of them another `name`")
    if not endpoint.password:
        raise _bad(manifest, "RFC needs a `password`, as env:NAME")
    return functions, endpoint.password


def signed(asked: Mapping[str, Any], password: str) -> dict[str, str]:
    """The body of a request: what is asked as text, and the proof that we know the password."""
    text = json.dumps(asked)
    return {"rfc_input": text, "hash": hmac.new(password.encode(), text.encode(), hashlib.sha256).hexdigest()}


class FunctionRuntime:
    def __init__(self, manifest: Manifest, functions: Functions, password: str, api: JSONAPI) -> None:
        self._described = complete(manifest, _published(manifest, functions))
        self._functions = functions
        self._password = password
        self._api = api
        self._calls = Moved(api, "rfc")

    async def __call__(self, call: Call, emit: Emit) -> Result:
        function = self._functions.get(fold(call.target.capability))
        if function is None:
            offered = [each.called for each in self._functions.values()]
            raise CapabilityNotFound(self._described.agent_id, call.target.capability, offered)
        args, kwargs = _arguments(call, self._described.capability(call.target.capability))
        asked = {"module": function.module, "function_name": function.function, "args": args, "kwargs": kwargs}
        reply = await self._calls.post(signed(asked, self._password), call)
        if not is_good(reply.status):
            raise self._api.refusal(reply.status, _why(reply))
        result = Result(data=as_object(decoded(reply.body, Any) if reply.body else None))
        return noted(result, left_behind(call.input, kwargs, function.called))

    async def health(self) -> Status:
        return await probe_page(self._api.http, f"{self._api.uri}/health", self._api.headers)

    async def describe(self) -> Manifest:
        """The functions that may be called; more is not asked for."""
        return self._described

    async def aclose(self) -> None:
        """Nothing of our own to release."""


def _published(manifest: Manifest, functions: Functions) -> Manifest:
    found = tuple(
        Capability(name=each.called, description=each.description, input_schema=each.input_schema)
        for each in functions.values()
    )
    return Manifest(agent_id=manifest.agent_id, endpoint={}, capabilities=found)


def _arguments(call: Call, capability: Capability | None) -> tuple[list[Any], dict[str, Any]]:
    """With a schema, all by name; without, the task is the first argument and the context the rest."""
    if capability is None or capability.input_schema is None:
        return ([call.input.task] if call.input.task else []), call.input.context
    return [], arguments_for(capability, call.input)


def _why(reply: Reply) -> str:
    """Of a traceback, the line that says what happened: by itself at the top, or else at the end."""
    lines = [line.strip() for line in reply.body.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines or lines[0].startswith("<"):
        return ""
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def _bad(manifest: Manifest, why: str) -> BadInput:
    return BadInput(f"Agent '{manifest.agent_id}' has a bad endpoint: {why}", agent_id=manifest.agent_id)
