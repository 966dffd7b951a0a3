"""Every way of typing something wrong: one clear error, and its hint typed in place of the refused word composes."""

import shlex
import shutil
from pathlib import Path

import pytest

from launcher.compose import CONF, compose
from launcher.errors import ConfigError, ExitCode

# words typed -> fragments that the error must hold, in this order; the last is the hint, "" where there is none
REFUSED: dict[str, tuple[str, ...]] = {
    # names
    "parallelism.tensor_parallel=2": (
        "parallelism.tensor_parallel is not a key",
        "near:   parallelism.tensor_model_parallel_size,",
        "parallelism.tensor_model_parallel_size=2",
    ),
    "parallelism.tp=2": ("is not a key", "parallelism.tensor_model_parallel_size=2"),
    "parallelism.vpp=2": ("is not a key", "parallelism.virtual_pipeline_model_parallel_size=2"),
    "tensor_model_parallel_size=2": ("is not a key", "parallelism.tensor_model_parallel_size=2"),
    "paralelism.sequence_parallel=true": ("is not a key", "parallelism.sequence_parallel=true"),
    "model.tensor_model_parallel_size=2": ("is not a key", "parallelism.tensor_model_parallel_size=2"),
    "optimizer.shceduler.lr_warmup_iter=3": ("is not a key", "optimizer.scheduler.lr_warmup_iters=3"),
    "model.hf_confg.hidden_size=32": ("is not a key", "model.hf_config.hidden_size=32"),
    "model.seq_length.max=3": ("is not a key", "model.seq_length=3"),
    "forse=true": ("forse is not a key", "force=true"),
    "job.something_else_entirely=1": ("is not a key", "valid:", "job.num_steps", ""),
    # a section that is near: which of its keys was meant, only the person knows
    "optimizer.schedule=x": ("is not a key", "valid:", "optimizer.scheduler.lr_decay_style", ""),
    "peft.rank=8": ("is not a key", "valid:", "model.peft.dim", ""),
    "peft=lora": ("peft is not a key", "valid:", "model.peft.enabled", ""),
    "peft.dim=8": ("is not a key", "near:   model.peft.dim", "model.peft.dim=8"),
    "xyzzy=1": ("xyzzy is not a key", "valid:", "parallelism", ""),
    # groups and options
    "model=tinny": ("model has no option tinny", "valid:  tiny, tiny_moe,", "model=./folder", "model=tiny"),
    "model=foo": ("model has no option foo", "valid:", "model.KEY=", "model=hf"),
    "model=null": ("model has no option null", "model=tiny"),
    "parallelism=2": ("parallelism has no option 2", "valid:", "parallelism.KEY=", "parallelism=dp2"),
    "parallelism=tp3": ("parallelism has no option tp3", "parallelism=tp2"),
    "parallelism=[tp2,pp2]": ("a run has one option of parallelism", "parallelism=tp2"),
    "paralelism=tp2": ("paralelism is not a group", "valid:  parallelism,", "parallelism=tp2"),
    "model=/no/such/folder": ("there is no such folder", "organisation/name", ""),
    "model=./nothing": ("there is no such folder", ""),
    "+model=tiny": ("an option of model is chosen without +", "model=tiny"),
    "~moe": ("every run has this group", ""),
    "moe@other=default": ("@ cannot move it", "moe=default"),
    # presets
    "preset=zero_kl_cpu": ("an option of preset is added with one +", "+preset=zero_kl_cpu"),
    "++preset=zero_kl_cpu": ("an option of preset is added with one +", "+preset=zero_kl_cpu"),
    "+preset=zero_kl_cpp": ("preset has no option zero_kl_cpp", "valid:  zero_kl_cpu,", "+preset=zero_kl_cpu"),
    "presett=zero_kl_cpu": ("presett is not a group", "+preset=zero_kl_cpu"),
    "+preset={zero_kl_cpu:true}": ("preset has no option", "+preset=zero_kl_cpu"),
    # / . = and what is forgotten
    "parallelism/tensor_model_parallel_size=2": ("dots, not slashes", "parallelism.tensor_model_parallel_size=2"),
    "parallelism.tp2": ("has no value", "parallelism=tp2"),
    "parallelism/tp2": ("has no value", "parallelism=tp2"),
    "parallelism.tp2=true": ("an option is chosen with =", "parallelism=tp2"),
    "preset.zero_kl_cpu": ("has no value", "+preset=zero_kl_cpu"),
    "tp2": ("tp2 has no value", "KEY=VALUE or GROUP=OPTION", "parallelism=tp2"),
    "job.seed": ("job.seed has no value", "job.seed=1234"),
    "nonsense": ("nonsense has no value", ""),
    "=3": ("=3 has no key", ""),
    "job.name=it's": ("cannot be read as KEY=VALUE", "put in quotes", 'job.name="it\'s"'),
    "job.name={a": ("cannot be read as KEY=VALUE", 'job.name="{a"'),
    "job..seed=3": ("job..seed=3", ""),
    # + ++ ~
    "+parallelism.tensor_model_parallel_size=2": ("there already", "parallelism.tensor_model_parallel_size=2"),
    "+parallelism.tensor_parallel=2": ("is not a key", "parallelism.tensor_model_parallel_size=2"),
    "+parallelism={tensor_model_parallel_size:2}": ("there already", "parallelism={tensor_model_parallel_size:2}"),
    "model.hf_config.rope_theta=3": ("not there to be changed", "added with +", "+model.hf_config.rope_theta=3"),
    "model.hf_config.hidden_sise=3": ("near:   hidden_size,", "+model.hf_config.hidden_sise=3"),
    "model.hf_config={rope_theta:3}": ("not there to be changed", "+model.hf_config={rope_theta:3}"),
    "+model.hf_config.hidden_size=32": ("is there already", "model.hf_config.hidden_size=32"),
    "~model.hf_config.hidden_sise": ("not there to be removed", "near:   hidden_size", ""),
    "~model.hf_config.hidden_size=64": ("what is removed has no value", "~model.hf_config.hidden_size"),
    "~cluster.sbatch.partition": ("not there to be removed", "leave this word out", ""),
    "~job.seed": ("cannot be removed", "job.seed=1234"),
    # values
    "zero_kl.backend=te-native": ("cannot be te-native", "valid:  te_native,", "zero_kl.backend=te_native"),
    "zero_kl.backend=CPU_Reference": ("cannot be", "zero_kl.backend=cpu_reference"),
    "precision.fp8=E4M3": ("cannot be E4M3", "valid:  e4m3", "precision.fp8=e4m3"),
    "parallelism.tensor_model_parallel_size=two": (
        "cannot be two",
        "needs:  int",
        "parallelism.tensor_model_parallel_size=1",
    ),
    "parallelism.tensor_model_parallel_size=2.5": ("cannot be 2.5", "parallelism.tensor_model_parallel_size=1"),
    "parallelism.tensor_model_parallel_size=null": ("cannot be null", "parallelism.tensor_model_parallel_size=1"),
    "parallelism.tensor_model_parallel_size=": ("cannot be empty", "parallelism.tensor_model_parallel_size=1"),
    "parallelism.sequence_parallel=2": ("cannot be 2", "needs:  bool", "parallelism.sequence_parallel=false"),
    "force=maybe": ("force cannot be maybe", "force=false"),
    "optimizer.lr=fast": ("cannot be fast", "needs:  float", "optimizer.lr=0.001"),
    "optimizer.scheduler=cosine": ("holds several keys", "valid:  optimizer.scheduler.lr_decay_style,", ""),
    "performance.recompute_modules=[core_atn]": (
        "needs:  list of core_attn,",
        "performance.recompute_modules=[core_attn]",
    ),
    "model.peft={dim:big}": ("model.peft.dim cannot be", "model.peft.dim=32"),
    "model.peft={dimm:3}": ("model.peft.dimm is not a key", "near:   model.peft.dim", ""),
    "cluster.secrets=HF_TOKEN": ("cannot be HF_TOKEN", "needs:  list of str", "cluster.secrets=[HF_TOKEN]"),
    "cluster.setup=module load x": ("needs:  list of str", "cluster.setup=[module load x]"),
    "cluster.srun_args=--mpi=none": ("cannot be read as KEY=VALUE", 'cluster.srun_args=["--mpi=none"]'),
    "cluster.srun_args='--mpi=none'": ("needs:  list of str", "cluster.srun_args=['--mpi=none']"),
    "cluster.setup='a=b'": ("needs:  list of str", "cluster.setup=['a=b']"),
    "cluster.setup=null": ("needs:  list of str", "cluster.setup=[]"),
    "cluster.cpu_bind=numa": ("cannot be numa", "valid:  none, ldoms, cores, sockets", ""),
    "cluster.restarts=0": (
        "holds several keys, it cannot be 0",
        "cluster.restarts={timeout:0,preempted:0,node_failure:0}",
    ),
    "sweep.zip=[optimizer.lr,job.seed]": ("is a word of a sweep", "-m", ""),
    "job.name=None": ("the text None", "use null", "job.name=null"),
    "parallelism.expert_tensor_parallel_size=None": ("use null", "parallelism.expert_tensor_parallel_size=null"),
    "parallelism.tensor_model_parallel_size=None": ("the text None", "parallelism.tensor_model_parallel_size=1"),
    "+model.hf_config.rope_scaling=None": ("use null", "+model.hf_config.rope_scaling=null"),
    "+model.hf_config={rope_scaling:[None]}": ("use null", "+model.hf_config={rope_scaling:[null]}"),
    "job.kind=???": ("job.kind is required and not set", "needs:  one of mismatch,", "job.kind=mismatch"),
    "job.seed=1,2": ("names several values", "job.seed=1"),
    "job.seed=range(3,5)": ("names several values", "job.seed=3"),
    "model=glob(*)": ("names several values", ""),
    "job.name=${job.sed}": ("job.name cannot be resolved", "job.sed", ""),
    "job.seed=${model.name}": ("job.seed cannot be resolved", ""),
    "hydra.run.dir=/tmp": ("own settings would have no effect", ""),
    "hydra/launcher=basic": ("own settings would have no effect", ""),
}


