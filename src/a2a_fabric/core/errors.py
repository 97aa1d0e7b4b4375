"""All errors of the gateway, sorted by what the caller or the operator can do next.

    FabricError
    ├── CallerError               fix the request; no other agent would answer it differently
    │   ├── BadInput              BAD_INPUT
    │   │   └── UnknownOperation  BAD_INPUT
    │   ├── ConfigError           BAD_CONFIG             a file of the operator
    │   ├── PayloadTooLarge       PAYLOAD_TOO_LARGE
    │   ├── Conflict              CONFLICT
    │   ├── AgentNotFound         AGENT_NOT_FOUND
    │   ├── CapabilityNotFound    CAPABILITY_NOT_FOUND   (another agent may have it)
    │   ├── Unauthenticated       AUTH_DENIED            no credentials
    │   ├── AuthInvalid           AUTH_INVALID           credentials that this node does not accept
    │   ├── AuthExpired           AUTH_EXPIRED           credentials that have expired
    │   ├── Forbidden             AUTH_DENIED            authenticated, but not allowed
    │   │   └── DelegationRefused AUTH_DENIED            the call went in a circle (another agent may do it)
    │   ├── JobNotFound           JOB_NOT_FOUND          no such job, or not this caller's
    │   └── JobCancelled          CANCELLED              the job whose result was requested was cancelled
    ├── RateLimited               RATE_LIMITED           wait `retry_after` seconds
    │   └── AgentBusy             RATE_LIMITED           the agent is at its limit (another agent may do it)
    ├── AgentError                another agent may succeed
    │   ├── AgentOffline          AGENT_OFFLINE          certainly never ran
    │   │   └── NotReached        AGENT_OFFLINE          not within the time that the call had
    │   ├── CallTimeout           TIMEOUT                may have run
    │   ├── UpstreamRefused       UPSTREAM_ERROR         the agent refused; that is the answer (`is_answer`)
    │   ├── UpstreamFailed        UPSTREAM_ERROR         a broken answer (HTTP 5xx, unreadable): may have run
    │   ├── UpstreamInterrupted   UPSTREAM_ERROR         the answer was lost: may have run
    │   └── AllAttemptsFailed     AGENT_OFFLINE          every candidate failed
    ├── LeaseLost                 LEASE_LOST             the worker was replaced: stop, write nothing more
    ├── StoreError                STORE_ERROR
    │   ├── StoreUnavailable      STORE_UNAVAILABLE      may work later; nothing was written, unless it says so
    │   │   ├── StoreBusy                                locked by another program, or too many writes are queued
    │   │   └── StoreFull                                no space left on the disk
    │   └── StoreUnusable         STORE_UNUSABLE         the operator has to act; nothing was changed
    │       ├── StoreCorrupt                             not a database, or a damaged one
    │       ├── StoreReadOnly                            the file or the folder cannot be written
    │       ├── SchemaTooNew                             written by a newer program
    │       └── SchemaChanged                            a migration differs from the one that was applied
    └── InternalError             INTERNAL_ERROR         a mistake of the gateway itself

Where a message is always the same it is written once, in its class. Doors map the tree to their own codes.

`falls_back` says whether routing may ask another agent, `never_ran` whether the agent certainly did no work, and
`is_answer` whether the agent itself said so; then no other agent is asked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound="FabricError")

# Keys and values of `details`. On the wire several classes share a code, and these tell them apart.
_INTERRUPTED, _BROKEN, _BUSY = "interrupted", "broken", "busy"

_MAX_SHOWN = 128  # characters of a name that a caller sent
_MAX_COMPARED = 100  # names
_MAX_NAMES = 6  # of a list of names in a sentence

_ERROR_BY_CODE: dict[str, type[FabricError]] = {}


def register_error_code(kind: type[E]) -> type[E]:
    """A class decorator: when another node reports this code, `error_from_code` makes an error of this class."""
    _ERROR_BY_CODE[kind.code] = kind
    return kind


class OperatorText(str):
    """A message with details that only the operator of the node may read; `public` is the message for others.

    An error that is made from it shows `public`, until `core.policy` knows that the operator reads it.
    """

    __slots__ = ("public",)
    public: str

    def __new__(cls, whole: str, public: str) -> OperatorText:
        text = super().__new__(cls, whole)
        text.public = public
        return text

    def __add__(self, tail: str) -> OperatorText:
        return OperatorText(str(self) + tail, self.public + tail)


class FabricError(Exception):
    """A failure with a code, a message for people, and details for programs.

    `private` is the whole message, if `message` leaves out what only the operator may read.
    """

    code: ClassVar[str] = "INTERNAL_ERROR"
    falls_back: ClassVar[bool] = False
    never_ran: ClassVar[bool] = True
    is_answer: bool = False
    reason_word: ClassVar[str] = ""  # in a list of failed attempts, instead of the code

    def __init__(self, message: str, /, **details: Any) -> None:
        private = details.pop("private", None)  # another node of the same operator sends it as one of the details
        if isinstance(message, OperatorText):
            message, private = message.public, str(message)
        super().__init__(message)
        self.message = message
        self.private = private if isinstance(private, str) else None
        self.is_logged = False  # set when a log line has reported it, so that it is reported once
        self.trace_id: str | None = None  # of the failed request, if another node reported it
        self.is_inconclusive = False  # set if it says nothing about the agent's health
        self.details: dict[str, Any] = {key: value for key, value in details.items() if value is not None}

    @property
    def reason(self) -> str:
        """One word for a list of failed attempts."""
        return self.reason_word or self.code.lower()

    @property
    def full_message(self) -> str:
        """The whole message: for the log, for health, and for another error that is made from this one."""
        return self.message if self.private is None else OperatorText(self.private, self.message)


# What the caller has to change.


class CallerError(FabricError):
    """The request itself is wrong; nothing was done."""


@register_error_code
class BadInput(CallerError):
    code = "BAD_INPUT"


class UnknownOperation(BadInput):
    def __init__(self, name: str, candidates: Iterable[str] = ()) -> None:
        shown = name[:_MAX_SHOWN]
        super().__init__(f"Unknown operation {shown!r}{suggest_nearest(name, candidates)}", tool=shown)


class ConfigError(CallerError):
    """A configuration or manifest file is wrong. The message names the file, the place, and what would be right."""

    code = "BAD_CONFIG"


@register_error_code
class PayloadTooLarge(CallerError):
    code = "PAYLOAD_TOO_LARGE"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes", limit=limit)


@register_error_code
class Conflict(CallerError):
    code = "CONFLICT"


@register_error_code
class AgentNotFound(CallerError):
    code = "AGENT_NOT_FOUND"

    def __init__(self, agent_id: str, candidates: Iterable[str] = ()) -> None:
        shown, hint = agent_id[:_MAX_SHOWN], suggest_nearest(agent_id, candidates)
        super().__init__(f"Agent '{shown}' not found{hint}. List agents with: a2a-fabric agents", agent_id=shown)


@register_error_code
class CapabilityNotFound(CallerError):
    code = "CAPABILITY_NOT_FOUND"
    falls_back = True

    def __init__(self, agent_id: str, capability: str, offered: Iterable[str] = ()) -> None:
        shown, names = capability[:_MAX_SHOWN], list(offered)[:8]
        hint = f" (it offers: {', '.join(names)})" if names else ""
        super().__init__(
            f"capability '{shown}' is not offered by agent '{agent_id}'{hint}", agent_id=agent_id, capability=shown
        )


class Unauthenticated(CallerError):
    code = "AUTH_DENIED"

    def __init__(self) -> None:
        super().__init__("Credentials are required: send 'Authorization: Bearer TOKEN'")


@register_error_code
class AuthInvalid(CallerError):
    code = "AUTH_INVALID"

    def __init__(self, message: str = "The credentials are not valid on this node") -> None:
        super().__init__(message)


@register_error_code
class AuthExpired(CallerError):
    code = "AUTH_EXPIRED"


@register_error_code
class Forbidden(CallerError):
    code = "AUTH_DENIED"


class OutOfScope(Forbidden):
    """The credentials are good, but not for this. `scope` would allow it; unset if its name would tell too much."""

    def __init__(self, message: str, scope: str | None = None, /, **details: Any) -> None:
        super().__init__(message, **details)
        self.scope = scope


class DelegationRefused(Forbidden):
    """The call has passed this node before, or too many nodes: `cause` is LOOP or DEPTH."""

    falls_back = True

    def __init__(self, message: str, cause: str, chain: Iterable[str]) -> None:
        super().__init__(message, reason=cause, delegation_chain=list(chain))

    @property
    def reason(self) -> str:
        return str(self.details.get("reason", "loop")).lower()


@register_error_code
class JobNotFound(CallerError):
    code = "JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"Job '{job_id[:64]}' not found. List yours with: a2a-fabric jobs", job_id=job_id[:64])


@register_error_code
class JobCancelled(CallerError):
    code = "CANCELLED"


# What the caller may repeat later.


@register_error_code
class RateLimited(FabricError):
    code = "RATE_LIMITED"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message, retry_after=round(retry_after, 3))
        self.retry_after = retry_after


class AgentBusy(RateLimited):
    """The agent is alive and works on as many calls as it takes at a time; this call did not reach it."""

    falls_back = True
    reason_word = _BUSY

    def __init__(self, message: str, /, *, retry_after: float | None = None, **details: Any) -> None:
        super().__init__(message, 1.0 if retry_after is None else retry_after)
        self.details |= {key: value for key, value in details.items() if value is not None}
        self.details["reason"] = _BUSY


# What went wrong at an agent.


class AgentError(FabricError):
    """The agent's side failed; another agent may succeed."""

    falls_back = True
    never_ran = False


