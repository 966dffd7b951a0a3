"""What the MoE token dispatcher needs from a tensor that is already on the CPU."""

from __future__ import annotations

from typing import Any

import torch


def maybe_move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """megatron-core's, which converts to numpy only what it moved from a GPU.

    all_to_all wants the split sizes as a list of integers, which a numpy array passes for and a tensor does not.
    """
    del record_stream  # there is one stream
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor
