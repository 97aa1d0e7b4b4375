"""Signs the identities of calls that a node forwards, and passes mandates on, with less than they allow.

Only agents for which the operator asked for it get signed requests; see `AgentIdentitySettings`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from a2a_fabric.core.call import Call, Principal
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, BadInput, ConfigError
from a2a_fabric.core.forwarding import current_call
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.scopes import covers_scopes, scopes_from_cap
from a2a_fabric.identity.forwarded import ForwardedIdentity, digest_content, nest_actors, sign_identity
from a2a_fabric.identity.mandates import decode_link, narrow_mandate, prove_mandate, split_mandate
from a2a_fabric.identity.node_keys import NodeKeys
from a2a_fabric.identity.settings import AgentIdentitySettings
from a2a_fabric.identity.signing import make_jwk, parse_public_keys

ANONYMOUS = "anonymous"
_MANDATE_MARGIN = 60.0  # seconds after the timeout of a call for which a mandate that is passed on stays valid

_log = logging.getLogger(__name__)


class NodeSigner:
    """`name` is the node's name in the identities (`iss`)."""

    def __init__(
        self, keys: NodeKeys, name: str, base: Path, seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.keys = keys
        self.name = name
        self.seconds = seconds
        self.clock = clock
        self._base = base

    def build_for(self, agent_id: str, uri: str | None, settings: AgentIdentitySettings) -> AgentSigner:
        """Raises ConfigError."""
        self.keys.get()  # a key that cannot be read or made is reported now
        audience = settings.audience or uri or agent_id
        receiver_key = None
        if settings.receiver_keys is not None:
            receiver_key = _read_receiver_key(self._base / settings.receiver_keys)
        return AgentSigner(self, agent_id, audience, settings, receiver_key)


class AgentSigner:
    """Signs what is sent to one agent."""

    def __init__(
        self,
        node: NodeSigner,
        agent_id: str,
        audience: str,
        settings: AgentIdentitySettings,
        receiver_key: Ed25519PublicKey | None,
    ) -> None:
        self._node = node
        self._agent_id = agent_id
        self._audience = audience
        self._settings = settings
        self._receiver_key = receiver_key

    def sign_request(self, body: bytes) -> str:
        call = current_call.get()
        if call is None:
            now = int(self._node.clock())
            return self._sign(self._make_identity(now, digest_content(body), self._node.name, ()))
        return self._sign_call(call, digest_content(body), call.target.capability)

    def sign_content(self, call: Call, content: Any, capability: str | None = None) -> str:
        try:
            digest = digest_content(content)
        except (ValueError, TypeError, RecursionError) as exc:
            raise BadInput(
                f"The call cannot be signed for agent '{self._agent_id}': its arguments have no canonical form "
                "(RFC 8785), such as an integer beyond 2**53. Send large numbers as text"
            ) from exc
        return self._sign_call(call, digest, capability or call.target.capability)

    def _sign_call(self, call: Call, digest: str, capability: str) -> str:
        auth, now = call.auth, self._node.clock()
        subject, *actors = list_actors(auth)
        identity = self._make_identity(
            int(now),
            digest,
            subject,
            (*actors, self._node.name),
            mode=auth.mode,
            agent_id=call.target.agent_id,
            capability=capability,
            trace_id=call.trace.trace_id,
            span_id=call.trace.span_id,
            scp=auth.scp,
            cap=auth.cap,
            mandate=self._pass_on_mandate(auth.mandate, call, now) if auth.mandate else None,
        )
        return self._sign(identity)

    def _make_identity(
        self, now: int, digest: str, subject: str, actors: tuple[str, ...], **more: Any
    ) -> ForwardedIdentity:
        return ForwardedIdentity(
            iss=self._node.name,
            aud=self._audience,
            sub=subject,
            act=nest_actors(actors),
            jti=new_id(),
            iat=now,
            nbf=now,
            exp=now + int(self._node.seconds),
            dig=digest,
            **more,
        )

    def _sign(self, identity: ForwardedIdentity) -> str:
        return sign_identity(identity, self._node.keys.get())

    def _pass_on_mandate(self, token: str, call: Call, now: float) -> str | None:
        """The mandate for the receiver. One that was given to another key than the node's cannot be narrowed."""
        settings = self._settings
        if settings.mandate == "none":
            return None
        key, parent = self._node.keys.get(), decode_link(split_mandate(token)[-1])
        if parent.dep < 1 or parent.cnf is None or parent.cnf.get("jwk") != make_jwk(key.public_key):
            is_usable = settings.mandate == "as_is" and parent.cnf is None  # one with a key needs a proof by its holder
            return token if is_usable else None
        try:
            narrowed = narrow_mandate(
                token,
                key,
                delegate=self._audience[:256],
                now=now,
                scopes=_keep_covered(settings.scopes, parent.scp),
                capabilities=_choose_capabilities(settings.capabilities, parent.cap),
                seconds=call.target.timeout_ms / 1000 + _MANDATE_MARGIN,
                delegate_key=self._receiver_key,
            )
            if self._receiver_key is None:
                return narrowed
            return prove_mandate(narrowed, key, now=now, seconds=self._node.seconds)
        except (BadInput, AuthInvalid, AuthExpired) as exc:
            _log.warning("The mandate %s was not passed on to %s: %s", parent.mnd, self._agent_id, exc.message)
            raise AuthInvalid(f"The mandate cannot be passed on: {exc.message}") from exc


def list_actors(principal: Principal) -> tuple[str, ...]:
    """The principal, then those who act for it, the oldest first."""
    if principal.actors:
        return principal.actors
    delegates = (*(principal.delegated_by or ()), principal.delegate_id)
    return (principal.principal_id or ANONYMOUS, *(each for each in delegates if each is not None))


def _keep_covered(scopes: tuple[str, ...] | None, parent: tuple[str, ...]) -> tuple[str, ...] | None:
    """Of the configured scopes those that the mandate allows; None leaves it as it is."""
    return None if scopes is None else tuple(each for each in scopes if covers_scopes(parent, (each,)))


def _choose_capabilities(
    capabilities: tuple[str, ...] | None, parent: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    if capabilities is None or parent is None:
        return capabilities
    allowed = scopes_from_cap(parent)
    return tuple(each for each in capabilities if covers_scopes(allowed, scopes_from_cap((each,))))


def _read_receiver_key(path: Path) -> Ed25519PublicKey:
    try:
        return next(iter(parse_public_keys(path.read_bytes()).values()))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: the public key of the receiver cannot be read: {exc}") from exc
