"""On which terms agents join at run time: the operator's settings, and what is written down with each registration.

The terms of one registration stand in its manifest's metadata, so that every node
that sees the agent, now or after a restart, knows how far to trust its address.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import REGISTERED, Manifest, TrustTier

KEY = REGISTERED  # in the metadata; ours alone to write


class RegistrationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Agents that register while the node runs."""

    lease_seconds: Annotated[
        float,
        Meta(ge=1, description="How long a registration lasts that names no lease; every passed check renews it."),
    ] = 86_400.0
    max_lease_seconds: Annotated[float, Meta(ge=1, description="The longest lease that may be asked for.")] = (
        2_592_000.0
    )
    max_per_owner: Annotated[int, Meta(ge=0, description="Agents that one caller may have registered.")] = 1000
    max_bytes: Annotated[int, Meta(ge=1024, description="Largest manifest that is taken.")] = 262_144
    private: Annotated[
        bool,
        Meta(description="Let callers of trust tier `local` register agents on loopback and in private networks."),
    ] = True
    allow: Annotated[
        tuple[str, ...],
        Meta(description="Private hosts, addresses or networks (CIDR) where anybody's registered agents may be."),
    ] = ()
    runtimes: Annotated[
        tuple[str, ...], Meta(description="Runtimes that registered agents may use; each reaches them by address.")
    ] = ("http", "mcp", "rest", "rpc")
    programs: Annotated[
        bool,
        Meta(
            description="Let callers of trust tier `local` register commands and Python import paths, which this node "
            "then runs. Whoever has such a key can run anything on this machine."
        ),
    ] = False


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    trust: TrustTier  # of whoever registered it
    lease: float  # seconds
    checks_renew: bool = False  # whether passing a health check is as good as a heartbeat
    owner: str = ""
    by_operator: bool = False


def with_terms(manifest: Manifest, terms: Terms) -> Manifest:
    metadata = {**manifest.metadata, KEY: msgspec.to_builtins(terms)}
    return msgspec.structs.replace(manifest, metadata=metadata)


def with_owner(manifest: Manifest, owner: str) -> Manifest:
    """Agents registered by earlier versions did not note their owner; the store knows it."""
    terms = terms_of(manifest)
    if terms is not None and terms.owner:
        return manifest
    known = terms or Terms(trust="public", lease=0.0)
    return with_terms(manifest, msgspec.structs.replace(known, owner=owner))


def terms_of(manifest: Manifest) -> Terms | None:
    """None for an agent that a file declares. What cannot be read means: from a stranger."""
    found = manifest.metadata.get(KEY)
    if found is None:
        return None
    try:
        return msgspec.convert(found, Terms)
    except msgspec.ValidationError:
        return Terms(trust="public", lease=0.0)
