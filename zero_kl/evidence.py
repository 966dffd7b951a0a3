"""What stands beside a verdict: the claims that hold it up, and where it first fails. Data and its JSON, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The smallest failing case that was found, and the first of the model's modules in it whose values differ."""

    point: str
    """As "layer 3, self_attention.core_attention"; the values of all points before it are equal to the bit."""

    positions: tuple[int, ...]
    """Positions in the sequence, from 0, of the first rows that differ."""

    num_differing: int
    num_compared: int
    """Rows, of which so many differ."""

    max_abs_diff: float
    against: str
    """What the training forward was compared with: "generation", or "itself in another batch"."""

    request: int
    """Of the measurement; among `num_requests` that ran together."""

    num_requests: int
    prompt_tokens: int
    new_tokens: int
    """Sampled after the prompt; 0 where the whole sequence was given."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What came of the search for the smallest failing case of the first measurement that was not zero."""

    step: int = 0
    """Optimizer steps taken before."""

    found: Difference | None = None
    says: str = ""
    """Why nothing was found; empty where something was."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One of the equalities that join training and generation, over one sweep."""

    name: str
    sweep: str
    n: int
    """Log-probabilities compared."""

    n_exact: int

    @property
    def holds(self) -> bool:
        """All equal as integers, and at least one."""
        return self.n > 0 and self.n_exact == self.n


def search_from(data: Mapping[str, Any]) -> Search:
    """A search as report.json has it."""
    found = data["found"]
    if found is None:
        return Search(**data)
    typed: dict[str, Any] = {"positions": tuple(found["positions"]), "max_abs_diff": float(found["max_abs_diff"])}
    return Search(**{**data, "found": Difference(**{**found, **typed})})
