"""Is what was asked for in force? The patches of the backend, the environment variables of the recipe."""

from __future__ import annotations

import os
from collections.abc import Callable

from launcher.errors import NodeError
from launcher.patches import prove
from zero_kl.environment import environment
from zero_kl.kernels import flash, moe, te_native
from zero_kl.selftest.bench import Bench


def check_environment(bench: Bench) -> str | None:
    """The first variable that this process has with another value than the recipe's."""
    for name, wanted in environment(bench.config).items():
        found = os.environ.get(name, "unset")
        if found != wanted:
            return f"{name} is {found}, not {wanted}"
    return None


def check_moe_patches(bench: Bench) -> str | None:
    """megatron-core's permute and unpermute are ours."""
    del bench
    return _refusal(lambda: prove(moe.PATCHES))


def check_flash_attention(bench: Bench) -> str | None:
    """megatron-core takes the installed FlashAttention-4 for present."""
    del bench
    from megatron.core.transformer import attention

    refusal = _refusal(lambda: prove(flash.patches()))
    return refusal or (None if attention.HAVE_FA4 else "megatron-core takes flash-attn-4 for absent (HAVE_FA4)")


def check_workspace(bench: Bench) -> str | None:
    """Transformer Engine's workspace function is ours, and the workspaces that its GEMMs get are empty."""
    del bench
    return _refusal(lambda: prove(te_native.PATCHES)) or _refusal(te_native.check_starved)


def _refusal(check: Callable[[], None]) -> str | None:
    try:
        check()
    except NodeError as error:
        return str(error).removeprefix("error: ").partition("\n")[0]
    return None
