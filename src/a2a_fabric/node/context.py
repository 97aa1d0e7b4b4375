"""What all parts of a node are built from: its settings, its store, its telemetry, and where its files are."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from a2a_fabric import plugins
from a2a_fabric.config import Config, LogSettings, StoreTable
from a2a_fabric.core.active_policy import ActivePolicy
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.callbacks import Callbacks
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.guards import ActiveGuard, Guards, GuardSettings
from a2a_fabric.core.ports import AgentSource, load_module
from a2a_fabric.core.spans import CallStore
from a2a_fabric.core.stores import Store
from a2a_fabric.doors.context import TLSFiles
from a2a_fabric.federation.locations import is_federation_source, is_url
from a2a_fabric.federation.settings import FederationSettings
from a2a_fabric.node.limits import NodeLimits
from a2a_fabric.registry.sources.files import AgentsFile
from a2a_fabric.stores.address import build_default_address, kind_from_address, resolve_address
from a2a_fabric.telemetry.history import CallHistory, HistoryPruner
from a2a_fabric.telemetry.log import LogStream, LogWriter, capture_log_records
from a2a_fabric.telemetry.log_file import LogFile
from a2a_fabric.telemetry.metrics import Metrics
from a2a_fabric.telemetry.observer import Telemetry
from a2a_fabric.telemetry.recorder import SpanRecorder, build_export, build_sampler
from a2a_fabric.version import __version__

if TYPE_CHECKING:
    from a2a_fabric.mesh.peers import Peers
    from a2a_fabric.semantic.matcher import SemanticMatcher


class NodeContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a part has to close goes on `stack`; the parts are closed in reverse order."""

    config: Config
    base: Path
    environ: Mapping[str, str]
    stack: AsyncExitStack
    store: Store
    store_address: str
    telemetry: Telemetry
    call_history: CallHistory | None
    recorder: SpanRecorder | None
    guards: Guards
    policy: ActivePolicy
    limits: NodeLimits
    callbacks: Callbacks
    peers: Peers | None
    session_file: Path | None = None
    is_serving: bool = True

    @property
    def owner_tag(self) -> str:
        """The end of ids that this process gives out, if there are others that requests for them may reach."""
        return "" if self.peers is None else self.peers.owner_tag


def build_guards(settings: Sequence[GuardSettings]) -> Guards:
    """Raises ConfigError."""
    return Guards([_build_guard(each) for each in settings])


def _build_guard(settings: GuardSettings) -> ActiveGuard:
    try:
        return ActiveGuard(settings, plugins.build_guard(settings.kind, settings.options))
    except ConfigError as exc:
        raise ConfigError(f"guards: {settings.name}: {exc.message}") from exc


def resolve_store_address(config: Config, base: Path | None) -> str:
    """As configured; else a file beside the configuration, or memory for a node without a folder."""
    if config.store is None:
        return "memory:" if base is None else build_default_address(base)
    address = config.store.address if isinstance(config.store, StoreTable) else config.store
    return resolve_address(address, base or Path.cwd())


def build_source(location: str | Path, base: Path, settings: FederationSettings) -> AgentSource:
    """The source of one entry of `agents`: a file of manifests, or a folder, a card, a registry, or a URL."""
    place = str(location) if is_url(str(location)) else base / location
    if is_federation_source(place):
        source: AgentSource = load_module("a2a_fabric.federation.source").FederationSource(place, settings)
        return source
    path = Path(place)
    # The default file may be missing. One that was there and is deleted is a mistake: its agents stay.
    return AgentsFile(path, optional=str(location) == "agents.yaml" and not path.exists())


async def open_store(address: str) -> Store:
    """Raises ConfigError for an unknown kind, StoreError for a store that cannot be used."""
    return await plugins.load_store(kind_from_address(address)).build(address)


def resolve_tls_files(base: Path, config: Config) -> TLSFiles | None:
    """Raises ConfigError."""
    files = config.tls
    if files is None or files == "required":
        return None
    if files.client_certificates != "off" and files.client_ca is None:
        raise ConfigError("tls: client_certificates needs `client_ca`, a file with the authorities that sign them")
    return TLSFiles(
        cert=base / files.cert,
        key=base / files.key,
        password=files.password,
        client_certificates=files.client_certificates,
        client_ca=None if files.client_ca is None else base / files.client_ca,
    )


def _open_log_writer(settings: LogSettings, base: Path, stream: IO[str] | None, stack: AsyncExitStack) -> LogWriter:
    target: LogStream = stream or sys.stderr
    if settings.file is not None:
        try:
            target = LogFile(base / settings.file, settings.max_bytes, settings.keep_files)
        except OSError as exc:
            raise ConfigError(f"log.file: {settings.file}: {exc.strerror}") from exc
        stack.callback(target.close)
    as_text = settings.format == "text" or (settings.format == "auto" and target.isatty())
    writer = LogWriter(target, as_text=as_text, level=settings.level)
    stack.callback(writer.close)
    return writer


def build_telemetry(
    settings: LogSettings,
    base: Path,
    stream: IO[str] | None,
    stack: AsyncExitStack,
    find_agent: Callable[[str], Manifest | None],
) -> Telemetry:
    """From now on, what the node and its libraries log goes to the node's log. Raises ConfigError."""
    writer = _open_log_writer(settings, base, stream, stack)
    stack.enter_context(capture_log_records(writer))
    metrics = Metrics(__version__)
    metrics.add_source(writer.render_metrics)
    return Telemetry(writer, metrics, find_agent, payloads=settings.payloads)


def build_history_pruner(config: Config, store: Store) -> HistoryPruner | None:
    """None if the store is a plug-in's that keeps no calls."""
    calls: CallStore | None = getattr(store, "calls", None)
    return None if calls is None else HistoryPruner(calls, config.history)


def build_call_history(
    config: Config, store: Store, metrics: Metrics, pruner: HistoryPruner | None
) -> CallHistory | None:
    """None if it is switched off, or the store keeps no calls."""
    if not config.history.enabled or pruner is None:
        return None
    history = CallHistory(store.calls, config.history, config.node_id, pruner)
    metrics.add_source(history.render_metrics)
    return history


def build_recorder(
    config: Config,
    environ: Mapping[str, str],
    history: CallHistory | None,
    metrics: Metrics,
    stack: AsyncExitStack,
) -> SpanRecorder | None:
    """None if neither the history nor a collector wants recordings of calls. Raises ConfigError."""
    export = build_export(config.tracing, environ, config.node_id)
    if export is not None:
        stack.push_async_callback(asyncio.to_thread, export.close)
        metrics.add_source(export.render_metrics)
    if history is None and export is None:
        return None
    sampler = build_sampler(config.tracing, environ)
    return SpanRecorder(history, export, sampler, config.node_id)


def build_matcher(settings: FederationSettings, base: Path, stack: AsyncExitStack) -> SemanticMatcher | None:
    """Raises ConfigError if the model, or what computes it, is not installed."""
    if settings.semantic is None:
        return None
    semantic = load_module("a2a_fabric.semantic.matcher")
    matcher: SemanticMatcher = semantic.SemanticMatcher(settings.semantic, semantic.find_model(settings.semantic, base))
    stack.push_async_callback(matcher.aclose)
    return matcher
