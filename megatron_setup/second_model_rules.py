"""Rules about generation on a model of its own: its layout, its layers, what carries the weights. Torch-free."""

from dataclasses import dataclass, replace

from launcher.requirement import Equals, Finding, OneOf, Requirement, Subject, Violation, check_all, show
from launcher.schema import PlatformKind
from launcher.schema.generation import RefitMethod
from launcher.schema.layout import derive_layout
from launcher.schema.precision import Fp8Recipe
from megatron_setup import parallelism
from megatron_setup.layout import keys
from megatron_setup.precision import DELAYED
from megatron_setup.rows import unread, where
from megatron_setup.second_model import SIZES, generation_layout, has_second_model

_RESHARDING = "megatron-core 0.19.2 resharding/refit.py"
_TENSOR = next(iter(SIZES))


@dataclass(frozen=True)
class FitsTheRanks:
    """The rules about training's layout hold for generation's, on the same ranks; this key's share of them.

    What is no size's own, such as the world, is told of the tensor-parallel size. The hint gives back training's.
    """

    text: str = "what training's size of that name needs, in generation's layout"

    def find(self, subject: Subject, *, key: str) -> Finding | None:
        told = [v for v in _violations(subject) if _told_of(v) == key]
        if not told:
            return None
        layout = generation_layout(subject.config)
        return Finding(
            found=show(subject.value(key)),
            wanted="; ".join(_wanted(v) for v in told),
            arithmetic=f"generation has TP {layout.tensor_model_parallel_size}, PP "
            f"{layout.pipeline_model_parallel_size}, EP {layout.expert_model_parallel_size} on "
            f"{derive_layout(subject.config).world_size} rank(s)",
            hints=tuple(f"{size}=null" for size in SIZES if subject.value(size) is not None),
        )


def _violations(subject: Subject) -> list[Violation]:
    """Those about ranks and layers that generation's layout has and training's own has not."""
    config = subject.config
    world = replace(config.cluster, num_processes=derive_layout(config).world_size)
    second = replace(config, parallelism=generation_layout(config), cluster=world)
    known = {v.row.code for v in check_all(parallelism.ROWS, subject=subject)}
    found = check_all(parallelism.ROWS, subject=replace(subject, config=second))
    return [v for v in found if v.row.code not in known and v.row.key.startswith(("parallelism.", "cluster."))]


def _wanted(violation: Violation) -> str:
    row, wanted = violation.row, violation.finding.wanted
    return f"{wanted} ({row.code})" if row.key in SIZES.values() else f"{row.key} to be {wanted} ({row.code})"


def _told_of(violation: Violation) -> str:
    return {training: ours for ours, training in SIZES.items()}.get(violation.row.key, _TENSOR)


@dataclass(frozen=True)
class AsInTraining:
    """The key is null or what training has."""

    training: str

    @property
    def text(self) -> str:
        return f"null or {self.training}"

    def find(self, subject: Subject, *, key: str) -> Finding | None:
        found, wanted = subject.value(key), subject.value(self.training)
        if found is None or found == wanted:
            return None
        return Finding(found=show(found), wanted=f"{self.text} ({show(wanted)})", hints=(f"{key}=null",))


SECOND = where("a second model", text="generation has a layout of its own", test=has_second_model)
NO_SECOND = where("the run", text="generation has training's layout", test=lambda c: not has_second_model(c))
ON_CPU = where("gloo", text="platform is cpu", test=lambda c: c.platform.kind is PlatformKind.cpu)

ROWS: tuple[Requirement, ...] = (
    *(
        Requirement(
            code=code,
            key=key,
            want=FitsTheRanks(),
            when=SECOND,
            why="generation runs on training's ranks, and its layers are split by the same rules",
            source="megatron_setup/parallelism.py",
            reads=(*(size for size in SIZES if size != key), *SIZES.values(), keys.PROCESSES),
        )
        for code, key in zip(("GE040", "GE041", "GE042", "GE043"), SIZES, strict=True)
    ),
    Requirement(
        code="GE044",
        key="generation.transformer_impl",
        want=AsInTraining("performance.transformer_impl"),
        why="Bridge's GPT providers build Transformer Engine's layers whatever it says, and other layers have weights "
        "of other names, which a refit would not find",
        source="megatron-bridge 0.6.2 models/gpt_provider.py, default_layer_spec",
        reads=("performance.transformer_impl",),
    ),
    *unread(
        {"GE045": "generation.refit_method"},
        when=NO_SECOND,
        why="generation runs on training's own model: nothing is carried",
        source="megatron_setup/second_model.py",
        reads=tuple(SIZES),
    ),
    Requirement(
        code="GE046",
        key="generation.refit_method",
        want=OneOf((None, RefitMethod.nccl, RefitMethod.gloo)),
        when=SECOND,
        why="nvshmem and nixl need packages that this project does not install",
        source="megatron-core 0.19.2 resharding/copy_services",
    ),
    Requirement(
        code="GE047",
        key="generation.refit_method",
        want=OneOf((None, RefitMethod.gloo)),
        when=SECOND & ON_CPU,
        why="NCCL carries GPU memory only",
        source="megatron-core 0.19.2 resharding/copy_services/nccl_copy_service.py",
        reads=("platform.kind",),
    ),
    Requirement(
        code="GE048",
        key="model.peft.enabled",
        want=Equals(False),
        when=SECOND,
        why="an adapter renames the weights that it wraps, and a refit copies weights by name",
        source=_RESHARDING,
        reads=tuple(SIZES),
    ),
    Requirement(
        code="GE049",
        key="precision.fp8_recipe",
        want=OneOf((Fp8Recipe.tensorwise, Fp8Recipe.blockwise, Fp8Recipe.mxfp8)),
        when=SECOND & DELAYED,
        why="delayed scaling keeps a history in each layer's extra state, which is no weight and does not travel",
        source=f"{_RESHARDING}; transformer-engine 2.20.2 pytorch/module/base.py, get_extra_state",
        reads=("precision.fp8", *SIZES),
    ),
)
