"""The parts of the mesh without a server: who is in it, HTTP between mailboxes, what crosses the border of a site."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from a2a_fabric.cli.program import app
from a2a_fabric.core.agent import Capability, ListedAgent, Manifest, Status
from a2a_fabric.core.errors import AgentBusy, AgentOffline, FabricError, UpstreamFailed, UpstreamInterrupted
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.core.result import Event
from a2a_fabric.mesh.agents import MeshAgents, is_shared
from a2a_fabric.mesh.frames import (
    ErrorFrame,
    EventFrame,
    FrameReader,
    ValueFrame,
    encode_frame,
    error_from_frame,
    frame_from_error,
    read_single_frame,
)
from a2a_fabric.mesh.mailbox import NodeMailbox
from a2a_fabric.mesh.membership import Announcement, Member, Membership, describe_mismatch
from a2a_fabric.mesh.messages import RequestMessage, decode_message
from a2a_fabric.mesh.relay import find_tag
from a2a_fabric.mesh.settings import SharedAgents
from a2a_fabric.nats.direct import DirectClient, DirectReader
from a2a_fabric.outbound.port import ConnectFailed, DeadlineExceeded, Interrupted, ReplyTooLarge
from a2a_fabric.telemetry.exposition import merge_expositions

PREFIX = "fabric.test.node"


@pytest.mark.parametrize(
    ("nats", "is_refused"), [("nats://127.0.0.1:4222,nats.corp.example:4222", True), ("nats://[::1]", False)]
)
def test_a_mesh_over_a_network_needs_a_key(tmp_path: Path, nats: str, is_refused: bool) -> None:
    settings = tmp_path / "fabric.yaml"
    settings.write_text(f"node_id: a\nstore: 'memory:'\nmesh: {{nats: '{nats}'}}\n")
    outcome = CliRunner().invoke(app, ["check", "--config", str(settings)])
    assert (outcome.exit_code != 0, "without a `key` every client" in outcome.output) == (is_refused, is_refused)


class Bus:
    """Delivers what mailboxes publish, in order, and keeps it."""

    def __init__(self) -> None:
        self.mailboxes: dict[str, NodeMailbox] = {}
        self.sent: list[tuple[str, bytes]] = []
        self.starts: dict[str, str] = {}
        self.copies = 1

    def add(
        self, name: str, app: Any, key: bytes | None = b"k" * 32, start_id: str = "", *, is_old: bool = False
    ) -> NodeMailbox:
        """`is_old`: of an earlier version."""
        self.starts[name] = "" if is_old else start_id or f"start-{name}"
        mailbox = NodeMailbox(
            name,
            start_id or f"start-{name}",
            PREFIX,
            self.publish,
            app,
            body_limit=BodyLimit(1 << 20),
            is_member=self._is_member,
            find_start=lambda node: "" if is_old else self.starts.get(node, ""),
            key=key,
        )
        self.mailboxes[mailbox.subject] = mailbox
        return mailbox

    async def publish(self, subject: str, payload: bytes) -> None:
        self.sent.append((subject, payload))
        if (mailbox := self.mailboxes.get(subject)) is not None:
            for _ in range(self.copies):
                mailbox.receive(payload)

    def _is_member(self, name: str, start_id: str) -> bool:
        return f"{PREFIX}.{name}" in self.mailboxes and start_id == f"start-{name}"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = (await receive())["body"]
    headers = [(b"x-path", scope["path"].encode()), (b"x-query", scope["query_string"])]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request was expected")


async def test_a_request_and_its_reply_of_any_size_arrive_whole() -> None:
    bus = Bus()
    here, there = bus.add("a", nothing), bus.add("b", echo)
    body = bytes(range(256)) * 3000
    reply = await here.client_for("b").request("POST", "/x/y?z=1", body=body, timeout=5, limit=1 << 20)
    assert (reply.status, reply.body) == (201, body)
    assert (reply.headers["x-path"], reply.headers["x-query"]) == ("/x/y", "z=1")
    with pytest.raises(ReplyTooLarge):
        await here.client_for("b").request("POST", "/", body=body, timeout=5, limit=1000)
    await asyncio.gather(here.aclose(), there.aclose())


async def test_a_slow_reader_slows_down_the_sender_and_nothing_piles_up() -> None:
    written = 0

    async def pour(scope: Any, receive: Any, send: Any) -> None:
        nonlocal written
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
            written += 1
        await send({"type": "http.response.body", "body": b""})

    bus = Bus()
    here = bus.add("a", nothing)
    bus.add("b", pour)
    async with here.client_for("b").stream("GET", "/", timeout=5, limit=1 << 20) as reply:
        for _ in range(20):
            await asyncio.sleep(0)
        assert written <= 17  # the window
        assert sum([len(chunk) async for chunk in reply.chunks()]) == 100_000
    assert written == 100


async def test_leaving_a_reply_cancels_the_work() -> None:
    cancelled = asyncio.Event()

    async def hang(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        cancelled.set()

    bus = Bus()
    here = bus.add("a", nothing)
    bus.add("b", hang)
    async with here.client_for("b").stream("GET", "/", timeout=5, limit=1 << 20) as reply:
        assert await reply.next_chunk() == b"first"
    async with asyncio.timeout(5):
        await cancelled.wait()


async def test_a_node_that_leaves_interrupts_what_it_was_asked_and_what_it_asked() -> None:
    is_gone = asyncio.Event()

    async def hang(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()
        is_gone.set()

    bus = Bus()
    here, there = bus.add("a", nothing), bus.add("b", hang)
    request = asyncio.ensure_future(here.client_for("b").request("GET", "/", timeout=5, limit=100))
    await asyncio.sleep(0)
    here.drop_target("b")
    with pytest.raises(Interrupted, match="left the mesh"):
        await request
    there.drop_sender("a")
    async with asyncio.timeout(5):
        await is_gone.wait()


async def test_a_reply_that_breaks_off_is_not_taken_for_a_complete_one() -> None:
    async def break_off(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    bus = Bus()
    here = bus.add("a", nothing)
    bus.add("b", break_off)
    with pytest.raises(Interrupted, match="before it was complete"):
        await here.client_for("b").request("GET", "/", timeout=5, limit=100)


async def test_the_time_of_a_request_is_bounded() -> None:
    bus = Bus()
    here = bus.add("a", nothing)
    with pytest.raises(DeadlineExceeded):
        await here.client_for("nowhere").request("GET", "/", timeout=0.01, limit=100)


async def test_a_message_that_is_not_signed_for_this_node_or_was_there_before_is_dropped() -> None:
    calls = 0

    async def count(scope: Any, receive: Any, send: Any) -> None:
        nonlocal calls
        calls += 1
        await echo(scope, receive, send)

    bus = Bus()
    here, there = bus.add("a", nothing), bus.add("b", count)
    stranger = bus.add("c", nothing, key=b"another key".ljust(32))
    await here.client_for("b").request("POST", "/", body=b"once", timeout=5, limit=100)
    subject, recorded = next(each for each in bus.sent if each[0] == there.subject)
    assert calls == 1
    there.receive(recorded)  # a second time
    there.receive(recorded[:-1] + bytes([recorded[-1] ^ 1]))
    with pytest.raises(DeadlineExceeded):
        await stranger.client_for("b").request("POST", "/", timeout=0.05, limit=100)
    assert (calls, there.dropped) == (1, 3)
    there.drop_sender("a")  # it was silent for a while, and is back
    there.receive(recorded)
    assert (calls, there.dropped) == (1, 4)
    stranger.receive(recorded)
    assert stranger.dropped == 1
    assert subject == there.subject


async def test_what_was_recorded_before_a_restart_is_worth_nothing_after_it() -> None:
    bus, answered = Bus(), 0

    async def count(scope: Any, receive: Any, send: Any) -> None:
        nonlocal answered
        answered += 1
        await echo(scope, receive, send)

    here = bus.add("a", nothing)
    bus.add("b", count)
    await here.client_for("b").request("POST", "/", body=b"before", timeout=5, limit=100)
    (request,) = (payload for subject, payload in bus.sent if subject == f"{PREFIX}.b")
    (reply,) = (payload for subject, payload in bus.sent if subject == f"{PREFIX}.a")
    there = bus.add("b", count, start_id="start-b again")
    there.receive(request)
    assert (answered, there.dropped) == (1, 1)
    here = bus.add("a", nothing, start_id="start-a again")
    waiting = asyncio.ensure_future(here.client_for("nowhere").request("POST", "/", timeout=0.2, limit=100))
    await asyncio.sleep(0)
    here.receive(reply)  # to a request of the same number
    with pytest.raises(DeadlineExceeded):
        await waiting
    assert here.dropped == 1


@pytest.mark.parametrize(("client_is_old", "server_is_old"), [(True, False), (False, True)])
async def test_a_node_of_an_earlier_version_is_asked_and_answered(client_is_old: bool, server_is_old: bool) -> None:
    bus, body = Bus(), bytes(range(256)) * 2000
    here, there = bus.add("a", nothing, is_old=client_is_old), bus.add("b", echo, is_old=server_is_old)
    reply = await here.client_for("b").request("POST", "/", body=body, timeout=5, limit=1 << 20)
    assert reply.body == body
    await asyncio.gather(here.aclose(), there.aclose())


async def test_pieces_that_arrive_a_second_time_are_no_part_of_a_body_or_a_reply() -> None:
    bus, body = Bus(), bytes(range(256)) * 2000
    here, there = bus.add("a", nothing), bus.add("b", echo)
    bus.copies = 2
    reply = await here.client_for("b").request("POST", "/", body=body, timeout=5, limit=1 << 20)
    assert reply.body == body
    await asyncio.gather(here.aclose(), there.aclose())


async def test_a_request_of_a_node_that_is_not_in_the_mesh_is_refused() -> None:
    bus = Bus()
    here = bus.add("a", nothing, start_id="an earlier start")
    there = bus.add("b", nothing)
    with pytest.raises(ConnectFailed):
        await here.client_for("b").request("POST", "/", timeout=5, limit=100)
    await there.aclose()


async def test_a_node_that_stops_answers_what_it_was_asked_ends_streams_that_wait_and_refuses_the_rest() -> None:
    may_end = asyncio.Event()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        if scope["method"] == "GET":
            await receive()
        else:
            await may_end.wait()
            await send({"type": "http.response.body", "body": b" last"})

    bus = Bus()
    client, there = bus.add("a", nothing).client_for("b"), bus.add("b", answer)
    async with (
        client.stream("POST", "/", timeout=5, limit=100) as asked,
        client.stream("GET", "/", timeout=5, limit=100) as waiting,
    ):
        finishing = asyncio.ensure_future(there.finish_received(5))
        assert await waiting.next_chunk() == b"first"
        with pytest.raises(Interrupted):
            await waiting.next_chunk()
        with pytest.raises(ConnectFailed):
            await client.request("POST", "/", timeout=5, limit=100)
        assert not finishing.done()
        may_end.set()
        assert await asked.read() == b"first last"
        await finishing


def announce(name: str, start: float = 1.0, revision: str = "1", **more: Any) -> Announcement:
    facts = {"node": name, "start_id": f"{name}@{start}", "started_at": start, "version": "1", "site": "s"}
    return Announcement(member=name, revision=revision, **{**facts, **more})


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def build(self, own: str = "own", started_at: float = 5.0) -> Membership:
        def note(word: str) -> Callable[..., None]:
            return lambda member, *_: self.events.append((word, member.name))

        return Membership(
            own,
            f"{own}@{started_at}",
            started_at,
            on_join=note("join"),
            on_leave=note("leave"),
            on_change=note("change"),
        )


def test_members_join_change_leave_and_expire() -> None:
    heard = Heard()
    membership = heard.build()
    membership.hear(announce("a"), now=0.0)
    membership.hear(announce("a"), now=1.0)
    membership.hear(announce("a", revision="2"), now=2.0)
    membership.hear(announce("b"), now=2.0)
    membership.expire(now=5.4)
    assert heard.events == [("join", "a"), ("change", "a"), ("join", "b")]
    membership.hear(announce("b", state="left"), now=5.5)
    membership.expire(now=5.6)
    assert heard.events[3:] == [("leave", "b"), ("leave", "a")]
    assert membership.members == {}


def test_a_node_that_was_started_again_is_a_new_member_and_its_old_words_count_no_more() -> None:
    heard = Heard()
    membership = heard.build()
    membership.hear(announce("a", 1.0), now=0.0)
    membership.hear(announce("a", 2.0), now=1.0)
    membership.hear(announce("a", 1.0), now=1.1)
    membership.hear(announce("a", 1.0, state="left"), now=1.2)
    assert heard.events == [("join", "a"), ("leave", "a"), ("join", "a")]
    assert membership.is_member("a", "a@2.0")
    assert not membership.is_member("a", "a@1.0")


def test_a_recorded_announcement_changes_nothing_when_it_is_sent_again() -> None:
    heard = Heard()
    membership = heard.build()
    recorded = [announce("a", number=number, revision=str(number)) for number in (1, 2, 3)]
    for announcement in recorded:
        membership.hear(announcement, now=0.0)
    membership.hear(announce("a", number=4, revision="3", connections=1), now=1.0)
    told = list(heard.events)
    for announcement in recorded:
        membership.hear(announcement, now=4.0)
    assert membership.members["a"].announcement.connections == 1
    membership.expire(now=5.0)  # the recorded ones are no sign of life
    assert heard.events == [*told, ("leave", "a")]
    for announcement in recorded:
        membership.hear(announcement, now=6.0)
    membership.hear(announce("a"), now=6.0)  # as an earlier version would announce itself
    assert membership.members == {}
    membership.hear(announce("a", number=5), now=7.0)
    assert set(membership.members) == {"a"}


def test_a_node_gives_way_to_no_recorded_announcement_of_its_own_name() -> None:
    node = Heard().build("twin", 9.0)
    node.hear(announce("twin", 3.0, number=7), now=0.0)
    node.hear(announce("twin", 3.0, number=8, for_start="twin@1.0"), now=0.0)
    assert node.conflict is None
    node.hear(announce("twin", 3.0, number=9, for_start="twin@9.0"), now=1.0)
    node.hear(announce("twin", 3.0, number=10), now=4.0)
    node.expire(now=5.0)
    assert node.conflict is not None
    node.hear(announce("twin", 2.0, number=1, state="left"), now=5.0)
    assert node.conflict is not None
    node.hear(announce("twin", 3.0, number=11, state="left"), now=5.0)
    assert node.conflict is None


def test_the_later_of_two_nodes_with_one_name_gives_way() -> None:
    later, earlier = Heard().build("twin", 9.0), Heard().build("twin", 3.0)
    later.hear(announce("twin", 3.0), now=0.0)
    earlier.hear(announce("twin", 9.0), now=0.0)
    assert later.conflict is not None
    assert "node_id" in later.conflict
    assert earlier.conflict is None
    later.hear(announce("twin", 3.0, state="left"), now=1.0)
    assert later.conflict is None


def test_a_thousand_nodes_join_and_leave() -> None:
    heard = Heard()
    membership = heard.build()
    for second in range(5):
        for number in range(1000):
            membership.hear(announce(f"n{number}"), now=float(second))
        membership.expire(now=float(second))
    assert len(membership.members) == 1000
    membership.expire(now=60.0)
    assert len(membership.members) == 0
    assert len(heard.events) == 2000


def test_a_node_with_a_protocol_that_one_side_does_not_understand_is_not_taken_in_until_it_is_updated() -> None:
    heard = Heard()
    membership = heard.build()
    membership.hear(announce("future", protocol=9, oldest_protocol=8), now=0.0)
    membership.hear(announce("past", protocol=0), now=0.0)
    membership.hear(announce("next", protocol=9, oldest_protocol=1), now=0.0)
    assert set(membership.members) == {"next"}
    assert set(membership.refused) == {"future", "past"}
    assert "Update this node" in (describe_mismatch(membership.refused["future"].announcement) or "")
    assert "Update that node" in (describe_mismatch(membership.refused["past"].announcement) or "")
    membership.hear(announce("future", start=2.0), now=1.0)
    assert set(membership.members) == {"next", "future"}
    membership.expire(now=60.0)
    assert (membership.members, membership.refused) == ({}, {})


def test_clocks_that_differ_by_minutes_do_no_harm() -> None:
    heard = Heard()
    membership = heard.build(started_at=1000.0)
    for clock in (-120.0, 120.0):
        membership.hear(announce(f"off-{clock:g}", start=1000.0 + clock), now=0.0)
    for second in range(1, 4):
        for clock in (-120.0, 120.0):
            membership.hear(announce(f"off-{clock:g}", start=1000.0 + clock), now=float(second))
        membership.expire(now=float(second))
    assert len(membership.members) == 2
    # After a kill, a node whose clock was set back is taken in as soon as the earlier one counts as gone.
    membership.hear(announce("off-120", start=900.0), now=4.0)
    membership.expire(now=7.5)
    membership.hear(announce("off-120", start=900.0), now=7.6)
    assert membership.members["off-120"].announcement.started_at == 900.0


def test_what_a_later_version_adds_to_an_announcement_or_a_message_is_ignored() -> None:
    facts = msgspec.to_builtins(announce("a"))
    heard = msgspec.convert({**facts, "weather": "fine", "state": "resting"}, Announcement)
    assert heard.member == "a"
    request = msgspec.msgpack.encode(["q", 1, "a", "start", "POST", "/", {}, b"body", True, "more", 7])
    message = decode_message(request)
    assert isinstance(message, RequestMessage)
    assert message.body == b"body"
    frame = encode_frame(ValueFrame(msgspec.Raw(msgspec.msgpack.encode(1))))
    assert read_single_frame(frame, 100) is not None
    assert read_single_frame(frame + b"x", 100) is None


class FakeHolder:
    peer: Any = None

    def __init__(self, name: str, site: str = "here", calls: int = 0, *, is_leaving: bool = False) -> None:
        self.name, self.site, self.calls, self.is_leaving = name, site, calls, is_leaving


def listed(agent_id: str, status: Status = "online", **more: Any) -> ListedAgent:
    manifest = Manifest(agent_id=agent_id, endpoint={}, capabilities=(Capability(name="work"),), **more)
    return ListedAgent(manifest=manifest, status=status)


async def test_holders_are_chosen_by_site_then_by_load_then_by_name_and_last_those_that_stop() -> None:
    agents = MeshAgents("here", SharedAgents())
    for holder in (
        FakeHolder("d", "there"),
        FakeHolder("c", calls=2),
        FakeHolder("b", calls=1),
        FakeHolder("a", calls=1),
        FakeHolder("0", is_leaving=True),
    ):
        agents.set_listing(holder, [listed("x")])
    assert [each.name for each in agents.find_holders("x")] == ["a", "b", "c", "d", "0"]
    agents.remove("a")
    assert [each.name for each in agents.find_holders("x")] == ["b", "c", "d", "0"]


async def test_the_status_of_an_agent_is_the_best_that_one_of_its_nodes_says() -> None:
    agents, reports = MeshAgents("here", SharedAgents()), list[tuple[str, Status, str | None]]()
    agents.on_status = lambda *report: reports.append(report)
    agents.set_listing(FakeHolder("a"), [listed("x", "degraded"), listed("y")])
    agents.set_listing(FakeHolder("b"), [listed("x", "online")])
    agents.set_listing(FakeHolder("b"), [listed("x", "online")])
    agents.remove("b")
    agents.remove("a")
    assert reports == [
        ("x", "degraded", None),
        ("y", "online", None),
        ("x", "online", None),
        ("x", "degraded", None),
        ("x", "offline", "node 'a' left the mesh"),
        ("y", "offline", "node 'a' left the mesh"),
    ]
    assert {each.agent_id for each in await agents.load()} == {"x", "y"}  # they stay listed
    agents.set_listing(FakeHolder("a"), [listed("y")])
    assert {each.agent_id for each in await agents.load()} == {"x", "y"}
    assert agents.get_status("x") == ("offline", "node 'b' left the mesh")


def test_agents_of_one_name_that_are_not_the_same_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    agents = MeshAgents("here", SharedAgents())
    own = {"mine": listed("mine", trust_tier="local").manifest}
    agents.find_own = own.get
    agents.set_listing(FakeHolder("a"), [listed("x"), listed("same"), listed("mine")])
    sentence = "is not the same at"
    assert caplog.text.count(sentence) == 1
    assert "agent mine is not the same at this node and at node a" in caplog.text
    agents.set_listing(FakeHolder("c"), [listed("x", trust_tier="local"), listed("same")])
    agents.set_listing(FakeHolder("b"), [listed("x"), listed("same", "offline")])
    assert "agent x is not the same at node a and at node c" in caplog.text
    assert "Callers of this node see that of node a" in caplog.text
    assert caplog.text.count(sentence) == 2
    assert agents.describe("x") == listed("x").manifest  # as at every other node
    agents.remove("c")
    agents.set_listing(FakeHolder("c"), [listed("x", trust_tier="local")])
    assert caplog.text.count(sentence) == 3


@pytest.mark.parametrize(
    ("shared", "is_allowed"),
    [
        (SharedAgents(), True),
        (SharedAgents(agents=("bill*",)), True),
        (SharedAgents(agents=("other",)), False),
        (SharedAgents(tags=("public",)), True),
        (SharedAgents(tags=()), False),
        (SharedAgents(tiers=("local",)), False),
        (SharedAgents(audiences=("work",)), True),
        (SharedAgents(audiences=("personal",)), False),
    ],
)
def test_what_crosses_the_border_of_a_site(shared: SharedAgents, is_allowed: bool) -> None:
    manifest = Manifest(agent_id="billing", endpoint={}, tags=("public", "money"), audience="work")
    assert is_shared(shared, manifest) is is_allowed


@pytest.mark.parametrize(
    "error",
    [
        AgentOffline("away", agent_id="x"),
        AgentBusy("busy", retry_after=3.0),
        UpstreamFailed("broken"),
        UpstreamInterrupted("lost"),
    ],
)
def test_an_error_is_of_the_same_kind_at_the_other_peer(error: FabricError) -> None:
    error.is_inconclusive = True
    (frame,) = FrameReader(1 << 20).feed(encode_frame(frame_from_error(error)))
    assert isinstance(frame, ErrorFrame)
    restored = error_from_frame(frame)
    assert type(restored) is type(error)
    assert (restored.message, restored.details, restored.is_inconclusive) == (error.message, error.details, True)
    assert (restored.never_ran, restored.falls_back, restored.is_answer) == (
        error.never_ran,
        error.falls_back,
        error.is_answer,
    )


def test_frames_are_read_from_pieces_of_any_size_and_bounded() -> None:
    frames = [EventFrame(Event("token", {"text": "x" * size})) for size in (0, 1, 5000)]
    stream = b"".join(map(encode_frame, frames))
    reader = FrameReader(10_000)
    assert [frame for at in range(len(stream)) for frame in reader.feed(stream[at : at + 1])] == frames
    with pytest.raises(UpstreamFailed, match="limit"):
        list(FrameReader(100).feed(stream))
    with pytest.raises(UpstreamFailed, match="cannot be read"):
        list(FrameReader(100).feed(b"\0\0\0\1\xc1"))


def test_the_owner_of_an_id_is_its_end() -> None:
    assert find_tag("0123~w1") == "w1"
    assert find_tag("agent:sig:mcp.abc~node-1-w0") == "node-1-w0"
    assert find_tag("without") is None


def test_metrics_of_several_processes_are_one_exposition() -> None:
    def exposition(calls: int, streams: float, status: float) -> bytes:
        return (
            "# HELP fabric_calls_total Calls\n# TYPE fabric_calls_total counter\n"
            f'fabric_calls_total{{a="x y"}} {calls}\n'
            "# HELP fabric_active_streams Open\n# TYPE fabric_active_streams gauge\n"
            f"fabric_active_streams {streams}\n"
            "# HELP fabric_agent_status Status\n# TYPE fabric_agent_status gauge\n"
            f'fabric_agent_status{{agent_id="p"}} {status}\n'
        ).encode()

    merged = merge_expositions([exposition(3, 1.0, 0.5), exposition(4, 2.0, 1.0)]).decode().splitlines()
    assert 'fabric_calls_total{a="x y"} 7' in merged
    assert "fabric_active_streams 3" in merged
    assert 'fabric_agent_status{agent_id="p"} 1' in merged
    assert len([line for line in merged if line.startswith("# TYPE")]) == 3


def test_a_member_is_named_as_it_announces_itself() -> None:
    assert Member(announce("a"), 0.0).name == "a"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 64, 10_000])
async def test_messages_reach_their_handler_once_and_in_order_however_the_stream_is_cut(size: int) -> None:
    """Complete ones on the fast path, the others through the parser of the library, which sees all that is not ours."""
    client, got = DirectClient(), list[bytes]()
    client._handlers[b"7"] = got.append
    reader = DirectReader(1 << 16, client.take)
    wanted = [b"x" * number + b"\r\nMSG a 7 3\r\n" for number in range(20)]
    parts = [b"MSG a.b 7 %d\r\n%b\r\n" % (len(each), each) for each in wanted]
    parts.insert(3, b"PONG\r\n")
    parts.insert(9, b"MSG other 8 5\r\nhello\r\n")
    stream = b"".join(parts)
    for at in range(0, len(stream), size):
        reader.feed_data(stream[at : at + size])
        if reader._buffer:  # type: ignore[attr-defined]
            await client._ps.parse(await reader.read(1 << 16))
    assert got == wanted
