"""The settings of `mesh` in `fabric.yaml`."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Audience, TrustTier

MESH_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
NODE_NAME = re.compile(MESH_NAME_PATTERN)


class SharedAgents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which agents cross the border of a site. What a list does not restrict is unset."""

    agents: Annotated[tuple[str, ...] | None, Meta(description="Ids of agents, with `*` and `?`. Unset: all.")] = None
    tags: Annotated[tuple[str, ...] | None, Meta(description="Only agents with one of these tags. Unset: all.")] = None
    tiers: Annotated[
        tuple[TrustTier, ...] | None, Meta(description="Only agents of these trust tiers. Unset: all.")
    ] = None
    audiences: Annotated[
        tuple[Audience, ...] | None,
        Meta(description="Only agents for these audiences, and those that name none. Unset: all."),
    ] = None


class DirectSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls to nodes that say where they are reached go there over HTTP instead of over NATS."""

    url: Annotated[
        str | None,
        Meta(
            description="Where other nodes reach the port of this node, such as https://berlin-1.example:8000; http:// "
            "only on loopback. Unset: this node calls others directly, and is called over NATS."
        ),
    ] = None
    ca: Annotated[
        str | None,
        Meta(description="File of the authority that signed the certificates of the nodes. Unset: the system's."),
    ] = None


class MeshSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that announce themselves on the same NATS system under the same name are one mesh."""

    nats: Annotated[
        str,
        Meta(description="Address of NATS, such as nats://127.0.0.1:4222; credentials as for `store: nats://…`."),
    ]
    name: Annotated[str, Meta(pattern=MESH_NAME_PATTERN, max_length=64, description="The name of the mesh.")] = "fabric"
    site: Annotated[
        str,
        Meta(
            pattern=MESH_NAME_PATTERN,
            max_length=64,
            description="Where this node is; agents of its own site come first.",
        ),
    ] = "default"
    key: Annotated[
        Annotated[str, Meta(min_length=16)] | None,
        Meta(
            description="A secret that all nodes of the mesh share, as env:NAME. With it, what nodes send each other "
            "is signed. Unset: every client of this NATS is trusted as a node, so only NATS on loopback does without.",
        ),
    ] = None
    exports: Annotated[
        SharedAgents, Meta(description="Which agents of this node other sites see. Nodes of the same site see all.")
    ] = SharedAgents()
    imports: Annotated[SharedAgents, Meta(description="Which agents of other sites this node takes in.")] = (
        SharedAgents()
    )
    direct: Annotated[
        DirectSettings | None,
        Meta(description="Calls between nodes over HTTP, where nodes reach each other. Unset: over NATS."),
    ] = None
    heartbeat_seconds: Annotated[
        float,
        Meta(ge=0.1, le=60, description="How often a node announces itself. Silent for four of these, it is gone."),
    ] = 1.0
