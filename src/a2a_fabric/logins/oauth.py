"""The OAuth client: finds the authorization server of an agent and gets tokens from it.

Discovery follows RFC 9728 (the agent names its authorization servers) and RFC 8414 (the server's endpoints). The
client registers itself (RFC 7591) unless the manifest has a client id. Codes are requested with PKCE (RFC 7636) and
for the agent alone (RFC 8707). An error never repeats what a server wrote beyond its error code, because
descriptions may hold what was sent."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import AgentOffline, BadInput, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.outbound.port import AddressRefused, HTTPClient, HTTPReply, OutboundError

T = TypeVar("T")

CLIENT_NAME = "A2A Fabric"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_TIMEOUT = 15.0
_REPLY_BYTES = 256 * 1024
_ERROR_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_RESOURCE_METADATA = re.compile(r'resource_metadata\s*=\s*"([^"]{1,2048})"', re.IGNORECASE)
_CHALLENGE_SCOPE = re.compile(r'\bscope\s*=\s*"([^"]{1,2048})"', re.IGNORECASE)


class OAuthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`auth` in the endpoint of a manifest: `oauth`, or this table."""

    kind: Literal["oauth"] = "oauth"
    issuer: str | None = None  # unset: the agent names it
    client_id: str | None = None  # unset: the node registers itself, if the server lets it
    client_secret: str | None = None
    scopes: tuple[str, ...] = ()  # unset: those that the agent asks for
    service_token: str | None = None  # a token for listing what the agent offers and for health checks, never for calls
    max_sessions: int = 100  # principals that are connected at a time
    idle_seconds: float = 300.0  # after which a principal's session is closed


