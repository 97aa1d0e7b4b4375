"""Clients for A2A agents: the interface that all bindings share, and its JSON-RPC and HTTP+JSON implementations.

Both implementations support versions 1.0 and 0.3 and send through `A2AHTTPTransport`, which wraps the
node's HTTP client. The gRPC implementation is in `grpc_client`, so that grpc is imported only if needed."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from a2a_fabric.core.agent import Status
from a2a_fabric.core.errors import BadInput, FabricError
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import HTTPClient, HTTPReply, OutboundError, StreamedReply
from a2a_fabric.protocols.a2a.decode import (
    check_rpc_reply,
    parse_reply,
    parse_rpc_reply,
    parse_rpc_tasks,
    parse_tasks,
)
from a2a_fabric.protocols.a2a.errors import error_from_document
from a2a_fabric.protocols.a2a.models import (
    A2AMessage,
    A2APushConfig,
    A2ATask,
    A2AUpdate,
    A2AVersion,
    Dialect,
    SendOptions,
)
from a2a_fabric.protocols.a2a.render import RENDERERS
from a2a_fabric.protocols.jsonrpc import encode_request
from a2a_fabric.runtimes.upstream import (
    STATUS_ERRORS,
    decode_object_or_empty,
    error_from_outbound,
    is_success,
    probe_agent,
    probe_resource,
    read_bounded,
)


def public_address(address: str) -> str:
    """The address as an error may show it: scheme and host. Addresses of gRPC may be only host and port."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else address.partition("/")[0]


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The headers of one call (trace, delegation), and the longest time to wait for its reply."""

    headers: Mapping[str, str] = {}
    timeout: float


class A2AClient(Protocol):
    """A connection to one interface of an agent, shared by all calls. Every method raises FabricError only.

    AgentOffline means that the agent did not get the request, UpstreamInterrupted that it may have got it.
    UpstreamRefused and BadInput are the agent's own errors; `upstream_reason` returns its reason.
    """

    dialect: Dialect

    async def send(
        self, message: A2AMessage, send_options: SendOptions, request_options: RequestOptions
    ) -> A2AUpdate: ...

    def stream(
        self, message: A2AMessage, send_options: SendOptions, request_options: RequestOptions
    ) -> AsyncGenerator[A2AUpdate, None]: ...

    async def get(self, task_id: str, request_options: RequestOptions, *, with_history: bool = False) -> A2AUpdate: ...

    def subscribe(self, task_id: str, request_options: RequestOptions) -> AsyncGenerator[A2AUpdate, None]: ...

    async def cancel(self, task_id: str, request_options: RequestOptions) -> None: ...

    async def register_push(self, config: A2APushConfig, request_options: RequestOptions) -> None:
        """Ask the agent to push the changes of a task from now on."""
        ...

    async def list_tasks(self, context_id: str, request_options: RequestOptions) -> list[A2ATask]:
        """The newest tasks, of this context if one is given. Version 0.3 has no such method."""
        ...

    async def probe(self) -> Status:
        """Whether the agent is reachable. Raises FabricError."""
        ...

    async def aclose(self) -> None: ...


_NO_LIMIT = 2**62  # a stream may be long; each event and the collected answer are bounded
EXTENSION_HEADERS: dict[A2AVersion, str] = {"1.0": "A2A-Extensions", "0.3": "X-A2A-Extensions"}


def headers_for(version: A2AVersion, extra: Mapping[str, str], extensions: tuple[str, ...]) -> dict[str, str]:
    headers = {"content-type": "application/json", "accept": "application/json", "A2A-Version": version}
    if extensions:
        headers[EXTENSION_HEADERS[version]] = ", ".join(extensions)
    return {**headers, **extra}


class A2AHTTPTransport:
    def __init__(self, client: HTTPClient, url: str, headers: Mapping[str, str], reply_bytes: int) -> None:
        self.url = url
        self._client = client  # shared by the node, never closed here
        self._headers = headers
        self._reply_bytes = reply_bytes
        self._upstream = public_address(url)

    async def request(self, method: str, url: str, body: bytes | None, request_options: RequestOptions) -> HTTPReply:
        """The reply, whatever its status. Raises FabricError if there is none."""
        headers = {**self._headers, **request_options.headers}
        try:
            return await self._client.request(
                method, url, headers=headers, body=body, timeout=request_options.timeout, limit=self._reply_bytes
            )
        except OutboundError as exc:
            raise error_from_outbound(exc, request_options.timeout, self._upstream) from exc

    async def stream_events(
        self, method: str, url: str, body: bytes | None, request_options: RequestOptions
    ) -> AsyncGenerator[bytes | HTTPReply, None]:
        """The data of each event; if the agent does not stream after all, its only reply."""
        headers = {**self._headers, **request_options.headers, "accept": "text/event-stream, application/json;q=0.5"}
        try:
            async with self._client.stream(
                method, url, headers=headers, body=body, timeout=request_options.timeout, limit=_NO_LIMIT
            ) as reply:
                if not _is_event_stream(reply):
                    yield HTTPReply(reply.status, reply.headers, await read_bounded(reply, self._reply_bytes))
                    return
                async with aclosing(sse.iter_event_data(reply.chunks(), limit=self._reply_bytes)) as events:
                    async for data in events:
                        if data.strip():
                            try:
                                yield data
                            except GeneratorExit:  # a normal return keeps the connection for reuse
                                return
        except OutboundError as exc:
            raise error_from_outbound(exc, request_options.timeout, self._upstream) from exc

    async def probe_endpoint(self) -> Status:
        """Probe the address that all requests go to. Raises FabricError."""
        return await probe_agent(self._client, self.url, None, dict(self._headers))

    async def probe_base(self) -> Status:
        """Probe the address below which all paths are. Raises FabricError."""
        return await probe_resource(self._client, self.url, dict(self._headers))


def _is_event_stream(reply: StreamedReply) -> bool:
    return is_success(reply.status) and reply.headers.get("content-type", "").lower().startswith("text/event-stream")


_METHOD_NAMES: dict[A2AVersion, dict[str, str]] = {
    "1.0": {
        "send": "SendMessage",
        "stream": "SendStreamingMessage",
        "get": "GetTask",
        "subscribe": "SubscribeToTask",
        "cancel": "CancelTask",
        "push": "CreateTaskPushNotificationConfig",
    },
    "0.3": {
        "send": "message/send",
        "stream": "message/stream",
        "get": "tasks/get",
        "subscribe": "tasks/resubscribe",
        "cancel": "tasks/cancel",
        "push": "tasks/pushNotificationConfig/set",
    },
}
TASK_PAGE_SIZE = 50
_STATUS_ERRORS: dict[int, type[FabricError]] = {**STATUS_ERRORS, 422: BadInput}  # 0.3 reports invalid parameters as 422


def error_from_http(status: int, body: bytes) -> FabricError:
    return error_from_document(decode_object_or_empty(body), status, _STATUS_ERRORS.get(status))


class A2AJSONRPCClient:
    def __init__(self, transport: A2AHTTPTransport, version: A2AVersion, tenant: str = "") -> None:
        self.dialect: Dialect = version
        self._transport = transport
        self._tenant = tenant
        self._renderer = RENDERERS[version]
        self._methods = _METHOD_NAMES[version]
        self._ids = itertools.count(1)

    async def send(self, message: A2AMessage, send_options: SendOptions, request_options: RequestOptions) -> A2AUpdate:
        params = self._renderer.render_send_params(message, send_options, self._tenant)
        return parse_rpc_reply(await self._request(self._methods["send"], params, request_options), self.dialect)

    def stream(
        self, message: A2AMessage, send_options: SendOptions, request_options: RequestOptions
    ) -> AsyncGenerator[A2AUpdate, None]:
        params = self._renderer.render_send_params(message, send_options, self._tenant)
        return self._stream_replies(self._methods["stream"], params, request_options)

    async def get(self, task_id: str, request_options: RequestOptions, *, with_history: bool = False) -> A2AUpdate:
        params = self._task_params(task_id)
        if self.dialect == "1.0" and not with_history:
            params["historyLength"] = 0
        return parse_rpc_reply(await self._request(self._methods["get"], params, request_options), self.dialect)

    def subscribe(self, task_id: str, request_options: RequestOptions) -> AsyncGenerator[A2AUpdate, None]:
        return self._stream_replies(self._methods["subscribe"], self._task_params(task_id), request_options)

    async def cancel(self, task_id: str, request_options: RequestOptions) -> None:
        parse_rpc_reply(
            await self._request(self._methods["cancel"], self._task_params(task_id), request_options), self.dialect
        )

    async def register_push(self, config: A2APushConfig, request_options: RequestOptions) -> None:
        params = self._renderer.render_push_request(config)
        params |= {"tenant": self._tenant} if self._tenant else {}
        check_rpc_reply(await self._request(self._methods["push"], params, request_options))

    async def list_tasks(self, context_id: str, request_options: RequestOptions) -> list[A2ATask]:
        params: dict[str, Any] = {"pageSize": TASK_PAGE_SIZE, "historyLength": TASK_PAGE_SIZE}
        params |= {"contextId": context_id} if context_id else {}
        params |= {"tenant": self._tenant} if self._tenant else {}
        return parse_rpc_tasks(await self._request("ListTasks", params, request_options), self.dialect)

    async def probe(self) -> Status:
        return await self._transport.probe_endpoint()

    async def aclose(self) -> None:
        """The HTTP client belongs to the node, so there is nothing to close."""

    def _task_params(self, task_id: str) -> dict[str, Any]:
        return {"id": task_id, "tenant": self._tenant} if self._tenant else {"id": task_id}

    async def _request(self, method: str, params: dict[str, Any], request_options: RequestOptions) -> bytes:
        return _rpc_body(
            await self._transport.request(
                "POST", self._transport.url, encode_request(next(self._ids), method, params), request_options
            )
        )

    async def _stream_replies(
        self, method: str, params: dict[str, Any], request_options: RequestOptions
    ) -> AsyncGenerator[A2AUpdate, None]:
        async with aclosing(
            self._transport.stream_events(
                "POST", self._transport.url, encode_request(next(self._ids), method, params), request_options
            )
        ) as events:
            async for event in events:
                yield parse_rpc_reply(_rpc_body(event) if isinstance(event, HTTPReply) else event, self.dialect)


def _rpc_body(reply: HTTPReply) -> bytes:
    """JSON-RPC whatever the status; without it, the status is all there is. Raises FabricError."""
    if 200 <= reply.status < 300:
        return reply.body
    if reply.status >= 400 and b'"jsonrpc"' in reply.body and b'"error"' in reply.body:
        return reply.body
    raise error_from_http(reply.status, reply.body)


class A2ARESTClient:
    def __init__(self, transport: A2AHTTPTransport, version: A2AVersion, tenant: str = "") -> None:
        self.dialect: Dialect = "1.0" if version == "1.0" else "0.3 proto"
        self._transport = transport
        self._renderer = RENDERERS[self.dialect]
        self._base = _base_url(transport.url, version, tenant)
        self._tenant = tenant if version == "1.0" else ""
        self._encoder = msgspec.json.Encoder()

    async def send(self, message: A2AMessage, send_options: SendOptions, request_options: RequestOptions) -> A2AUpdate:
        return parse_reply(
            await self._request("POST", "/message:send", request_options, self._encode_message(message, send_options)),
            self.dialect,
        )

    def stream(
        self, message: A2AMessage, send_options: SendOptions, request_options: RequestOptions
    ) -> AsyncGenerator[A2AUpdate, None]:
        return self._stream_replies(
            "POST", "/message:stream", request_options, self._encode_message(message, send_options)
        )

    async def get(self, task_id: str, request_options: RequestOptions, *, with_history: bool = False) -> A2AUpdate:
        query = "?historyLength=0" if self.dialect == "1.0" and not with_history else ""
        return parse_reply(await self._request("GET", _task_path(task_id) + query, request_options), self.dialect)

    async def subscribe(self, task_id: str, request_options: RequestOptions) -> AsyncGenerator[A2AUpdate, None]:
        """By POST, as in 1.0; older servers accept only GET."""
        path = f"{_task_path(task_id)}:subscribe"
        try:
            async with aclosing(self._stream_replies("POST", path, request_options)) as events:
                async for parsed in events:
                    yield parsed
        except FabricError as exc:
            if exc.details.get("status") != 405:
                raise
            async with aclosing(self._stream_replies("GET", path, request_options)) as events:
                async for parsed in events:
                    yield parsed

    async def cancel(self, task_id: str, request_options: RequestOptions) -> None:
        await self._request("POST", f"{_task_path(task_id)}:cancel", request_options, b"{}")

    async def register_push(self, config: A2APushConfig, request_options: RequestOptions) -> None:
        path = f"{_task_path(config.task_id)}/pushNotificationConfigs"
        body = self._encoder.encode(self._renderer.render_push_request(config))
        await self._request("POST", path, request_options, body)

    async def list_tasks(self, context_id: str, request_options: RequestOptions) -> list[A2ATask]:
        query = {
            "pageSize": TASK_PAGE_SIZE,
            "historyLength": TASK_PAGE_SIZE,
            **({"contextId": context_id} if context_id else {}),
        }
        return parse_tasks(await self._request("GET", f"/tasks?{urlencode(query)}", request_options), self.dialect)

    async def probe(self) -> Status:
        return await self._transport.probe_base()

    async def aclose(self) -> None:
        """The HTTP client belongs to the node, so there is nothing to close."""

    def _encode_message(self, message: A2AMessage, send_options: SendOptions) -> bytes:
        return self._encoder.encode(self._renderer.render_send_params(message, send_options, self._tenant))

    async def _request(
        self, method: str, path: str, request_options: RequestOptions, body: bytes | None = None
    ) -> bytes:
        return _success_body(await self._transport.request(method, self._base + path, body, request_options))

    async def _stream_replies(
        self, method: str, path: str, request_options: RequestOptions, body: bytes | None = None
    ) -> AsyncGenerator[A2AUpdate, None]:
        async with aclosing(self._transport.stream_events(method, self._base + path, body, request_options)) as events:
            async for event in events:
                yield parse_reply(_success_body(event) if isinstance(event, HTTPReply) else event, self.dialect)


def _base_url(url: str, version: A2AVersion, tenant: str) -> str:
    base = url.partition("?")[0].rstrip("/")
    if version == "1.0":
        return f"{base}/{quote(tenant, safe='')}" if tenant else base
    return base if base.endswith("/v1") else f"{base}/v1"


def _task_path(task_id: str) -> str:
    return f"/tasks/{quote(task_id, safe='')}"


def _success_body(reply: HTTPReply) -> bytes:
    if not is_success(reply.status):  # redirects are not followed
        raise error_from_http(reply.status, reply.body)
    return reply.body
