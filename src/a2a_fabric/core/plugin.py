"""How a package declares a door, a runtime or a store that a node can use.

    plugin = RuntimePlugin(build=build)

An entry point of the group `a2a_fabric.doors`, `a2a_fabric.runtimes` or `a2a_fabric.stores` names such a
value; the name of the entry point is the `kind` that operators write. The contexts are type parameters,
because they belong to the packages that hand them out: `DoorContext` and `RuntimeContext` of `a2a_fabric`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.ports import Runtime
from a2a_fabric.core.stores import Store

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)
ContextT = TypeVar("ContextT")
DoorT = TypeVar("DoorT")


class NoSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a door that has none: every key besides `kind` is refused."""


@dataclass(frozen=True, kw_only=True)
class DoorPlugin(Generic[SettingsT, ContextT, DoorT]):
    """`settings` is the struct into which the door's table in `fabric.yaml` is decoded, `kind` left out."""

    settings: type[SettingsT]
    build: Callable[[SettingsT, ContextT], DoorT]


@dataclass(frozen=True, kw_only=True)
class RuntimePlugin(Generic[ContextT]):
    """`build` raises BadInput for an endpoint that it cannot use. It connects to nothing: the first call does."""

    build: Callable[[Manifest, ContextT], Runtime]


@dataclass(frozen=True, kw_only=True)
class StorePlugin:
    """`build` opens the store at an address such as `kind:PATH`. Raises StoreError if it cannot be used."""

    build: Callable[[str], Awaitable[Store]]
