"""Sessions that outlive a restart of their process: saved in a file when the node stops, opened again when it starts.

What is saved is how the client opened the session, what it subscribed to since, and the events that it may not have
read yet. So nothing of the SDK has to be saved: it opens the session again by the same requests (`adopt_session`) as
soon as the client sends one. A session ends with its process if that process is killed, and if it is one with a
program behind `/agents/ID/mcp`.

The file is read once and removed. Only this user can read it: it has the results that clients have not fetched yet."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.doors.mcp.light_sessions import LightSession, SavedLog
from a2a_fabric.doors.mcp.sessions import OpenSessions

_log = logging.getLogger(__name__)
SaveEvents = Callable[[str, str], SavedLog | None]  # of the session with this path and name


class _SavedSession(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    principal: Principal
    path: str
    version: str
    body: bytes
    is_initialized: bool
    idle_seconds: float
    client_name: str | None = None
    can_show_apps: bool = False
    requests: dict[str, bytes] = {}
    events: SavedLog | None = None


class _SavedSessions(msgspec.Struct, frozen=True, kw_only=True):
    saved_at: float
    sessions: list[_SavedSession]


class SavedSessions:
    def __init__(self, path: Path | None, sessions: OpenSessions) -> None:
        """Without a path nothing is saved."""
        self._path = path
        self._sessions = sessions

    async def restore(self) -> None:
        """Open the sessions of the earlier process again. A file that cannot be read is removed, and reported."""
        if self._path is None:
            return
        try:
            content = await asyncio.to_thread(_read_and_remove, self._path)
            saved = None if content is None else msgspec.msgpack.decode(content, type=_SavedSessions)
        except (OSError, msgspec.DecodeError) as exc:
            _log.warning("the sessions before the restart cannot be read: %s. Their clients open new ones", exc)
            return
        if saved is None:
            return
        away = max(0.0, time.time() - saved.saved_at)
        opened = sum(self._restore_one(each, away) for each in saved.sessions)
        _log.info("%d sessions of before the restart are open again", opened)

    def _restore_one(self, saved: _SavedSession, away: float) -> bool:
        session = self._sessions.restore(saved.name, saved.principal.principal_id, saved.idle_seconds + away)
        if session is None:
            return False
        light = LightSession(saved.principal, saved.path, saved.version, saved.body)
        light.is_initialized, light.is_kept = saved.is_initialized, True
        light.requests, light.events = saved.requests, saved.events
        session.light, session.client_name, session.can_show_apps = light, saved.client_name, saved.can_show_apps
        return True

    async def save(self, save_events: SaveEvents) -> None:
        """Never raises: then the clients open new sessions."""
        if self._path is None:
            return
        try:
            saved = list(self._collect(save_events))
            if saved:
                content = msgspec.msgpack.encode(_SavedSessions(saved_at=time.time(), sessions=saved))
                await asyncio.to_thread(_write, self._path, content)
        except (OSError, TypeError, ValueError) as exc:
            _log.warning("the sessions could not be saved for the restart: %s. Their clients open new ones", exc)

    def _collect(self, save_events: SaveEvents) -> list[_SavedSession]:
        now, saved = self._sessions.clock(), list[_SavedSession]()
        for session in self._sessions.list_named():
            light = session.light or session.origin
            if light is None or session.name is None or not session.is_open:
                continue
            events = light.events if session.light is not None else save_events(light.path, session.name)
            saved.append(
                _SavedSession(
                    name=session.name,
                    principal=_without_secrets(light.principal),
                    path=light.path,
                    version=light.version,
                    body=light.body,
                    is_initialized=light.is_initialized,
                    idle_seconds=max(0.0, now - session.used_at),
                    client_name=session.client_name,
                    can_show_apps=session.can_show_apps,
                    requests=light.requests,
                    events=events,
                )
            )
        return saved


def _without_secrets(principal: Principal) -> Principal:
    """What tells the caller from others. Its next request says the rest."""
    return Principal(
        mode=principal.mode,
        principal_id=principal.principal_id,
        delegate_id=principal.delegate_id,
        delegated_by=principal.delegated_by,
    )


def _read_and_remove(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    path.unlink()
    return content


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)
