"""The value model: the configuration that the policy's own pipeline builds it from, and the rules about its keys.

Owns what differs from the policy, with every default, in `value_run_config`. The head is in `value_model`. Torch-free.
"""

from dataclasses import replace

from launcher.requirement import Between, Requirement
from launcher.schema import JobKind, ModelConfig, MtpConfig, RunConfig
from launcher.schema.model import DraftConfig, PeftConfig, PretrainedCheckpointConfig, ValueModelConfig
from megatron_setup.rows import SwitchedOff, unread, where


def value_run_config(config: RunConfig) -> RunConfig:
    """The run of the value model, from the policy's; a pure function, so two calls give equal configurations.

    It starts from `model.value.hf_path`, or from the policy's weights where that is null, and has its own learning rate
    and micro-batch size where they are set. Layout, precision, kernels and the rest are the policy's. It has no
    adapters, no draft, no reference, no prediction heads, and no value model of its own.
    """
    value, optimizer, performance = config.model.value, config.optimizer, config.performance
    assert value.enabled, "there is a value model only where model.value.enabled is true"
    return replace(
        config,
        model=_value_weights(config.model),
        mtp=MtpConfig(),
        optimizer=replace(optimizer, lr=optimizer.lr if value.lr is None else value.lr),
        performance=replace(performance, micro_batch_size=value.micro_batch_size or performance.micro_batch_size),
    )


def _value_weights(model: ModelConfig) -> ModelConfig:
    """Where the weights come from. What was said of the policy's own checkpoint does not hold for another one."""
    alone = replace(
        model,
        name=f"{model.name}-value",
        reference_model=False,
        peft=PeftConfig(),
        draft=DraftConfig(),
        value=ValueModelConfig(),
    )
    if model.value.hf_path is None:
        return alone
    return replace(
        alone,
        hf_path=model.value.hf_path,
        hf_config={},
        init_seed=0,
        hf_config_overrides={},
        model_overrides={},
        pretrained_checkpoint=PretrainedCheckpointConfig(),
    )


NO_VALUE = where("the run", text="model.value.enabled is false", test=lambda c: not c.model.value.enabled)

NO_VALUE_STEP = where(
    "the job",
    text="job.kind is mismatch, convert or export",
    test=lambda c: c.job.kind in (JobKind.mismatch, JobKind.convert, JobKind.export),
)

REQUIREMENTS: tuple[Requirement, ...] = (
    *unread(
        {"VA001": "model.value.hf_path", "VA002": "model.value.lr", "VA003": "model.value.micro_batch_size"},
        when=NO_VALUE,
        why="there is no value model",
        source="megatron_setup/value.py",
        reads=("model.value.enabled",),
    ),
    Requirement(
        code="VA004",
        key="model.value.lr",
        want=Between(low=0.0),
        why="a negative one climbs the loss",
        source="megatron-core 0.19.2 optimizer/optimizer_config.py",
    ),
    Requirement(
        code="VA005",
        key="model.value.micro_batch_size",
        want=Between(low=1),
        why="it counts sequences",
        source="megatron-core 0.19.2 num_microbatches_calculator.py",
    ),
    Requirement(
        code="VA006",
        key="model.value.enabled",
        want=SwitchedOff(
            (False,), followers={f"model.value.{name}": None for name in ("hf_path", "lr", "micro_batch_size")}
        ),
        when=NO_VALUE_STEP,
        why="no value is learnt or asked for, and the model and its optimizer would take their memory",
        source="launcher/jobs/mismatch.py",
        reads=("job.kind",),
    ),
)
