"""Signs people in at an issuer with OpenID Connect: the authorization code flow with PKCE.

The browser keeps the one secret of a sign-in, the PKCE verifier. State and nonce are derived from it, so the node keeps
nothing between the two requests of a browser: any worker answers the second one, and an answer of the issuer that
belongs to another browser is refused. An error never repeats what the issuer wrote beyond its error code."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from a2a_fabric.core.errors import AuthExpired, AuthInvalid, BadInput, ConfigError, UpstreamFailed
from a2a_fabric.core.policy import OPERATOR_SCOPE, VIEWER_SCOPE, ConsoleRole
from a2a_fabric.identity.settings import IssuerSettings, SignInSettings
from a2a_fabric.identity.token_verifiers import (
    KEY_PAIR_ALGORITHMS,
    IssuerMetadata,
    IssuerUnavailable,
    JWTVerifier,
    NotAJWT,
    basic_auth_header,
    is_secure_url,
    principal_from_claims,
)
from a2a_fabric.identity.trusted_issuers import build_key_set
from a2a_fabric.outbound.port import HTTPClient, HTTPReply, OutboundError

_TIMEOUT = 10.0
_MAX_REPLY_BYTES = 256 * 1024
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")  # of RFC 7636
_ERROR_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ALL = "*"
_BEGIN_AGAIN = "Begin again at the console"


class SignedIn(msgspec.Struct, frozen=True, kw_only=True):
    """A person whom the issuer signed in. `role` is None if no role or group of the person opens the console."""

    principal_id: str
    role: ConsoleRole | None
    scopes: tuple[str, ...]  # for the time of the session


class OpenIDClient:
    """The console as a client of one issuer."""

    def __init__(self, settings: SignInSettings, issuer: IssuerSettings, http: HTTPClient) -> None:
        self.settings = settings
        self.issuer = issuer
        self._http = http
        self._metadata = IssuerMetadata(issuer.issuer, http)
        key_set = build_key_set(issuer, Path(), self._metadata)  # an issuer with a file of keys is refused at the start
        self._verifier = JWTVerifier(issuer, (settings.client_id,), key_set.find_key, KEY_PAIR_ALGORITHMS)

    async def build_url(self, verifier: str, redirect_uri: str) -> str:
        """Where the browser goes to sign in. Raises BadInput, UpstreamFailed."""
        _check_verifier(verifier)
        endpoint = await self._find_endpoint("authorization_endpoint")
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *self.settings.scopes))),
            "state": derive_state(verifier),
            "nonce": _derive("nonce", verifier),
            "code_challenge": _encode(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    async def redeem(self, code: str, state: str, verifier: str, redirect_uri: str, issuer: str | None) -> SignedIn:
        """Trade the code for an ID token and verify that. `issuer` is the `iss` of the answer (RFC 9207).

        Raises BadInput if the answer belongs to another sign-in, AuthInvalid, AuthExpired, UpstreamFailed.
        """
        _check_verifier(verifier)
        if not hmac.compare_digest(state.encode(), derive_state(verifier).encode()):
            raise BadInput(f"This answer of the issuer belongs to another sign-in (`state`). {_BEGIN_AGAIN}")
        await self._check_issuer(issuer)
        tokens = await self._exchange(code, verifier, redirect_uri)
        id_token = tokens.get("id_token")
        if not isinstance(id_token, str):
            raise UpstreamFailed(f"{self.issuer.issuer} sent no ID token. Is `openid` allowed for this client?")
        return self._identify(await self._verify(id_token, verifier))

    async def find_sign_out_url(self) -> str | None:
        """Where a person ends the session at the issuer, too; None if the issuer has no such page."""
        try:
            url = (await self._metadata.read()).get("end_session_endpoint")
        except IssuerUnavailable:
            return None
        if not isinstance(url, str) or not is_secure_url(url):
            return None
        return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode({'client_id': self.settings.client_id})}"

    def _explain(self, error: IssuerUnavailable) -> UpstreamFailed:
        return UpstreamFailed(f"Signing in is not possible now: {self.issuer.issuer} {error.why}. Try again later")

    async def _find_endpoint(self, name: str) -> str:
        try:
            return await self._metadata.find_endpoint(name)
        except IssuerUnavailable as exc:
            raise self._explain(exc) from exc

    async def _check_issuer(self, issuer: str | None) -> None:
        """An answer of another issuer must not bring its code here."""
        try:
            metadata = await self._metadata.read()
        except IssuerUnavailable as exc:
            raise self._explain(exc) from exc
        is_missing = issuer is None and metadata.get("authorization_response_iss_parameter_supported") is True
        if is_missing or (issuer is not None and issuer != self.issuer.issuer):
            raise BadInput(f"The answer does not come from {self.issuer.issuer} (`iss`). {_BEGIN_AGAIN}")

    async def _exchange(self, code: str, verifier: str, redirect_uri: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        endpoint = await self._find_endpoint("token_endpoint")
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        client_id, secret = self.settings.client_id, self.settings.client_secret
        if secret is None:
            form["client_id"] = client_id
        elif await self._wants_secret_in_body():
            form |= {"client_id": client_id, "client_secret": secret}
        else:
            headers |= basic_auth_header(client_id, secret)
        try:
            reply = await self._http.request(
                "POST",
                endpoint,
                headers=headers,
                body=urlencode(form).encode(),
                timeout=_TIMEOUT,
                limit=_MAX_REPLY_BYTES,
            )
        except OutboundError as exc:
            raise UpstreamFailed(f"{self.issuer.issuer} cannot be reached. Try again later") from exc
        fields = _decode(reply)
        if reply.status == 200:
            return fields
        error = fields.get("error")
        error_code = error if isinstance(error, str) and _ERROR_CODE.fullmatch(error) else f"HTTP {reply.status}"
        if error_code == "invalid_grant":
            raise AuthExpired(f"The answer of {self.issuer.issuer} has expired, or was used already. {_BEGIN_AGAIN}")
        raise UpstreamFailed(
            f"{self.issuer.issuer} refused to sign you in: {error_code}. The operator should check `console.sign_in`"
        )

    async def _wants_secret_in_body(self) -> bool:
        methods = (await self._metadata.read()).get("token_endpoint_auth_methods_supported")
        return isinstance(methods, list) and "client_secret_basic" not in methods and "client_secret_post" in methods

    async def _verify(self, id_token: str, verifier: str) -> dict[str, Any]:
        try:
            claims, _ = await self._verifier.read_claims(id_token)
        except NotAJWT as exc:
            raise AuthInvalid(f"{self.issuer.issuer} sent an ID token that is not a JWT") from exc
        except IssuerUnavailable as exc:
            raise self._explain(exc) from exc
        client_id, audience = self.settings.client_id, claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        authorized = claims.get("azp", client_id if len(audiences) == 1 else None)
        if client_id not in audiences or authorized != client_id:
            raise AuthInvalid("The ID token was issued for another client (`aud`, `azp`)")
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), _derive("nonce", verifier).encode()):
            raise AuthInvalid(f"The ID token belongs to another sign-in (`nonce`). {_BEGIN_AGAIN}")
        if not isinstance(claims.get("sub"), str):
            raise AuthInvalid("The ID token names no subject (`sub`)")
        return claims

    def _identify(self, claims: Mapping[str, Any]) -> SignedIn:
        """An operator may make keys for everything, so the session may, too. A viewer looks, and calls what `grants`
        allows if the tokens of the issuer reach all agents anyway: the session has to be of the tier `local`.
        """
        principal = principal_from_claims(
            {name: value for name, value in claims.items() if name not in ("azp", "client_id", "prn", "mnd")},
            self.issuer,
            "oauth2",
            None,
        )
        name = principal.principal_id or ""
        role = find_role(claims, self.settings)
        if role == "operator":
            return SignedIn(principal_id=name, role=role, scopes=(_ALL, OPERATOR_SCOPE))
        granted = principal.scp or () if self.issuer.trust == "local" and principal.cap is None else ()
        agents = tuple(scope for scope in granted if not scope.startswith("console:"))
        return SignedIn(principal_id=name, role=role, scopes=(*agents, VIEWER_SCOPE))


def check_sign_in(settings: SignInSettings, issuers: Sequence[IssuerSettings]) -> IssuerSettings:
    """The issuer of the settings. Raises ConfigError."""
    where = "console.sign_in"
    issuer = next((each for each in issuers if each.id == settings.issuer), None)
    if issuer is None:
        raise ConfigError(f"{where}: `issuer` '{settings.issuer}' is not the `id` of one of `auth.issuers`")
    if not issuer.is_server or not issuer.issuer.startswith(("http://", "https://")):
        raise ConfigError(f"{where}: people can sign in only at an issuer with an address and keys that it publishes")
    if not settings.operators and not settings.viewers:
        raise ConfigError(f"{where}: set `operators` or `viewers`, or no person who signs in may open the console")
    if _ALL in settings.operators:
        raise ConfigError(f"{where}: `operators` names roles or groups; '*' may only be among the `viewers`")
    return issuer


def find_role(claims: Mapping[str, Any], settings: SignInSettings) -> ConsoleRole | None:
    names = {name for path in settings.claims for name in _read_names(claims, path)}
    if names.intersection(settings.operators):
        return "operator"
    return "viewer" if _ALL in settings.viewers or names.intersection(settings.viewers) else None


def _read_names(claims: Mapping[str, Any], path: str) -> list[str]:
    if path == "email" and claims.get("email_verified") is not True:
        return []
    value: Any = claims.get(path)
    if value is None:
        value = claims
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def derive_state(verifier: str) -> str:
    return _derive("state", verifier)


def _derive(purpose: str, verifier: str) -> str:
    return _encode(hashlib.sha256(f"a2a-fabric {purpose}\0{verifier}".encode()).digest())


def _encode(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _check_verifier(verifier: str) -> None:
    if not _VERIFIER.fullmatch(verifier):
        raise BadInput("`verifier` must be 43 to 128 letters, digits, '-', '.', '_' or '~'", field="verifier")


def _decode(reply: HTTPReply) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
