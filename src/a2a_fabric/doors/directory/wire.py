"""What goes over the wire: JSON-RPC 2.0 in all its forms, and the bare bodies of clients that know none of it.

A request's id and parameters stay as they came: the id is sent back as it was
written, and parameters are decoded once, by the method they are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from a2a_fabric.doors.directory.faults import INVALID_REQUEST, PARSE_ERROR, Fault

_NOTHING = Raw(b"")
_NULL = Raw(b"null")
_EMPTY = Raw(b"{}")
_ID_BEGINS_WITH = frozenset(b'"-0123456789n')

_encode = msgspec.json.Encoder().encode


class _Frame(msgspec.Struct):
    jsonrpc: Raw = _NOTHING
    id: Raw = _NOTHING
    method: Raw = _NOTHING
    params: Raw = _NOTHING


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is None for a notification. A bare body is nothing but parameters; its method is that of the address."""

    method: str
    params: Raw
    id: Raw | None = None
    is_bare: bool = False

    @property
    def is_notification(self) -> bool:
        return self.id is None


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """What is no request, with its id as far as it has one."""

    fault: Fault
    id: Raw = _NULL


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one body asked for."""

    requests: Sequence[Request | Refused]
    is_batch: bool = False


_frames = msgspec.json.Decoder(_Frame)
_batches = msgspec.json.Decoder(list[Raw])


def read(body: bytes, method: str | None, most: int) -> Post:
    """`method` is what the address stands for; None where only JSON-RPC is understood. Raises Fault."""
    try:
        body.decode()  # raw values are only looked through, not decoded
        if body.lstrip()[:1] == b"[":
            return _batch(_batches.decode(body), most)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Fault(PARSE_ERROR, "Parse error", detail="The body is not JSON") from exc
    return Post(requests=(_read(body, method),))


def _batch(bodies: list[Raw], most: int) -> Post:
    if not bodies:
        raise Fault(INVALID_REQUEST, "Invalid Request: an empty batch")
    if len(bodies) > most:
        raise Fault(INVALID_REQUEST, f"Invalid Request: a batch holds at most {most} requests")
    return Post(requests=[_read(bytes(body), None) for body in bodies], is_batch=True)


def _read(body: bytes, method: str | None) -> Request | Refused:
    try:
        frame = _frames.decode(body)
    except msgspec.ValidationError:
        return Refused(fault=Fault(INVALID_REQUEST, "Invalid Request: not an object"))
    except (msgspec.DecodeError, RecursionError):
        return Refused(fault=Fault(PARSE_ERROR, "Parse error", detail="The body is not JSON"))
    if method is not None and not bytes(frame.jsonrpc):
        return Request(method=method, params=Raw(body), id=_NULL, is_bare=True)
    return _request(frame)


def _request(frame: _Frame) -> Request | Refused:
    identity = _id_of(frame)
    if identity is None and bytes(frame.id):
        return Refused(fault=Fault(INVALID_REQUEST, "Invalid Request: `id` is text or a number"))
    known = identity or _NULL
    if bytes(frame.jsonrpc) != b'"2.0"':
        return Refused(fault=Fault(INVALID_REQUEST, 'Invalid Request: `jsonrpc` must be "2.0"'), id=known)
    if bytes(frame.method)[:1] != b'"':
        return Refused(fault=Fault(INVALID_REQUEST, "Invalid Request: `method` is missing"), id=known)
    if bytes(frame.params)[:1] not in (b"", b"{", b"[", b"n"):
        return Refused(fault=Fault(INVALID_REQUEST, "Invalid Request: `params` must be an object"), id=known)
    is_left_out = not bytes(frame.params) or bytes(frame.params) == b"null"
    method = msgspec.json.decode(frame.method, type=str)
    return Request(method=method, params=_EMPTY if is_left_out else frame.params, id=identity)


def _id_of(frame: _Frame) -> Raw | None:
    raw = bytes(frame.id)
    return Raw(raw) if raw and raw[0] in _ID_BEGINS_WITH else None


def bare(method: str, params: dict[str, Any]) -> Request:
    """What a page's address asks for."""
    return Request(method=method, params=Raw(_encode(params)), id=_NULL, is_bare=True)


def success(request: Request, result: Any) -> bytes:
    """A reply holds no `error`, not even null: some clients ask only whether the key is there."""
    if request.is_bare:
        return _encode(result)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (bytes(request.id or _NULL), _encode(result))


def failure(fault: Fault, request: Request | Refused | None = None) -> bytes:
    """Of a request; of None if it could not even be told which."""
    error: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        error["data"] = fault.data
    if isinstance(request, Request) and request.is_bare:
        return _encode({**error, "error": fault.detail})
    identity = bytes((request.id if request is not None else None) or _NULL)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (identity, _encode(error))


def notice(request: Request, body: dict[str, Any]) -> bytes:
    """One of several things that are told before the answer, or after it."""
    if request.is_bare:
        return _encode(body)
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (_encode(request.method), _encode(body))