@register_error_code
class AgentOffline(AgentError):
    code = "AGENT_OFFLINE"
    never_ran = True
    reason_word = "offline"


class NotReached(AgentOffline):
    """The agent did not start, or no connection was made, within the time that the call had."""


@register_error_code
class CallTimeout(AgentError):
    code = "TIMEOUT"
    reason_word = "timeout"

    def __init__(self, timeout: float, **details: Any) -> None:
        super().__init__(f"No answer within {timeout:g} s", **details)


@register_error_code
class UpstreamRefused(AgentError):
    """The agent itself refused: `ok: false`, `isError`, HTTP 4xx, a typed error of its protocol. That is its answer."""

    code = "UPSTREAM_ERROR"
    falls_back = False
    is_answer = True


class UpstreamFailed(AgentError):
    """The agent is there but broken: HTTP 5xx, a reply that cannot be read, code that raised."""

    code = "UPSTREAM_ERROR"
    reason_word = "failed"

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message, **{**details, _BROKEN: True})


class UpstreamInterrupted(AgentError):
    """The connection to the agent broke before the answer was complete."""

    code = "UPSTREAM_ERROR"
    reason_word = "interrupted"

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message, **{**details, _INTERRUPTED: True})


class AllAttemptsFailed(AgentError):
    """Every candidate of the plan failed; the details name each hop."""

    code = "AGENT_OFFLINE"
    falls_back = False

    def __init__(self, agent_id: str, hops: list[str], **details: Any) -> None:
        super().__init__(
            f"Agent {agent_id} unavailable and all fallbacks failed",
            primary=hops[0],
            fallbacks=hops[1:],
            agent_id=agent_id,
            **details,
        )


