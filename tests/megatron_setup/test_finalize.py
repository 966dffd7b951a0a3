"""What the set-up ends with, against the model that was built. Refused tokenizers are in launcher/test_failures.py."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.tiny_runs import VOCABULARY, Checkpoint, built, converted
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")


@pytest.fixture(scope="module")
def checkpoint(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return converted(["model=tiny"], folder=tmp_path_factory.mktemp("checkpoint"))


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Figures of `Finished`, and the rows that the embedding has on this rank."""

    num_ids: int
    padded_vocab_size: int
    embedding_rows: int
    data_parallel_size: int


def _ended(words: Sequence[str], *, checkpoint: Checkpoint) -> Ended:
    from megatron.core.utils import unwrap_model

    from megatron_setup.finalize import finish

    run = built(words, checkpoint=checkpoint)
    finished = finish(run.provider, hf_folder=checkpoint.hf)
    return Ended(
        num_ids=len(finished.tokenizer),
        padded_vocab_size=finished.padded_vocab_size,
        embedding_rows=unwrap_model(run.model[0]).embedding.word_embeddings.weight.shape[0],
        data_parallel_size=finished.data_parallel_size,
    )


@pytest.mark.parametrize(
    ("words", "num_ranks", "padded", "replicas"),
    [
        ([], 1, VOCABULARY, 1),
        (["model.make_vocab_size_divisible_by=96", "parallelism=tp2"], 2, 576, 1),
        (["parallelism=dp2"], 2, VOCABULARY, 2),
    ],
    ids=["plain", "padded", "replicas"],
)
def test_it_is_what_the_model_has(
    checkpoint: Checkpoint, words: list[str], num_ranks: int, padded: int, replicas: int
) -> None:
    for rank in run_world(_ended, num_ranks=num_ranks, words=words, checkpoint=checkpoint):
        assert rank.padded_vocab_size == padded == rank.embedding_rows * num_ranks // replicas
        assert rank.num_ids <= VOCABULARY
        assert rank.data_parallel_size == replicas
