"""Settings that change while the node runs.

A part of the node registers the settings that it can take over, by their name in `fabric.yaml`. After an edit, all
parts whose settings changed first check them; only if none objects do they take effect, together. So a broken edit
changes nothing. What changed and no part can take over waits for the next start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from a2a_fabric.config import Config, LimitSettings
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.files import read_file_version

TakeEffect = Callable[[], None]
Prepare = Callable[[Config], TakeEffect]
_POLL_INTERVAL = 0.5

_log = logging.getLogger(__name__)


class ReloadOutcome(msgspec.Struct, frozen=True):
    applied: tuple[str, ...]  # settings that count now
    waiting: tuple[str, ...]  # settings that need a restart


class SettingsReload:
    """`running` is the configuration that counts."""

    def __init__(self, running: Config) -> None:
        self.running = running
        self._parts: dict[str, list[Prepare]] = {}

    def register(self, setting: str, prepare: Prepare) -> None:
        """`setting` is a name such as `auth` or `log.level`. `prepare` gets the new configuration, raises ConfigError
        if it cannot be used, changes nothing, and returns the function that puts it into effect. Several parts of the
        node may take over the same setting.
        """
        self._parts.setdefault(setting, []).append(prepare)

    def register_limits(self, names: Iterable[str], take_effect: Callable[[LimitSettings], None]) -> None:
        """`take_effect` gets the new limits if one of these has changed."""
        for name in names:
            self.register(f"limits.{name}", lambda config: partial(take_effect, config.limits))

    def apply(self, config: Config, *, again: Iterable[str] = ()) -> ReloadOutcome:
        """Put into effect what changed, and the settings `again` in any case. Raises ConfigError; then nothing has
        changed.
        """
        changed = [name for name in self._parts if _read(config, name) != _read(self.running, name)]
        due = [name for name in self._parts if name in changed or name in again]
        effects = [prepare(config) for name in due for prepare in self._parts[name]]
        for take_effect in effects:
            take_effect()
        for name in changed:
            self.running = _copy_setting(self.running, config, name.split("."))
        return ReloadOutcome(tuple(changed), tuple(_list_differences(self.running, config)))


def _read(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def _copy_setting(old: Any, new: Any, path: list[str]) -> Any:
    field, *rest = path
    value = getattr(new, field)
    return msgspec.structs.replace(old, **{field: _copy_setting(getattr(old, field), value, rest) if rest else value})


def _list_differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """The names of the settings that differ, as deep as both are sections of the same kind."""
    names: list[str] = []
    for field in old.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before == after:
            continue
        if isinstance(before, msgspec.Struct) and type(before) is type(after):
            names += _list_differences(before, after, f"{prefix}{field}.")
        else:
            names.append(f"{prefix}{field}")
    return names


class ConfigFollower:
    """Applies a configuration file when it changes, and when `request` is called, as a signal does.

    `read` reads and checks the file, and raises ConfigError. `apply` puts it into effect.
    """

    def __init__(
        self, path: Path | None, read: Callable[[], Config], apply: Callable[[Config, bool], ReloadOutcome]
    ) -> None:
        self._path = path
        self._read = read
        self._apply = apply
        self._requested = asyncio.Event()
        self._stamp = read_file_version(path)
        self._waiting: tuple[str, ...] = ()

    def request(self) -> None:
        if self._path is None:
            _log.info("there is no configuration file to read again; the node goes on")
        self._requested.set()

    async def run(self) -> None:
        """Until cancelled."""
        while self._path is not None:
            try:
                async with asyncio.timeout(_POLL_INTERVAL):
                    await self._requested.wait()
            except TimeoutError:
                pass
            # Between the two steps of some editors there is no file: that is no edit yet.
            stamp, is_requested = read_file_version(self._path), self._requested.is_set()
            self._requested.clear()
            if is_requested or stamp not in (None, self._stamp):
                self._stamp = stamp
                self.reload(is_requested=is_requested)

    def reload(self, *, is_requested: bool = True) -> None:
        try:
            outcome = self._apply(self._read(), is_requested)
        except ConfigError as exc:
            _log.error("the configuration was not reloaded, and the last good one stays in use: %s", exc.message)
            return
        if outcome.applied or is_requested:
            _log.info("%s was reloaded; changed: %s", self._path, ", ".join(outcome.applied) or "nothing")
        if outcome.waiting and outcome.waiting != self._waiting:
            _log.warning("these changed settings need a restart of the node: %s", ", ".join(outcome.waiting))
        self._waiting = outcome.waiting