class LoginTarget(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that wants its callers to sign in."""

    agent_id: str
    uri: str
    settings: OAuthSettings


class AuthorizationServer(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of RFC 8414, as far as they are used."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    device_authorization_endpoint: str | None = None
    revocation_endpoint: str | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool = False


class _ResourceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    resource: str | None = None
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] = ()


class ClientIdentity(msgspec.Struct, frozen=True, kw_only=True):
    client_id: str
    client_secret: str | None = None


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    server: AuthorizationServer
    resource: str
    scopes: tuple[str, ...]


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """A principal's tokens, and what their renewal needs."""

    access_token: str
    refresh_token: str | None = None
    expires_at: float | None = None
    lifetime: float | None = None
    scopes: tuple[str, ...] = ()
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None = None
    resource: str
    client: ClientIdentity
    claimed_until: float = 0.0  # a node renews the token now; many servers end a login whose refresh token comes twice


class DeviceCode(msgspec.Struct, frozen=True, kw_only=True):
    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = None
    expires_in: float = 600.0
    interval: float = 5.0


class GrantRefused(UpstreamRefused):
    """The authorization server refused a code, a device or a refresh token; `error_code` says why."""

    def __init__(self, issuer: str, error_code: str) -> None:
        super().__init__(
            f"The authorization server {issuer} refused: {error_code}", issuer=issuer, oauth_error=error_code
        )
        self.error_code = error_code


def read_login_target(manifest: Manifest, endpoint: Mapping[str, Any]) -> LoginTarget | None:
    """The agent as one that wants a login; None if it wants none. Raises BadInput for a bad `auth`."""
    auth = endpoint.get("auth")
    if auth is None:
        return None
    try:
        settings = msgspec.convert({"kind": auth} if isinstance(auth, str) else auth, OAuthSettings)
    except msgspec.ValidationError as exc:
        raise BadInput(f"Agent '{manifest.agent_id}' has a bad `auth`: {exc}", agent_id=manifest.agent_id) from exc
    uri = endpoint.get("uri")
    if not isinstance(uri, str) or not uri.startswith(("http://", "https://")):
        raise BadInput(
            f"Agent '{manifest.agent_id}' has `auth: oauth`, which needs a `uri` with http or https",
            agent_id=manifest.agent_id,
        )
    return LoginTarget(agent_id=manifest.agent_id, uri=uri, settings=settings)


class OAuthClient:
    """`http` reaches the agent's own host and a configured issuer; `guarded_http` every other, if it is public."""

    def __init__(self, http: HTTPClient, guarded_http: HTTPClient) -> None:
        self._http = http
        self._guarded_http = guarded_http

    async def discover(self, target: LoginTarget) -> Discovery:
        """Raises AgentOffline, UpstreamFailed, UpstreamRefused."""
        metadata, challenge_scopes = await self._find_resource(target)
        issuer = _choose_issuer(target, metadata)
        server = await self._find_server(target, issuer)
        scopes = target.settings.scopes or challenge_scopes or metadata.scopes_supported
        return Discovery(server=server, resource=metadata.resource or target.uri, scopes=scopes)

    async def identify(self, target: LoginTarget, server: AuthorizationServer, redirect_uri: str) -> ClientIdentity:
        """The client id of the manifest, or a newly registered one. Raises FabricError."""
        settings = target.settings
        if settings.client_id is not None:
            return ClientIdentity(client_id=settings.client_id, client_secret=settings.client_secret)
        if server.registration_endpoint is None:
            raise UpstreamRefused(
                f"The authorization server {server.issuer} does not let clients register themselves. Register one "
                f"there, and set `client_id` in the `auth` of agent '{target.agent_id}'",
                agent_id=target.agent_id,
            )
        body = {
            "client_name": CLIENT_NAME,
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }
        reply = await self._send(target, "POST", server.registration_endpoint, json=body)
        if not 200 <= reply.status < 300:
            raise GrantRefused(server.issuer, _read_error_code(reply))
        return _decode(reply, ClientIdentity, server.issuer)

    async def exchange_code(
        self, target: LoginTarget, discovery: Discovery, client: ClientIdentity, code: str, verifier: str, redirect: str
    ) -> Tokens:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "code_verifier": verifier,
            "resource": discovery.resource,
        }
        return await self._request_tokens(target, _seed_tokens(discovery, client), form)

    async def refresh(self, target: LoginTarget, tokens: Tokens) -> Tokens:
        """Raises GrantRefused if the refresh token is no longer good."""
        form = {
            "grant_type": "refresh_token",
            "refresh_token": tokens.refresh_token or "",
            "resource": tokens.resource,
        }
        return await self._request_tokens(target, tokens, form)

    async def start_device(self, target: LoginTarget, discovery: Discovery, client: ClientIdentity) -> DeviceCode:
        endpoint = discovery.server.device_authorization_endpoint
        if endpoint is None:
            raise UpstreamRefused(
                f"The authorization server {discovery.server.issuer} has no login for devices without a browser",
                agent_id=target.agent_id,
            )
        form = {"scope": " ".join(discovery.scopes), "resource": discovery.resource}
        reply = await self._send(target, "POST", endpoint, form={**form, "client_id": client.client_id})
        if reply.status != 200:
            raise GrantRefused(discovery.server.issuer, _read_error_code(reply))
        return _decode(reply, DeviceCode, discovery.server.issuer)

    async def poll_device(
        self, target: LoginTarget, discovery: Discovery, client: ClientIdentity, device_code: str
    ) -> Tokens:
        """Raises GrantRefused, with `authorization_pending` or `slow_down` while the person has not decided."""
        form = {"grant_type": DEVICE_GRANT, "device_code": device_code, "resource": discovery.resource}
        return await self._request_tokens(target, _seed_tokens(discovery, client), form)

    async def revoke(self, target: LoginTarget, tokens: Tokens) -> bool:
        """Whether the server took the tokens back; a server without that endpoint never does."""
        if tokens.revocation_endpoint is None:
            return False
        form = {"token": tokens.refresh_token or tokens.access_token}
        try:
            reply = await self._send_as_client(target, tokens.client, tokens.revocation_endpoint, form)
        except (AgentOffline, UpstreamFailed):
            return False
        return reply.status == 200

    async def _request_tokens(self, target: LoginTarget, seed: Tokens, form: Mapping[str, str]) -> Tokens:
        reply = await self._send_as_client(target, seed.client, seed.token_endpoint, form)
        if reply.status >= 500:
            raise AgentOffline(f"The authorization server {seed.issuer} answered HTTP {reply.status}; try again later")
        if reply.status != 200:
            raise GrantRefused(seed.issuer, _read_error_code(reply))
        fields = _decode(reply, dict[str, Any], seed.issuer)
        token = fields.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token or not token:
            raise UpstreamFailed(f"The authorization server {seed.issuer} sent no usable token")
        if str(fields.get("token_type", "")).lower() != "bearer":
            raise UpstreamFailed(f"The authorization server {seed.issuer} sent a token that is not a bearer token")
        lifetime = fields.get("expires_in")
        lifetime = float(lifetime) if isinstance(lifetime, int | float) and lifetime > 0 else None
        refresh_token, scope = fields.get("refresh_token"), fields.get("scope")
        return msgspec.structs.replace(
            seed,
            access_token=token,
            refresh_token=refresh_token if isinstance(refresh_token, str) and refresh_token else seed.refresh_token,
            expires_at=None if lifetime is None else time.time() + lifetime,
            lifetime=lifetime,
            scopes=tuple(scope.split()) if isinstance(scope, str) else seed.scopes,
            claimed_until=0.0,
        )

    async def _send_as_client(
        self, target: LoginTarget, client: ClientIdentity, endpoint: str, form: Mapping[str, str]
    ) -> HTTPReply:
        if client.client_secret is None:
            return await self._send(target, "POST", endpoint, form={**form, "client_id": client.client_id})
        pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret, safe='')}"
        basic = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return await self._send(target, "POST", endpoint, form=form, authorization=basic)

    async def _find_resource(self, target: LoginTarget) -> tuple[_ResourceMetadata, tuple[str, ...]]:
        """What the agent says about itself, at the address in its challenge or at the usual ones."""
        challenge = (await self._send(target, "GET", target.uri)).headers.get("www-authenticate", "")
        scopes = tuple(match[1].split()) if (match := _CHALLENGE_SCOPE.search(challenge)) else ()
        origin, path = _split(target.uri)
        named = [match[1]] if (match := _RESOURCE_METADATA.search(challenge)) else []
        well_known = f"{origin}/.well-known/oauth-protected-resource"
        for url in dict.fromkeys([*named, f"{well_known}{path}", well_known]):
            reply = await self._send(target, "GET", url)
            if reply.status == 200:
                metadata = _decode(reply, _ResourceMetadata, url)
                if metadata.resource is not None and not _covers(metadata.resource, target.uri):
                    raise UpstreamRefused(
                        f"Agent '{target.agent_id}' names another resource than its own address, so no token is "
                        "requested for it",
                        agent_id=target.agent_id,
                    )
                return metadata, scopes
        return _ResourceMetadata(), scopes

    async def _find_server(self, target: LoginTarget, issuer: str) -> AuthorizationServer:
        origin, path = _split(issuer)
        documents = (
            f"{origin}/.well-known/oauth-authorization-server{path}",
            f"{origin}/.well-known/openid-configuration{path}",
            f"{origin}{path}/.well-known/openid-configuration",
        )
        for url in dict.fromkeys(documents):
            reply = await self._send(target, "GET", url)
            if reply.status == 200:
                server = _decode(reply, AuthorizationServer, issuer)
                if server.issuer.rstrip("/") != issuer.rstrip("/"):
                    raise UpstreamRefused(
                        f"The authorization server {issuer} says that it is another one, so it is not used",
                        agent_id=target.agent_id,
                    )
                return server
            if reply.status >= 500:
                raise AgentOffline(f"The authorization server {issuer} answered HTTP {reply.status}; try again later")
        raise UpstreamRefused(
            f"{issuer} publishes no OAuth metadata. If agent '{target.agent_id}' has another authorization server, "
            "set `issuer` in its `auth`",
            agent_id=target.agent_id,
        )

    async def _send(
        self,
        target: LoginTarget,
        method: str,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        json: Any = None,
        authorization: str | None = None,
    ) -> HTTPReply:
        """Raises AgentOffline, and UpstreamRefused for an address that tokens must not be sent to."""
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
            raise UpstreamRefused(f"{parts.scheme}://{parts.hostname} is neither HTTPS nor on this machine")
        trusted = {urlsplit(each).hostname for each in (target.uri, target.settings.issuer or "")}
        http = self._http if parts.hostname in trusted else self._guarded_http
        headers = {"accept": "application/json"}
        body: bytes | None = None
        if form is not None:
            headers["content-type"] = "application/x-www-form-urlencoded"
            body = urlencode({name: value for name, value in form.items() if value}).encode()
        elif json is not None:
            headers["content-type"] = "application/json"
            body = msgspec.json.encode(json)
        if authorization is not None:
            headers["authorization"] = authorization
        try:
            return await http.request(method, url, headers=headers, body=body, timeout=_TIMEOUT, limit=_REPLY_BYTES)
        except AddressRefused as exc:
            raise UpstreamRefused(
                f"Agent '{target.agent_id}' names an authorization server at {parts.hostname}, which is not public. If "
                "that is right, set `issuer` in its `auth`",
                agent_id=target.agent_id,
            ) from exc
        except OutboundError as exc:
            raise AgentOffline(f"{parts.scheme}://{parts.netloc} cannot be reached for the login: {exc}") from exc


