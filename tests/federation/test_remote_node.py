"""A registry names another Fabric node, and all agents of that node can be called through this one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.federation.sample import copy_example, running_example
from tests.fixtures.node import PSK, eventually, running
from tests.marks import requirement


@requirement("003-01")
async def test_the_agents_of_a_node_that_a_registry_names_answer_here(tmp_path: Path) -> None:
    async with running_example(copy_example(tmp_path)) as far:
        headers = {"Authorization": "env:FAR_KEY"}
        location = {"type": "remote", "kind": "node", "url": far.url, "headers": headers}
        registry = {"version": "3.0", "agents": {"kitchen": {"location": location}}}
        (tmp_path / "registry.json").write_text(json.dumps(registry))
        config = {"agents": ["registry.json"], "federation": {"allow": ["127.0.0.1"]}, "store": "memory:"}
        environ = {"FAR_KEY": f"Bearer {PSK}"}
        async with running(config=config, base=tmp_path, from_files=True, environ=environ) as near:

            async def is_listed() -> bool:
                page = await near.operation("fabric.agent.list")
                return "kitchen/units" in {each["agent_id"] for each in page["result"]["agents"]}

            await eventually(is_listed)
            answer = await near.ask("kitchen/units", "convert_length", "", context={"miles": 10})
            assert answer["result"] == {"kilometres": 16.093}, answer
            asked = await near.operation("fabric.ask", {"text": "convert 10 miles"})
            assert asked["result"]["_fabric"]["agent_id"] == "kitchen/units", asked