def refused(words: list[str], *, conf: Path = CONF) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(words, conf=conf)
    assert caught.value.exit_code is ExitCode.CONFIG
    return str(caught.value)


def hints(text: str) -> list[str]:
    return [shlex.split(line)[1] for line in text.splitlines() if line.startswith("hint: ")]


@pytest.mark.parametrize("word", REFUSED)
def test_the_error_says_what_is_wrong_and_what_to_type(word: str) -> None:
    *fragments, hint = REFUSED[word]
    text = refused([word])
    assert text.startswith("error: ")
    assert text.count("error: ") == 1
    place = 0
    for fragment in fragments:
        assert fragment in text[place:]
        place = text.index(fragment, place)
    assert hints(text) == ([hint] if hint else [])


NEEDS_MORE = "model=foo"
"""Nearest to it is hf, an option that leaves its path open."""


@pytest.mark.parametrize("word", [word for word, expected in REFUSED.items() if expected[-1] and word != NEEDS_MORE])
def test_the_hint_typed_instead_composes(word: str) -> None:
    [hint] = hints(refused([word]))
    compose([hint])


def test_all_problems_are_told_together() -> None:
    text = refused(["model=tinny", "job.sed=3", "zero_kl.backend=te-native", "optimizer.lr=fast", "job.kind=???"])
    assert hints(text) == [
        "model=tiny",
        "job.seed=3",
        "zero_kl.backend=te_native",
        "optimizer.lr=0.001",
        "job.kind=mismatch",
    ]


