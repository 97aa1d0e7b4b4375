from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.yamlfile import YAMLFile


class Door(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    port: int = 0


class House(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    doors: tuple[Door, ...] = ()
    by_name: dict[str, Door] = {}
    spare: Door | None = None
    rest: dict[str, Any] = {}


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        YAMLFile("house.yaml", text).decode(House)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\ncolour: red\n", "house.yaml:2: colour: unknown key 'colour'"),
        ("nmae: x\n", "house.yaml:1: nmae: unknown key 'nmae' (nearest: name)"),
        (
            "doors:\n- kind: a\n- kind: b\n  prot: 1\n",
            "house.yaml:4: doors[1].prot: unknown key 'prot' (nearest",
        ),
        (
            "by_name:\n  a:\n    kind: x\n    prot: 1\n",
            "house.yaml:4: by_name.a.prot: unknown key 'prot'",
        ),
        ("spare:\n  kind: a\n  knd: b\n", "house.yaml:3: spare.knd: unknown key 'knd' (nearest: kind)"),
        ("doors:\n- kind: a\n- kind: 7\n", "house.yaml:3: doors[1].kind: Expected `str`, got `int`"),
        ("doors:\n- port: 1\n", "house.yaml:2: doors[0]: Object missing required field `kind`"),
        ("name: [\n", "house.yaml:2: not valid YAML"),
        ("name: x\nname: y\n", "house.yaml:2: not valid YAML: key 'name' is written twice"),
        ("- a\n", "house.yaml:1: Expected `object`, got `array`"),
        ("name: !!python/object:os.system x\n", "house.yaml:1: not valid YAML"),
        ("name: 2024-99-99\n", "house.yaml: not valid YAML: month must be in 1..12"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_key_and_the_nearest_known_one(text: str, said: str) -> None:
    assert complaint(text).startswith(said)


def test_a_file_that_holds_itself_is_refused_or_read_but_never_runs_away() -> None:
    for text in ("spare: &a {kind: x, port: *a}", "doors: &a [*a]", "name: " + "[" * 3000 + "]" * 3000):
        assert "house.yaml" in complaint(text)


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    with suppress(ConfigError):
        YAMLFile("x", text).decode(House)


KEYS = st.sampled_from(["name", "doors", "kind", "port", "spare", "by_name", "prot"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["x", "env:X"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_no_value_breaks_the_decoder(value: object) -> None:
    file = YAMLFile("x", msgspec.yaml.encode(value).decode())
    with suppress(ConfigError):
        file.decode(House)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"name: \xc3\x28", b"\x00"])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.yaml"):
        YAMLFile.read(path)


def test_a_file_that_is_not_there_or_not_a_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            YAMLFile.read(path)


def test_merge_keys_still_work() -> None:
    text = "doors:\n- &a {kind: x, port: 1}\n- {<<: *a, port: 2}\n"
    house = YAMLFile("x", text).decode(House)
    assert [(door.kind, door.port) for door in house.doors] == [("x", 1), ("x", 2)]


LONG = "# many\n" + "".join(f"- {{kind: door {number}, words: {'x' * 90}}}\n" for number in range(3000))


def test_a_long_list_is_loaded_in_parts_with_the_same_value() -> None:
    value = YAMLFile("doors.yaml", LONG).value
    assert [entry["kind"] for entry in value] == [f"door {number}" for number in range(3000)]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (LONG.replace("- {", "- &first {", 1) + "- *first\n", {"kind": "door 0", "words": "x" * 90}),
        (LONG + '- "two\n- lines"\n', "two - lines"),
        (LONG + "- |\n two\n - lines\n", "two\n- lines\n"),
    ],
    ids=["an alias", "a quoted text", "a block of text"],
)
def test_a_long_list_with_entries_that_belong_together(text: str, last: object) -> None:
    value = YAMLFile("doors.yaml", text).value
    assert (len(value), value[-1]) == (3001, last)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LONG + "- {kind: a, kind: b}\n", "doors.yaml:3002: not valid YAML: key 'kind' is written twice"),
        (LONG + "--- \n- second document\n", "doors.yaml:3002: not valid YAML: but found another document"),
    ],
)
def test_a_mistake_in_a_long_list_is_told_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        YAMLFile("doors.yaml", text)
    assert caught.value.message.startswith(said)


def test_a_long_list_under_a_key_is_no_list() -> None:
    assert list(YAMLFile("doors.yaml", "doors:\n" + LONG).value) == ["doors"]
