"""The tools of each agent as the catalog shows them: chosen by the operator, and held back if they changed.

`select` is called at every change of an agent, so its outcome is kept for as long as the agent's
description, its choice and its approved tools stay the same."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from a2a_fabric.core.agent import LOGIN_CAPABILITY, Capability, Manifest, ToolChoice, normalize_name
from a2a_fabric.core.injection_marks import find_marks
from a2a_fabric.core.logins import PersonalListing
from a2a_fabric.registry.memory import AgentMemory, ToolChange
from a2a_fabric.registry.tool_choice import ToolTranslation, matches_any, select_tools

InjectionMarks = Literal["off", "flag", "hold"]

_log = logging.getLogger(__name__)
_NO_CHOICE = ToolChoice()
_MAX_SHOWN = 20


class AgentToolReport(msgspec.Struct, frozen=True, kw_only=True):
    """`changes` since the tools were approved; `is_held` if they are not listed until then."""

    changes: tuple[ToolChange, ...] = ()
    is_held: bool = False
    changed_names: tuple[str, ...] = ()  # the names under which they are listed, normalized; none while they are held
    problems: tuple[str, ...] = ()  # parts of the operator's choice that could not be done
    marks: tuple[str, ...] = ()  # a sentence for each tool whose description looks like prompt injection


class _Selected(msgspec.Struct, frozen=True, gc=False):
    declared: Manifest
    described: Manifest
    manifest: Manifest
    report: AgentToolReport


_NOTHING = AgentToolReport()


class AgentTools:
    def __init__(self, memory: AgentMemory | None, *, pin_tools: bool, injection_marks: InjectionMarks = "off") -> None:
        self._memory = memory
        self._pin_tools = pin_tools
        self._injection_marks = injection_marks
        self._selected: dict[str, _Selected] = {}
        self._reports: dict[str, AgentToolReport] = {}  # those that say something
        self._translations: dict[str, ToolTranslation] = {}

    @property
    def translations(self) -> Mapping[str, ToolTranslation]:
        return dict(self._translations)

    def select(self, declared: Manifest, described: Manifest, *, is_discovered: bool) -> Manifest:
        """The agent as the catalog holds it."""
        selected = self._selected.get(declared.agent_id)
        if selected is None or selected.described is not described or not _has_same_choice(selected.declared, declared):
            previous = selected.report if selected is not None else _NOTHING
            selected = self._selected[declared.agent_id] = self._select(declared, described, is_discovered)
            if selected.report is _NOTHING:
                self._reports.pop(declared.agent_id, None)
            else:
                self._reports[declared.agent_id] = selected.report
            _log_report(declared.agent_id, selected.report, previous)
        return selected.manifest

    def select_personal(self, declared: Manifest, shared: Manifest, listing: PersonalListing) -> Manifest:
        """The agent for a caller to which it offers this. The operator's choice and pins hold for it, too."""
        capabilities, held = listing.capabilities, self.list_held(declared, listing)
        if declared.tools is not None or held:
            choice = declared.tools or _NO_CHOICE
            capabilities = select_tools(declared.agent_id, capabilities, choice, held).capabilities
        return msgspec.structs.replace(shared, capabilities=capabilities)

    def list_held(self, declared: Manifest, listing: PersonalListing) -> frozenset[str]:
        """The tools (normalized names) that are held back from this caller."""
        changed = listing.changed_tools if self._is_pinned(declared) else frozenset()
        if self._injection_marks != "hold":
            return changed
        return changed | self._find_marks(declared, listing.capabilities).keys()

    def forget(self, agent_id: str) -> None:
        """The agent left."""
        self._selected.pop(agent_id, None)
        self._reports.pop(agent_id, None)
        self._translations.pop(agent_id, None)

    def list_notices(self) -> list[str]:
        """What the operator should know, one sentence for each agent and each part of a choice that cannot be done."""
        notices: list[str] = []
        for agent_id, report in self._reports.items():
            if report.changes:
                notices.append(f"agent {_describe_changes(agent_id, report)}")
            notices += [f"agent {agent_id}: {problem}" for problem in (*report.marks, *report.problems)]
        return notices

    def report(self, agent_id: str) -> AgentToolReport:
        return self._reports.get(agent_id, _NOTHING)

    def approve(self, agent_id: str, patterns: Sequence[str]) -> list[str]:
        """The names of the changed tools that match; without patterns, all of them."""
        selected = self._selected.get(agent_id)
        if selected is None or self._memory is None:
            return []
        names = [each.name for each in selected.report.changes if not patterns or matches_any(each.name, patterns)]
        approved = self._memory.approve(selected.declared, selected.described.capabilities, names)
        if approved:
            del self._selected[agent_id]  # the next `select` decides anew
            self._reports.pop(agent_id, None)
        return approved

    def _is_pinned(self, declared: Manifest) -> bool:
        return self._pin_tools if declared.pin_tools is None else declared.pin_tools

    def _find_marks(self, declared: Manifest, capabilities: Sequence[Capability]) -> dict[str, str]:
        """By normalized name, a sentence for each tool whose description looks like prompt injection."""
        described = {normalize_name(name) for name in (declared.tools or _NO_CHOICE).describe}
        held = ", so it is held back. To list it, describe it yourself in `tools.describe`"
        consequence = held if self._injection_marks == "hold" else ""
        sentences: dict[str, str] = {}
        for capability in capabilities:
            name = normalize_name(capability.name)
            marks = find_marks(capability, is_described=name in described)
            if marks:
                sentences[name] = (
                    f"the description of tool '{capability.name}' looks like prompt injection "
                    f"({', '.join(marks)}){consequence}"
                )
        return sentences

    def _select(self, declared: Manifest, described: Manifest, is_discovered: bool) -> _Selected:
        changes: list[ToolChange] = []
        if is_discovered and self._memory is not None:
            changes = self._memory.find_changes(declared, described.capabilities)
        is_pinned = self._is_pinned(declared)
        held = {normalize_name(change.name) for change in changes} if is_pinned else set()
        marked: dict[str, str] = {}
        if self._injection_marks != "off" and (is_discovered or declared.registered_by is not None):
            marked = self._find_marks(declared, described.capabilities)
            held |= marked.keys() if self._injection_marks == "hold" else set()
        marks = tuple(marked.values())
        if declared.tools is None and not held:
            self._translations.pop(declared.agent_id, None)
            names = tuple(normalize_name(change.name) for change in changes)
            is_silent = not changes and not marks
            report = AgentToolReport(changes=tuple(changes), changed_names=names, marks=marks)
            report = _NOTHING if is_silent else report
            return _Selected(declared, described, described, report)
        choice = declared.tools or _NO_CHOICE
        selection = select_tools(declared.agent_id, described.capabilities, choice, held)
        translation = selection.translation
        if declared.wants_login:  # other callers are offered other tools, so only the choice decides
            translation = select_tools(declared.agent_id, (), choice, held).translation
            translation.add(LOGIN_CAPABILITY.name)
        self._translations[declared.agent_id] = translation
        manifest = msgspec.structs.replace(described, capabilities=selection.capabilities, tools=None, pin_tools=None)
        report = AgentToolReport(
            changes=tuple(changes),
            is_held=is_pinned and bool(changes),
            changed_names=tuple(selection.translation.list_names([change.name for change in changes])),
            problems=selection.problems,
            marks=marks,
        )
        return _Selected(declared, described, manifest, report)


def _has_same_choice(first: Manifest, second: Manifest) -> bool:
    return first is second or (first.tools == second.tools and first.pin_tools == second.pin_tools)


def _log_report(agent_id: str, report: AgentToolReport, previous: AgentToolReport) -> None:
    """Once for each set of tools: a server that changes the same tool again and again is reported once."""
    names = [change.name for change in report.changes]
    if set(names) - {change.name for change in previous.changes}:
        _log.warning("agent %s", _describe_changes(agent_id, report))
    for problem in (*report.marks, *report.problems):
        if problem not in (*previous.marks, *previous.problems):
            _log.warning("agent %s: %s", agent_id, problem)


def _describe_changes(agent_id: str, report: AgentToolReport) -> str:
    names = [change.name for change in report.changes]
    shown = ", ".join(names[:_MAX_SHOWN]) + (f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else "")
    consequence = ", so they are held back" if report.is_held else ""
    return (
        f"{agent_id} changed what these tools say since they were approved{consequence}: {shown}. "
        f"See: a2a-fabric tools diff {agent_id}"
    )
