"""What a gate saw: texts that stop a run, and texts that do not. Owns no check."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from launcher.errors import NodeError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Complete messages for a person; one may have several lines."""

    violations: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __add__(self, other: Findings) -> Findings:
        return Findings(violations=self.violations + other.violations, warnings=self.warnings + other.warnings)

    def raise_if_invalid(self, header: str) -> None:
        """Raise NodeError with the header and every violation."""
        if self.violations:
            raise NodeError("\n\n".join([header, *self.violations]))

    def emit_warnings(self) -> None:
        """Log every warning."""
        for warning in self.warnings:
            _LOG.warning("%s", warning)
