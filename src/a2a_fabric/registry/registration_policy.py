"""The policy for registrations at run time: settings, the terms stored with each registration, and the admission check.

Registering a command runs code on this machine, and an `env:` reference would hand a
secret of the node to the author of the manifest. Both are for trusted callers only,
and only where the operator allows them. The terms are stored in the manifest's metadata,
so that every node knows how far to trust the agent's address, also after a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import REGISTERED_KEY, TRUST_RANK, Manifest, TrustTier, iterate_strings, normalize_name
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput, FabricError, Forbidden
from a2a_fabric.core.policy import check_register

TERMS_KEY = REGISTERED_KEY  # in the metadata; only the node writes it


class RegistrationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Agents that register while the node runs."""

    lease_seconds: Annotated[
        float,
        Meta(ge=1, description="How long a registration without a lease lasts. Every passed health check renews it."),
    ] = 86_400.0
    max_lease_seconds: Annotated[float, Meta(ge=1, description="Longest lease that an agent may ask for.")] = (
        2_592_000.0
    )
    max_per_owner: Annotated[int, Meta(ge=0, description="Agents that one caller may register.")] = 1000
    max_bytes: Annotated[
        int, Meta(ge=1024, description="Largest manifest that the node accepts, also of what the agent adds to it.")
    ] = 262_144
    private: Annotated[
        bool,
        Meta(description="Let callers of trust tier `local` register agents on loopback and in private networks."),
    ] = True
    allow: Annotated[
        tuple[str, ...],
        Meta(description="Private hosts, addresses or networks (CIDR) where registered agents of all callers may be."),
    ] = ()
    runtimes: Annotated[
        tuple[str, ...],
        Meta(description="Runtimes that registered agents may use. All of these reach an agent by its address."),
    ] = ("http", "mcp", "rest", "rpc")
    programs: Annotated[
        bool,
        Meta(
            description="Let callers of trust tier `local` register commands and Python import paths, which this node"
            " then runs. The holder of such a key can run anything on this machine."
        ),
    ] = False


class RegistrationTerms(msgspec.Struct, frozen=True, kw_only=True):
    trust: TrustTier  # of the caller that registered it
    lease: float  # seconds
    checks_renew: bool = False  # whether a passed health check renews the lease
    owner: str = ""
    by_operator: bool = False


def add_terms(manifest: Manifest, terms: RegistrationTerms) -> Manifest:
    metadata = {**manifest.metadata, TERMS_KEY: msgspec.to_builtins(terms)}
    return msgspec.structs.replace(manifest, metadata=metadata)


def add_owner(manifest: Manifest, owner: str) -> Manifest:
    """Registrations of earlier versions have no owner in their terms; the store has it."""
    terms = read_terms(manifest)
    if terms is not None and terms.owner:
        return manifest
    base_terms = terms or RegistrationTerms(trust="public", lease=0.0)
    return add_terms(manifest, msgspec.structs.replace(base_terms, owner=owner))


def read_terms(manifest: Manifest) -> RegistrationTerms | None:
    """None for an agent that a file declares. Unreadable terms count as those of a public caller."""
    value = manifest.metadata.get(TERMS_KEY)
    if value is None:
        return None
    try:
        return msgspec.convert(value, RegistrationTerms)
    except msgspec.ValidationError:
        return RegistrationTerms(trust="public", lease=0.0)


_MAX_CAPABILITIES = 1000
_MAX_NAME = 256  # characters of a display name or a tag


