"""What a node accepts over HTTP from others: requests that were made for it, and each of them once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from a2a_fabric.cli.program import app
from a2a_fabric.core.limits import BodyLimit
from a2a_fabric.doors.edge import ON_DISCONNECT_KEY
from a2a_fabric.mesh.direct import DIRECT_PATH, DirectCalls, DirectEndpoint, DirectKeys, NodeStart
from a2a_fabric.mesh.messages import RequestMessage, encode_message
from a2a_fabric.mesh.services import WritePiece
from a2a_fabric.mesh.settings import DirectSettings

KEY = b"k" * 32
NEAR, FAR = NodeStart("near", "1"), NodeStart("far", "1")


def make_endpoint(own: NodeStart = FAR) -> tuple[DirectEndpoint, list[bytes]]:
    served: list[bytes] = []

    async def serve_call(body: bytes, write: WritePiece) -> None:
        served.append(body)
        await write(b"done", True)

    endpoint = DirectEndpoint(own, DirectKeys(KEY), lambda name, start_id: (name, start_id) != ("near", "gone"))
    endpoint.open(serve_call, BodyLimit(1000))
    return endpoint, served


def make_request(
    *, sender: NodeStart = NEAR, receiver: NodeStart = FAR, number: int = 1, key: bytes = KEY
) -> tuple[str, bytes]:
    """The token of the head, and the body."""
    keys = DirectKeys(key)
    message = RequestMessage(number, sender.name, sender.start_id, "POST", DIRECT_PATH, {}, b"a call", True)
    return f"{sender} {keys.compute_token(sender, receiver)}", keys.sign(receiver, encode_message(message))


async def post(endpoint: DirectEndpoint, head: str, body: bytes) -> int:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"x-fabric-node", head.encode()), (b"content-length", b"%d" % len(body))]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": DIRECT_PATH, "headers": headers, "client": None}
    scope[ON_DISCONNECT_KEY] = lambda callback: None
    await endpoint(scope, receive, send)
    return int(sent[0]["status"])


async def test_each_request_is_accepted_once() -> None:
    endpoint, served = make_endpoint()
    first, second = make_request(number=1), make_request(number=2)
    assert [await post(endpoint, *each) for each in (second, first, first, second)] == [200, 200, 503, 503]
    assert served == [b"a call"] * 2


async def test_a_large_request_that_thousands_overtake_on_other_connections_is_accepted() -> None:
    endpoint, _ = make_endpoint()
    for number in range(2, 5000):
        assert await post(endpoint, *make_request(number=number)) == 200
    assert [await post(endpoint, *make_request(number=number)) for number in (1, 1, -(10**9))] == [200, 503, 503]


async def test_a_recorded_request_is_worth_nothing_after_a_restart_of_either_node() -> None:
    endpoint, served = make_endpoint()
    recorded = make_request()
    assert await post(endpoint, *recorded) == 200
    assert await post(endpoint, *make_request(sender=NodeStart("near", "2"))) == 200
    assert await post(endpoint, *recorded) == 503  # also if its sender's old start counts as a member again
    restarted, served_again = make_endpoint(NodeStart("far", "2"))
    assert await post(restarted, *recorded) == 403
    head, _ = make_request(receiver=NodeStart("far", "2"))
    assert await post(restarted, head, recorded[1]) == 503
    assert (len(served), served_again) == (2, [])


async def test_a_request_of_a_stranger_or_of_a_node_that_left_is_refused() -> None:
    endpoint, served = make_endpoint()
    assert await post(endpoint, *make_request(key=b"another key")) == 403
    head, _ = make_request()
    _, body = make_request(key=b"another key")
    assert await post(endpoint, head, body) == 503
    assert await post(endpoint, *make_request(sender=NodeStart("near", "gone"))) == 503
    _, of_another = make_request(sender=NodeStart("other", "1"))
    assert await post(endpoint, head, of_another) == 503
    assert await post(endpoint, head, b"x" * 2_000_000) == 200  # an error as its frame, as over NATS
    assert served == []


@pytest.mark.parametrize(
    ("url", "is_used"),
    [
        ("https://berlin-1.example:8000", True),
        ("http://127.0.0.1:8000", True),
        ("http://berlin-1.example:8000", False),  # the network could read the calls
        ("http://169.254.169.254/latest", False),
        ("https://user:secret@berlin-1.example", False),
        ("https://berlin-1.example/calls/", True),
        ("https://berlin-1.example/?q=1", False),
        ("https://[berlin", False),
        ("https://berlin-1.example:port", False),
        ("https://berlin-1.example\r\nX: y", False),
        ("file:///etc/passwd", False),
        ("berlin", False),
    ],
)
async def test_calls_are_sent_to_an_announced_address_only_if_a_node_may_have_it(url: str, is_used: bool) -> None:
    calls = DirectCalls(DirectSettings(), NEAR, KEY, lambda name, start_id: True)
    link = calls.link_to(FAR, url, 1000)
    assert (link is not None) == is_used
    if link is not None:
        await link.aclose()


@pytest.mark.parametrize(
    ("mesh", "sentence"),
    [
        ("direct: {}", "calls over HTTP need a `key` of the mesh"),
        ("key: a-secret-of-the-mesh, direct: {url: 'http://berlin-1.example:8000'}", "over https://"),
        ("key: a-secret-of-the-mesh, direct: {url: 'https://[berlin'}", "over https://"),
        ("key: a-secret-of-the-mesh, direct: {url: 'https://berlin-1.example', ca: missing.pem}", "mesh.direct.ca"),
        ("key: a-secret-of-the-mesh, direct: {url: 'https://berlin-1.example'}", ""),
    ],
)
def test_what_calls_over_http_need_is_said_at_the_start(tmp_path: Path, mesh: str, sentence: str) -> None:
    settings = tmp_path / "fabric.yaml"
    settings.write_text(f"node_id: a\nstore: 'memory:'\nmesh: {{nats: 'nats://127.0.0.1', {mesh}}}\n")
    outcome = CliRunner().invoke(app, ["check", "--config", str(settings)])
    assert (outcome.exit_code != 0, sentence in outcome.output) == (bool(sentence), True), outcome.output
