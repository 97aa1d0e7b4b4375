"""Client certificates (mTLS): which caller a certificate's alternative names belong to.

The TLS library has checked that a trusted authority signed the certificate. What it said at the handshake may be over
by now, so the times are compared with each request: connections stay open for hours."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import UNSET

from a2a_fabric.core.agent import TRUST_RANK, TrustTier
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, ConfigError
from a2a_fabric.core.view import View, compile_patterns
from a2a_fabric.identity.peer import PeerCertificate
from a2a_fabric.identity.shared_keys import make_principal

_MAX_CACHED = 4096
_CLOCK_SKEW = 60.0  # seconds by which the clock of an authority may be ahead
KINDS = ("dns", "uri", "email")


class CertificateCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of all certificates with a name that matches. `principal_id` None: the name itself, as `uri:…`."""

    match: str
    principal_id: str | None = None
    scopes: tuple[str, ...] | None = None
    trust: TrustTier = "org"
    view: View | None = None


class CertificateCallers:
    """Callers by certificate; the first entry that matches counts. Raises ConfigError."""

    def __init__(self, callers: Iterable[CertificateCaller], clock: Callable[[], float] = time.time) -> None:
        self._callers = [(_compile(each.match), each) for each in callers]
        self._clock = clock
        self._known: dict[tuple[str, ...], Principal | None] = {}
        self._combined: dict[tuple[int, int], tuple[Principal, Principal, Principal]] = {}

    def __bool__(self) -> bool:
        return bool(self._callers)

    def find_principal(self, certificate: PeerCertificate) -> Principal:
        """Raises AuthExpired, and AuthInvalid for a certificate that belongs to no caller."""
        now = self._clock()
        if now >= certificate.not_after:
            raise AuthExpired("The client certificate has expired. Connect again with a new one")
        if now < certificate.not_before - _CLOCK_SKEW:
            raise AuthInvalid("The client certificate is not valid yet")
        names = certificate.names
        if names in self._known:
            principal = self._known[names]
        else:
            if len(self._known) >= _MAX_CACHED:
                self._known.clear()
            principal = self._known[names] = self._match(names)
        if principal is None:
            raise AuthInvalid("The client certificate belongs to no caller of this node (`auth.certificates`)")
        return principal

    def combine(self, certificate: Principal, other: Principal) -> Principal:
        """The caller of the other credential, with what both allow. Raises AuthInvalid if they belong to two callers.

        A passport says for whom its holder acts. So its holder's certificate may have any name.
        """
        if other.mode != "passport" and certificate.principal_id not in (other.principal_id, other.delegate_id):
            raise AuthInvalid(
                f"The client certificate belongs to '{certificate.principal_id}', the other credentials to "
                f"'{other.principal_id}'. Send only one of them, or two of the same caller"
            )
        known = self._combined.get((id(certificate), id(other)))
        if known is not None:
            return known[2]
        combined = _narrow(other, certificate)
        if len(self._combined) >= _MAX_CACHED:
            self._combined.clear()
        self._combined[id(certificate), id(other)] = certificate, other, combined  # keeps both, and so their ids
        return combined

    def _match(self, names: Sequence[str]) -> Principal | None:
        normalized = [_normalize(name) for name in names]
        for pattern, caller in self._callers:
            matched = next((name for name in normalized if pattern.fullmatch(name)), None)
            if matched is not None:
                name = caller.principal_id or matched
                views = () if caller.view is None else (caller.view,)
                return make_principal(name, caller.scopes, caller.trust, views, "mtls")
        return None


def _narrow(base: Principal, certificate: Principal) -> Principal:
    """`base` with the limits of the certificate besides its own."""
    limits = (base.scp, *(base.narrowed_by or ()), certificate.scp)
    scopes = [each for each in limits if each is not None]
    views = {view.name: view for view in (*(base.views or ()), *(certificate.views or ()))}
    return msgspec.structs.replace(
        base,
        scp=scopes[0] if scopes else None,
        narrowed_by=tuple(scopes[1:]) or UNSET,
        trust=max(base.trust, certificate.trust, key=TRUST_RANK.__getitem__),
        views=tuple(views[name] for name in sorted(views)) or UNSET,
    )


def _compile(match: str) -> re.Pattern[str]:
    kind, _, name = match.partition(":")
    if kind not in KINDS or not name:
        raise ConfigError(
            f"auth: certificates: '{match[:128]}' is no name in a certificate. Write dns:NAME, uri:NAME or email:NAME"
        )
    return compile_patterns((_normalize(match),))


def _normalize(name: str) -> str:
    """Names of hosts and mailboxes have no letter case; URIs have."""
    return name if name.startswith("uri:") else name.lower()