class RegistrationPolicy:
    """`kind_of` names the runtime that a manifest needs; it raises FabricError if that does not exist."""

    def __init__(self, settings: RegistrationSettings, kind_of: Callable[[Manifest], str]) -> None:
        self.settings = settings
        self._kind_of = kind_of

    def check(self, manifest: Manifest, principal: Principal) -> None:
        """Raises Forbidden or BadInput."""
        check_register(principal, manifest.agent_id)
        self._check_size_and_names(manifest)
        if TRUST_RANK[principal.trust] > TRUST_RANK[manifest.trust_tier]:
            raise Forbidden(
                f"An agent of trust tier '{manifest.trust_tier}' can only be registered by callers of that tier, "
                f"and this one has '{principal.trust}': name a `trust_tier`",
                field="trust_tier",
            )
        self._check_runtime(manifest, principal.trust)

    def accepts(self, manifest: Manifest) -> bool:
        """Whether this node serves an agent that was registered somewhere, perhaps under other settings."""
        terms = read_terms(manifest)
        try:
            self._check_runtime(manifest, terms.trust if terms is not None else "public")
        except FabricError:
            return False
        return True

    def _check_runtime(self, manifest: Manifest, trust: TrustTier) -> None:
        kind = self._runtime_kind(manifest)
        if kind == "tool" or manifest.is_tool:
            raise _bad_registration(manifest, "built-in tools cannot be registered", "category")
        if self.settings.programs and trust == "local":
            return
        if kind not in self.settings.runtimes or "command" in manifest.endpoint:
            setting = "programs" if _is_program(manifest) else "runtimes"
            raise Forbidden(
                f"Agent '{manifest.agent_id}' cannot be registered with runtime '{kind}': registered agents are "
                f"reached by address only ({', '.join(self.settings.runtimes)}), and never run on this machine. "
                f"Declare it in agents.yaml, or see `registration.{setting}`",
                field="endpoint",
            )
        if not str(manifest.endpoint.get("uri", "")).startswith(("http://", "https://")):
            raise _bad_registration(
                manifest, "the endpoint needs a `uri` that begins with http:// or https://", "endpoint.uri"
            )
        if any(text.startswith("env:") for text in iterate_strings(manifest.endpoint)):
            raise Forbidden(
                f"Agent '{manifest.agent_id}' cannot be registered with `env:` in its endpoint: only this node's own "
                "files may refer to its environment",
                field="endpoint",
            )

    def _runtime_kind(self, manifest: Manifest) -> str:
        try:
            return self._kind_of(manifest)
        except FabricError as error:
            reason = error.message.removeprefix(f"agent '{manifest.agent_id}': ")
            raise _bad_registration(manifest, reason, "runtime" if manifest.runtime else "endpoint") from error

    def _check_size_and_names(self, manifest: Manifest) -> None:
        if manifest.origin is not None:  # it names a folder of this machine
            raise _bad_registration(manifest, "only the node itself says where an agent comes from", "origin")
        size = len(msgspec.json.encode(manifest))
        if size > self.settings.max_bytes:
            raise BadInput(
                f"The manifest is larger than {self.settings.max_bytes} bytes", limit=self.settings.max_bytes
            )
        if len(manifest.capabilities) > _MAX_CAPABILITIES:
            raise BadInput(f"An agent has at most {_MAX_CAPABILITIES} capabilities", field="capabilities")
        if len(manifest.display_name) > _MAX_NAME:
            raise BadInput(f"A display name has at most {_MAX_NAME} characters", field="display_name")
        if any(len(tag) > _MAX_NAME for tag in manifest.tags):
            raise BadInput(f"A tag has at most {_MAX_NAME} characters", field="tags")
        names: set[str] = set()
        for capability in manifest.capabilities:
            if normalize_name(capability.name) in names:
                raise BadInput(f"Capability '{capability.name}' is named twice", field="capabilities")
            names.add(normalize_name(capability.name))


def _is_program(manifest: Manifest) -> bool:
    return "command" in manifest.endpoint or str(manifest.endpoint.get("uri", "")).startswith("python:")


def _bad_registration(manifest: Manifest, reason: str, field: str) -> BadInput:
    return BadInput(
        f"Agent '{manifest.agent_id}' cannot be registered: {reason}", agent_id=manifest.agent_id, field=field
    )
