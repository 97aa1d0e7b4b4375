"""security.*, encode.url and docs.markdown."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.tools.docs import MarkdownArguments, render
from a2a_fabric.tools.toolkit import TimeLimit
from tests.unit.tool_bench import bench


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha512", "SHA256"])
async def test_hashes(tmp_path: Path, algorithm: str) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("security.hash", data="grün", algorithm=algorithm)
    expected = hashlib.new(algorithm.lower(), "grün".encode()).hexdigest()
    assert answer == {"hash": expected, "algorithm": algorithm.lower(), "bytes": 5}


async def test_hash_defaults_to_sha256_and_refuses_unknown_algorithms(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        assert (await tools("security.hash", data=""))["algorithm"] == "sha256"
        error = await tools.fails("security.hash", "BAD_INPUT", "INVALID_ALGORITHM", data="a", algorithm="rot13")
        await tools.fails("security.hash", "BAD_INPUT", "HASH_ERROR", data="\ud800")
    assert "sha512" in error.message


async def test_base64_goes_both_ways(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        encoded = await tools("security.base64", data="grün")
        decoded = await tools("security.base64", data=encoded["result"], decode=True)
        for bad in ("a", "a===", "%%%%", "gr\u00fcn", "/w=="):
            await tools.fails("security.base64", "BAD_INPUT", "BASE64_ERROR", data=bad, decode=True)
    assert encoded == {"result": "Z3LDvG4=", "operation": "encode"}
    assert decoded == {"result": "grün", "operation": "decode"}


async def test_url_encoding_goes_both_ways(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        encoded = await tools("encode.url", text="a b/ü&")
        decoded = await tools("encode.url", text="a%20b%2F%C3%BC%26", decode=True)
        await tools.fails("encode.url", "BAD_INPUT", "URL_ENCODE_ERROR", text="%ff", decode=True)
    assert encoded == {
        "result": "a%20b%2F%C3%BC%26",
        "operation": "encode",
        "original_length": 6,
        "result_length": 17,
    }
    assert (decoded["result"], decoded["operation"]) == ("a b/ü&", "decode")


MARKDOWN = """# Title with `code`

Some **bold** text and [a link](http://a/).

Setext heading
--------------

## Title *with* code
# Title with code

| a | b |
|---|---|
| 1 | 2 |
"""


async def test_markdown_becomes_html_with_headings_and_contents(tmp_path: Path) -> None:
    async with bench(tmp_path) as tools:
        answer = await tools("docs.markdown", markdown=MARKDOWN)
        without = await tools("docs.markdown", markdown="# a", extract_toc=False)
    assert '<h1 id="title-with-code">Title with <code>code</code></h1>' in answer["html"]
    assert '<h2 id="setext-heading">Setext heading</h2>' in answer["html"]
    assert "<strong>bold</strong>" in answer["html"]
    assert '<a href="http://a/">a link</a>' in answer["html"]
    assert "<td>1</td>" in answer["html"]
    assert answer["headings"] == [
        {"level": 1, "title": "Title with code", "anchor": "title-with-code"},
        {"level": 2, "title": "Setext heading", "anchor": "setext-heading"},
        {"level": 2, "title": "Title with code", "anchor": "title-with-code-1"},
        {"level": 1, "title": "Title with code", "anchor": "title-with-code-2"},
    ]
    assert answer["heading_count"] == 4
    assert answer["toc"] == answer["headings"]
    assert "toc" not in without


async def test_markdown_cannot_bring_in_scripts(tmp_path: Path) -> None:
    attack = (
        "<script>alert(1)</script>\n\n<img src=x onerror=y>\n\n[a](javascript:alert(1)) # `<b>`\n\n# <i onclick=z>\n"
    )
    async with bench(tmp_path) as tools:
        html = (await tools("docs.markdown", markdown=attack))["html"]
    assert "<script" not in html
    assert "<img" not in html
    assert "<i " not in html
    assert "href" not in html


@given(st.text("#*_`[]()<>!|-\n ab~>\\", max_size=80))
def test_any_text_is_markdown(text: str) -> None:
    assert isinstance(render(TimeLimit(5), MarkdownArguments(markdown=text))["html"], str)


@pytest.mark.parametrize("piece", ["[", "`a", "*a_", ">", "- ", "<", "[a](", "![[", "**x"])
async def test_markdown_made_to_be_slow_ends_soon(tmp_path: Path, piece: str) -> None:
    started = time.process_time()
    async with bench(tmp_path) as tools:
        await tools("docs.markdown", markdown=piece * (100_000 // len(piece)))
    assert time.process_time() - started < 15
