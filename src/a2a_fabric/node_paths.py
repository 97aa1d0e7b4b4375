"""Resolves and opens what the configuration names: the store, the log file, the TLS files."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO

from a2a_fabric import plugins
from a2a_fabric.config import Config, LogSettings, StoreTable
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.stores import Store
from a2a_fabric.doors.context import TLSFiles
from a2a_fabric.stores.address import build_default_address, kind_from_address, resolve_address
from a2a_fabric.telemetry.logs import LogWriter


def resolve_store_address(config: Config, base: Path | None) -> str:
    """As configured; else a file beside the configuration, or memory for a node without a folder."""
    if config.store is None:
        return "memory:" if base is None else build_default_address(base)
    address = config.store.address if isinstance(config.store, StoreTable) else config.store
    return resolve_address(address, base or Path.cwd())


async def open_store(address: str) -> Store:
    """Raises ConfigError for an unknown kind, StoreError for a store that cannot be used."""
    return await plugins.load_store(kind_from_address(address)).build(address)


def resolve_tls_files(base: Path, config: Config) -> TLSFiles | None:
    files = config.tls
    if files is None:
        return None
    return TLSFiles(cert=base / files.cert, key=base / files.key, password=files.password)


def open_log_writer(settings: LogSettings, base: Path, stream: IO[str] | None, stack: AsyncExitStack) -> LogWriter:
    target = stream or sys.stderr
    if settings.file is not None:
        try:
            target = stack.enter_context((base / settings.file).open("a", encoding="utf-8"))
        except OSError as exc:
            raise ConfigError(f"log.file: {settings.file}: {exc.strerror}") from exc
    as_text = settings.format == "text" or (settings.format == "auto" and target.isatty())
    writer = LogWriter(target, as_text=as_text, level=settings.level)
    stack.callback(writer.close)
    return writer
