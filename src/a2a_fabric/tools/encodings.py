"""Text encodings that callers may name: those of real texts, none that compress, escape or take quadratic time."""

from __future__ import annotations

import codecs
import re

from a2a_fabric.tools.errors import tool_error

_TEXT_ENCODINGS = re.compile(
    r"utf-?(8|8-sig|16|16-?le|16-?be|32|32-?le|32-?be)|(us-)?ascii|latin-?1|iso-?8859-\d{1,2}|cp\d{3,4}"
    r"|windows-\d{3,4}|shift-?jis|euc-(jp|kr)|gbk|gb2312|gb18030|big5|koi8-[ru]|mac-?roman"
)


def find_encoding(name: str) -> str | None:
    """The codec's own name, or None if it is unknown or not for texts."""
    if not _TEXT_ENCODINGS.fullmatch(name.strip().lower().replace("_", "-")):
        return None
    try:
        return codecs.lookup(name.strip()).name
    except LookupError:
        return None


def encode_utf8(text: str, code: str) -> bytes:
    """The bytes of a text; half of a surrogate pair has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise tool_error(code, f"The text holds half of a surrogate pair at position {exc.start}") from exc
