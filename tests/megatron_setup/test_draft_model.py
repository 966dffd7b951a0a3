"""The draft model on real gloo ranks: it learns, the policy does not notice, and transformers' Llama is the oracle."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.compose import compose
from launcher.errors import ConfigError
from megatron_setup.draft import aux_layers
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

DRAFT = "model.draft.enabled=true"
DENSE, MOE, EXACT = "model=tiny", "model=tiny_moe", "precision=fp32"
VOCABULARY = 512


def _convert(words: Sequence[str], *, folder: Path) -> None:
    from tests.megatron_setup.tiny_policy import convert

    convert(words, folder=folder)


@pytest.fixture(scope="module")
def folders(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny models, converted, by the word that chooses them."""
    made: dict[str, Path] = {}
    for name in (DENSE, MOE, EXACT):
        made[name] = tmp_path_factory.mktemp(name)
        run_world(_convert, num_ranks=1, words=[name], folder=made[name])
    return made


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The policy's bits with and without a draft, the draft's losses, its parameters that no step moved, and
    the bits of the one that all ranks hold whole."""

    beside_a_draft: dict[str, str]
    alone: dict[str, str]
    losses: list[float]
    unmoved: set[str]
    fc: str


def _trained(words: Sequence[str], *, folder: Path) -> Trained:
    from tests.megatron_setup.tiny_policy import bits, policy_of, train

    alone = policy_of(words, folder=folder)
    train(alone, num_steps=3)
    policy = policy_of([DRAFT, *words], folder=folder)
    before = bits(policy.chunk)
    losses = train(policy, num_steps=3)
    after = bits(policy.chunk)
    drafted = {name for name in after if name.startswith("draft.")}
    return Trained(
        beside_a_draft={name: after[name] for name in after.keys() - drafted},
        alone=bits(alone.chunk),
        losses=losses,
        unmoved={name for name in drafted if after[name] == before[name]},
        fc=after["draft.fc.weight"],
    )


@pytest.mark.parametrize(
    ("words", "num_ranks"),
    [
        ([DENSE, "model.draft.num_layers=2", "optimizer.clip_grad=0.1"], 1),
        ([MOE, "parallelism=tp2_sp"], 2),
        ([DENSE, "parallelism=dp2", "optimizer.clip_grad=0"], 2),
        (
            [
                DENSE,
                "performance.recompute_granularity=full",
                "performance.recompute_method=uniform",
                "performance.recompute_num_layers=1",
            ],
            1,
        ),
    ],
    ids=["clipped", "moe_tp2_sp", "dp2", "recompute"],
)
def test_the_draft_learns_and_the_policy_does_not_notice(
    words: list[str], num_ranks: int, folders: dict[str, Path]
) -> None:
    """Bit for bit, clipping included: the draft's gradients have a norm of their own."""
    results = run_world(_trained, num_ranks=num_ranks, words=words, folder=folders[words[0]])
    assert len({trained.fc for trained in results}) == 1
    for trained in results:
        assert trained.beside_a_draft == trained.alone
        assert trained.losses == sorted(trained.losses, reverse=True)
        assert trained.losses[-1] < trained.losses[0]
        assert trained.unmoved == set()


def _resumed(folder: Path, *, target: Path) -> tuple[set[str], bool, bool]:
    """Keys of the draft in a checkpoint, and whether a fresh model with it takes the unbroken run's next step."""
    from megatron.core import dist_checkpointing

    from tests.megatron_setup.tiny_policy import bits, policy_of, train

    def state_of(policy: Any, *, is_loading: bool) -> dict[str, Any]:
        model = policy.chunk.sharded_state_dict()
        optimizer = policy.optimizer.sharded_state_dict(
            model, is_loading=is_loading, metadata={"distrib_optim_sharding_type": "fully_reshardable"}
        )
        return {"model": model, "optimizer": optimizer}

    policy = policy_of([DRAFT, "model.draft.num_layers=2"], folder=folder)
    train(policy, num_steps=2)
    saved = state_of(policy, is_loading=False)
    target.mkdir()
    dist_checkpointing.save(saved, str(target))
    at_save = bits(policy.chunk)
    train(policy, num_steps=1)

    fresh = policy_of([DRAFT, "model.draft.num_layers=2"], folder=folder)
    assert bits(fresh.chunk) != at_save
    loaded = dist_checkpointing.load(state_of(fresh, is_loading=True), str(target))
    fresh.chunk.load_state_dict(loaded["model"])
    fresh.optimizer.load_state_dict(loaded["optimizer"])
    equal = bits(fresh.chunk) == at_save
    train(fresh, num_steps=1)
    return {key for key in saved["model"] if key.startswith("draft.")}, equal, bits(fresh.chunk) == bits(policy.chunk)


