"""Transformer Engine's FusedAdam in plain torch: its state layout and its arithmetic, without its kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class FusedAdam(torch.optim.Optimizer):
    """Adam with the step count in the parameter group, as FusedAdam keeps it.

    megatron-core's distributed optimizer reads the step from torch's AdamW out of `state`, which is empty before the
    first step, so with AdamW a fresh optimizer cannot load a checkpoint (`assert len(steps) == 1`, megatron-core
    0.19.2 optimizer/distrib_optimizer.py).
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
        capturable: bool = False,
    ) -> None:
        assert not capturable, "optimizer_cuda_graph needs a GPU"
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.adam_w_mode = adam_w_mode

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update of every parameter that has a gradient."""
        assert closure is None, "Megatron passes no closure"
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, group=group)

    def _update(self, param: torch.Tensor, *, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        decay = group["weight_decay"]
        state = self.state[param]
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
        grad = param.grad if self.adam_w_mode else param.grad + decay * param
        state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        mean = state["exp_avg"] / (1 - beta1 ** group["step"])
        root = (state["exp_avg_sq"] / (1 - beta2 ** group["step"])).sqrt()
        update = mean / (root + group["eps"])
        param.sub_(update + decay * param if self.adam_w_mode else update, alpha=group["lr"])
