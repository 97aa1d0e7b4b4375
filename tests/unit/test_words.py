"""Words of requests, as routing compares them."""

from __future__ import annotations

import pytest

from a2a_fabric.core.words import fold_phrase, split_words


def fold(text: str) -> list[str]:
    return [word.folded for word in split_words(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What SHOULD I cook?", ["what", "should", "i", "cook"]),
        ("Recipes, cookies and boxes", ["recipe", "cooky", "and", "box"]),
        ("news bus analysis class", ["news", "bus", "analysis", "class"]),
        ("https://www.pinterest.com/pin", ["http", "www", "pinterest", "com", "pin"]),
        ("C++ or C#, not 1+2", ["c++", "or", "c#", "not", "1", "2"]),
        ("Crème Brûlée in ＦＵＬＬ width", ["creme", "brulee", "in", "full", "width"]),
        ("l'heure", ["l", "heure"]),
        ("料理を", ["料", "理", "を"]),
        ("खाना बनाना", ["खाना", "बनाना"]),
        ("ПОГОДА в Казани", ["погода", "в", "казани"]),
        ("", []),
        ("!?", []),
    ],
)
def test_words_are_folded_in_every_script(text: str, words: list[str]) -> None:
    assert fold(text) == words


def test_a_phrase_folds_like_a_text() -> None:
    assert fold_phrase("parse-recipe") == fold_phrase("Parse  recipes!") == "parse recipe"
    assert fold_phrase("…") == ""


def test_a_participle_counts_as_its_verb() -> None:
    assert "cook" in split_words("cooking")[0].forms
    assert "bake" in split_words("baking")[0].forms
    assert "plan" in split_words("planned")[0].forms
    assert split_words("king")[0].forms == ("king",)


def test_quoted_words_are_marked_and_apostrophes_open_no_quotation() -> None:
    quoted = [word.folded for word in split_words("don't translate \"it's late\" or «ja», it isn't") if word.is_quoted]
    assert quoted == ["it", "s", "late", "ja"]
    assert not any(word.is_quoted for word in split_words("the dogs' 5\" tail"))


def test_the_beginning_of_a_clause_is_known() -> None:
    words = split_words("Eat, then sleep. And dream")
    assert [word.folded for word in words if word.begins_clause] == ["eat", "then", "and"]


def test_a_very_long_text_is_cut() -> None:
    assert len(split_words("word " * 100_000)) <= 800
