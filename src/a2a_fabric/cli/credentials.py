"""`a2a-fabric passport` and `a2a-fabric mandate`: make keys, issue, narrow, inspect, verify and revoke.

These commands need no node. A passport or mandate is printed on stdout and can be given as text, as a file, or as `-`
for stdin."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import jwt
import msgspec
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from a2a_fabric.cli.options import Json, parse_duration
from a2a_fabric.cli.output import format_age, print_fields, print_json, print_line, remark
from a2a_fabric.cli.program import NAME
from a2a_fabric.core.errors import AuthExpired, AuthInvalid, BadInput, ConfigError
from a2a_fabric.core.scopes import is_known_scope
from a2a_fabric.identity.mandates import (
    DEFAULT_DEPTH,
    MAX_LINKS,
    decode_link,
    issue_mandate,
    narrow_mandate,
    prove_mandate,
    split_mandate,
    verify_mandate,
)
from a2a_fabric.identity.passports import check_passport, decode_passport, is_passport, issue_passport
from a2a_fabric.identity.revocations import add_revocation, parse_revocations, read_list
from a2a_fabric.identity.signing import create_key_file, parse_public_keys, read_key_file

_DAY = "1d"
_MAX_TEXT_BYTES = 64 * 1024
_MAX_ID_LENGTH = 256
_TEXT_STARTS = ("{", "eyJ")  # how JSON, and base64url of JSON, begin

KeyFileOption = Annotated[Path, typer.Option("--key", metavar="FILE", help="The private key that signs.")]
PublicKeysOption = Annotated[
    Path, typer.Option("--keys", metavar="FILE", help="The issuer's public keys, a JSON Web Key Set.")
]
RevokedOption = Annotated[
    Path | None, typer.Option("--revoked", metavar="FILE", help="The issuer's revocation list, to be checked as well.")
]
Scopes = Annotated[
    list[str] | None, typer.Option("--scope", metavar="SCOPE", help="What it allows, such as agent:percy. Repeatable.")
]
Capabilities = Annotated[
    list[str] | None, typer.Option("--cap", metavar="NAME", help="Only these capabilities. Repeatable.")
]
Audience = Annotated[
    list[str] | None, typer.Option("--audience", metavar="URL", help="Only these nodes accept it. Repeatable.")
]
For = Annotated[str, typer.Option("--for", metavar="TIME", help="How long it is valid: 15m, 8h, 30d.")]
Credential = Annotated[str, typer.Argument(metavar="TEXT|FILE|-", help="As text, as a file, or from stdin.")]


def make_key(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where the private key is written.")] = Path(
        "issuer.key"
    ),
) -> None:
    """Make a key pair: a private key for signing, and a key set for the nodes that trust it.

    Example: a2a-fabric passport keygen issuer.key
    """
    public_path = path.with_suffix(".jwks.json")
    if public_path.exists():
        raise ConfigError(f"{public_path}: the file exists. Add the new key to it by hand, or choose another name")
    key = create_key_file(path)
    public_path.write_bytes(msgspec.json.format(msgspec.json.encode({"keys": [key.public_jwk]}), indent=2) + b"\n")
    print_line(f"{path}: the private key, which only you can read. Keep it secret")
    print_line(f"{public_path}: the public key {key.key_id}, for nodes and agents")
    remark(f"A node trusts it with: auth: {{issuers: [{{id: NAME, issuer: NAME, jwks_file: {public_path}}}]}}")


def issue_new_passport(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Who answers for what the agent does.")],
    key: KeyFileOption = Path("issuer.key"),
    scope: Scopes = None,
    valid_for: For = _DAY,
    passport_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The agent's own id. A renewed passport keeps it.")
    ] = None,
    issuer: Annotated[str | None, typer.Option("--issuer", metavar="NAME", help="As nodes know the issuer.")] = None,
    audience: Audience = None,
) -> None:
    """Issue a passport for an agent that acts for a principal.

    Example: a2a-fabric passport issue alice --id bot-7 --scope agent:percy --for 8h
    """
    passport = issue_passport(
        read_key_file(key),
        principal_id=principal,
        scopes=_check_scopes(scope),
        expires_at=datetime.fromtimestamp(time.time() + parse_duration(valid_for, "--for"), UTC),
        agent_passport_id=passport_id,
        issuer=issuer,
        audience=audience or (),
    )
    print_line(msgspec.json.encode(passport).decode())


def inspect_passport(passport: Credential, as_json: Json = False) -> None:
    """Show what a passport says, without checking its signature.

    Example: a2a-fabric passport inspect passport.json
    """
    with _report_as_bad_input():
        decoded, fields = decode_passport(_read_text(passport))
    if as_json:
        print_json(fields)
        return
    print_fields(
        [
            ("passport", decoded.agent_passport_id),
            ("acts for", decoded.principal_id),
            ("scopes", " ".join(decoded.delegation_scopes) or "none: it allows nothing"),
            ("expires", f"{decoded.expires_at} ({format_age(decoded.valid_until)})"),
            ("audience", " ".join(decoded.audiences or ()) or "every node that trusts its issuer"),
            ("signed with", decoded.key_id),
        ]
    )
    remark(f"The signature was not checked. Check it with: {NAME} passport verify --keys FILE")


def verify_one_passport(
    passport: Credential, keys: PublicKeysOption, revoked: RevokedOption = None, as_json: Json = False
) -> None:
    """Check a passport's signature, times and revocation.

    Example: a2a-fabric passport verify passport.json --keys issuer.jwks.json
    """
    with _report_as_bad_input():
        decoded, fields = decode_passport(_read_text(passport))
        public_key = read_public_keys(keys).get(decoded.key_id)
        if public_key is None:
            raise AuthInvalid(f"{keys} has no key '{decoded.key_id[:64]}'")
        check_passport(decoded, fields, public_key, time.time())
        _check_revoked(revoked, (decoded.agent_passport_id,))
    if as_json:
        print_json({"valid": True, "principal_id": decoded.principal_id, "expires_at": decoded.expires_at})
    else:
        print_line(f"Valid: {decoded.agent_passport_id} acts for {decoded.principal_id} until {decoded.expires_at}")


def revoke_credential(
    credential: Annotated[str, typer.Argument(metavar="ID|FILE", help="The id of the credential, or its file.")],
    revoked: Annotated[
        Path, typer.Option("--list", metavar="FILE", help="The revocation list; created if there is none.")
    ] = Path("revoked.json"),
    reason: Annotated[str, typer.Option("--reason", help="Why, for those who read the list.")] = "",
) -> None:
    """Add a passport or mandate to the revocation list, which nodes read as `revoked_file` or `revoked_url`.

    Example: a2a-fabric passport revoke bot-7 --list revoked.json --reason "lost laptop"
    """
    credential_id = _find_id(credential)
    is_new = add_revocation(revoked, credential_id, reason)
    print_line(f"{revoked}: '{credential_id}' {'is revoked now' if is_new else 'was revoked before'}")


def issue_new_mandate(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Who gives the mandate.")],
    delegate: Annotated[str, typer.Argument(metavar="DELEGATE", help="Who may act for the principal.")],
    issuer: Annotated[str, typer.Option("--issuer", metavar="NAME", help="As `issuer` in the nodes' `auth.issuers`.")],
    key: KeyFileOption = Path("issuer.key"),
    scope: Scopes = None,
    cap: Capabilities = None,
    valid_for: For = _DAY,
    delegate_key: Annotated[
        Path | None,
        typer.Option("--delegate-key", metavar="FILE", help="The delegate's public key: it may then pass it on."),
    ] = None,
    depth: Annotated[
        int, typer.Option("--depth", min=0, max=MAX_LINKS - 1, help="How often it may be passed on.")
    ] = DEFAULT_DEPTH,
    audience: Audience = None,
    cog: Annotated[str | None, typer.Option("--cog", metavar="ID", help="The cog that it belongs to.")] = None,
) -> None:
    """Issue a mandate: the delegate may act for the principal, within these scopes.

    Example: a2a-fabric mandate issue alice planner --issuer corp --scope agent:percy --for 8h
    """
    print_line(
        issue_mandate(
            read_key_file(key),
            issuer=issuer,
            principal=principal,
            delegate=delegate,
            scopes=_check_scopes(scope),
            capabilities=cap,
            now=time.time(),
            seconds=parse_duration(valid_for, "--for"),
            delegate_key=_read_delegate_key(delegate_key),
            depth=depth,
            audience=audience or (),
            cog=cog,
        )
    )


def narrow_one_mandate(
    mandate: Credential,
    delegate: Annotated[str, typer.Argument(metavar="DELEGATE", help="Who gets the narrower mandate.")],
    key: KeyFileOption,
    scope: Scopes = None,
    cap: Capabilities = None,
    valid_for: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long; never longer than before.")
    ] = None,
    delegate_key: Annotated[
        Path | None,
        typer.Option("--delegate-key", metavar="FILE", help="The delegate's public key: it may then pass it on."),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth", min=0, max=MAX_LINKS - 1, help="How often it may be passed on; less often than before."
        ),
    ] = None,
    audience: Audience = None,
) -> None:
    """Pass a mandate on to the next delegate, with less than it allows. It needs the holder's key, and no node.

    Example: a2a-fabric mandate narrow mandate.txt worker --key planner.key --cap summarize --for 10m
    """
    seconds = None if valid_for is None else parse_duration(valid_for, "--for")
    if depth and delegate_key is None:
        raise BadInput("--depth needs --delegate-key: only the holder of a key can pass a mandate on")
    with _report_as_bad_input():
        narrowed = narrow_mandate(
            _read_text(mandate),
            read_key_file(key),
            delegate=delegate,
            now=time.time(),
            scopes=_check_scopes(scope) if scope else None,
            capabilities=cap,
            seconds=seconds,
            delegate_key=_read_delegate_key(delegate_key),
            depth=depth,
            audience=audience,
        )
        parent, link = map(decode_link, split_mandate(narrowed)[-2:])
    if seconds is not None and link.exp == parent.exp:
        remark(f"It expires with the mandate before it, {format_age(link.exp)}: no mandate outlives that one.")
    print_line(narrowed)


def prove_one_mandate(
    mandate: Credential,
    key: KeyFileOption,
    valid_for: Annotated[str, typer.Option("--for", metavar="TIME", help="How long it counts; at most 1d.")] = "1h",
    audience: Annotated[
        list[str] | None,
        typer.Option("--audience", metavar="URL", help="Only these nodes accept the proof. Repeatable."),
    ] = None,
) -> None:
    """Make a mandate usable that names its holder's key: a node wants a proof that the key's owner sends it.

    Send the result as the bearer token. Pass on the mandate itself, never the result.

    Example: a2a-fabric mandate prove mandate.txt --key planner.key --audience https://fabric.example
    """
    with _report_as_bad_input():
        seconds = parse_duration(valid_for, "--for")
        proven = prove_mandate(
            _read_text(mandate), read_key_file(key), now=time.time(), seconds=seconds, audience=audience or ()
        )
    print_line(proven)


def inspect_mandate(mandate: Credential, as_json: Json = False) -> None:
    """Show what a mandate says, link by link, without checking its signatures.

    Example: a2a-fabric mandate inspect mandate.txt
    """
    with _report_as_bad_input():
        parts = split_mandate(_read_text(mandate))
        links = [decode_link(part) for part in parts]
    if as_json:
        print_json([jwt.decode(part, options={"verify_signature": False}) for part in parts])
        return
    fields: list[tuple[str, Any]] = [("acts for", links[0].prn)]
    for link in links:
        allowed = " ".join((*link.scp, *(f"cap:{name}" for name in link.cap or ()))) or "nothing"
        passed_on = f"; may be passed on {link.dep}×" if link.dep and link.cnf is not None else ""
        only_at = f"; only at {' '.join(link.audiences)}" if link.audiences is not None else ""
        fields.append((link.sub, f"{allowed}; expires {format_age(link.exp)}{passed_on}{only_at}; {link.mnd}"))
    print_fields(fields)
    remark(f"The signatures were not checked. Check them with: {NAME} mandate verify --keys FILE")


def verify_one_mandate(
    mandate: Credential, keys: PublicKeysOption, revoked: RevokedOption = None, as_json: Json = False
) -> None:
    """Check all signatures of a mandate, that each link only narrows, its times and revocation.

    Example: a2a-fabric mandate verify mandate.txt --keys issuer.jwks.json
    """
    public_keys = read_public_keys(keys)

    def find_key(issuer: str, key_id: str) -> Ed25519PublicKey:
        if key_id not in public_keys:
            raise AuthInvalid(f"{keys} has no key '{key_id[:64]}'")
        return public_keys[key_id]

    with _report_as_bad_input():
        verified = verify_mandate(_read_text(mandate), find_key, time.time(), needs_proof=False)
        _check_revoked(revoked, verified.mandate_ids)
    if as_json:
        print_json({"valid": True, "principal_id": verified.principal_id, "delegates": verified.delegates})
    else:
        print_line(f"Valid: {' → '.join(verified.delegates)} acts for {verified.principal_id}")


def _find_id(value: str) -> str:
    """The id of the credential in a file, or that was given as text; else the value is the id. Raises BadInput."""
    if not value.lstrip().startswith(_TEXT_STARTS):
        if not value.strip() or len(value) > _MAX_ID_LENGTH:
            raise BadInput("Name the passport or mandate by its id, which `inspect` shows, or by its file")
        if not Path(value).is_file():
            return value
    with _report_as_bad_input():
        text = _read_text(value)
        if is_passport(text):
            return decode_passport(text)[0].agent_passport_id
        return decode_link(split_mandate(text)[-1]).mnd


@contextmanager
def _report_as_bad_input() -> Iterator[None]:
    """The credentials are what a command is about, not what it needs, so an error gives no advice about keys."""
    try:
        yield
    except (AuthInvalid, AuthExpired) as exc:
        raise BadInput(exc.message) from exc


def _check_scopes(scopes: list[str] | None) -> list[str]:
    if not scopes:
        raise BadInput("Name at least one --scope: without any, it would allow nothing")
    for scope in scopes:
        if not is_known_scope(scope):
            remark(f"'{scope}' is not a scope of Fabric, so it counts only where a node's `grants` say what it gives")
    return scopes


def _read_text(value: str) -> str:
    """The credential itself. Raises ConfigError."""
    try:
        if value == "-":
            return sys.stdin.read(_MAX_TEXT_BYTES).strip()
        if not value.lstrip().startswith(_TEXT_STARTS):
            return Path(value).read_text()[:_MAX_TEXT_BYTES].strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{value[:200]}: cannot be read: {exc}"[:400]) from exc
    return value.strip()


def read_public_keys(path: Path) -> dict[str, Ed25519PublicKey]:
    try:
        return parse_public_keys(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: no public keys could be read: {exc}") from exc


def _read_delegate_key(path: Path | None) -> Ed25519PublicKey | None:
    if path is None:
        return None
    keys = read_public_keys(path)
    if len(keys) > 1:
        raise ConfigError(f"{path}: the file holds several keys. The delegate has one")
    return next(iter(keys.values()))


def _check_revoked(path: Path | None, ids: tuple[str, ...]) -> None:
    if path is None:
        return
    try:
        revoked = {entry.id for entry in parse_revocations(read_list(path)).revoked}
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    for each in ids:
        if each in revoked:
            raise AuthInvalid(f"'{each}' was revoked")
