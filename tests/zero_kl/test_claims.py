"""The claims on real Megatron: all hold with batch-invariant kernels, and each has a sweep that shows their absence."""

from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from tests.tiny_runs import Checkpoint, built, converted
from tests.worlds import run_world
from zero_kl.evidence import Claim

pytestmark = pytest.mark.usefixtures("cpu_platform")

PROMPT_LENGTHS = (1, 4, 9, 17, 2)


@pytest.fixture(scope="module", params=["model=tiny", "model=tiny_moe"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return converted([request.param, "precision=fp32"], folder=tmp_path_factory.mktemp("claims"))


def _claims(checkpoint: Checkpoint, *, invariant: bool, words: Sequence[str] = ()) -> tuple[Claim, ...]:
    from megatron.bridge.inference.text_generation import HFTokenizerAdapter
    from megatron.core import parallel_state
    from transformers import AutoTokenizer

    from megatron_setup.cpu.attention import use_core
    from zero_kl.claims import Subjects, check_claims
    from zero_kl.cpu_kernels import attention, batch_invariant

    run = built(words, checkpoint=checkpoint)
    prompts = [[3 + i + 7 * j for j in range(n)] for i, n in enumerate(PROMPT_LENGTHS)]
    subjects = Subjects(
        model=run.model,
        config=run.config,
        tokenizer=HFTokenizerAdapter(AutoTokenizer.from_pretrained(str(checkpoint.hf))),
        prompts=prompts,
        sequences=[[*p, 11, 12, 13, 14] for p in prompts],
    )
    with ExitStack() as stack:
        if invariant:
            stack.enter_context(batch_invariant())
            stack.enter_context(use_core(attention))
        claims = check_claims(subjects, on_sweep=lambda done, total: None)
    parallel_state.destroy_model_parallel()
    return claims


def test_every_claim_holds_in_every_sweep(checkpoint: Checkpoint) -> None:
    (claims,) = run_world(_claims, num_ranks=1, checkpoint=checkpoint, invariant=True)
    assert [c for c in claims if not c.holds] == []
    counts = {(c.name, c.sweep): c.n for c in claims}
    predicted = sum(n + 3 for n in PROMPT_LENGTHS)
    assert counts["score == score", "more padding"] == predicted
    assert counts["engine prefill == score", "all together"] == predicted - len(PROMPT_LENGTHS)
    assert counts["engine decode == score", "reversed order"] == 6 * len(PROMPT_LENGTHS)


def test_each_claim_fails_with_ordinary_kernels(checkpoint: Checkpoint) -> None:
    (claims,) = run_world(_claims, num_ranks=1, checkpoint=checkpoint, invariant=False)
    assert {c.name for c in claims if not c.holds} == {c.name for c in claims}


@pytest.mark.slow
def test_ranks_count_their_own_requests_once(checkpoint: Checkpoint) -> None:
    """Tensor-parallel ranks hold the same requests; ranks that share experts each have their own."""
    words, copies = (["parallelism=tp2"], 1) if "model=tiny" in checkpoint.words else (["parallelism=ep2"], 2)
    one, other = run_world(_claims, num_ranks=2, checkpoint=checkpoint, invariant=True, words=words)
    assert one == other
    assert [c for c in one if not c.holds] == []
    assert {c.n for c in one if c.name == "score == score"} == {copies * sum(n + 3 for n in PROMPT_LENGTHS)}
