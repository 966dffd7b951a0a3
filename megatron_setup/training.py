"""Rules about the supervised steps of job=train: its sequences, its loss, the reference policy in it. Torch-free."""

from launcher.requirement import Between, Check, Condition, Equals, Finding, Requirement, Subject, show
from launcher.schema import JobKind
from megatron_setup.layout import sums

_JOB = "launcher/jobs/train.py"


def _job(text: str, *, kinds: tuple[JobKind, ...]) -> Condition:
    return Condition(who="the job", text=text, test=lambda s: s.config.job.kind in kinds)


TRAIN = _job("job.kind is train", kinds=(JobKind.train,))
NOT_TRAIN = _job("job.kind is not train", kinds=(JobKind.mismatch, JobKind.setup, JobKind.convert, JobKind.export))
NO_LOSS = _job("job.kind is mismatch, convert or export", kinds=(JobKind.mismatch, JobKind.convert, JobKind.export))
NO_MEASUREMENT = _job("job.kind is not mismatch", kinds=(JobKind.train, JobKind.setup, JobKind.convert, JobKind.export))
EXPORT = _job("job.kind is export", kinds=(JobKind.export,))
DRAWN = Condition(who="", text="sequences are random", test=lambda s: s.config.job.prompts is None)
UNBATCHED = Condition(
    who="", text="global_batch_size is null", test=lambda s: s.config.performance.global_batch_size is None
)
WITHOUT_REFERENCE = Condition(
    who="the job", text="model.reference_model is false", test=lambda s: not s.config.model.reference_model
)


def _fits(subject: Subject) -> Finding | None:
    found, length = subject.config.job.max_prompt_tokens, subject.config.model.seq_length
    if found <= length:
        return None
    return Finding(
        found=show(found), wanted=f"at most model.seq_length = {length}", hints=(f"job.max_prompt_tokens={length}",)
    )


REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        code="TR001",
        key="parallelism.context_parallel_size",
        want=Equals(1),
        when=TRAIN,
        why="sequences are handed to the model whole; a rank of several would take them for its share",
        source=_JOB,
        reads=("job.kind",),
    ),
    Requirement(
        code="TR002",
        key="job.max_prompt_tokens",
        want=Check("at most model.seq_length", _fits),
        when=TRAIN & DRAWN,
        why="a random sequence is that long",
        source=_JOB,
        reads=("job.kind", "job.prompts", "model.seq_length"),
    ),
    Requirement(
        code="TR003",
        key="job.min_prompt_tokens",
        want=Check("at most max_prompt_tokens", sums.prompts_have_a_range),
        when=TRAIN & DRAWN,
        why="the lengths of random sequences are drawn between the two",
        source=_JOB,
        reads=("job.kind", "job.prompts", "job.max_prompt_tokens"),
    ),
    Requirement(
        code="TR004",
        key="job.num_prompts",
        want=Check("a multiple of the data-parallel size", sums.prompts_are_shared),
        when=TRAIN & UNBATCHED,
        why="replicas take equal shares of a step: each takes part in every gradient reduction",
        source=_JOB,
        reads=("job.kind", "performance.global_batch_size", "parallelism.data_parallel_size"),
    ),
    Requirement(
        code="TR010",
        key="job.reference_kl_weight",
        want=Between(low=0.0),
        why="a negative one drives the policy away from the reference",
        source=_JOB,
    ),
    *(
        Requirement(
            code=code,
            key="job.reference_kl_weight",
            want=Equals(0.0),
            when=when,
            why=why,
            source=_JOB,
            reads=reads,
        )
        for code, when, why, reads in (
            ("TR011", WITHOUT_REFERENCE, "there is no reference to take a KL to", ("model.reference_model",)),
            ("TR012", NOT_TRAIN, "no other job has this loss", ("job.kind",)),
        )
    ),
    Requirement(
        code="TR013",
        key="model.reference_model",
        want=Equals(False),
        when=NO_LOSS,
        why="nobody asks the reference for anything, and it takes the host memory of a model",
        source="launcher/jobs/mismatch.py",
        reads=("job.kind",),
    ),
    *(
        Requirement(
            code=code,
            key=f"model.{name}.enabled",
            want=Equals(False),
            when=EXPORT,
            why=why,
            source="megatron_setup/export.py",
            reads=("job.kind",),
        )
        for code, name, why in (
            (
                "TR020",
                "peft",
                "a save of LoRA has adapters only; checkpoint.also_save_hf_checkpoint exports those",
            ),
            (
                "TR021",
                "draft",
                "a draft has no place in the model's Hugging Face format; the policy alone has",
            ),
        )
    ),
    Requirement(
        code="TR022",
        key="job.claims",
        want=Equals(False),
        when=NO_MEASUREMENT,
        why="the claims are about what a measurement has sampled, and this job samples nothing",
        source="launcher/jobs/mismatch.py",
        reads=("job.kind",),
    ),
)