def test_the_draft_is_saved_and_resumed_with_the_policy(folders: dict[str, Path], tmp_path: Path) -> None:
    ((keys, equal, next_step_equal),) = run_world(
        _resumed, num_ranks=1, folder=folders[DENSE], target=tmp_path / "saved"
    )
    assert {"draft.fc.weight", "draft.output_layer.weight", "draft.decoder.layers.1.mlp.linear_fc2.weight"} <= keys
    assert equal
    assert next_step_equal


def _captured(folder: Path) -> dict[str, int]:
    """How many hidden states are held, by when one looks."""
    import torch

    from megatron_setup.draft_model import draft_loss
    from tests.megatron_setup.tiny_policy import batch, logits_of, policy_of

    policy = policy_of([DRAFT], folder=folder)
    capture, data = policy.chunk.draft.capture, batch()
    held: dict[str, int] = {}
    logits = logits_of(policy)
    held["training"] = len(capture.states)
    assert not any(state.requires_grad for state in capture.states.values())
    draft_loss(policy.chunk, logits=logits, targets=data.targets, positions=data.positions, mask=data.mask)
    held["after the loss"] = len(capture.states)
    with torch.no_grad():
        logits_of(policy)
    held["scoring"] = len(capture.states)
    policy.chunk.eval()
    policy.chunk(data.tokens, data.positions, None)
    held["evaluation"] = len(capture.states)
    return held


def test_nothing_is_captured_but_in_training(folders: dict[str, Path]) -> None:
    (held,) = run_world(_captured, num_ranks=1, folder=folders[DENSE])
    assert held == {"training": 2, "after the loss": 0, "scoring": 0, "evaluation": 0}


def _loss_parts(folder: Path) -> tuple[float, float, float]:
    """The loss, the same by hand in float64, and with nothing to learn from."""
    import torch

    from megatron_setup.draft_model import draft_loss
    from tests.megatron_setup.tiny_policy import batch, logits_of, policy_of

    policy, data = policy_of([DRAFT, EXACT], folder=folder), batch()
    draft = policy.chunk.draft
    logits = logits_of(policy)
    states = list(draft.capture.states.values())

    def loss(mask: torch.Tensor) -> float:
        for index, state in enumerate(states):
            draft.capture.states[index] = state
        arguments = {"logits": logits, "targets": data.targets, "positions": data.positions, "mask": mask}
        return draft_loss(policy.chunk, **arguments).item()

    found, nothing = loss(data.mask), loss(torch.zeros_like(data.mask))
    embeddings = policy.chunk.embedding(input_ids=data.targets, position_ids=data.positions)
    guess = draft(states, embeddings=embeddings, length=data.targets.shape[1]).transpose(0, 1).double()
    by_hand = 0.0
    for row in range(len(data.mask)):
        for position in range(data.mask.shape[1] - 1):
            if data.mask[row, position + 1]:
                policys = torch.softmax(logits[row, position + 1].double(), dim=0)
                by_hand -= (policys * torch.log_softmax(guess[row, position], dim=0)).sum().item()
    return found, by_hand, nothing


def test_the_loss_is_the_cross_entropy_against_the_next_position(folders: dict[str, Path]) -> None:
    ((found, by_hand, nothing),) = run_world(_loss_parts, num_ranks=1, folder=folders[EXACT])
    assert found == pytest.approx(by_hand, rel=1e-6)
    assert nothing == 0.0


