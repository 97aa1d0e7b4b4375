"""What the operator's choice of tools does to a result."""

from __future__ import annotations

import msgspec

from a2a_fabric.core.result import OriginalMessage, Part, Result
from a2a_fabric.registry.tool_choice import cut_result


def test_a_result_that_is_cut_has_nothing_left_of_the_rest() -> None:
    original = OriginalMessage(protocol="mcp", content={"_meta": {"secret": 1}})
    whole = Result(data={"kept": {"a": 1}, "secret": 1}, parts=(Part(kind="text", text="secret"),), original=original)
    cut = cut_result(whole, "kept")
    assert cut == Result(data={"a": 1}, original=msgspec.UNSET)