def make_verifier() -> str:
    return secrets.token_urlsafe(48)


def build_authorization_url(
    discovery: Discovery, client: ClientIdentity, redirect_uri: str, state: str, verifier: str
) -> str:
    """Raises UpstreamRefused for a server without an authorization endpoint, or without PKCE."""
    server = discovery.server
    if server.authorization_endpoint is None:
        raise UpstreamRefused(f"The authorization server {server.issuer} has no page to sign in at")
    if "S256" not in (server.code_challenge_methods_supported or ()):
        raise UpstreamRefused(
            f"The authorization server {server.issuer} does not say that it supports PKCE with S256, without which "
            "codes can be stolen"
        )
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": discovery.resource,
        **({"scope": " ".join(discovery.scopes)} if discovery.scopes else {}),
    }
    separator = "&" if "?" in server.authorization_endpoint else "?"
    return f"{server.authorization_endpoint}{separator}{urlencode(query)}"


def check_response_issuer(server: AuthorizationServer, issuer: str | None) -> None:
    """RFC 9207: the code must come from the server that was asked. Raises UpstreamRefused."""
    if issuer is None and not server.authorization_response_iss_parameter_supported:
        return
    if (issuer or "").rstrip("/") != server.issuer.rstrip("/"):
        raise UpstreamRefused("The answer to the login came from another authorization server; nothing was stored")


