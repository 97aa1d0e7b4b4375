"""An API described by an OpenAPI document: each of its operations is a capability.

The document is loaded on first use and checked again every few minutes. Requests go to the
manifest's `uri` if there is one, else to the servers that the document names. Arguments go where the
document puts them, attachments into file fields."""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urljoin

import msgspec

from a2a_fabric.core.agent import Manifest, Status, normalize_name
from a2a_fabric.core.call import Call, bind_arguments, describe_unsupported_parts, parts_from_input
from a2a_fabric.core.errors import AgentBusy, AgentOffline, BadInput, CapabilityNotFound, FabricError, UpstreamFailed
from a2a_fabric.core.result import Part
from a2a_fabric.outbound.guard import parse_url
from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest
from a2a_fabric.runtimes.http import media
from a2a_fabric.runtimes.http.endpoint import HTTPEndpoint, is_http_url
from a2a_fabric.runtimes.http.media import MultipartField, is_json_type
from a2a_fabric.runtimes.http.openapi.document import OpenAPIDocument, discover_document, fetch_document, read_document
from a2a_fabric.runtimes.http.openapi.operations import (
    BODY,
    FORM,
    MULTIPART,
    OpenAPIOperation,
    OperationParameter,
    OperationSelection,
    RequestBody,
    read_operations,
)
from a2a_fabric.runtimes.http.templates import (
    APIRequest,
    add_query,
    build_template_values,
    encode_path_segment,
    fill_template,
    iterate_query_pairs,
    to_text,
)
from a2a_fabric.runtimes.upstream import probe_page, probe_resource, redact_url

ParameterValues = Sequence[tuple[OperationParameter, Any]]

_SEPARATORS = {"form": ",", "simple": ",", "spaceDelimited": " ", "pipeDelimited": "|", "label": ".", "matrix": ","}


def build_operation_request(
    operation: OpenAPIOperation,
    base: str,
    arguments: dict[str, Any],
    parts: Sequence[Part],
    *,
    headers: Mapping[str, str],
    query: Sequence[tuple[str, str]] = (),
) -> APIRequest:
    """Raises BadInput for an argument that is missing or cannot be sent."""
    body_arguments = dict(arguments)
    parameter_values = [(each, body_arguments.pop(each.argument, None)) for each in operation.parameters]
    for parameter, value in parameter_values:
        if value is None and parameter.required:
            raise _missing_argument(operation, parameter.argument)
    body = _choose_body(operation.bodies, body_arguments, parts)
    media_type, content, unused_parts = (
        _encode_body(operation, body, body_arguments, list(parts)) if body else (None, None, parts)
    )
    request_headers = dict(_encode_headers(parameter_values))
    if media_type is not None:
        request_headers["content-type"] = media_type
    pairs = [
        pair
        for parameter, value in parameter_values
        if parameter.location == "query"
        for pair in _encode_query(parameter, value)
    ]
    return APIRequest(
        method=operation.method,
        url=add_query(base.rstrip("/") + _fill_path(operation.path, parameter_values), [*pairs, *query]),
        headers={**request_headers, **headers},
        body=content,
        notes=describe_unsupported_parts(unused_parts, "this operation"),
        expects_json=operation.answers_json,
    )


def _fill_path(path: str, parameter_values: ParameterValues) -> str:
    for parameter, value in parameter_values:
        if parameter.location == "path":
            path = path.replace(f"{{{parameter.name}}}", _encode_path_value(parameter, value))
    return path if path.startswith("/") else f"/{path}"


def _encode_path_value(parameter: OperationParameter, value: Any) -> str:
    name, separator = parameter.name, _SEPARATORS.get(parameter.style, ",")
    pieces = [encode_path_segment(parameter.argument, each) for each in _flatten(parameter, value)]
    if not pieces:
        raise BadInput(f"'{parameter.argument}' cannot be empty", field=parameter.argument)
    if parameter.style == "label":
        return f".{(separator if parameter.explode else ',').join(pieces)}"
    if parameter.style == "matrix":
        has_keys = isinstance(value, dict) and parameter.explode
        joined = f";{name}=".join(pieces) if parameter.explode else ",".join(pieces)
        return f";{';'.join(pieces)}" if has_keys else f";{name}={joined}"
    return separator.join(pieces)


