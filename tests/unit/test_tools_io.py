"""io.*: what they do inside their folder, and every way out of it that we know of."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric.core.errors import FabricError
from tests.marks import requirement
from tests.unit.tool_bench import Bench, bench, files_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the tools, with a secret beside it."""
    (tmp_path / "secret.txt").write_text("secret")
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (inside / "a.txt").write_text("one\ntwo\nthree\n")
    (inside / "sub" / "b.py").write_text("import two\n")
    return inside


@requirement("000-16")
async def test_a_file_is_read_whole(folder: Path) -> None:
    async with bench(folder) as tools:
        answer = await tools("io.read_file", path="a.txt")
    expected = {"content": "one\ntwo\nthree\n", "line_count": 3, "truncated": False, "path": "a.txt", "size": 14}
    assert answer == expected


@pytest.mark.parametrize(
    ("max_lines", "content", "truncated"),
    [(2, "one\ntwo\n", True), (3, "one\ntwo\nthree\n", False), (9, "one\ntwo\nthree\n", False)],
)
async def test_truncated_is_said_only_when_something_is_left_out(
    folder: Path, max_lines: int, content: str, truncated: bool
) -> None:
    async with bench(folder) as tools:
        answer = await tools("io.read_file", path="a.txt", max_lines=max_lines)
    assert (answer["content"], answer["truncated"]) == (content, truncated)
    assert answer["line_count"] == min(max_lines, 3)


async def test_a_file_beyond_the_limit_is_cut_between_characters(folder: Path) -> None:
    (folder / "long.txt").write_text("ä" * 100)
    async with bench(folder, io_max_bytes=11) as tools:
        answer = await tools("io.read_file", path="long.txt")
    assert (answer["content"], answer["truncated"], answer["size"]) == ("ä" * 5, True, 200)


async def test_bytes_that_are_not_text_are_a_decode_error(folder: Path) -> None:
    (folder / "latin.txt").write_bytes("grün".encode("latin-1"))
    async with bench(folder) as tools:
        assert (await tools("io.read_file", path="latin.txt", encoding="latin-1"))["content"] == "grün"
        await tools.fails("io.read_file", "BAD_INPUT", "DECODE_ERROR", path="latin.txt")
        for encoding in ("klingon", "zlib", "zip", "idna", "punycode", "unicode_escape", "rot13", "utf-8\0", "../x"):
            await tools.fails("io.read_file", "BAD_INPUT", "DECODE_ERROR", path="a.txt", encoding=encoding)


@pytest.mark.parametrize("path", ["none.txt", "sub", ".", "./", "sub/none.txt"])
async def test_what_is_no_file_is_not_found(folder: Path, path: str) -> None:
    async with bench(folder) as tools:
        await tools.fails("io.read_file", "BAD_INPUT", "FILE_NOT_FOUND", path=path)


async def test_a_missing_folder_is_said_to_be_missing(folder: Path) -> None:
    async with bench(folder) as tools:
        await tools.fails("io.read_file", "BAD_INPUT", "DIR_NOT_FOUND", path="none/a.txt")
        await tools.fails("io.read_file", "BAD_INPUT", "DIR_NOT_FOUND", path="a.txt/a.txt")
        await tools.fails("io.list_directory", "BAD_INPUT", "DIR_NOT_FOUND", path="none")
        await tools.fails("io.list_directory", "BAD_INPUT", "DIR_NOT_FOUND", path="a.txt")
        await tools.fails("io.search_files", "BAD_INPUT", "DIR_NOT_FOUND", path="none", pattern="a")
    async with bench(folder, io_root="nowhere") as tools:
        await tools.fails("io.list_directory", "BAD_INPUT", "DIR_NOT_FOUND")


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt", "sub/../../secret.txt", "./../secret.txt", "/etc/passwd", "//etc/passwd", "sub/..", "..",
        "a.txt\0", "/proc/self/environ", "sub/../a.txt",
    ],
)  # fmt: skip
async def test_no_path_leads_out(folder: Path, path: str) -> None:
    async with bench(folder, io_write=True) as tools:
        await tools.fails("io.read_file", "AUTH_DENIED", "ACCESS_DENIED", path=path)
        await tools.fails("io.write_file", "AUTH_DENIED", "ACCESS_DENIED", path=path, content="x")
        await tools.fails("io.list_directory", "AUTH_DENIED", "ACCESS_DENIED", path=path)
        await tools.fails("io.search_files", "AUTH_DENIED", "ACCESS_DENIED", path=path, pattern="x")
    assert (folder.parent / "secret.txt").read_text() == "secret"


