"""From files and options to what a node would run: shared by `up`, which runs it, and `check`, which only looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from a2a_fabric.config import Config, load
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.ports import AgentSource
from a2a_fabric.importing.source import ImportedServers
from a2a_fabric.registry.files import AgentsFile
from a2a_fabric.stores.address import beside
from a2a_fabric.yamlfile import YAMLFile

CONFIG_FILE = "fabric.yaml"
AGENTS_FILE = "agents.yaml"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    config: Config
    config_file: Path | None
    agents_files: tuple[Path, ...]  # those that exist, or must
    base: Path
    is_port_chosen: bool  # by the user; then no other will do
    imports: tuple[Path, ...] = ()  # files of MCP clients whose servers are agents too

    @property
    def is_demo(self) -> bool:
        """Nothing is configured, so there is nothing but the demo fleet to run."""
        return self.config_file is None and not self.agents_files and not self.imports

    @property
    def home(self) -> Path | None:
        """The folder that is the node's own: that of its configuration, else that of its agents; None for a demo."""
        own = self.config_file or next(iter(self.agents_files), None)
        return own.parent if own is not None else None

    def keeping(self, folder: Path | None) -> Setup:
        """The same with jobs kept in this folder, or in memory only; unless the configuration says where."""
        if self.config.store is not None:
            return self
        store = "memory:" if folder is None else beside(folder.absolute())
        return msgspec.structs.replace(self, config=msgspec.structs.replace(self.config, store=store))

    def sources(self) -> list[AgentSource]:
        imported: list[AgentSource] = [ImportedServers(self.imports)] if self.imports else []
        return [*(AgentsFile(path) for path in self.agents_files), *imported]

    @contextmanager
    def located(self) -> Iterator[None]:
        """What the node says about its configuration gets the file and, if it names a key, the line in front."""
        try:
            yield
        except ConfigError as exc:
            if self.config_file is None:
                raise
            key, _, what = exc.message.partition(": ")
            if _names(self.config_file, key.partition(".")[0]):
                raise YAMLFile.read(self.config_file).error(what, tuple(key.split("."))) from exc
            raise ConfigError(f"{self.config_file}: {exc.message}") from exc


def plan(
    config_file: Path | None, agents_files: Sequence[Path], listen: str | None, environ: Mapping[str, str]
) -> Setup:
    """Raises ConfigError."""
    if config_file is None and Path(CONFIG_FILE).is_file():
        config_file = Path(CONFIG_FILE)
    for path in agents_files:
        if not path.is_file():  # said before anything is made beside it
            raise ConfigError(f"{path}: {'is a folder' if path.is_dir() else 'there is no such file'}")
    config = load(config_file, environ) if config_file else Config()
    base = config_file.parent if config_file else Path()
    chosen = listen is not None or (config_file is not None and _names(config_file, "listen"))
    if listen is not None:
        config = msgspec.structs.replace(config, listen=listen)
    return Setup(
        config=config,
        config_file=config_file,
        agents_files=tuple(agents_files) or _configured(config, base),
        base=base,
        is_port_chosen=chosen,
    )


def _configured(config: Config, base: Path) -> tuple[Path, ...]:
    """The files that the configuration names; the default one only if it is there."""
    paths = tuple(base / name for name in config.agents)
    return paths if config.agents != Config().agents else tuple(path for path in paths if path.exists())


def _names(config_file: Path, key: str) -> bool:
    value = YAMLFile.read(config_file).value
    return isinstance(value, dict) and key in value
