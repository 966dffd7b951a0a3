"""Environment variables of the zero-KL recipe as rows: what a run sets, and what exported would undo the mode.

Owns no `os.environ`: launcher.environment sets the variables once, before torch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.requirement import Condition, Subject
from launcher.schema import Backend, RunConfig
from zero_kl.conditions import BATCH_INVARIANT, MEASURED, SSM

_LANGUAGE_MODULE = "megatron-core 0.19.2 models/common/language_module/language_module.py, _set_attention_backend"
_TE_DISPATCH = "transformer-engine 2.20.2 pytorch/attention/dot_product_attention/utils.py, get_attention_backend"

TE_NATIVE = Condition(
    who="te_native",
    text="zero_kl.backend is te_native",
    test=lambda s: s.config.zero_kl.backend is Backend.te_native,
)


@dataclass(frozen=True, kw_only=True)
class Variable:
    """`value` is what the run sets; every other exported value is refused. null: only `refused` values are."""

    code: str
    name: str
    value: str | None
    when: Condition
    why: str
    source: str
    refused: tuple[str, ...] = ()

    def refuses(self, exported: str) -> bool:
        """True where this exported value fights the row."""
        return exported in self.refused if self.value is None else exported != self.value


VARIABLES: tuple[Variable, ...] = (
    Variable(
        code="ZE001",
        name="CUBLAS_WORKSPACE_CONFIG",
        value=":0:0",
        when=TE_NATIVE,
        why="with workspace cuBLAS splits K for few rows; :4096:8, which deterministic mode asks for, gives it back",
        source=MEASURED,
    ),
    Variable(
        code="ZE002",
        name="CUBLASLT_WORKSPACE_SIZE",
        value="0",
        when=TE_NATIVE,
        why="the same for torch's cuBLASLt calls; Transformer Engine ignores both variables and is patched",
        source=MEASURED,
    ),
    Variable(
        code="ZE003",
        name="NVTE_FLASH_ATTN",
        value="1",
        when=BATCH_INVARIANT,
        why="0 takes FlashAttention from training; megatron-core then asserts, but only once the model is built",
        source=_LANGUAGE_MODULE,
    ),
    Variable(
        code="ZE004",
        name="NVTE_FUSED_ATTN",
        value="0",
        when=BATCH_INVARIANT,
        why="cuDNN's fused attention must not be chosen for training; megatron-core asserts 0 once the model is built",
        source=_LANGUAGE_MODULE,
    ),
    Variable(
        code="ZE005",
        name="NVTE_UNFUSED_ATTN",
        value="0",
        when=BATCH_INVARIANT,
        why="unfused attention must not be chosen for training; megatron-core asserts 0 once the model is built",
        source=_LANGUAGE_MODULE,
    ),
    Variable(
        code="ZE006",
        name="NVTE_FLASH_ATTN_V2",
        value="0",
        when=BATCH_INVARIANT,
        why="training must not fall back to FlashAttention-2 while generation runs version 4",
        source=_LANGUAGE_MODULE,
    ),
    Variable(
        code="ZE007",
        name="NVTE_FLASH_ATTN_V3",
        value="0",
        when=BATCH_INVARIANT,
        why="on sm_90 Transformer Engine prefers FlashAttention-3 where both are installed; generation runs version 4",
        source=_TE_DISPATCH,
    ),
    Variable(
        code="ZE008",
        name="NVTE_FLASH_ATTN_V4",
        value="1",
        when=BATCH_INVARIANT,
        why="0 leaves training without FlashAttention-4, and no assert upstream notices",
        source=_TE_DISPATCH,
    ),
    Variable(
        code="ZE009",
        name="MAMBA_DETERMINISTIC",
        value=None,
        refused=("0",),
        when=SSM,
        why="0 lets Triton's autotuner pick the scan's blocks by timing, so two processes may add in two orders",
        source="megatron-core 0.19.2 ssm/ops/determinism.py, use_deterministic_mode",
    ),
)


def environment(config: RunConfig) -> dict[str, str]:
    """The variables that the run sets."""
    subject = Subject(config=config, architecture=None)
    return {row.name: row.value for row in VARIABLES if row.value is not None and row.when.test(subject)}


def check_exported(config: RunConfig, *, exported: Mapping[str, str]) -> list[str]:
    """One text for each exported variable that would undo the mode; empty where there is none."""
    subject = Subject(config=config, architecture=None)
    return [
        _refusal(row, exported=exported[row.name])
        for row in VARIABLES
        if row.when.test(subject) and row.name in exported and row.refuses(exported[row.name])
    ]


def _refusal(row: Variable, *, exported: str) -> str:
    wanted = f"{row.value} or unset" if row.value is not None else "it unset"
    return (
        f"error[{row.code}]: {row.name} is exported as {exported or 'empty'}, {row.when.who} needs {wanted}\n"
        f"  why:    {row.why}\n"
        f"  source: {row.source}\n"
        f"hint: unset {row.name}"
    )
