"""Rules of the operator (`policy` in fabric.yaml) that deny calls, or exempt them from later rules.

The first rule that matches a call decides. `allow` ends the search and nothing more: scopes, trust tiers and views
still apply, so rules only ever take away. `core.policy` asks them last, at every door, for calls and for lists alike.

A rule has two halves. What it says of the caller (who, on whose behalf, through which door, from where, when) is
compared once for each request: `Policy.select` returns a `RuleSet` of the rules that hold for this caller now. What it
says of the agent is compared by `RuleSet.find_denial`. Both are pure, look rules up by their literal names first, and
remember their answers, so that the number of rules hardly counts.

A caller must not learn of an agent that the rules hide. So a refusal names the first rule that could deny a call by the
names of agent and capability alone, which is the same rule whether there is such an agent or not; only the log and the
operator read which rule it was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from importlib import import_module
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import MAX_CAPABILITY_NAME, Audience, Manifest, SideEffects, TrustTier, normalize_name
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.view import EVERY_CAPABILITY, compile_patterns

Effect = Literal["allow", "deny"]
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_Patterns = tuple[str, ...] | None
_WEEKDAYS: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")
_MAX_CALLERS = 8192
_MAX_RULE_SETS = 1024
_MAX_DENIALS = 65_536


class TimeWindow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a rule holds. What is unset does not restrict it."""

    days: Annotated[tuple[Weekday, ...] | None, Meta(description="Days of the week: mon, tue, … sun.")] = None
    hours: Annotated[
        str | None, Meta(description="HH:MM-HH:MM, the end excluded; `22:00-06:00` goes past midnight.")
    ] = None
    timezone: Annotated[str, Meta(description="The time zone of days and hours, such as Europe/Berlin.")] = "UTC"
    since: Annotated[Annotated[datetime, Meta(tz=True)] | None, Meta(description="Not before this time.")] = None
    until: Annotated[Annotated[datetime, Meta(tz=True)] | None, Meta(description="Not from this time on.")] = None


class PolicyRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a rule names must match; of a list, one entry. Patterns have `*` and `?`."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64, description="The rule's name in refusals and logs."
        ),
    ]
    effect: Annotated[
        Effect, Meta(description="deny: refuse the call. allow: no later rule refuses it; scopes and tiers still do.")
    ]
    principals: Annotated[
        _Patterns, Meta(description="Who answers for the call, as in the log: the id of a key, `ISSUER:sub`…")
    ] = None
    delegates: Annotated[
        _Patterns, Meta(description="The agent that calls for its principal with a passport or a mandate.")
    ] = None
    on_behalf_of: Annotated[
        _Patterns, Meta(description="The principal for whom another node calls, as that node reports it.")
    ] = None
    trust: Annotated[tuple[TrustTier, ...] | None, Meta(description="Trust tiers of the caller.")] = None
    doors: Annotated[
        _Patterns, Meta(description="Doors: `fabric`, `mcp`, `a2a`, `directory`, `rest`, `discovery`…")
    ] = None
    origins: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="Where the request comes from: addresses or networks (`10.0.0.0/8`), or sites of web pages "
            "(`https://*.example.com`)."
        ),
    ] = None
    when: Annotated[TimeWindow | None, Meta(description="When the rule holds. Unset: always.")] = None
    agents: Annotated[_Patterns, Meta(description="Ids of agents and of built-in tools.")] = None
    capabilities: Annotated[
        _Patterns, Meta(description="Names of capabilities; letter case, `-`, `_` and spaces make no difference.")
    ] = None
    side_effects: Annotated[
        tuple[SideEffects, ...] | None,
        Meta(description="none, reads, writes. A capability that declares nothing may do anything: it is `writes`."),
    ] = None
    tiers: Annotated[tuple[TrustTier, ...] | None, Meta(description="Trust tiers of the agent.")] = None
    audiences: Annotated[tuple[Audience, ...] | None, Meta(description="For whom the agent is.")] = None
    tags: Annotated[_Patterns, Meta(description="Only agents with one of these tags.")] = None


class CallerFacts(NamedTuple):
    """What rules may know of a caller. `address` and `site` are where the request comes from."""

    principal_id: str = ""
    delegate_id: str = ""
    on_behalf_of: str = ""
    trust: TrustTier = "public"
    door: str = ""
    address: str = ""
    site: str = ""


class Entry(msgspec.Struct, eq=False, dict=True):
    """How a caller came in, and the rules that hold for it. It is no part of who the caller is, so it is equal to any
    other entry, and to none: a session stays its caller's when a rule begins or ends to hold.

    The fields are stored with a job. The rules are not: they are selected again when it runs.
    """

    door: str = ""
    address: str = ""
    site: str = ""
    rules = None  # type: RuleSet | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry | msgspec.UnsetType)

    def __hash__(self) -> int:
        return hash(msgspec.UNSET)


