"""`a2a-fabric receipts`: export the receipts of a store, and verify an export offline."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from a2a_fabric.cli.credentials import read_public_keys
from a2a_fabric.cli.identity import open_keys
from a2a_fabric.cli.options import ConfigFile, Json, StoreAddress
from a2a_fabric.cli.output import print_json, print_line, remark
from a2a_fabric.cli.store import open_unchanged, resolve_store
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.files import report_write_errors
from a2a_fabric.identity.node_keys import NodeKeys
from a2a_fabric.identity.receipts import MAX_LINE, ChainSummary, Verification, encode_head, encode_seal, verify_lines

_PAGE = 500
_MAX_HEAD = 1024 * 1024  # the first line holds the keys


def export_receipts(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Where to write; default: stdout.")] = None,
    chain: Annotated[
        str | None, typer.Option("--chain", metavar="NODE", help="Only the receipts of this node; default: all.")
    ] = None,
    config: ConfigFile = None,
    store: StoreAddress = None,
) -> None:
    """Write the receipts of the store as JSON lines. The last line says what there is, and this node signs it.

    Example: a2a-fabric receipts export receipts.jsonl
    """
    _, address = resolve_store(config, store)
    count = asyncio.run(_export(address, open_keys(config), chain, file))
    remark(f"{count} receipts were exported")


async def _export(address: str, keys: NodeKeys, chain: str | None, file: Path | None) -> int:
    count = -2  # the first and the last line are not receipts
    with report_write_errors(file or Path("stdout")), file.open("wb") if file else sys.stdout.buffer as target:
        async with aclosing(_iterate_lines(address, keys, chain)) as lines:
            async for line in lines:
                target.write(line + b"\n")
                count += 1
    return count


async def _iterate_lines(address: str, keys: NodeKeys, chain: str | None) -> AsyncGenerator[bytes]:
    summaries: dict[str, ChainSummary] = {}
    key = keys.get()
    yield encode_head(keys.list_all())
    async with open_unchanged(address) as store:
        after, page = ("", 0), await store.receipts.read(chain=chain, limit=_PAGE)
        while page:
            for receipt in page:
                before = summaries.get(receipt.chain)
                summaries[receipt.chain] = ChainSummary(
                    chain=receipt.chain,
                    first=receipt.seq if before is None else before.first,
                    last=receipt.seq,
                    digest=receipt.digest,
                )
                yield receipt.body
            after = (page[-1].chain, page[-1].seq)
            page = await store.receipts.read(chain=chain, after=after, limit=_PAGE)
    yield encode_seal(tuple(summaries.values()), key)


def verify_receipts(
    file: Annotated[Path, typer.Argument(metavar="FILE|-", help="An export; - for stdin.")],
    keys: Annotated[
        list[Path] | None,
        typer.Option(
            "--keys", metavar="FILE", help="The public keys of the nodes (`identity show --json`). Repeatable."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every signature and every link of an export. It needs no node.

    Example: a2a-fabric receipts verify receipts.jsonl --keys public-keys.json
    """
    trusted: dict[str, Ed25519PublicKey] = {}
    for path in keys or ():
        trusted |= read_public_keys(path)
    try:
        verification = verify_lines(_read_lines(file), trusted or None)
    except OSError as exc:
        raise ConfigError(f"{file}: cannot be read: {exc.strerror}") from exc
    if as_json:
        print_json(msgspec.to_builtins(verification))
    else:
        _print_verification(file, verification)
    if verification.broken is not None or not verification.is_sealed:
        raise typer.Exit(1)


def _print_verification(file: Path, verification: Verification) -> None:
    broken = verification.broken
    if broken is not None:
        place = f", receipt {broken.seq} of {broken.chain}" if broken.seq is not None else ""
        print_line(f"{file}: broken at line {broken.line}{place}: {broken.reason}")
        if verification.receipts:
            print_line(f"Receipts before it that are good: {verification.receipts}")
        return
    if not verification.is_sealed:
        print_line(f"{file}: cut off at its end: the signed last line is missing, and receipts may be, too")
        print_line(f"Receipts before it that are good: {verification.receipts}")
        return
    print_line(f"{file}: {verification.receipts} receipts, every signature and every link is good")
    for chain in verification.chains:
        print_line(f"{chain.chain}: {chain.first} to {chain.last}")
    if any(chain.first > 1 for chain in verification.chains):
        remark("A chain does not begin at 1: older receipts were removed by age or number")
    if not verification.has_trusted_keys:
        remark(
            "The keys came from the file itself. To know whose receipts these are, name the keys of the nodes: --keys"
        )


def _read_lines(path: Path) -> Iterator[bytes]:
    """Lines without their ends; one that is too long is cut, and so refused."""
    with path.open("rb") if str(path) != "-" else sys.stdin.buffer as file:
        limit = _MAX_HEAD
        while line := file.readline(limit + 2):
            yield line.removesuffix(b"\n")
            limit = MAX_LINE
