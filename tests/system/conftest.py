"""What tests of several nodes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.nats import NatsServer


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    server = NatsServer(jetstream="").start()
    try:
        yield server
    finally:
        server.remove()
