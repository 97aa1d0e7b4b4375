"""Runtime: an agent that is a program on this machine, over JSON lines or with one process per call."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.plugin import RuntimePlugin
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.process.jsonl import JsonlLimits, JsonlRuntime
from a2a_fabric.runtimes.process.oneshot import OneshotRuntime, OneshotSettings
from a2a_fabric.runtimes.programs import RestartPolicy, build_program

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class ProcessEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: list[str] | str  # a string is split like a shell would; there is no shell
    transport: Literal["stdio"] = "stdio"
    protocol: Literal["jsonl", "oneshot"] = "jsonl"
    env: dict[str, str] = {}
    cwd: str = "."  # from the folder of the configuration
    line_bytes: Count | None = None  # longest line (jsonl) or whole output (oneshot)
    max_pending: Count = 256
    grace: Seconds = 2.0  # between SIGTERM and SIGKILL
    # jsonl
    idle_timeout: Annotated[float, Meta(gt=0)] | None = None  # seconds without a call until the program is stopped
    max_restarts: Annotated[int, Meta(ge=0)] | None = None
    backoff: Seconds = 0.5
    backoff_max: Seconds = 30.0
    # oneshot
    args_via: Literal["stdin", "argv"] = "stdin"
    args_as: Literal["json", "text"] = "json"
    max_concurrent: Count = 8


def build(manifest: Manifest, context: RuntimeContext) -> JsonlRuntime | OneshotRuntime:
    """Raises BadInput for a bad endpoint."""
    endpoint = decode_endpoint(manifest, ProcessEndpoint)
    program = build_program(context, manifest.agent_id, endpoint.command, env=endpoint.env, cwd=endpoint.cwd)
    output_bytes = endpoint.line_bytes or context.reply_bytes
    if endpoint.protocol == "oneshot":
        settings = OneshotSettings(
            args_via=endpoint.args_via,
            args_as=endpoint.args_as,
            output_bytes=output_bytes,
            max_concurrent=endpoint.max_concurrent,
            max_pending=endpoint.max_pending,
        )
        return OneshotRuntime(manifest, program, settings)
    limits = JsonlLimits(
        line_bytes=output_bytes,
        max_pending=endpoint.max_pending,
        idle_timeout=endpoint.idle_timeout,
        grace=endpoint.grace,
    )
    restart_policy = RestartPolicy(
        first_delay=endpoint.backoff, max_delay=endpoint.backoff_max, max_deaths=endpoint.max_restarts
    )
    return JsonlRuntime(manifest, program, limits, restart_policy)


plugin = RuntimePlugin(build=build)
