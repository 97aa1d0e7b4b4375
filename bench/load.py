"""A load on one server: what each connection sends, and the figures of a run.

N connections repeat requests, each when its last reply is complete, or at a fixed rate. The generator is a small
program in C (`load_native.py`), because a client in Python needs more CPU time than what it measures. Where no C
compiler can be found or installed, it is a loop in Python (`load_python.py`), and the tables say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SESSION = "@session@"  # stands for the session id in requests


@dataclass(frozen=True)
class RequestPlan:
    """What a connection sends, and the text that each reply must hold.

    The opening requests come first and do not count; `messages` are sent in turn; `ending` is the last request.
    """

    messages: Sequence[bytes]
    expected: bytes = b""
    opening: Sequence[bytes] = ()
    ending: bytes = b""
    event: bytes = b""  # text that is counted in the replies, once for each event of a stream


@dataclass(frozen=True)
class Limit:
    """When a run ends: after so many seconds, or so many calls. With a rate, requests do not wait for replies."""

    seconds: float = 0.0
    calls: int = 0
    rate: float = 0.0  # requests a second; 0: each connection waits for its reply


@dataclass(frozen=True)
class Load:
    """The figures of one run."""

    calls: int
    seconds: float
    latencies: Sequence[float]  # of all calls, or of 1,001 that are evenly spaced in order of size
    failures: int = 0
    first_event: Sequence[float] = ()
    events: int = 0
    cpu: float = 0.0  # seconds that the measured process spent on it
    load_cpu: float = 0.0  # seconds that the generator spent on it
    core_busy: float | None = None  # share of the time in which the core of load and agent was busy
    why: str = ""  # the first failure

    @property
    def rate(self) -> float:
        return self.calls / self.seconds

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def repeat_request(message: bytes, expected: bytes = b"") -> RequestPlan:
    """For servers that need no handshake."""
    return RequestPlan([message], expected)


def request(
    port: int,
    path: str,
    body: bytes,
    *,
    token: str = "",
    accept: str = "application/json",
    headers: Mapping[str, str] = {},  # read-only
    method: str = "POST",
) -> bytes:
    given = {**headers, **({"Authorization": f"Bearer {token}"} if token else {})}
    more = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: {accept}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
