"""`a2a-fabric policy`: try the operator's rules without a running node.

The configuration is built as `check` builds it. A verdict counts everything that decides on a call: scopes, trust
tiers and views of the caller as well as rules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Meta

from a2a_fabric import plugins
from a2a_fabric.app import Fabric
from a2a_fabric.cli.check import build_node
from a2a_fabric.cli.node_setup import plan_setup
from a2a_fabric.cli.options import AgentsFiles, ConfigFile, EnvFile, Json, parse_time
from a2a_fabric.cli.output import print_fields, print_json, print_line, print_table, report_errors
from a2a_fabric.config import read_environment
from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import AgentNotFound, BadInput, ConfigError, FabricError
from a2a_fabric.core.policy import find_refusal, find_verdict
from a2a_fabric.core.rules import CallerFacts, Effect, Entry, Policy
from a2a_fabric.node.identity import find_configured_principal
from a2a_fabric.yamlfile import YAMLFile

_MAX_CASES = 10_000


class PolicyCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call, and what the policy is expected to say of it."""

    principal: Annotated[str, Meta(description="The id of a key, `psk`, `anonymous`, or `ISSUER:sub`.")]
    agent: str
    capability: str
    expect: Effect | None = None
    rule: Annotated[str | None, Meta(description="The rule that is expected to decide.")] = None
    name: str = ""
    door: str = ""
    delegate: str | None = None
    on_behalf_of: str = ""
    address: Annotated[str, Meta(description="The address from which the request comes.")] = ""
    site: Annotated[str, Meta(description="The site of the web page that sends it.")] = ""
    scopes: Annotated[tuple[str, ...] | None, Meta(description="Scopes of the token, if the caller has one.")] = None
    trust: Annotated[TrustTier | None, Meta(description="The caller's trust tier, if not as configured.")] = None
    at: Annotated[Annotated[datetime, Meta(tz=True)] | None, Meta(description="When. Unset: now.")] = None


class PolicyCases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cases: Annotated[tuple[PolicyCase, ...], Meta(min_length=1, max_length=_MAX_CASES)]


class PolicyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`rule` is the rule that decided; None if no rule matched."""

    verdict: Effect
    rule: str | None
    reason: str


class CaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ok: bool
    expected: str
    verdict: str
    rule: str | None
    reason: str


def explain_call(
    principal: Annotated[
        str, typer.Argument(metavar="PRINCIPAL", help="The id of a key, psk, anonymous, or ISSUER:sub.")
    ],
    agent: Annotated[str, typer.Argument(metavar="AGENT")],
    capability: Annotated[str, typer.Argument(metavar="CAPABILITY")],
    door: Annotated[str, typer.Option(help="fabric, mcp, a2a, directory, rest or discovery.")] = "",
    delegate: Annotated[str | None, typer.Option(help="The agent that calls for the principal.")] = None,
    on_behalf_of: Annotated[str, typer.Option(help="For whom another node calls.")] = "",
    address: Annotated[str, typer.Option(help="The address from which the request comes.")] = "",
    site: Annotated[str, typer.Option(help="The site of the web page that sends it.")] = "",
    scope: Annotated[list[str] | None, typer.Option(help="A scope of the caller's token. Repeatable.")] = None,
    trust: Annotated[
        str | None, typer.Option(metavar="TIER", help="The caller's trust tier, if not as configured.")
    ] = (None),
    at: Annotated[str | None, typer.Option(metavar="TIME", help="2026-11-16T18:00, or 2h from now. Default: now.")] = (
        None
    ),
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    env_file: EnvFile = None,
    as_json: Json = False,
) -> None:
    """Show whether a call would be allowed, and which rule decides.

    Example: a2a-fabric policy explain psk percy reason --door mcp
    """
    case = PolicyCase(
        principal=principal,
        agent=agent,
        capability=capability,
        door=door,
        delegate=delegate,
        on_behalf_of=on_behalf_of,
        address=address,
        site=site,
        scopes=tuple(scope) if scope else None,
        trust=None if trust is None else _parse_tier(trust),
        at=None if at is None else datetime.fromtimestamp(parse_time(at, "--at"), UTC),
    )
    with report_errors(as_json=as_json):
        [answer] = _decide_all([case], config, agents, env_file)
        if isinstance(answer, FabricError):
            raise answer
    if as_json:
        print_json(answer)
    else:
        print_fields([("verdict", answer.verdict), ("rule", answer.rule or "none matches"), ("reason", answer.reason)])


def _parse_tier(text: str) -> TrustTier:
    try:
        return msgspec.convert(text, TrustTier)  # type: ignore[no-any-return]  # a Literal
    except msgspec.ValidationError as exc:
        raise typer.BadParameter(f"'{text}' is not local, org or public", param_hint="--trust") from exc


def run_cases(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML file with `cases`.")],
    config: ConfigFile = None,
    agents: AgentsFiles = None,
    env_file: EnvFile = None,
    as_json: Json = False,
) -> None:
    """Compare the policy with cases and their expected verdicts. Exit code 1 if one differs.

    Example: a2a-fabric policy test policy-cases.yaml
    """
    with report_errors(as_json=as_json):
        cases = YAMLFile.read(file).decode(PolicyCases).cases
        outcomes = [
            _compare(case, answer)
            for case, answer in zip(cases, _decide_all(cases, config, agents, env_file), strict=True)
        ]
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if as_json:
        print_json({"ok": not failed, "cases": len(outcomes), "failed": len(failed), "outcomes": outcomes})
    else:
        if failed:
            rows = [(each.name, each.expected, _join(each.verdict, each.rule), each.reason) for each in failed]
            print_table(("case", "expected", "verdict", "reason"), rows)
        print_line(f"{len(outcomes) - len(failed)} of {len(outcomes)} cases are as expected")
    if failed:
        raise typer.Exit(1)


def _compare(case: PolicyCase, answer: PolicyAnswer | FabricError) -> CaseOutcome:
    name = case.name or f"{case.principal} {case.agent} {case.capability}"
    expected = _join(case.expect or "any", case.rule)
    if isinstance(answer, FabricError):
        return CaseOutcome(name=name, ok=False, expected=expected, verdict="error", rule=None, reason=answer.message)
    ok = case.expect in (None, answer.verdict) and case.rule in (None, answer.rule)
    return CaseOutcome(
        name=name, ok=ok, expected=expected, verdict=answer.verdict, rule=answer.rule, reason=answer.reason
    )


def _join(verdict: str, rule: str | None) -> str:
    return verdict if rule is None else f"{verdict} by {rule}"


def _decide_all(
    cases: Sequence[PolicyCase], config: Path | None, agents: list[str] | None, env_file: Path | None
) -> list[PolicyAnswer | FabricError]:
    """Raises ConfigError. What is wrong with one case is its answer."""
    setup = plan_setup(config, agents or [], None, read_environment(), env_file)

    async def run() -> list[PolicyAnswer | FabricError]:
        with setup.locate_errors():
            async with build_node(setup, setup.config) as node:
                await node.registry.pending_descriptions.wait()
                policy = Policy(node.config.policy)
                return [_try_decide(case, node, policy) for case in cases]

    return asyncio.run(run())


def _try_decide(case: PolicyCase, node: Fabric, policy: Policy) -> PolicyAnswer | FabricError:
    try:
        return _decide(case, node, policy)
    except FabricError as error:
        return error


def _decide(case: PolicyCase, node: Fabric, policy: Policy) -> PolicyAnswer:
    """Raises AgentNotFound, or ConfigError for a principal or a door that the configuration does not know."""
    catalog = node.registry.catalog
    if case.door and not plugins.is_available("doors", case.door):
        kinds = plugins.list_kinds("doors")
        raise BadInput(f"There is no door '{case.door[:64]}'. The doors are: {', '.join(kinds)}")
    manifest = catalog.get(case.agent)
    if manifest is None:
        raise AgentNotFound(case.agent, (each.agent_id for each in catalog))
    principal = _bind(case, _find_principal(case, node), policy)
    refusal = find_refusal(principal, manifest, case.capability)
    verdict = find_verdict(principal, manifest, case.capability)
    rule = None if verdict is None else verdict.rule
    if refusal is None:
        reason = "no rule matches, and the credentials allow it" if rule is None else f"rule '{rule}' allows it"
        if manifest.capabilities and not manifest.is_open_ended and manifest.find_capability(case.capability) is None:
            reason += f", but the agent has no capability '{case.capability}'"
        return PolicyAnswer(verdict="allow", rule=rule, reason=reason)
    if verdict is not None and verdict.effect == "deny":
        return PolicyAnswer(verdict="deny", rule=rule, reason=f"rule '{rule}' denies it")
    hint = "" if principal.scp or case.scopes is not None else ". Name the scopes of its token (`scopes`, --scope)"
    return PolicyAnswer(verdict="deny", rule=None, reason=f"{refusal}{hint if principal.scp is not None else ''}")


def _find_principal(case: PolicyCase, node: Fabric) -> Principal:
    """With `trust`, also a caller whose key is in the store. Raises ConfigError."""
    try:
        return find_configured_principal(node.config, case.principal)
    except ConfigError as exc:
        if case.trust is None:
            hint = "For the holder of a key in the store, name its rights: --trust TIER --scope SCOPE"
            raise ConfigError(f"{exc.message}. {hint}") from exc
        return Principal(mode="psk", principal_id=case.principal, trust=case.trust)


def _bind(case: PolicyCase, principal: Principal, policy: Policy) -> Principal:
    changes: dict[str, Any] = {"delegate_id": case.delegate} if case.delegate else {}
    if case.scopes is not None:
        changes["scp"] = case.scopes
    if case.trust is not None:
        changes["trust"] = case.trust
    principal = msgspec.structs.replace(principal, **changes)
    facts = CallerFacts(
        principal.principal_id or "",
        principal.delegate_id or "",
        case.on_behalf_of,
        principal.trust,
        case.door,
        case.address,
        case.site,
    )
    entry = Entry(case.door, case.address, case.site)
    entry.rules = policy.select(facts, time.time() if case.at is None else case.at.timestamp())
    return msgspec.structs.replace(principal, entry=entry)
