"""The reference attention: its values, packed sequences, swapping the function, and what it refuses."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from launcher.errors import ConfigError

pytestmark = pytest.mark.usefixtures("cpu_platform")


def _module(**changes: Any) -> Any:
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.enums import AttnMaskType

    from megatron_setup.cpu.attention import CoreAttention

    sizes = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "num_query_groups": 2}
    config = TransformerConfig(**{**sizes, "attention_dropout": 0.0, **changes})
    return CoreAttention(config, layer_number=1, attn_mask_type=AttnMaskType.causal, attention_type="self")


def _query_key_value(num_tokens: int) -> list[torch.Tensor]:
    """[s, b, h, d] with two sequences, four heads and two groups."""
    fused = torch.randn(num_tokens, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    return list(fused.split([4, 2, 2], dim=2))


def test_values_are_torchs_causal_attention() -> None:
    inputs = _query_key_value(11)
    rows = (t.permute(1, 2, 0, 3) for t in inputs)
    expected = scaled_dot_product_attention(*rows, is_causal=True, enable_gqa=True).permute(2, 0, 1, 3)
    torch.testing.assert_close(_module()(*inputs, None), expected.flatten(2))


def test_packed_sequences_do_not_see_each_other() -> None:
    from megatron.core.packed_seq_params import PackedSeqParams

    module, lengths = _module(), [5, 1, 3]
    inputs = [t[:, 0] for t in _query_key_value(sum(lengths))]
    ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends)
    together = module(*inputs, None, packed_seq_params=packed)
    parts = [module(*(t[a:b, None] for t in inputs), None)[:, 0] for a, b in pairwise(ends)]
    torch.testing.assert_close(together, torch.cat(parts))


def test_use_core_swaps_and_restores_also_after_an_exception() -> None:
    from megatron_setup.cpu.attention import use_core

    def ones(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: object) -> torch.Tensor:
        return torch.ones_like(query)

    module, inputs = _module(), _query_key_value(3)
    before = module(*inputs, None)
    with pytest.raises(ZeroDivisionError), use_core(ones):
        assert module(*inputs, None).eq(1).all()
        1 / 0  # noqa: B018
    assert torch.equal(module(*inputs, None), before)


@pytest.mark.parametrize(
    "change",
    [
        {"apply_query_key_layer_scaling": True},
        {"attention_dropout": 0.1},
        {"window_size": (4, 0)},
        {"softmax_type": "off-by-one"},
    ],
    ids=str,
)
def test_what_is_not_computed_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        _module(**change)
