"""The agent's errors as ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from acp import schema

from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, UpstreamRefused
from a2a_fabric.runtimes.agent_client.wire import RPCError

AUTH_REQUIRED = -32000
_INVALID_PARAMS = -32602
_WORDS = 2000
_REMEDY = "log in with the agent's own program, set its variables under `env`, or name a method as `authenticate`"

AuthMethod = schema.EnvVarAuthMethod | schema.TerminalAuthMethod | schema.AuthMethodAgent


def words_of(error: RPCError) -> str:
    """`Internal error: out of cheese`"""
    details = _details(error.data)
    return (f"{error.message}: {details}" if details else error.message or f"error {error.code}")[:_WORDS]


def refusal_of(error: RPCError, methods: Sequence[AuthMethod]) -> FabricError:
    """Of a prompt, which may have run."""
    if error.code == AUTH_REQUIRED:
        return needs_login(error, methods)
    if error.code == _INVALID_PARAMS:
        return BadInput(words_of(error), upstream_code=error.code)
    return UpstreamRefused(words_of(error), upstream_code=error.code)


def never_began(error: RPCError, methods: Sequence[AuthMethod]) -> AgentOffline:
    """Of anything that comes before a prompt."""
    if error.code == AUTH_REQUIRED:
        return needs_login(error, methods)
    return AgentOffline(f"The agent opens no session: {words_of(error)}", upstream_code=error.code)


def needs_login(error: RPCError, methods: Sequence[AuthMethod]) -> AgentOffline:
    named = "; ".join(_method(method) for method in methods)
    ways = f" It knows: {named}." if named else ""
    why = f"The agent wants authentication first ({words_of(error)}): {_REMEDY}.{ways}"
    return AgentOffline(why, upstream_code=error.code, auth_methods=[method.id for method in methods])


def _method(method: AuthMethod) -> str:
    """`gemini-api-key (Use an API key; GEMINI_API_KEY)`"""
    variables = [each.name for each in method.vars] if isinstance(method, schema.EnvVarAuthMethod) else []
    return f"{method.id} ({'; '.join([method.name, *variables])})"


def _details(data: Any) -> str:
    if data is None or isinstance(data, str):
        return data or ""
    if isinstance(data, dict) and isinstance(told := data.get("details") or data.get("message"), str):
        return told
    return msgspec.json.encode(data).decode()
