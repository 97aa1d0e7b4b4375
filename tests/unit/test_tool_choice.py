"""What the operator's choice of tools does to a result."""

from __future__ import annotations

import msgspec
import pytest

from a2a_fabric.core.agent import Capability, ToolChoice
from a2a_fabric.core.call import Call, Emit, Input, Principal, Target, ignore_event
from a2a_fabric.core.errors import CapabilityNotFound
from a2a_fabric.core.propagation import new_trace
from a2a_fabric.core.result import OriginalMessage, Part, Result
from a2a_fabric.registry.tool_choice import cut_result, select_tools


def test_a_result_that_is_cut_has_nothing_left_of_the_rest() -> None:
    original = OriginalMessage(protocol="mcp", content={"_meta": {"secret": 1}})
    whole = Result(data={"kept": {"a": 1}, "secret": 1}, parts=(Part(kind="text", text="secret"),), original=original)
    cut = cut_result(whole, "kept")
    assert cut == Result(data={"a": 1}, original=msgspec.UNSET)


def make_call(capability: str) -> Call:
    target = Target(agent_id="forge", capability=capability, timeout_ms=1234)
    return Call(trace=new_trace(), auth=Principal(), target=target, input=Input())


async def test_a_filtered_tool_is_called_as_it_is_and_a_renamed_one_by_its_own_name() -> None:
    received: list[Call] = []

    async def ask(call: Call, emit: Emit) -> Result:
        received.append(call)
        return Result(data={})

    choice = ToolChoice(exclude=("delete_*",), rename={"search": "find"})
    offered = [Capability(name=name) for name in ("get_file", "search", "delete_repo")]
    handle = select_tools("forge", offered, choice).translation.bind(ask)
    kept, renamed = make_call("get_file"), make_call("Find")
    for _ in range(2):
        await handle(kept, ignore_event)
        await handle(renamed, ignore_event)
        with pytest.raises(CapabilityNotFound):
            await handle(make_call("search"), ignore_event)
    assert received[0] is received[2] is kept
    assert [call.target for call in received[1::2]] == [
        msgspec.structs.replace(renamed.target, capability="search")
    ] * 2
