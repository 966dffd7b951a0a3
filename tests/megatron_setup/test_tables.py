"""Every row of the set-up tables but the layouts': what breaks it, the error's exact text, and what repairs it."""

from collections.abc import Sequence

import pytest

from launcher.compose import compose
from launcher.keys import keys_of
from launcher.requirement import Requirement, Severity, Subject, Violation, check_all, render
from launcher.rules import RULES
from launcher.validate import read_architecture, validate
from megatron_setup import parallelism, tables
from tests.command_line import retyped
from tests.plugin_golden import Golden

GPU = "platform=hopper"
GRAPHS = ("generation=graphs", "model.seq_length=512", "performance.use_te_rng_tracker=true")
MOE = (GPU, "model=tiny_moe")
FP8 = (GPU, "precision.fp8=hybrid", "performance.make_sequence_length_divisible_by=128")
STORED = (GPU, "model=hf", "model.hf_path=organisation/name")
FLEX = (*MOE, "moe.moe_token_dispatcher_type=flex")
LORA = "model.peft.enabled=true"
DRAFT = "model.draft.enabled=true"
SECOND = ("parallelism=tp2", "generation.tensor_model_parallel_size=1")
SELECTIVE = "performance.recompute_granularity=selective"
OFFLOADING = "performance.fine_grained_activation_offloading=true"
PRETRAINED = "model.pretrained_checkpoint.path=tests/checkpoints"
YARN = "{rope_type:yarn,factor:4.0,original_max_position_embeddings:128,rope_theta:10000.0}"

