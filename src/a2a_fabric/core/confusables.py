"""Detects agent names that look alike (confusables). Pure, from the standard library and a small table.

A name is reduced to its forms, and two names that share a form look alike. The forms
ignore case, accents, separators (dots, dashes, underscores, slashes, spaces; except
between two digits, because `1.10` is not `11.0`), invisible characters and compatibility
characters (full-width, mathematical and ligature letters). They treat as equal:

- Cyrillic, Greek and some further letters and the Latin ones that they look like (`_TABLE`);
- `0` and `o`; `1`, `l`, `I` and `|`; `rn` and `m`; `vv` and `w`.

This is not the full Unicode table of confusables: letters of other scripts are compared as they are."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_MAX_CHARS = 512  # characters that are looked at; ids and names that count are shorter

_LATIN_LOOKALIKES = {
    # Cyrillic
    "а": "a", "в": "b", "е": "e", "ё": "e", "з": "3", "и": "u", "і": "i", "ї": "i", "ј": "j", "к": "k", "м": "m",
    "н": "h", "о": "o", "п": "n", "р": "p", "с": "c", "т": "t", "у": "y", "ү": "y", "х": "x", "ѕ": "s", "ԁ": "d",
    "ԛ": "q", "ԝ": "w", "һ": "h", "ӏ": "l", "ь": "b", "г": "r", "ѵ": "v", "є": "e", "ғ": "f", "ԍ": "g",
    # Greek
    "α": "a", "β": "b", "γ": "y", "ε": "e", "ζ": "z", "η": "n", "ι": "i", "κ": "k", "μ": "u", "ν": "v", "ο": "o",
    "ρ": "p", "σ": "o", "ς": "c", "τ": "t", "υ": "u", "χ": "x", "ω": "w", "ϲ": "c", "ϳ": "j", "ϱ": "p",
    # Armenian, Latin and other letters that pass for plain ones
    "օ": "o", "ս": "u", "հ": "h", "ո": "n", "զ": "q", "ց": "g", "ı": "i", "ȷ": "j", "ł": "l", "ø": "o", "đ": "d",
    "ħ": "h", "ŧ": "t", "ɑ": "a", "ɡ": "g", "ɩ": "i", "ɪ": "i", "ʟ": "l", "ɴ": "n", "ʀ": "r", "ʏ": "y", "ǀ": "l",
    "ᴀ": "a", "ʙ": "b", "ᴄ": "c", "ᴅ": "d", "ᴇ": "e", "ᴊ": "j", "ᴋ": "k", "ᴍ": "m", "ᴏ": "o", "ᴘ": "p", "ᴛ": "t",
    "ᴜ": "u", "ᴠ": "v", "ᴡ": "w", "ᴢ": "z", "ꜱ": "s", "ẟ": "d", "ⅼ": "l", "∣": "l", "|": "l",
}  # fmt: skip
_TABLE = str.maketrans(_LATIN_LOOKALIKES)
# Capital letters whose small ones look like something else. Those that look like a capital I do like an l.
_CAPITALS = str.maketrans(
    {"В": "b", "Н": "h", "Р": "p", "С": "c", "Т": "t", "У": "y", "Х": "x", "Β": "b", "Η": "h", "Μ": "m", "Ν": "n",
     "Ρ": "p", "Υ": "y", "Χ": "x", "Ζ": "z", "Σ": "e", "І": "l", "Ӏ": "l", "Ι": "l", "I": "l", "П": "n"}
)  # fmt: skip
_SEPARATOR = r"[\W_]+"
_BETWEEN_DIGITS = re.compile(rf"(?<=\d){_SEPARATOR}(?=\d)")
_OTHER_SEPARATORS = re.compile(rf"(?!\x1f){_SEPARATOR}")
_DIGIT_SEPARATOR = "\x1f"


@lru_cache(maxsize=65_536)
def reduce_to_forms(name: str) -> frozenset[str]:
    """What two names have to share to look alike; empty for a name without letters and digits."""
    normalized = unicodedata.normalize("NFKC", name[:_MAX_CHARS])
    # Once as small letters, in which I is i, and once as it stands, in which I is l.
    capitals = normalized.replace("I", "l") if normalized.isascii() else normalized.translate(_CAPITALS)
    return frozenset(form for text in (normalized, capitals) if (form := _reduce(text)))


def are_confusable(first: str, second: str) -> bool:
    return not reduce_to_forms(first).isdisjoint(reduce_to_forms(second))


def _reduce(text: str) -> str:
    lowercase = text.casefold()
    latin = lowercase.replace("|", "l") if lowercase.isascii() else _to_latin(lowercase)
    joined = _OTHER_SEPARATORS.sub("", _BETWEEN_DIGITS.sub(_DIGIT_SEPARATOR, latin))
    return joined.replace("0", "o").replace("1", "l").replace("rn", "m").replace("vv", "w").strip(_DIGIT_SEPARATOR)


def _to_latin(text: str) -> str:
    """Without accents and invisible characters, and in the letters that it looks like."""
    letters = unicodedata.normalize("NFKD", text.translate(_TABLE))
    return "".join(c for c in letters if unicodedata.category(c) not in ("Mn", "Me", "Cf")).translate(_TABLE)
