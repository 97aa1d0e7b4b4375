"""What a configuration exposes to other machines, and views that include nothing or everything."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from a2a_fabric.config import Config, TLSSettings, parse_listen
from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.disclosure import OPERATOR_ID
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.policy import is_loopback
from a2a_fabric.core.rules import PolicyRule
from a2a_fabric.core.view import EVERY_CAPABILITY, View, compile_patterns
from a2a_fabric.registry.names import ALWAYS_RESERVED, find_lookalike

_MAX_PROBLEMS = 20  # that are reported of one view


def find_plain_listeners(config: Config) -> list[str]:
    """The addresses that other machines can reach and that are served without TLS."""
    if isinstance(config.tls, TLSSettings):
        return []
    grpc = (str(table["grpc"]) for table in config.doors if table.get("grpc"))
    return [each for each in (config.listen, *grpc) if not is_loopback(parse_listen(each)[0])]


def check_plain_listeners(config: Config) -> None:
    """Raises ConfigError if the operator has ruled out what `find_plain_listeners` finds."""
    plain = find_plain_listeners(config)
    if config.tls == "required" and plain:
        raise ConfigError(
            f"tls: required, but {plain[0]} would be served without TLS to other machines. Set `tls` to the files of a "
            "certificate (cert, key), or listen on 127.0.0.1 behind a proxy that has one"
        )


def list_exposure_warnings(config: Config) -> list[str]:
    """One warning for each setting that exposes calls to other machines: without TLS, or without credentials."""
    messages = [
        f"{address} is served without TLS, and other machines can reach it: keys, tokens and calls can be read on the "
        "way. Set `tls` (cert, key), or listen on 127.0.0.1 behind a proxy that has a certificate. With "
        "`tls: required` the node refuses to start like this"
        for address in find_plain_listeners(config)
    ]
    host, _ = parse_listen(config.listen)
    if is_loopback(host):
        return messages
    if config.auth.anonymous:
        messages.append(
            f"auth.anonymous lets callers without credentials in at {config.listen}, which other machines can reach: "
            "they may call every agent of trust tier 'public'. To keep them out, remove auth.anonymous, or listen on "
            "127.0.0.1 behind a proxy that authenticates"
        )
    for table in config.doors:
        tier = table.get("anonymous")
        if tier is not None:
            messages.append(
                f"doors: {table.get('kind')}: anonymous: {tier} lets callers without credentials in at "
                f"{config.listen}, which other machines can reach, and trusts them as '{tier}'. To keep them out, "
                "remove it, or listen on 127.0.0.1"
            )
    return messages


def list_name_warnings(config: Config) -> list[str]:
    """A warning for each caller whose name could be mistaken for another one in logs and policies."""
    names, warnings = [name for name in config.auth.list_names() if name != OPERATOR_ID], list[str]()
    for number, name in enumerate(names):
        own, other = find_lookalike(name, ALWAYS_RESERVED), find_lookalike(name, names[:number])
        if own is not None or other is not None:
            what = f"'{own}', a name that the node uses itself" if own is not None else f"'{other}', another caller"
            warnings.append(f"auth: '{name}' can be mistaken for {what}, in logs and policies. Give it another id")
    return warnings


def list_policy_warnings(rules: Iterable[PolicyRule], manifests: Iterable[Manifest]) -> list[str]:
    """A warning for each name of an agent in the rules that matches no agent and no tool now."""
    ids = [manifest.agent_id for manifest in manifests]
    return [
        f"policy: rule '{rule.name}' names '{pattern}', and there is no such agent or tool, so it does not hold for any"
        for rule in rules
        for pattern in rule.agents or ()
        if not any(map(compile_patterns((pattern,)).fullmatch, ids))
    ][:_MAX_PROBLEMS]


def list_view_warnings(views: Iterable[View], manifests: Iterable[Manifest]) -> list[str]:
    """A warning for each view that includes nothing of these agents and tools, or everything, and for each of its
    patterns that matches nothing.
    """
    offered, warnings = list(manifests), list[str]()
    for view in views:
        if not any(map(view.may_include, offered)):
            warnings.append(
                f"views: '{view.name}' matches no agent and no tool, so its callers see nothing. Compare its patterns "
                "with the output of: a2a-fabric tools list"
            )
        elif all(view.includes(manifest, EVERY_CAPABILITY) for manifest in offered):
            warnings.append(
                f"views: '{view.name}' matches every agent and every tool, so it hides nothing. Name what it is to "
                "include in agents, tools, tags or tiers"
            )
        problems = islice(view.list_unmatched(offered), _MAX_PROBLEMS)
        warnings += [f"views: '{view.name}': {problem}" for problem in problems]
    return warnings
