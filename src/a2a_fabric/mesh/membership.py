"""Who is in the mesh: every node announces itself again and again, and a node that falls silent is gone.

An announcement is a lease on everything that its node holds. It says which revision of its catalog the node has, so
that the others fetch the list of its agents only when it has changed. Times are measured by the receiver's own clock,
so clocks that differ do no harm.

The announcements of one start of a node are numbered, and each number counts once. So an announcement that was recorded
and is sent again changes nothing: it brings back no node that is gone, no earlier load and no earlier connection.

Two nodes with one name would take each other's requests. So a node that starts first asks whether its name is taken
(`joining`), and the others tell it who they are. The one that started later gives way: it stays alone and says so in
its log and its health, until the other one is gone. It gives way only to an announcement that answers this start of it,
since one of its own earlier starts may have been recorded.

Nodes of different versions of this program are one mesh as long as each understands the protocol that the other speaks.
New fields are added with defaults and unknown ones are ignored, so a new version of the protocol is rare."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

_log = logging.getLogger(__name__)
_SILENT_BEATS = 3.5  # heartbeats until a silent node counts as gone: under five seconds with the default
_STARTS = 10_000  # of nodes, whose last numbers are remembered

STOPPED = "it stopped"
PROTOCOL = 2  # of announcements, messages and frames
BINDS_STARTS = 2  # from this version on, messages are signed for one start of their receiver
OLDEST_PROTOCOL = 1  # that this version still understands


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """`member` is the node, or one of its workers (`node.w1`); `start_id` is another one after each start."""

    member: str
    node: str
    start_id: str
    started_at: float
    version: str
    site: str
    revision: str
    agents: int = 0
    calls: int = 0
    heartbeat: float = 1.0
    state: str = "up"  # joining, up, draining, left; one of a later version counts as up
    protocol: int = 1
    oldest_protocol: int = 1
    connections: int = 0  # how often it has connected to NATS: what was under way between two of them may be lost
    url: str = ""  # where calls may be sent over HTTP
    number: int = 0  # it grows with each announcement of this start; a node of an earlier version has none
    for_start: str = ""  # the start of the node that this announcement answers


def describe_mismatch(announcement: Announcement) -> str | None:
    """Why this node cannot talk to that one; None if it can."""
    if announcement.protocol >= OLDEST_PROTOCOL and announcement.oldest_protocol <= PROTOCOL:
        return None
    is_older = announcement.protocol < OLDEST_PROTOCOL
    return (
        f"it speaks version {announcement.protocol} of the mesh's protocol, and this node version {PROTOCOL}. "
        f"Update {'that node' if is_older else 'this node'}"
    )


class Member:
    """Another node, as this one last heard of it."""

    def __init__(self, announcement: Announcement, heard_at: float) -> None:
        self.announcement = announcement
        self.heard_at = heard_at

    @property
    def name(self) -> str:
        return self.announcement.member


class Membership:
    """A pure table: announcements and the time go in, calls of the listeners come out.

    `on_join` is called with a member that is new or was restarted, `on_leave` with one that is gone and why,
    `on_change` with one whose catalog has another revision, `on_newcomer` with the name and the start of one that asks
    who is there, `on_reconnect` with one whose connection was lost and is back.
    """

    def __init__(
        self,
        own_member: str,
        start_id: str,
        started_at: float,
        *,
        on_join: Callable[[Member], None],
        on_leave: Callable[[Member, str], None],
        on_change: Callable[[Member], None],
        on_newcomer: Callable[[str, str], None] = lambda name, start_id: None,
        on_reconnect: Callable[[Member], None] = lambda member: None,
    ) -> None:
        self._on_reconnect = on_reconnect
        self._own_member = own_member
        self._own_key = (started_at, start_id)
        self._on_join = on_join
        self._on_leave = on_leave
        self._on_change = on_change
        self._on_newcomer = on_newcomer
        self.members: dict[str, Member] = {}
        self.refused: dict[str, Member] = {}  # nodes to which this one cannot talk
        self.conflict: str | None = None  # why this node must not announce itself
        self._conflict_ends_at = 0.0
        self._twin = ""  # the start to which this node gives way
        self._numbers: dict[tuple[str, str], int] = {}  # the last one of each start, the latest heard last

    def hear(self, announcement: Announcement, now: float) -> None:
        if not self._accept_number(announcement):
            return
        if announcement.member == self._own_member:
            self._check_own_name(announcement, now)
            return
        if announcement.state == "joining":
            self._on_newcomer(announcement.member, announcement.start_id)
            return
        if (mismatch := describe_mismatch(announcement)) is not None:
            self._refuse(announcement, mismatch, now)
            return
        self.refused.pop(announcement.member, None)
        known = self.members.get(announcement.member)
        if announcement.state == "left":
            if known is not None and known.announcement.start_id == announcement.start_id:
                self._remove(known, STOPPED)
            return
        if known is not None and known.announcement.start_id != announcement.start_id:
            if announcement.started_at < known.announcement.started_at:
                return  # the later of two nodes with one name gives way, so this is an old announcement
            self._remove(known, "it was started again")
            known = None
        if known is None:
            member = self.members[announcement.member] = Member(announcement, now)
            self._on_join(member)
            return
        has_changed = known.announcement.revision != announcement.revision
        if known.announcement.connections != announcement.connections:
            self._on_reconnect(known)
        known.announcement, known.heard_at = announcement, now
        if has_changed:
            self._on_change(known)

    def is_member(self, name: str, start_id: str) -> bool:
        member = self.members.get(name)
        return member is not None and member.announcement.start_id == start_id

    def find_start(self, name: str) -> str:
        """The start of a node for which its messages are signed; empty for a node that is unknown, or of an earlier
        version.
        """
        member = self.members.get(name)
        return member.announcement.start_id if member and member.announcement.protocol >= BINDS_STARTS else ""

    def expire(self, now: float) -> None:
        if self.conflict is not None and now > self._conflict_ends_at:
            self.conflict = None
        for member in list(self.members.values()):
            silence = now - member.heard_at
            if silence > _SILENT_BEATS * member.announcement.heartbeat:
                self._remove(member, f"it was silent for {silence:.1f} s")

        for member in list(self.refused.values()):
            if now - member.heard_at > _SILENT_BEATS * member.announcement.heartbeat:
                del self.refused[member.name]

    def _refuse(self, announcement: Announcement, mismatch: str, now: float) -> None:
        if (known := self.members.get(announcement.member)) is not None:
            self._remove(known, mismatch)
        if announcement.state == "left":
            self.refused.pop(announcement.member, None)
            return
        if announcement.member not in self.refused:
            _log.warning("node %s (%s) is not taken in: %s", announcement.member, announcement.version, mismatch)
        self.refused[announcement.member] = Member(announcement, now)

    def _remove(self, member: Member, reason: str) -> None:
        del self.members[member.name]
        self._on_leave(member, reason)

    def _accept_number(self, announcement: Announcement) -> bool:
        """False for an announcement that was there before, or is older than the last one of the same start."""
        start = announcement.member, announcement.start_id
        last = self._numbers.get(start, 0)
        if last > 0 and announcement.number <= last:
            return False
        self._numbers.pop(start, None)
        if len(self._numbers) >= _STARTS:
            del self._numbers[next(iter(self._numbers))]
        self._numbers[start] = announcement.number
        return True

    def _check_own_name(self, announcement: Announcement, now: float) -> None:
        other_key, own_start = (announcement.started_at, announcement.start_id), self._own_key[1]
        if announcement.start_id == own_start:
            return
        if announcement.for_start == own_start or not announcement.number:
            self._twin = announcement.start_id
        is_there = announcement.start_id == self._twin  # else it may have been recorded
        if announcement.state == "left":
            self.conflict = None if is_there else self.conflict
        elif other_key > self._own_key:
            self._on_newcomer(announcement.member, announcement.start_id)  # so that it gives way
        elif is_there:
            self._conflict_ends_at = now + _SILENT_BEATS * announcement.heartbeat
            if self.conflict is None:
                self.conflict = (
                    f"another node of the mesh is called '{self._own_member}', too, and was started earlier. "
                    "Give this node another `node_id`"
                )
                _log.error("%s", self.conflict)
