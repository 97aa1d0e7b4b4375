"""Passports and mandates without a node: what is signed, what may be narrowed, and that no altered one passes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.errors import AuthExpired, AuthInvalid, BadInput, CallerError, ConfigError
from a2a_fabric.core.scopes import covers_scopes
from a2a_fabric.identity.mandates import MAX_LINKS, issue_mandate, narrow_mandate, split_mandate, verify_mandate
from a2a_fabric.identity.passports import check_passport, decode_passport, issue_passport
from a2a_fabric.identity.revocations import FileRevocations, add_revocation
from a2a_fabric.identity.signing import (
    SigningKey,
    create_key_file,
    encode_base64url,
    encode_canonical,
    parse_public_keys,
    read_key_file,
)
from tests.marks import requirement

ISSUER, PLANNER, WORKER, STRANGER = (SigningKey.generate() for _ in range(4))
NOW = time.time()
IN_AN_HOUR = datetime.now(UTC) + timedelta(hours=1)


def passport(**more: Any) -> dict[str, Any]:
    return issue_passport(
        ISSUER, **{"principal_id": "alice", "scopes": ["agent:percy"], "expires_at": IN_AN_HOUR, **more}
    )


def check(text: str, key: SigningKey = ISSUER, later: float = 0.0) -> str:
    decoded, fields = decode_passport(text)
    check_passport(decoded, fields, key.public_key, time.time() + later)
    return decoded.principal_id


class TestPassports:
    @requirement("001-26")
    def test_it_is_checked_whatever_the_spelling_of_its_json(self) -> None:
        issued = passport()
        assert check(json.dumps(issued)) == "alice"
        assert check(json.dumps(dict(reversed(issued.items())), indent=3)) == "alice"
        assert check(encode_base64url(json.dumps(issued).encode())) == "alice"

    def test_fields_that_fabric_does_not_know_are_signed_too(self) -> None:
        issued = passport()
        with pytest.raises(AuthInvalid, match="signature"):
            check(json.dumps({**issued, "department": "sales"}))

    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            ({"principal_id": "bob"}, AuthInvalid),
            ({"delegation_scopes": ["*"]}, AuthInvalid),
            ({"expires_at": "2099-01-01T00:00:00Z"}, AuthInvalid),
            ({"agent_passport_id": "other"}, AuthInvalid),
            ({"signature": ""}, AuthInvalid),
            ({"delegation_scopes": "agent:percy"}, AuthInvalid),
            ({"expires_at": 1}, AuthInvalid),
            ({"more": 2**60}, AuthInvalid),  # has no canonical form
        ],
    )
    def test_a_changed_field_is_noticed(self, changed: dict[str, Any], expected: type[CallerError]) -> None:
        with pytest.raises(expected):
            check(json.dumps({**passport(), **changed}))

    def test_another_key_is_refused_and_so_are_wrong_times(self) -> None:
        text = json.dumps(passport())
        with pytest.raises(AuthInvalid):
            check(text, STRANGER)
        with pytest.raises(AuthExpired):
            check(text, later=7200)
        with pytest.raises(AuthInvalid, match="clocks"):
            check(text, later=-120)  # a clock two minutes slow
        assert check(text, later=-20) == "alice"
        with pytest.raises(AuthInvalid, match="ISO 8601"):
            check(json.dumps(resigned({**passport(), "expires_at": "tomorrow"})))

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "eyJ", "{}", "x" * 9000, '{"principal_id": "alice"}'])
    def test_what_is_no_passport_is_told_so(self, text: str) -> None:
        with pytest.raises(AuthInvalid):
            decode_passport(text)


def resigned(fields: dict[str, Any]) -> dict[str, Any]:
    from_scratch = {name: value for name, value in fields.items() if name != "signature"}
    return {**from_scratch, "signature": ISSUER.sign(encode_canonical(from_scratch))}


def find_key(issuer: str, key_id: str) -> Ed25519PublicKey:
    if (issuer, key_id) != ("corp", ISSUER.key_id):
        raise AuthInvalid
    return ISSUER.public_key


def root(**more: Any) -> str:
    given = {
        "issuer": "corp",
        "principal": "alice",
        "delegate": "planner",
        "scopes": ["agent:*", "message:percy"],
        "now": NOW,
        "seconds": 3600,
        "delegate_key": PLANNER.public_key,
        **more,
    }
    return issue_mandate(ISSUER, **given)


class TestMandates:
    @requirement("001-29")
    def test_each_delegate_narrows_it_and_the_whole_chain_is_checked(self) -> None:
        second = narrow_mandate(
            root(cog="home"),
            PLANNER,
            delegate="worker",
            now=NOW,
            scopes=["agent:percy"],
            delegate_key=WORKER.public_key,
        )
        third = narrow_mandate(second, WORKER, delegate="helper", now=NOW, capabilities=["summarize"], seconds=60)
        mandate = verify_mandate(third, find_key, NOW, needs_proof=False)
        assert mandate.principal_id == "alice"
        assert mandate.delegates == ("planner", "worker", "helper")
        assert (mandate.last.scp, mandate.last.cap, mandate.last.cog) == (("agent:percy",), ("summarize",), "home")
        assert mandate.valid_until == pytest.approx(NOW + 60, abs=1)
        assert len(set(mandate.mandate_ids)) == 3
        with pytest.raises(BadInput, match="may not be passed on"):
            narrow_mandate(third, STRANGER, delegate="eve", now=NOW)

    @pytest.mark.parametrize(
        "wider",
        [{"scopes": ["*"]}, {"scopes": ["agent:*", "topic:x"]}, {"capabilities": ["greet", "delete"]}, {"depth": 7}],
    )
    def test_the_holder_cannot_widen_it(self, wider: dict[str, Any]) -> None:
        with pytest.raises(BadInput, match="only be narrowed"):
            narrow_mandate(
                root(capabilities=["greet"]),
                PLANNER,
                delegate="eve",
                now=NOW,
                delegate_key=STRANGER.public_key,
                **wider,
            )

    @pytest.mark.parametrize(
        "claims",
        [
            {"scp": ["*"]},
            {"exp": NOW + 7200},
            {"dep": 4},
            {"prn": "bob"},
            {"iss": "other"},
            {"cap": ["everything"]},
            {"pth": "x"},
            {"aud": "https://other.example"},
            {"cog": "other"},
        ],
    )
    def test_a_forged_link_that_claims_more_is_refused(self, claims: dict[str, Any]) -> None:
        first = root(capabilities=["greet"], audience=["https://node.example"], cog="home")
        narrowed = narrow_mandate(first, PLANNER, delegate="worker", now=NOW)
        link = jwt.decode(split_mandate(narrowed)[1], options={"verify_signature": False})
        forged = jwt.encode(
            {**link, **claims}, PLANNER.private_key, "EdDSA", headers={"typ": "mandate+jwt", "kid": PLANNER.key_id}
        )
        with pytest.raises(AuthInvalid):
            verify_mandate(f"{first}~{forged}", find_key, NOW, needs_proof=False)

    def test_a_scope_cannot_be_taken_for_a_capability_of_the_same_name(self) -> None:
        first = root(scopes=["*"], capabilities=["capability:metrics"])
        with pytest.raises(BadInput, match="capabilities are wider"):  # `metrics` alone is the scope of /metrics
            narrow_mandate(first, PLANNER, delegate="eve", now=NOW, capabilities=["metrics"])

    def test_the_words_of_a_nodes_grants_can_be_kept_and_left_out_but_not_added(self) -> None:
        first = root(scopes=["staff", "guests"])
        kept = narrow_mandate(first, PLANNER, delegate="worker", now=NOW, scopes=["guests"])
        assert verify_mandate(kept, find_key, NOW, needs_proof=False).last.scp == ("guests",)
        for wider in (["admins"], ["guests", "agent:percy"]):
            with pytest.raises(BadInput, match="scopes are wider"):
                narrow_mandate(first, PLANNER, delegate="worker", now=NOW, scopes=wider)

    def test_a_link_signed_again_by_its_holder_or_with_another_algorithm_is_refused(self) -> None:
        first = root()
        claims = jwt.decode(first, options={"verify_signature": False})
        headers = {"typ": "mandate+jwt", "kid": ISSUER.key_id}
        public = ISSUER.public_key.public_bytes_raw()
        for forged in (
            jwt.encode(claims, PLANNER.private_key, "EdDSA", headers=headers),
            jwt.encode(claims, public + b"0" * 32, "HS256", headers=headers),
            jwt.encode(claims, "", "none", headers=headers),
        ):
            with pytest.raises(AuthInvalid, match="signature"):
                verify_mandate(forged, find_key, NOW, needs_proof=False)

    def test_no_part_of_one_passes(self) -> None:
        narrowed = narrow_mandate(root(), PLANNER, delegate="worker", now=NOW)
        first, _ = split_mandate(narrowed)
        for length in (*range(0, len(narrowed), 7), len(first)):
            with pytest.raises(AuthInvalid):
                verify_mandate(narrowed[:length], find_key, NOW)

    def test_links_cannot_be_left_out_exchanged_or_signed_by_others(self) -> None:
        first = root()
        second = narrow_mandate(first, PLANNER, delegate="w", now=NOW, delegate_key=WORKER.public_key)
        third = narrow_mandate(second, WORKER, delegate="h", now=NOW)
        one, two, three = split_mandate(third)
        for wrong in (
            f"{one}~{three}",
            f"{two}~{three}",
            two,
            three,
            f"{two}~{one}",
            f"{third}~{two}",
            f"{first}~",
            "~",
        ):
            with pytest.raises(AuthInvalid):
                verify_mandate(wrong, find_key, NOW, needs_proof=False)
        other = root()
        with pytest.raises(AuthInvalid):
            verify_mandate(f"{other}~{two}", find_key, NOW, needs_proof=False)
        with pytest.raises(BadInput, match="another key"):
            narrow_mandate(first, STRANGER, delegate="eve", now=NOW)

    def test_a_long_chain_ends(self) -> None:
        token = root(depth=MAX_LINKS - 1)
        for _ in range(MAX_LINKS - 1):
            token = narrow_mandate(token, PLANNER, delegate="next", now=NOW, delegate_key=PLANNER.public_key)
        assert len(verify_mandate(token, find_key, NOW, needs_proof=False).links) == MAX_LINKS
        with pytest.raises(BadInput):
            narrow_mandate(token, PLANNER, delegate="one too many", now=NOW)
        with pytest.raises(AuthInvalid, match="passed on"):
            verify_mandate("~".join([root()] * 100), find_key, NOW)

    def test_times_and_keys_count(self) -> None:
        with pytest.raises(AuthExpired):
            verify_mandate(root(), find_key, NOW + 7200, needs_proof=False)
        with pytest.raises(AuthInvalid, match="clocks"):
            verify_mandate(root(), find_key, NOW - 120, needs_proof=False)
        unsigned = jwt.encode({"iss": "corp"}, "", algorithm="none", headers={"typ": "mandate+jwt"})
        with pytest.raises(AuthInvalid):
            verify_mandate(unsigned, find_key, NOW, needs_proof=False)


@cache
def samples() -> tuple[str, str]:
    narrowed = narrow_mandate(root(), PLANNER, delegate="worker", now=NOW, scopes=["agent:percy"])
    return json.dumps(passport(), separators=(",", ":")), narrowed


@given(st.data())
def test_no_altered_credential_passes(data: st.DataObject) -> None:
    """One byte exchanged, removed or doubled, anywhere: it is refused, or it still says the same."""
    which = data.draw(st.integers(0, 1))
    text = samples()[which]
    at = data.draw(st.integers(0, len(text) - 1))
    byte = data.draw(st.characters(min_codepoint=32, max_codepoint=126))
    changed = data.draw(
        st.sampled_from(
            [text[:at] + byte + text[at + 1 :], text[:at] + text[at + 1 :], text[:at] + text[at] + text[at:]]
        )
    )
    try:
        if which:
            assert (
                verify_mandate(changed, find_key, NOW, needs_proof=False).links
                == verify_mandate(text, find_key, NOW, needs_proof=False).links
            )
        else:
            check(changed)
            assert json.loads(changed) == json.loads(text)
    except CallerError:
        assert changed != text


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        (("*",), ("agent:x", "metrics"), True),
        (("agent:*",), ("agent:lab/*", "agent:x"), True),
        (("agent:lab/*",), ("agent:*",), False),
        (("agent:lab/*",), ("agent:lab/x",), True),
        (("topic:orders.*",), ("publish:orders.new", "subscribe:orders.*"), True),
        (("publish:x",), ("topic:x",), False),
        (("register",), ("register:x",), True),
        (("register:x",), ("register",), False),
        (("capability:read_file",), ("capability:read-file",), True),
        (("agent:x",), ("capability:y",), False),
        (("agent:x",), (), True),
        ((), ("agent:x",), False),
        (("agent:x",), ("nonsense",), False),
        (("agent:x",), ("*",), False),
    ],
)
def test_which_scopes_cover_which(wide: tuple[str, ...], narrow: tuple[str, ...], expected: bool) -> None:
    assert covers_scopes(wide, narrow) is expected


class TestFiles:
    def test_a_key_file_is_private_and_is_never_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / "issuer.key"
        key = create_key_file(path)
        assert path.stat().st_mode & 0o077 == 0
        assert read_key_file(path).key_id == key.key_id
        assert list(parse_public_keys(path.read_bytes())) == [key.key_id]
        with pytest.raises(ConfigError, match="exists"):
            create_key_file(path)
        path.chmod(0o644)
        with pytest.raises(ConfigError, match="other users"):
            read_key_file(path)

    @pytest.mark.parametrize("content", ["nonsense", "{}", '{"d": "AAAA"}', '{"kty": "OKP", "d": 3}'])
    def test_what_is_no_key_is_told_so(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "key"
        path.write_text(content)
        path.chmod(0o600)
        with pytest.raises(ConfigError, match="no private Ed25519 key"):
            read_key_file(path)

    def test_a_revocation_list_is_read_again_when_it_changes(self, tmp_path: Path) -> None:
        path = tmp_path / "revoked.json"
        with pytest.raises(ConfigError, match="cannot be read"):
            FileRevocations(path)
        assert add_revocation(path, "pp-1", "lost") is True
        assert add_revocation(path, "pp-1") is False
        revocations = FileRevocations(path)
        assert revocations.find_revoked(["pp-0", "pp-1"]) == "pp-1"
        assert revocations.find_revoked(["pp-2"]) is None
        add_revocation(path, "pp-2")
        assert revocations.find_revoked(["pp-2"]) == "pp-2"
        path.write_text("half a li")  # the last list stays in use
        assert revocations.find_revoked(["pp-2"]) == "pp-2"
        path.unlink()
        assert revocations.find_revoked(["pp-1"]) == "pp-1"
        with pytest.raises(ConfigError):
            add_revocation(tmp_path / "no" / "such" / "folder.json", "x")


def test_an_agent_that_verifies_loads_nothing_of_a_node() -> None:
    script = "import sys; from a2a_fabric.identity import NodeIdentityVerifier; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    node_parts = ("app", "doors", "runtimes", "stores", "gateway", "node")
    assert not {f"a2a_fabric.{part}" for part in node_parts} & set(loaded)
    assert not {"starlette", "uvicorn", "mcp", "grpc", "jwt"} & set(loaded)
