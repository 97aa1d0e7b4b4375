"""What the processes of one node use of its limits, in memory that all of them see.

Each process writes to a region of its own and reads those of the others, so there is no lock, and a process that is
killed at any point leaves nothing behind that another one waits for. What holds:
- A key is found in the set of its region that its value names: at most `_WAYS` words are compared.
- Who takes writes first and reads then. Two processes that take the last place at one moment may both be refused;
  they never both get it.
- The region of a process that has ended is cleared by the process that started it, except for what it has taken of
  rates: that stays taken.
- A key for which its set has no place is counted by its own process only. This needs thousands of callers at a time.
  No caller can aim at a set by choosing names: keys are made with a secret that is random in each start of the node.

A rate is a bucket for each caller that refills evenly. In terms of the moment at which the bucket is full again: a call
adds the time in which one token refills, and that moment is never in the past. So it is the number of all tokens ever
taken, in time, plus the greatest moment that any process has seen the bucket full at, less what had been taken then.
Both are sums and maxima of values that have one writer each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, MutableMapping

_WAYS = 8
_SETS = 2048
_COLUMN = 1 + _SETS * _WAYS  # words
_WORD = 8  # bytes
_WINDOW = 60.0  # seconds in which an empty bucket refills
_TOLERANCE = 1e-6  # seconds, for sums of floats
SECRET_BYTES = 16  # at the end of the memory; what makes the memory writes it
_ORIGIN = 2 * _WINDOW  # added to moments, so that those just after the system has started are positive, too


class Slot:
    """Where a key is: in the own region, and as last seen in those of the others."""

    __slots__ = ("key", "known", "position", "seen")

    def __init__(self, key: int, position: int, others: int) -> None:
        self.key = key
        self.position = position
        self.known = [-1] * others
        self.seen = [-1] * others  # how many keys the other had taken in when this one was not among them


Slots = MutableMapping[str, Slot]  # by caller


class _Table:
    """A hash table in the region of each process: a word for the number of keys taken in, the keys, and as many words
    for each column of values. The first slot is that of keys without a place, which the others never find.
    `find_victim` chooses among the slots of a full set; None if each is in use.
    """

    def __init__(
        self,
        words: memoryview[int],
        bases: list[int],
        number: int,
        find_victim: Callable[[int], int | None],
    ) -> None:
        self._words = words
        self._own = bases[number]
        self.unseen = self._own + 1
        self._others = [base for process, base in enumerate(bases) if process != number]
        self._find_victim = find_victim
        self._owners: dict[int, tuple[Slots, str]] = {}  # of the slots that this process has taken

    def claim(self, slots: Slots, caller: str, key: int) -> Slot:
        """The slot of a key, remembered in `slots` for as long as it is there. One without a place is not: the next
        time there may be room.
        """
        position = self._find(self._own, key)
        if position < 0:
            position = self._take_in(key)
        slot = Slot(key, position, len(self._others))
        if position != self.unseen:
            if position in self._owners:
                _forget(*self._owners[position])
            self._owners[position] = (slots, caller)
            slots[caller] = slot
        return slot

    def find_others(self, slot: Slot) -> Iterator[int]:
        """The positions of this key in the regions of the other processes."""
        words, key, known = self._words, slot.key, slot.known
        for number, base in enumerate(self._others):
            position = known[number]
            if position < 0:
                taken_in = words[base]
                if slot.seen[number] == taken_in:
                    continue
                slot.seen[number] = taken_in
                position = known[number] = self._find(base, key)
            elif words[position] != key:
                position = known[number] = self._find(base, key)
                slot.seen[number] = -1
            if position >= 0:
                yield position

    def _take_in(self, key: int) -> int:
        start = _start_of_set(self._own, key)
        keys = self._words[start : start + _WAYS].tolist()
        victim = start + keys.index(0) if 0 in keys else self._find_victim(start)
        if victim is None:
            return self.unseen
        if victim in self._owners:
            _forget(*self._owners.pop(victim))
        self._words[victim] = key
        self._words[self._own] += 1
        return victim

    def _find(self, base: int, key: int) -> int:
        start = _start_of_set(base, key)
        keys = self._words[start : start + _WAYS].tolist()
        return start + keys.index(key) if key in keys else -1


def _start_of_set(base: int, key: int) -> int:
    return base + 2 + key % _SETS * _WAYS


def _forget(slots: Slots, caller: str) -> None:
    slots.pop(caller, None)


_COUNT_WORDS = 1 + 2 * _COLUMN
_RATE_WORDS = 1 + 4 * _COLUMN
_REGION_WORDS = _COUNT_WORDS + _RATE_WORDS


class SharedCounts:
    """`memory` has `measure(processes)` bytes, which were zero except for a secret at the end; this process is the one
    with `number`.
    """

    def __init__(self, memory: memoryview, processes: int, number: int) -> None:
        self.processes = processes
        words = memory.cast("B")
        self._secret = bytes(words[-SECRET_BYTES:])
        self.words: memoryview[int] = words.cast("q")
        self.floats: memoryview[float] = words.cast("d")
        bases = [process * _REGION_WORDS for process in range(processes)]
        self.counts = _Table(self.words, bases, number, self._find_unused)
        rate_bases = [base + _COUNT_WORDS for base in bases]
        self.rates = _Table(self.words, rate_bases, number, self._find_fullest)

    @staticmethod
    def measure(processes: int) -> int:
        """The bytes that so many processes need; most of them are never touched."""
        return processes * _REGION_WORDS * _WORD + SECRET_BYTES

    def clear(self, number: int) -> None:
        """Give back what a process held that has ended. It may have ended after it had written a key, and before it had
        counted it, so that the others would not look for it.
        """
        start = number * _REGION_WORDS
        self.words[start + 1 + _COLUMN : start + _COUNT_WORDS] = memoryview(bytes(_COLUMN * _WORD)).cast("q")
        for taken_in in (start, start + _COUNT_WORDS):
            self.words[taken_in] += 1

    def make_key(self, name: str, caller: str) -> int:
        digest = hashlib.blake2b(f"{name}\0{caller}".encode(), digest_size=_WORD, key=self._secret).digest()
        return int.from_bytes(digest, "big") >> 1 or 1  # a signed word, and never that of an empty slot

    def _find_unused(self, start: int) -> int | None:
        values = self.words[start + _COLUMN : start + _COLUMN + _WAYS].tolist()
        return start + values.index(0) if 0 in values else None

    def _find_fullest(self, start: int) -> int | None:
        full_at = self.floats[start + 3 * _COLUMN : start + 3 * _COLUMN + _WAYS].tolist()
        position = start + full_at.index(min(full_at))
        for column in (1, 2, 3):
            self.floats[position + column * _COLUMN] = 0.0
        return position


class SharedUsage:
    """One limit: what this process uses of it, and how much the others do. `name` is the same in all of them."""

    __slots__ = ("_counts", "_name", "_slots")

    def __init__(self, counts: SharedCounts, name: str) -> None:
        self._counts = counts
        self._name = name
        self._slots: dict[str, Slot] = {}  # the one of the whole process under an empty name

    @property
    def processes(self) -> int:
        return self._counts.processes

    def publish(self, caller: str, held: int, used: int) -> None:
        """What the caller holds here, and what all callers do."""
        slots, words = self._slots, self._counts.words
        slot = slots[caller] if caller in slots else self._claim(caller)
        words[slot.position + _COLUMN] = held
        whole = slots[""] if "" in slots else self._claim("")
        words[whole.position + _COLUMN] = used

    def count_others(self, caller: str = "") -> int:
        """What this caller, or all callers, hold in the other processes."""
        slots, words = self._slots, self._counts.words
        slot = slots[caller] if caller in slots else self._claim(caller)
        return sum(words[position + _COLUMN] for position in self._counts.counts.find_others(slot))

    def _claim(self, caller: str) -> Slot:
        return self._counts.counts.claim(self._slots, caller, self._counts.make_key(self._name, caller))


class SharedRate:
    """The buckets of one limit. They have the size of what refills in a minute."""

    def __init__(self, counts: SharedCounts, name: str, per_minute: int) -> None:
        self._counts = counts
        self._name = f"{name} {per_minute}"  # with another rate every caller begins anew
        self._size = float(per_minute)
        self._seconds = _WINDOW / per_minute  # in which a token refills
        self._slots: dict[str, Slot] = {}

    def take(self, caller: str, count: int, now: float) -> tuple[float, float]:
        """The tokens that are left, and 0 if `count` were taken, or the seconds until they are there."""
        floats, table, seconds, now = self._counts.floats, self._counts.rates, self._seconds, now + _ORIGIN
        slot = self._slots.get(caller) or table.claim(self._slots, caller, self._counts.make_key(self._name, caller))
        taken, seen_full, full_again = (slot.position + column * _COLUMN for column in (1, 2, 3))
        tokens = min(float(count), self._size)
        own_before = floats[taken]
        floats[taken] = own_before + tokens
        before, full_at = own_before, floats[seen_full]
        for position in table.find_others(slot):
            before += floats[position + _COLUMN]
            full_at = max(full_at, floats[position + 2 * _COLUMN])
        full_at = max(full_at, now - before * seconds)
        floats[seen_full] = full_at
        wait = full_at + (before + tokens) * seconds - now - _WINDOW
        if wait > _TOLERANCE:
            floats[taken] = own_before
            tokens = 0.0
        left = max(0.0, self._size - (full_at + (before + tokens) * seconds - now) / seconds)
        floats[full_again] = full_at + (before + tokens) * seconds
        return left, wait if wait > _TOLERANCE else 0.0
