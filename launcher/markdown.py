"""Tables of the generated pages in docs/. Owns their layout; the words are their authors'."""

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], *, rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, one line a row, without a newline at its end."""
    lines = [columns, ["---"] * len(columns), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
