"""The nearest name that is allowed to one that is not: "Universitätsklinik Köln" -> "universitaetsklinik-koeln".

Tests: tests/common/text/test_names.py.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["nearest_name"]

_LETTERS = {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "æ": "ae", "œ": "oe", "ø": "oe", "å": "aa", "ð": "d", "þ": "th",
            "ł": "l", "đ": "d", "ı": "i"}
"""As their own languages write them where there are no others; all else loses its marks."""
_LONGEST = 63


def nearest_name(text: str, *, also: str = "-", capitals: bool = False) -> str:
    """What is left of a text as a name: letters without marks, digits, and "-" for everything between them.

    Args:
        also: what may stand in a name beside letters and digits.
        capitals: whether capitals may.
    Returns: at most 63 characters, beginning with a letter or digit; "" where none is left, as of another script.
    """
    text = unicodedata.normalize("NFC", text)
    spelt = "".join(_spelt(letter) for letter in text)
    plain = unicodedata.normalize("NFKD", spelt).encode("ascii", "ignore").decode()
    plain = plain if capitals else plain.lower()
    joined = re.sub(rf"[^A-Za-z0-9{re.escape(also)}]+", "-", plain.replace("'", ""))
    return re.sub(r"-{2,}", "-", joined).strip("-_")[:_LONGEST].strip("-_")


def _spelt(letter: str) -> str:
    small = _LETTERS.get(letter.lower())
    if small is None:
        return " " if not letter.isascii() and not unicodedata.normalize("NFKD", letter)[0].isascii() else letter
    return small.capitalize() if letter.isupper() else small
