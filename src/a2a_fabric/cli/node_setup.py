"""Plans a node from files and options, for `up`, `check` and `mcp`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from a2a_fabric.config import Config, load_config
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.ports import AgentSource
from a2a_fabric.importing.agents import ImportedServers
from a2a_fabric.registry.sources.files import AgentsFile
from a2a_fabric.stores.address import build_default_address
from a2a_fabric.yamlfile import YAMLFile

CONFIG_FILE = "fabric.yaml"
AGENTS_FILE = "agents.yaml"


class NodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    config: Config
    config_file: Path | None
    agents_files: tuple[Path, ...]  # files that exist or must exist
    base: Path
    is_port_chosen: bool  # by the user, so that another free port will not do
    imports: tuple[Path, ...] = ()  # files of MCP clients whose servers become agents

    @property
    def is_demo(self) -> bool:
        """Nothing is configured, so the node runs the demo agents."""
        return self.config_file is None and not self.agents_files and not self.imports

    @property
    def own_folder(self) -> Path | None:
        """The folder of the configuration, else that of the agents file; None if the node has neither."""
        own_file = self.config_file or next(iter(self.agents_files), None)
        return own_file.parent if own_file is not None else None

    def with_store_in(self, folder: Path | None) -> NodeSetup:
        """A setup whose store is in this folder, or in memory; unless the configuration names a store."""
        if self.config.store is not None:
            return self
        store = "memory:" if folder is None else build_default_address(folder.absolute())
        return msgspec.structs.replace(self, config=msgspec.structs.replace(self.config, store=store))

    def build_sources(self) -> list[AgentSource]:
        imported: list[AgentSource] = [ImportedServers(self.imports)] if self.imports else []
        return [*(AgentsFile(path) for path in self.agents_files), *imported]

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Put the file, and the line of the key that the error names, in front of a ConfigError."""
        try:
            yield
        except ConfigError as exc:
            if self.config_file is None:
                raise
            key, _, message = exc.message.partition(": ")
            if _has_key(self.config_file, key.partition(".")[0]):
                raise YAMLFile.read(self.config_file).error(message, tuple(key.split("."))) from exc
            raise ConfigError(f"{self.config_file}: {exc.message}") from exc


def plan_setup(
    config_file: Path | None, agents_files: Sequence[Path], listen: str | None, environ: Mapping[str, str]
) -> NodeSetup:
    """Raises ConfigError."""
    if config_file is None and Path(CONFIG_FILE).is_file():
        config_file = Path(CONFIG_FILE)
    for path in agents_files:
        if not path.is_file():  # checked before the node creates anything
            raise ConfigError(f"{path}: {'is a folder' if path.is_dir() else 'there is no such file'}")
    config = load_config(config_file, environ) if config_file else Config()
    base = config_file.parent if config_file else Path()
    is_port_chosen = listen is not None or (config_file is not None and _has_key(config_file, "listen"))
    if listen is not None:
        config = msgspec.structs.replace(config, listen=listen)
    return NodeSetup(
        config=config,
        config_file=config_file,
        agents_files=tuple(agents_files) or _find_agents_files(config, base),
        base=base,
        is_port_chosen=is_port_chosen,
    )


def _find_agents_files(config: Config, base: Path) -> tuple[Path, ...]:
    """The files that the configuration names; the default file only if it exists."""
    paths = tuple(base / name for name in config.agents)
    return paths if config.agents != Config().agents else tuple(path for path in paths if path.exists())


def _has_key(config_file: Path, key: str) -> bool:
    value = YAMLFile.read(config_file).value
    return isinstance(value, dict) and key in value
