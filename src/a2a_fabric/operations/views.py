"""JSON views of agents, tools and routing plans for callers. They contain no secret of a manifest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Health, Manifest, normalize_name
from a2a_fabric.core.call import Principal
from a2a_fabric.core.disclosure import (
    redact_endpoint,
    redact_health_reason,
    redact_metadata,
    redact_origin,
    redact_reason,
)
from a2a_fabric.core.policy import find_verdict, is_limited
from a2a_fabric.core.registration import HealthCheck, Registration
from a2a_fabric.core.routing import RoutePlan
from a2a_fabric.registry.agent_tools import AgentToolReport
from a2a_fabric.registry.registration_policy import TERMS_KEY, read_terms

CHANGED_KEY = "changed_since_approval"


def render_agent_item(
    manifest: Manifest, health: Health, principal: Principal, runtime: str | None = None
) -> dict[str, Any]:
    """An entry of a list of agents. `runtime` is the detected runtime, used if the manifest declares none."""
    item: dict[str, Any] = {
        "agent_id": manifest.agent_id,
        "display_name": manifest.display_name or manifest.agent_id,
        "version": manifest.version or "0.0.0",
        "status": health.status,
        "description": manifest.description,
        "node_id": manifest.node_id,
        "runtime": manifest.runtime or runtime,
        "endpoint": redact_endpoint(manifest, principal),
        "capabilities": [render_capability_item(c) for c in manifest.capabilities],
        "trust_tier": manifest.trust_tier,
        "tags": list(manifest.tags),
    }
    if health.error is not None:
        item["error"] = redact_health_reason(health, principal)
    return {**item, **render_profile(manifest)}


def render_profile(manifest: Manifest) -> dict[str, Any]:
    """What a card says of an agent besides its skills; nothing for an agent that says nothing of it."""
    profile: dict[str, Any] = {
        "role": manifest.role,
        "audience": manifest.audience,
        "signals": list(manifest.signals),
        "provider": None if manifest.provider is None else msgspec.to_builtins(manifest.provider),
    }
    return {name: value for name, value in profile.items() if value}


def render_profile_metadata(manifest: Manifest) -> dict[str, Any]:
    """The same in the words of a card, for the metadata of an agent in the formats of other doors."""
    profile = {
        "role": manifest.role,
        "context": manifest.audience,
        "signals": list(manifest.signals),
        "provider": None if manifest.provider is None else manifest.provider.name,
    }
    return {name: value for name, value in profile.items() if value}


def render_agent(
    manifest: Manifest, health: Health, principal: Principal, runtime: str | None = None
) -> dict[str, Any]:
    """All that a caller may know about an agent, with the schemas of its capabilities."""
    details = render_agent_item(manifest, health, principal, runtime)
    details["capabilities"] = [render_capability(c) for c in manifest.capabilities]
    details["fallbacks"] = list(manifest.fallbacks)
    details["pool"] = manifest.pool
    details["metadata"] = render_metadata(manifest, principal)
    for name in ("dependencies", "coordination", "observability"):
        if (block := getattr(manifest, name)) is not None:
            details[name] = msgspec.to_builtins(block)
    if is_limited(principal):  # the card may name agents that this caller may not know
        for name, key in (("dependencies", "agents"), ("coordination", "rules")):
            details.get(name, {}).pop(key, None)
    if manifest.takes_tasks:
        details["takes_tasks"] = True
    if manifest.origin is not None:
        details["origin"] = redact_origin(manifest.origin, principal)
    for name in ("delegate_id", "cog_id", "realm"):
        value = getattr(manifest, name)
        if value is not None:
            details[name] = value
    details["health"] = {
        "status": health.status,
        "consecutive_failures": health.failures,
        "latency_ms": None if health.latency is None else round(health.latency * 1000, 3),
        "last_seen_at": health.seen_at,
        "error": redact_health_reason(health, principal),
    }
    return details


def render_metadata(manifest: Manifest, principal: Principal) -> dict[str, Any]:
    metadata = {key: value for key, value in manifest.metadata.items() if key != TERMS_KEY}
    return redact_metadata(metadata, principal)


def flag_changed_tools(details: dict[str, Any], report: AgentToolReport) -> None:
    """Mark the capabilities whose text changed since the operator approved it, and name those that are held back."""
    for capability in details["capabilities"]:
        if normalize_name(capability["name"]) in report.changed_names:
            capability[CHANGED_KEY] = True
    if report.is_held:
        details["held_tools"] = [change.name for change in report.changes]


def render_registration(row: Registration) -> dict[str, Any]:
    """The owner and the lease of an agent that was registered at run time."""
    terms = read_terms(row.manifest)
    return {
        "owner": row.owner,
        "version": row.manifest.version,
        "revision": row.revision,
        "registered_at": row.registered_at,
        "updated_at": row.updated_at,
        "last_seen_at": row.seen_at,
        "lease_seconds": None if row.lease_until is None else round(row.lease_until - row.seen_at, 3),
        "lease_until": row.lease_until,
        "renewed_by_checks": terms is not None and terms.checks_renew,
    }


def render_health_check(check: HealthCheck, principal: Principal) -> dict[str, Any]:
    return {
        "status": check.status,
        "checked_at": check.checked_at,
        "latency_ms": None if check.latency is None else round(check.latency * 1000, 3),
        "error": redact_reason(check.error, check.status, principal),
        "node_id": check.node_id,
    }


def render_capability_item(capability: Capability) -> dict[str, Any]:
    item: dict[str, Any] = {
        "name": capability.name,
        "description": capability.description,
        "streaming": capability.streaming,
        "modalities": list(capability.modalities),
    }
    return {**item, "triggers": list(capability.triggers)} if capability.triggers else item


def render_capability(capability: Capability) -> dict[str, Any]:
    # The published client accepts a number or a missing key here, but not null.
    bounds = {} if capability.max_timeout_ms is None else {"max_timeout_ms": capability.max_timeout_ms}
    return {
        **render_capability_item(capability),
        **bounds,
        **({"default": True} if capability.default else {}),
        **({"title": capability.title} if capability.title else {}),
        **({"metadata": capability.metadata} if capability.metadata else {}),
        "input_schema": capability.input_schema or {},
        "output_schema": capability.output_schema or {},
        "idempotent": capability.idempotent,
        "deterministic": capability.deterministic,
        "side_effects": capability.side_effects,
        "triggers": list(capability.triggers),
    }


def render_tool_item(manifest: Manifest) -> dict[str, Any]:
    capability = manifest.capabilities[0]
    return {
        "tool_id": manifest.agent_id,
        "name": f"fabric.tool.{manifest.agent_id}",
        "display_name": manifest.display_name or manifest.agent_id,
        "description": manifest.description or capability.description,
        "provider": "builtin",
        "category": manifest.category,
        "trust_tier": manifest.trust_tier,
        "enabled": manifest.metadata.get("enabled", True),
        "deterministic": capability.deterministic,
        "side_effects": capability.side_effects,
        "capabilities": [render_capability_item(c) for c in manifest.capabilities],
    }


def render_agent_tool_item(manifest: Manifest, capability: Capability) -> dict[str, Any]:
    """A capability of an agent, shown as a tool."""
    tool_id = f"agent.{manifest.agent_id}.{capability.name}"
    return {
        "tool_id": tool_id,
        "name": f"fabric.tool.{tool_id}",
        "display_name": f"{manifest.display_name or manifest.agent_id}: {capability.name}",
        "description": capability.description or manifest.description,
        "provider": "agent",
        "category": f"agent:{manifest.agent_id}",
        "trust_tier": manifest.trust_tier,
        "enabled": True,
        "deterministic": bool(capability.deterministic),
        "side_effects": capability.side_effects or "writes",  # an undeclared capability may have any side effect
        "capabilities": [render_capability_item(capability)],
    }


def render_plan(
    plan: RoutePlan, find_runtime_kind: Callable[[Manifest], str | None], principal: Principal
) -> dict[str, Any]:
    """The plan that a call would follow right now."""
    first = plan.candidates[0]
    verdict = find_verdict(principal, first.manifest, plan.capability)
    rule = {} if verdict is None or verdict.rule is None else {"rule": verdict.rule}
    return {
        "agent_id": plan.agent_id,
        "capability": plan.capability,
        "selected_agent": first.manifest.agent_id,
        "selected_runtime": {
            **redact_endpoint(first.manifest, principal),
            "adapter": find_runtime_kind(first.manifest),
        },
        "policy": {"allowed": True, "reason": plan.skipped or first.reason, **rule},
        "fallbacks": [
            {
                "agent_id": candidate.manifest.agent_id,
                "node_id": candidate.manifest.node_id,
                "tier": candidate.tier,
                "reason": candidate.reason,
                "priority": priority,
                "streaming": candidate.stream,
            }
            for priority, candidate in enumerate(plan.candidates[1:], start=1)
        ],
        "refused": [{"agent_id": refusal.agent_id, "reason": refusal.reason} for refusal in plan.refused],
    }
