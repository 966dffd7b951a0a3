"""The recipe's rows about the model: what may be attached to it, and which architectures have no invariant kernels."""

from __future__ import annotations

from launcher.requirement import KNOWN_ARCHITECTURE, Check, Equals, Finding, Requirement, Severity, Subject, show
from zero_kl.architectures import UNSUPPORTED, Unsupported
from zero_kl.conditions import BATCH_INVARIANT, MEASURED, RECIPE, TRANSFORMER_CONFIG, ZERO_KL, ZERO_KL_GPU

MEASURED_HEAD_DIMS = (64, 128)


def _measured_head_dim(subject: Subject) -> Finding | None:
    assert subject.architecture is not None, "the row's condition"
    size = subject.architecture.kv_channels
    if size in MEASURED_HEAD_DIMS:
        return None
    return Finding(found=f"of head dimension {size}", wanted=f"{_HEAD_DIMS} to be inside what was measured")


ALIGNED_LOGITS = 4
"""fp32 values in 16 bytes, the width of log-softmax's loads."""


def _rows_are_aligned(subject: Subject) -> Finding | None:
    assert subject.architecture is not None, "the row's condition"
    vocabulary, multiple = subject.architecture.vocab_size, subject.config.model.make_vocab_size_divisible_by
    padded = vocabulary if multiple is None else -(-vocabulary // multiple) * multiple
    if padded % ALIGNED_LOGITS == 0:
        return None
    return Finding(
        found=show(multiple),
        wanted=f"a multiple of {ALIGNED_LOGITS}",
        arithmetic=f"a vocabulary of {padded} mod {ALIGNED_LOGITS} = {padded % ALIGNED_LOGITS}",
        hints=("model.make_vocab_size_divisible_by=128",),
    )


_HEAD_DIMS = " or ".join(map(str, MEASURED_HEAD_DIMS))


def _without(row: Unsupported) -> Check:
    def test(subject: Subject) -> Finding | None:
        assert subject.architecture is not None, "the row's condition"
        model_type = subject.architecture.model_type
        if model_type not in row.model_types:
            return None
        return Finding(found=f"{model_type}, with {row.feature}", wanted="a model without it")

    return Check(text=f"a model without {row.feature}", test=test)


def _refusal(row: Unsupported) -> Requirement:
    """The row as far as a model type tells it before anything is built; `zero_kl.architectures` tells the rest."""
    return Requirement(
        code=row.code,
        key="model",
        want=_without(row),
        when=ZERO_KL & KNOWN_ARCHITECTURE,
        why=row.why,
        source=row.source,
        reads=("model.hf_path", "model.hf_config", "model.hf_config_overrides"),
    )


ATTACHED: tuple[Requirement, ...] = (
    Requirement(
        code="ZK045",
        key="model.attention_dropout",
        want=Equals(0.0),
        when=BATCH_INVARIANT,
        why="dropout is drawn in training only",
        source=TRANSFORMER_CONFIG,
    ),
    Requirement(
        code="ZK046",
        key="model.hidden_dropout",
        want=Equals(0.0),
        when=ZERO_KL,
        why="dropout is drawn in training only",
        source=RECIPE,
    ),
    Requirement(
        code="ZK047",
        key="mtp.mtp_num_layers",
        want=Equals(None),
        when=ZERO_KL,
        why="prediction layers add their loss to a forward that generation does not run, and were not part of "
        "any proof",
        source=RECIPE,
    ),
    Requirement(
        code="ZK048",
        key="model.peft.enabled",
        want=Equals(False),
        when=ZERO_KL,
        why="adapters are further GEMMs, of small rank, whose batch invariance was not shown; on MoE they are "
        "known not to agree",
        source=RECIPE,
    ),
    Requirement(
        code="ZK049",
        key="model.draft.enabled",
        want=Equals(False),
        when=ZERO_KL,
        why="a draft model trains on hidden states taken out of the policy's forward, which no proof covers",
        source=RECIPE,
    ),
    Requirement(
        code="ZK091",
        key="model",
        want=Check(text=f"head dimension {_HEAD_DIMS}", test=_measured_head_dim),
        when=ZERO_KL_GPU & KNOWN_ARCHITECTURE,
        severity=Severity.WARNING,
        why="FlashAttention-4 picks tiles by head dimension, and paged against full attention was compared at "
        "these only",
        source=MEASURED,
        reads=("model.hf_path", "model.hf_config", "model.hf_config_overrides"),
    ),
    Requirement(
        code="ZK092",
        key="model.make_vocab_size_divisible_by",
        want=Check(text=f"a vocabulary of a multiple of {ALIGNED_LOGITS}", test=_rows_are_aligned),
        when=ZERO_KL_GPU & KNOWN_ARCHITECTURE,
        why="torch's log-softmax adds a row of logits in an order that depends on its address modulo 16 bytes, so with "
        "a vocabulary of 32,001 a token's log-probability changes with its row (14 of 512 did)",
        source=f"tests/gpu/numerics.py; {MEASURED}",
        reads=("model.hf_path", "model.hf_config", "model.hf_config_overrides"),
    ),
)

REQUIREMENTS: tuple[Requirement, ...] = (
    *ATTACHED,
    *(_refusal(row) for row in UNSUPPORTED if row.model_types),
)
