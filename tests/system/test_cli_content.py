"""`a2a-fabric call` with files: attached to the task, listed in the answer, saved where nothing can be overwritten."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Done

from a2a_fabric.agent import Agent
from a2a_fabric.cli.call import MAX_ATTACHED_BYTES
from a2a_fabric.cli.program import app
from a2a_fabric.core.call import Call
from a2a_fabric.core.result import Part, Result
from tests.fixtures.node import PSK, running_in_thread

PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8
EVIL = "../../.ssh/\x1b[2Jauthorized_keys"


def painter() -> Agent:
    agent = Agent("painter")

    @agent.capability
    async def show(task: str, things: list[Part]) -> Any:
        return Result(data={"answer": task or "here"}, parts=tuple(things))

    @agent.capability
    async def many(task: str) -> list[Part]:
        coded = base64.b64encode(PIXEL).decode()
        return [
            Part(kind="image", blob=coded, mime_type="image/png", name=EVIL),
            Part(kind="function_call", data={"name": "add"}),
            Part(kind="file", url="https://example.org/a.pdf"),
            Part(kind="file", blob="not base64", name="broken"),
        ]

    @agent.capability
    async def where(task: str, call: Call) -> dict[str, Any]:
        return {"conversation": call.conversation_id or None}

    return agent


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_in_thread(painter()) as found:
        yield found


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    file = tmp_path / "dot.png"
    file.write_bytes(PIXEL)
    return file


def call(url: str, *words: str) -> Done:
    return CliRunner().invoke(app, ["call", *words, "--url", url, "--token", PSK])


def test_files_go_along_and_the_answer_lists_them(url: str, picture: Path) -> None:
    notes = picture.with_name("notes.txt")
    notes.write_text("words")
    done = call(url, "painter", "show", "look", "--attach", str(picture), "--attach", str(notes))
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "look",
        "image  image/png  2.1 KB  dot.png",
        "file  text/plain  5 bytes  notes.txt",
    ]


def test_json_shows_them_whole(url: str, picture: Path) -> None:
    done = call(url, "painter", "show", "look", "--attach", str(picture), "--json")
    (part,) = json.loads(done.stdout)["parts"]
    assert base64.b64decode(part["blob"]) == PIXEL
    assert (part["kind"], part["mime_type"], part["name"]) == ("image", "image/png", "dot.png")


def test_what_comes_back_is_saved_as_it_was(url: str, picture: Path, tmp_path: Path) -> None:
    for _ in range(2):
        done = call(url, "painter", "show", "--attach", str(picture), "--save", str(tmp_path / "out"))
        assert done.exit_code == 0, done.output
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == {
        "dot.png": PIXEL,
        "dot-1.png": PIXEL,
    }


def test_an_agent_cannot_choose_where_its_files_go_nor_what_the_terminal_does(url: str, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    done = call(url, "painter", "many", "x", "--save", str(out))
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in out.iterdir()) == ["[2Jauthorized_keys", "part-2.json"]
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != out] == []
    assert "\x1b" not in done.stdout + done.stderr
    assert "is a link and was not saved: https://example.org/a.pdf" in done.stderr
    assert "Part 4 cannot be saved" in done.stderr


def test_a_link_in_the_folder_is_not_followed(url: str, picture: Path, tmp_path: Path) -> None:
    out, target = tmp_path / "out", tmp_path / "precious"
    out.mkdir()
    (out / "dot.png").symlink_to(target)
    assert call(url, "painter", "show", "--attach", str(picture), "--save", str(out)).exit_code == 0
    assert not target.exists()
    assert (out / "dot-1.png").read_bytes() == PIXEL


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("painter", "show", "--attach", "/no/such/file"), "No such file"),
        (("painter", "show", "--attach", "/"), "directory"),
        (("painter", "show", "--save", "x", "--async"), "not with --async or --follow"),
        (("--follow", "job_1", "--save", "x"), "not with --async or --follow"),
    ],
)
def test_what_cannot_be_is_said_before_anything_happens(url: str, words: tuple[str, ...], said: str) -> None:
    done = call(url, *words)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_files_are_bounded(url: str, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as stream:
        stream.truncate(MAX_ATTACHED_BYTES + 1)
    done = call(url, "painter", "show", "--attach", str(large))
    assert done.exit_code == 2
    assert "bytes together" in " ".join(done.stderr.split())


@pytest.mark.parametrize("way", [["--stream"], ["--no-stream"], ["--json"]])
def test_a_call_names_the_conversation_that_it_belongs_to(url: str, way: list[str]) -> None:
    done = call(url, "painter", "where", "am I?", "--conversation", "tea-time", *way)
    assert done.exit_code == 0, done.output
    assert "tea-time" in done.stdout
    assert "tea-time" not in call(url, "painter", "where", "am I?", *way).stdout
