"""Serves the sign-in of the console: where a browser begins at the issuer, ends there, and signs out.

A session is a key in the store like any other: it has the name of the person, ends by itself, counts on all workers and
nodes of the store, and an operator can revoke it. The page keeps it in its tab and sends it as `Authorization`, so
there is no cookie that another site could use."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from a2a_fabric.admin.keys import make_new_key
from a2a_fabric.core.errors import BadInput, Conflict, FabricError, Forbidden, RateLimited
from a2a_fabric.core.keys import KeyStore, StoredKey
from a2a_fabric.core.limits import FairLimit
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.stores import call_store
from a2a_fabric.doors.api_docs import DoorDescription, PathDescription
from a2a_fabric.doors.edge import ClientDisconnected, client_address, find_http_status, head_from_scope, read_body
from a2a_fabric.identity.failed_attempts import find_source
from a2a_fabric.identity.shared_keys import hash_key, make_key

PATH = "/console/sign-in"
RETURN_PATH = "/console/signed-in"  # a view of the page, and the redirect URI at the issuer
_BODY_BYTES = 16 * 1024
_CONCURRENT = 16  # sign-ins that wait for the issuer; strangers may begin one, too
_SESSIONS = 10  # of one person; the oldest ends when there are more
_ATTEMPTS = 3
_BEARER = "bearer "

_log = logging.getLogger(__name__)
T = TypeVar("T")


class _Start(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    verifier: str


class _Finish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    code: str
    state: str
    verifier: str
    iss: str | None = None


class Person(Protocol):
    """Whom the issuer signed in; see `identity.sign_in`."""

    @property
    def principal_id(self) -> str: ...
    @property
    def role(self) -> str | None: ...
    @property
    def scopes(self) -> tuple[str, ...]: ...


class IssuerClient(Protocol):
    """See `identity.sign_in.OpenIDClient`, which is loaded when it is first needed."""

    async def build_url(self, verifier: str, redirect_uri: str) -> str: ...
    async def redeem(self, code: str, state: str, verifier: str, redirect_uri: str, issuer: str | None) -> Person: ...
    async def find_sign_out_url(self) -> str | None: ...


class SignInPages:
    """`load_client` returns the client of the issuer, with the settings as they count now; raises FabricError.

    `refresh_keys` reads the keys of the store, so that a session counts here from its first request.
    """

    def __init__(
        self,
        issuer: str | None,
        load_client: Callable[[], IssuerClient],
        keys: KeyStore,
        refresh_keys: Callable[[], Awaitable[None]],
        public_url: str | None,
        lifetime: float,
    ) -> None:
        self._issuer = issuer
        self._load_client = load_client
        self._keys = keys
        self._refresh_keys = refresh_keys
        self._public_url = public_url
        self._lifetime = lifetime
        self._running = FairLimit(
            "sign-ins that wait for their issuer", _CONCURRENT, used_up=_build_refusal
        )  # by source

    @property
    def routes(self) -> list[BaseRoute]:
        about = Route(f"{PATH}/about", self._show_about, methods=["GET"])
        if self._issuer is None:
            return [about]
        return [
            about,
            Route(f"{PATH}/start", self._start, methods=["POST"]),
            Route(f"{PATH}/finish", self._finish, methods=["POST"]),
            Route(f"{PATH}/end", self._end, methods=["POST"]),
        ]

    def describe(self) -> DoorDescription:
        """For `/docs`."""
        paths = (
            _describe("about", "Which issuer people sign in at; null if there is none.", method="GET"),
            _describe("start", "Begin: the address of the issuer to open.", _Start, {"verifier": "v" * 43}),
            _describe("finish", "End with what the issuer sent back: the token of a new session.", _Finish),
            _describe("end", "End the session whose token is sent as `Authorization`."),
        )
        return DoorDescription(
            name="sign-in",
            about="How people sign in to the console.",
            page="console.md",
            paths=paths[:1] if self._issuer is None else paths,
        )

    async def _show_about(self, request: Request) -> Response:
        return _reply({"issuer": self._issuer})

    async def _start(self, request: Request) -> Response:
        async def start() -> dict[str, Any]:
            arguments = await _read(request, _Start)
            redirect_uri = self._find_redirect_uri(request)
            with self._bounded(request):
                url = await self._load_client().build_url(arguments.verifier, redirect_uri)
            return {"url": url, "redirect_uri": redirect_uri}

        return await _answer(start())

    async def _finish(self, request: Request) -> Response:
        async def finish() -> dict[str, Any]:
            answer = await _read(request, _Finish)
            redirect_uri = self._find_redirect_uri(request)
            with self._bounded(request):
                person = await self._load_client().redeem(
                    answer.code, answer.state, answer.verifier, redirect_uri, answer.iss
                )
            name = person.principal_id
            if person.role is None:
                raise Forbidden(
                    f"You signed in as {name}, but none of your roles or groups opens this console. Ask its operator "
                    "to add one of them to `operators` or `viewers` of `console.sign_in`"
                )
            secret, key = await open_session(self._keys, name, person.scopes, self._lifetime)
            await self._refresh_keys()
            _log.info("%s signed in to the console as %s, for %g h", name, person.role, self._lifetime / 3600)
            return {"token": secret, "name": name, "role": person.role, "expires_at": key.expires_at}

        return await _answer(finish())

    async def _end(self, request: Request) -> Response:
        """End the session whose token is sent. It is no error if it has ended before."""

        async def end() -> dict[str, Any]:
            authorization = request.headers.get("authorization", "")
            if not authorization.lower().startswith(_BEARER):
                raise BadInput("Send the session that is to end as 'Authorization: Bearer TOKEN'")
            with self._bounded(request):
                name = await close_session(self._keys, authorization[len(_BEARER) :].strip(), f"{self._issuer}:")
                if name is None:
                    return {"ended": False, "issuer_url": None}
                await self._refresh_keys()
                _log.info("%s signed out of the console", name)
                return {"ended": True, "issuer_url": await self._load_client().find_sign_out_url()}

        return await _answer(end())

    def _find_redirect_uri(self, request: Request) -> str:
        """The issuer sends browsers only to addresses that the operator registered there."""
        if self._public_url is None:
            return f"{request.url.scheme}://{request.url.netloc}{RETURN_PATH}"
        parts = urlsplit(self._public_url)
        return f"{parts.scheme}://{parts.netloc}{RETURN_PATH}"

    def _bounded(self, request: Request) -> AbstractContextManager[None]:
        """No source can hold all places. Raises RateLimited if too many sign-ins wait for the issuer."""
        return self._running.hold(find_source(client_address(request.scope)))


def _build_refusal() -> RateLimited:
    return RateLimited("Too many people are signing in just now. Try again in a moment", 2.0)


def _describe(
    name: str,
    summary: str,
    body: type[msgspec.Struct] | None = None,
    example: Any = None,
    *,
    method: str = "POST",
) -> PathDescription:
    return PathDescription(
        method=method, path=f"{PATH}/{name}", summary=summary, body=body, example=example, credentials="none"
    )


async def open_session(keys: KeyStore, name: str, scopes: Sequence[str], lifetime: float) -> tuple[str, StoredKey]:
    """A new key of this person, beside those of its other sessions. Raises StoreError, Conflict."""
    secret = make_key()
    new = make_new_key(name, secret, tuple(scopes), "local", None, lifetime)
    for attempt in range(_ATTEMPTS):
        now = time.time()
        others = [key for key in await call_store(keys.list) if key.name == name and key.is_usable(now)]
        try:
            # A successor lets the others live on; no session is longer than a new one.
            added = await call_store(keys.add, new, overlap=lifetime if others else None)
        except Conflict:  # another session of the same person began or ended meanwhile
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        for old in sorted(others, key=lambda key: key.created_at, reverse=True)[_SESSIONS - 1 :]:
            await call_store(keys.revoke, old.key_id)
        return secret, added
    raise AssertionError  # the last attempt returns or raises


async def close_session(keys: KeyStore, secret: str, prefix: str) -> str | None:
    """Revoke the key of one session, and return whose it was; None if it is no session, or has ended."""
    digest = hash_key(secret)
    for key in await call_store(keys.list):
        if key.name.startswith(prefix) and hmac.compare_digest(key.digest, digest):
            await call_store(keys.revoke, key.key_id)
            return key.name
    return None


async def _read(request: Request, kind: type[T]) -> T:
    try:
        body = await read_body(request.receive, head_from_scope(request.scope), _BODY_BYTES)
    except TimeoutError as exc:
        raise BadInput("The request body did not arrive in time") from exc
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(f"The body is not what the console sends: {exc}") from exc


async def _answer(work: Awaitable[dict[str, Any]]) -> Response:
    trace = new_trace()
    try:
        return _reply(await work)
    except ClientDisconnected:
        return Response(status_code=400)
    except FabricError as error:
        _log.info("a sign-in to the console failed: %s (trace %s)", error.message, trace.trace_id)
        body = {"ok": False, "trace": {"trace_id": trace.trace_id}, "error": error.message, "error_code": error.code}
        return _reply(body, find_http_status(error))


def _reply(body: dict[str, Any], status: int = 200) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
