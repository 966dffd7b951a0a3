"""What to do with the model."""

from dataclasses import dataclass
from enum import Enum


class JobKind(Enum):
    """mismatch: generate, score, compare, train, again. train: supervised steps. setup: build and stop.
    convert: import and stop. export: write a checkpoint or a save back in Hugging Face format."""

    mismatch = "mismatch"
    train = "train"
    setup = "setup"
    convert = "convert"
    export = "export"


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """The experiment's own sizes."""

    kind: JobKind
    """Which job."""

    name: str | None = None
    """First part of the run folder's name. null: made from preset and model."""

    num_steps: int = 2
    """Optimizer steps; mismatch: one measurement before the first and one after each."""

    num_prompts: int = 24
    """Requests per measurement when prompts are random; train: sequences per step."""

    min_prompt_tokens: int = 1
    """Shortest random prompt."""

    max_prompt_tokens: int = 48
    """Longest random prompt."""

    prompts: str | None = None
    """A .jsonl file of prompts: {"text": ...} or {"messages": [...]} a line. null: random tokens."""

    reference_kl_weight: float = 0.0
    """Weight of KL(policy || reference) in the loss of job=train, with model.reference_model. 0: off."""

    claims: bool = False
    """mismatch: after the last step also check score == score, prefill == score and decode == score, each over batch
    sizes, orders and padding. Takes about as long as a dozen measurements."""

    seed: int = 1234
    """Seed of prompts, sampling and dropout."""
