"""A manifest completed with what the agent says of itself. What was written down by hand always wins."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from a2a_fabric.core.agent import Capability, Manifest, fold


def complete(manifest: Manifest, published: Manifest) -> Manifest:
    return replace(
        manifest,
        display_name=manifest.display_name or published.display_name,
        description=manifest.description or published.description,
        version=manifest.version or published.version,
        tags=manifest.tags or published.tags,
        capabilities=_capabilities(manifest.capabilities, published.capabilities),
    )


def _capabilities(declared: Sequence[Capability], published: Sequence[Capability]) -> tuple[Capability, ...]:
    """Those declared, their gaps filled; all that are published if none is declared."""
    by_name = {fold(capability.name): capability for capability in published}
    return tuple(_filled(each, by_name.get(fold(each.name))) for each in declared) or tuple(published)


def _filled(declared: Capability, published: Capability | None) -> Capability:
    if published is None:
        return declared
    return replace(
        declared,
        description=declared.description or published.description,
        input_schema=declared.input_schema if declared.input_schema is not None else published.input_schema,
        output_schema=declared.output_schema if declared.output_schema is not None else published.output_schema,
        streaming=declared.streaming or published.streaming,
        idempotent=declared.idempotent if declared.idempotent is not None else published.idempotent,
        max_timeout_ms=declared.max_timeout_ms or published.max_timeout_ms,
    )
