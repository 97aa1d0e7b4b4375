"""What each agent published about itself, remembered in the store: a node lists it at once after a restart.

An agent is recognized by its id and a digest of its address or command, so another server under the same id inherits
nothing. The memory also holds what each tool said when it was first seen or approved. A tool that says something else
since then is reported as changed, until the operator approves it.

Writing never delays an answer: descriptions are collected and written in batches. A description that keeps changing
is written at most once in `_MIN_PAUSE` seconds, so a server that changes its tools all the time costs little.

Agents that registered at run time are remembered only while the node runs, each at one address, and only so many of
them: a caller could register the same agent at ever new addresses."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, ToolText, normalize_name
from a2a_fabric.core.errors import STORE_AWAY, StoreError
from a2a_fabric.core.registration import StoredDescription
from a2a_fabric.core.stores import DescriptionStore, call_store

_log = logging.getLogger(__name__)

_MAX_BYTES = 4 << 20  # of one description; a longer one is not remembered
_MAX_AGENTS = 10_000
_MAX_REGISTERED = 1000  # agents that registered at run time
_MAX_APPROVED = 4000  # tools of one agent whose first text is remembered
_MIN_PAUSE = 30.0
_COLLECT_SECONDS = 0.5
_KEEP_SECONDS = 90 * 24 * 3600.0  # since the agent was last described
_RENEW_SECONDS = 24 * 3600.0  # an unchanged description is written again after this, so that it is kept
_LOAD_TIMEOUT = 5.0


class ToolChange(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that no longer says what it said when it was approved."""

    name: str
    approved: ToolText
    current: ToolText


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    manifest: Manifest  # without its endpoint
    approved: dict[str, ToolText] = {}  # by normalized name


class _Entry:
    __slots__ = ("approved", "manifest", "seen_at", "written_at")

    def __init__(self, body: _Body, seen_at: float) -> None:
        self.manifest = body.manifest
        self.approved = dict(body.approved)
        self.seen_at = seen_at
        self.written_at = 0.0

    def is_incomplete(self, capability: Capability) -> bool:
        """Whether the tool is new, or says what was approved by a version that kept less of it."""
        approved = self.approved.get(normalize_name(capability.name))
        if approved is None:
            return True
        return approved.metadata is msgspec.UNSET and approved.is_kept_by(ToolText.from_capability(capability))


_decode_body = msgspec.json.Decoder(_Body).decode
_Key = tuple[str, str]