def _link_to_file(folder: Path) -> str:
    (folder / "link").symlink_to("../secret.txt")
    return "link"


def _absolute_link(folder: Path) -> str:
    (folder / "link").symlink_to("/etc/passwd")
    return "link"


def _linked_parent(folder: Path) -> str:
    (folder / "up").symlink_to("..")
    return "up/secret.txt"


def _linked_parent_inside(folder: Path) -> str:
    (folder / "down").symlink_to("sub")
    return "down/b.py"


def _link_to_link(folder: Path) -> str:
    (folder / "first").symlink_to("../secret.txt")
    (folder / "second").symlink_to("first")
    return "second"


def _dangling_link(folder: Path) -> str:
    (folder / "dangling").symlink_to("../created.txt")
    return "dangling"


def _loop(folder: Path) -> str:
    (folder / "loop").symlink_to("loop")
    return "loop"


def _pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return "pipe"


def _socket(folder: Path) -> str:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
    return "socket"


MAKERS = [
    _link_to_file, _absolute_link, _linked_parent, _linked_parent_inside, _link_to_link, _dangling_link, _loop, _pipe,
    _socket,
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
async def test_links_pipes_and_sockets_are_refused_at_once(folder: Path, make: Callable[[Path], str]) -> None:
    path = make(folder)
    async with bench(folder, io_write=True) as tools, asyncio.timeout(30):
        await tools.fails("io.read_file", "AUTH_DENIED", "ACCESS_DENIED", path=path)
        for append in (False, True):
            await tools.fails("io.write_file", "AUTH_DENIED", "ACCESS_DENIED", path=path, content="x", append=append)
        found = await tools("io.search_files", pattern="secret|root")
    assert found["matches"] == []
    assert (folder.parent / "secret.txt").read_text() == "secret"
    assert not (folder.parent / "created.txt").exists()
    assert not any(name.endswith(".tmp") for name in files_in(folder))


async def test_a_linked_folder_is_neither_listed_nor_entered(folder: Path) -> None:
    (folder / "up").symlink_to("..")
    async with bench(folder) as tools:
        await tools.fails("io.list_directory", "AUTH_DENIED", "ACCESS_DENIED", path="up")
        answer = await tools("io.list_directory", recursive=True)
    assert [entry["name"] for entry in answer["entries"]] == ["a.txt", "sub", "sub/b.py"]


async def test_a_folder_swapped_for_a_link_while_we_read_never_leads_out(folder: Path) -> None:
    """One thread swaps `door` between a folder and a link to the outside, as fast as it can, while others read."""
    (folder / "real").mkdir()
    (folder / "real" / "secret.txt").write_text("harmless")
    (folder / "link").symlink_to("..")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for source in ("real", "link"):
                os.rename(folder / source, folder / "door")
                os.rename(folder / "door", folder / source)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        async with bench(folder) as tools:
            seen = {await _content(tools, "door/secret.txt") for _ in range(400)}
    finally:
        stop.set()
        thread.join()
    assert "secret" not in seen


async def _content(tools: Bench, path: str) -> str:
    try:
        content: str = (await tools("io.read_file", path=path))["content"]
    except FabricError as exc:
        return exc.code
    return content


async def test_the_folder_itself_may_be_a_link_that_the_operator_made(folder: Path) -> None:
    (folder.parent / "alias").symlink_to("inside")
    async with bench(folder.parent, io_root="alias") as tools:
        assert (await tools("io.read_file", path="a.txt"))["size"] == 14


async def test_errors_do_not_tell_where_the_folder_lies(folder: Path) -> None:
    async with bench(folder, io_write=True) as tools:
        for path in ("none", "x" * 300, "sub", "a.txt/b", "../x"):
            with pytest.raises(FabricError) as caught:
                await tools("io.read_file", path=path)
            assert str(folder) not in caught.value.message


async def test_writing_replaces_appends_and_makes_folders(folder: Path) -> None:
    async with bench(folder, io_write=True) as tools:
        answer = await tools("io.write_file", path="new/deep/f.txt", content="grün")
        assert answer == {"bytes_written": 5, "path": "new/deep/f.txt", "append": False}
        await tools("io.write_file", path="new/deep/f.txt", content="blau")
        await tools("io.write_file", path="new/deep/f.txt", content="!", append=True)
        await tools("io.write_file", path="log.txt", content="first", append=True)
    assert (folder / "new/deep/f.txt").read_text() == "blau!"
    assert (folder / "log.txt").read_text() == "first"
    assert [path.name for path in (folder / "new/deep").iterdir()] == ["f.txt"]


async def test_replacing_keeps_the_mode_and_leaves_readers_the_old_file(folder: Path) -> None:
    (folder / "a.txt").chmod(0o600)
    with (folder / "a.txt").open() as reader:
        async with bench(folder, io_write=True) as tools:
            await tools("io.write_file", path="a.txt", content="new")
        assert reader.read() == "one\ntwo\nthree\n"
    assert (folder / "a.txt").stat().st_mode & 0o777 == 0o600
    assert (folder / "a.txt").read_text() == "new"


async def test_writing_is_bounded(folder: Path) -> None:
    async with bench(folder, io_write=True, io_max_bytes=10) as tools:
        await tools.fails("io.write_file", "AUTH_DENIED", "ACCESS_DENIED", path="b", content="x" * 11)
        await tools("io.write_file", path="b", content="x" * 10)
        await tools.fails("io.write_file", "AUTH_DENIED", "ACCESS_DENIED", path="b", content="x", append=True)
        await tools.fails("io.write_file", "BAD_INPUT", "FILE_NOT_FOUND", path="sub", content="x")
        await tools.fails("io.write_file", "UPSTREAM_ERROR", "WRITE_ERROR", path="x" * 300, content="x")
    assert (folder / "b").read_text() == "x" * 10


async def test_a_listing_has_name_type_size_and_time(folder: Path) -> None:
    async with bench(folder) as tools:
        answer = await tools("io.list_directory")
    assert (answer["path"], answer["count"]) == (".", 2)
    file, sub = answer["entries"]
    assert (file["name"], file["type"], file["size"]) == ("a.txt", "file", 14)
    assert (sub["name"], sub["type"], sub["size"]) == ("sub", "directory", None)
    assert datetime.fromisoformat(file["modified"]).timestamp() == pytest.approx((folder / "a.txt").stat().st_mtime)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"recursive": True}, ["a.txt", "sub", "sub/b.py"]),
        ({"recursive": True, "pattern": "*.py"}, ["sub/b.py"]),
        ({"pattern": "*.txt"}, ["a.txt"]),
        ({"path": "sub"}, ["b.py"]),
    ],
)
async def test_listings_are_filtered_and_recursive(folder: Path, arguments: dict[str, Any], names: list[str]) -> None:
    async with bench(folder) as tools:
        answer = await tools("io.list_directory", **arguments)
    assert [entry["name"] for entry in answer["entries"]] == names