BROKEN: dict[str, tuple[str, ...]] = {
    "MD001": ("model=hf", "model.hf_path=null"),
    "MD002": ("model.hf_path=organisation/name",),
    "MD003": (*STORED, "model.init_seed=1"),
    "MD004": ("model.attention_dropout=1.5",),
    "MD005": ("model.hidden_dropout=-0.1",),
    "MD010": (f"+model.hf_config.rope_parameters={YARN}",),
    "MD011": ("+model.hf_config_overrides.rope_scaling={rope_type:yarn,beta_fast:32.0}",),
    "MD012": (GPU, "model=hf", "model.hf_path=tests/checkpoints/yarn"),
    "MD020": ("+model.model_overrides={softmax_scale:0.1,tensor_model_parallel_size:2,bf16:false}",),
    "MD030": (f"{PRETRAINED}/nonsense_tracker",),
    "MD031": ("model.pretrained_checkpoint.format=megatron_lm",),
    "MD032": (f"{PRETRAINED}/whole", "+model.hf_config_overrides.rope_theta=5000"),
    "MD033": (f"{PRETRAINED}/whole", "model.force_reconvert_from_hf=true"),
    "MO001": FLEX,
    "MO002": (*MOE, "moe.moe_flex_dispatcher_backend=deepep"),
    "MO003": (*MOE, "moe.moe_flex_dispatcher_num_sms=20"),
    "MO004": (*MOE, "moe.moe_enable_deepep=true"),
    "MO005": (*MOE, "moe.moe_permute_fusion_into_hybridep=true"),
    "MO006": (*MOE, "moe.moe_hybridep_num_blocks_permute=8"),
    "MO007": (*MOE, "moe.moe_hybridep_num_blocks_unpermute=8"),
    "MO008": (*MOE, "moe.moe_hybridep_num_sms_preprocessing=8"),
    "MO009": (*MOE, "moe.num_of_hybrid_ep_ranks_per_nvlink_domain=8"),
    "MO010": (*MOE, "moe.use_mnnvl=true"),
    "MO011": (
        *FLEX,
        "moe.moe_flex_dispatcher_backend=deepep",
        "moe.moe_expert_capacity_factor=1.0",
        "moe.moe_pad_expert_input_to_capacity=true",
    ),
    "MO012": (*MOE, "moe.moe_token_dispatcher_type=allgather", "moe.moe_shared_expert_overlap=true"),
    "MO020": (*MOE, "moe.moe_router_dtype=float32"),
    "MO021": (*MOE, "moe.moe_router_load_balancing_type=none", "moe.moe_aux_loss_coeff=0.01"),
    "MO022": (*MOE, "moe.moe_router_enable_expert_bias=false", "moe.moe_router_bias_update_rate=0.001"),
    "MO023": (*MOE, "moe.moe_router_num_groups=3", "moe.moe_router_group_topk=2"),
    "MO024": (*MOE, "moe.moe_router_num_groups=2"),
    "MO025": (*MOE, "moe.moe_expert_capacity_factor=1.0", "moe.moe_router_load_balancing_type=sinkhorn"),
    "MO026": (*MOE, "moe.moe_pad_expert_input_to_capacity=true"),
    "MO027": (*MOE, "moe.moe_router_padding_for_quantization=true"),
    "MO028": (
        *FP8,
        "model=tiny_moe",
        "moe.moe_token_dispatcher_type=allgather",
        "moe.moe_router_padding_for_quantization=true",
    ),
    "MO040": ("moe=frozen_router",),
    "MO041": ("model=tiny_moe", "model.peft.enabled=true"),
    "MT001": (*STORED, "mtp.mtp_num_layers=0"),
    "MT002": (*STORED, "mtp.mtp_num_layers=1", "parallelism=pp2"),
    "MT003": ("mtp.mtp_loss_scaling_factor=0.3",),
    "MT004": ("mtp.mtp_use_repeated_layer=true",),
    "MT005": ("mtp.mtp_detach_heads=true",),
    "MT006": ("mtp.mtp_num_layers=1",),
    "LO001": ("model.peft.dim=16", "model.peft.target_modules=[linear_qkv]"),
    "LO002": (LORA, "model.peft.exclude_modules=[linear_fc1]"),
    "LO003": (LORA, "parallelism=tp2", "model.peft.target_modules=[]", "model.peft.exclude_modules=[linear_fc1]"),
    "LO004": (LORA, "model=tiny_moe", "moe=frozen_router", "model.peft.target_modules=[linear_qkv,router]"),
    "LO005": (LORA, SELECTIVE, "performance.recompute_modules=[mlp]", "model.peft.target_modules=[linear_fc1]"),
    "LO006": (LORA, "model.peft.dim=0"),
    "LO007": (LORA, "model.peft.alpha=0"),
    "LO008": (LORA, "model.peft.dropout=1.0"),
    "LO009": (LORA, "model.peft.dropout_position=post"),
    "LO010": (LORA, "model.peft.lora_A_init_method=zero"),
    "LO011": (LORA, "model.peft.lora_dtype=float32"),
    "LO012": (LORA, "parallelism=tp2", "model.peft.dim=7"),
    "LO013": (LORA, "model.peft.a2a_experimental=true"),
    "LO014": (LORA, "parallelism=tp2_sp", "model.peft.a2a_experimental=true"),
    "LO015": (LORA, *MOE, "parallelism=tp2_sp", "model.peft.a2a_experimental=true"),
    "DR001": ("model.draft.num_layers=2",),
    "DR002": (DRAFT, "model.draft.num_layers=0"),
    "DR003": (DRAFT, "model.draft.loss_weight=0.0"),
    "DR004": (DRAFT, "model.draft.aux_layer_indices=[3,1,4]"),
    "DR005": (DRAFT, LORA),
    "DR010": (DRAFT, "parallelism=pp2"),
    "DR011": (DRAFT, GPU, "parallelism.context_parallel_size=2"),
    "DR012": (DRAFT, "precision=fp16"),
    "DR013": (DRAFT, "model.hidden_dropout=0.1"),
    "DR014": (DRAFT, *STORED, "mtp.mtp_num_layers=1", "mtp.mtp_detach_heads=true"),
    "DR015": (DRAFT, "performance.sequence_packing.enabled=true"),
    "DR016": (DRAFT, "parallelism=dp2"),
    "DR017": (DRAFT, "checkpoint=save", "checkpoint.also_save_hf_checkpoint=true"),
    "PR001": ("precision.pipeline_dtype=float32",),
    "PR010": ("precision.fp8_recipe=tensorwise",),
    "PR011": ("precision.fp8_param=true",),
    "PR012": ("precision.fp8_margin=1",),
    "PR013": ("precision.fp8_amax_history_len=16",),
    "PR014": ("precision.fp8_amax_compute_algo=max",),
    "PR015": ("precision.fp8_wgrad=false",),
    "PR016": ("precision.fp8_dot_product_attention=true",),
    "PR017": ("precision.fp8_multi_head_attention=true",),
    "PR018": ("precision.first_last_layers_bf16=true",),
    "PR019": ("precision.num_layers_at_start_in_bf16=1",),
    "PR020": ("precision.num_layers_at_end_in_bf16=1",),
    "PR021": (*FP8, "precision.fp8_recipe=tensorwise", "precision.fp8_margin=1"),
    "PR022": (*FP8, "precision.fp8_recipe=tensorwise", "precision.fp8_amax_history_len=16"),
    "PR023": (*FP8, "precision.fp8_recipe=tensorwise", "precision.fp8_amax_compute_algo=max"),
    "PR024": (*FP8, "precision.fp8_recipe=tensorwise", "precision.fp8_wgrad=false"),
    "PR025": (*FP8, "precision.fp8_recipe=delayed", "precision.first_last_layers_bf16=true"),
    "PR026": (*FP8, "precision.fp8_recipe=tensorwise", "precision.num_layers_at_start_in_bf16=1"),
    "PR027": (*FP8, "precision.fp8_recipe=tensorwise", "precision.num_layers_at_end_in_bf16=1"),
    "PR028": (
        *FP8,
        "precision.fp8_recipe=tensorwise",
        "precision.first_last_layers_bf16=true",
        "precision.num_layers_at_start_in_bf16=5",
    ),
    "PR029": (
        *FP8,
        "precision.fp8_recipe=tensorwise",
        "precision.first_last_layers_bf16=true",
        "precision.num_layers_at_end_in_bf16=-1",
    ),
    "PR030": (*FP8, "precision.fp8_recipe=mxfp8"),
    "PE001": (GPU, "performance.flash_attention_version=1"),
    "PE002": (GPU, "performance.flash_attention_version=4", "performance.attention_backend=fused"),
    "PE003": ("performance.cross_entropy_loss_fusion=false", "performance.cross_entropy_fusion_impl=native"),
    "PE004": (GPU, "generation=graphs", "model.seq_length=512"),
    "PE005": (
        GPU,
        "zero_kl.backend=te_native",
        "performance.deterministic_mode=true",
        "performance.cross_entropy_loss_fusion=false",
    ),
    "PE006": (GPU, "performance.deterministic_mode=true"),
    "PE007": ("performance.layernorm_epsilon=-1.0",),
    "PE008": ("performance.make_sequence_length_divisible_by=0",),
    "PE009": (
        GPU,
        "precision.fp8=hybrid",
        "precision.fp8_recipe=blockwise",
        "parallelism=tp2_sp",
        "performance.make_sequence_length_divisible_by=100",
    ),
    "PE010": ("performance.logprob_chunk_size=1024",),
    "PE011": ("performance.use_fused_linear_logprobs=true", "optimizer.overlap_param_gather=true"),
    "PE030": ("performance.recompute_granularity=full", "performance.recompute_num_layers=1"),
    "PE031": ("performance.recompute_granularity=full", "performance.recompute_method=uniform"),
    "PE032": ("performance.recompute_method=uniform",),
    "PE033": (SELECTIVE, "performance.recompute_num_layers=1"),
    "PE034": ("performance.recompute_modules=[mlp]",),
    "PE035": (SELECTIVE, "performance.recompute_modules=[mlp,moe]"),
    "PE036": (*MOE, SELECTIVE, "moe.moe_grouped_gemm=false", "performance.recompute_modules=[moe_act]"),
    "PE037": (*FP8, SELECTIVE, "precision.fp8_recipe=delayed", "performance.recompute_modules=[layernorm,mlp]"),
    "PE038": (
        *MOE,
        SELECTIVE,
        "moe.moe_shared_expert_overlap=true",
        "performance.recompute_modules=[shared_experts]",
    ),
    "PE050": (
        GPU,
        OFFLOADING,
        "performance.offload_modules=[core_attn]",
        "performance.transformer_impl=local",
    ),
    "PE051": (GPU, OFFLOADING),
    "PE052": ("performance.offload_modules=[core_attn]",),
    "PE053": ("performance.min_offloaded_tensor_size=1024",),
    "PE054": ("performance.activation_offload_fraction=0.5",),
    "PE055": (GPU, OFFLOADING, "performance.offload_modules=[core_attn]", "performance.min_offloaded_tensor_size=-1"),
    "PE056": (GPU, OFFLOADING, "performance.offload_modules=[core_attn]", "performance.activation_offload_fraction=2"),
    "PE057": (GPU, OFFLOADING, "performance.offload_modules=[attn_proj]"),
    "PE058": (GPU, OFFLOADING, "performance.offload_modules=[core_attn,expert_fc1]"),
    "PE059": (
        *MOE,
        OFFLOADING,
        SELECTIVE,
        "performance.recompute_modules=[moe]",
        "performance.offload_modules=[core_attn,moe_act]",
    ),
    "PE060": (*MOE, OFFLOADING, "performance.offload_modules=[core_attn,fused_group_mlp]"),
    "OP001": ("optimizer.overlap_param_gather=true", "optimizer.use_distributed_optimizer=false"),
    "OP002": ("optimizer.overlap_param_gather=true",),
    "OP004": ("optimizer.ddp.align_param_gather=true",),
    "OP005": ("optimizer.ddp.average_in_collective=true",),
    "OP007": ("performance.global_batch_size=8", "performance.micro_batch_size=8"),
    "OP006": ("optimizer.ddp.bucket_size=1000",),
    "OP010": ("optimizer.lr=-0.1",),
    "OP011": ("optimizer.weight_decay=-0.1",),
    "OP012": ("optimizer.clip_grad=-1.0",),
    "OP013": ("optimizer=sgd", "optimizer.adam_beta1=0.8"),
    "OP014": ("optimizer=sgd", "optimizer.adam_beta2=0.8"),
    "OP015": ("optimizer=sgd", "optimizer.adam_eps=1e-6"),
    "OP016": ("optimizer.sgd_momentum=0.5",),
    "OP017": ("optimizer.optimizer=sgd",),
    "OP018": ("optimizer.initial_loss_scale=1024",),
    "OP019": ("precision=fp16", "optimizer.loss_scale=128", "optimizer.min_loss_scale=1"),
    "OP020": ("optimizer.loss_scale_window=100",),
    "OP021": ("optimizer.hysteresis=1",),
    "OP022": (GPU, "optimizer=sgd", "optimizer.use_precision_aware_optimizer=true"),
    "OP023": (GPU, "optimizer.use_precision_aware_optimizer=true", "optimizer.use_distributed_optimizer=false"),
    "OP024": ("optimizer.main_grads_dtype=bfloat16",),
    "OP025": ("optimizer.main_params_dtype=float16",),
    "OP026": ("optimizer.exp_avg_dtype=bfloat16",),
    "OP027": ("optimizer.exp_avg_sq_dtype=bfloat16",),
    "OP030": (GPU, "optimizer.use_precision_aware_optimizer=true", "optimizer.main_grads_dtype=float16"),
    "OP031": (GPU, "optimizer.use_precision_aware_optimizer=true", "optimizer.main_params_dtype=bfloat16"),
    "OP040": (GPU, "optimizer.optimizer_cpu_offload=true"),
    "OP046": (GPU, "optimizer.optimizer_cpu_offload=true", "optimizer.optimizer_offload_fraction=1.0"),
    "OP047": (*FP8, "precision.fp8_recipe=tensorwise", "precision.fp8_param=true", "optimizer=adam_cpu_offload"),
    "OP048": ("optimizer=adam_cpu_offload", "precision=fp32"),
    "OP041": ("optimizer.optimizer_offload_fraction=0.5",),
    "OP042": ("optimizer.overlap_cpu_optimizer_d2h_h2d=true",),
    "OP043": ("optimizer.pin_cpu_grads=false",),
    "OP044": ("optimizer.pin_cpu_params=false",),
    "OP045": (GPU, "optimizer=adam_cpu_offload", "optimizer.use_torch_optimizer_for_cpu_offload=true"),
    "OP060": ("optimizer.scheduler.lr_decay_style=linear", "optimizer.scheduler.lr_decay_iters=0"),
    "OP061": ("optimizer.scheduler.lr_warmup_iters=-1",),
    "OP062": ("optimizer.scheduler.lr_decay_style=WSD", "optimizer.scheduler.lr_wsd_decay_iters=0"),
    "OP063": ("optimizer.scheduler.lr_warmup_iters=2",),
    "OP064": ("optimizer.scheduler.lr_decay_style=linear", "optimizer.min_lr=0.1"),
    "OP065": ("optimizer.scheduler.lr_warmup_iters=1", "optimizer.scheduler.lr_warmup_init=0.1"),
    "OP066": ("optimizer.min_lr=0.0001",),
    "OP067": ("optimizer.scheduler.lr_wsd_decay_style=linear",),
    "OP068": ("optimizer.scheduler.lr_wsd_decay_iters=1",),
    "OP069": ("optimizer.scheduler.lr_warmup_init=0.0001",),
    "OP070": ("optimizer.scheduler.weight_decay_incr_style=linear", "optimizer.scheduler.end_weight_decay=0.001"),
    "OP071": ("optimizer.scheduler.start_weight_decay=0.001",),
    "OP072": ("optimizer.scheduler.end_weight_decay=0.1",),
    "CK001": ("checkpoint.async_save=true",),
    "CK032": (
        *("job=train", "model.value.enabled=true", "checkpoint=save"),
        *("checkpoint.async_save=true", "checkpoint.async_strategy=mcore"),
    ),
    "CK002": ("checkpoint=save", "checkpoint.async_save=true", "checkpoint.use_persistent_ckpt_worker=false"),
    "CK003": ("checkpoint=save", "checkpoint.async_save=true", "checkpoint.ckpt_assume_constant_structure=true"),
    "CK004": ("job=setup", "checkpoint=save"),
    "CK005": ("checkpoint=save", "checkpoint.async_save=true", "checkpoint.async_strategy=nvrx"),
    "CK006": ("checkpoint=save", "checkpoint.save_interval=0"),
    "CK007": ("checkpoint=save", "checkpoint.storage_writers_per_rank=0"),
    "CK008": ("checkpoint=save", "checkpoint.most_recent_k=0"),
    "CK009": ("checkpoint.load=tests/checkpoints",),
    "CK010": ("checkpoint.save_interval=1",),
    "CK011": ("checkpoint.most_recent_k=1",),
    "CK012": ("checkpoint.save_optim=false",),
    "CK013": ("checkpoint.save_rng=false",),
    "CK014": ("checkpoint.fully_parallel_save=false",),
    "CK015": ("checkpoint.ckpt_fully_parallel_save_process_group=dp",),
    "CK016": ("checkpoint.storage_writers_per_rank=2",),
    "CK017": ("checkpoint.ckpt_assume_constant_structure=true",),
    "CK018": ("checkpoint.also_save_hf_checkpoint=true",),
    "CK020": ("checkpoint.load_optim=false",),
    "CK021": ("checkpoint.load_rng=false",),
    "CK022": ("checkpoint.dist_ckpt_strictness=raise_all",),
    "CK023": ("checkpoint.fully_parallel_load=true",),
    "CK024": ("checkpoint.ckpt_fully_parallel_load_process_group=dp",),
    "CK025": ("checkpoint.ckpt_fully_parallel_load_exchange_algo=broadcast",),
    "CK030": ("checkpoint.async_strategy=mcore",),
    "CK031": ("checkpoint.use_persistent_ckpt_worker=true",),
    "GE002": ("generation.num_cuda_graphs=16",),
    "GE003": ("generation.inference_cuda_graph_scope=layer",),
    "GE004": ("generation.use_cuda_graphs_for_non_decode_steps=true",),
    "GE018": ("generation.cuda_graph_sizing_distribution=linear",),
    "GE005": ("model=tiny_moe", "moe.moe_pad_experts_for_cuda_graph_inference=true"),
    "GE006": (GPU, "generation.cuda_graph_impl=full_iteration", "generation.num_cuda_graphs=4"),
    "GE007": (GPU, *GRAPHS, "generation.inference_cuda_graph_scope=none"),
    "GE008": (GPU, *GRAPHS, "generation.num_cuda_graphs=0"),
    "GE009": (GPU, *GRAPHS, "model=tiny_moe"),
    "GE016": (
        "platform=hopper",
        *GRAPHS,
        "model=tiny_moe",
        "zero_kl=te_native",
        "moe.moe_pad_experts_for_cuda_graph_inference=true",
    ),
    "GE017": ("platform=hopper", *GRAPHS, "model=tiny_moe", "zero_kl=te_native", "parallelism=ep2"),
    "GE010": ("generation.temperature=0.0",),
    "GE011": ("generation.top_p=0.0",),
    "GE012": ("generation.top_k=-1",),
    "GE013": ("generation.top_k=20", "generation.top_p=0.9"),
    "GE014": (
        *STORED,
        "mtp.mtp_num_layers=1",
        "generation.num_speculative_tokens=1",
        "generation.logprobs_mode=processed_logprobs",
    ),
    "GE015": ("generation.num_speculative_tokens=2",),
    "GE020": ("generation.max_tokens=100", "generation.max_requests=100", "job.max_prompt_tokens=90"),
    "GE022": ("generation.max_sequence_length=64",),
    "GE023": ("generation.block_size_tokens=0",),
    "GE024": ("job.num_steps=-1",),
    "GE025": ("generation.buffer_size_gb=0.0",),
    "GE026": (GPU, "generation.unified_memory_level=2"),
    "GE027": ("generation.static_kv_memory_pointers=true",),
    "GE040": ("generation.tensor_model_parallel_size=3",),
    "GE041": ("parallelism=pp2", "generation.pipeline_model_parallel_size=3"),
    "GE042": ("model=tiny_moe", "generation.expert_model_parallel_size=3"),
    "GE043": ("generation.expert_tensor_parallel_size=0",),
    "GE044": ("generation.transformer_impl=local",),
    "GE045": ("generation.refit_method=gloo",),
    "GE046": (GPU, *SECOND, "generation.refit_method=nixl"),
    "GE047": (*SECOND, "generation.refit_method=nccl"),
    "GE048": (*SECOND, "model.peft.enabled=true"),
    "GE049": (*FP8, *SECOND, "precision.fp8_recipe=delayed"),
    "TR001": ("job=train", "parallelism.context_parallel_size=2"),
    "TR002": ("job=train", "job.max_prompt_tokens=1000"),
    "TR003": ("job=train", "job.min_prompt_tokens=60"),
    "TR004": ("job=train", "parallelism=dp2", "job.num_prompts=7"),
    "TR010": ("job=train", "model.reference_model=true", "job.reference_kl_weight=-1.0"),
    "TR011": ("job=train", "job.reference_kl_weight=0.1"),
    "TR012": ("model.reference_model=true", "job=setup", "job.reference_kl_weight=0.1"),
    "TR013": ("model.reference_model=true",),
    "TR020": ("job=export", "model.peft.enabled=true"),
    "TR021": ("job=export", "model.draft.enabled=true"),
    "TR022": ("job=setup", "job.claims=true"),
    "VA001": ("model.value.hf_path=organisation/name",),
    "VA002": ("model.value.lr=0.1",),
    "VA003": ("model.value.micro_batch_size=2",),
    "VA004": ("model.value.enabled=true", "model.value.lr=-0.1"),
    "VA005": ("model.value.enabled=true", "model.value.micro_batch_size=0"),
    "VA006": ("model.value.enabled=true",),
    "GP001": ("performance.attention_backend=flash",),
    "GP002": ("performance.flash_attention_version=4",),
    "GP003": ("precision=fp8", "performance.make_sequence_length_divisible_by=16"),
    "GP004": ("model=tiny_moe", "moe.moe_token_dispatcher_type=flex", "moe.moe_flex_dispatcher_backend=deepep"),
    "GP005": ("performance.cross_entropy_fusion_impl=te",),
    "GP010": ("performance.apply_rope_fusion=true",),
    "GP011": ("performance.masked_softmax_fusion=true",),
    "GP012": ("performance.gradient_accumulation_fusion=true",),
    "GP013": ("model=tiny_moe", "moe.moe_router_fusion=true"),
    "GP014": ("model=tiny_moe", "moe.moe_permute_fusion=true"),
    "GP020": ("generation=graphs", "model.seq_length=512"),
    "GP021": ("performance.use_te_rng_tracker=true",),
    "GP022": ("performance.inference_rng_tracker=true",),
    "GP030": (OFFLOADING, "performance.offload_modules=[core_attn]"),
    "GP032": ("generation.unified_memory_level=1",),
    "GP034": ("performance.deterministic_mode=true", "performance.cross_entropy_loss_fusion=false"),
    "GP035": ("model=tiny_moe", "moe.moe_latent_size=32"),
    "GP036": ("model.attention_dropout=0.1",),
    "GP033": ("optimizer.use_precision_aware_optimizer=true",),
}
"""A command line that violates the row, as small as it gets; what stands beside is what the row's condition wants."""

