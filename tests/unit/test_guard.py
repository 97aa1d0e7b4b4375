"""The guard against server-side request forgery: what may be reached, however it is spelt."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.outbound.guard import Guard, Resolve
from a2a_fabric.outbound.port import AddressRefused, ConnectFailed

PRIVATE = [
    "127.0.0.1",
    "127.255.255.254",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "::1",
    "fc00::1",
    "fd12:3456::1",
]
NEVER = [
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "169.254.0.1",
    "100.100.100.200",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "fd00:ec2::254",
    "64:ff9b:1::1",
    "2001::1",
    "2001:db8::1",
    "::7f00:1",
]
WRAPPED = ["::ffff:{0}", "64:ff9b::{0}"]
SPELLINGS = [
    "2130706433",
    "0x7f000001",
    "017700000001",
    "0x7f.1",
    "127.1",
    "127.0.1",
    "0177.0.0.1",
    "[::1]",
    "127.0.0.1.",
]
PUBLIC = ["93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::5db8:d822", "2002:5db8:d822::1"]


def answering(*addresses: str) -> Resolve:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolve


async def allows(guard: Guard, host: str) -> bool:
    try:
        await guard.resolve_addresses(host, 80)
    except AddressRefused:
        return False
    return True


@pytest.mark.parametrize("address", PRIVATE + NEVER)
async def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not await allows(Guard(), address)
    assert not await allows(Guard(resolve=answering(address)), "agent.test")


@pytest.mark.parametrize("address", [address for address in PRIVATE + NEVER if "." in address])
async def test_wrapping_an_ipv4_address_in_ipv6_changes_nothing(address: str) -> None:
    packed = ipaddress.IPv4Address(address).packed.hex()
    sixtofour = f"2002:{packed[:4]}:{packed[4:]}::1"
    for wrapped in [form.format(address) for form in WRAPPED] + [sixtofour]:
        assert not await allows(Guard(), wrapped), wrapped


@pytest.mark.parametrize("host", [*SPELLINGS, "localhost", "LOCALHOST.", "a.localhost", "[::ffff:127.0.0.1]"])
async def test_odd_spellings_of_this_machine_are_seen_through(host: str) -> None:
    assert not await allows(Guard(), host)
    guard = Guard()
    target = guard.check_url(f"http://{host}/")
    assert not await allows(guard, target.host)


@pytest.mark.parametrize("address", PUBLIC)
async def test_public_addresses_pass(address: str) -> None:
    assert await Guard(resolve=answering(address)).resolve_addresses("agent.test", 443) == [address]


async def test_one_bad_address_among_good_ones_is_enough_to_refuse() -> None:
    assert not await allows(Guard(resolve=answering("1.1.1.1", "10.0.0.1")), "agent.test")


@pytest.mark.parametrize("address", PRIVATE)
async def test_allow_private_opens_the_networks_of_machine_and_site(address: str) -> None:
    assert await allows(Guard(allow_private=True), address)


@pytest.mark.parametrize("address", NEVER)
async def test_allow_private_does_not_open_metadata_and_what_is_nobodys(address: str) -> None:
    assert not await allows(Guard(allow_private=True), address)


async def test_the_operator_can_list_single_names_addresses_and_networks() -> None:
    guard = Guard(allow=["10.1.0.0/16", "192.168.1.7", "fd00::/8", "Inside.Test"], resolve=answering("10.9.9.9"))
    for host in ("10.1.2.3", "::ffff:10.1.2.3", "192.168.1.7", "fd00::5", "inside.test", "INSIDE.test."):
        assert await allows(guard, host), host
    for host in ("10.2.0.1", "192.168.1.8", "outside.test", "not.inside.test", "127.0.0.1"):
        assert not await allows(guard, host), host


async def test_a_name_without_an_address_fails_as_a_connection_would() -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    for guard in (Guard(resolve=unknown), Guard(resolve=answering()), Guard()):
        with pytest.raises(ConnectFailed) as caught:
            await guard.resolve_addresses("nobody.invalid", 80)
        assert not isinstance(caught.value, AddressRefused)


async def test_the_systems_own_names_are_looked_up() -> None:
    addresses = await Guard(allow=["127.0.0.0/8", "::1"]).resolve_addresses("localhost", 80)
    assert "127.0.0.1" in addresses


@pytest.mark.parametrize("host", ["", ".", "a b", "x" * 300, "a\nb", "a..b", "127.0.0.1 x"])
async def test_what_is_no_host_name_is_not_reached(host: str) -> None:
    with pytest.raises(ConnectFailed):
        await Guard().resolve_addresses(host, 80)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "javascript:alert(1)",
        "example.com/path",
        "http://user@example.com/",
        "http://user:secret@example.com/",
        "http://:secret@example.com/",
        "http://example.com\\@127.0.0.1/",
        "http://exa\tmple.com/",
        "http://example.com/a b",
        "http://example.com/\r\nHost: x",
        "http://[::1",
        "http://example.com:99999/",
        "http://example.com/" + "x" * 9000,
        "",
    ],
)
def test_urls_that_are_not_plain_http_are_refused(url: str) -> None:
    with pytest.raises(AddressRefused):
        Guard().check_url(url)


@pytest.mark.parametrize("url", ["http://example.com", "https://example.com:8443/a?b=c#d", "HTTP://Example.COM/"])
def test_plain_urls_pass(url: str) -> None:
    assert Guard().check_url(url).host == "example.com"


@given(st.integers(0, 2**32 - 1))
def test_every_spelling_of_an_ipv4_address_is_judged_alike(number: int) -> None:
    address = str(ipaddress.IPv4Address(number))
    spellings = [address, str(number), hex(number), f"::ffff:{address}", f"64:ff9b::{address}"]

    async def judge() -> set[bool]:
        return {await allows(Guard(), host) for host in spellings}

    assert len(asyncio.run(judge())) == 1


@given(st.text(max_size=40))
def test_any_text_is_either_a_plain_url_or_refused(text: str) -> None:
    try:
        assert Guard().check_url("http://" + text).scheme == "http"
    except AddressRefused:
        pass