class _Names:
    """Names and patterns of one list."""

    def __init__(self, patterns: Iterable[str]) -> None:
        names = tuple(patterns)
        self.literals = frozenset(each for each in names if "*" not in each and "?" not in each)
        globs = tuple(each for each in names if each not in self.literals)
        self.pattern = compile_patterns(globs) if globs else None

    def match(self, name: str) -> bool:
        return name in self.literals or (self.pattern is not None and self.pattern.fullmatch(name) is not None)


def _load_zone(name: str) -> tzinfo:
    """Few rules name a time zone, and what reads them takes a while to import. Raises as `ZoneInfo` does."""
    zone: tzinfo = import_module("zoneinfo").ZoneInfo(name)
    return zone


class _Hours:
    """A time window with its parts read. Raises ConfigError."""

    def __init__(self, window: TimeWindow, where: str) -> None:
        self._days = None if window.days is None else frozenset(window.days)
        self._since = None if window.since is None else window.since.timestamp()
        self._until = None if window.until is None else window.until.timestamp()
        self._minutes: tuple[int, int] | None = None
        if window.hours is not None:
            match = _HOURS.fullmatch(window.hours)
            if match is None:
                raise ConfigError(f"{where}: when: hours: '{window.hours[:32]}' is not HH:MM-HH:MM")
            first, last = int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
            if last > 24 * 60 or first == last:
                raise ConfigError(f"{where}: when: hours: '{window.hours}' names no time of the day")
            self._minutes = first, last
        try:
            self._zone = UTC if window.timezone == "UTC" else _load_zone(window.timezone)
        except (LookupError, ValueError, OSError) as exc:
            raise ConfigError(f"{where}: when: timezone: there is no time zone '{window.timezone[:64]}'") from exc

    def include(self, now: float) -> bool:
        if (self._since is not None and now < self._since) or (self._until is not None and now >= self._until):
            return False
        if self._days is None and self._minutes is None:
            return True
        local = datetime.fromtimestamp(now, self._zone)
        if self._days is not None and _WEEKDAYS[local.weekday()] not in self._days:
            return False
        if self._minutes is None:
            return True
        minute, (first, last) = local.hour * 60 + local.minute, self._minutes
        return first <= minute < last if first < last else minute >= first or minute < last


class _Origins:
    """Networks and sites. Raises ConfigError."""

    def __init__(self, origins: Iterable[str], where: str) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        sites = []
        for origin in origins:
            if "://" in origin:
                sites.append(origin.lower().rstrip("/"))
                continue
            try:
                self._networks.append(ip_network(origin))
            except ValueError as exc:
                raise ConfigError(
                    f"{where}: origins: '{origin[:64]}' is neither a network such as 10.0.0.0/8 nor a site such as "
                    "https://example.com"
                ) from exc
        self._sites = _Names(sites)

    def match(self, facts: CallerFacts) -> bool:
        if facts.site and self._sites.match(facts.site.lower()):
            return True
        try:
            address = ip_address(facts.address) if facts.address else None
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return address is not None and any((mapped or address) in network for network in self._networks)


