"""What signatures cost, in microseconds of one core: requests to agents, passports and mandates, receipts."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from a2a_fabric.core.call import Call, Emit, Handler, Input, Principal, Target, compose, ignore_event
from a2a_fabric.core.forwarding import current_call
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import Result
from a2a_fabric.identity.forwarded import NodeIdentityVerifier
from a2a_fabric.identity.mandates import issue_mandate, narrow_mandate, verify_mandate
from a2a_fabric.identity.node_keys import NodeKeys
from a2a_fabric.identity.node_signer import NodeSigner
from a2a_fabric.identity.passports import check_passport, decode_passport, issue_passport
from a2a_fabric.identity.receipt_writer import ReceiptWriter
from a2a_fabric.identity.receipts import make_receipt, sign_receipts
from a2a_fabric.identity.settings import AgentIdentitySettings, ReceiptSettings
from a2a_fabric.identity.signing import SigningKey
from a2a_fabric.steps.entry import record_receipts
from a2a_fabric.stores.sqlite import MemoryStore

TIMES = 200
ROUNDS = 15
ISSUER = SigningKey.generate()
BODY = b"x" * 400
ARGUMENTS = {"text": "Summarize the minutes of the last meeting.", "limit": 5, "tags": ["minutes", "short"]}


def run() -> None:
    print("\n| signing | µs |")
    print("|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, work in _list_work(NodeKeys(Path(folder) / "node.key"), Path(folder)):
            print(f"| {name} | {_measure(work):.1f} |")
        print("\n| a call inside the node, without any agent | µs |")
        print("|---|---|")
        asyncio.run(_measure_receipts(NodeKeys(Path(folder) / "node.key")))


def _list_work(keys: NodeKeys, folder: Path) -> list[tuple[str, Callable[[], object]]]:
    signer = NodeSigner(keys, "home", folder, 60).build_for("percy", "http://percy", AgentIdentitySettings())
    plain, now = _make_call(), time.time()
    given: dict[str, Any] = {"issuer": "corp", "principal": "alice", "scopes": ["agent:*"], "now": now, "seconds": 3600}
    mandate = issue_mandate(ISSUER, delegate="node", delegate_key=keys.get().public_key, **given)
    mandated = _make_call(mandate)
    worker = SigningKey.generate()
    chain = issue_mandate(ISSUER, delegate="planner", delegate_key=worker.public_key, **given)
    narrowed = narrow_mandate(chain, worker, delegate="worker", now=now)
    expires_at = datetime.now(UTC) + timedelta(hours=1)
    passport = json.dumps(issue_passport(ISSUER, principal_id="alice", scopes=["agent:*"], expires_at=expires_at))

    def check() -> None:
        decoded, fields = decode_passport(passport)
        check_passport(decoded, fields, ISSUER.public_key, now)

    def sign_for(call: Call) -> str:
        current_call.set(call)
        return signer.sign_request(BODY)

    node_keys = {keys.get().key_id: keys.get().public_key}
    issuers = {"corp": {ISSUER.key_id: ISSUER.public_key}}
    verifier = NodeIdentityVerifier({"home": node_keys}, audience="http://percy", issuers=issuers)
    tokens, mandated_tokens = ([sign_for(call) for _ in range(TIMES * ROUNDS)] for call in (plain, mandated))
    receipt = make_receipt(plain, node="home", input_digest="x", outcome="ok", result=None, at=now, seconds=0.1)
    return [
        ("sign an HTTP request to an agent", lambda: sign_for(plain)),
        ("the same, and narrow the caller's mandate", lambda: sign_for(mandated)),
        ("sign the arguments of an MCP tool", lambda: signer.sign_content(plain, ARGUMENTS)),
        ("an agent checks a signed request", lambda: verifier.verify(tokens.pop(), BODY)),
        ("the same with a mandate of two links", lambda: verifier.verify(mandated_tokens.pop(), BODY)),
        ("first check of a passport", check),
        ("first check of a mandate of two links", lambda: verify_mandate(narrowed, lambda *_: ISSUER.public_key, now)),
        ("sign a receipt, apart from the call", lambda: sign_receipts([receipt], "home", None, keys.get())),
    ]


async def _measure_receipts(keys: NodeKeys) -> None:
    store = MemoryStore()
    writer = ReceiptWriter(store.receipts, keys, "home", ReceiptSettings())
    call, result = _make_call(), Result(data={"answer": "hello"})

    async def answer(call: Call, emit: Emit) -> Result:
        return result

    handlers = {"receipts off": compose([], answer), "receipts on": compose([record_receipts(writer)], answer)}
    for name, handler in handlers.items():
        print(f"| {name} | {await _measure_handler(handler, call, writer):.1f} |")
    await store.aclose()


async def _measure_handler(handler: Handler, call: Call, writer: ReceiptWriter) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(TIMES):
            await handler(call, ignore_event)
        times.append((time.perf_counter() - started) / TIMES)
        await writer.flush()
    return statistics.median(times) * 1e6


def _measure(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(TIMES):
            work()
        times.append((time.perf_counter() - started) / TIMES)
    return statistics.median(times) * 1e6


def _make_call(mandate: str | UnsetType = UNSET) -> Call:
    return Call(
        trace=new_trace(),
        auth=Principal(mode="psk", principal_id="psk", mandate=mandate),
        target=Target(agent_id="percy", capability="greet"),
        input=Input(context=ARGUMENTS),
    )
