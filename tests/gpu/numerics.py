"""Where training and generation could still differ, to the bit: log-softmax, router, gradients. Prints one line each.

    python tests/gpu/numerics.py OUT [OVERRIDE ...]

The overrides name the model and the kernels (default: te_native, a mixture of experts). Writes OUT/numerics.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu.served import ZERO, serve

DEFAULT = [*ZERO, "model=qwen3_moe_1b", "model.hf_config.num_hidden_layers=4", "output_dir=/tmp/runs/numerics"]
RESULTS: dict[str, dict[str, Any]] = {}


def note(name: str, a: Any, b: Any) -> None:
    """Count the elements of two fp32 tensors that have the same bits, and keep the largest difference."""
    import torch

    same = (a.view(torch.int32) == b.view(torch.int32)).sum().item()
    difference = (a - b).abs().max().item()
    RESULTS[name] = {"n": a.numel(), "n_exact": same, "max_abs_diff": difference}
    print(f"{name:58s} n {a.numel():>10,d} exact {same:>10,d} max|d| {difference:.1e}", flush=True)


def check_log_softmax(vocabulary: int) -> None:
    """Rows alone, in batches, in chunks; against Megatron's cross entropy; forward and backward."""
    import torch
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    from zero_kl.logprob import token_logprobs

    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(1, 512, vocabulary, device="cuda", generator=generator, dtype=torch.bfloat16) * 3
    targets = torch.randint(vocabulary, (1, 512), device="cuda", generator=generator)
    weight = torch.randn(1, 512, device="cuda", generator=generator)

    def run(function: Any, *, chunk: int) -> tuple[Any, Any]:
        leaf = logits.clone().requires_grad_()
        parts = [function(leaf[:, i : i + chunk], targets[:, i : i + chunk]) for i in range(0, 512, chunk)]
        out = torch.cat(parts, dim=1)
        (out * weight).sum().backward()
        return out.detach(), leaf.grad.float()

    ours = run(lambda rows, t: token_logprobs(rows, targets=t), chunk=512)
    for chunk in (1, 7, 128):
        other = run(lambda rows, t: token_logprobs(rows, targets=t), chunk=chunk)
        note(f"V={vocabulary} log-probs, chunks of {chunk}", ours[0], other[0])
        note(f"V={vocabulary} gradient, chunks of {chunk}", ours[1], other[1])
    engine = torch.nn.functional.log_softmax(logits[0].float(), dim=-1).gather(1, targets[0, :, None])[:, 0]
    note(f"V={vocabulary} log-probs, the engine's routine", ours[0][0], engine)
    parallel = run(lambda rows, t: -vocab_parallel_cross_entropy(rows.float(), t), chunk=512)
    note(f"V={vocabulary} log-probs, vocab_parallel_cross_entropy", ours[0], parallel[0])
    note(f"V={vocabulary} gradient, vocab_parallel_cross_entropy", ours[1], parallel[1])


LAYERS: dict[str, dict[str, Any]] = {
    "16 experts top-4": {"num_moe_experts": 16, "moe_router_topk": 4},
    "64 experts top-6": {"num_moe_experts": 64, "moe_router_topk": 6},
    "128 experts top-8": {"num_moe_experts": 128, "moe_router_topk": 8},
    "8 experts top-1": {"num_moe_experts": 8, "moe_router_topk": 1, "moe_router_pre_softmax": True},
    "32 experts top-8, sigmoid, bias, shared expert": {
        "num_moe_experts": 32,
        "moe_router_topk": 8,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0.0,
        "moe_router_topk_scaling_factor": 2.5,
        "moe_shared_expert_intermediate_size": 512,
    },
    "32 experts top-4 of 2 of 8 groups": {
        "num_moe_experts": 32,
        "moe_router_topk": 4,
        "moe_router_num_groups": 8,
        "moe_router_group_topk": 2,
        "moe_router_score_function": "sigmoid",
    },
}
"""Layers beyond those of the cases' models: fields of TransformerConfig."""


def check_layer(name: str, fields: dict[str, Any]) -> None:
    """A layer's rows among 4,096 in training against few rows without gradients, as a step and as in a graph."""
    import torch
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import cuda_graphs
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=1024,
        num_attention_heads=8,
        moe_ffn_hidden_size=512,
        moe_grouped_gemm=True,
        moe_token_dispatcher_type="alltoall",
        moe_router_dtype="fp32",
        moe_router_load_balancing_type="none",
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        bias_activation_fusion=True,
        bf16=True,
        params_dtype=torch.bfloat16,
        **fields,
    )
    build = get_moe_module_spec(num_experts=config.num_moe_experts, moe_grouped_gemm=True)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    layer: Any = build(config=config, layer_number=1, pg_collection=groups).cuda().train()
    if layer.router.expert_bias is not None:
        layer.router.expert_bias.uniform_(-0.2, 0.2)
    generator = torch.Generator("cuda").manual_seed(2)
    tokens = torch.randn(4096, 1, 1024, device="cuda", dtype=torch.bfloat16, generator=generator)
    trained = layer(tokens.clone().requires_grad_())[0].detach().float()
    with torch.no_grad():
        note(f"{name}: without gradients", trained, layer(tokens)[0].float())
        for rows in (1, 24, 128):
            note(f"{name}: {rows} rows", trained[:rows], layer(tokens[:rows])[0].float())
        cuda_graphs._set_warmup_start()
        note(f"{name}: 128 rows as in a graph", trained[:128], layer(tokens[:128])[0].float())
        cuda_graphs._set_warmup_end()


def check_model(setup: Any) -> None:
    """The forward with gradients against the one without; two backward passes against each other."""
    import torch
    from megatron.core.transformer.moe import moe_utils, router

    from zero_kl.logprob import token_logprobs

    chunk = setup.model[0]
    chunk.train()
    generator = torch.Generator("cuda").manual_seed(1)
    tokens = torch.randint(300, (4, 1024), device="cuda", generator=generator)
    positions = torch.arange(1024, device="cuda").expand(4, -1)

    def forward() -> Any:
        return token_logprobs(chunk(tokens, positions, None), targets=tokens)

    def gradients() -> Any:
        chunk.zero_grad_buffer()
        out = forward()
        out.mean().backward()
        return out.detach(), torch.cat([p.main_grad.flatten() for p in chunk.parameters() if p.requires_grad])

    def scored() -> Any:
        with torch.no_grad():
            return forward()

    first, second = gradients(), gradients()
    note("log-probs with gradients, without", first[0], scored())
    note("log-probs, twice", scored(), scored())
    note("gradients, twice", first[1], second[1])
    ours, router.topk_routing_with_score_function = (
        router.topk_routing_with_score_function,
        moe_utils.topk_routing_with_score_function,
    )
    note("log-probs with gradients, without; upstream's top-k", gradients()[0], scored())
    router.topk_routing_with_score_function = ours


def main() -> None:
    """Everything in one process."""
    out, *words = sys.argv[1:]

    def job(setup: Any) -> None:
        for vocabulary in (32000, 151936, 32001):
            check_log_softmax(vocabulary)
        check_model(setup)
        for name, fields in LAYERS.items():
            check_layer(name, fields)

    try:
        serve(words or DEFAULT, job=job)
    finally:
        Path(out, "numerics.json").write_text(json.dumps(RESULTS, indent=1))


if __name__ == "__main__":
    main()
