"""Agent Zero, reached in one of its three ways: FastA2A (the usual one), its external API, or its remote functions."""

from __future__ import annotations

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.ports import Runtime
from a2a_fabric.runtimes.agentzero.api import MessageRuntime
from a2a_fabric.runtimes.agentzero.endpoint import AgentZeroEndpoint
from a2a_fabric.runtimes.agentzero.fasta2a import FastA2ARuntime
from a2a_fabric.runtimes.agentzero.rfc import FunctionRuntime, allowed
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.json_api import JSONAPI, checked_uri

__all__ = ["build"]


def build(manifest: Manifest, context: RuntimeContext) -> Runtime:
    endpoint = decode_endpoint(manifest, AgentZeroEndpoint)
    checked_uri(manifest, endpoint.uri)
    place = endpoint.a2a_place if endpoint.protocol == "a2a" else endpoint.uri
    api = JSONAPI(context.http, place, endpoint.keys, context.reply_bytes)
    match endpoint.protocol:
        case "a2a":
            return FastA2ARuntime(manifest, endpoint, api)
        case "api":
            return MessageRuntime(manifest, endpoint, api)
        case "rfc":
            functions, password = allowed(manifest, endpoint)
            return FunctionRuntime(manifest, functions, password, api)