# What went wrong at the node or its store.


class LeaseLost(FabricError):
    """Never shown to a caller: the worker that gets it drops the job and writes nothing more."""

    code = "LEASE_LOST"

    def __init__(self, job_id: str, fence: int) -> None:
        super().__init__(f"Job '{job_id}' is no longer held under fence {fence}", job_id=job_id, fence=fence)


@register_error_code
class StoreError(FabricError):
    code = "STORE_ERROR"


# `extra` of log records that say so: an outage is one line, and one at its end.
STORE_AWAY: Mapping[str, object] = {"store_is_away": True}
STORE_BACK: Mapping[str, object] = {"store_is_away": False}


@register_error_code
class StoreUnavailable(StoreError):
    code = "STORE_UNAVAILABLE"


class StoreBusy(StoreUnavailable):
    pass


class StoreFull(StoreUnavailable):
    def __init__(self, location: str) -> None:
        super().__init__(
            f"No space left for {location}: free some (a2a-fabric jobs prune), and the node continues by itself",
            store=location,
        )


@register_error_code
class StoreUnusable(StoreError):
    code = "STORE_UNUSABLE"


class StoreCorrupt(StoreUnusable):
    def __init__(self, location: str, reason: str) -> None:
        super().__init__(
            f"{location} is not a usable database ({reason}). It was left as it is: restore a copy, or move it away "
            "to begin with an empty one",
            store=location,
        )


class StoreReadOnly(StoreUnusable):
    def __init__(self, location: str) -> None:
        super().__init__(
            f"{location} cannot be written: give this user write permission on the file and its folder, "
            "or name another place with --store",
            store=location,
        )


class SchemaTooNew(StoreUnusable):
    def __init__(self, location: str, schema: int, supported: int) -> None:
        super().__init__(
            f"{location} has schema {schema}, and this program knows up to {supported}: run the newer a2a-fabric that "
            "wrote it, or name another place with --store",
            store=location,
            found=schema,
            known=supported,
        )


