"""Plans a node from files and options, for `up`, `check` and `mcp`.

Secrets may be in a `.env` file beside the configuration, or in the file that --env-file names. Their values are for
references (`env:NAME`) and FABRIC_PSK alone: they do not become variables of the process or of agents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from a2a_fabric.config import Config, find_unset, load_config
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.files import read_text
from a2a_fabric.core.ports import AgentSource, load_module
from a2a_fabric.federation.locations import REGISTRY_FILE, is_federation_source, is_url
from a2a_fabric.node.context import build_source
from a2a_fabric.stores.address import build_default_address
from a2a_fabric.yamlfile import YAMLFile

CONFIG_FILE = "fabric.yaml"
AGENTS_FILE = "agents.yaml"
ENV_FILE = ".env"

_ENV_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_QUOTED = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*")\s*(?:#.*)?""")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class NodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    config: Config
    config_file: Path | None
    declared: tuple[Path | str, ...]  # where agents are declared: files and folders, which must exist, and URLs
    base: Path
    is_port_chosen: bool  # by the user, so that another free port will not do
    environ: Mapping[str, str]  # of the process, and below it the variables of env files
    imports: tuple[Path, ...] = ()  # files of MCP clients whose servers become agents
    remarks: tuple[str, ...] = ()  # for the operator

    @property
    def agents_files(self) -> tuple[Path, ...]:
        return tuple(each for each in self.declared if isinstance(each, Path))

    @property
    def manifest_files(self) -> tuple[Path, ...]:
        """Those that hold manifests, unlike folders, cards and registries."""
        return tuple(each for each in self.agents_files if not is_federation_source(each))

    @property
    def is_demo(self) -> bool:
        """Nothing is configured, so the node runs the demo agents."""
        return self.config_file is None and not self.declared and not self.imports

    @property
    def files(self) -> tuple[Path, ...]:
        return (*((self.config_file,) if self.config_file else ()), *self.agents_files)

    @property
    def own_folder(self) -> Path | None:
        """The folder of the configuration, else that of the agents; None if the node has neither."""
        own_file = self.config_file or next(iter(self.agents_files), None)
        return own_file if own_file is None or own_file.is_dir() else own_file.parent

    def with_store_in(self, folder: Path | None) -> NodeSetup:
        """A setup whose store is in this folder, or in memory; unless the configuration names a store."""
        if self.config.store is not None:
            return self
        store = "memory:" if folder is None else build_default_address(folder.absolute())
        return msgspec.structs.replace(self, config=msgspec.structs.replace(self.config, store=store))

    def build_sources(self) -> list[AgentSource]:
        sources = [build_source(each, Path(), self.config.federation) for each in self.declared]
        if self.imports:
            sources.append(load_module("a2a_fabric.importing.servers").ImportedServers(self.imports))
        return sources

    def warn_of_unset(self, agents: Iterable[Manifest]) -> list[str]:
        """A warning that names the variables to which agents refer and that are not set; empty if all are set."""
        owners: dict[str, list[str]] = {}
        for agent in agents:
            for name, _ in find_unset(agent.endpoint, self.environ):
                owners.setdefault(name, []).append(agent.agent_id)
        if not owners:
            return []
        names = ", ".join(f"{name} (for {', '.join(dict.fromkeys(agent_ids))})" for name, agent_ids in owners.items())
        env_file = (self.own_folder or Path()) / ENV_FILE
        return [f"not set: {names}. Set them in the environment or in {env_file}; until then these agents cannot work"]

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
    config_file: Path | None,
    agents_files: Sequence[str | Path],
    listen: str | None,
    environ: Mapping[str, str],
    env_file: Path | None = None,
) -> NodeSetup:
    """Raises ConfigError."""
    if config_file is None and Path(CONFIG_FILE).is_file():
        config_file = Path(CONFIG_FILE)
    declared = tuple(str(each) if is_url(str(each)) else Path(each) for each in agents_files)
    paths = [each for each in declared if isinstance(each, Path)]
    for path in paths:
        if not path.exists():  # checked before the node creates anything
            raise ConfigError(f"{path}: there is no such file or folder")
    own_file = config_file or next((each / AGENTS_FILE if each.is_dir() else each for each in paths), Path(AGENTS_FILE))
    variables, remarks = _read_env_files(env_file, own_file.parent / ENV_FILE)
    environ = {**variables, **environ}
    config = load_config(config_file, environ) if config_file else Config()
    base = config_file.parent if config_file else Path()
    is_port_chosen = listen is not None or (config_file is not None and _has_key(config_file, "listen"))
    if listen is not None:
        config = msgspec.structs.replace(config, listen=listen)
    return NodeSetup(
        config=config,
        config_file=config_file,
        declared=declared or _find_declared(config, base),
        base=base,
        is_port_chosen=is_port_chosen,
        environ=environ,
        remarks=tuple(remarks),
    )


def _read_env_files(named_file: Path | None, default_file: Path) -> tuple[dict[str, str], list[str]]:
    """The variables of both files, of which the named one wins, and remarks. Raises ConfigError.

    The default file may be another program's, so what it holds never stops the node; the named file has to be right.
    """
    variables, unreadable = _parse_env_file(default_file, read_text(default_file) or "")
    remarks = [f"{place} is not NAME=VALUE and was ignored" for place in unreadable]
    if named_file is not None:
        text = read_text(named_file)
        if text is None:
            raise ConfigError(f"{named_file}: there is no such file. Name another one with --env-file")
        named_variables, unreadable = _parse_env_file(named_file, text)
        if unreadable:
            raise ConfigError(f"{unreadable[0]} is not NAME=VALUE")
        variables |= named_variables
    return variables, remarks


def _parse_env_file(path: Path, text: str) -> tuple[dict[str, str], list[str]]:
    """The variables, and the places of lines that cannot be read. A value may be in quotes; nothing is expanded."""
    variables: dict[str, str] = {}
    unreadable: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _ENV_LINE.fullmatch(line)
        value = None if match is None else _parse_env_value(match[2])
        if match is None or value is None:
            unreadable.append(f"{path}:{number}")
        else:
            variables[match[1]] = value
    return variables, unreadable


def _parse_env_value(text: str) -> str | None:
    """None for a quote that is not closed."""
    if not text.startswith(("'", '"')):
        return re.split(r"\s+#", text, maxsplit=1)[0].strip() if not text.startswith("#") else ""
    match = _QUOTED.fullmatch(text)
    if match is None:
        return None
    inner = match[1][1:-1]
    return inner if text[0] == "'" else re.sub(r"\\(.)", lambda each: _ESCAPES.get(each[1], each[1]), inner)


def _find_declared(config: Config, base: Path) -> tuple[Path | str, ...]:
    """What the configuration names; else the default file and a registry, if they exist."""
    if config.agents == Config().agents:
        return tuple(path for path in (base / name for name in (*config.agents, REGISTRY_FILE)) if path.exists())
    return tuple(name if is_url(name) else base / name for name in config.agents)


def _has_key(config_file: Path, key: str) -> bool:
    value = YAMLFile.read(config_file).value
    return isinstance(value, dict) and key in value
