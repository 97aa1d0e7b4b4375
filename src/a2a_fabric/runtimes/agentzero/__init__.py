"""Runtimes for Agent Zero: through FastA2A (the default), its external API, or its remote function calls."""

from __future__ import annotations

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.ports import Runtime, RuntimePlugin
from a2a_fabric.runtimes.agentzero.api import AgentZeroFunctionRuntime, AgentZeroMessageRuntime, read_functions
from a2a_fabric.runtimes.agentzero.endpoint import AgentZeroEndpoint
from a2a_fabric.runtimes.agentzero.fasta2a import FastA2ARuntime
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.upstream import JSONAPIClient, check_uri


def build(manifest: Manifest, context: RuntimeContext) -> Runtime:
    endpoint = decode_endpoint(manifest, AgentZeroEndpoint)
    check_uri(manifest, endpoint.uri)
    base_url = endpoint.a2a_url if endpoint.protocol == "a2a" else endpoint.uri
    api = JSONAPIClient(context.http, base_url, endpoint.request_headers, context.reply_bytes)
    match endpoint.protocol:
        case "a2a":
            return FastA2ARuntime(manifest, endpoint, api)
        case "api":
            return AgentZeroMessageRuntime(manifest, endpoint, api)
        case "rfc":
            functions, password = read_functions(manifest, endpoint)
            return AgentZeroFunctionRuntime(manifest, functions, password, api)


plugin = RuntimePlugin(build=build)
