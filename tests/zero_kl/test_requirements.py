"""Every row of the zero-KL table: what breaks it, the error's exact text, and that typing its hint repairs it."""

from collections.abc import Sequence
from functools import cache

import pytest

from launcher.compose import compose
from launcher.keys import is_section, keys_of
from launcher.requirement import Requirement, Severity, Subject, Violation, check_all, render
from launcher.validate import read_architecture
from tests.plugin_golden import Golden
from zero_kl.requirements import REQUIREMENTS

GPU, HOPPER, CPU = "+preset=zero_kl", "+preset=zero_kl_hopper", "+preset=zero_kl_cpu"
PRESETS = (GPU, HOPPER, CPU)
MOE = (GPU, "model=qwen3_moe_1b")
HUB = (GPU, "model=hf", "model.hf_path=organisation/name")

BROKEN: dict[str, tuple[str, ...]] = {
    "ZK001": (GPU, "zero_kl.backend=none"),
    "ZK002": (GPU, "zero_kl.batch_invariant_mode=false"),
    "ZK003": (GPU, "parallelism.tensor_model_parallel_size=4"),
    "ZK004": (GPU, "parallelism.pipeline_model_parallel_size=2"),
    "ZK005": (GPU, "parallelism.context_parallel_size=2"),
    "ZK006": (HOPPER, "model=qwen3_moe_1b", "parallelism=tp2_sp"),
    "ZK007": (GPU, "parallelism.expert_model_parallel_size=16"),
    "ZK008": (GPU, "parallelism.sequence_parallel=true"),
    "ZK009": (GPU, "generation.tensor_model_parallel_size=2"),
    "ZK010": (GPU, "generation.pipeline_model_parallel_size=2"),
    "ZK011": (GPU, "generation.expert_model_parallel_size=2"),
    "ZK012": (GPU, "generation.expert_tensor_parallel_size=1"),
    "ZK013": (GPU, "precision.dtype=float16"),
    "ZK014": (GPU, "precision.fp8=hybrid"),
    "ZK015": (GPU, "performance.make_sequence_length_divisible_by=100"),
    "ZK016": (GPU, "performance.attention_backend=auto"),
    "ZK017": (GPU, "performance.flash_attention_version=3"),
    "ZK018": (GPU, "performance.transformer_impl=local"),
    "ZK019": (GPU, "generation.transformer_impl=inference_optimized"),
    "ZK020": (GPU, "performance.cuda_graph_impl=local"),
    "ZK021": (GPU, "performance.use_fused_linear_logprobs=true"),
    "ZK022": (GPU, "performance.deterministic_mode=true"),
    "ZK023": (GPU, "performance.dynamic_batching.enabled=true"),
    "ZK024": (GPU, "performance.sequence_packing.train_mb_tokens=4000"),
    "ZK025": (GPU, "performance.sequence_packing.logprob_mb_tokens=1"),
    "ZK026": (*HUB, "performance.use_mamba_mem_eff_path=true"),
    "ZK030": (*MOE, "moe.moe_token_dispatcher_type=allgather"),
    "ZK031": (*MOE, "moe.moe_permute_fusion=true"),
    "ZK032": (*MOE, "moe.moe_router_dtype=null"),
    "ZK033": (*MOE, "moe.moe_pad_experts_for_cuda_graph_inference=true"),
    "ZK034": (*MOE, "moe.moe_enable_deepep=true"),
    "ZK035": (*MOE, "moe.moe_shared_expert_overlap=true"),
    "ZK036": (*MOE, "moe.freeze_moe_router=false"),
    "ZK037": (*MOE, "moe.moe_router_load_balancing_type=aux_loss"),
    "ZK038": (*MOE, "moe.moe_router_bias_update_rate=0.001"),
    "ZK039": (*MOE, "moe.moe_enable_routing_replay=true"),
    "ZK040": (*MOE, "moe.moe_expert_capacity_factor=1.25"),
    "ZK045": (GPU, "model.attention_dropout=0.1"),
    "ZK046": (GPU, "model.hidden_dropout=0.1"),
    "ZK047": (GPU, "mtp.mtp_num_layers=1"),
    "ZK048": (GPU, "model.peft.enabled=true"),
    "ZK049": (GPU, "model.draft.enabled=true"),
    # ZK050: the schema knows one engine only, see UNREACHABLE
    "ZK051": (GPU, "generation.colocated=false"),
    "ZK052": (GPU, "generation.temperature=0.7"),
    "ZK053": (GPU, "generation.top_p=0.9"),
    "ZK054": (GPU, "generation.top_k=20"),
    "ZK055": (GPU, "generation.logprobs_mode=processed_logprobs"),
    "ZK056": (GPU, "generation.enable_chunked_prefill=true"),
    "ZK057": (GPU, "generation.enable_prefix_caching=true"),
    "ZK058": (GPU, "generation.kv_cache_management_mode=persist"),
    "ZK059": (GPU, "generation.static_kv_memory_pointers=true"),
    "ZK060": (GPU, "generation.num_speculative_tokens=2"),
    "ZK061": (GPU, "generation.max_sequence_length=512"),
    "ZK062": (GPU, "generation.cuda_graph_impl=local"),
    "ZK063": (GPU, "generation.num_cuda_graphs=16"),
    "ZK064": (GPU, "generation.inference_cuda_graph_scope=layer"),
    "ZK065": (GPU, "generation.use_cuda_graphs_for_non_decode_steps=true"),
    "ZK093": (HOPPER, "cluster=local", "parallelism.tensor_model_parallel_size=8"),
    "ZK094": (HOPPER, "parallelism.tensor_model_parallel_size=2", "zero_kl.batch_invariant_collective=false"),
    "ZK095": (HOPPER, "parallelism.pipeline_model_parallel_size=4"),
    "ZK096": (HOPPER, "parallelism=pp2", "generation=graphs", "performance.use_te_rng_tracker=true"),
    "ZK097": (HOPPER, "parallelism=tp2", "+model.model_overrides.tp_comm_overlap=true"),
    "ZK066": (*HUB, "generation.mamba_inference_ssm_states_dtype=bfloat16"),
    "ZK067": (GPU, "generation.block_size_tokens=32"),
    "ZK068": (HOPPER, "generation=graphs", "generation.num_cuda_graphs=16"),
    "ZK069": (HOPPER, "generation=graphs", "generation.inference_cuda_graph_scope=block"),
    "ZK070": (CPU, "zero_kl.backend=none"),
    "ZK071": ("platform=hopper", "zero_kl.backend=cpu_reference"),
    "ZK072": ("zero_kl.backend=te_native",),
    "ZK073": ("zero_kl.batch_invariant_mode=true",),
    "ZK074": (CPU, "precision.dtype=float16"),
    "ZK080": (GPU, "model.hf_config.model_type=deepseek_v3"),
    "ZK081": (GPU, "model.hf_config.model_type=nemotron_h"),
    "ZK082": (GPU, "model.hf_config.model_type=qwen3_next"),
    "ZK083": (GPU, "model.hf_config.model_type=gemma2"),
    "ZK084": (GPU, "model.hf_config.model_type=gpt_oss"),
    "ZK085": (CPU, "model.hf_config.model_type=qwen2_5_vl"),
    "ZK086": (GPU, "model.hf_config.model_type=nemotron"),
    "ZK090": (HOPPER,),
    "ZK091": (GPU, "model.hf_config.head_dim=96"),
    "ZK092": (GPU, "model.hf_config.vocab_size=32001"),
}
"""A command line that violates the row (and may violate others)."""

