"""The demo fleet: an agent of every runtime that the base install can carry, each called as a newcomer would."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from a2a_fabric import SyncFabricClient
from a2a_fabric.core.errors import FabricError
from a2a_fabric.demo import almanac, lab, morse, notebook, primes, roman, units
from a2a_fabric.demo.agents import DemoAgents
from a2a_fabric.plugins import list_kinds
from tests.marks import requirement
from tests.system.node import Node, running_node, until

# Programs of others, which have to be installed and need an account or a model.
NOT_OURS = {"agentzero", "claude"}

Asked = tuple[str, str, str | dict[str, Any]]  # agent, capability, task or arguments

CALLS: dict[str, tuple[Asked, str]] = {
    "python": (("percy", "reason", "What is 12 * 7 + 16?"), "So 12 * 7 + 16 = 100"),
    "http": (("scribe", "keywords", "cats and dogs and cats"), "cats, dogs"),
    "process": (("counter", "count", "three small words"), "3 words, 17 characters, 1 lines"),
    "process, once": (("sorter", "sort", "b\na"), "a\nb"),
    "mcp": (("units", "convert", {"value": 10, "unit": "km", "to": "m"}), "10 km = 10000 m"),
    "a2a": (("almanac", "dates", "From 2026-11-16 to 2026-12-24"), "From 2026-11-16 to 2026-12-24 it is 38 days."),
    "acp": (("morse", "morse", "SOS now"), "... --- ... / -. --- .--"),
    "rpc": (("roman", "numeral", "1987"), "MCMLXXXVII"),
    "rest": (("palette", "colour", "#ff8800"), "#ff8800, rgb(255, 136, 0), hsl(32, 100%, 50%)"),
    "agent-client": (("notebook", "ask", "tea: buy green tea"), "tea\n  - buy green tea"),
    "fabric": (("lab/dice", "roll", "20d1+2"), "22"),
    "grpc": (("primes", "factor", {"number": 360}), "360 = 2 × 2 × 2 × 3 × 3 × 5"),
    "tool": (("math.calculate", "eval", {"expression": "6*7"}), "42"),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("demo")) as node:
        yield node


@pytest.fixture(scope="module")
def fabric(node: Node) -> Iterator[SyncFabricClient]:
    with SyncFabricClient(node.url, node.token) as fabric:
        yield fabric


def given(asked: Asked) -> dict[str, Any]:
    agent_id, capability, what = asked
    words = {"task": what} if isinstance(what, str) else {"context": what}
    return {"agent_id": agent_id, "capability": capability, **words}


@requirement("001-52")
def test_every_runtime_of_the_base_install_has_an_agent_here() -> None:
    assert {name.partition(",")[0] for name in CALLS} == set(list_kinds("runtimes")) - NOT_OURS


async def test_what_libraries_say_before_the_agents_listen_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # a line of its own on stderr for every import
    async with DemoAgents() as fleet:
        found = {manifest.agent_id for manifest in await fleet.load()}
    assert {"almanac", "lab", "units"} <= found


def test_all_of_them_are_online_and_say_what_they_do(fabric: SyncFabricClient) -> None:
    def all_known() -> dict[str, Any] | None:
        agents = {agent["agent_id"]: agent for agent in fabric.agents()}
        are_online = all(agent["status"] == "online" for agent in agents.values())
        silent = [name for name, agent in agents.items() if not agent["capabilities"] and name != "lab"]
        return agents if "lab/dice" in agents and are_online and not silent else None

    assert until(all_known, "all agents to be online and to say what they do", timeout=60)


@requirement("000-13")
@pytest.mark.parametrize("runtime", CALLS)
def test_each_agent_does_something_small_but_true(fabric: SyncFabricClient, runtime: str) -> None:
    asked, answer = CALLS[runtime]
    called = fabric.call(**given(asked)).data
    *_, final = fabric.stream(**given(asked))
    assert answer in str(called.get("answer", called.get("result")))
    assert final.data == called


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("almanac", "dates", "one fine day"), "There is no date in this text"),
        (("morse", "morse", "日本"), "Morse code has no '日'"),
        (("roman", "numeral", "IIX"), "neither a number"),
        (("palette", "colour", "256,0,0"), "is not a colour"),
        (("lab/dice", "roll", "a lot"), "is not a roll"),
        (("units", "convert", {"value": 1, "unit": "kg", "to": "m"}), "kg measures mass"),
    ],
)
def test_what_they_cannot_do_they_say(fabric: SyncFabricClient, asked: Asked, said: str) -> None:
    with pytest.raises(FabricError, match=said):
        fabric.call(**given(asked))


def test_the_notebook_remembers_what_belongs_to_a_conversation_and_nothing_else(fabric: SyncFabricClient) -> None:
    def ask(conversation: str, words: str) -> str | None:
        return fabric.call("notebook", "ask", words, conversation_id=conversation).answer

    ask("shopping", "tea: green")
    assert ask("shopping", "tea: black") == "tea\n  - green\n  - black"
    assert "Nothing is noted" in str(ask("other", "green"))
    assert ask("shopping", "green") == "tea\n  - green"


def test_the_banner_stays_short(node: Node) -> None:
    banner, _, _ = node.said.partition("Ctrl-C")
    lines = [line for line in banner.splitlines() if not line.startswith("{")]  # without those of the log
    assert len(lines) <= 12
    assert any(line.endswith("(the demo)") and len(line) <= 110 for line in lines)


@pytest.mark.parametrize(
    ("value", "unit", "to", "found"),
    [("1", "mi", "km", "1.609344"), ("100", "C", "F", "212"), ("-40", "F", "C", "-40"), ("1", "GB", "MB", "1000")],
)
def test_units_are_converted_exactly(value: str, unit: str, to: str, found: str) -> None:
    assert units.convert_value(Decimal(value), unit, to) == Decimal(found)


def test_whatever_is_written_in_morse_code_can_be_read_back() -> None:
    code = " / ".join(morse.translate_words("WHAT HATH GOD WROUGHT?"))
    assert " ".join(morse.translate_words(code)) == "WHAT HATH GOD WROUGHT?"


def test_every_roman_numeral_stands_for_one_number() -> None:
    assert [roman.convert_numeral(roman.convert_numeral(str(number))) for number in range(1, 4000)] == [
        str(number) for number in range(1, 4000)
    ]


@pytest.mark.parametrize("number", [2, 97, 360, 999_983 * 999_983, 10**12])
def test_the_product_of_the_factors_is_the_number(number: int) -> None:
    product = 1
    for factor in primes.find_factors(number):
        product *= factor
    assert product == number


def test_dates_that_do_not_exist_are_told_from_those_that_do() -> None:
    assert list(almanac.describe_dates("2024-02-29, 2023-02-29")) == [
        "2024-02-29 is a Thursday, day 60 of its year, in week 9.",
        "2023-02-29 is not a date.",
    ]


def test_dice_stay_within_their_sides() -> None:
    assert {lab.roll("1d6")["rolls"][0] for _ in range(500)} == set(range(1, 7))
    assert notebook.parse_notes("a: 1\nno topic\n- b : 2") == [("a", "1"), ("b", "2")]


def test_nothing_of_the_demo_outlives_its_node(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        assert node.run("call", "notebook", "ask", "a: b").returncode == 0
        children = [entry for entry in Path("/proc").glob("[0-9]*") if _parent_of(entry) == node.process.pid]
        assert len(children) >= 2
        node.signal()
        node.wait()
        until(lambda: not [child for child in children if child.exists()], "all processes to end")


def _parent_of(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0  # it ended meanwhile
