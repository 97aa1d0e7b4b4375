"""The contract of descriptions, against the files that a node without a store keeps them in."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from a2a_fabric.core.errors import StoreError
from a2a_fabric.core.registration import StoredDescription
from a2a_fabric.stores.description_files import DescriptionFiles
from a2a_fabric.testing.store_contract import DescriptionStoreContract

ONE = StoredDescription(agent_id="percy", connection="a", body=b"{}", seen_at=1.0)


class TestDescriptionFiles(DescriptionStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> SimpleNamespace:
        return SimpleNamespace(descriptions=DescriptionFiles(tmp_path / "offers"))


async def test_what_else_is_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    files = DescriptionFiles(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    await files.put([ONE])
    assert list(await files.read()) == [ONE]
    assert await files.prune(5.0) == 1
    assert os.listdir(tmp_path) == ["notes.txt"]


async def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "offers").write_text("a file")
    files = DescriptionFiles(tmp_path / "offers")
    for work in (files.read(), files.put([ONE]), files.prune(1.0)):
        with pytest.raises(StoreError, match="offers"):
            await work
