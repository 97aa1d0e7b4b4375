"""What it costs to identify a caller, by the kind of its credentials: the first time, and with each further request."""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.identity.certificates import CertificateCaller, CertificateCallers
from a2a_fabric.identity.mandates import issue_mandate
from a2a_fabric.identity.passports import issue_passport
from a2a_fabric.identity.peer import Peer, PeerCertificate
from a2a_fabric.identity.resolver import Credentials, Resolver
from a2a_fabric.identity.settings import IssuerSettings
from a2a_fabric.identity.shared_keys import KnownKey, SharedKey, SharedKeys, hash_key, make_key
from a2a_fabric.identity.signing import SigningKey
from a2a_fabric.identity.trusted_issuers import TrustedTokens, build_trusted_tokens
from a2a_fabric.outbound.client import OutboundClient

KEYS = 10_000
TIMES = 2000
FIRST_TIMES = 300
_HOUR = 3600.0


def run() -> None:
    print("\n| credentials | first check, µs | each further request, µs |")
    print("|---|---|---|")
    asyncio.run(_measure_all())


async def _measure_all() -> None:
    with tempfile.TemporaryDirectory() as folder:
        signer, http = SigningKey.generate(), OutboundClient()
        Path(folder, "keys.json").write_bytes(msgspec.json.encode({"keys": [signer.public_jwk]}))
        server = await asyncio.start_server(_answer_introspection, "127.0.0.1", 0)
        issuer_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        issuers = [
            IssuerSettings(id="corp", issuer="corp", jwks_file="keys.json", audience=("node",)),
            IssuerSettings(
                id="login",
                issuer=issuer_url,
                audience=("node",),
                introspection_url=f"{issuer_url}/introspect",
                client_id="fabric",
                client_secret="the-secret-of-fabric",
            ),
        ]
        keys, own_key = SharedKeys([SharedKey(principal_id="psk", secret="the-nodes-own-key")]), make_key()
        secrets = [own_key, *(make_key() for _ in range(KEYS - 1))]
        ends_at = time.time() + _HOUR
        keys.set_stored(
            KnownKey(hash_key(secret), Principal(mode="psk", principal_id=str(number)), ends_at, str(number))
            for number, secret in enumerate(secrets)
        )

        def build() -> Resolver:
            tokens: TrustedTokens = build_trusted_tokens(issuers, Path(folder), None, http)
            certificates = CertificateCallers([CertificateCaller(match="uri:spiffe://corp/*", principal_id="0")])
            anonymous = Principal(mode="none", trust="local")
            return Resolver(keys, anonymous, lambda *_: None, tokens, certificates=certificates)

        for name, credentials in _make_credentials(signer, own_key).items():
            first = await _measure_first(build, credentials)
            again = await _measure_again(build(), credentials)
            print(f"| {name} | {first * 1e6:.1f} | {again * 1e6:.1f} |")
        await http.aclose()
        server.close()
        await asyncio.sleep(0)  # its connections end


async def _answer_introspection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An issuer on this machine, which calls every token active (RFC 7662)."""
    reply = msgspec.json.encode(
        {"active": True, "sub": "alice", "aud": "node", "scope": "*", "exp": int(time.time() + _HOUR)}
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(reply)
    try:
        while True:
            fields = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            lengths = [int(field.split(b":")[1]) for field in fields if field.startswith(b"content-length")]
            await reader.readexactly(sum(lengths))
            writer.write(head + reply)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def _make_credentials(signer: SigningKey, own_key: str) -> dict[str, Credentials]:
    now = time.time()
    claims = {"iss": "corp", "sub": "alice", "aud": "node", "exp": int(now + _HOUR), "scope": "*"}
    token = jwt.encode(claims, signer.private_key, algorithm="EdDSA", headers={"kid": signer.key_id})
    passport = issue_passport(
        signer, principal_id="alice", scopes=["*"], expires_at=datetime.now(UTC) + timedelta(hours=1)
    )
    mandate = issue_mandate(
        signer, issuer="corp", principal="alice", delegate="bot", scopes=["*"], now=now, seconds=_HOUR
    )
    peer = Peer(certificate=PeerCertificate(names=("uri:spiffe://corp/ci",), not_before=now, not_after=now + _HOUR))
    return {
        "none": Credentials(host="127.0.0.1"),
        "the node's key": Credentials(authorization="Bearer the-nodes-own-key"),
        f"a stored key that expires, of {KEYS:,}": Credentials(authorization=f"Bearer {own_key}"),
        "JWT (EdDSA)": Credentials(authorization=f"Bearer {token}"),
        "opaque token (its issuer, on this machine, is asked)": Credentials(authorization="Bearer an-opaque-token"),
        "passport": Credentials(passport=json.dumps(passport)),
        "passport beside a key": Credentials(authorization=f"Bearer {own_key}", passport=json.dumps(passport)),
        "mandate": Credentials(authorization=f"Bearer {mandate}"),
        "client certificate (its handshake is over)": Credentials(peer=peer),
        "client certificate beside a key": Credentials(authorization=f"Bearer {own_key}", peer=peer),
    }


async def _measure_first(build: Callable[[], Resolver], credentials: Credentials) -> float:
    """With the keys of the issuer at hand, and no outcome."""
    times = []
    for _ in range(FIRST_TIMES):
        resolver = build()
        started = time.perf_counter()
        await resolver.verify_token(credentials)
        resolver(credentials)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


async def _measure_again(resolver: Resolver, credentials: Credentials) -> float:
    await resolver.verify_token(credentials)
    resolver(credentials)
    gc.collect()
    times = []
    for _ in range(TIMES):
        started = time.perf_counter()
        await resolver.verify_token(credentials)
        resolver(credentials)
        times.append(time.perf_counter() - started)
    return statistics.median(times)
