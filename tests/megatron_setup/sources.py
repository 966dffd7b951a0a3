"""Models of a configuration's source for tests: imported, loaded in a layout, exported, saved as Megatron-LM saves.

All functions run inside a world (`tests.worlds`); `imported` in one that is not joined.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.compose import compose
from megatron_setup.model_source import ModelSource, resolve_source


def make_hf_folder(folder: Path, *, hf_config: dict[str, Any], dtype: str = "bfloat16") -> None:
    """A random model."""
    from megatron_setup.random_model import make_random_hf_model

    make_random_hf_model(folder, hf_config=hf_config, dtype=dtype, seed=1)


def imported(words: Sequence[str]) -> ModelSource:
    """The source of a command line, converted as the pipeline does it. Megatron's groups are gone afterwards."""
    from megatron.core import parallel_state

    from megatron_setup.convert import convert_with_bridge
    from megatron_setup.distributed import world_of_one
    from megatron_setup.model_import import import_once

    config = compose(words).config

    def convert(source: Path, target: Path) -> None:
        with world_of_one(config):
            convert_with_bridge(config, source=source, target=target)

    import_once(config, convert=convert)
    assert not parallel_state.is_initialized()
    return resolve_source(config)


def loaded(words: Sequence[str]) -> list[Any]:
    """The model of a command line with its weights, without DDP; Megatron's groups stay."""
    from megatron_setup import tables
    from megatron_setup.model_config import load_provider
    from megatron_setup.provider import finalize, set_fields
    from megatron_setup.weights import load_weights

    config = compose(words).config
    source = resolve_source(config)
    provider = load_provider(config, source=source)
    fields = tables.provider_fields(config, has_experts=bool(provider.num_moe_experts))
    set_fields(provider, fields=fields)
    finalize(provider, fields=fields)
    provider.initialize_model_parallel(seed=0)

    def load(model: list[Any]) -> list[Any]:
        load_weights(model, iteration=source.iteration)
        return model

    return provider.provide_distributed_model(wrap_with_ddp=False, pre_wrap_hook=load)


def exported(words: Sequence[str], *, target: Path) -> None:
    """Load and write as a Hugging Face folder."""
    from megatron_setup.export import export_hf

    model = loaded(words)
    export_hf(model, hf_folder=resolve_source(compose(words).config).hf_folder, target=target)


def saved_by_megatron_lm(words: Sequence[str], *, root: Path, common_pt: bool) -> None:
    """Load, and save as Megatron-LM does: megatron-core's state dict beside arguments and iteration, and a tracker.

    `common_pt`: what is no tensor lies in a file of its own, as before megatron-core 0.19.
    """
    import torch.distributed as dist
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.common import save_common
    from megatron.core.utils import unwrap_model

    (model,) = unwrap_model(loaded(words))
    folder = root / "iter_0000010"
    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    common = {"args": Namespace(num_layers=2), "checkpoint_version": 3.0, "iteration": 10}
    dist_checkpointing.save({**common, "model": model.sharded_state_dict()}, str(folder))
    if common_pt:
        save_common({"checkpoint_version": 3.0, "iteration": 10}, str(folder))
    if dist.get_rank() == 0:
        (root / "latest_checkpointed_iteration.txt").write_text("10")
