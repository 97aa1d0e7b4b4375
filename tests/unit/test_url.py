"""How URLs are read, and which are turned away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.outbound.guard import Url, parse_url
from a2a_fabric.outbound.port import ConnectFailed

BOOKS = "xn--bcher-kva.test"


@pytest.mark.parametrize(
    ("text", "expected", "authority"),
    [
        ("http://a.test", Url("http", "a.test", 80, "/"), "a.test"),
        ("HTTPS://A.Test:443/X?Y#z", Url("https", "a.test", 443, "/X?Y"), "a.test"),
        ("http://a.test:8080?q=1", Url("http", "a.test", 8080, "/?q=1"), "a.test:8080"),
        ("http://a.test:/", Url("http", "a.test", 80, "/"), "a.test"),
        ("http://my_agent-1:80/", Url("http", "my_agent-1", 80, "/"), "my_agent-1"),
        ("http://[::1]:81/", Url("http", "::1", 81, "/"), "[::1]:81"),
        ("http://[0:0::0001]/", Url("http", "::1", 80, "/"), "[::1]"),
        ("http://2130706433/", Url("http", "2130706433", 80, "/"), "2130706433"),
        ("http://bücher.test/ä?ö=%20", Url("http", "xn--bcher-kva.test", 80, "/%C3%A4?%C3%B6=%20"), BOOKS),
        ("http://１２７。0.0.1/", Url("http", "127.0.0.1", 80, "/"), "127.0.0.1"),
        ("http://a.test/{x}|\"<>^`", Url("http", "a.test", 80, "/%7Bx%7D%7C%22%3C%3E%5E%60"), "a.test"),
        ("http://a.test/@b:c", Url("http", "a.test", 80, "/@b:c"), "a.test"),
    ],
)  # fmt: skip
def test_a_url_is_taken_apart(text: str, expected: Url, authority: str) -> None:
    assert parse_url(text) == expected
    assert expected.authority == authority


@pytest.mark.parametrize(
    "text",
    [
        "", "http", "http:", "http://", "http:///x", "//a.test/", "http:a.test", "ftp://a.test/",
        "http://u@a.test/", "http://u:p@a.test/", "http://@a.test/", "http://a.test@b.test/",
        "http://a.test:0/", "http://a.test:65536/", "http://a.test:-1/", "http://a.test:8x/", "http://a.test:1:2/",
        "http://a.test:٣/", "http://[::1/", "http://::1/", "http://[::1]x/", "http://[fe80::1%25eth0]/", "http://[a.test]/",
        "http://a..test/", "http://.test/", "http://a%2etest/", "http://a!b/", f"http://{'x' * 64}.test/",
        "http://a.test\\@b.test/", "http://a.test/a b", "http://a.test/\x7f", "http://a.test/\u200b",
        "http://a.test/\ud800", "http://\u2100.test/", "http://a\uff0fb.test/",
    ],
)  # fmt: skip
def test_what_is_not_plainly_a_url_is_turned_away(text: str) -> None:
    with pytest.raises(ConnectFailed):
        parse_url(text)


@given(st.text(max_size=40))
def test_whatever_passes_is_safe_to_write_into_a_request(text: str) -> None:
    try:
        url = parse_url("http://" + text)
    except ConnectFailed:
        return
    line = f"GET {url.target} HTTP/1.1 {url.authority}"
    assert line.isascii()
    assert line.isprintable()
    assert line.count(" ") == 3
    assert url.target.startswith("/")
    assert "@" not in url.authority


def test_a_secret_in_a_url_is_not_repeated_in_the_error() -> None:
    for text in ("http://u:s3cret@a.test/", "http://a.test:99999/?key=s3cret", "nonsense?key=s3cret"):
        with pytest.raises(ConnectFailed) as caught:
            parse_url(text)
        assert "s3cret" not in str(caught.value)
