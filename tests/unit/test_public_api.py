"""The stated public API: every name on the page can be imported, and every exported name is on the page."""

from __future__ import annotations

import re
from pathlib import Path

import a2a_fabric
import a2a_fabric.core
import a2a_fabric.testing

PAGE = (Path(__file__).parents[2] / "docs" / "public-api.md").read_text("utf-8")


def names_of(heading: str) -> set[str]:
    section = PAGE.partition(f"## `{heading}`\n")[2].partition("\n## ")[0]
    return {name for name in re.findall(r"`(\w+)`", section) if name.isidentifier()}


def test_the_page_and_the_packages_name_the_same() -> None:
    for module in (a2a_fabric, a2a_fabric.core):
        assert names_of(module.__name__) == set(module.__all__)
        assert all(getattr(module, name) is not None for name in module.__all__)
    assert set(a2a_fabric.testing.__all__) - names_of("a2a_fabric.testing") == {"ScriptedAnswer"}
