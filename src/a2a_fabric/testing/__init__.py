"""For tests of agents, clients and plug-ins: fakes, values, and the contract suites of doors, runtimes and stores.

The fakes need nothing but the package. The suites (`runtime_contract`, `door_contract`, `store_contract`) are
imported by their module names, because they need pytest, which comes with the extra `testing`."""

from a2a_fabric.testing.fakes import FakeClock, ScriptedAnswer, ScriptedRuntime, Turn

__all__ = ["FakeClock", "ScriptedAnswer", "ScriptedRuntime", "Turn"]
