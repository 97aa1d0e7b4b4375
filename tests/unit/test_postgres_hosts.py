"""Which servers an address of PostgreSQL names."""

from __future__ import annotations

import pytest

from a2a_fabric.stores.postgres.hosts import hosts_from_address


@pytest.mark.parametrize(
    ("address", "hosts"),
    [
        ("postgresql:///db", []),
        ("postgresql://u@/db", []),
        ("postgresql://u:p@db.example/db", [("db.example", 5432)]),
        ("postgresql://u@one:6432,two/db", [("one", 6432), ("two", 5432)]),
        ("postgresql://u@[::1]:7,[fe80::2]/db", [("::1", 7), ("fe80::2", 5432)]),
        ("postgresql://u@%2Frun%2Fpg/db", [("/run/pg", 5432)]),
        ("postgresql://u@/db?host=/run/one,/run/two", [("/run/one", 5432), ("/run/two", 5432)]),
        ("postgresql://u@/db?host=one,two&port=1,2", [("one", 1), ("two", 2)]),
        ("postgresql://u@/db?host=one,two&port=9", [("one", 9), ("two", 9)]),
    ],
)
def test_every_server_of_an_address_is_known_with_its_port(address: str, hosts: list[tuple[str, int]]) -> None:
    assert hosts_from_address(address) == hosts