ROWS = [row for row in tables.REQUIREMENTS if row not in parallelism.REQUIREMENTS]
PREFIXES = sorted({row.code[:2] for row in ROWS})


def violations(overrides: Sequence[str]) -> dict[str, Violation]:
    config = compose(overrides).config
    subject = Subject(config=config, architecture=read_architecture(config.model))
    return {v.row.code: v for v in check_all(RULES, subject=subject)}


def test_every_row_has_a_case() -> None:
    assert [row.code for row in ROWS] == list(BROKEN)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_error_texts(prefix: str, golden: Golden) -> None:
    texts = [render(violations(words)[code]) for code, words in BROKEN.items() if code.startswith(prefix)]
    golden("\n\n".join(texts), name=f"setup/{prefix}.txt")


@pytest.mark.parametrize("code", BROKEN)
def test_hint_repairs(code: str) -> None:
    finding = violations(BROKEN[code])[code].finding
    assert finding.hints
    assert code not in violations(retyped(BROKEN[code], hints=finding.hints))


@pytest.mark.parametrize("code", BROKEN)
def test_all_hints_together_repair_the_run(code: str) -> None:
    """Of every rule there is, typed at once: the promise that stands under a refusal."""
    found = validate(compose(BROKEN[code]).config)
    hints = [hint for v in (*found.violations, *found.warnings) for hint in v.finding.hints]
    validate(compose(retyped(BROKEN[code], hints=hints)).config).raise_if_invalid()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.code)
def test_row_is_complete(row: Requirement) -> None:
    for key in (row.key, *row.reads):
        assert any(name == key or name.startswith(f"{key}.") for name in keys_of()), key
    assert row.why
    assert row.source
    assert row.when.who
    assert not row.why.endswith(".")


def test_what_stops_nothing_is_a_warning() -> None:
    assert {row.code for row in ROWS if row.severity is Severity.WARNING} == {
        "DR001",
        "DR016",
        "LO001",
        "MD032",
        "MO040",
        "MO041",
    }
