"""What agents offer to each principal that is signed in: learnt from the agent, kept in the store beside the login.

A listing is in memory under its principal alone, and only while there is such a login. Another node may have learnt
it, so the store is read again when a principal asks for a list."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from a2a_fabric.core.errors import StoreError
from a2a_fabric.core.logins import LoginStore, PersonalListing, PersonalListings

_LOAD_TIMEOUT = 5.0
_MAX_LOADED = 2000  # logins whose listings are read when the node starts
_MAX_BYTES = 4 << 20  # of one principal at one agent
_FRESH_SECONDS = 5.0  # in which the store is not read again for the same principal
_MAX_OWNERS = 10_000
_MAX_SHOWN = 20  # names of tools in a log line

_log = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(PersonalListing).decode

AskAgent = Callable[[str, str], Awaitable[None]]


class LoginListings:
    """`known` is what this node has in memory. A list waits at most `timeout` seconds for what agents offer its caller.

    `ask_agent` asks an agent what it offers a principal, and stores the answer by `set`. It does not raise.
    """

    def __init__(self, store: LoginStore, known: PersonalListings, timeout: float, ask_agent: AskAgent) -> None:
        self._store = store
        self._known = known
        self._timeout = timeout
        self._ask_agent = ask_agent
        self._read_at: OrderedDict[str, float] = OrderedDict()
        self.get = known.get
        self.remove = known.remove

    async def load_recent(self) -> None:
        """Read the listings of the principals that were last seen. The node starts without them if it must."""
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT):
                for owner, agent_id, encoded in await self._store.read_listings(_MAX_LOADED):
                    self._keep(owner, agent_id, encoded)
        except (StoreError, TimeoutError) as exc:
            _log.warning("what agents offer to callers with logins could not be read: %s", exc)

    async def load(self, owner: str) -> None:
        """Read the listings of one principal, and ask the agents whose listing is not in the store.

        It takes a bounded time. What is not known then is listed later.
        """
        now = time.monotonic()
        if now - self._read_at.get(owner, -_FRESH_SECONDS) < _FRESH_SECONDS:
            return
        self._read_at[owner] = now
        self._read_at.move_to_end(owner)
        if len(self._read_at) > _MAX_OWNERS:
            self._read_at.popitem(last=False)
        try:
            async with asyncio.timeout(self._timeout):
                records = await self._store.list(owner)
        except (StoreError, TimeoutError) as exc:
            _log.warning("what agents offer %s could not be read: %s", owner, exc)
            return
        for agent_id in {*(self._known.find(owner) or ())} - {record.agent_id for record in records}:
            self._known.remove(owner, agent_id)
        known = {each.agent_id for each in records if each.listing and self._keep(owner, each.agent_id, each.listing)}
        await self.learn(owner, [each.agent_id for each in records if each.agent_id not in known])

    async def set(self, owner: str, agent_id: str, listing: PersonalListing) -> None:
        """What the agent offers this principal now; ignored if the principal is no longer signed in."""
        previous = self._known.get(owner, agent_id) or await self._read_stored(owner, agent_id)
        listing = listing.keep_approvals(previous)
        if previous == listing and self._known.get(owner, agent_id) is not None:
            return
        changed = listing.changed_tools
        if changed - (previous.changed_tools if previous else frozenset()):
            names = ", ".join(sorted(changed)[:_MAX_SHOWN])
            _log.warning(
                "agent %s changed what these tools say since %s was first offered them: %s", agent_id, owner, names
            )
        encoded = msgspec.json.encode(listing)
        if len(encoded) > _MAX_BYTES:
            _log.warning("agent %s offers %s more than %d bytes of lists", agent_id, owner, _MAX_BYTES)
        elif await self._store.set_listing(owner, agent_id, encoded):
            self._known.set(owner, agent_id, listing, len(encoded))

    async def _read_stored(self, owner: str, agent_id: str) -> PersonalListing | None:
        """For a principal that is not in memory. Raises StoreError."""
        record = await self._store.get(owner, agent_id)
        return None if record is None or record.listing is None else _decode_listing(record.listing)

    async def learn(self, owner: str, agent_ids: Iterable[str]) -> None:
        """Ask these agents what they offer the principal, and wait for that; but not for long."""
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.gather(*(self._ask_agent(owner, agent_id) for agent_id in agent_ids))
        except TimeoutError:
            _log.info("an agent takes long to say what it offers %s; it is listed later", owner)

    def _keep(self, owner: str, agent_id: str, encoded: bytes) -> bool:
        """False if another version of this program wrote it."""
        listing = _decode_listing(encoded)
        if listing is None:
            return False
        self._known.set(owner, agent_id, listing, len(encoded))
        return True


def _decode_listing(encoded: bytes) -> PersonalListing | None:
    """None if another version of this program wrote it."""
    try:
        return _decode(encoded)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
