"""All rules of the product, collected from the tables. A code is never used twice and never reused."""

import launcher.cluster
import launcher.pending
import megatron_setup.tables
import zero_kl.requirements
from launcher.requirement import Requirement
from megatron_setup.layout.nearest import with_layout_hints

TABLES: tuple[tuple[Requirement, ...], ...] = (
    megatron_setup.tables.REQUIREMENTS,
    zero_kl.requirements.REQUIREMENTS,
    launcher.cluster.REQUIREMENTS,
    launcher.pending.REQUIREMENTS,
)
"""Where two hints name one key, the later one wins when all are typed: what cannot be had at all comes last."""

RULES: tuple[Requirement, ...] = with_layout_hints(tuple(row for table in TABLES for row in table))
