"""Requests to an API that the manifest describes by templates of its URL, query and body.

In a template a string `$task` becomes the value, of any type, and `${task}`
inside a longer string becomes its text. Names: task, context, arguments,
attachments, capability, agent_id, conversation_id, trace_id, stream; dots go deeper
(`$arguments.city`). `$arguments.city?` omits the field if the call has no such value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import Call, bind_arguments, bind_to_caller, describe_unsupported_parts, parts_from_input
from a2a_fabric.core.errors import BadInput
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.runtimes.http.endpoint import HTTPEndpoint
from a2a_fabric.runtimes.http.runtime import EnvelopeEncoder
from a2a_fabric.runtimes.upstream import fetch_manifest, probe_agent, probe_resource

_NAME = r"[a-z_]+(?:\.[A-Za-z0-9_-]+)*"
_WHOLE_REFERENCE = re.compile(rf"\$({_NAME})(\?)?")
_EMBEDDED_REFERENCE = re.compile(rf"\$\{{({_NAME})\}}")
_OMITTED = object()

TemplateValues = dict[str, Any]


class APIRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the API; `notes` name the parts of the call that it cannot hold."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = None
    notes: tuple[str, ...] = ()
    follows_contract: bool = False  # the request follows the plain contract, so the reply may too
    expects_json: bool = False  # a reply of another type is an error


class APIAdapter(Protocol):
    """Builds the requests to one API."""

    streams: bool  # whether an event stream may be requested without a template for it

    async def build_request(self, call: Call) -> APIRequest:
        """Raises FabricError; BadInput for a call that cannot be put into a request."""
        ...

    async def describe(self) -> Manifest:
        """The manifest with the description that the API publishes. Raises FabricError."""
        ...

    async def get_address(self) -> str:
        """An address of the API. Raises FabricError."""
        ...

    async def probe(self) -> Status:
        """Check that the API is reachable without calling it. Raises FabricError."""
        ...


def build_template_values(call: Call, arguments: dict[str, Any]) -> TemplateValues:
    """The values that a template can use, by name."""
    conversation = bind_to_caller(call, call.conversation_id or call.trace.trace_id)  # callers choose either
    return {
        "task": call.input.task,
        "context": call.input.context,
        "arguments": arguments,
        "attachments": msgspec.to_builtins(call.input.attachments),
        "capability": call.target.capability,
        "agent_id": call.target.agent_id,
        "conversation_id": conversation,
        "trace_id": call.trace.trace_id,
        "stream": call.response.stream,
    }


def fill_template(template: Any, values: TemplateValues) -> Any:
    """The template with the call's values. Raises BadInput with the name of a missing value."""
    result = _fill(template, values)
    return None if result is _OMITTED else result


def fill_url(uri: str, values: TemplateValues) -> str:
    """A URI with values in its path; each value stays within its segment."""
    return _EMBEDDED_REFERENCE.sub(lambda match: encode_path_segment(match[1], _find_value(match[1], values)), uri)


def encode_path_segment(name: str, value: Any) -> str:
    text = to_text(value)
    if text in ("", ".", ".."):
        raise BadInput(f"'{text}' cannot be part of an address as '{name}'", field=name)
    return quote(text, safe="")


def add_query(uri: str, pairs: list[tuple[str, str]]) -> str:
    if not pairs:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}{urlencode(pairs, quote_via=quote)}"


def iterate_query_pairs(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The pairs of a query or a form: a list is repeated by item, and null values are left out."""
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                yield name, to_text(each)


def to_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _fill(part: Any, values: TemplateValues) -> Any:
    if isinstance(part, dict):
        filled_items = ((key, _fill(inner, values)) for key, inner in part.items())
        return {key: inner for key, inner in filled_items if inner is not _OMITTED}
    if isinstance(part, list):
        return [inner for each in part if (inner := _fill(each, values)) is not _OMITTED]
    if not isinstance(part, str) or "$" not in part:
        return part
    reference = _WHOLE_REFERENCE.fullmatch(part)
    if reference:
        return _find_value(reference[1], values, _OMITTED if reference[2] else None)
    return _EMBEDDED_REFERENCE.sub(lambda match: to_text(_find_value(match[1], values)), part)


def _find_value(name: str, values: TemplateValues, default: Any = None) -> Any:
    value: Any = values
    for step in name.split("."):
        if not isinstance(value, dict) or step not in value:
            if default is not None:
                return default
            raise BadInput(f"The agent's request template needs '{name}', and the call has no such value", field=name)
        value = value[step]
    return value


_ATTACHMENTS = re.compile(r"\$\{?attachments")


class TemplateAdapter:
    streams = True  # an agent that takes the plain contract's body may send its events

    def __init__(self, manifest: Manifest, endpoint: HTTPEndpoint, http: HTTPClient) -> None:
        self._manifest = manifest
        self._http = http
        self._endpoint = endpoint
        self._uri = endpoint.uri or ""
        self._method = endpoint.method.upper()
        self._envelope_encoder = EnvelopeEncoder()
        self._carries_attachments = bool(_ATTACHMENTS.search(msgspec.json.encode(endpoint.request).decode()))

    async def build_request(self, call: Call) -> APIRequest:
        arguments = call.input.arguments
        if arguments is msgspec.UNSET:
            arguments = bind_arguments(self._manifest.find_capability(call.target.capability), call.input)
        values = build_template_values(call, arguments)
        body = self._build_body(call, values)
        type_header = {} if body is None else {"content-type": "application/json"}
        follows_contract = self._endpoint.request is None and body is not None
        return APIRequest(
            method=self._method,
            url=add_query(fill_url(self._uri, values), list(iterate_query_pairs(self._build_query(values)))),
            headers={**type_header, **self._endpoint.headers},
            body=body,
            notes=()
            if follows_contract or self._carries_attachments
            else describe_unsupported_parts(parts_from_input(call.input), "this API"),
            follows_contract=follows_contract,
        )

    def _build_body(self, call: Call, values: TemplateValues) -> bytes | None:
        if not self._endpoint.has_body:
            return None
        if self._endpoint.request is None:
            return self._envelope_encoder.encode(call, values["arguments"])
        return msgspec.json.encode(fill_template(self._endpoint.request, values))

    def _build_query(self, values: TemplateValues) -> dict[str, Any]:
        """The query from the templates; without templates, a GET has all values that are not in its path."""
        if self._endpoint.query or self._endpoint.has_body:
            query: dict[str, Any] = fill_template(self._endpoint.query, values)
            return query
        arguments = {
            name: value for name, value in values["arguments"].items() if name not in ("context", "attachments")
        }
        call_context = values["arguments"].get("context")
        query_fields = {**(call_context if isinstance(call_context, dict) else {}), **arguments}
        return {
            name: value
            for name, value in query_fields.items()
            if value != "" and f"${{arguments.{name}}}" not in self._uri
        }

    async def describe(self) -> Manifest:
        """Agents that take the plain contract's body may publish a manifest; other APIs do not."""
        if self._endpoint.request is not None or not self._endpoint.has_body or "${" in self._uri:
            return self._manifest
        return await fetch_manifest(self._http, self._uri, self._endpoint.headers, self._manifest)

    async def get_address(self) -> str:
        return self._uri

    async def probe(self) -> Status:
        headers = self._endpoint.headers
        if "${" in self._uri:  # the address is incomplete without a call's values
            return await probe_resource(self._http, self._uri.partition("${")[0].rpartition("/")[0] + "/", headers)
        if not self._endpoint.has_body:  # the method of the probe would be a call
            return await probe_resource(self._http, self._uri, headers)
        return await probe_agent(self._http, self._uri, None, headers)
