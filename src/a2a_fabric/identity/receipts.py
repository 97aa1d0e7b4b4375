"""Receipts: signed records of calls, each of which refers to the one before it.

A receipt is canonical JSON (RFC 8785): who called, on whose behalf, what, the digests of input and output, how it
ended, and its trace. `prev` is the SHA-256 of the receipt before it in the same chain; a node has one chain. So none
can be changed, removed, exchanged or inserted without breaking the chain or a signature. `parent` is the span of the
call that led to this one: the receipt of the hop before, which another node may have, has it as its `span_id`.

`verify_lines` needs no node: the lines of an export and the public keys of the nodes are enough."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from a2a_fabric.core.call import Call
from a2a_fabric.core.receipts import StoredReceipt
from a2a_fabric.core.result import Result
from a2a_fabric.identity.node_signer import list_actors
from a2a_fabric.identity.signing import SigningKey, encode_base64url, encode_canonical, is_signed, parse_public_keys

FORMAT = "a2a-fabric-receipts"
VERSION = 1
MAX_LINE = 64 * 1024
_MAX_NAME = 512  # characters of a name that a caller chose
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is signed, but for the place in the chain. Names are shortened, digests never."""

    at: int  # milliseconds since 1970, when the call ended
    node: str
    principal: str | None
    mode: str
    actors: tuple[str, ...]  # on whose behalf: the principal first, then those who act for it
    mandate_id: str | None
    passport_id: str | None
    agent_id: str
    capability: str
    input: str
    output: str | None
    outcome: str
    answered_by: str | None  # the fallback, if another agent answered
    duration_ms: int
    trace_id: str
    span_id: str
    parent: str | None
    commit: str | msgspec.UnsetType = msgspec.UNSET  # of the agent's code, if the agent is in a git repository


def digest_json(value: Any) -> str:
    """SHA-256 of the value as JSON with sorted keys and without white space."""
    try:
        content = _encode_sorted(value)
    except (TypeError, ValueError, OverflowError, RecursionError):  # what a Python agent returned is not JSON
        content = repr(value).encode("utf-8", "replace")
    return encode_base64url(hashlib.sha256(content).digest())


def digest_input(call: Call) -> str:
    """Of `{"attachments": […], "context": {…}, "task": "…"}`."""
    call_input = call.input
    return digest_json({"attachments": call_input.attachments, "context": call_input.context, "task": call_input.task})


def digest_output(result: Result) -> str:
    """Of `{"parts": […], "result": {…}}`."""
    return digest_json({"parts": result.parts, "result": result.data})


def make_receipt(
    call: Call, *, node: str, input_digest: str, outcome: str, result: Result | None, at: float, seconds: float
) -> Receipt:
    auth, target, trace = call.auth, call.target, call.trace
    return Receipt(
        at=int(at * 1000),
        node=node,
        principal=_shorten(auth.principal_id),
        mode=auth.mode,
        actors=tuple(_shorten(name) or "" for name in list_actors(auth)),
        mandate_id=_shorten(auth.mandate_id),
        passport_id=_shorten(auth.agent_passport_id),
        agent_id=_shorten(target.agent_id) or "",
        capability=_shorten(target.capability) or "",
        input=input_digest,
        output=None if result is None else digest_output(result),
        outcome=outcome,
        answered_by=result.fallback.used if result is not None and result.fallback is not None else None,
        duration_ms=int(seconds * 1000),
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        parent=trace.parent_span_id,
        commit=msgspec.UNSET if result is None else result.commit,
    )


def _shorten(name: str | None) -> str | None:
    """A name as it can be signed: callers choose some, and half a character has no canonical form."""
    return None if name is None else name[:_MAX_NAME].encode("utf-8", "replace").decode()


def sign_receipts(
    receipts: Sequence[Receipt], chain: str, head: StoredReceipt | None, key: SigningKey
) -> list[StoredReceipt]:
    """The receipts as the next links of the chain whose newest link is `head`."""
    seq, previous = (0, None) if head is None else (head.seq, head.digest)
    signed: list[StoredReceipt] = []
    for receipt in receipts:
        seq += 1
        fields = {
            **msgspec.to_builtins(receipt),
            "v": VERSION,
            "chain": chain,
            "seq": seq,
            "prev": previous,
            "key_id": key.key_id,
        }
        body = encode_canonical({**fields, "signature": key.sign(encode_canonical(fields))})
        previous = hash_body(body)
        signed.append(StoredReceipt(chain=chain, seq=seq, at=receipt.at / 1000, digest=previous, body=body))
    return signed


def hash_body(body: bytes) -> str:
    return encode_base64url(hashlib.sha256(body).digest())


class BrokenChain(msgspec.Struct, frozen=True, kw_only=True):
    """The first line that is not as it should be; `line` counts from 1."""

    line: int
    reason: str
    chain: str | None = None
    seq: int | None = None


class ChainSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a chain: its first and last number, and the hash of the last receipt."""

    chain: str
    first: int
    last: int
    digest: str


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    receipts: int
    chains: tuple[ChainSummary, ...]
    broken: BrokenChain | None = None
    has_trusted_keys: bool = True  # False: the keys came from the file itself
    is_sealed: bool = False  # the end of the file is signed, so nothing is missing there


def encode_head(keys: Sequence[Mapping[str, Any]]) -> bytes:
    """The first line of an export."""
    return encode_canonical({"kind": "head", "format": FORMAT, "v": VERSION, "keys": [dict(key) for key in keys]})


def encode_seal(chains: Sequence[ChainSummary], key: SigningKey) -> bytes:
    """The last line of an export: what it holds, signed, so that nothing can be cut off its end."""
    fields = {"kind": "seal", "chains": [msgspec.to_builtins(each) for each in chains], "key_id": key.key_id}
    return encode_canonical({**fields, "signature": key.sign(encode_canonical(fields))})


class ChainReader:
    """Follows the chains of an export, line by line."""

    def __init__(self, trusted: Mapping[str, Ed25519PublicKey] | None) -> None:
        self.has_trusted_keys = trusted is not None
        self.count = 0
        self._keys = dict(trusted or {})
        self._chains: dict[str, ChainSummary] = {}
        self._is_sealed = False

    @property
    def chains(self) -> tuple[ChainSummary, ...]:
        return tuple(self._chains.values())

    def read_line(self, number: int, line: bytes) -> BrokenChain | None:
        """What is wrong with the line, if anything is."""
        if len(line) > MAX_LINE and number > 1:
            return BrokenChain(line=number, reason="the line is too long")
        try:
            fields = msgspec.json.decode(line)
            is_canonical = isinstance(fields, dict) and encode_canonical(fields) == line
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
            is_canonical, fields = False, {}
        if not is_canonical:
            return BrokenChain(line=number, reason="the line is not a receipt in its canonical form")
        if self._is_sealed:
            return BrokenChain(line=number, reason="there is more after the end")
        if number == 1:
            return self._read_head(fields)
        if fields.get("kind") == "seal":
            return self._read_seal(number, fields)
        return self._read_receipt(number, fields, hash_body(line))

    def finish(self, broken: BrokenChain | None) -> Verification:
        return Verification(
            receipts=self.count,
            chains=self.chains,
            broken=broken,
            has_trusted_keys=self.has_trusted_keys,
            is_sealed=self._is_sealed,
        )

    def _read_head(self, fields: dict[str, Any]) -> BrokenChain | None:
        if fields.get("kind") != "head" or fields.get("format") != FORMAT or fields.get("v") != VERSION:
            return BrokenChain(line=1, reason="the file does not begin like an export of receipts")
        if not self.has_trusted_keys:
            try:
                self._keys = parse_public_keys(encode_canonical({"keys": fields.get("keys")}))
            except ValueError:
                return BrokenChain(line=1, reason="the file holds no public keys. Name them")
        return None

    def _read_seal(self, number: int, fields: dict[str, Any]) -> BrokenChain | None:
        if (problem := self._find_signature_problem(fields)) is not None:
            return BrokenChain(line=number, reason=f"the end of the file: {problem}")
        if fields.get("chains") != [msgspec.to_builtins(each) for each in self.chains]:
            return BrokenChain(line=number, reason="receipts are missing at the beginning or the end of a chain")
        self._is_sealed = True
        return None

    def _read_receipt(self, number: int, fields: dict[str, Any], digest: str) -> BrokenChain | None:
        chain, seq = fields.get("chain"), fields.get("seq")
        if not isinstance(chain, str) or not isinstance(seq, int):
            return BrokenChain(line=number, reason="the line is not a receipt")

        def broken(reason: str) -> BrokenChain:
            return BrokenChain(line=number, chain=chain, seq=seq, reason=reason)

        if (problem := self._find_signature_problem(fields)) is not None:
            return broken(problem)
        before = self._chains.get(chain)
        if before is not None and seq != before.last + 1:
            return broken(f"the receipt before it has the number {before.last}: receipts are missing or were moved")
        if before is not None and fields.get("prev") != before.digest:
            return broken("it does not belong to the receipt before it")
        if before is None and seq == 1 and fields.get("prev") is not None:
            return broken("the first receipt of a chain refers to none before it")
        first = seq if before is None else before.first
        self._chains[chain] = ChainSummary(chain=chain, first=first, last=seq, digest=digest)
        self.count += 1
        return None

    def _find_signature_problem(self, fields: dict[str, Any]) -> str | None:
        key_id = str(fields.get("key_id"))
        public_key = self._keys.get(key_id)
        if public_key is None:
            return f"the key '{key_id[:64]}' is not among the known keys"
        signed = encode_canonical({name: value for name, value in fields.items() if name != "signature"})
        return None if is_signed(signed, str(fields.get("signature")), public_key) else "the signature is not valid"


def verify_lines(lines: Iterable[bytes], trusted: Mapping[str, Ed25519PublicKey] | None = None) -> Verification:
    """Check an export up to its first broken link. Without `trusted` keys, those in the file itself are used. Then the
    check shows that the file is consistent, but not whose it is.
    """
    reader = ChainReader(trusted)
    number = 0
    for number, line in enumerate(lines, 1):
        if (broken := reader.read_line(number, line.rstrip(b"\n"))) is not None:
            return reader.finish(broken)
    return reader.finish(None if number else BrokenChain(line=1, reason="the file is empty"))
