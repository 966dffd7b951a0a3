"""docs/requirements.md is what the rows say, and says it of every row."""

from launcher.docs import PAGE, TITLES, render_page
from launcher.node_tables import tables
from launcher.rules import RULES


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render_page(RULES), "run: python -m launcher.docs"


def test_every_row_is_on_the_page() -> None:
    page = render_page(RULES)
    codes = [*(row.code for row in RULES), *(code for table in tables() for code in table.by_column())]
    absent = [code for code in codes if f"| {code} " not in page]
    assert absent == []


def test_every_title_is_used() -> None:
    assert set(TITLES) == {row.code[:2] for row in RULES}


def test_tables_are_well_formed() -> None:
    for section in render_page(RULES).split("\n## ")[1:]:
        widths = {line.replace("\\|", "").count("|") for line in section.splitlines() if line.startswith("|")}
        assert len(widths) == 1
