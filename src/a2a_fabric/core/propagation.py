"""What a call carries from node to node: its trace, and the delegation chain by which loops are refused.

Trace ids are UUID text on Fabric's wire, the same bits as W3C hex everywhere else. A trace is
continued when the caller sends one, else started; the span is always fresh. `uuid.uuid4` costs
more than the rest of the header work together, so ids are cut from a block of system randomness
instead.

The delegation chain says which nodes and agents a call has passed. Each node adds an entry before
it calls an agent: its own name and a digest of that agent's id, `NODE/DIGEST`. The digest keeps
agent ids from nodes and agents further down the chain. Entries of older nodes are names without a
digest.

Invariants of every call that a node lets pass (`check_chain`):

- The node does not occur in the chain before the entries at its end: work that has left
  a node for another one never comes back to it.
- The entries at the end may be the node's own, because its agents may call one another through
  it. None of them is for the agent that is called now: no agent of a node is called twice.
- The chain has fewer entries than the configured maximum.

A chain can only cause a refusal. The caller supplies it and it grants nothing, so a forged
chain harms only the call that carries it."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from a2a_fabric.core.errors import BadInput, DelegationRefused

_BLOCK = 4096
_VERSION = bytes(0x40 | byte & 0x0F for byte in range(256))  # the seventh byte of a UUID
_VARIANT = bytes(0x80 | byte & 0x3F for byte in range(256))  # the ninth byte
_ID_LENGTH = 36  # characters of a UUID
_TWO_IDS = 2 * _ID_LENGTH
_DIGIT_POSITIONS = [position for position in range(_ID_LENGTH) if position not in (8, 13, 18, 23)]
_UUID = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
# Version ff is forbidden; only versions after 00 may carry more.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:(?<!^00.{53})-.*)?")


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The trace of a request, this span of it, and the parent span. `sampled` is False if spans are not to be kept."""

    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    sampled: bool | UnsetType = UNSET


