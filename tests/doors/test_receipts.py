"""Receipts of calls at real doors, their export, and its offline check; and traces that are signed when asked for."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from a2a_fabric.agent import Agent
from a2a_fabric.core.call import Call, Input, Principal, Target
from a2a_fabric.core.errors import AuthInvalid, StoreUnavailable
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.receipts import StoredReceipt
from a2a_fabric.core.result import Result
from a2a_fabric.identity import SigningKey, create_key_file, parse_public_keys, verify_trace
from a2a_fabric.identity.node_keys import NodeKeys
from a2a_fabric.identity.receipt_writer import ReceiptWriter
from a2a_fabric.identity.receipts import (
    ChainSummary,
    digest_json,
    encode_head,
    encode_seal,
    make_receipt,
    sign_receipts,
    verify_lines,
)
from a2a_fabric.identity.settings import ReceiptSettings
from a2a_fabric.stores.sqlite import MemoryStore
from tests.fixtures.mcp_servers import identified
from tests.fixtures.mcp_servers.serving import serving as serving_mcp
from tests.fixtures.node import PSK, WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement

READER = "the-key-of-the-reader"


def percy() -> Agent:
    agent = Agent("percy")

    @agent.capability
    async def greet(task: str) -> dict[str, Any]:
        return {"answer": f"hello {task}"}

    @agent.capability
    async def fail(task: str) -> dict[str, Any]:
        raise ValueError("no")

    return agent


def config(store: str = "memory:", **more: Any) -> dict[str, Any]:
    keys = [{"id": "reader", "key": READER, "scopes": ["capability:greet"]}]
    return {
        "node_id": "home",
        "store": store,
        "identity": {"key_file": "node.key"},
        "receipts": {"enabled": True, **more},
        "auth": {"keys": keys},
    }


async def read_receipts(node: Node, count: int) -> list[dict[str, Any]]:
    """As soon as so many were written."""
    found: list[StoredReceipt] = []

    async def are_there() -> bool:
        found[:] = await node.fabric.store.receipts.read(limit=5000)
        return len(found) >= count

    await eventually(are_there)
    return [json.loads(each.body) for each in found]


class TestANode:
    @requirement("000-27")
    async def test_every_call_leaves_a_receipt_however_it_ends(self, tmp_path: Path) -> None:
        async with running(percy(), config=config(), base=tmp_path) as node:
            done = await node.ask("percy", "greet", "you")
            await node.ask("percy", "fail", "you")
            arguments = {"agent_id": "percy", "capability": "fail", "task": "you"}
            refused = await node.operation("fabric.call", arguments, token=READER)
            assert refused["error_code"] == "AUTH_DENIED"
            await node.operation("fabric.health")  # no call
            first, second, third = await read_receipts(node, 3)
        assert (first["principal"], first["agent_id"], first["capability"]) == ("psk", "percy", "greet")
        assert (first["outcome"], first["seq"], first["prev"]) == ("ok", 1, None)
        assert first["input"] == digest_json({"attachments": [], "context": {}, "task": "you"})
        assert first["output"] == digest_json({"parts": [], "result": {"answer": "hello you"}})
        assert (first["trace_id"], first["span_id"]) == (done["trace"]["trace_id"], done["trace"]["span_id"])
        assert (second["outcome"], second["output"], second["seq"]) == ("UPSTREAM_ERROR", None, 2)
        assert (third["outcome"], third["principal"], third["seq"]) == ("AUTH_DENIED", "reader", 3)

    async def test_at_every_door_and_for_jobs(self, tmp_path: Path) -> None:
        async with running(percy(), config=config(), base=tmp_path) as node:
            await node.ask("percy", "greet", "you", **{"async": True})
            message = {"role": "user", "messageId": "1", "parts": [{"text": "you"}], "metadata": {"skill": "greet"}}
            sent = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
            await node.send("POST", "/agents/percy", headers={"A2A-Version": "1.0"}, json=sent)
            task = {"agentId": "percy", "type": "greet", "input": {"task": "you"}}
            assert (await node.send("POST", "/v1/tasks", json=task)).status < 300
            async with (
                asyncio.timeout(WAIT_TIMEOUT),
                httpx2.AsyncClient(headers={"Authorization": f"Bearer {PSK}"}, timeout=WAIT_TIMEOUT) as http,
                Client(streamable_http_client(f"{node.url}/mcp", http_client=http)) as client,
            ):
                await client.call_tool("percy_greet", {"task": "you"})
            receipts = await read_receipts(node, 4)
        assert {(each["agent_id"], each["outcome"]) for each in receipts} == {("percy", "ok")}
        assert len(receipts) == 4

    async def test_a_call_at_the_agents_own_mcp_address_has_its_result_in_the_receipt(self, tmp_path: Path) -> None:
        async with serving_mcp("stateless", make=identified.make) as served:
            manifest = {"agent_id": "far", "runtime": "mcp", "endpoint": {"uri": served.url}}
            async with running(manifests=[manifest], config=config(), base=tmp_path) as node:
                headers = {"Authorization": f"Bearer {PSK}"}
                async with (
                    asyncio.timeout(WAIT_TIMEOUT),
                    httpx2.AsyncClient(headers=headers, timeout=WAIT_TIMEOUT) as http,
                    Client(streamable_http_client(f"{node.url}/agents/far/mcp", http_client=http)) as client,
                ):
                    await client.call_tool("show", {"name": "Bob"})
                (receipt,) = await read_receipts(node, 1)
        assert receipt["input"] == digest_json({"attachments": [], "context": {"name": "Bob"}, "task": ""})
        assert receipt["output"] == digest_json({"parts": [], "result": {"answer": "None"}})

    @requirement("000-27")
    async def test_the_receipt_of_the_next_hop_names_the_one_before(self, tmp_path: Path) -> None:
        async with running(percy(), config=config(), base=tmp_path / ".") as far:
            (tmp_path / "near").mkdir()
            endpoint = {"uri": far.url, "psk": PSK, "agent": "percy"}
            manifest = {"agent_id": "percy", "runtime": "fabric", "endpoint": endpoint}
            near_config = {**config(), "node_id": "near"}
            async with running(manifests=[manifest], config=near_config, base=tmp_path / "near") as near:
                await near.ask("percy", "greet", "you")
                (first,) = await read_receipts(near, 1)
            (second,) = await read_receipts(far, 1)
        assert second["trace_id"] == first["trace_id"]
        assert second["parent"] == first["span_id"]
        assert first["output"] == second["output"]

    async def test_the_chain_goes_on_after_a_restart(self, tmp_path: Path) -> None:
        settings = config("sqlite:fabric.db")
        for _ in range(2):
            async with running(percy(), config=settings, base=tmp_path) as node:
                await asyncio.gather(*(node.ask("percy", "greet", str(number)) for number in range(20)))
            # All are written when the node has stopped.
        export = tmp_path / "receipts.jsonl"
        run_cli(tmp_path, "receipts", "export", str(export), "--config", write_config(tmp_path, settings))
        verified = verify_lines(export.read_bytes().splitlines())
        assert (verified.broken, verified.receipts, verified.is_sealed) == (None, 40, True)

    async def test_none_are_written_unless_asked_for(self, tmp_path: Path) -> None:
        async with running(percy(), config={"store": "memory:"}, base=tmp_path) as node:
            await node.ask("percy", "greet", "you")
            assert await node.fabric.store.receipts.read() == []


def write_config(folder: Path, settings: dict[str, Any]) -> str:
    path = folder / "fabric.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    return str(path)


def run_cli(folder: Path, *words: str, expected: int = 0) -> str:
    command = [sys.executable, "-m", "a2a_fabric", *words]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=WAIT_TIMEOUT, env={"FABRIC_HOME": str(folder)}
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


KEY = SigningKey.generate()


def call(task: str = "you") -> Call:
    return Call(
        trace=new_trace(),
        auth=Principal(mode="mandate", principal_id="corp:alice", delegate_id="worker", delegated_by=("planner",)),
        target=Target(agent_id="percy", capability="greet"),
        input=Input(task=task),
    )


def export(count: int = 8) -> list[bytes]:
    receipts = [
        make_receipt(
            call(str(number)),
            node="home",
            input_digest="x",
            outcome="ok",
            result=Result(data={}),
            at=number,
            seconds=0.1,
        )
        for number in range(count)
    ]
    signed = sign_receipts(receipts, "home", None, KEY)
    seal = ChainSummary(chain="home", first=1, last=count, digest=signed[-1].digest)
    return [encode_head([KEY.public_jwk]), *(each.body for each in signed), encode_seal([seal], KEY)]


class TestAnExport:
    @requirement("000-27")
    def test_a_good_one_passes_and_says_on_whose_behalf(self) -> None:
        lines = export()
        verified = verify_lines(lines)
        assert (verified.broken, verified.receipts, verified.is_sealed) == (None, 8, True)
        assert json.loads(lines[1])["actors"] == ["corp:alice", "planner", "worker"]
        assert verify_lines(lines, {KEY.key_id: KEY.public_key}).has_trusted_keys
        beginning_pruned = [lines[0], *lines[3:-1]]
        assert verify_lines(beginning_pruned).broken is None

    def test_a_line_removed_swapped_doubled_or_cut_off_is_named(self) -> None:
        lines = export()
        wrong = {
            5: [*lines[:4], *lines[5:]],  # removed: the next one is now line 5
            4: [*lines[:3], lines[4], lines[3], *lines[5:]],  # lines 4 and 5 swapped
            6: [*lines[:5], lines[4], *lines[5:]],  # doubled
            9: [*lines[:8], lines[9]],  # the last receipt is gone, and the end says so
            2: [lines[0], *lines[2:]],  # the first receipt is gone; only the end tells it
        }
        for line, changed in wrong.items():
            broken = verify_lines(changed).broken
            assert broken is not None
            assert broken.line == (line if line != 2 else len(changed)), broken

    def test_no_byte_can_be_changed(self) -> None:
        lines = export(3)
        content = b"\n".join(lines)
        trusted = {KEY.key_id: KEY.public_key}
        head = len(lines[0])
        for position in range(head + 1, len(content), 3):
            changed = bytearray(content)
            changed[position] ^= 1
            broken = verify_lines(bytes(changed).split(b"\n"), trusted).broken
            assert broken is not None, position
            assert broken.line <= content.count(b"\n", 0, position) + 2

    def test_one_signed_with_another_key_is_not_taken_for_the_nodes(self) -> None:
        broken = verify_lines(export(), {"other": SigningKey.generate().public_key}).broken
        assert broken is not None
        assert "known keys" in broken.reason
        for nonsense in ([], [b""], [b"{}"], [b"null"], [b"\xff"], [export()[1]]):
            assert verify_lines(nonsense).broken is not None

    @requirement("000-27")
    def test_the_command_names_the_first_broken_link(self, tmp_path: Path) -> None:
        lines, path, keys = export(), tmp_path / "receipts.jsonl", tmp_path / "keys.json"
        keys.write_bytes(msgspec.json.encode({"keys": [KEY.public_jwk]}))
        path.write_bytes(b"\n".join(lines) + b"\n")
        assert "every signature and every link is good" in run_cli(
            tmp_path, "receipts", "verify", str(path), "--keys", str(keys)
        )
        path.write_bytes(b"\n".join([*lines[:4], *lines[5:]]) + b"\n")
        told = json.loads(run_cli(tmp_path, "receipts", "verify", str(path), "--json", expected=1))
        assert (told["broken"]["line"], told["broken"]["chain"], told["broken"]["seq"]) == (5, "home", 5)
        assert told["receipts"] == 3
        assert "broken at line 5, receipt 5 of home" in run_cli(
            tmp_path, "receipts", "verify", str(path), "--keys", str(keys), expected=1
        )
        path.write_bytes(b"\n".join(lines[:-2]) + b"\n")  # the newest receipt, and the end that would tell it
        assert "cut off at its end" in run_cli(
            tmp_path, "receipts", "verify", str(path), "--keys", str(keys), expected=1
        )


class TestTheWriter:
    def writer(self, tmp_path: Path, store: MemoryStore, **settings: Any) -> ReceiptWriter:
        return ReceiptWriter(store.receipts, NodeKeys(tmp_path / "node.key"), "home", ReceiptSettings(**settings))

    async def test_no_name_that_a_caller_chose_stops_it(self, tmp_path: Path) -> None:
        store = MemoryStore()
        writer = self.writer(tmp_path, store)
        odd = msgspec.structs.replace(call(), target=Target(agent_id="\ud800" * 600, capability="x" * 5000))
        writer.end(odd, writer.begin(odd), "ok", Result(data={"answer": "\ud800"}), 0.1)
        await writer.flush()
        (receipt,) = await store.receipts.read()
        assert len(receipt.body) < 5000
        await store.aclose()

    async def test_two_processes_of_one_node_write_one_chain(self, tmp_path: Path) -> None:
        store = MemoryStore()
        writers = [self.writer(tmp_path, store) for _ in range(3)]
        for number in range(200):
            writer = writers[number % 3]
            writer.end(call(), writer.begin(call()), "ok", None, 0.1)
        await asyncio.gather(*(writer.flush() for writer in writers))
        bodies = [each.body for each in await store.receipts.read(limit=500)]
        keys = NodeKeys(tmp_path / "node.key").list_public()
        verified = verify_lines([encode_head(keys), *bodies])
        assert (verified.broken, verified.receipts) == (None, 200)
        await store.aclose()

    async def test_a_write_that_was_cut_off_is_not_repeated(self, tmp_path: Path) -> None:
        store = MemoryStore()

        class CutOff:
            """A store whose first write happens, though its answer is lost."""

            def __init__(self) -> None:
                self.is_cut = True

            def __getattr__(self, name: str) -> Any:
                return getattr(store.receipts, name)

            async def append(self, receipts: Any) -> bool:
                written = await store.receipts.append(receipts)
                if self.is_cut:
                    self.is_cut = False
                    raise StoreUnavailable("the connection broke")
                return written

        keys = NodeKeys(tmp_path / "node.key")
        writer = ReceiptWriter(CutOff(), keys, "home", ReceiptSettings())
        writer.end(call(), writer.begin(call()), "ok", None, 0.1)
        await writer.flush()  # is told that the store is away
        writer.end(call(), writer.begin(call()), "ok", None, 0.1)
        await writer.flush()
        assert [each.seq for each in await store.receipts.read()] == [1, 2]
        await store.aclose()

    async def test_no_call_goes_unrecorded_while_the_store_is_away(self, tmp_path: Path) -> None:
        store = MemoryStore()
        writer = self.writer(tmp_path, store)
        for _ in range(10_000):
            writer.end(call(), "x", "ok", None, 0.1)
        with pytest.raises(StoreUnavailable, match="Receipts"):
            writer.begin(call())
        await store.aclose()


class TestSignedTraces:
    @requirement("000-27", "000-28")
    async def test_a_reply_is_signed_when_the_caller_asks_for_it(self, tmp_path: Path) -> None:
        key = create_key_file(tmp_path / "node.key")
        keys = parse_public_keys(msgspec.json.encode({"keys": [key.public_jwk]}))
        settings = {"node_id": "home", "store": "memory:", "identity": {"key_file": "node.key"}}
        async with running(percy(), config=settings, base=tmp_path) as node:
            trace = {"trace_id": new_trace().trace_id, "sign": True}
            done = await node.ask("percy", "greet", "you", trace=trace)
            failed = await node.ask("percy", "fail", "you", trace=trace)
            *_, final = await node.events("percy", "greet", "you", trace=trace)
            *_, failure = await node.events("percy", "fail", "you", trace=trace)
            plain = await node.ask("percy", "greet", "you", trace={"trace_id": trace["trace_id"]})
        for reply in (done, failed, final["data"], failure["data"]):
            assert reply["trace"]["trace_id"] == trace["trace_id"]
            verify_trace(reply, keys, "home")
            with pytest.raises(AuthInvalid):
                verify_trace({**reply, "ok": not reply["ok"]}, keys, "home")
            with pytest.raises(AuthInvalid):
                verify_trace({**reply, "result": {"answer": "something else"}}, keys, "home")
            with pytest.raises(AuthInvalid):
                verify_trace({**reply, "trace": {**reply["trace"], "span_id": new_trace().span_id}}, keys, "home")
            with pytest.raises(AuthInvalid):
                verify_trace(reply, keys, "another")
        assert set(plain["trace"]) == {"trace_id", "span_id", "parent_span_id"}
        with pytest.raises(AuthInvalid):
            verify_trace(plain, keys, "home")
