"""The words of a request, as routing compares them with the phrases of agents: whole words, in any script.

Case, accents and width do not count, and a plural is its singular ("recipes" is "recipe"). Everything else does:
"cook" is not in "cookie". A text word that ends in -ing or -ed also counts as its base ("cooking" as "cook"), but not
the other way round: a phrase "evening" does not match "even". Scripts without spaces between words are compared
character by character. `core.search` stems instead, because a search may find too much and a route may not."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

MAX_TEXT = 4000  # characters of a request that are compared
MAX_PHRASE_WORDS = 12
_MAX_PHRASE = 200  # characters
_MAX_WORD = 64
_MAX_KNOWN_CHARACTERS = 20_000
_WORD = re.compile(r"\S+")
# Marks that only decorate a letter: Latin, Greek and Cyrillic accents, Hebrew points, Arabic vowel signs.
_ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670]")
_QUOTES = {'"': '"', "“": "”", "„": "“”", "«": "»", "‹": "›", "「": "」", "『": "』", "`": "`", "‘": "’", "'": "'"}
_CLAUSE_ENDS = frozenset(".,;:!?…\n\r—–()[]，。；：！？、؛،؟।")
_SUFFIX_SIGNS = re.compile(r"(?:\+\+|#)(?![^\W_])")  # C++, C#


class Word(NamedTuple):
    """One word of a text, folded, and where it stands."""

    folded: str
    forms: tuple[str, ...]  # itself, and what it may be a form of: "baking", "bak", "bake"
    start: int
    end: int
    is_quoted: bool
    begins_clause: bool


class _CharacterTable(dict[int, str]):
    """For `str.translate`: letters, digits and marks stay, everything else becomes a space."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kept = character if unicodedata.category(character)[0] in "LNM" or code in (0xAD, 0x200C, 0x200D) else " "
        if len(self) < _MAX_KNOWN_CHARACTERS:
            self[code] = kept
        return kept


_CHARACTERS = _CharacterTable()


def split_words(text: str) -> list[Word]:
    """The words of the beginning of a text, in order."""
    text = text[:MAX_TEXT]
    quoted = _find_quotes(text)
    words: list[Word] = []
    previous_end = 0
    for start, end in _iter_spans(text):
        folded = fold_word(text[start:end])
        if folded:
            begins_clause = not words or not _CLAUSE_ENDS.isdisjoint(text[previous_end:start])
            is_quoted = any(first <= start < last for first, last in quoted)
            words.append(Word(folded, _find_forms(folded), start, end, is_quoted, begins_clause))
            previous_end = end
    return words


@lru_cache(maxsize=4096)
def fold_phrase(phrase: str) -> str:
    """A phrase as it is compared: folded words with one space between them; empty if it has no words."""
    text = phrase[:_MAX_PHRASE]
    words = (fold_word(text[start:end]) for start, end in _iter_spans(text))
    return " ".join(list(filter(None, words))[:MAX_PHRASE_WORDS])


@lru_cache(maxsize=65_536)
def fold_word(word: str) -> str:
    if word.isascii():
        return _singular(word.lower()[:_MAX_WORD])
    decomposed = unicodedata.normalize("NFKD", word[:_MAX_WORD]).casefold()
    plain = _ACCENTS.sub("", decomposed).replace("\u00ad", "").replace("\u200c", "").replace("\u200d", "")
    folded = unicodedata.normalize("NFC", plain)
    return _singular(folded) if folded.isascii() else folded


def measure_phrase(folded: str) -> float:
    """How many words a folded phrase has; a character of a script without spaces counts as half a word."""
    words = folded.split(" ")
    return sum(0.5 if not word.isascii() and _compile_unspaced().match(word) else 1.0 for word in words)


def contains_phrase(words: Sequence[Word], folded: str) -> bool:
    return f" {folded} " in f" {' '.join(word.folded for word in words)} "


def _iter_spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the words of a text are. "C++" and "C#" are words of their own."""
    for match in _WORD.finditer(text.translate(_CHARACTERS)):
        start, end = match.span()
        if text.isascii() or not _compile_unspaced().search(match[0]):
            signs = _SUFFIX_SIGNS.match(text, end)
            yield start, signs.end() if signs is not None else end
        else:
            yield from ((start + first, start + last) for first, last in _iter_pieces(match[0]))


def _iter_pieces(text: str) -> Iterator[tuple[int, int]]:
    """Each character of a script without spaces is a word, and so is what stands between two of them."""
    previous_end = 0
    for match in _compile_unspaced().finditer(text):
        if match.start() > previous_end:
            yield previous_end, match.start()
        yield match.span()
        previous_end = match.end()
    if previous_end < len(text):
        yield previous_end, len(text)


@cache
def _compile_unspaced() -> re.Pattern[str]:
    """Thai, Lao, Myanmar, Khmer, kana, Han and Hangul syllables with what belongs to them.

    Compiled for the first text that is not ASCII: a class of so many characters takes milliseconds.
    """
    return re.compile(
        "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
    )


def _singular(word: str) -> str:
    """ "cookie" and "cookies" become "cooky", which is wrong for both in the same way."""
    if len(word) < 5:
        return word
    if word.endswith(("ies", "ie")):
        return word.removesuffix("s").removesuffix("ie") + "y"
    if not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    return word[:-2] if word.endswith(("ches", "shes", "xes", "sses", "zes")) else word[:-1]


@lru_cache(maxsize=16_384)
def _find_forms(word: str) -> tuple[str, ...]:
    """The word, and the verbs that it may be a participle of, as far as spelling tells."""
    if word.isascii():
        for suffix in ("ing", "ed"):
            base = word.removesuffix(suffix)
            if base != word and len(base) > 2:
                is_doubled = base[-1] == base[-2]  # planning is of plan, calling of call
                return (word, base, base[:-1] if is_doubled else f"{base}e")
    return (word,)


def _find_quotes(text: str) -> list[tuple[int, int]]:
    """The parts of a text between quotation marks. An apostrophe inside a word opens nothing."""
    spans: list[tuple[int, int]] = []
    at = 0
    while at < len(text):
        closing = _QUOTES.get(text[at])
        is_apostrophe = text[at] in "'’" and at > 0 and text[at - 1].isalnum()
        end = -1 if closing is None or is_apostrophe else _find_closing(text, at + 1, closing)
        if end > at:
            spans.append((at, end))
            at = end
        at += 1
    return spans


def _find_closing(text: str, start: int, closing: str) -> int:
    """Where the quotation ends; -1 if it does not. An apostrophe between two letters ends nothing."""
    for at in range(start, len(text)):
        if text[at] in closing and not (at + 1 < len(text) and text[at] in "'’" and text[at + 1].isalnum()):
            return at
    return -1
