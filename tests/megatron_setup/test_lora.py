"""Adapters on real gloo ranks: what trains, the base model when they are off, adapter checkpoints, misspelt names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.errors import ConfigError
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

LORA = "model.peft.enabled=true"
DENSE, MOE = "model=tiny", "model=tiny_moe"
RECOMPUTED = ("performance.recompute_method=uniform", "performance.recompute_num_layers=1")


def _convert(words: Sequence[str], *, folder: Path) -> None:
    from tests.megatron_setup.tiny_policy import convert

    convert(words, folder=folder)


@pytest.fixture(scope="module")
def folders(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny models, converted, by the word that chooses them."""
    made: dict[str, Path] = {}
    for name in (DENSE, MOE):
        made[name] = tmp_path_factory.mktemp(name)
        run_world(_convert, num_ranks=1, words=[name], folder=made[name])
    return made


def _trained(words: Sequence[str], *, folder: Path) -> tuple[set[str], set[str]]:
    """The parameters that may train, and those that three steps changed."""
    from tests.megatron_setup.tiny_policy import bits, policy_of, train

    policy = policy_of([LORA, *words], folder=folder)
    before = bits(policy.chunk)
    train(policy, num_steps=3)
    after = bits(policy.chunk)
    trainable = {name for name, param in policy.chunk.named_parameters() if param.requires_grad}
    return trainable, {name for name in before if after[name] != before[name]}


@pytest.mark.parametrize(
    ("words", "num_ranks"),
    [
        ([DENSE, "performance.recompute_granularity=full", *RECOMPUTED], 1),
        ([DENSE, "parallelism=tp2_sp"], 2),
        ([MOE, "parallelism=ep2"], 2),
    ],
    ids=["recompute", "tp2_sp", "ep2"],
)
def test_adapters_train_and_the_base_does_not(words: list[str], num_ranks: int, folders: dict[str, Path]) -> None:
    for trainable, moved in run_world(_trained, num_ranks=num_ranks, words=words, folder=folders[words[0]]):
        assert moved == trainable
        assert {name.rpartition(".adapter.")[2] for name in moved} == {"linear_in.weight", "linear_out.weight"}
        assert any("linear_qkv" in name for name in moved)
        assert any("linear_fc2" in name for name in moved)


@dataclass(frozen=True, kw_only=True)
class Switched:
    """Hashes of the logits without LoRA; with adapters off (at once, nested, after an inner block); with them on
    (before, after, after an error)."""

    base: str
    off: list[str]
    on: list[str]


def _switched(words: Sequence[str], *, folder: Path) -> Switched:
    from megatron_setup.lora import adapters_disabled
    from tests.megatron_setup.tiny_policy import logits_of, policy_of, tensor_bits, train

    base = tensor_bits(logits_of(policy_of(words, folder=folder)))
    policy = policy_of([LORA, *words], folder=folder)
    train(policy, num_steps=2)

    def now() -> str:
        return tensor_bits(logits_of(policy))

    on, off = [now()], []
    with adapters_disabled(policy.model):
        off.append(now())
        with adapters_disabled(policy.model):
            off.append(now())
        off.append(now())
    on.append(now())
    try:
        with adapters_disabled(policy.model):
            raise KeyError
    except KeyError:
        on.append(now())
    return Switched(base=base, off=off, on=on)


@pytest.mark.parametrize(("words", "num_ranks"), [([DENSE], 1), ([MOE, "parallelism=tp2_sp"], 2)])
def test_adapters_off_is_the_base_bit_for_bit(words: list[str], num_ranks: int, folders: dict[str, Path]) -> None:
    for switched in run_world(_switched, num_ranks=num_ranks, words=words, folder=folders[words[0]]):
        assert set(switched.off) == {switched.base}
        assert len(set(switched.on)) == 1
        assert switched.base not in switched.on


def _distance_from_merged(folder: Path) -> tuple[float, float]:
    """Largest difference of the logits with adapters from those with the merged weights, and from the base's."""
    import torch
    from megatron.bridge.peft.lora_layers import LoRALinear

    from megatron_setup.lora import adapters_disabled
    from tests.megatron_setup.tiny_policy import convert, logits_of, policy_of

    words = ["model=tiny", "precision=fp32"]
    convert(words, folder=folder)
    policy = policy_of([LORA, *words, "model.peft.lora_B_init_method=xavier"], folder=folder)
    with torch.no_grad():
        adapted = logits_of(policy)
        with adapters_disabled(policy.model):
            base = logits_of(policy)
        for module in policy.chunk.modules():
            if isinstance(module, LoRALinear):
                module.to_wrap.weight.copy_(module.weight)
        with adapters_disabled(policy.model):
            merged = logits_of(policy)
    return (adapted - merged).abs().max().item(), (adapted - base).abs().max().item()