def _eagle(folder: Path, *, num_layers: int, draft_vocab_size: int, midlayer: bool) -> Any:
    """modelopt's own EAGLE-3 module with random weights, also written to the folder as its exporter names them.

    For its weights and their names: its forward pass norms the first layer's hidden state twice, unlike the EAGLE
    authors', vLLM's, and modelopt's for Megatron.
    """
    import torch
    from modelopt.torch.speculative.plugins.modeling_eagle import EagleModule
    from safetensors.torch import save_file
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=num_layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=VOCABULARY,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        draft_vocab_size=draft_vocab_size,
        use_last_layernorm=True,
        has_lm_head=True,
        use_aux_hidden_state=True,
        eagle_aux_hidden_state_layer_ids=[0, 2],
        eagle_decoder_type="llama",
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    module = EagleModule(config, LlamaDecoderLayer)
    for name, param in module.named_parameters():
        torch.nn.init.normal_(param, mean=1.0 if "norm" in name else 0.0, std=0.3)
    module.layers[0].self_attn._forward_pre_hooks.clear()
    if hasattr(module, "d2t"):
        module.d2t.copy_(torch.arange(draft_vocab_size))  # every second token
    module._maybe_init_rope()
    names = {"layers.0.": "midlayer."} if midlayer else {"": ""}
    state = {name.replace(*next(iter(names.items()))): t.contiguous() for name, t in module.state_dict().items()}
    folder.mkdir(exist_ok=True)
    save_file({name: t for name, t in state.items() if "rotary" not in name}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return module


def _eagles_logits(module: Any, *, fused: Any, embeddings: Any) -> Any:
    """EAGLE-3 as its authors compute it, of transformers' Llama parts; all [b, s, ...]."""
    import torch

    rows, length, _ = fused.shape
    rope = module.rotary_emb(fused, torch.arange(length)[None])
    mask = torch.full((length, length), float("-inf")).triu(1).expand(rows, 1, length, length)
    hidden = fused
    for index, layer in enumerate(module.layers):
        if index == 0:
            normed = torch.cat((layer.input_layernorm(embeddings), layer.hidden_norm(hidden)), dim=-1)
        else:
            normed = layer.input_layernorm(hidden)
        hidden = hidden + layer.self_attn(hidden_states=normed, position_embeddings=rope, attention_mask=mask)[0]
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return module.lm_head(module.norm(hidden))


def _words_of(eagle: Path, *, num_layers: int) -> list[str]:
    return [
        DRAFT,
        EXACT,
        f"model.draft.hf_path={eagle}",
        f"model.draft.num_layers={num_layers}",
        "model.draft.aux_layer_indices=[0,2]",
    ]


def _against_llama(
    words: Sequence[str], *, folder: Path, eagle: Path, num_layers: int, draft_vocab_size: int, midlayer: bool
) -> tuple[float, float]:
    """Largest difference of our draft's logits from transformers', and the largest logit."""
    import torch
    import torch.distributed as dist

    from megatron_setup.draft_model import _whole_rows
    from tests.megatron_setup.tiny_policy import policy_of

    module = None
    if dist.get_rank() == 0:
        module = _eagle(eagle, num_layers=num_layers, draft_vocab_size=draft_vocab_size, midlayer=midlayer)
    dist.barrier()
    policy = policy_of([*_words_of(eagle, num_layers=num_layers), *words], folder=folder)
    generator = torch.Generator().manual_seed(1)
    states = [torch.randn(12, 3, 64, generator=generator) for _ in range(2)]
    embeddings = torch.randn(12, 3, 64, generator=generator)
    with torch.no_grad():
        ours = _whole_rows(policy.chunk.draft(states, embeddings=embeddings, length=12)).transpose(0, 1)
        if module is None:
            return 0.0, 1.0
        fused = module.fc(torch.cat(states, dim=-1)).transpose(0, 1)
        theirs = _eagles_logits(module, fused=fused, embeddings=embeddings.transpose(0, 1))
    return (ours - theirs).abs().max().item(), theirs.abs().max().item()


@pytest.mark.parametrize(
    ("words", "num_ranks", "eagle"),
    [
        ([], 1, {"num_layers": 2, "draft_vocab_size": VOCABULARY, "midlayer": False}),
        (["parallelism=tp2"], 2, {"num_layers": 1, "draft_vocab_size": VOCABULARY // 2, "midlayer": True}),
    ],
    ids=["two layers", "tp2, fewer tokens, midlayer"],
)
def test_a_loaded_draft_computes_what_eagle_3_computes(
    words: list[str], num_ranks: int, eagle: dict[str, Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    results = run_world(
        _against_llama, num_ranks=num_ranks, words=words, folder=folders[EXACT], eagle=tmp_path / "eagle", **eagle
    )
    for difference, largest in results:
        assert largest > 0.5
        assert difference < 1e-4 * largest


def _trained_on_fewer_tokens(folder: Path, *, eagle: Path) -> list[float]:
    from tests.megatron_setup.tiny_policy import policy_of, train

    _eagle(eagle, num_layers=1, draft_vocab_size=VOCABULARY // 2, midlayer=True)
    return train(policy_of(_words_of(eagle, num_layers=1), folder=folder), num_steps=6)


def test_a_draft_of_fewer_tokens_learns(folders: dict[str, Path], tmp_path: Path) -> None:
    (losses,) = run_world(_trained_on_fewer_tokens, num_ranks=1, folder=folders[EXACT], eagle=tmp_path / "eagle")
    assert losses[-1] < losses[0]


def _refusals(folder: Path, *, eagle: Path) -> dict[str, str]:
    """What is wrong with a folder, and the error's text."""
    from safetensors.torch import load_file, save_file

    _eagle(eagle, num_layers=1, draft_vocab_size=VOCABULARY, midlayer=True)
    weights, config = load_file(eagle / "model.safetensors"), json.loads((eagle / "config.json").read_text())
    without_fc = {name: tensor for name, tensor in weights.items() if name != "fc.weight"}
    broken: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "names": ({**without_fc, "fusion.weight": weights["fc.weight"]}, config),
        "shape": ({**weights, "fc.weight": weights["fc.weight"][:, :64].contiguous()}, config),
        "width": (weights, {**config, "hidden_size": 128}),
        "layers": (weights, {**config, "num_hidden_layers": 2}),
        "rope": (weights, {**config, "rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0}}),
    }
    texts: dict[str, str] = {}
    for what, (changed_weights, changed_config) in broken.items():
        save_file(changed_weights, eagle / "model.safetensors")
        (eagle / "config.json").write_text(json.dumps(changed_config))
        texts[what] = _refusal(_words_of(eagle, num_layers=1), folder=folder)
    (eagle / "config.json").unlink()
    texts["no config"] = _refusal(_words_of(eagle, num_layers=1), folder=folder)
    return texts


def _refusal(words: Sequence[str], *, folder: Path) -> str:
    from tests.megatron_setup.tiny_policy import policy_of

    try:
        policy_of(words, folder=folder)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_draft_that_does_not_fit_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    (texts,) = run_world(_refusals, num_ranks=1, folder=folders[EXACT], eagle=tmp_path / "eagle")
    assert "missing: fc.weight; not known: fusion.weight" in texts["names"]
    assert "fc.weight gives [64, 64], the model has [64, 128]" in texts["shape"]
    assert "hidden_size is 128, needed is 64" in texts["width"]
    assert "num_hidden_layers is 2, needed is 1" in texts["layers"]
    assert "rope_type is yarn, needed is default" in texts["rope"]
    assert "a local folder with a readable config.json is needed" in texts["no config"]


def _exported(folder: Path) -> tuple[bool, bool]:
    """Whether an export of the policy gives the folder's bits back, and whether the draft is there afterwards."""
    from megatron.bridge import AutoBridge
    from safetensors.torch import load_file

    from megatron_setup.draft_model import draft_detached
    from tests.megatron_setup.tiny_policy import policy_of, tensor_bits

    policy, hf = policy_of([DRAFT], folder=folder), folder / "hf"
    draft = policy.chunk.draft
    with draft_detached(policy.model):
        weights = dict(AutoBridge.from_hf_pretrained(str(hf)).export_hf_weights(policy.model, show_progress=False))
    original = {name: tensor for file in hf.glob("*.safetensors") for name, tensor in load_file(file).items()}
    bits = [{name: tensor_bits(tensor) for name, tensor in found.items()} for found in (weights, original)]
    return bits[0] == bits[1], policy.chunk.draft is draft


def test_the_policy_is_exported_without_its_draft(folders: dict[str, Path]) -> None:
    ((equal, is_back),) = run_world(_exported, num_ranks=1, folder=folders[DENSE])
    assert equal
    assert is_back


def _foreign_policy() -> str:
    import torch

    from megatron_setup.draft_model import draft_hook

    model: Any = [torch.nn.Linear(1, 1)]
    try:
        draft_hook(compose([DRAFT]).config, provider=None)(model)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_policy_without_a_gpt_models_layers_is_refused() -> None:
    (text,) = run_world(_foreign_policy, num_ranks=1)
    assert "this model is a Linear" in text
    assert "hint: model.draft.enabled=false" in text


@pytest.mark.parametrize(
    ("num_layers", "layers"), [(32, (1, 15, 28)), (4, (0, 1)), (1, (0,)), (2, (0, 1)), (80, (1, 39, 76))]
)
def test_layers_are_an_early_a_middle_and_a_late_one(num_layers: int, layers: tuple[int, ...]) -> None:
    assert aux_layers(compose([DRAFT]).config, num_layers=num_layers) == layers


def test_given_layers_are_taken() -> None:
    config = compose([DRAFT, "model.draft.aux_layer_indices=[0,3]"]).config
    assert aux_layers(config, num_layers=4) == (0, 3)
