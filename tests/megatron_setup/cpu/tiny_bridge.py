"""Tiny Hugging Face models through Megatron-Bridge: convert, load in a layout, export, sample and score.

Import only after the CPU platform is installed.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.bridge import AutoBridge
from megatron.bridge.inference.text_generation import build_tokenizer
from megatron.core.transformer.module import MegatronModule
from safetensors.torch import load_file

from launcher.schema import GenerationConfig
from megatron_setup.cpu.attention import use_core
from megatron_setup.random_model import make_random_hf_model
from tests.hf_configs import HF_CONFIGS
from tests.megatron_setup.example_layouts import plain_config
from zero_kl import cpu_kernels
from zero_kl.generate import generate
from zero_kl.logprob import token_logprobs
from zero_kl.score import score

PROMPT_LENGTHS = (5, 33, 1, 17, 64)
NUM_NEW_TOKENS = 24


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the model is split."""

    tp: int = 1
    pp: int = 1
    ep: int = 1


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Sampled tokens, and those whose log-probability differs in any bit from the training forward's.

    Scored in padded batches without gradients, and (on one rank) alone with gradients; None where not scored.
    """

    num_tokens: int
    num_batched_differ: int | None
    num_alone_differ: int | None


def convert(*, name: str, dtype: str, hf_folder: Path, megatron_folder: Path) -> None:
    """Make the random model and import it with Bridge's own entry point."""
    make_random_hf_model(hf_folder, hf_config=HF_CONFIGS[name], dtype=dtype, seed=1)
    AutoBridge.import_ckpt(str(hf_folder), str(megatron_folder))


def export(*, hf_folder: Path, megatron_folder: Path, target: Path, layout: Layout) -> None:
    """Load the conversion in a layout and write it as a Hugging Face checkpoint."""
    bridge, model = _load(hf_folder, megatron_folder=megatron_folder, layout=layout)
    bridge.save_hf_pretrained(model, str(target), show_progress=False)


def weights(hf_folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a Hugging Face checkpoint, by name."""
    return {name: tensor for file in hf_folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def sample_and_score(*, hf_folder: Path, megatron_folder: Path, layout: Layout, invariant: bool) -> Agreement:
    """Sample with the dynamic engine, then score the same tokens with the training forward."""
    _, model = _load(hf_folder, megatron_folder=megatron_folder, layout=layout)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 300, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]
    with ExitStack() as stack:
        if invariant:
            stack.enter_context(cpu_kernels.batch_invariant())
            stack.enter_context(use_core(cpu_kernels.attention))
        sampled = generate(
            model[0],
            prompts=prompts,
            tokenizer=build_tokenizer(str(hf_folder), False),
            config=replace(plain_config(), generation=GenerationConfig(max_requests=4, max_new_tokens=NUM_NEW_TOKENS)),
            on_finished=lambda done, total: None,
        )
        sequences = [[*prompt, *response.tokens] for prompt, response in zip(prompts, sampled, strict=True)]
        batched = score(
            model, sequences=sequences, micro_batch_size=3, row_multiple=1, on_batch=lambda done, total: None
        )
        alone = [_with_grad(model[0], sequence) for sequence in sequences] if dist.get_world_size() == 1 else []
    generated = torch.cat([response.logprobs for response in sampled])
    return Agreement(
        num_tokens=generated.numel(),
        num_batched_differ=_count_differing(generated, batched),
        num_alone_differ=_count_differing(generated, alone),
    )


def _with_grad(model: MegatronModule, sequence: list[int]) -> torch.Tensor:
    """Log-probabilities as a training step computes them: one sequence, gradients on."""
    tokens = torch.tensor([sequence])
    logits = model(tokens[:, :-1], torch.arange(len(sequence) - 1)[None], None)
    assert logits.requires_grad
    return token_logprobs(logits, targets=tokens[:, 1:])[0].detach()


def _count_differing(generated: torch.Tensor, scored: list[torch.Tensor]) -> int | None:
    """Response tokens whose log-probabilities differ in any bit; None where this rank has no scores."""
    if not scored:
        return None
    responses = torch.cat([row[-NUM_NEW_TOKENS:] for row in scored])
    return int((generated.view(torch.int32) != responses.view(torch.int32)).sum())


def _load(hf_folder: Path, *, megatron_folder: Path, layout: Layout) -> tuple[Any, list[MegatronModule]]:
    bridge = AutoBridge.from_hf_pretrained(str(hf_folder))
    provider = bridge.to_megatron_provider(load_weights=False)
    overrides: dict[str, Any] = {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": 1 if layout.ep > 1 else layout.tp,
        "pipeline_dtype": provider.params_dtype,
        "inference_moe_token_dispatcher_type": "nccl",  # the default allocates NVLink memory, used or not
    }
    for name, value in overrides.items():
        setattr(provider, name, value)
    provider.finalize()
    provider.initialize_model_parallel(seed=0)
    return bridge, bridge.load_megatron_model(str(megatron_folder), mp_overrides=overrides, wrap_with_ddp=False)
