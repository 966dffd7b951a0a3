"""Keys whose duty is not built yet. Each is refused when it is set, so that no key is accepted and ignored.

Pure data: when a duty is built, its entry here goes away with its codes. Keys that nothing reads under some condition
are rows of their own tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from launcher.keys import as_typed, keys_of, plain
from launcher.requirement import Condition, Finding, Requirement, Subject

THIS_VERSION = Condition(who="this version", text="always", test=lambda _: True)


@dataclass(frozen=True)
class AsInSchema:
    """The key has the schema's default. An empty mapping cannot be typed: the hints take every entry out."""

    default: Any

    @property
    def text(self) -> str:
        return as_typed(self.default)

    def find(self, subject: Subject, *, key: str) -> Finding | None:
        found = plain(subject.value(key))
        if found == self.default:
            return None
        hints = (f"{key}={self.text}",)
        if isinstance(found, dict):
            hints = tuple(f"~{key}.{name}" for name in cast(dict[str, Any], found))
        return Finding(found=as_typed(found), wanted=self.text, hints=hints)


@dataclass(frozen=True, kw_only=True)
class Duty:
    """Something the schema has keys for. `keys` are by code; `why` is what this version does instead."""

    why: str
    source: str
    keys: Mapping[str, str]


_STEPS = "megatron_setup/apply.py, STEPS"
_SCORE = "zero_kl/score.py"


def _numbered(first: int, *, section: str, names: str) -> dict[str, str]:
    """Codes from `first` on for the section's keys, in the order written. Append only: a code is never reused."""
    return {f"PD{first + i}": f"{section}.{name}" for i, name in enumerate(names.split())}


DUTIES: tuple[Duty, ...] = (
    Duty(
        why="this version records no routing in generation",
        source=_SCORE,
        keys={"PD150": "moe.moe_enable_routing_replay"},
    ),
    Duty(
        why="this version's report has no figures of the router",
        source="zero_kl/verdict.py",
        keys={"PD151": "moe.moe_per_layer_logging"},
    ),
    Duty(
        why="the combined schedule wants a forward step that returns a plan, and this version's returns logits",
        source=f"{_SCORE}; megatron-core 0.19.2 pipeline_parallel/combined_1f1b.py",
        keys={"PD152": "moe.overlap_moe_expert_parallel_comm"},
    ),
    Duty(
        why="this version pads rows and packs nothing",
        source="zero_kl/batches.py",
        keys=_numbered(161, section="performance.sequence_packing", names="enabled train_mb_tokens logprob_mb_tokens"),
    ),
    Duty(
        why="a microbatch is performance.micro_batch_size rows in this version",
        source="zero_kl/batches.py",
        keys=_numbered(
            164,
            section="performance.dynamic_batching",
            names="enabled train_mb_tokens logprob_mb_tokens sequence_length_round",
        ),
    ),
    Duty(
        why="this version takes log-probabilities of whole rows from fp32 logits",
        source="zero_kl/logprob.py",
        keys=_numbered(
            168, section="performance", names="logprob_chunk_size defer_fp32_logits use_fused_linear_logprobs"
        ),
    ),
    Duty(
        why="Bridge's GPT providers build Transformer Engine's layers whatever it says, so another value changes the "
        "configuration and not the model",
        source="megatron-bridge 0.6.2 models/gpt_provider.py, default_layer_spec",
        keys={"PD171": "performance.transformer_impl"},
    ),
    Duty(
        why="the training forward is not captured in this version",
        source=_SCORE,
        keys=_numbered(172, section="performance", names="cuda_graph_impl cuda_graph_modules cuda_graph_warmup_steps"),
    ),
    Duty(
        why="this version empties no cache between steps",
        source="launcher/jobs/mismatch.py",
        keys={"PD175": "performance.empty_unused_memory_level"},
    ),
    Duty(
        why="generation runs on training's ranks in this version",
        source="launcher/jobs/mismatch.py",
        keys={"PD230": "generation.colocated"},
    ),
)


def _rows(duty: Duty) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(
            code=code,
            key=key,
            want=AsInSchema(keys_of()[key].default),
            when=THIS_VERSION,
            why=duty.why,
            source=duty.source,
        )
        for code, key in duty.keys.items()
    )


REQUIREMENTS: tuple[Requirement, ...] = tuple(row for duty in DUTIES for row in _rows(duty))
