"""The table of the self-test: every check as a row, with why it is there. Torch-free: `explain` and the docs read it.

What a row runs is in the modules beside this one, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.schema import Backend
from zero_kl.conditions import MEASURED

if TYPE_CHECKING:
    from zero_kl.selftest.bench import Bench


@dataclass(frozen=True, kw_only=True)
class When:
    """Which models and kernels a check is for."""

    text: str
    test: Callable[[Bench], bool]


ALWAYS = When(text="always", test=lambda bench: True)
EXPERTS = When(text="the model has experts", test=lambda bench: bench.shapes.num_experts > 0)
NO_EXPERTS = When(text="the model has no experts", test=lambda bench: bench.shapes.num_experts == 0)
STARVES = When(
    text="zero_kl.backend is te_native", test=lambda bench: bench.config.zero_kl.backend is Backend.te_native
)
PATCHES_EXPERTS = When(
    text="zero_kl.backend is te_native or megatron, and the model has experts",
    test=lambda bench: EXPERTS.test(bench) and bench.config.zero_kl.backend in (Backend.te_native, Backend.megatron),
)
PINS_FLASH_4 = When(
    text="performance.flash_attention_version is 4",
    test=lambda bench: bench.config.performance.flash_attention_version == 4,
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """`name` is the module's in Megatron where there is one; `run` names a function of the bench."""

    code: str
    name: str
    run: str
    why: str
    when: When = ALWAYS
    source: str = MEASURED


_GEMM = "a GEMM that splits K by the number of rows gives a row other bits in another batch"
_NORM = "a norm may pick its reduction by the number of rows"
_FLASH = "flash-attn-4 4.0.0b30 and later read Transformer Engine's causal window (-1, 0) as an empty one"
_SPLITS = "FlashAttention may split keys over blocks by the load of the batch (num_splits=0)"

CHECKS: tuple[Check, ...] = (
    Check(
        code="ZS001",
        name="environment",
        run="zero_kl.selftest.in_force.check_environment",
        why="cuBLAS and Transformer Engine read it once",
    ),
    Check(
        code="ZS002",
        name="GEMM workspace",
        run="zero_kl.selftest.in_force.check_workspace",
        when=STARVES,
        why="with workspace cuBLASLt splits K, and a patch that did not take is silent",
    ),
    Check(
        code="ZS003",
        name="expert patches",
        run="zero_kl.selftest.in_force.check_moe_patches",
        when=PATCHES_EXPERTS,
        why="a patch that did not take is silent",
    ),
    Check(
        code="ZS004",
        name="FlashAttention-4",
        run="zero_kl.selftest.in_force.check_flash_attention",
        when=PINS_FLASH_4,
        why="generation refuses a FlashAttention-4 that megatron-core takes for absent, in its first step",
    ),
    Check(
        code="ZS010",
        name="core_attention, padded",
        run="zero_kl.selftest.checks.check_attention_padded",
        why=_FLASH,
    ),
    Check(
        code="ZS011",
        name="core_attention, packed",
        run="zero_kl.selftest.checks.check_attention_packed",
        why=_FLASH,
    ),
    Check(code="ZS012", name="core_attention, rows", run="zero_kl.selftest.checks.check_attention_rows", why=_SPLITS),
    Check(
        code="ZS013",
        name="paged prefill",
        run="zero_kl.selftest.checks.check_paged_prefill",
        why=f"generation runs it, training the full kernel; {_SPLITS}",
    ),
    Check(
        code="ZS014",
        name="paged decode",
        run="zero_kl.selftest.checks.check_paged_decode",
        why=f"generation runs it, training the full kernel; {_SPLITS}",
    ),
    Check(code="ZS020", name="linear_qkv", run="zero_kl.selftest.checks.check_linear_qkv", why=_GEMM),
    Check(code="ZS021", name="linear_proj", run="zero_kl.selftest.checks.check_linear_proj", why=_GEMM),
    Check(code="ZS022", name="linear_fc1", run="zero_kl.selftest.checks.check_linear_fc1", when=NO_EXPERTS, why=_GEMM),
    Check(
        code="ZS023",
        name="activation",
        run="zero_kl.selftest.checks.check_activation",
        when=NO_EXPERTS,
        why="vector tails",
    ),
    Check(code="ZS024", name="linear_fc2", run="zero_kl.selftest.checks.check_linear_fc2", when=NO_EXPERTS, why=_GEMM),
    Check(code="ZS025", name="norm", run="zero_kl.selftest.checks.check_norm", why=_NORM),
    Check(code="ZS026", name="q_layernorm", run="zero_kl.selftest.checks.check_head_norm", why=_NORM),
    Check(code="ZS027", name="output_layer", run="zero_kl.selftest.checks.check_output_layer", why=_GEMM),
    Check(
        code="ZS028",
        name="narrow product",
        run="zero_kl.selftest.checks.check_narrow_product",
        why="torch's GEMMs take their workspace from the environment; the narrowest is split first",
    ),
    Check(
        code="ZS029",
        name="log_softmax",
        run="zero_kl.selftest.checks.check_log_softmax",
        why="the log-probabilities themselves",
    ),
    Check(code="ZS030", name="router", run="zero_kl.selftest.experts.check_router", when=EXPERTS, why=_GEMM),
    Check(
        code="ZS033",
        name="top-k",
        run="zero_kl.selftest.experts.check_topk",
        when=EXPERTS,
        why="megatron-core 0.19.2 sorts the top-k only where gradients are recorded, and normalises in that order",
    ),
    Check(code="ZS031", name="experts", run="zero_kl.selftest.experts.check_experts", when=EXPERTS, why=_GEMM),
    Check(
        code="ZS032",
        name="combine",
        run="zero_kl.selftest.experts.check_combine",
        when=EXPERTS,
        why="megatron-core 0.19.2 adds a token's experts with atomics, in the order they arrive",
    ),
)