def _encode_query(parameter: OperationParameter, value: Any) -> Iterator[tuple[str, str]]:
    name = parameter.name
    if value is None:
        return
    if parameter.is_json:
        yield name, to_text(value)
    elif parameter.style == "deepObject" and isinstance(value, dict):
        yield from ((f"{name}[{key}]", to_text(each)) for key, each in value.items())
    elif isinstance(value, dict) and parameter.explode:
        yield from ((str(key), to_text(each)) for key, each in value.items())
    elif isinstance(value, list) and parameter.explode:
        yield from ((name, to_text(each)) for each in value)
    else:
        yield name, _SEPARATORS.get(parameter.style, ",").join(_flatten(parameter, value))


def _flatten(parameter: OperationParameter, value: Any) -> list[str]:
    """The pieces of a value: an object's names and values, a list's items, or the value alone."""
    if parameter.is_json:
        return [to_text(value)]
    if isinstance(value, dict):
        if parameter.explode:
            return [f"{key}={to_text(each)}" for key, each in value.items()]
        return [piece for key, each in value.items() for piece in (str(key), to_text(each))]
    return [to_text(each) for each in value] if isinstance(value, list) else [to_text(value)]


def _encode_headers(parameter_values: ParameterValues) -> Iterator[tuple[str, str]]:
    cookies = []
    for parameter, value in parameter_values:
        if value is not None and parameter.location == "header":
            yield parameter.name.lower(), _check_header_value(parameter, ",".join(_flatten(parameter, value)))
        elif value is not None and parameter.location == "cookie":
            cookies.append(f"{parameter.name}={quote(','.join(_flatten(parameter, value)), safe='')}")
    if cookies:
        yield "cookie", "; ".join(cookies)


def _check_header_value(parameter: OperationParameter, text: str) -> str:
    if not text.isprintable() or not text.isascii():
        raise BadInput(f"'{parameter.argument}' holds characters that cannot be sent", field=parameter.argument)
    return text


def _choose_body(
    bodies: Sequence[RequestBody], body_arguments: dict[str, Any], parts: Sequence[Part]
) -> RequestBody | None:
    """The first body, unless there are files to send and another body accepts them."""
    if any(part.blob is not None or part.text is not None for part in parts):
        for body in bodies:
            if body.files or (body.fields is None and _is_binary(body.media_type)):
                return body
    if not bodies or (not body_arguments and not bodies[0].required):
        return None
    return bodies[0]


def _is_binary(media_type: str) -> bool:
    textual_types = (is_json_type(media_type), media_type in (FORM, MULTIPART), media_type.startswith("text/"))
    return not any(textual_types) and not media_type.endswith("xml")


def _encode_body(
    operation: OpenAPIOperation, body: RequestBody, body_arguments: dict[str, Any], parts: list[Part]
) -> tuple[str, bytes, list[Part]]:
    """Media type, content, and the attachments that were left out."""
    if body.fields is None:
        return _encode_whole_body(operation, body, body_arguments.get(BODY), parts)
    for name in body.required_fields:
        if body_arguments.get(name) is None and name not in body.files and body.required:
            raise _missing_argument(operation, name)
    if body.media_type == MULTIPART:
        return _encode_multipart(operation, body, body_arguments, parts)
    if body.media_type == FORM:
        return FORM, urlencode(list(iterate_query_pairs(body_arguments))).encode(), parts
    kind = body.media_type if is_json_type(body.media_type) else "application/json"
    return kind, msgspec.json.encode(body_arguments), parts


def _encode_whole_body(
    operation: OpenAPIOperation, body: RequestBody, value: Any, parts: list[Part]
) -> tuple[str, bytes, list[Part]]:
    kind = body.media_type
    if is_json_type(kind) or kind in ("*/*", "application/*"):
        return (kind if is_json_type(kind) else "application/json"), msgspec.json.encode(value), parts
    if kind == FORM:
        return FORM, urlencode(list(iterate_query_pairs(value if isinstance(value, dict) else {}))).encode(), parts
    if kind == MULTIPART:
        return _encode_multipart(operation, body, value if isinstance(value, dict) else {}, parts)
    if not _is_binary(kind):
        if value is None and body.required:
            raise _missing_argument(operation, BODY)
        return kind, to_text("" if value is None else value).encode(), parts
    if value is not None:
        return _choose_media_type(kind, None), _decode_base64(BODY, value), parts
    attachment = next((part for part in parts if part.blob is not None or part.text is not None), None)
    if attachment is None:
        raise BadInput(f"'{operation.capability.name}' needs a file: attach one, or give it as `body`", field=BODY)
    return (
        _choose_media_type(kind, attachment),
        read_part_content(attachment),
        [part for part in parts if part is not attachment],
    )


