"""Builds what operators see and change of a node, from its parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from a2a_fabric.admin.activity import Activity
from a2a_fabric.admin.log_lines import NodeLog, RecentLog
from a2a_fabric.admin.node import Node
from a2a_fabric.admin.operations import AdminOperations
from a2a_fabric.admin.processes import WORKERS_CHECK, Processes, ProcessesCheck
from a2a_fabric.config import Config, parse_listen
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.core.ports import AgentSource, load_module
from a2a_fabric.core.stores import Store
from a2a_fabric.gateway import Gateway
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.node.exposure import list_exposure_warnings, list_name_warnings, list_view_warnings
from a2a_fabric.node.settings_reload import SettingsReload
from a2a_fabric.operations import Operations
from a2a_fabric.operations.operation import ADMIN_PREFIX
from a2a_fabric.registry.health_monitor import HealthMonitor
from a2a_fabric.registry.registration import Registrar
from a2a_fabric.registry.runtime_pool import RuntimePool
from a2a_fabric.registry.sources.files import AgentsFile
from a2a_fabric.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from a2a_fabric.admin.agent_files import AgentFiles


def build_admin(
    settings: SettingsReload,
    *,
    gateway: Gateway,
    operations: Operations,
    registrar: Registrar,
    jobs: Jobs,
    store: Store,
    store_address: str,
    sources: Sequence[AgentSource],
    runtime_pool: RuntimePool,
    health_monitor: HealthMonitor,
    metrics: Metrics,
    log: RecentLog,
    environ: Mapping[str, str],
    base: Path,
    psk: str | None,
    processes: Processes,
) -> Node:
    """The node as operators see it. Its operations join the others, and `activity.run` has to be started."""
    config = settings.running
    files = [source for source in sources if isinstance(source, AgentsFile)]
    node = Node(
        get_config=lambda: settings.running,
        gateway=gateway,
        registrar=registrar,
        jobs=jobs,
        store=store,
        store_address=store_address,
        load_files=lambda: _load_files(files, environ, base, config),
        activity=Activity(metrics),
        log=NodeLog(log, processes, lambda: node.is_stopping),
        find_breaker=runtime_pool.find_breaker,
        probe_soon=health_monitor.probe_soon,
        reload_file=_make_reload(gateway, files),
        list_warnings=lambda: [
            *list_exposure_warnings(settings.running),
            *list_name_warnings(settings.running),
            *list_view_warnings(settings.running.views, gateway.registry.catalog.agents),
        ],
        processes=processes,
        secrets=[secret for secret in (config.auth.psk, psk) if secret],
    )
    if not processes.is_single:
        gateway.node_health.add_remote_check(WORKERS_CHECK, ProcessesCheck(processes, gateway.node_health))
    operations.add_unlisted(AdminOperations(node).all())
    # The history itself decides what a caller sees of it.
    for name, shared in (("calls", "fabric.call.list"), ("trace", "fabric.trace.get")):
        operations.add_unlisted(each.rename(ADMIN_PREFIX + name) for each in operations.list_named(shared))
    return node


def _load_files(files: Sequence[AgentsFile], environ: Mapping[str, str], base: Path, config: Config) -> AgentFiles:
    """Most starts of a node are not followed by a change of its files, so the module is loaded by the first use."""
    module = load_module("a2a_fabric.admin.agent_files")
    built: AgentFiles = module.AgentFiles(
        [source.path for source in files], environ, base, may_run_programs=_may_run_programs(config)
    )
    return built


def _may_run_programs(config: Config) -> bool:
    if config.console.programs is not None:
        return config.console.programs
    return is_loopback(parse_listen(config.listen)[0]) and config.public_url is None


def _make_reload(gateway: Gateway, files: Sequence[AgentsFile]) -> Callable[[Path], Awaitable[None]]:
    async def reload(path: Path) -> None:
        for source in files:
            if source.path == path:
                await gateway.registry.load(source)

    return reload