def test_an_adapter_reads_what_its_linear_reads(tmp_path: Path) -> None:
    """A linear with its norm in one module is the trap: the adapter must read what the norm made."""
    ((merged, base),) = run_world(_distance_from_merged, num_ranks=1, folder=tmp_path)
    assert merged < 1e-4 < 1e-1 < base


def _saved_and_loaded(folder: Path, *, target: Path) -> tuple[set[str], bool]:
    """The keys of an adapter checkpoint as Bridge filters it, and whether a fresh model has its adapters again."""
    from megatron.bridge.peft.utils import load_peft_adapter_checkpoint
    from megatron.bridge.training.checkpointing import apply_peft_adapter_filter_to_state_dict
    from megatron.core import dist_checkpointing

    from megatron_setup.lora import bridge_lora
    from tests.megatron_setup.tiny_policy import bits, policy_of, train

    policy = policy_of([LORA], folder=folder)
    lora = bridge_lora(policy.config)
    assert lora is not None
    train(policy, num_steps=2)
    target.mkdir()
    state = apply_peft_adapter_filter_to_state_dict({"model": policy.chunk.sharded_state_dict()}, lora)
    dist_checkpointing.save(state, str(target))
    fresh = policy_of([LORA], folder=folder)
    assert bits(fresh.chunk) != bits(policy.chunk)
    load_peft_adapter_checkpoint(fresh.chunk, target, lora)
    return set(state["model"]), bits(fresh.chunk) == bits(policy.chunk)


def test_a_checkpoint_has_the_adapters_only(folders: dict[str, Path], tmp_path: Path) -> None:
    ((keys, equal),) = run_world(_saved_and_loaded, num_ranks=1, folder=folders[DENSE], target=tmp_path / "saved")
    assert keys
    assert all(".adapter." in key for key in keys)
    assert equal


def _refusal(words: Sequence[str], *, folder: Path) -> str:
    from tests.megatron_setup.tiny_policy import policy_of

    try:
        _ = policy_of([LORA, *words], folder=folder).model
    except ConfigError as error:
        return str(error)
    return ""


MISSPELT = {
    "model.peft.target_modules=[linear_qvk,linear_fc1]": [
        "error: model.peft.target_modules names linear_qvk",
        "nearest: linear_qkv",
        "hint: model.peft.target_modules=[linear_qkv,linear_fc1]",
    ],
    "model.peft.target_modules=[] model.peft.exclude_modules=[output_layr]": [
        "error: model.peft.exclude_modules names output_layr",
        "hint: model.peft.exclude_modules=[output_layer]",
    ],
    "model.peft.target_modules=[mlp]": ["error: model.peft.target_modules is ['mlp']", "LoRA needs linear layers"],
}
"""What is typed, and parts of the refusal."""


def _refusals(folder: Path) -> dict[str, str]:
    from tests.megatron_setup.tiny_policy import policy_of

    texts: dict[str, str] = {}
    for words in MISSPELT:
        try:
            policy_of([LORA, *words.split()], folder=folder)
        except ConfigError as error:
            texts[words] = str(error)
    return texts


def test_names_that_match_nothing_are_refused(folders: dict[str, Path]) -> None:
    (texts,) = run_world(_refusals, num_ranks=1, folder=folders[DENSE])
    for words, parts in MISSPELT.items():
        for part in parts:
            assert part in texts[words]


def test_every_linear_but_the_excluded_gets_an_adapter(folders: dict[str, Path]) -> None:
    words = [DENSE, "model.peft.target_modules=[]", "model.peft.exclude_modules=[output_layer,linear_fc1]"]
    ((trainable, _),) = run_world(_trained, num_ranks=1, words=words, folder=folders[DENSE])
    assert {name.rpartition(".adapter.")[0].rpartition(".")[2] for name in trainable} == {
        "linear_qkv",
        "linear_proj",
        "linear_fc2",
    }


def test_off_is_no_lora() -> None:
    from megatron_setup.lora import bridge_lora

    assert bridge_lora(compose([]).config) is None


def test_bridge_gets_every_field() -> None:
    from megatron_setup.lora import bridge_lora

    words = [
        "model.peft.target_modules=[linear_proj]",
        "model.peft.exclude_modules=[x]",
        "model.peft.dim=8",
        "model.peft.alpha=16",
        "model.peft.dropout=0.5",
        "model.peft.dropout_position=post",
        "model.peft.lora_A_init_method=kaiming",
        "model.peft.lora_B_init_method=normal",
        "model.peft.a2a_experimental=true",
    ]
    lora = bridge_lora(compose([LORA, *words]).config)
    assert lora is not None
    asked = {word.partition("=")[0].rpartition(".")[2]: word.partition("=")[2] for word in words}
    found = {name: str(getattr(lora, name)).replace("'", "") for name in asked}
    assert found == {**asked, "a2a_experimental": "True"}