def _seed_tokens(discovery: Discovery, client: ClientIdentity) -> Tokens:
    server = discovery.server
    return Tokens(
        access_token="",
        scopes=discovery.scopes,
        issuer=server.issuer,
        token_endpoint=server.token_endpoint,
        revocation_endpoint=server.revocation_endpoint,
        resource=discovery.resource,
        client=client,
    )


def _choose_issuer(target: LoginTarget, metadata: _ResourceMetadata) -> str:
    offered: Sequence[str] = metadata.authorization_servers
    configured = target.settings.issuer
    if configured is None:
        return offered[0] if offered else _split(target.uri)[0]  # servers before RFC 9728 were their own
    if offered and configured.rstrip("/") not in [each.rstrip("/") for each in offered]:
        raise UpstreamRefused(
            f"Agent '{target.agent_id}' does not accept tokens of {configured}; it names {', '.join(offered)[:300]}",
            agent_id=target.agent_id,
        )
    return configured


def _covers(resource: str, uri: str) -> bool:
    """Whether the address belongs to the resource: the same origin, and the same path or one below it."""
    (origin, path), (own_origin, own_path) = _split(resource), _split(uri)
    return origin == own_origin and (own_path == path or own_path.startswith(f"{path}/"))


def _split(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower(), parts.path.rstrip("/")


def _read_error_code(reply: HTTPReply) -> str:
    try:
        code = msgspec.json.decode(reply.body).get("error")
    except (msgspec.DecodeError, AttributeError, RecursionError):
        code = None
    return code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else f"HTTP {reply.status}"


def _decode(reply: HTTPReply, kind: type[T], source: str) -> T:
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UpstreamFailed(f"{source} sent OAuth metadata or tokens that cannot be read") from exc
