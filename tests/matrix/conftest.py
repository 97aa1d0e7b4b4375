"""`make test` runs a seventh of the matrix, `make matrix` all of it.

The seventh is spread so that every pair of a door and a runtime, every aspect with every
door, and every aspect with every runtime is in it; plain replies are all in it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.agents import RUNTIMES
from tests.matrix.doors import DOORS
from tests.matrix.table import ASPECTS

_HERE = Path(__file__).parent
_ONE_OF = 7
_ALWAYS = "reply"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--whole-matrix") or config.getoption("keyword"):
        return
    spared = [item for item in items if _HERE in item.path.parents and _is_spared(item)]
    if spared:
        config.hook.pytest_deselected(items=spared)
        gone = set(spared)
        items[:] = [item for item in items if item not in gone]


def _is_spared(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    if call is None or "pair" not in call.params:
        return False
    door, runtime, aspect = call.params["pair"]
    place = list(DOORS).index(door) + list(RUNTIMES).index(runtime) + ASPECTS.index(aspect)
    return aspect != _ALWAYS and place % _ONE_OF != 0
