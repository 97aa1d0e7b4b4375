"""What an agent reports during a turn, as our events and as pieces of the answer.

Reports are read from the wire's own JSON, one by one: there may be thousands a
second, and one that a newer revision added is nobody's error.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec

from a2a_fabric.core.events import Event, artifact, progress, status, token
from a2a_fabric.core.part import Part
from a2a_fabric.runtimes.agent_client.content import part_of

_TITLES = 1000  # tools of one turn whose titles are remembered
_WORDS = 2000  # characters of one event's message worth passing on


class Report:
    """One turn as it is told: what was said so far, and the event that each further report makes."""

    def __init__(self) -> None:
        self._said_so_far: list[Part] = []
        self.cost: dict[str, Any] | None = None
        self._titles: dict[str, str] = {}

    @property
    def text(self) -> str:
        return "".join(part.text for part in self._said_so_far if part.kind == "text" and part.text)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All that was said, words in whole pieces; none if words were all."""
        pieces: list[Part] = []
        for kind, parts in groupby(self._said_so_far, key=lambda part: part.kind):
            run = list(parts)
            pieces += [Part(kind="text", text="".join(part.text or "" for part in run))] if kind == "text" else run
        return tuple(pieces) if any(part.kind != "text" for part in pieces) else ()

    def take(self, update: dict[str, Any]) -> Event | None:
        """The event that a listening caller hears, if this is one for callers."""
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                return self._said(update.get("content"))
            case "agent_thought_chunk":
                return _thought(update.get("content"))
            case "tool_call" | "tool_call_update":
                return self._tool(update)
            case "plan":
                return _plan(update.get("entries"))
            case "usage_update":
                self.cost = update["cost"] if isinstance(update.get("cost"), dict) else self.cost
        return None

    def _said(self, content: Any) -> Event | None:
        part = part_of(content) if isinstance(content, dict) else None
        if part is None:
            return None
        self._said_so_far.append(part)
        if part.kind == "text":
            return token(part.text or "")
        return artifact(msgspec.to_builtins(part))

    def _tool(self, update: dict[str, Any]) -> Event:
        id_ = str(update.get("toolCallId", ""))
        title = update.get("title")
        if isinstance(title, str) and len(self._titles) < _TITLES:
            self._titles[id_] = title
        given, given_back = update.get("rawInput"), update.get("rawOutput")
        told = {
            "tool": self._titles.get(id_, id_)[:_WORDS],
            "arguments": given if isinstance(given, dict) else {} if given is None else {"input": given},
            "id": id_,
            "kind": update.get("kind"),
            "status": update.get("status"),
            "output": given_back if given_back is not None else update.get("content"),
        }
        return Event("tool_call", {name: value for name, value in told.items() if value is not None})


def _thought(content: Any) -> Event | None:
    words = content.get("text") if isinstance(content, dict) else None
    return status("running", words[:_WORDS], thought=True) if isinstance(words, str) and words else None


def _plan(entries: Any) -> Event | None:
    """How much of it is done, and what is being done."""
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    if not known:
        return None
    done = sum(entry.get("status") == "completed" for entry in known)
    current = next((str(entry.get("content", "")) for entry in known if entry.get("status") == "in_progress"), None)
    event = progress(100 * done / len(known), current[:_WORDS] if current else None)
    event.data["plan"] = [{"content": entry.get("content"), "status": entry.get("status")} for entry in known]
    return event
