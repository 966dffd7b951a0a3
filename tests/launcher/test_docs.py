"""docs/requirements.md is what the rows say, and says it of every row."""

from launcher.docs import PAGE, TITLES, render_page
from launcher.rules import RULES
from zero_kl.architectures import UNSUPPORTED
from zero_kl.environment import VARIABLES
from zero_kl.gates import DEVICES, FEATURES
from zero_kl.requirements import REQUIREMENTS
from zero_kl.versions import PACKAGES, PAIRS


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render_page(RULES), "run: python -m launcher.docs"


def test_every_row_is_on_the_page() -> None:
    page = render_page(RULES)
    tables = (RULES, REQUIREMENTS, UNSUPPORTED, VARIABLES, PACKAGES, PAIRS, DEVICES, FEATURES)
    absent = [row.code for table in tables for row in table if f"| {row.code} " not in page]
    assert absent == []


def test_every_title_is_used() -> None:
    assert set(TITLES) == {row.code[:2] for row in RULES}


def test_tables_are_well_formed() -> None:
    for section in render_page(RULES).split("\n## ")[1:]:
        widths = {line.replace("\\|", "").count("|") for line in section.splitlines() if line.startswith("|")}
        assert len(widths) == 1
