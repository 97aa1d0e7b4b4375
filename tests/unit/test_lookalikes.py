"""Which names look alike, and which do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_fabric.registry.names import reduce_to_forms


def are_confusable(first: str, second: str) -> bool:
    return not reduce_to_forms(first).isdisjoint(reduce_to_forms(second))


@pytest.mark.parametrize(
    ("name", "imitation"),
    [
        ("percy", "Percy"),
        ("percy", "PERCY"),
        ("prod_files", "prod-files"),
        ("prod_files", "prod.files"),
        ("prod_files", "prodfiles"),
        ("lab/percy", "lab_percy"),
        ("prod files", "prod\u00a0files"),
        ("percy", "p\u0435rcy"),  # Cyrillic e
        ("percy", "\u0420\u0415RCY"),  # Cyrillic capitals
        ("percy", "\u03c1ercy"),  # Greek rho
        ("percy", "per\u200bcy"),  # a space of no width
        ("percy", "p\u00e9rcy"),  # an accent
        ("percy", "pe\u0301rcy"),  # the same in two characters
        ("percy", "\uff50\uff45\uff52\uff43\uff59"),  # full-width letters
        ("percy", "\U0001d429\U0001d41e\U0001d42b\U0001d41c\U0001d432"),  # mathematical bold
        ("paypal", "paypa1"),
        ("paypal", "PaypaI"),
        ("LIST", "Iist"),
        ("iris", "Iris"),
        ("tool", "t00l"),
        ("modem", "rnodem"),
        ("window", "vvindovv"),
    ],
)
def test_an_imitation_looks_like_the_name(name: str, imitation: str) -> None:
    assert are_confusable(name, imitation)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("percy", "perry"),
        ("mail", "mall"),
        ("worker-1", "worker-2"),
        ("worker-1-1", "worker-11"),
        ("v1.10", "v11.0"),
        ("prod_files", "test_files"),
        ("prod", "prod_files"),
        ("", ""),
        ("...", "---"),
    ],
)
def test_different_names_stay_different(one: str, other: str) -> None:
    assert not are_confusable(one, other)


@given(st.text(max_size=300))
def test_any_text_has_forms_and_looks_like_itself_if_it_has_any(text: str) -> None:
    assert all(reduce_to_forms(text)) and are_confusable(text, text) == bool(reduce_to_forms(text))  # noqa: PT018
