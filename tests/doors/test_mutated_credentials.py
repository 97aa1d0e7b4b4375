"""Valid credentials with one character changed, removed or added, at a real door: none of them lets anybody in."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import msgspec
import pytest
import pytest_asyncio

from a2a_fabric.core.keys import NewKey
from a2a_fabric.identity.mandates import SEPARATOR, issue_mandate, narrow_mandate
from a2a_fabric.identity.passports import PASSPORT_HEADER, issue_passport
from a2a_fabric.identity.shared_keys import make_key
from a2a_fabric.identity.signing import SigningKey, encode_base64url
from tests.fixtures.node import WAIT_TIMEOUT, Node, eventually, running
from tests.marks import requirement

pytestmark = pytest.mark.asyncio(loop_scope="module")

ISSUER, BOT = SigningKey.generate(), SigningKey.generate()
KEY = make_key()
AT_A_TIME = 16


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    folder: Path = tmp_path_factory.mktemp("issuer")
    folder.joinpath("keys.json").write_bytes(msgspec.json.encode({"keys": [ISSUER.public_jwk]}))
    issuer = {"id": "corp", "issuer": "corp", "jwks_file": "keys.json", "audience": ["node"], "scopes": ["*"]}
    config = {"auth": {"issuers": [issuer]}, "limits": {"failed_attempts_per_minute": 1_000_000}}
    async with running(config=config, base=folder) as found:
        digest = hashlib.sha256(KEY.encode()).digest()
        await found.fabric.store.keys.add(NewKey(key_id="key-1", name="reader", digest=digest, scopes=("*",)))

        async def is_known() -> bool:
            return await status(found, by_token(KEY)) == 200

        await eventually(is_known)
        yield found


def by_token(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def by_passport(text: str) -> dict[str, str]:
    return {PASSPORT_HEADER: text}


async def status(node: Node, headers: dict[str, str]) -> int:
    body = {"name": "fabric.agent.list", "arguments": {}}
    return (await node.send("POST", "/mcp/call", token=None, headers=headers, json=body)).status


def make_token() -> str:
    claims = {"iss": "corp", "sub": "alice", "aud": "node", "exp": int(time.time()) + 3600}
    return jwt.encode(claims, ISSUER.private_key, algorithm="EdDSA", headers={"kid": ISSUER.key_id})


def make_passport() -> str:
    expires_at = datetime.now(UTC) + timedelta(hours=1)
    issued = issue_passport(ISSUER, principal_id="alice", scopes=["*"], expires_at=expires_at, issuer="corp")
    return json.dumps(issued, separators=(",", ":"))


def make_encoded_passport() -> str:
    return encode_base64url(make_passport().encode())


def make_mandate() -> str:
    first = issue_mandate(
        ISSUER, issuer="corp", principal="alice", delegate="bot", scopes=["*"], now=time.time(), seconds=3600,
        delegate_key=BOT.public_key,
    )  # fmt: skip
    return narrow_mandate(first, BOT, delegate="worker", now=time.time(), scopes=["agent:*"])


def mutate(text: str) -> Iterator[str]:
    """Each character once changed to its neighbour, and every seventh removed or doubled; and all beginnings of it."""
    for place, character in enumerate(text):
        changed = chr(ord(character) ^ 1)
        yield text[:place] + changed + text[place + 1 :]
        if place % 7 == 0:
            yield text[:place] + text[place + 1 :]
            yield text[:place] + character + text[place:]
            yield text[:place]


@requirement("001-26", "001-28")
@pytest.mark.parametrize(
    ("make", "headers"),
    [
        (lambda: KEY, by_token),
        (make_token, by_token),
        (make_passport, by_passport),
        (make_encoded_passport, by_passport),
        (make_mandate, by_token),
    ],
    ids=["key", "jwt", "passport", "encoded passport", "mandate"],
)
async def test_one_wrong_character_is_enough(
    node: Node, make: Callable[[], str], headers: Callable[[str], dict[str, str]]
) -> None:
    right = make()
    assert await status(node, headers(right)) == 200
    limit = asyncio.Semaphore(AT_A_TIME)

    async def attempt(text: str) -> int:
        async with limit:
            return await status(node, headers(text))

    wrong = [each for each in mutate(right) if each.isprintable() and each.strip() != right]
    if SEPARATOR in right:
        wrong.append(right.partition(SEPARATOR)[0])  # the wider mandate that this one was made of
    async with asyncio.timeout(3 * WAIT_TIMEOUT):
        answers = await asyncio.gather(*map(attempt, wrong))
    passed = [(answer, text) for text, answer in zip(wrong, answers, strict=True) if answer != 401]
    assert passed == []
    assert await status(node, headers(right)) == 200
