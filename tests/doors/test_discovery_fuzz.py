"""Whatever is searched for, the answer is results or a reason, never a 5xx and never a traceback."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doors.rest_bench import mirror, percy
from tests.fixtures.fuzzing import LEAK, MARKS, many
from tests.fixtures.node import PSK, running_in_thread

pytestmark = MARKS

FUZZ = many(100)
HEADERS = {"Authorization": f"Bearer {PSK}", "Content-Type": "application/json"}
KEYS = ["query", "q", "text", "capability", "tag", "trust_tier", "limit", "cursor", "pageSize", "pageToken", "filter"]
words = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | words
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=10
)
searches = st.dictionaries(st.sampled_from(KEYS) | words, values, max_size=4)


@pytest.fixture(scope="module")
def line() -> Iterator[http.client.HTTPConnection]:
    config = {"doors": [{"kind": "fabric"}, {"kind": "discovery"}], "health": {"interval": 0}}
    with running_in_thread(percy(), mirror(), config=config) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        yield connection
        connection.close()


def check(line: http.client.HTTPConnection, verb: str, path: str, body: bytes | None = None) -> None:
    line.request(verb, path, body, HEADERS)
    response = line.getresponse()
    answer = response.read()
    assert response.status in (200, 400), answer
    assert LEAK not in answer
    told = json.loads(answer)
    if response.status == 200:
        assert isinstance(told["results"], list)
    else:
        assert told["error"]
        assert told["errorCode"]


@FUZZ
@given(body=st.binary(max_size=200))
def test_any_bytes(line: http.client.HTTPConnection, body: bytes) -> None:
    check(line, "POST", "/search", body)


@FUZZ
@given(body=searches | st.fixed_dictionaries({"query": searches}) | values)
def test_any_search(line: http.client.HTTPConnection, body: Any) -> None:
    check(line, "POST", "/search", json.dumps(body).encode())


@FUZZ
@given(asked=st.dictionaries(st.sampled_from(KEYS), words, max_size=4))
def test_any_search_by_address(line: http.client.HTTPConnection, asked: dict[str, str]) -> None:
    check(line, "GET", f"/search?{urlencode(asked)}")
