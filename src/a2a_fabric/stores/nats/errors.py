"""Refusals of JetStream and faults of the connection, translated into store errors."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from a2a_fabric.core.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreUnusable
from a2a_fabric.nats.connection import NatsForbidden, NatsRefused, NatsUnavailable

WRONG_LAST_SEQUENCE = 10071
STREAM_NOT_FOUND = 10059
MESSAGE_NOT_FOUND = 10037
NO_LEADER = (10008, 10009)  # JetStream, or this stream, is being taken over by another server
NO_PEERS = 10005  # fewer servers than replicas, maybe because they have just started

STARTUP_ADVICE = ". Is it running, and is the address right?"
MAJORITY_ADVICE = "more than half of the servers of a cluster must run"
RUNNING_ADVICE = "; the node keeps trying"
_JETSTREAM_ADVICE = "Enable it: `jetstream {store_dir: …, sync_interval: always}` in the configuration of the server"
_RIGHTS_ADVICE = (
    "A node publishes to NAME.log, NAME.snapshots.> and $JS.API.>, and subscribes to _INBOX.>: give its user these "
    "rights in the configuration of the server"
)
_FULL = (10002, 10023, 10028, 10047, 10077, 10113, 10118)  # limits of the stream, the account, the disk
_NO_JETSTREAM = (10039, 10035, 10076)


class ApiError(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class JetStreamRefused(Exception):
    def __init__(self, error: ApiError) -> None:
        super().__init__(error.description)
        self.err_code = error.err_code


_BY_CODE: dict[int, Callable[[str, str], str]] = {
    NO_PEERS: lambda address, reason: (
        f"{address}: there are fewer servers with JetStream than replicas. Start them, or add replicas=1 to the address"
    ),
    10074: lambda address, reason: f"{address} is a single server: remove `replicas` from the address, or write 1",
    10058: lambda address, reason: f"{address}: a stream of this name is configured differently; name another store",
    10065: lambda address, reason: f"{address}: another stream has these subjects already; name another store",
    10052: lambda address, reason: f"{address}: the server refused the stream ({reason})",
}


def translate(error: Exception, address: str, advice: str = RUNNING_ADVICE) -> StoreError:
    """`advice` ends the sentence about a server that is away."""
    reason = str(error) or type(error).__name__
    if isinstance(error, NatsUnavailable):
        return StoreUnavailable(f"{address} cannot be used now: {reason}{advice}", store=address)
    if isinstance(error, NatsForbidden):
        return StoreUnusable(f"{address}: {reason}. {_RIGHTS_ADVICE}", store=address)
    if isinstance(error, NatsRefused):
        return StoreUnusable(f"{address} refused the connection: {reason}", store=address)
    if not isinstance(error, JetStreamRefused):
        return StoreError(f"{address}: {reason}", store=address)
    if error.err_code in _FULL:
        return StoreFull(address)
    if error.err_code in _NO_JETSTREAM:
        return build_without_jetstream(address)
    build_sentence = _BY_CODE.get(error.err_code)
    return StoreUnusable(build_sentence(address, reason) if build_sentence else f"{address}: {reason}", store=address)


def build_without_jetstream(address: str) -> StoreUnusable:
    return StoreUnusable(
        f"{address} has no JetStream, or not for this account. {_JETSTREAM_ADVICE}, and give it to the account",
        store=address,
    )


def build_full_at_start(address: str) -> StoreUnusable:
    return StoreUnusable(
        f"{address} is full, so the node cannot start: raise `max_bytes` in the address or the limits of the account, "
        "or make room on the disk of the server",
        store=address,
    )


def build_unconfirmed(address: str, seconds: float, reason: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{address} did not confirm a write within {seconds:.3g} s ({reason}), so it is not known whether it was made",
        store=address,
    )


def build_lost_log(address: str, head: int, applied: int) -> StoreCorrupt:
    return StoreCorrupt(
        address,
        f"its log ends at {head}, and this node has applied {applied}: the server lost confirmed writes, or "
        "the stream was replaced. Restart the nodes to continue with what the server has",
    )


def build_diverged(address: str, reason: str) -> StoreUnusable:
    return StoreUnusable(
        f"{address}: the copy of this node differs from the log ({reason}), so the node writes nothing more. "
        "Restart the node, which makes the copy anew",
        store=address,
    )


def build_unreadable(address: str, sequence: int, reason: str) -> StoreUnusable:
    return StoreUnusable(
        f"{address}: message {sequence} of the log cannot be read ({reason}). Another program wrote to it, or a newer "
        "a2a-fabric: run that one, or name another store",
        store=address,
    )