class _RandomIds:
    """UUIDs (version 4) from a block of `os.urandom`, each used once.

    The text of all UUIDs of a block is made at once, one strided copy for each of their 32 digits. What remains for an
    id is one slice.
    """

    __slots__ = ("position", "text")

    def __init__(self) -> None:
        self.text = ""
        self.position = 0

    def refill(self) -> str:
        block = bytearray(os.urandom(_BLOCK))
        block[6::16] = block[6::16].translate(_VERSION)
        block[8::16] = block[8::16].translate(_VARIANT)
        digits, text = block.hex().encode(), bytearray(b"-") * (_BLOCK // 16 * _ID_LENGTH)
        for number, position in enumerate(_DIGIT_POSITIONS):
            text[position::_ID_LENGTH] = digits[number::32]
        self.text = text.decode()
        return self.text


_random_ids = _RandomIds()
os.register_at_fork(after_in_child=_random_ids.__init__)  # type: ignore[misc]  # a forked child must not repeat the ids of its parent


def new_id() -> str:
    """A random UUID (version 4) as text."""
    ids = _random_ids
    start = ids.position
    end = start + _ID_LENGTH
    text = ids.text[start:end]
    if len(text) < _ID_LENGTH:
        text, end = ids.refill()[:_ID_LENGTH], _ID_LENGTH
    ids.position = end
    return text


def new_ordered_id(prefix: str, now: float | None = None) -> str:
    """The prefix and 32 digits that grow with time, so that ids sort by age; the tail cannot be guessed.

    A store writes rows with such ids side by side, and not each to another page.
    """
    milliseconds = int((time.time() if now is None else now) * 1000)
    return f"{prefix}{milliseconds:012x}{new_id().replace('-', '')[12:]}"


def new_trace() -> Trace:
    """Makes both ids at once, because every call without a trace needs both."""
    ids = _random_ids
    start = ids.position
    end = start + _TWO_IDS
    text = ids.text[start:end]
    if len(text) < _TWO_IDS:
        text, end = ids.refill()[:_TWO_IDS], _TWO_IDS
    ids.position = end
    return Trace(trace_id=text[:_ID_LENGTH], span_id=text[_ID_LENGTH:])


def continue_trace(trace_id: str, parent_span_id: str | None = None, *, sampled: bool | UnsetType = UNSET) -> Trace:
    """Go on with a caller's trace. Raises ValueError if an id is not a UUID."""
    parent = normalize_uuid(parent_span_id) if parent_span_id else None
    return Trace(trace_id=normalize_uuid(trace_id), span_id=new_id(), parent_span_id=parent, sampled=sampled)


def make_sibling_trace(trace: Trace) -> Trace:
    """A new span beside this one."""
    return Trace(trace_id=trace.trace_id, span_id=new_id(), parent_span_id=trace.parent_span_id, sampled=trace.sampled)


def make_child_trace(parent: Trace) -> Trace:
    """A new span below this one."""
    return Trace(trace_id=parent.trace_id, span_id=new_id(), parent_span_id=parent.span_id, sampled=parent.sampled)


def normalize_uuid(text: str) -> str:
    """UUID text from UUID text or bare hex; raises ValueError for anything else."""
    if not _UUID.fullmatch(text):
        raise ValueError(f"{text[:64]!r} is not a UUID")
    return _format_uuid(text.replace("-", "").lower())


def _format_uuid(h: str) -> str:
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def trace_from_traceparent(header: str) -> Trace | None:
    """Continue a W3C `traceparent`; None if it is malformed (the specification says: start anew)."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None or set(match[1]) == {"0"} or set(match[2]) == {"0"}:
        return None
    return Trace(
        trace_id=_format_uuid(match[1]),
        span_id=new_id(),
        parent_span_id=_format_uuid(match[2] + "0" * 16),
        sampled=UNSET if int(match[3], 16) & 1 else False,
    )


def trace_from_metadata(trace: Trace, metadata_value: object) -> Trace:
    """The trace of a message: that of its request, if a header named one, else the one in the message's metadata."""
    if trace.parent_span_id is not None or not isinstance(metadata_value, str):
        return trace
    return trace_from_traceparent(metadata_value) or trace


def traceparent_to_headers(text: str | None) -> dict[str, str]:
    """For a program that a node started: its requests belong to the trace that it was given, if that is valid."""
    return {"traceparent": text.strip()} if text and trace_from_traceparent(text) is not None else {}


def format_traceparent(trace: Trace) -> str:
    """The W3C header for work done on behalf of this span."""
    flags = "00" if trace.sampled is False else "01"
    return f"00-{trace.trace_id.replace('-', '')}-{trace.span_id.replace('-', '')[:16]}-{flags}"


# Log lines written while a call runs carry its trace; all others carry the process's own.
process_trace = new_trace()
current_trace: ContextVar[Trace] = ContextVar("current_trace", default=process_trace)


UNNAMED_NODE = "local"  # the default name of a node
MAX_HOPS = 8
DELEGATION_HEADER = "x-fabric-delegation"  # in HTTP headers and gRPC metadata
DELEGATION_HEADER_BYTES = DELEGATION_HEADER.encode()
DELEGATION_META_KEY = "a2a-fabric/delegation_chain"  # in the metadata of A2A, MCP and the Agent Client Protocol
PASSPORT_META_KEY = "a2a-fabric/passport"  # credentials of one message, in the metadata of A2A and MCP
MANDATE_META_KEY = "a2a-fabric/mandate"
TRACE_META_KEY = "traceparent"  # W3C's, in the metadata of messages
TRACE_VARIABLE = "TRACEPARENT"  # in the environment of a program
DELEGATION_VARIABLE = "FABRIC_DELEGATION_CHAIN"  # in the environment of a program, written as in the header

_MAX_ENTRIES = 64  # entries; a longer chain is refused
_MAX_NAME = 256  # characters
_MAX_HEADER = 16 * 1024
_DIGEST_LENGTH = 12  # hexadecimal digits
_CACHE_SIZE = 1024

Chain = tuple[str, ...]
MaybeChain = Chain | UnsetType
WireChain = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=_MAX_NAME)], ...], Meta(max_length=_MAX_ENTRIES)
]


def make_chain_name(node_id: str) -> str:
    """The node's name in a chain: its own, or a random one for as long as it runs."""
    return node_id if node_id != UNNAMED_NODE else f"{UNNAMED_NODE}-{new_id()[:8]}"


