"""The trusted token issuers of a node: `auth.issuers` of the configuration, and where an issuer publishes its metadata.

Every node imports this module, so it needs no cryptography.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import TrustTier

_IssuerURL = Annotated[str, Meta(pattern="^https?://", max_length=2048)]
_IssuerName = Annotated[str, Meta(pattern=r"^[!-~]+$", max_length=2048)]
CredentialKind = Literal["jwt", "passport", "mandate"]


class IssuerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server whose tokens are trusted: signed ones (JWT), and opaque ones by introspection (OAuth 2.0)."""

    id: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{1,64}$",
            description="The issuer's name on this node. A caller whom the issuer calls `alice` is `ID:alice` here.",
        ),
    ]
    issuer: Annotated[
        _IssuerName,
        Meta(
            description="The issuer's address, exactly as in the `iss` of its tokens. With `jwks_file` or "
            "`jwks_url`, any name."
        ),
    ]
    accepts: Annotated[
        tuple[CredentialKind, ...],
        Meta(
            description="Which credentials of the issuer count: `jwt` (any of its tokens, opaque ones included), "
            "`passport`, `mandate`. Unset: all of them."
        ),
    ] = ("jwt", "passport", "mandate")
    revoked_file: Annotated[
        str | None,
        Meta(
            description="A file with the ids of its passports and mandates that were revoked, relative to this file. "
            "The node notices changes at once."
        ),
    ] = None
    revoked_url: Annotated[
        _IssuerURL | None, Meta(description="The same at an address; the node fetches it every 30 seconds.")
    ] = None
    audience: Annotated[
        tuple[str, ...],
        Meta(
            description="Accepted audiences (`aud`) of its tokens. An address also covers all addresses below it. "
            "Unset: `public_url`."
        ),
    ] = ()
    jwks_url: Annotated[
        _IssuerURL | None,
        Meta(description="The address of its public keys. Unset: the node reads it from the issuer's metadata."),
    ] = None
    jwks_file: Annotated[
        str | None, Meta(description="A file with its public keys (a JSON Web Key Set), relative to this file.")
    ] = None
    secret: Annotated[
        Annotated[str, Meta(min_length=32)] | None,
        Meta(description="The secret with which the issuer signs, if it has no key pair (HS256…HS512); `env:NAME`."),
    ] = None
    client_id: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="The node's client id at the issuer. With it, the node asks the issuer about tokens that are "
            "not JWTs."
        ),
    ] = None
    client_secret: Annotated[str | None, Meta(description="The node's client secret at the issuer; `env:NAME`.")] = None
    introspection_url: Annotated[
        _IssuerURL | None,
        Meta(
            description="The address at which the node asks about tokens. Unset: the node reads it from the issuer's "
            "metadata."
        ),
    ] = None
    introspection_seconds: Annotated[
        float,
        Meta(
            ge=1, le=3600, description="For how many seconds the node keeps the issuer's answer that a token is active."
        ),
    ] = 30.0
    grants: Annotated[
        dict[str, tuple[str, ...]],
        Meta(
            description="Which scopes (as in `auth.keys`) a scope, permission, role or group of a token gives. Scopes"
            " of that form in the token itself count as they are."
        ),
    ] = {}
    scopes: Annotated[tuple[str, ...], Meta(description="Scopes that every token of the issuer has in addition.")] = ()
    trust: Annotated[TrustTier, Meta(description="Which trust tiers its tokens reach. `local` reaches all.")] = "org"

    @property
    def is_server(self) -> bool:
        """Whether callers can get a token there. With only a key configured, there may be no server."""
        return self.secret is None and self.jwks_file is None


class AgentIdentitySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How calls to one agent are signed: `identity` of its endpoint."""

    sign: Annotated[bool, Meta(description="Sign what is sent to the agent.")] = True
    audience: Annotated[
        Annotated[str, Meta(min_length=1, max_length=2048)] | None,
        Meta(description="The receiver's name in the identities. Unset: `uri` of the endpoint, else the agent's id."),
    ] = None
    mandate: Annotated[
        Literal["narrow", "as_is", "none"],
        Meta(
            description="What happens to the caller's mandate. `narrow`: it goes along if it was given to this node's "
            "key, for this call only. `as_is`: one that this node cannot narrow goes along, too. `none`: it stays here."
        ),
    ] = "narrow"
    receiver_keys: Annotated[
        str | None,
        Meta(description="A file with the receiver's public key. With it, the receiver can pass the mandate on."),
    ] = None
    scopes: Annotated[
        tuple[str, ...] | None, Meta(description="A mandate that goes along allows these scopes only.")
    ] = None
    capabilities: Annotated[
        tuple[str, ...] | None, Meta(description="A mandate that goes along allows these capabilities only.")
    ] = None


class IdentitySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node's own identity: the key with which it signs what it forwards, and receipts."""

    sign: Annotated[
        bool,
        Meta(description="Sign what is sent to every agent. Agents can say otherwise (`identity` in their endpoint)."),
    ] = False
    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="The node's name in what it signs (`iss`). Unset: `public_url`, else `node_id`."),
    ] = None
    key_file: Annotated[
        str | None,
        Meta(
            description="The file of the node's private key, relative to this file; made if there is none. Unset: "
            "`identity.key` in the folder of the user's nodes."
        ),
    ] = None
    seconds: Annotated[
        float, Meta(ge=5, le=300, description="How long a signed identity is valid, besides 30 seconds for the clocks.")
    ] = 60.0


class ReceiptSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Signed records of calls, in the store."""

    enabled: Annotated[bool, Meta(description="Write a signed receipt of every call.")] = False
    keep_seconds: Annotated[float, Meta(gt=0, description="Older receipts are removed.")] = 90 * 86_400.0
    keep_receipts: Annotated[
        int, Meta(ge=1, description="Of each node, the oldest receipts beyond this number are removed.")
    ] = 1_000_000


class TrustedNodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node whose signed identities count here."""

    name: Annotated[
        str,
        Meta(min_length=1, max_length=2048, description="The node's name in what it signs (`identity.name` there)."),
    ]
    jwks_file: Annotated[str | None, Meta(description="A file with the node's public keys, relative to this file.")] = (
        None
    )
    jwks_url: Annotated[
        _IssuerURL | None, Meta(description="The address of its public keys, `…/.well-known/jwks.json` of that node.")
    ] = None
    audience: Annotated[
        tuple[str, ...], Meta(description="This node's names in its identities. Unset: `public_url` and `node_id`.")
    ] = ()
    callers: Annotated[
        tuple[str, ...],
        Meta(
            description="The names of the keys with which the node calls. Every request with one of them must carry an "
            "identity that this node signed, and no other caller may send one. Unset: any caller may send one."
        ),
    ] = ()


class SignInSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How people sign in to the console at an issuer, with OpenID Connect."""

    issuer: Annotated[str, Meta(min_length=1, max_length=64, description="The `id` of one of `auth.issuers`.")]
    client_id: Annotated[
        str, Meta(min_length=1, max_length=512, description="The client id of the console at the issuer.")
    ]
    client_secret: Annotated[
        str | None,
        Meta(description="Its client secret, as `env:NAME`. Unset: it is a public client, protected by PKCE alone."),
    ] = None
    scopes: Annotated[
        tuple[str, ...], Meta(description="Which scopes the console asks for; `openid` is always among them.")
    ] = ("openid", "profile")
    claims: Annotated[
        tuple[str, ...],
        Meta(
            description="Which claims of the ID token name the roles or groups of a person; dots lead into objects "
            "(`realm_access.roles`). `email` counts only if the issuer has verified it."
        ),
    ] = ("roles", "groups")
    operators: Annotated[
        tuple[str, ...], Meta(description="Persons with one of these roles or groups are operators.")
    ] = ()
    viewers: Annotated[
        tuple[str, ...],
        Meta(description="Persons with one of these are viewers. `*`: all persons whom the issuer signs in."),
    ] = ()
    hours: Annotated[float, Meta(gt=0, le=168, description="After so many hours a person has to sign in again.")] = 8.0


class CertificateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The caller to whom client certificates belong (mTLS)."""

    match: Annotated[
        str,
        Meta(
            pattern="^(dns|uri|email):.",
            max_length=2048,
            description="An alternative name of the certificate: `dns:NAME`, `uri:NAME` (SPIFFE ids are URIs) or "
            "`email:NAME`. `*` and `?` stand for any text, dots and slashes included.",
        ),
    ]
    id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)] | None,
        Meta(description="Name of the caller in logs and envelopes. Unset: the name in the certificate, as `uri:…`."),
    ] = None
    scopes: Annotated[
        tuple[str, ...] | None, Meta(description="What the caller may do, as in `auth.keys`. Unset: everything.")
    ] = None
    trust: Annotated[TrustTier, Meta(description="Which trust tiers the caller reaches. `local` reaches all.")] = "org"
    view: Annotated[str | None, Meta(description="A view beyond which the caller sees and calls nothing.")] = None


_OPENID_PATH = "/.well-known/openid-configuration"
_OAUTH_PATH = "/.well-known/oauth-authorization-server"


def openid_metadata_url(issuer: str) -> str:
    """The URL of the metadata by OpenID Connect: below the issuer."""
    origin, path = _split_issuer(issuer)
    return f"{origin}{path}{_OPENID_PATH}"


def metadata_urls(issuer: str) -> list[str]:
    """The URLs to try, in order. OAuth 2.0 puts its well-known path between host and path."""
    origin, path = _split_issuer(issuer)
    return list(
        dict.fromkeys([openid_metadata_url(issuer), f"{origin}{_OAUTH_PATH}{path}", f"{origin}{_OPENID_PATH}{path}"])
    )


def _split_issuer(issuer: str) -> tuple[str, str]:
    parts = urlsplit(issuer)
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
