"""A person at the command line, who types what a refusal hints at."""

from collections.abc import Sequence


def retyped(words: Sequence[str], *, hints: Sequence[str]) -> list[str]:
    """The command line after the hints were typed: a key is typed once, a hint instead of what was there.

    Of two hints for one key the later counts, as on the line of all hints. A hint that takes an entry out (~) is
    followed by not typing the entry, where it was typed.
    """
    wanted = {_key(hint): hint for hint in hints}
    typed = {_key(word) for word in words}
    kept = [word for word in words if _key(word) not in wanted]
    return [*kept, *(hint for key, hint in wanted.items() if not (hint.startswith("~") and key in typed))]


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")
