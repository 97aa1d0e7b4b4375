"""`engine` is each kind of store in turn; `store` is that engine, opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from a2a_fabric.core.stores import Store
from tests.contracts.stores import ENGINES, SHARED, Engine, opened


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    made: Engine = ENGINES[request.param](tmp_path)
    return made


@pytest.fixture(params=SHARED)
def shared_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    made: Engine = ENGINES[request.param](tmp_path)
    return made


@pytest.fixture
async def store(engine: Engine) -> AsyncIterator[Store]:
    async with opened(engine) as store:
        yield store
