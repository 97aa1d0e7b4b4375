"""What the memory keeps of a tool, so that a change is noticed."""

from __future__ import annotations

import msgspec
import pytest

from a2a_fabric.core.agent import Capability, ToolText

SEARCH = Capability(name="search", title="Search", description="Searches.", side_effects="reads", metadata={"a": 1})


@pytest.mark.parametrize("change", [{"title": ""}, {"description": ""}, {"side_effects": None}, {"metadata": {}}])
def test_every_thing_that_a_tool_says_counts(change: dict[str, object]) -> None:
    text = ToolText.from_capability(SEARCH)
    changed = ToolText.from_capability(msgspec.structs.replace(SEARCH, **change))
    assert text.is_kept_by(text)
    assert not text.is_kept_by(changed)
    assert text.digest != changed.digest


def test_a_text_of_an_earlier_version_counts_as_far_as_it_was_kept() -> None:
    earlier = msgspec.json.decode(b'{"description": "Searches."}', type=ToolText)
    assert earlier.is_kept_by(ToolText.from_capability(SEARCH))
    assert not earlier.is_kept_by(ToolText.from_capability(msgspec.structs.replace(SEARCH, description="Deletes.")))
    kept = msgspec.json.decode(msgspec.json.encode(ToolText.from_capability(SEARCH)), type=ToolText)
    assert kept == ToolText.from_capability(SEARCH)