class _CompiledRule:
    """One rule with its lists compiled. Raises ConfigError."""

    def __init__(self, number: int, rule: PolicyRule) -> None:
        where = f"policy: {rule.name}"
        self.number = number
        self.name = rule.name
        self.denies = rule.effect == "deny"
        self.principals = _compile_names(rule.principals)
        self._delegates = _compile_names(rule.delegates)
        self._on_behalf_of = _compile_names(rule.on_behalf_of)
        self._trust = rule.trust
        self._doors = _compile_names(rule.doors)
        self._origins = None if rule.origins is None else _Origins(rule.origins, where)
        self.hours = None if rule.when is None else _Hours(rule.when, where)
        self.agents = _compile_names(rule.agents)
        self.capabilities = (
            None if rule.capabilities is None else _compile_names(tuple(map(normalize_name, rule.capabilities)))
        )
        self._side_effects = None if rule.side_effects is None else frozenset(rule.side_effects)
        self._tiers = rule.tiers
        self._audiences = rule.audiences
        self._tags = _compile_names(rule.tags)
        # Whether names alone cannot tell if an agent matches.
        self._needs_manifest = any(
            each is not None for each in (rule.side_effects, rule.tiers, rule.audiences, rule.tags)
        )
        self.uses_origin = rule.origins is not None
        self.uses_on_behalf_of = rule.on_behalf_of is not None

    def matches_caller(self, facts: CallerFacts) -> bool:
        """All that the rule says of the caller, except the time."""
        return (
            (self.principals is None or self.principals.match(facts.principal_id))
            and (self._delegates is None or (facts.delegate_id != "" and self._delegates.match(facts.delegate_id)))
            and (
                self._on_behalf_of is None
                or (facts.on_behalf_of != "" and self._on_behalf_of.match(facts.on_behalf_of))
            )
            and (self._trust is None or facts.trust in self._trust)
            and (self._doors is None or self._doors.match(facts.door))
            and (self._origins is None or self._origins.match(facts))
        )

    @property
    def is_for_all_capabilities(self) -> bool:
        return self.capabilities is None and self._side_effects is None

    def concerns_agent(self, manifest: Manifest) -> bool:
        """Whether some capability of the agent may match."""
        return (
            (self.agents is None or self.agents.match(manifest.agent_id))
            and (self._tiers is None or manifest.trust_tier in self._tiers)
            and (self._audiences is None or manifest.audience in self._audiences)
            and (self._tags is None or any(map(self._tags.match, manifest.tags)))
        )

    def matches_agent(self, manifest: Manifest, capability: str | None) -> bool:
        """`capability` is None for a capability that the agent has not named."""
        if not self.concerns_agent(manifest):
            return False
        if self.capabilities is not None and (capability is None or not self.capabilities.match(capability)):
            return False
        return self._side_effects is None or self._matches_effects(manifest, capability)

    def _matches_effects(self, manifest: Manifest, capability: str | None) -> bool:
        """A capability that the agent certainly lacks is treated as one that a rule hides: both are refused alike."""
        assert self._side_effects is not None  # noqa: S101
        declared = None if capability is None else manifest.find_capability(capability)
        if declared is None and capability is not None and not manifest.is_open_ended:
            return self.denies
        return ((None if declared is None else declared.side_effects) or "writes") in self._side_effects

    def matches_names(self, agent_id: str, capability: str | None) -> bool | None:
        """The same for names alone; None if they do not tell. `capability` is None for all of an agent."""
        if self.agents is not None and not self.agents.match(agent_id):
            return False
        if self.capabilities is not None and (capability is None or not self.capabilities.match(capability)):
            return False
        return None if self._needs_manifest else True


def _compile_names(patterns: tuple[str, ...] | None) -> _Names | None:
    return None if patterns is None else _Names(patterns)


class _RuleIndex:
    """Rules by one literal name; rules with patterns, or without that list, may concern every name."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[_CompiledRule]] = {}
        self._general: list[_CompiledRule] = []

    def add(self, rule: _CompiledRule, names: _Names | None) -> None:
        if names is None or names.pattern is not None:
            self._general.append(rule)
            return
        for name in names.literals:
            self._by_name.setdefault(name, []).append(rule)

    def find(self, *names: str) -> Iterator[_CompiledRule]:
        """The rules that may concern one of the names, in their order."""
        found = [each for name in names for each in self._by_name.get(name, ())]
        if not found:
            return iter(self._general)
        return iter(sorted([*found, *self._general], key=_number))


def _number(rule: _CompiledRule) -> int:
    return rule.number


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`rule` decided; None if none matched, so that only scopes, trust tiers and views count."""

    effect: Effect = "allow"
    rule: str | None = None


_UNDECIDED = Verdict()


