"""Builds the runtime of an API that does not follow the plain contract. Imported only when such an agent is used."""

from __future__ import annotations

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.ports import Runtime
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.http.api import APIRuntime, ReplyReader
from a2a_fabric.runtimes.http.endpoint import HTTPEndpoint
from a2a_fabric.runtimes.http.expressions import ExpressionParser
from a2a_fabric.runtimes.http.openapi.adapter import OpenAPIAdapter
from a2a_fabric.runtimes.http.polling import ResultPoller
from a2a_fabric.runtimes.http.templates import TemplateAdapter


def runtime_for(manifest: Manifest, endpoint: HTTPEndpoint, context: RuntimeContext) -> Runtime:
    expressions = ExpressionParser(pointers_only=context.guard is not None)
    return APIRuntime(
        endpoint,
        OpenAPIAdapter(manifest, endpoint, context)
        if endpoint.openapi
        else TemplateAdapter(manifest, endpoint, context.http),
        ReplyReader(endpoint, expressions),
        ResultPoller(manifest.agent_id, context.http, endpoint.poll, context.reply_bytes, expressions),
        context,
    )