UNREACHABLE = {"ZK050"}
"""Rows whose key can hold nothing else yet."""

WITHOUT_HINT = {"ZK080", "ZK081", "ZK082", "ZK083", "ZK084", "ZK085", "ZK086", "ZK090", "ZK091"}
"""Nothing to type repairs these: the model or the machine is another one."""


def violations(overrides: Sequence[str]) -> dict[str, Violation]:
    return _violations(tuple(overrides))


@cache
def _violations(overrides: tuple[str, ...]) -> dict[str, Violation]:
    config = compose(overrides).config
    subject = Subject(config=config, architecture=read_architecture(config.model))
    return {v.row.code: v for v in check_all(REQUIREMENTS, subject=subject)}


def retyped(overrides: Sequence[str], *, hints: Sequence[str]) -> list[str]:
    """The command line after the person typed the hints: a key is typed once, the hint instead of what was there."""
    keys = {hint.partition("=")[0] for hint in hints}
    return [*(word for word in overrides if word.partition("=")[0] not in keys), *hints]


def errors(overrides: Sequence[str]) -> set[str]:
    return {code for code, v in violations(overrides).items() if v.row.severity is Severity.ERROR}


def test_every_row_has_a_case() -> None:
    codes = [row.code for row in REQUIREMENTS]
    assert sorted(codes) == sorted(set(codes)), "a code is used twice"
    assert set(codes) == set(BROKEN) | UNREACHABLE