async def test_names_that_are_not_utf8_are_listed_all_the_same(folder: Path) -> None:
    (folder / os.fsdecode(b"\xff.txt")).write_text("found me")
    async with bench(folder) as tools:
        listed = await tools("io.list_directory", pattern="*.txt")
        found = await tools("io.search_files", pattern="found")
    assert "\ufffd.txt" in [entry["name"] for entry in listed["entries"]]
    assert found["matches"][0]["file"] == "\ufffd.txt"


async def test_a_search_finds_lines_in_all_text_files(folder: Path) -> None:
    (folder / "binary").write_bytes(b"two\0two")
    async with bench(folder) as tools:
        answer = await tools("io.search_files", path=".", pattern="t(w)o")
        only = await tools("io.search_files", pattern="two", file_pattern="*.py")
        from_task = await tools("io.search_files", task="three")
    assert answer["matches"] == [
        {"file": "a.txt", "line": 2, "matches": ["two"], "text": "two"},
        {"file": "sub/b.py", "line": 1, "matches": ["two"], "text": "import two"},
    ]
    assert (answer["count"], answer["truncated"]) == (2, False)
    assert [match["file"] for match in only["matches"]] == ["sub/b.py"]
    assert from_task["matches"][0]["line"] == 3


async def test_a_search_ends_after_a_thousand_lines_and_says_so(folder: Path) -> None:
    (folder / "many.txt").write_text("hit\n" * 1500)
    async with bench(folder) as tools:
        answer = await tools("io.search_files", pattern="hit")
        await tools.fails("io.search_files", "BAD_INPUT", "INVALID_REGEX", pattern="(?=x)")
    assert (answer["count"], answer["truncated"]) == (1000, True)


async def test_what_the_file_system_refuses_is_a_read_error(folder: Path) -> None:
    async with bench(folder) as tools:
        await tools.fails("io.read_file", "UPSTREAM_ERROR", "READ_ERROR", path="x" * 300)
