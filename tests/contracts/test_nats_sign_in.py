"""How a node signs in at NATS: password, token, NKEY, credentials of an operator's account, TLS with certificates."""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from a2a_fabric.core.errors import StoreUnusable
from a2a_fabric.stores.address import redact_address
from a2a_fabric.stores.nats.store import NatsStore, build
from tests.contracts.stores import begun
from tests.fixtures.certificates import Authority
from tests.fixtures.nats import NatsServer

_PREFIXES = {"operator": 14 << 3, "account": 0, "user": 20 << 3}


class NatsKey:
    """A key as `nsc` makes it."""

    def __init__(self, kind: str) -> None:
        self._secret = os.urandom(32)
        self._key = Ed25519PrivateKey.from_private_bytes(self._secret)
        self._prefix = _PREFIXES[kind]

    @property
    def public(self) -> str:
        return _encode(bytes([self._prefix]) + self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    @property
    def seed(self) -> str:
        first, second = 18 << 3 | self._prefix >> 5, (self._prefix & 31) << 3
        return _encode(bytes([first, second]) + self._secret)

    def issue(self, subject: str, kind: str, **claims: Any) -> str:
        """A JWT about another key."""
        body = {
            "jti": os.urandom(8).hex(), "iat": int(time.time()), "iss": self.public, "sub": subject, "name": kind,
            "nats": {"type": kind, "version": 2, **claims},
        }  # fmt: skip
        head = _segment({"typ": "JWT", "alg": "ed25519-nkey"})
        signed = f"{head}.{_segment(body)}"
        return f"{signed}.{base64.urlsafe_b64encode(self._key.sign(signed.encode())).decode().rstrip('=')}"


def _encode(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _segment(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@contextmanager
def running(settings: str) -> Iterator[NatsServer]:
    server = NatsServer(settings).start()
    try:
        yield server
    finally:
        server.remove()


async def assert_works(address: str) -> None:
    store: NatsStore = await build(address)
    try:
        await begun(store)
    finally:
        await store.aclose()


async def test_a_password_or_a_token_in_the_address_or_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_TOKEN", "p@ss:word")
    with running('authorization { token: "p@ss:word" }') as server:
        await assert_works(server.address(login=quote("p@ss:word", safe="")))
        await assert_works(server.address(options="token=env:NATS_TOKEN"))
    with running('authorization { user: "al:ice", password: "p@ss:word" }') as server:
        await assert_works(server.address(login=f"{quote('al:ice', safe='')}:{quote('p@ss:word', safe='')}"))


async def test_an_nkey(monkeypatch: pytest.MonkeyPatch) -> None:
    key = NatsKey("user")
    monkeypatch.setenv("NATS_SEED", key.seed)
    with running(f"authorization {{ users: [{{ nkey: {key.public} }}] }}") as server:
        await assert_works(server.address(options="nkey=env:NATS_SEED"))
        with pytest.raises(StoreUnusable, match="refused the connection"):
            await build(server.address(options=f"nkey={NatsKey('user').seed}"))


async def test_credentials_of_an_account(tmp_path: Path) -> None:
    operator, account, system, user = (NatsKey(kind) for kind in ("operator", "account", "account", "user"))
    unlimited = {
        "limits": {
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1,
            "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
        }
    }  # fmt: skip
    accounts = {
        account.public: operator.issue(account.public, "account", **unlimited),
        system.public: operator.issue(system.public, "account"),
    }
    preload = ", ".join(f"{name}: {json.dumps(token)}" for name, token in accounts.items())
    settings = (
        f"operator: {operator.issue(operator.public, 'operator')}\nsystem_account: {system.public}\n"
        f"resolver: MEMORY\nresolver_preload: {{ {preload} }}\n"
    )
    token = account.issue(user.public, "user", pub={}, sub={}, subs=-1, data=-1, payload=-1)
    file = tmp_path / "node.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n",
        "utf-8",
    )
    with running(settings) as server:
        await assert_works(server.address(options=f"creds={quote(str(file), safe='')}"))
        with pytest.raises(StoreUnusable, match="refused the connection"):
            await build(server.address())


async def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    authority = Authority()
    files = {"ca": authority.pem}
    files["server.key"], files["server.pem"] = authority.vouch_for("127.0.0.1")
    files["key"], files["cert"] = authority.vouch_for("node")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    settings = (
        f"tls {{ cert_file: '{tmp_path}/server.pem', key_file: '{tmp_path}/server.key', ca_file: '{tmp_path}/ca', "
        "verify: true }"
    )
    own = "&".join(f"{name}={tmp_path}/{name}" for name in ("ca", "cert", "key"))
    with running(settings) as server:
        await assert_works(server.address(options=own))
        for options, sentence in (
            ("", "certificate of the server is not accepted .*: name its authority with ca=FILE"),
            (f"ca={tmp_path}/ca", "wants a certificate of the node: name it with cert=FILE"),
        ):
            with pytest.raises(StoreUnusable, match=sentence):
                await build(server.address(options=options))


def test_no_secret_of_an_address_is_shown() -> None:
    assert redact_address("nats://alice:secret@h:1,i:2/x?replicas=3") == "nats://alice@h:1,i:2/x?replicas=3"
    assert redact_address("nats://secret@h/x") == "nats://h/x"
    assert redact_address("nats://h/x?token=secret&nkey=SUsecret") == "nats://h/x"