class AgentMemory:
    """The memory of one node. All methods but `load`, `run` and `aclose` return at once."""

    def __init__(self, store: DescriptionStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._entries: dict[_Key, _Entry] = {}
        self._registered: OrderedDict[str, _Key] = (
            OrderedDict()
        )  # by agent id, the one that was described last at the end
        self._unwritten: set[_Key] = set()
        self._wake = asyncio.Event()
        self._reported_problem: str | None = None

    @property
    def is_saved(self) -> bool:
        """Whether the store has everything that was recorded and approved."""
        return not self._unwritten

    async def load(self) -> None:
        """Read what is remembered. If the store does not answer, the node starts without it."""
        after = ("", "")
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT):
                while len(self._entries) < _MAX_AGENTS and (page := await self._store.read(after=after)):
                    for row in page:
                        self._add(row)
                    after = (page[-1].agent_id, page[-1].connection)
        except (StoreError, TimeoutError) as exc:
            _log.warning("what agents offered before could not be read, so all of them are asked first: %s", exc)

    def recall(self, declared: Manifest) -> Manifest | None:
        """What this agent published when it was last asked; None if that is not known."""
        entry = self._entries.get(_make_key(declared))
        return None if entry is None else entry.manifest

    def record(self, declared: Manifest, described: Manifest) -> None:
        """The agent was asked and described itself."""
        key, now = _make_key(declared), self._clock()
        entry = self._entries.get(key)
        manifest = msgspec.structs.replace(described, endpoint={})
        is_registered = declared.registered_by is not None
        if entry is None:
            if is_registered:
                self._make_room(key)
            elif len(self._entries) - len(self._registered) >= _MAX_AGENTS:
                return
            entry = self._entries[key] = _Entry(_Body(manifest=manifest), now)
        new_tools = [each for each in manifest.capabilities if entry.is_incomplete(each)]
        is_changed = bool(new_tools) or entry.manifest != manifest or not entry.written_at
        if not is_changed and now - entry.seen_at < _RENEW_SECONDS:
            return
        entry.manifest, entry.seen_at = manifest, now
        for capability in new_tools:
            if len(entry.approved) < _MAX_APPROVED or normalize_name(capability.name) in entry.approved:
                entry.approved[normalize_name(capability.name)] = ToolText.from_capability(capability)
        if not is_registered:
            self._write_later(key)

    def find_changes(self, declared: Manifest, capabilities: Sequence[Capability]) -> list[ToolChange]:
        """The tools that say something else than when they were approved."""
        entry = self._entries.get(_make_key(declared))
        if entry is None:
            return []
        pairs = ((each, entry.approved.get(normalize_name(each.name))) for each in capabilities)
        return [
            ToolChange(name=each.name, approved=approved, current=current)
            for each, approved in pairs
            if approved is not None and not approved.is_kept_by(current := ToolText.from_capability(each))
        ]

    def approve(self, declared: Manifest, capabilities: Sequence[Capability], names: Collection[str]) -> list[str]:
        """Accept what these tools say now; the names of those that had changed."""
        key = _make_key(declared)
        chosen = {normalize_name(name) for name in names}
        changes = [each for each in self.find_changes(declared, capabilities) if normalize_name(each.name) in chosen]
        for change in changes:
            self._entries[key].approved[normalize_name(change.name)] = change.current
        if changes:
            self._entries[key].written_at = 0.0  # an approval does not wait
            self._write_later(key)
        return [change.name for change in changes]

    async def run(self) -> None:
        """Write what was recorded, until cancelled."""
        try:
            await call_store(self._store.prune, self._clock() - _KEEP_SECONDS)
        except StoreError as exc:
            _log.warning("descriptions of agents that left could not be removed: %s", exc.message, extra=STORE_AWAY)
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(_COLLECT_SECONDS)
            await self._write_due(self._clock() - _MIN_PAUSE)
            if self._unwritten:
                asyncio.get_running_loop().call_later(_COLLECT_SECONDS * 10, self._wake.set)

    async def aclose(self) -> None:
        await self._write_due(float("inf"))

    def _make_room(self, key: _Key) -> None:
        """For an agent that registered: forget its previous address, and of too many agents the oldest."""
        forgotten = [self._registered.pop(key[0], None)]
        self._registered[key[0]] = key
        if len(self._registered) > _MAX_REGISTERED:
            forgotten.append(self._registered.popitem(last=False)[1])
        for each in forgotten:
            if each is not None:
                self._entries.pop(each, None)
                self._unwritten.discard(each)

    def _write_later(self, key: _Key) -> None:
        self._unwritten.add(key)
        self._wake.set()

    async def _write_due(self, written_before: float) -> None:
        due = [key for key in self._unwritten if self._entries[key].written_at <= written_before]
        rows = [row for key in due if (row := self._encode(key)) is not None]
        if due:
            try:
                await call_store(self._store.put, rows)
            except StoreError as exc:
                if exc.message != self._reported_problem:  # it is tried again and again
                    self._reported_problem = exc.message
                    _log.warning("what agents offer could not be remembered: %s", exc.message)
                return
            for key in due:
                self._entries[key].written_at = self._clock()
            self._unwritten.difference_update(due)

    def _encode(self, key: _Key) -> StoredDescription | None:
        entry = self._entries[key]
        try:
            body = msgspec.json.encode(_Body(manifest=entry.manifest, approved=entry.approved))
        except (TypeError, ValueError, msgspec.MsgspecError):
            return None  # an agent in this process may publish what JSON cannot hold
        if len(body) > _MAX_BYTES:
            _log.warning("agent %s describes itself in more than %d bytes, which is not remembered", key[0], _MAX_BYTES)
            return None
        return StoredDescription(agent_id=key[0], connection=key[1], body=body, seen_at=entry.seen_at)

    def _add(self, row: StoredDescription) -> None:
        try:
            body = _decode_body(row.body)
        except (msgspec.DecodeError, RecursionError):
            return  # of another version of this program
        entry = self._entries[row.agent_id, row.connection] = _Entry(body, row.seen_at)
        entry.written_at = row.seen_at


def _make_key(declared: Manifest) -> _Key:
    address = msgspec.json.encode((declared.runtime, declared.endpoint), order="deterministic", enc_hook=repr)
    return declared.agent_id, hashlib.sha256(address).hexdigest()
