"""Words of a text as a search knows them: without case, accents and endings, whatever joins them.

`translateText`, `translate-text` and "Translating texts" have the same words. Scripts
without spaces between words are read two characters at a time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_RUN = re.compile(r"[^\W_]+")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")
_ENDINGS = (
    "ations", "ation", "ators", "ator", "ating", "ated", "ates", "ate",
    "ings", "ing", "ions", "ion", "ers", "er", "ors", "or", "es", "ed", "s", "e",
)  # fmt: skip
_LEAST = 4  # letters that an ending must leave
_LONGEST = 64

# What says nothing about what somebody is looking for.
_EMPTY = frozenset({
    "a", "an", "and", "any", "anyone", "are", "agent", "agents", "as", "at", "be", "by", "can", "could", "do",
    "does", "find", "for", "from", "get", "give", "have", "help", "how", "i", "if", "in", "is", "it", "me",
    "my", "need", "of", "on", "one", "or", "please", "show", "some", "somebody", "someone", "something", "than",
    "that", "the", "them", "then", "there", "these", "this", "to", "up", "us", "want", "we", "what", "which",
    "who", "will", "with", "would", "you", "your",
})  # fmt: skip


def roots(text: str) -> list[str]:
    """In the order of the text."""
    if text.isascii():
        return [_root(run.lower()[:_LONGEST]) for run in _RUN.findall(_HUMP.sub(" ", text))]
    return [root for _, root in spelled(text)]


def asked(text: str) -> list[tuple[str, str]]:
    """Each word of a question as it was spelled, with its root; without the empty ones, unless there are no others."""
    found = list(dict.fromkeys(spelled(text)))
    telling = [(word, root) for word, root in found if word not in _EMPTY]
    return telling or found


def spelled(text: str) -> Iterator[tuple[str, str]]:
    plain = text if text.isascii() else _without_accents(text)
    for run in _RUN.findall(_HUMP.sub(" ", plain)):
        word = run.casefold()[:_LONGEST]
        if word.isascii() or not _UNSPACED.search(word):
            yield word, _root(word)
        else:
            yield from ((pair, pair) for pair in _pairs(word))


@lru_cache(maxsize=65_536)
def _root(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST:
            return word[: -len(ending)]
    return word


def _pairs(word: str) -> list[str]:
    return [word[at : at + 2] for at in range(max(1, len(word) - 1))]


def _without_accents(text: str) -> str:
    apart = unicodedata.normalize("NFKD", text)
    return unicodedata.normalize("NFC", "".join(each for each in apart if not unicodedata.combining(each)))