def make_chain_entry(node: str, agent_id: str) -> str:
    """The entry that a node adds to a chain before it asks this agent."""
    digest = hashlib.sha256(f"{node}\0{agent_id}".encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{node}/{digest}"


def check_chain(chain: Sequence[str], node: str, max_hops: int, agent_id: str | None = None) -> None:
    """Raises DelegationRefused if the call left this node before, passed this agent before, or is too long."""
    own_start = len(chain)
    while own_start and _is_entry_of(chain[own_start - 1], node):
        own_start -= 1
    if any(_is_entry_of(entry, node) for entry in chain[:own_start]):
        raise DelegationRefused(f"The call has passed node '{node}' already", "LOOP", [*chain, node])
    if agent_id is not None and own_start < len(chain):
        entry = make_chain_entry(node, agent_id)
        if entry in chain[own_start:]:
            raise DelegationRefused(f"The call has passed agent '{agent_id}' already", "LOOP", [*chain, entry])
    if len(chain) >= max_hops:
        raise DelegationRefused(f"The call has passed {len(chain)} nodes, and {max_hops} is the most", "DEPTH", chain)


def _is_entry_of(entry: str, node: str) -> bool:
    """Whether this node added the entry, with a digest or without."""
    if not entry.startswith(node):
        return False
    extra = len(entry) - len(node)
    return extra == 0 or (extra == _DIGEST_LENGTH + 1 and entry[len(node)] == "/")


class DelegationGuard:
    """Checks and extends chains for this node. The entries of its agents are computed once."""

    def __init__(self, node: str = UNNAMED_NODE, max_hops: int = MAX_HOPS) -> None:
        self.node = node
        self._max_hops = max_hops
        self._entries: dict[str, Chain] = {}

    def check(self, chain: MaybeChain, agent_id: str | None) -> None:
        """Raises DelegationRefused."""
        if chain:
            check_chain(chain, self.node, self._max_hops, agent_id)

    def extend(self, chain: MaybeChain, agent_id: str) -> Chain:
        """The chain that goes to this agent. Raises DelegationRefused if the chain contains the agent already."""
        entry_chain = self._entries.get(agent_id) or self._make_entry_chain(agent_id)
        if not chain:
            return entry_chain
        if entry_chain[0] in chain:
            raise DelegationRefused(f"The call has passed agent '{agent_id}' already", "LOOP", [*chain, entry_chain[0]])
        return (*chain, entry_chain[0])

    def _make_entry_chain(self, agent_id: str) -> Chain:
        if len(self._entries) >= _CACHE_SIZE * 16:
            self._entries.clear()
        entry_chain = self._entries[agent_id] = (make_chain_entry(self.node, agent_id),)
        return entry_chain


@lru_cache(maxsize=_CACHE_SIZE)
def encode_chain_header(chain: Chain) -> str:
    return ",".join(quote(name, safe="/") for name in chain)


@lru_cache(maxsize=_CACHE_SIZE)
def as_header_and_json(chain: Chain) -> tuple[str, bytes]:
    """For requests that carry the chain both as a header and in the body; one cache lookup gives both."""
    return encode_chain_header(chain), msgspec.json.encode(chain)


def chain_to_headers(chain: MaybeChain) -> dict[str, str]:
    return {DELEGATION_HEADER: encode_chain_header(chain)} if chain else {}


def chain_to_metadata(chain: MaybeChain) -> dict[str, Any]:
    return {DELEGATION_META_KEY: list(chain)} if chain else {}


def chain_to_environment(chain: MaybeChain) -> dict[str, str]:
    return {DELEGATION_VARIABLE: encode_chain_header(chain)} if chain else {}


def chain_from_header(text: str | None) -> MaybeChain:
    """Raises BadInput."""
    if not text:
        return UNSET
    if len(text) > _MAX_HEADER:
        raise _invalid_chain_error(DELEGATION_HEADER)
    return _validate_names((unquote(name.strip()) for name in text.split(",") if name.strip()), DELEGATION_HEADER)


def chain_from_metadata(value: Any) -> MaybeChain:
    """From the decoded value of `DELEGATION_META_KEY`; None if it is missing. Raises BadInput."""
    if value is None:
        return UNSET
    if not isinstance(value, list | tuple):
        raise _invalid_chain_error(DELEGATION_META_KEY)
    return _validate_names(value, DELEGATION_META_KEY)


def pick_longer_chain(first: MaybeChain, second: MaybeChain) -> MaybeChain:
    """The newer of the chains in a message and in its header. Chains only grow, so it is the longer one."""
    if not first or not second:
        return first or second
    return first if len(first) >= len(second) else second


def _validate_names(names: Iterable[Any], source: str) -> MaybeChain:
    chain = tuple(names)
    if len(chain) > _MAX_ENTRIES or not all(_is_valid_name(name) for name in chain):
        raise _invalid_chain_error(source)
    return chain or UNSET


def _is_valid_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()


def _invalid_chain_error(source: str) -> BadInput:
    return BadInput(
        f"{source} is not a delegation chain: at most {_MAX_ENTRIES} names of up to {_MAX_NAME} characters each. "
        "Pass on the chain that came with the call, as it is, or none",
        field=source,
    )
