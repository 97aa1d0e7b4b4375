"""The trusted token issuers of a node: `auth.issuers` of the configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import TrustTier

_IssuerURL = Annotated[str, Meta(pattern="^https?://", max_length=2048)]


class IssuerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server whose tokens are trusted: signed ones (JWT), and opaque ones that it is asked about (OAuth 2.0)."""

    id: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{1,64}$",
            description="Its name here: whoever it calls `alice` is `ID:alice` on this node.",
        ),
    ]
    issuer: Annotated[_IssuerURL, Meta(description="Its address, exactly as in its tokens' `iss`.")]
    audience: Annotated[
        tuple[str, ...],
        Meta(
            description="For whom its tokens must be (`aud`). An address also stands for what lies below it. "
            "Unset: `public_url`."
        ),
    ] = ()
    jwks_url: Annotated[_IssuerURL | None, Meta(description="Where its public keys are. Unset: it is asked where.")] = (
        None
    )
    jwks_file: Annotated[
        str | None, Meta(description="Its public keys in a file (a JSON Web Key Set), relative to this one.")
    ] = None
    secret: Annotated[
        Annotated[str, Meta(min_length=32)] | None,
        Meta(description="The secret it signs with, if it has no key pair (HS256…HS512); `env:NAME`."),
    ] = None
    client_id: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Our name there. With it, it is asked about tokens that are no JWT."),
    ] = None
    client_secret: Annotated[str | None, Meta(description="Our password there; write `env:NAME`.")] = None
    introspection_url: Annotated[
        _IssuerURL | None, Meta(description="Where it is asked about them. Unset: it is asked where.")
    ] = None
    introspection_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="How long its answer about a token is good, if it was yes.")
    ] = 30.0
    grants: Annotated[
        dict[str, tuple[str, ...]],
        Meta(
            description="What a scope, permission, role or group of a token is worth here, in the scopes of "
            "`auth.keys`. A token's own scopes of that form count as they are."
        ),
    ] = {}
    scopes: Annotated[tuple[str, ...], Meta(description="What each of its tokens may do besides.")] = ()
    trust: Annotated[TrustTier, Meta(description="Which trust tiers its tokens reach.")] = "org"

    @property
    def is_server(self) -> bool:
        """Whether callers can go there for a token; one of whom we only have the key may be nowhere."""
        return self.secret is None and self.jwks_file is None
