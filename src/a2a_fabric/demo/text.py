"""English text for the demo agents: its sentences and meaningful words, its sums, and what follows from its statements.

Sums and conclusions are worked out one step at a time. Statements have the forms `all X are Y`, `no X are Y` and
`N is a X`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from decimal import Context, Decimal, DecimalException, DivisionByZero
from typing import NamedTuple

_CONTEXT = Context(prec=30)
_MAX_SUM_CHARS = 1000  # characters of one sum
_VERBAL_OPERATORS = [
    (re.compile(r"\b(?:divided by|over)\b", re.I), "/"),
    (re.compile(r"\b(?:multiplied by|times)\b|×|(?<=\d)\s+x\s+(?=\d)", re.I), "*"),
    (re.compile(r"\b(?:plus|added to)\b", re.I), "+"),
    (re.compile(r"\bminus\b|−", re.I), "-"),
    (re.compile(r"(?<!\d)(\d{1,30}(?:\.\d{1,30})?)\s{0,3}(?:%|percent)\s+of\b", re.I), r"\1 / 100 *"),
    (re.compile(r"÷"), "/"),
]
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[-+*/()]")
# Every repetition is bounded or has only one way to match: a hostile text costs no more than its length.
_SUM = re.compile(r"[-(\s]{0,8}\d[\d.\s()+*/-]*[\d)]")
_OPERATIONS = {"*": _CONTEXT.multiply, "/": _CONTEXT.divide, "+": _CONTEXT.add, "-": _CONTEXT.subtract}
_RANK = {"*": 2, "/": 2, "+": 1, "-": 1}

Token = Decimal | str


class NotASum(ValueError):
    """The text looks like arithmetic, but cannot be computed."""


def find_sums(text: str) -> list[str]:
    """The parts of the text that are arithmetic, written with signs."""
    text = _THOUSANDS.sub("", text)
    for pattern, sign in _VERBAL_OPERATORS:
        text = pattern.sub(sign, text)
    sums = (" ".join(_TOKEN.findall(match[0])) for match in _SUM.finditer(text))
    return [sum_ for sum_ in sums if re.search(r"[\d)] [-+*/] [\d(-]", sum_)]


def work_out(sum_: str) -> Iterator[tuple[str, Decimal]]:
    """Each operation with its result; the last result is the answer. Raises NotASum."""
    if len(sum_) > _MAX_SUM_CHARS:
        raise NotASum(f"the sum has more than {_MAX_SUM_CHARS} characters")
    tokens = _parse(sum_)
    while len(tokens) > 1:
        start, end = _find_innermost(tokens)
        at = _find_next_operation(tokens, start, end)
        left, sign, right = tokens[at - 1], tokens[at], tokens[at + 1]
        if not (isinstance(left, Decimal) and isinstance(sign, str) and isinstance(right, Decimal)):
            raise NotASum(f"'{sum_}' is not a whole sum")
        value = _apply(left, sign, right)
        yield f"{format_number(left)} {sign} {format_number(right)}", value
        tokens[at - 1 : at + 2] = [value]
        tokens = _strip_brackets(tokens)


def format_number(value: Decimal) -> str:
    plain = f"{value:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _parse(sum_: str) -> list[Token]:
    tokens: list[Token] = []
    for text in _TOKEN.findall(sum_):
        is_signed = len(tokens) > 0 and tokens[-1] == "-" and (len(tokens) == 1 or tokens[-2] in ("(", *_RANK))
        if text[0].isdigit():
            number = _CONTEXT.create_decimal(text)
            if is_signed:
                tokens[-1] = -number
            else:
                tokens.append(number)
        else:
            tokens.append(text)
    return _strip_brackets(tokens)


def _find_innermost(tokens: list[Token]) -> tuple[int, int]:
    """Start and end of the first pair of brackets without brackets inside; the whole sum if there is none."""
    if ")" not in tokens:
        return 0, len(tokens)
    end = tokens.index(")")
    opening = [number for number in range(end) if tokens[number] == "("]
    if not opening:
        raise NotASum("a bracket is closed that was never opened")
    return opening[-1] + 1, end


def _find_next_operation(tokens: list[Token], start: int, end: int) -> int:
    signs = [number for number in range(start + 1, end - 1) if tokens[number] in _RANK]
    if not signs:
        raise NotASum("an operation is missing")
    return min(signs, key=lambda number: (-_RANK[str(tokens[number])], number))


def _apply(left: Decimal, sign: str, right: Decimal) -> Decimal:
    try:
        return _OPERATIONS[sign](left, right)
    except DivisionByZero as exc:
        raise NotASum(f"{format_number(left)} cannot be divided by zero") from exc
    except DecimalException as exc:
        raise NotASum("the numbers are too large") from exc


def _strip_brackets(tokens: list[Token]) -> list[Token]:
    number = 0
    while number + 2 < len(tokens):
        if tokens[number] == "(" and tokens[number + 2] == ")" and isinstance(tokens[number + 1], Decimal):
            tokens[number : number + 3] = [tokens[number + 1]]
            number = max(0, number - 1)
        else:
            number += 1
    return tokens


_MAX_FACTS = 200
_MAX_STATEMENT_CHARS = 200  # characters of one statement
_FORMS = (
    (re.compile(r"^(?:all|every|each)\s+([\w\s-]+?)\s+(?:is|are)\s+(?:an?\s+)?([\w-]+)$", re.I), True),
    (re.compile(r"^no\s+([\w\s-]+?)\s+(?:is|are)\s+(?:an?\s+)?([\w-]+)$", re.I), False),
    (re.compile(r"^([A-Z][\w-]*)\s+(?:is|was)\s+not\s+(?:an?\s+)?([\w-]+)$"), False),
    (re.compile(r"^([A-Z][\w-]*)\s+(?:is|was)\s+(?:an?\s+)?([\w-]+)$"), True),
)


class Fact(NamedTuple):
    """What `subject` is, or is not."""

    subject: str
    predicate: str
    holds: bool

    def __str__(self) -> str:
        return f"{self.subject} {'is' if self.holds else 'is not'} {self.predicate}"


def parse_facts(sentences: list[str]) -> list[Fact]:
    facts = []
    for sentence in sentences:
        if len(sentence) > _MAX_STATEMENT_CHARS:
            continue
        for form, holds in _FORMS:
            if match := form.match(sentence.strip(" .!")):
                facts.append(Fact(_to_singular(match[1]), _to_singular(match[2]), holds))
                break
    return facts[:_MAX_FACTS]


def draw_conclusions(facts: list[Fact]) -> Iterator[tuple[Fact, Fact, Fact]]:
    """The two facts and what follows from them: X is Y and Y is (not) Z, so X is (not) Z."""
    all_facts = dict.fromkeys(facts)
    queue = list(facts)
    while queue and len(all_facts) < _MAX_FACTS:
        first = queue.pop(0)
        for second in list(all_facts):
            for a, b in ((first, second), (second, first)):
                if a.holds and a.predicate == b.subject and a.subject != b.predicate:
                    new = Fact(a.subject, b.predicate, b.holds)
                    if new not in all_facts:
                        all_facts[new] = None
                        queue.append(new)
                        yield a, b, new


def _to_singular(name: str) -> str:
    name = " ".join(name.split())
    lower = name if name[0].isupper() and " " not in name and not name.isupper() and len(name) > 1 else name.lower()
    if lower[0].isupper():
        return lower
    if lower in _IRREGULAR:
        return _IRREGULAR[lower]
    return (
        lower[:-1]
        if lower.endswith("s") and not lower.endswith(("ss", "us", "is", "ous")) and len(lower) > 3
        else lower
    )


_IRREGULAR = {
    "men": "man", "women": "woman", "people": "person", "children": "child", "mice": "mouse", "geese": "goose",
}  # fmt: skip


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
