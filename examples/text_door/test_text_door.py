"""The door in front of a real node, through the contract suite that comes with Fabric."""

from __future__ import annotations

from text_door import plugin

from a2a_fabric.testing.door_contract import DoorContract, DoorRefusal, DoorRequest, InProcessClient


class TestTextDoor(DoorContract):
    kind = "text"
    plugin = plugin

    async def ask(self, node: InProcessClient, request: DoorRequest) -> str:
        path = f"/text/{request.agent_id}/{request.capability}"
        reply = await node.request("POST", path, request.key, request.task)
        if reply.status != 200:
            raise DoorRefusal(reply.status, reply.text)
        return reply.text
