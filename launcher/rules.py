"""All rules of the product, collected from the tables. A code is never used twice and never reused."""

import megatron_setup.parallelism
from launcher.requirement import Requirement

TABLES: tuple[tuple[Requirement, ...], ...] = (megatron_setup.parallelism.REQUIREMENTS,)

RULES: tuple[Requirement, ...] = tuple(row for table in TABLES for row in table)
