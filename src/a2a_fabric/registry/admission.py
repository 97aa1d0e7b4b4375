"""May this caller let this agent join? Decided purely, from the manifest, the caller and the operator's settings.

Registering a program is running code on this machine, and an `env:` reference
would hand one of the node's secrets to whoever wrote the manifest. Both are for
trusted callers only, and only where the operator said so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from a2a_fabric.core.agent import TRUST_RANK, Manifest, TrustTier, fold
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import BadInput, FabricError, Forbidden
from a2a_fabric.core.policy import check_register
from a2a_fabric.registry.terms import RegistrationSettings, terms_of

_MOST_CAPABILITIES = 1000


class Admission:
    """`kind_of` names the runtime that a manifest asks for; it raises FabricError if there is none such."""

    def __init__(self, settings: RegistrationSettings, kind_of: Callable[[Manifest], str]) -> None:
        self.settings = settings
        self._kind_of = kind_of

    def check(self, manifest: Manifest, principal: Principal) -> None:
        """Raises Forbidden or BadInput."""
        check_register(principal, manifest.agent_id)
        self._check_form(manifest)
        if TRUST_RANK[principal.trust] > TRUST_RANK[manifest.trust_tier]:
            raise Forbidden(
                f"An agent of trust tier '{manifest.trust_tier}' can only be registered by callers of that tier, "
                f"and this one has '{principal.trust}': name a `trust_tier`",
                field="trust_tier",
            )
        self._check_kind(manifest, principal.trust)

    def accepts(self, manifest: Manifest) -> bool:
        """Whether this node serves an agent that was registered somewhere, perhaps under other settings."""
        terms = terms_of(manifest)
        try:
            self._check_kind(manifest, terms.trust if terms is not None else "public")
        except FabricError:
            return False
        return True

    def _check_kind(self, manifest: Manifest, trust: TrustTier) -> None:
        kind = self._kind(manifest)
        if kind == "tool" or manifest.is_tool:
            raise _bad(manifest, "built-in tools cannot be registered", "category")
        if self.settings.programs and trust == "local":
            return
        if kind not in self.settings.runtimes or "command" in manifest.endpoint:
            where = "programs" if _is_program(manifest) else "runtimes"
            raise Forbidden(
                f"Agent '{manifest.agent_id}' cannot be registered with runtime '{kind}': registered agents are "
                f"reached by address only ({', '.join(self.settings.runtimes)}), and never run on this machine. "
                f"Declare it in agents.yaml, or see `registration.{where}`",
                field="endpoint",
            )
        if not str(manifest.endpoint.get("uri", "")).startswith(("http://", "https://")):
            raise _bad(manifest, "the endpoint needs a `uri` that begins with http:// or https://", "endpoint.uri")
        if any(text.startswith("env:") for text in _texts(manifest.endpoint)):
            raise Forbidden(
                f"Agent '{manifest.agent_id}' cannot be registered with `env:` in its endpoint: only this node's own "
                "files may refer to its environment",
                field="endpoint",
            )

    def _kind(self, manifest: Manifest) -> str:
        try:
            return self._kind_of(manifest)
        except FabricError as error:
            why = error.message.removeprefix(f"agent '{manifest.agent_id}': ")
            raise _bad(manifest, why, "runtime" if manifest.runtime else "endpoint") from error

    def _check_form(self, manifest: Manifest) -> None:
        size = len(msgspec.json.encode(manifest))
        if size > self.settings.max_bytes:
            raise BadInput(
                f"The manifest is larger than {self.settings.max_bytes} bytes", limit=self.settings.max_bytes
            )
        if len(manifest.capabilities) > _MOST_CAPABILITIES:
            raise BadInput(f"An agent has at most {_MOST_CAPABILITIES} capabilities", field="capabilities")
        names: set[str] = set()
        for capability in manifest.capabilities:
            if fold(capability.name) in names:
                raise BadInput(f"Capability '{capability.name}' is named twice", field="capabilities")
            names.add(fold(capability.name))


def _is_program(manifest: Manifest) -> bool:
    return "command" in manifest.endpoint or str(manifest.endpoint.get("uri", "")).startswith("python:")


def _bad(manifest: Manifest, why: str, field: str) -> BadInput:
    return BadInput(f"Agent '{manifest.agent_id}' cannot be registered: {why}", agent_id=manifest.agent_id, field=field)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
