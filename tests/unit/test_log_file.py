"""The log file: rotation, moved files, a full disk; what is written about the store and secrets, and for people."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from a2a_fabric.core.errors import STORE_AWAY, STORE_BACK
from a2a_fabric.core.redaction import redact_json, redact_text
from a2a_fabric.telemetry.log import JSONHandler, LogWriter, StoreOutage
from a2a_fabric.telemetry.log_entries import CallLogEntry, TextLogEntry, format_entry
from a2a_fabric.telemetry.log_file import LogFile


def make_entry(message: str) -> TextLogEntry:
    return TextLogEntry(
        time="2026-11-18T12:00:00.000Z",
        level="info",
        event="log",
        trace_id="t",
        span_id="s",
        logger="x",
        message=message,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.log"


def test_a_file_that_would_become_too_large_is_rotated(path: Path) -> None:
    file = LogFile(path, max_bytes=100, keep=2)
    for number in range(8):
        file.write(f"{number}" * 49 + "\n")
    file.close()
    assert [len(each.read_bytes()) for each in (path, Path(f"{path}.1"), Path(f"{path}.2"))] == [100, 100, 100]
    assert path.read_text().startswith("6")
    assert Path(f"{path}.2").read_text().startswith("2")
    assert not Path(f"{path}.3").exists()


def test_two_processes_share_a_file_that_is_rotated(path: Path) -> None:
    first, second = LogFile(path, max_bytes=100), LogFile(path, max_bytes=100)
    first.write("a" * 59 + "\n")
    second.write("b" * 59 + "\n")
    first.write("c" * 59 + "\n")
    second.write("d" * 59 + "\n")
    names = sorted(each.name for each in path.parent.iterdir())
    assert names == ["node.log", "node.log.1", "node.log.2"], "each file was rotated once"
    first.close()
    second.close()
    texts = "".join(each.read_text() for each in path.parent.iterdir())
    assert sorted(line[0] for line in texts.splitlines()) == ["a", "b", "c", "d"]


def test_a_moved_file_is_left_when_a_signal_says_so_and_a_removed_one_is_noticed(path: Path) -> None:
    file = LogFile(path)
    file.write("one\n")
    moved = path.rename(path.with_suffix(".old"))
    file.request_reopen()
    file.write("two\n")
    assert (moved.read_text(), path.read_text()) == ("one\n", "two\n")
    path.unlink()
    file._checked_at = float("-inf")  # as if a second had passed
    file.write("three\n")
    assert path.read_text() == "three\n"
    file.close()


def test_a_folder_that_is_gone_costs_lines_and_not_the_node(path: Path) -> None:
    folder = path.parent / "logs"
    folder.mkdir()
    file = LogFile(folder / "node.log")
    writer = LogWriter(file)
    (folder / "node.log").unlink()
    folder.rmdir()
    writer.reopen()
    writer.write(make_entry("lost"))
    writer.flush()
    assert (writer.lost, writer.failure) == (1, "No such file or directory")
    folder.mkdir()
    writer.reopen()
    writer.write(make_entry("kept"))
    writer.close()
    lines = [json.loads(line)["message"] for line in (folder / "node.log").read_text().splitlines()]
    assert lines == ["1 log lines were lost: No such file or directory", "kept"]
    file.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, which Linux has")
def test_lines_for_a_full_disk_are_counted() -> None:
    file = LogFile(Path("/dev/full"))
    writer = LogWriter(file)
    for _ in range(3):
        writer.write(make_entry("x"))
    writer.flush()
    assert (writer.lost, writer.failure) == (3, "No space left on device")
    assert "fabric_log_lines_lost_total 3.0" in "".join(writer.render_metrics())
    writer.close()
    file.close()


def test_a_line_after_a_write_that_was_cut_begins_a_line_of_its_own(path: Path) -> None:
    file = LogFile(path)
    file.write("whole\n")
    file._is_cut = True  # as after a disk became full inside a line
    file.write("next\n")
    assert path.read_text() == "whole\n\nnext\n"
    file.close()


@pytest.fixture
def logged() -> Iterator[tuple[logging.Logger, io.StringIO, LogWriter]]:
    stream = io.StringIO()
    writer, logger = LogWriter(stream), logging.getLogger("a2a_fabric.test_log_file")
    handler = JSONHandler(writer)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger, stream, writer
    logger.removeHandler(handler)
    writer.close()


def test_an_outage_of_the_store_is_one_line_and_one_at_its_end(
    logged: tuple[logging.Logger, io.StringIO, LogWriter],
) -> None:
    logger, stream, writer = logged
    for number in range(9):
        logger.warning("part %d waits for the store", number, extra=STORE_AWAY)
    logger.info("the store answers again", extra=STORE_BACK)
    logger.info("the store answers again", extra=STORE_BACK)
    logger.error("away again", extra=STORE_AWAY)
    writer.flush()
    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages == ["part 0 waits for the store", "the store answers again", "away again"]


def test_a_single_hiccup_of_the_store_does_not_hide_a_later_outage() -> None:
    now = 0.0
    outage = StoreOutage(lambda: now)
    assert outage.is_news(is_away=True)
    now = 30.0
    assert not outage.is_news(is_away=True)
    now = 100.0
    assert outage.is_news(is_away=True)


def test_credentials_are_redacted_in_messages_tracebacks_and_json(
    logged: tuple[logging.Logger, io.StringIO, LogWriter],
) -> None:
    logger, stream, writer = logged
    token = "ghp_" + "a" * 36
    try:
        raise ValueError(f"refused with Bearer {token}")
    except ValueError:
        logger.exception("could not connect to postgresql://user:hunter2@db/fabric")
    writer.flush()
    for secret in (token, "hunter2"):
        assert secret not in stream.getvalue()
    assert redact_text("plain text, see http://127.0.0.1:8000/x") == "plain text, see http://127.0.0.1:8000/x"
    value = {"api_key": "abc", "password": "x", "max_tokens": 5, "token_count": "7", "list": [f"a {token}"]}
    assert redact_json(value) == {
        "api_key": "[redacted]",
        "password": "[redacted]",
        "max_tokens": 5,
        "token_count": "7",
        "list": ["a [redacted]"],
    }


def test_a_line_for_people_names_caller_door_and_attempts() -> None:
    entry = CallLogEntry(
        time="2026-11-18T12:00:00.000Z", level="warning", event="call", trace_id="t", span_id="s", principal="anna",
        on_behalf_of="bert", door="mcp", target="percy", capability="reason", status="failed", error_code="TIMEOUT",
        error="too slow\x1b[2J", attempts=("percy: timeout", "morse: offline"), duration_ms=12.0,
    )  # fmt: skip
    assert format_entry(entry) == (
        "12:00:00 warning percy.reason 12.0 ms TIMEOUT: too slow?[2J (percy: timeout, morse: offline)"
        "  anna for bert at mcp  trace t"
    )
    assert b"attempts" in msgspec.json.encode(entry)
