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
        str | None,
        Meta(
            description="HOST:PORT for gRPC; port 0 takes any free port. Unset: no gRPC. Needs `pip install "
            "'a2a-fabric[grpc]'`."
        ),
    ] = None
    grpc_client_certificates: Annotated[
        Literal["off", "optional", "required"] | None,
        Meta(
            description="Whether gRPC clients show a certificate. Unset: as `tls.client_certificates` says. With "
            "`optional` the node itself takes TLS off, in front of gRPC, which cannot do that."
        ),
    ] = None
    public_grpc: Annotated[
        str | None, Meta(description="HOST:PORT under which callers reach gRPC. Unset: as `grpc` says.")
    ] = None
    public_cards: Annotated[
        bool,
        Meta(description="Show cards to callers without credentials. On loopback the node always does."),
    ] = False
    version_0_3: Annotated[
        bool,
        Meta(
            description="Serve clients of A2A 0.3 too. false: the node refuses their requests, and cards have only "
            "fields of 1.0."
        ),
    ] = True
    tasks: Annotated[
        Literal["always", "auto", "never"],
        Meta(
            description="always: every message makes a task. never: a message is answered with a message, and nothing"
            " is stored, unless the caller does not wait. auto: a task only if the work takes longer than"
            " `task_after_ms`."
        ),
    ] = "always"
    task_after_ms: Annotated[
        int, Meta(ge=1, description="With `tasks: auto`, work that takes longer becomes a task.")
    ] = 2000
    blocking_seconds: Annotated[
        float,
        Meta(gt=0, description="How long a request waits for the end of its task. Then it returns the task as it is."),
    ] = 300.0
    replay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="If a client sends the same message with the same id again within so many seconds, it gets "
            "the same task. 0: always a new one.",
        ),
    ] = 600.0
    card_seconds: Annotated[int, Meta(ge=0, description="How long clients may keep a card (`Cache-Control`).")] = 60
    signing: Annotated[
        CardSigningSettings | None, Meta(description="Sign the cards: `key`, `key_id`, `algorithm`, `keys_url`.")
    ] = None
    push_secret: Annotated[
        str | None,
        Meta(
            description="Signs push notifications as Standard Webhooks prescribe. Unset: `jobs.webhook_secret`, if any."
        ),
    ] = None
    max_push_configs: Annotated[int, Meta(ge=0, description="Push configs of one task. 0: no push notifications.")] = 10
    body_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            description="Largest request at this door, where files travel as base64; `limits.body_bytes` if that is "
            "more.",
        ),
    ] = 16 * 1024 * 1024
    max_streams: Annotated[int, Meta(ge=1, description="Open streams at a time.")] = 5000
    keep_alive: Annotated[
        float, Meta(gt=0, description="Seconds between the comments that keep a quiet stream's connection open.")
    ] = 15.0
    read_seconds: Annotated[
        float, Meta(gt=0, description="Seconds after which the node closes a stream whose client reads nothing.")
    ] = 60.0