def _choose_media_type(kind: str, part: Part | None) -> str:
    if "*" not in kind:
        return kind
    return (part.mime_type if part is not None else None) or "application/octet-stream"


def _encode_multipart(
    operation: OpenAPIOperation, body: RequestBody, body_arguments: dict[str, Any], parts: list[Part]
) -> tuple[str, bytes, list[Part]]:
    fields: list[MultipartField] = []
    for name, value in body_arguments.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                fields.append(_make_file_field(name, each) if name in body.files else _make_field(name, each))
    unused_parts = list(parts)
    for name in body.files:
        if body_arguments.get(name) is None:
            attached = _choose_attachments(name, body, unused_parts)
            fields += [_make_attachment_field(name, part) for part in attached]
            unused_parts = [part for part in unused_parts if part not in attached]
            if not attached and name in body.required_fields:
                raise BadInput(
                    f"'{operation.capability.name}' needs a file: attach one, or give it as `{name}`", field=name
                )
    kind, content = media.encode_multipart(fields)
    return kind, content, unused_parts


def _choose_attachments(name: str, body: RequestBody, parts: list[Part]) -> list[Part]:
    """The attachment with the field's name; else the next one, or all if the field is a list."""
    usable = [part for part in parts if part.blob is not None or part.text is not None]
    schema = body.schema["properties"][name]
    if schema.get("type") == "array":
        return usable
    return [part for part in usable if part.name == name][:1] or usable[:1]


def _make_field(name: str, value: Any) -> MultipartField:
    if isinstance(value, dict | list):
        return MultipartField(name=name, content=msgspec.json.encode(value), media_type="application/json")
    return MultipartField(name=name, content=to_text(value).encode("utf-8", "replace"))


def _make_file_field(name: str, value: Any) -> MultipartField:
    return MultipartField(
        name=name, content=_decode_base64(name, value), media_type="application/octet-stream", filename=name
    )


def _make_attachment_field(name: str, part: Part) -> MultipartField:
    kind = part.mime_type or ("text/plain" if part.text is not None else "application/octet-stream")
    return MultipartField(name=name, content=read_part_content(part), media_type=kind, filename=part.name or name)


def read_part_content(part: Part) -> bytes:
    """The bytes of an attachment. Raises BadInput."""
    if part.text is not None:
        return part.text.encode("utf-8", "replace")
    return _decode_base64(part.name or "attachment", part.blob)


def _decode_base64(name: str, value: Any) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (TypeError, ValueError) as exc:
        raise BadInput(f"'{name}' is not base64", field=name) from exc


def _missing_argument(operation: OpenAPIOperation, argument: str) -> BadInput:
    return BadInput(f"'{operation.capability.name}' needs '{argument}'", field=argument)


_FRESH_SECONDS = 300.0


