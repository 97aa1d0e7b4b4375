"""Settings of the A2A door."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class CardSigningSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key and algorithm that sign agent cards."""

    key: Annotated[str, Meta(min_length=16, description="The private key in PEM form; write `env:NAME`.")]
    key_id: Annotated[str, Meta(min_length=1, description="`kid` in the signature's header.")]
    algorithm: Annotated[
        Literal["ES256", "ES384", "RS256", "PS256", "EdDSA"], Meta(description="Must fit the key.")
    ] = "ES256"
    keys_url: Annotated[str | None, Meta(description="Where the public key can be had, `jku` in the header.")] = None


class A2ADoorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the door `a2a`."""

    grpc: Annotated[
        str | None, Meta(description="HOST:PORT for gRPC; port 0 takes any free one. Unset: no gRPC. Needs `[grpc]`.")
    ] = None
    public_grpc: Annotated[
        str | None, Meta(description="HOST:PORT of gRPC as callers reach it; unset: as `grpc` says.")
    ] = None
    public_cards: Annotated[
        bool,
        Meta(description="Show cards to callers without credentials; on loopback they always are."),
    ] = False
    version_0_3: Annotated[
        bool,
        Meta(
            description="Serve clients of A2A 0.3 too. false: their requests are refused, and cards have no field "
            "that 1.0 does not know."
        ),
    ] = True
    tasks: Annotated[
        Literal["always", "auto", "never"],
        Meta(
            description="always: every message makes a task. never: it is answered with a message, and nothing is "
            "written down, unless the caller will not wait. auto: a message if it is quick (`task_after_ms`)."
        ),
    ] = "always"
    task_after_ms: Annotated[int, Meta(ge=1, description="With `tasks: auto`: what takes longer is a task.")] = 2000
    blocking_seconds: Annotated[
        float, Meta(gt=0, description="How long a caller is kept waiting; then they get the task as it is.")
    ] = 300.0
    replay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="The same message with the same id again within so many seconds gives the same task; "
            "0: always a new one.",
        ),
    ] = 600.0
    card_seconds: Annotated[int, Meta(ge=0, description="How long clients may keep a card (`Cache-Control`).")] = 60
    signing: Annotated[
        CardSigningSettings | None, Meta(description="Sign the cards: `key`, `key_id`, `algorithm`, `keys_url`.")
    ] = None
    push_secret: Annotated[
        str | None,
        Meta(description="Signs push notifications as Standard Webhooks say; unset: as `jobs.webhook_secret`, if any."),
    ] = None
    max_push_configs: Annotated[int, Meta(ge=0, description="Of one task; 0: no push notifications.")] = 10
    body_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            description="Largest request here, where files travel as base64; `limits.body_bytes` if that is more.",
        ),
    ] = 16 * 1024 * 1024
    max_streams: Annotated[int, Meta(ge=1, description="Open streams at a time.")] = 5000
    keep_alive: Annotated[
        float, Meta(gt=0, description="Seconds between the comments that keep a quiet stream's connection open.")
    ] = 15.0
    read_seconds: Annotated[
        float, Meta(gt=0, description="After so many seconds a reader of a stream who takes nothing is given up.")
    ] = 60.0
