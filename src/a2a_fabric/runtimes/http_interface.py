"""Puts together the runtime of an API that is not our own: a node without one never imports any of this."""

from __future__ import annotations

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.ports import Runtime
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.http_api import APIRuntime, Reading
from a2a_fabric.runtimes.http_endpoint import HTTPEndpoint
from a2a_fabric.runtimes.http_expression import Expressions
from a2a_fabric.runtimes.http_openapi import OpenAPI
from a2a_fabric.runtimes.http_polling import Polling
from a2a_fabric.runtimes.http_templates import Templates


def runtime_for(manifest: Manifest, endpoint: HTTPEndpoint, context: RuntimeContext) -> Runtime:
    expressions = Expressions(pointers_only=context.guard is not None)
    return APIRuntime(
        endpoint,
        OpenAPI(manifest, endpoint, context) if endpoint.openapi else Templates(manifest, endpoint, context.http),
        Reading(endpoint, expressions),
        Polling(manifest.agent_id, context.http, endpoint.poll, context.reply_bytes, expressions),
        context,
    )