class RuleSet:
    """The rules that hold for some caller at some time, in their order."""

    def __init__(self, rules: Sequence[_CompiledRule]) -> None:
        self.has_denials = any(rule.denies for rule in rules)
        self._rules = rules
        self._index = _RuleIndex()
        for rule in rules:
            # A rule is found by its agents or, if these are patterns, by its capabilities, marked with a leading dot,
            # which no agent's id has.
            by_agent = rule.agents is not None and rule.agents.pattern is None
            names = rule.agents if by_agent or rule.capabilities is None else _mark_capabilities(rule.capabilities)
            self._index.add(rule, names)
        self._verdicts: dict[tuple[str, str], tuple[Manifest, Verdict]] = {}

    def decide(self, manifest: Manifest, capability: str) -> Verdict:
        """The verdict on a call; of `EVERY_CAPABILITY`, on all calls that the agent may answer."""
        if len(capability) > MAX_CAPABILITY_NAME:  # callers choose it, so what is kept is bounded
            return self._decide(manifest, normalize_name(capability))
        key = manifest.agent_id, capability
        known = self._verdicts.get(key)
        if known is None or known[0] is not manifest:
            if len(self._verdicts) >= _MAX_DENIALS:
                self._verdicts.clear()
            if capability == EVERY_CAPABILITY:
                verdict = self._decide_every(manifest)
            else:
                verdict = self._decide(manifest, normalize_name(capability))
            known = self._verdicts[key] = manifest, verdict
        return known[1]

    def denies(self, manifest: Manifest, capability: str) -> bool:
        return self.decide(manifest, capability).effect == "deny"

    def hides_unlisted(self, manifest: Manifest) -> bool:
        """Whether an agent that has not said what it offers is denied altogether."""
        return self._decide(manifest, None).effect == "deny"

    def find_denial_by_name(self, agent_id: str, capability: str | None) -> str | None:
        """The first rule that could deny this call, whatever the agent is; None if none can."""
        normalized = None if capability is None else normalize_name(capability[: MAX_CAPABILITY_NAME + 1])
        for rule in self._find(agent_id, normalized):
            matches = rule.matches_names(agent_id, normalized)
            if rule.denies and matches is not False:
                return rule.name
            if matches and not rule.denies:
                return None
        return None

    def _decide(self, manifest: Manifest, capability: str | None) -> Verdict:
        for rule in self._find(manifest.agent_id, capability):
            if rule.matches_agent(manifest, capability):
                return Verdict(effect="deny" if rule.denies else "allow", rule=rule.name)
        return _UNDECIDED

    def _decide_every(self, manifest: Manifest) -> Verdict:
        verdicts = [self._decide(manifest, normalize_name(each.name)) for each in manifest.capabilities]
        verdicts.append(self._decide(manifest, None))
        denied = next((each for each in verdicts if each.effect == "deny"), None)
        if denied is not None or not manifest.is_open_ended:
            return denied or verdicts[-1]
        for rule in filter(lambda rule: rule.concerns_agent(manifest), self._rules):
            if rule.denies:
                return Verdict(effect="deny", rule=rule.name)
            if rule.is_for_all_capabilities:
                break
        return verdicts[-1]

    def _find(self, agent_id: str, capability: str | None) -> Iterator[_CompiledRule]:
        return self._index.find(agent_id) if capability is None else self._index.find(agent_id, f".{capability}")


def _mark_capabilities(names: _Names) -> _Names:
    return names if names.pattern is not None else _Names(f".{name}" for name in names.literals)


class Policy:
    """The rules of a node, compiled. Raises ConfigError for two rules of one name and for what cannot be read."""

    def __init__(self, rules: Sequence[PolicyRule]) -> None:
        self.rules = tuple(rules)
        compiled = [_CompiledRule(number, rule) for number, rule in enumerate(rules)]
        names: set[str] = set()
        for rule in compiled:
            if rule.name in names:
                raise ConfigError(f"policy: there are two rules named '{rule.name}'. Give each a name of its own")
            names.add(rule.name)
        self.uses_origin = any(rule.uses_origin for rule in compiled)
        self.uses_on_behalf_of = any(rule.uses_on_behalf_of for rule in compiled)
        self._index = _RuleIndex()
        for rule in compiled:
            self._index.add(rule, rule.principals)
        self._selections: dict[CallerFacts, _Selection] = {}
        self._rule_sets: dict[tuple[_CompiledRule, ...], RuleSet] = {}

    def select(self, facts: CallerFacts, now: float) -> RuleSet | None:
        """The rules that hold for this caller at this time; None without any. Equal selections are one object."""
        selection = self._selections.get(facts)
        if selection is None:
            if len(self._selections) >= _MAX_CALLERS:
                self._selections.clear()
            rules = tuple(rule for rule in self._index.find(facts.principal_id) if rule.matches_caller(facts))
            selection = self._selections[facts] = _Selection(rules)
        second = int(now) if selection.is_timed else 0
        if selection.second != second:
            selection.second = second
            selection.rule_set = self._share(selection.list_current(second))
        return selection.rule_set

    def forget(self) -> None:
        """Drop all remembered answers, as if no caller had been seen."""
        self._selections.clear()
        self._rule_sets.clear()

    def _share(self, rules: tuple[_CompiledRule, ...]) -> RuleSet | None:
        if not rules:
            return None
        rule_set = self._rule_sets.get(rules)
        if rule_set is None:
            if len(self._rule_sets) >= _MAX_RULE_SETS:
                self._rule_sets.clear()
            rule_set = self._rule_sets[rules] = RuleSet(rules)
        return rule_set


class _Selection:
    """The rules for one caller, and those of them that held in the second that was asked for last."""

    def __init__(self, rules: tuple[_CompiledRule, ...]) -> None:
        self.is_timed = any(rule.hours is not None for rule in rules)
        self.second = -1
        self.rule_set: RuleSet | None = None
        self._rules = rules

    def list_current(self, now: float) -> tuple[_CompiledRule, ...]:
        return tuple(rule for rule in self._rules if rule.hours is None or rule.hours.include(now))