def test_a_misspelt_key_is_not_also_called_missing() -> None:
    text = refused(["model=hf", "model.hf_pth=/tmp"])
    assert hints(text) == ["model.hf_path=/tmp"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["job.seed=1", "job.seed=2"], "job.seed=2"),
        (["model=tiny", "model=tiny_moe"], "model=tiny_moe"),
        (["+preset=zero_kl_cpu", "+preset=zero_kl"], "+preset=zero_kl"),
        (["model=/tmp", "model.hf_path=/other"], "model.hf_path=/other"),
    ],
)
def test_one_key_with_two_values_is_refused(words: list[str], hint: str) -> None:
    text = refused(words)
    assert "is set twice, to different values" in text
    assert f"first:  {words[0]}" in text
    assert f"then:   {words[1]}" in text
    assert hints(text) == [hint]


# file in a copy of conf/ -> its text, the words that reach it, fragments of the error
BROKEN_FILES: dict[str, tuple[str, list[str], tuple[str, ...]]] = {
    "parallelism/mine.yaml": (
        "tensor_parallel: 2\n",
        ["parallelism=mine"],
        ("conf/parallelism/mine.yaml: parallelism.tensor_parallel is not a key", "tensor_model_parallel_size"),
    ),
    "parallelism/typed.yaml": (
        "tensor_model_parallel_size: two\n",
        ["parallelism=typed"],
        ("conf/parallelism/typed.yaml: parallelism.tensor_model_parallel_size is refused", "two", "needs:  int"),
    ),
    "parallelism/notyaml.yaml": (
        "a: [1\n",
        ["parallelism=notyaml"],
        ("error: conf/parallelism/notyaml.yaml: line 2 is no YAML", "why:    expected"),
    ),
    "cluster/far.yaml": (
        "kind: slurm\nfrobnicate: 3\n",
        ["cluster=far"],
        ("conf/cluster/far.yaml: cluster.frobnicate is not a key", "valid:  cluster.", "cluster.partition"),
    ),
    "cluster/empty.yaml": (
        "",
        ["cluster=empty"],
        ("cluster.kind is required and not set", "file:   conf/cluster/empty.yaml does not set it"),
    ),
    "cluster/list.yaml": (
        "- kind: slurm\n",
        ["cluster=list"],
        ("conf/cluster/list.yaml: cluster is of type list, lines of KEY: VALUE are needed", "valid:  cluster.kind,"),
    ),
    "cluster/number.yaml": (
        "kind: slurm\nrestarts: 3\n",
        ["cluster=number"],
        ("conf/cluster/number.yaml: cluster.restarts is of type int,", "valid:  cluster.restarts.timeout,"),
    ),
    "preset/lost.yaml": (
        "# @package _global_\ndefaults:\n  - override /model: tinny\n",
        ["+preset=lost"],
        ("Could not find 'model/tinny'", "tiny_moe"),
    ),
    "preset/group.yaml": (
        "# @package _global_\ndefaults:\n  - override /modle: tiny\n",
        ["+preset=group"],
        ("conf/preset/group.yaml: Could not override 'modle'",),
    ),
    "preset/none.yaml": (
        "# @package _global_\njob:\n  prompts: None\n",
        ["+preset=none"],
        ("job.prompts is the text None", "use null"),
    ),
    "preset/root.yaml": ("# @package _global_\nforse: true\n", ["+preset=root"], ("conf/preset/root.yaml: forse",)),
    "cluster/open.yaml": (
        "kind: slurm\naccount: ???\n",
        ["cluster=open"],
        ("cluster.account is required and not set", "hint: cluster.account=TEXT"),
    ),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_broken_file_is_named(name: str, tmp_path: Path) -> None:
    content, words, fragments = BROKEN_FILES[name]
    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)
    (conf / name).write_text(content)
    text = refused(words, conf=conf)
    for fragment in fragments:
        assert fragment in text
    assert "object_type" not in text


def test_a_broken_file_is_told_beside_a_refused_word(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)
    (conf / "moe" / "mine.yaml").write_text("moe_permute_fussion: true\n")
    text = refused(["job.sed=1", "moe=mine"], conf=conf)
    assert hints(text) == ["job.seed=1"]
    assert "conf/moe/mine.yaml: moe.moe_permute_fussion is not a key" in text