class OpenAPIAdapter:
    streams = False

    def __init__(self, manifest: Manifest, endpoint: HTTPEndpoint, context: RuntimeContext) -> None:
        """Raises BadInput."""
        self._manifest = manifest
        self._endpoint = endpoint
        self._context = context
        self._document: OpenAPIDocument | None = None
        self._operations: dict[str, OpenAPIOperation] = {}
        self._loaded_at = 0.0
        self._load_lock = asyncio.Lock()
        if isinstance(endpoint.openapi, str) and not is_http_url(endpoint.openapi) and context.guard is not None:
            raise BadInput("Agents that register themselves name their `openapi` document by its address")

    async def build_request(self, call: Call) -> APIRequest:
        await self._load()
        operation = self._find_operation(call.target.capability)
        declared = self._manifest.find_capability(call.target.capability)
        capability = declared if declared is not None and declared.input_schema is not None else operation.capability
        arguments = bind_arguments(capability, call.input)
        query = fill_template(self._endpoint.query, build_template_values(call, arguments))
        return build_operation_request(
            operation,
            self._base_url(operation),
            arguments,
            parts_from_input(call.input),
            headers=self._endpoint.headers,
            query=list(iterate_query_pairs(query)),
        )

    async def describe(self) -> Manifest:
        document = await self._load(max_age=_FRESH_SECONDS)
        for operation in list(self._operations.values())[:1]:
            self._base_url(operation)  # raises now if the address is wrong
        info: Any = document.value.get("info")
        info = info if isinstance(info, dict) else {}
        published = Manifest(
            agent_id=self._manifest.agent_id,
            endpoint=self._manifest.endpoint,
            capabilities=tuple(operation.capability for operation in self._operations.values()),
            display_name=str(info.get("title") or "")[:200],
            description=str(info.get("summary") or info.get("description") or "").strip().partition("\n\n")[0][:1000],
            version=str(info.get("version") or "")[:100],
        )
        return complete_manifest(self._manifest, published)

    async def get_address(self) -> str:
        await self._load()
        for operation in self._operations.values():
            return self._base_url(operation)
        return self._endpoint.uri or str(self._endpoint.openapi)

    async def probe(self) -> Status:
        """Request the document if it has an address; else the API's base, which may answer with any status."""
        address = await self.get_address()
        source = self._document.source if self._document is not None else None
        if source is None:
            return await probe_resource(self._context.http, address, self._endpoint.headers)
        return await probe_page(self._context.http, source, self._headers_for(source))

    async def _load(self, max_age: float | None = None) -> OpenAPIDocument:
        """The document is checked again after `fresh` seconds; without `fresh`, never.

        Raises AgentOffline for every failure, because no operation was called yet.
        """
        async with self._load_lock:
            previous = self._document
            if previous is not None and (max_age is None or time.monotonic() - self._loaded_at < max_age):
                return previous
            try:
                document = await self._load_document(previous)
            except (AgentOffline, AgentBusy):
                raise
            except FabricError as exc:
                raise AgentOffline(exc.full_message, **exc.details) from exc
            self._document, self._loaded_at = document, time.monotonic()
            return document

    async def _load_document(self, previous: OpenAPIDocument | None) -> OpenAPIDocument:
        document = await self._fetch(previous)
        if document is not previous:
            operations = await asyncio.to_thread(read_operations, document.value, self._build_selection())
            if not operations:
                raise UpstreamFailed("The OpenAPI document holds no operation that `include` and `exclude` let in")
            self._operations = operations
        return document

    async def _fetch(self, previous: OpenAPIDocument | None) -> OpenAPIDocument:
        location, headers = self._endpoint.openapi, self._endpoint.headers
        if isinstance(location, str):
            if not is_http_url(location):
                return await read_document(self._context.base / location, previous)
            return await fetch_document(self._context.http, location, self._headers_for(location), previous)
        if previous is not None and previous.source is not None:
            return await fetch_document(self._context.http, previous.source, headers, previous)
        return await discover_document(self._context.http, self._endpoint.uri or "", headers)

    def _headers_for(self, location: str) -> dict[str, str]:
        """Credentials are sent to the API, and to its document if that has the same origin."""
        uri = self._endpoint.uri
        return self._endpoint.headers if uri is None or _parse_origin(uri) == _parse_origin(location) else {}

    def _build_selection(self) -> OperationSelection:
        return OperationSelection(
            include=tuple(self._endpoint.include),
            exclude=tuple(self._endpoint.exclude),
            headers=frozenset(name.lower() for name in self._endpoint.headers),
            query=frozenset(self._endpoint.query),
        )

    def _find_operation(self, name: str) -> OpenAPIOperation:
        operation = self._operations.get(normalize_name(name))
        if operation is None:
            operation_names = [each.capability.name for each in self._operations.values()]
            raise CapabilityNotFound(self._manifest.agent_id, name, operation_names)
        return operation

    def _base_url(self, operation: OpenAPIOperation) -> str:
        """Raises AgentOffline if the document names no address, or credentials would go to another origin."""
        if self._endpoint.uri is not None and isinstance(self._endpoint.openapi, str):
            return self._endpoint.uri
        source = self._document.source if self._document is not None else None
        base = urljoin(source, operation.server or "/") if source is not None else operation.server or ""
        if not is_http_url(base):
            raise AgentOffline("The OpenAPI document does not say where the API is: name its address as `uri`")
        if source is not None and self._endpoint.headers and _parse_origin(base) != _parse_origin(source):
            raise AgentOffline(
                f"The OpenAPI document leads to {redact_url(base)}, another origin than its own, and the headers of "
                "this agent would go there. If that is right, name that address as `uri`, and the document as `openapi`"
            )
        return base.partition("?")[0]


def _parse_origin(url: str) -> tuple[str, str, int] | None:
    try:
        parsed = parse_url(url)
    except ConnectFailed:
        return None
    return parsed.scheme, parsed.host, parsed.port