@pytest.mark.parametrize("code", BROKEN)
def test_error_text(code: str, golden: Golden) -> None:
    golden(render(violations(BROKEN[code])[code]), name=f"zero_kl/{code}.txt")


@pytest.mark.parametrize("code", sorted(set(BROKEN) - WITHOUT_HINT))
def test_hint_repairs(code: str) -> None:
    finding = violations(BROKEN[code])[code].finding
    assert finding.hints
    assert code not in violations(retyped(BROKEN[code], hints=finding.hints))


@pytest.mark.parametrize("code", sorted(WITHOUT_HINT))
def test_what_no_override_repairs_hints_at_nothing(code: str) -> None:
    assert violations(BROKEN[code])[code].finding.hints == ()


def test_all_hints_together_repair_an_ordinary_run_on_a_gpu() -> None:
    overrides = ["zero_kl.required=true", "platform=blackwell", "model=tiny_moe", "parallelism=tp2_sp"]
    found = violations(overrides)
    assert len(found) > 10
    hints = [hint for violation in found.values() for hint in violation.finding.hints]
    assert errors(retyped(overrides, hints=hints)) == set()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("model", [(), ("model=qwen3_1b",), ("model=qwen3_moe_1b",), ("model=tiny_moe",), HUB[1:]])
def test_presets_hold(preset: str, model: tuple[str, ...]) -> None:
    assert errors([preset, *model]) == set()


@pytest.mark.parametrize(
    ("preset", "warned"), [(GPU, set[str]()), (HOPPER, {"ZK090"}), (CPU, set[str]())], ids=["gpu", "hopper", "cpu"]
)
def test_presets_warn(preset: str, warned: set[str]) -> None:
    assert set(violations([preset])) == warned


def test_an_ordinary_run_is_left_alone() -> None:
    ordinary = [
        "parallelism=tp2",
        "generation.temperature=0.7",
        "platform=blackwell",
        "performance.cuda_graph_impl=local",
    ]
    assert violations(ordinary) == {}


def test_batch_invariant_mode_alone_is_held_to_what_megatron_asserts() -> None:
    overrides = [
        "platform=hopper",
        "zero_kl=te_native",
        "parallelism.context_parallel_size=2",
        "model.attention_dropout=0.1",
    ]
    found = violations(overrides)
    assert set(found) == {"ZK005", "ZK016", "ZK017", "ZK045"}
    assert {v.row.when.who for v in found.values()} == {"batch-invariant mode"}


def test_moe_rows_spare_a_dense_model_and_hold_for_an_unknown_one() -> None:
    assert violations([GPU, "moe.moe_permute_fusion=true"]) == {}
    assert errors([*HUB, "moe.moe_permute_fusion=true"]) == {"ZK031"}


def test_graphs_on_the_cpu_are_the_platforms_to_refuse() -> None:
    assert violations([CPU, "generation=graphs"]) == {}


@pytest.mark.parametrize(("requests", "whole"), [(100, 128), (128, 128), (1, 64)])
def test_captured_sizes_are_rounded_up_to_whole_tiles(requests: int, whole: int) -> None:
    words = [HOPPER, "generation=graphs", "generation.num_cuda_graphs=16", f"generation.max_requests={requests}"]
    hints = violations(words)["ZK068"].finding.hints
    assert hints[0] == f"generation.num_cuda_graphs={whole // 64}"
    assert (f"generation.max_requests={whole}" in hints) == (requests != whole)


@pytest.mark.parametrize("row", REQUIREMENTS, ids=lambda row: row.code)
def test_row_is_complete(row: Requirement) -> None:
    for key in (row.key, *row.reads):
        assert key in keys_of() or is_section(key)
    assert row.why
    assert row.source
    assert row.when.text != "always"
    assert not row.why.endswith(".")
