"""The zero-KL table: every value of the recipe that the configuration can hold, as a row.

The recipe (conf/preset/zero_kl*.yaml) sets every value; the table only checks; nothing is rewritten.
What the configuration cannot hold: variables in zero_kl.environment, versions and devices in zero_kl.gates.
"""

from launcher.requirement import Requirement
from zero_kl.environment import environment
from zero_kl.requirements import generation, kernels, layout, model, moe

REQUIREMENTS: tuple[Requirement, ...] = tuple(
    sorted(
        (
            *kernels.REQUIREMENTS,
            *layout.REQUIREMENTS,
            *moe.REQUIREMENTS,
            *model.REQUIREMENTS,
            *generation.REQUIREMENTS,
        ),
        key=lambda row: row.code,
    )
)

__all__ = ["REQUIREMENTS", "environment"]
