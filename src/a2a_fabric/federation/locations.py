"""Which entries of `agents` are cards, registries or folders of agents; what reads them is loaded when there is one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.federation import WordRouting
from a2a_fabric.core.ports import load_module
from a2a_fabric.outbound.port import HTTPClient

CARD_FILE = "agent.json"
REGISTRY_FILE = "registry.json"
GIT_RUNTIME = "git"  # the runtime of an agent whose own runtime its clone names


@runtime_checkable
class FederatedSource(Protocol):
    """What the node knows of a `FederationSource`, also before that is loaded."""

    http: HTTPClient | None

    @property
    def problems(self) -> Mapping[str, str]: ...

    @property
    def word_routing(self) -> WordRouting: ...


def is_url(location: str) -> bool:
    return location.startswith(("http://", "https://"))


def is_federation_source(location: str | Path) -> bool:
    """Whether an entry of `agents` is a folder, a card, a registry or a URL, and not a file of manifests.

    Manifests may be written as JSON, too; a registry has a version.
    """
    path = Path(location)
    if is_url(str(location)) or path.is_dir() or path.name in (CARD_FILE, REGISTRY_FILE):
        return True
    if path.suffix != ".json":
        return False
    json_file = load_module("a2a_fabric.federation.json_file")
    try:
        value = json_file.JSONFile.load(path, json_file.MAX_REGISTRY_BYTES).value
    except ConfigError:
        return "registry" in path.name
    return isinstance(value, dict) and "version" in value
