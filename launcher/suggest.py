"""The nearest of some names to a misspelt one. Owns the measure of nearness; knows no configuration."""

from collections.abc import Iterable
from difflib import SequenceMatcher

NEAR = 0.6
"""From here on a name is near enough to be typed for the person; below it, it is only listed."""


def nearest(word: str, *, names: Iterable[str]) -> list[str]:
    """All names, the nearest to `word` first; equally near ones keep their order."""
    return sorted(names, key=lambda name: -nearness(word, name=name))


def nearness(word: str, *, name: str) -> float:
    """How alike two dotted names are, 0 to 1. The last part weighs most; a word without dots is compared with it alone.

    Upper case does not count, nor does - for _. A short word may be the initials of a name: `tp` is near
    tensor_model_parallel_size.
    """
    head, _, last = word.rpartition(".")
    name_head, _, name_last = name.rpartition(".")
    alike = _alike(last, name=name_last)
    return 0.3 * _alike(head, name=name_head) + 0.7 * alike if head else alike


def _alike(word: str, *, name: str) -> float:
    word, name = (text.lower().replace("-", "_") for text in (word, name))
    ratio = SequenceMatcher(None, word, name, autojunk=False).ratio()
    return max(ratio, _initials_alike(word, name=name))


def _initials_alike(word: str, *, name: str) -> float:
    """Above 0.8 where the word's letters are first letters of the name's words, in order and from the first on."""
    initials = "".join(part[:1] for part in name.split("_"))
    if len(word) < 2 or word[0] != initials[:1]:
        return 0.0
    rest = iter(initials)
    return 0.8 + 0.2 * len(word) / len(initials) if all(letter in rest for letter in word) else 0.0
