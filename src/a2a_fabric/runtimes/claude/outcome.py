"""How a run of the program ended, as a result or as one of our errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from a2a_fabric.core.errors import AgentBusy, AgentOffline, FabricError, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.claude.hearing import Hearing, Retry

_WORDS = 2000
_NO_ACCESS = ("authentication_failed", "oauth_org_not_allowed", "billing_error")
_BUSY = ("rate_limit", "overloaded")
_NO_ACCESS_STATUS = (401, 402, 403)
_BUSY_STATUS = (429, 529)
_UNKNOWN_SESSION = "No conversation found"
_USED_SESSION = "already in use"
_REASONS = {
    "error_max_turns": "it has asked its model as often as it may",
    "error_max_budget_usd": "it has spent what it may",
    "error_max_structured_output_retries": "it did not manage to answer with the object that was asked for",
    "error_during_execution": "it failed in the middle of its work",
}


def result_of(hearing: Hearing, said: dict[str, Any]) -> Result:
    """Of a run that went well: an object where one was asked for, else words and what they cost."""
    notes = (*hearing.notes, *_denied(said.get("permission_denials")))
    found = said.get("structured_output")
    if isinstance(found, dict):
        return Result(data=found, notes=notes)
    told = {
        "usage": said.get("usage"),
        "cost_usd": said.get("total_cost_usd"),
        "turns": said.get("num_turns"),
        "session_id": said.get("session_id"),
    }
    spoken = {"answer": str(said.get("result") or "")}
    return Result(data={**spoken, **{name: value for name, value in told.items() if value is not None}}, notes=notes)


def is_unknown_session(said: dict[str, Any]) -> bool:
    return any(_UNKNOWN_SESSION in words for words in _errors(said))


def is_used_session(obituary: str) -> bool:
    return _USED_SESSION in obituary


def refusal_of(hearing: Hearing, said: dict[str, Any]) -> FabricError:
    """Of a run whose result is an error."""
    words = str(said.get("result") or "; ".join(_errors(said)))[:_WORDS]
    status = said.get("api_error_status")
    if hearing.trouble or said.get("terminal_reason") == "api_error":
        return _trouble(words, hearing, hearing.trouble, status)
    subtype = str(said.get("subtype") or "")
    reason = _REASONS.get(subtype, "")
    why = ": ".join(filter(None, (reason, words))) or "it failed without saying why"
    failure = UpstreamFailed if subtype == "error_during_execution" else UpstreamRefused
    return failure(f"Claude Code stopped: {why}", reason=subtype or None)


def hopeless(hearing: Hearing, retry: Retry, remaining: float) -> FabricError | None:
    """Why waiting for the next try would be in vain, if it would."""
    if retry.kind in _NO_ACCESS and retry.attempt > 1:
        return _trouble("the model's API does not take its credentials", hearing, retry.kind)
    if retry.delay > remaining:
        words = f"the model's API does not answer ({retry.kind}), and there is no time to wait {retry.delay:.0f} s"
        return _trouble(words, hearing, retry.kind, retry_after=retry.delay)
    return None


def _trouble(
    words: str, hearing: Hearing, kind: str, status: Any = None, retry_after: float | None = None
) -> FabricError:
    """With the model's API: if nothing was done yet, somebody else may do it."""
    details = {"upstream_code": kind or None, "status": status, "retry_after": retry_after}
    message = f"Claude Code cannot reach its model: {words}"
    if hearing.has_worked:
        return UpstreamFailed(message, **details)
    if kind in _BUSY or status in _BUSY_STATUS:
        return AgentBusy(message, **details)
    if kind in _NO_ACCESS or status in _NO_ACCESS_STATUS or retry_after is not None:
        return AgentOffline(message, **details)
    return UpstreamFailed(message, **details)


def _errors(said: dict[str, Any]) -> list[str]:
    errors = said.get("errors")
    return [str(each) for each in errors] if isinstance(errors, list) else []


def _denied(denials: Any) -> Iterator[str]:
    for denial in denials if isinstance(denials, list) else ():
        if isinstance(denial, dict):
            yield f"permission was denied: {str(denial.get('tool_name', 'a tool'))[:100]}"
