"""Webhooks: the end of a job is delivered by an internal job, so that a crash does not lose it.

The request is signed as Standard Webhooks specify: HMAC-SHA256 over id, timestamp
and body, in the header `webhook-signature`. Any status but 2xx is retried with
growing pauses; the id stays the same, so that a receiver recognizes a repetition."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from typing import Any

import msgspec
from msgspec.structs import replace

from a2a_fabric.core.call import Call, Emit, Input, Principal, Target
from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, Forbidden
from a2a_fabric.core.job import Job, JobSummary, NewJob
from a2a_fabric.core.propagation import Trace, new_trace
from a2a_fabric.core.result import Result, status
from a2a_fabric.core.retry import RetryPolicy
from a2a_fabric.core.stores import JobStore
from a2a_fabric.jobs.settings import Webhook
from a2a_fabric.jobs.views import render_job
from a2a_fabric.outbound.guard import Guard
from a2a_fabric.outbound.port import AddressRefused, HTTPClient, OutboundError

WEBHOOK_KIND = "webhook"
WEBHOOK_AGENT = "fabric.webhooks"
WEBHOOK_OWNER = "fabric:webhooks"  # internal jobs, in no caller's list
WEBHOOK_RETRY = RetryPolicy(max_attempts=10, pause_seconds=2.0, factor=3.0, max_pause_seconds=6 * 3600.0)
_TIMEOUT = 15.0
_REPLY_BYTES = 64 * 1024
DELIVERY_RETENTION = 24 * 3600.0
_HTTP_GONE = 410


class WebhookUrlPolicy:
    """Checks the URLs that callers name. Each delivery checks again, because the address of a name may change.

    It has a guard of its own, so that slow lookups of a caller's names do not delay deliveries.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def check(self, url: str, field: str) -> None:
        """Raises BadInput. A name that cannot be resolved now passes, because it may be resolvable later."""
        try:
            target = self._guard.check_url(url)
        except AddressRefused as exc:
            raise BadInput(f"{field}: {exc}"[:300], field=field, issue="refused") from exc
        try:
            await self._guard.resolve_addresses(target.host, target.port)
        except AddressRefused as exc:  # callers must not learn internal addresses
            raise BadInput(
                f"{field}: {target.host[:255]} is not a public address, so this node sends nothing there. Name a "
                "public one, or ask the operator to add the host to `jobs.webhook_allow`",
                field=field,
                issue="refused",
            ) from exc
        except OutboundError:
            return


def check_webhook(webhook: Webhook, node_secret: str | None) -> dict[str, Any]:
    """The webhook as it is stored with the job; its URL has been checked. Raises BadInput."""
    if webhook.secret is None and node_secret is None:
        raise BadInput(
            "webhook.secret is required, because this node has none of its own (`jobs.webhook_secret`)",
            field="webhook.secret",
        )
    return {"url": webhook.url} if webhook.secret is None else {"url": webhook.url, "secret": webhook.secret}


def delivery_for_job(job: JobSummary) -> NewJob:
    """The internal job that reports the end of this one."""
    context = {"job_id": job.job_id, "webhook": job.meta["webhook"]}
    return _make_delivery(f"hook_{job.job_id.removeprefix('job_')}", _trace_for_job(job), context)


def new_delivery(delivery_id: str, trace: Trace, context: dict[str, Any]) -> NewJob:
    """An internal job that posts `body` to `url` with `headers`, all from `context`; `secret` signs the body.

    The receiver gets `delivery_id`, which is the same in every attempt.
    """
    return replace(_make_delivery(delivery_id, trace, {"id": delivery_id, **context}), key=delivery_id)


def _make_delivery(delivery_id: str, trace: Trace, context: dict[str, Any]) -> NewJob:
    call = Call(
        trace=trace,
        auth=Principal(),
        target=Target(agent_id=WEBHOOK_AGENT, capability="deliver", timeout_ms=int(_TIMEOUT * 1000)),
        input=Input(context=context),
    )
    return NewJob(
        job_id=delivery_id,
        owner=WEBHOOK_OWNER,
        call=call,
        retention=DELIVERY_RETENTION,
        meta={"kind": WEBHOOK_KIND},
        events=(status("queued"),),
    )


def _trace_for_job(job: JobSummary) -> Trace:
    trace_id = job.meta.get("trace_id")
    trace = new_trace()
    return replace(trace, trace_id=trace_id) if trace_id else trace


class WebhookSender:
    """The handler of delivery jobs."""

    def __init__(self, jobs: JobStore, http: HTTPClient, secret: str | None) -> None:
        self._jobs = jobs
        self._http = http
        self._secret = secret

    async def __call__(self, call: Call, emit: Emit) -> Result:
        context = call.input.context
        if "body" in context:
            return await self._deliver(context)
        job = await self._jobs.get(context["job_id"])
        secret = context["webhook"].get("secret") or self._secret
        if job is None or secret is None:
            raise BadInput("The job or the webhook's secret is gone, so there is nothing to deliver")
        body = msgspec.json.encode(render_payload(job))
        return await self._post(
            context["webhook"]["url"], body, sign_webhook(job.job_id, body, secret, int(time.time()))
        )

    async def _deliver(self, context: dict[str, Any]) -> Result:
        """Post the body that a door rendered, with the door's headers; signed if there is a secret."""
        body = context["body"].encode()
        secret = context.get("secret") or self._secret
        headers = {"content-type": "application/json", **context.get("headers", {})}
        if secret is not None:
            headers |= sign_webhook(context["id"], body, secret, int(time.time()))
        return await self._post(context["url"], body, headers)

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> Result:
        try:
            reply = await self._http.request(
                "POST", url, headers=headers, body=body, timeout=_TIMEOUT, limit=_REPLY_BYTES
            )
        except AddressRefused as exc:
            raise Forbidden(f"This node sends no webhook there: {exc}"[:300]) from exc
        except OutboundError as exc:
            raise AgentOffline(f"The webhook was not delivered: {exc}"[:300]) from exc
        if not 200 <= reply.status < 300:
            raise _rejection_error(reply.status)
        return Result(data={"status_code": reply.status})


def _rejection_error(status_code: int) -> FabricError:
    message = f"The webhook was answered with HTTP {status_code}"
    return BadInput(message) if status_code == _HTTP_GONE else AgentOffline(message)


def render_payload(job: Job) -> dict[str, Any]:
    """The body of a webhook: the job as its owner sees it, and its result."""
    result = None if job.result is None else job.result.data
    return {"type": f"job.{job.state}", "timestamp": job.ended_at, "data": {**render_job(job), "result": result}}


def sign_webhook(message_id: str, body: bytes, secret: str, timestamp: int) -> dict[str, str]:
    content = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    digest = hmac.new(_decode_secret(secret), content, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _decode_secret(secret: str) -> bytes:
    """A secret is `whsec_` and base64, as the libraries for receivers have it, or plain text."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            pass
    return secret.encode()
