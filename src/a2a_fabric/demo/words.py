"""English text for the demo agents: sentences, meaningful words, and a summary by word frequency."""

from __future__ import annotations

import re
from collections import Counter

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")  # punctuation, or an empty line
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_GRAMMAR_WORDS = (
    "a about after again all also an and any are as at be because been before being both but by can could did "
    "do does each either for from had has have he her here him his how i if in into is it its just like may me "
    "might more most must my no nor not of on once one only or other our out over own same shall she should so "
    "some such than that the their them then there these they this those through to too under until up us very "
    "was we were what when where which while who whom whose why will with would you your"
)
_STOP_WORDS = frozenset(_GRAMMAR_WORDS.split())


def split_sentences(text: str) -> list[str]:
    return [sentence for part in _SENTENCE_END.split(text) if (sentence := " ".join(part.split()))]


def find_meaningful(text: str) -> list[str]:
    """The words that carry meaning, in lower case and in order."""
    return [word for match in _WORD.finditer(text) if (word := match[0].lower()) not in _STOP_WORDS and len(word) > 2]


def find_keywords(text: str, count: int) -> list[tuple[str, int]]:
    """The most frequent meaningful words; of equally frequent words, the first ones."""
    return Counter(find_meaningful(text)).most_common(count)


def pick_sentences(text: str, count: int) -> list[str]:
    """The sentences whose words are most frequent in the text, in the order of the text."""
    sentences = split_sentences(text)
    weight = Counter(find_meaningful(text))

    def score(sentence: str) -> float:
        words = find_meaningful(sentence)
        return sum(weight[word] for word in words) / (len(words) + 3)  # +3: a lone strong word is not a summary

    best = sorted(range(len(sentences)), key=lambda number: (-score(sentences[number]), number))[:count]
    return [sentences[number] for number in sorted(best)]
