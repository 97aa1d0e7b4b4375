"""Real clients against a live node, one line for each expectation."""

from __future__ import annotations

from tests.conformance.clients.claude_code import CLAUDE_CODE
from tests.conformance.clients.client import examine
from tests.conformance.clients.codex import CODEX
from tests.conformance.clients.gemini import GEMINI
from tests.conformance.clients.inspector import INSPECTOR
from tests.conformance.clients.place import node_with_percy
from tests.conformance.npm import Npm

CLIENTS = (INSPECTOR, CLAUDE_CODE, CODEX, GEMINI)


async def are_well(npm: Npm) -> bool:
    print("\nreal clients")
    words = []
    with node_with_percy() as node:
        for client in CLIENTS:
            async for outcome in examine(client, npm, node):
                print(outcome, flush=True)
                words.append(outcome.word)
    print("  " + ", ".join(f"{word}: {words.count(word)}" for word in ("pass", "FAIL", "skipped")))
    return "FAIL" not in words
