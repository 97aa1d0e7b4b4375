"""Files of the user: who may read them while they are replaced, and who may change them at the same time."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from a2a_fabric.admin.agent_files import AgentFiles
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.files import copy_file, lock_folder, replace_text
from a2a_fabric.identity.revocations import add_revocation, parse_revocations
from tests.fixtures.node import WAIT_TIMEOUT, eventually

SECRET = "a secret\n" * 1_000_000


def watch_modes(folder: Path, work: Callable[[], None]) -> set[int]:
    """The permissions that files in the folder had while the work was done, as far as a second thread has seen them."""
    seen: set[int] = set()
    has_ended = threading.Event()

    def look() -> None:
        while not has_ended.is_set():
            for each in os.scandir(folder):
                try:
                    seen.add(stat.S_IMODE(each.stat().st_mode))
                except FileNotFoundError:
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        work()
    finally:
        has_ended.set()
        thread.join(WAIT_TIMEOUT)
    return seen


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "agents.yaml"
    path.touch(mode=0o600)
    return path


def test_neither_a_draft_nor_a_copy_is_ever_open_to_others(original: Path) -> None:
    def work() -> None:
        for _ in range(5):
            replace_text(original, SECRET)
            copy_file(original, original.with_name("copy"))
            original.with_name("copy").unlink()

    assert watch_modes(original.parent, work) == {0o600}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away; run the tests as root")
def test_the_owner_and_the_permissions_of_a_file_stay(original: Path) -> None:
    os.chown(original, 1234, 2345)
    original.chmod(0o640)
    copy = original.with_name("copy")
    replace_text(original, "new")
    copy_file(original, copy)
    for path in (original, copy):
        status = path.stat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 2345, 0o640)
        assert path.read_text() == "new"


def test_a_file_that_cannot_be_replaced_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        replace_text(tmp_path / "folder", "new")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


async def test_a_change_whose_caller_leaves_is_made_whole_under_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text("- agent_id: a\n  endpoint: {uri: 'http://127.0.0.1:9'}\n")
    files = AgentFiles([path], {}, tmp_path, may_run_programs=False)
    with lock_folder(path):
        left = asyncio.ensure_future(files.switch_tool("a", "left", on=False))
        await asyncio.sleep(0.1)
        left.cancel()
        await asyncio.wait([left])
        assert "left" not in path.read_text()
    await files.switch_tool("a", "done", on=False)

    async def has_both() -> bool:
        found = await files.find_entry("a")
        tools = None if found is None else found[1].tools
        return tools is not None and sorted(tools.exclude) == ["done", "left"]

    await eventually(has_both)


def test_revocations_of_several_commands_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "revoked.json"
    ids = [f"id-{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda each: add_revocation(path, each), ids))
    assert sorted(entry.id for entry in parse_revocations(path.read_bytes()).revoked) == sorted(ids)
