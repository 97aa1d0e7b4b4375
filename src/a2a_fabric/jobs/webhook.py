"""Telling somebody of a job's end: a job of its own, so that a crash does not forget it.

The request is signed as Standard Webhooks say: HMAC-SHA256 over id, timestamp and
body, in the header `webhook-signature`. Anything but 2xx is tried again, ever more
rarely; the id stays the same, so that a receiver can tell a repetition.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import Call, Input, Principal, Target
from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, Forbidden
from a2a_fabric.core.events import status
from a2a_fabric.core.job import Job, JobSummary, NewJob, Outcome
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.result import Result
from a2a_fabric.core.retry import RetryPolicy
from a2a_fabric.core.states import has_ended
from a2a_fabric.core.stores import Jobs
from a2a_fabric.core.trace import Trace, new_trace
from a2a_fabric.jobs.views import job_view
from a2a_fabric.jobs.wish import Webhook
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import HTTPClient, OutboundError, Refused

KIND = "webhook"
AGENT = "fabric.webhooks"
OWNER = "fabric:webhooks"  # nobody's: they are in no caller's list
RETRY = RetryPolicy(max_attempts=10, pause_seconds=2.0, factor=3.0, max_pause_seconds=6 * 3600.0)
_TIMEOUT = 15.0
_REPLY_BYTES = 64 * 1024
KEPT = 24 * 3600.0
_GONE = 410


class Addresses:
    """Where callers may have something sent to, judged when they say so; each delivery judges again, since the
    address that a name stands for may change.

    It has a guard of its own: a caller's slow names must not hold up deliveries.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def check(self, url: str, field: str) -> None:
        """Raises BadInput. A name that cannot be looked up now passes: it may be there when it is needed."""
        try:
            place = self._guard.check_url(url)
        except Refused as exc:
            raise BadInput(f"{field}: {exc}"[:300], field=field, issue="refused") from exc
        try:
            await self._guard.addresses(place.host, place.port)
        except Refused as exc:  # which address a name stands for in here is not for callers to learn
            raise BadInput(
                f"{field}: {place.host[:255]} is no public address, so this node sends nothing there. Name a public "
                "one, or ask the operator to add the host to `jobs.webhook_allow`",
                field=field,
                issue="refused",
            ) from exc
        except OutboundError:
            return


def check_webhook(wanted: Webhook, node_secret: str | None) -> dict[str, Any]:
    """As it is kept with the job; its address has been judged. Raises BadInput."""
    if wanted.secret is None and node_secret is None:
        raise BadInput(
            "webhook.secret: needed, since this node has none of its own (`jobs.webhook_secret`)",
            field="webhook.secret",
        )
    return {"url": wanted.url} if wanted.secret is None else {"url": wanted.url, "secret": wanted.secret}


def with_webhook(outcome: Outcome, job: JobSummary) -> Outcome:
    """An end, and in the same write the errand to tell of it."""
    if "webhook" not in job.meta or not has_ended(outcome.state):
        return outcome
    return replace(outcome, follow_ups=(*outcome.follow_ups, _errand(job)))


def _errand(job: JobSummary) -> NewJob:
    call = Call(
        trace=_trace_of(job),
        auth=Principal(),
        target=Target(agent_id=AGENT, capability="deliver", timeout_ms=int(_TIMEOUT * 1000)),
        input=Input(context={"job_id": job.job_id, "webhook": job.meta["webhook"]}),
    )
    return NewJob(
        job_id=f"hook_{job.job_id.removeprefix('job_')}",
        owner=OWNER,
        call=call,
        retention=KEPT,
        meta={"kind": KIND},
        events=(status("queued"),),
    )


def delivery(errand_id: str, trace: Trace, context: dict[str, Any]) -> NewJob:
    """An errand that brings `body` to `url`, with `headers`; `id` tells a repetition, `secret` signs it."""
    call = Call(
        trace=trace,
        auth=Principal(),
        target=Target(agent_id=AGENT, capability="deliver", timeout_ms=int(_TIMEOUT * 1000)),
        input=Input(context={"id": errand_id, **context}),
    )
    return NewJob(
        job_id=errand_id,
        owner=OWNER,
        call=call,
        key=errand_id,
        retention=KEPT,
        meta={"kind": KIND},
        events=(status("queued"),),
    )


def _trace_of(job: JobSummary) -> Trace:
    known = job.meta.get("trace_id")
    fresh = new_trace()
    return replace(fresh, trace_id=known) if known else fresh


class Messenger:
    """The handler of these errands."""

    def __init__(self, jobs: Jobs, http: HTTPClient, secret: str | None) -> None:
        self._jobs = jobs
        self._http = http
        self._secret = secret

    async def __call__(self, call: Call, emit: Emit) -> Result:
        given = call.input.context
        if "body" in given:
            return await self._deliver(given)
        job = await self._jobs.get(given["job_id"])
        secret = given["webhook"].get("secret") or self._secret
        if job is None or secret is None:
            raise BadInput("There is nothing to tell any more")
        body = msgspec.json.encode(message(job))
        return await self._post(given["webhook"]["url"], body, signed(job.job_id, body, secret, int(time.time())))

    async def _deliver(self, given: dict[str, Any]) -> Result:
        """What a door wrote, with its own headers; signed too, if there is a secret."""
        body = given["body"].encode()
        secret = given.get("secret") or self._secret
        headers = {"content-type": "application/json", **given.get("headers", {})}
        if secret is not None:
            headers |= signed(given["id"], body, secret, int(time.time()))
        return await self._post(given["url"], body, headers)

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> Result:
        try:
            reply = await self._http.request(
                "POST", url, headers=headers, body=body, timeout=_TIMEOUT, limit=_REPLY_BYTES
            )
        except Refused as exc:
            raise Forbidden(f"The webhook may not go there: {exc}"[:300]) from exc
        except OutboundError as exc:
            raise AgentOffline(f"The webhook was not delivered: {exc}"[:300]) from exc
        if not 200 <= reply.status < 300:
            raise _refused(reply.status)
        return Result(data={"status_code": reply.status})


def _refused(status_code: int) -> FabricError:
    said = f"The webhook was answered with HTTP {status_code}"
    return BadInput(said) if status_code == _GONE else AgentOffline(said)


def message(job: Job) -> dict[str, Any]:
    """What is told: the job as its owner sees it, and its result."""
    result = None if job.result is None else job.result.data
    return {"type": f"job.{job.state}", "timestamp": job.ended_at, "data": {**job_view(job), "result": result}}


def signed(message_id: str, body: bytes, secret: str, timestamp: int) -> dict[str, str]:
    content = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    digest = hmac.new(_key(secret), content, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _key(secret: str) -> bytes:
    """`whsec_` and base64, as the libraries for receivers have it; anything else stands for itself."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            pass
    return secret.encode()
