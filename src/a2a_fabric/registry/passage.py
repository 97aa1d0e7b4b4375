"""What goes to an agent in its own protocol: past the same steps as a call, and through the same gate.

The work itself is the door's, which alone knows the protocol; here is what surrounds it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Call
from a2a_fabric.core.delegation import Chain, Delegations, MaybeChain
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.pipeline import Emit, Step, compose, ignore
from a2a_fabric.core.result import Result
from a2a_fabric.registry.gate import Gate

_NOTHING = Result(data={})


class Passage:
    """`work` raises FabricError for what went wrong, also if the caller was told already."""

    def __init__(
        self, steps: Sequence[Step], gate_of: Callable[[Manifest], Gate], delegations: Delegations | None = None
    ) -> None:
        self._steps = steps
        self._gate_of = gate_of
        self._delegations = delegations or Delegations()

    def delegated(self, chain: MaybeChain, manifest: Manifest) -> Chain:
        """The chain that goes to the agent with a request. Raises DelegationRefused."""
        self._delegations.check(chain, manifest.agent_id)
        return self._delegations.extended(chain, manifest.agent_id)

    async def call(self, call: Call, manifest: Manifest, work: Callable[[], Awaitable[None]]) -> None:
        """A request that asks for a capability. Raises FabricError."""

        async def inside(call: Call, emit: Emit) -> Result:
            await self.request(manifest, work, call.auth.principal_id)
            return _NOTHING

        await compose(self._steps, inside)(call, ignore)

    async def request(self, manifest: Manifest, work: Callable[[], Awaitable[None]], caller: str | None = None) -> None:
        """Any other request. Raises FabricError."""
        gate = self._gate_of(manifest)
        gate.enter(caller)
        try:
            await work()
            gate.heard()
        except FabricError as error:
            gate.heard(error)
            raise
        finally:
            gate.leave(caller)