class SchemaChanged(StoreUnusable):
    def __init__(self, location: str, migration: str) -> None:
        super().__init__(
            f"{location} was made with another text of migration {migration} than this program has: install the "
            "release that made it, or export from there and import here",
            store=location,
            migration=migration,
        )


@register_error_code
class InternalError(FabricError):
    code = "INTERNAL_ERROR"

    def __init__(self) -> None:
        super().__init__("Something went wrong inside the gateway; its log has the details under this trace id")


# Errors from elsewhere.

ErrorTable = Mapping[type[Exception], type[FabricError]]


class translated:  # lower case, because it reads as a word in `with translated(table):`
    """Translates the errors of a library into FabricErrors; the first row that matches wins."""

    __slots__ = ("_details", "_table")

    def __init__(self, table: ErrorTable, **details: Any) -> None:
        self._table = table
        self._details = details

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if exc is None or isinstance(exc, FabricError):
            return
        for foreign, ours in self._table.items():
            if isinstance(exc, foreign):
                raise ours((str(exc) or type(exc).__name__)[:500], **self._details) from exc


def error_from_code(code: str, message: str, details: dict[str, Any] | None = None) -> FabricError:
    """The error that another node or agent reported, as a FabricError; an unknown code means that the agent refused."""
    details = details or {}
    error_class = _ERROR_BY_CODE.get(code, UpstreamRefused)
    if error_class is UpstreamRefused and details.get(_BROKEN) is True:
        error_class = UpstreamFailed
    elif error_class is UpstreamRefused and details.get(_INTERRUPTED) is True:
        error_class = UpstreamInterrupted
    elif error_class is RateLimited and details.get("reason") == _BUSY:
        error_class = AgentBusy
    error = error_class.__new__(error_class)  # not its own `__init__`: the message is written already
    FabricError.__init__(error, message, **{str(key): value for key, value in details.items()})
    if isinstance(error, RateLimited):
        retry_after = error.details.get("retry_after")
        error.retry_after = float(retry_after) if isinstance(retry_after, int | float) else 1.0
    return error


_AGENT_ERROR_CODES = frozenset({"BAD_INPUT", "CAPABILITY_NOT_FOUND", "AGENT_OFFLINE", "TIMEOUT", "UPSTREAM_ERROR"})


def error_from_agent(code: str, message: str, details: dict[str, Any] | None = None) -> FabricError:
    """The error that an agent reported. Its own trouble with credentials or limits is a refusal to our caller."""
    details = details or {}
    # With `fallbacks` the agent is itself a gateway that tried several agents, and one of them may have run.
    is_failed_gateway = code == AgentOffline.code and "fallbacks" in details
    if code not in _AGENT_ERROR_CODES or is_failed_gateway:
        return UpstreamRefused(message, **{**details, "upstream_code": code})
    error = error_from_code(code, message, details)
    # An agent that does not offer this, cannot be reached, or says itself that it broke, has not answered the task.
    error.is_answer = not isinstance(error, CapabilityNotFound | AgentOffline | UpstreamFailed | UpstreamInterrupted)
    return error


def suggest_nearest(word: str, candidates: Iterable[str]) -> str:
    """' (nearest: percy)' if one of the known words is close, else nothing."""
    word, names = word[:_MAX_SHOWN], list(islice(candidates, 2000))
    if len(names) > _MAX_COMPARED:  # a comparison takes long, so only the most promising are compared
        names = [name for name in names if abs(len(name) - len(word)) <= 2]
        names.sort(key=lambda name: (name[:3] != word[:3], name[-3:] != word[-3:], len(name) != len(word)))
    close = difflib.get_close_matches(word, names[:_MAX_COMPARED], n=1, cutoff=0.6)
    return f" (nearest: {close[0]})" if close else ""


def suggest_for_pattern(pattern: str, candidates: Iterable[str]) -> str:
    """' (nearest: delete_repo, delete_branch)' for a pattern that matches nothing; else the first of the names."""
    names = list(candidates)[:500]
    literal = pattern[:_MAX_SHOWN].replace("*", "").replace("?", "")
    close = difflib.get_close_matches(literal, names, n=3, cutoff=0.5)
    if close:
        return f" (nearest: {', '.join(close)})"
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f" (there are: {', '.join(names[:_MAX_NAMES])}{more})" if names else " (there is nothing)"
