"""All rules against one configuration, at once. Reads the model's config.json where it is on this disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError
from launcher.hf_config import effective_hf_config
from launcher.requirement import Severity, Subject, Violation, check_all, render
from launcher.rules import RULES
from launcher.schema import Architecture, ModelConfig, RunConfig, architecture_from_hf_config


@dataclass(frozen=True, kw_only=True)
class Validation:
    """What the rules said. `num_checked` counts the rows that applied."""

    violations: tuple[Violation, ...]
    warnings: tuple[Violation, ...]
    num_checked: int

    def raise_if_invalid(self) -> None:
        """Raise ConfigError with every violation, and one line with all hints together."""
        if self.violations:
            raise ConfigError(render_all(self.violations))


def read_architecture(model: ModelConfig) -> Architecture | None:
    """The model's shape, or None where it is not known here (a Hub id, a nested configuration).

    Raises ConfigError for a folder without a readable config.json.
    """
    config = effective_hf_config(model)
    return None if config is None else architecture_from_hf_config(config)


def check_files(config: RunConfig) -> None:
    """Raise ConfigError for a file or folder that the configuration names and that cannot be used."""
    if not config.output_dir:
        raise ConfigError("error: output_dir is empty, a folder is needed\nhint: output_dir=outputs")
    prompts = config.job.prompts
    if prompts is not None and not Path(prompts).is_file():
        raise ConfigError(f"error: job.prompts is {prompts or 'empty'}, there is no such file\nhint: job.prompts=null")
    for key, attached in (("draft", config.model.draft), ("value", config.model.value)):
        if attached.enabled and attached.hf_path and not (Path(attached.hf_path) / "config.json").is_file():
            raise ConfigError(
                f"error: model.{key}.hf_path is {attached.hf_path}, a folder with config.json is needed\n"
                f"hint: model.{key}.hf_path=null"
            )


def validate(config: RunConfig) -> Validation:
    """Check every rule of the product against the configuration. Raises ConfigError for a file that is not there."""
    check_files(config)
    subject = Subject(config=config, architecture=read_architecture(config.model))
    found = check_all(RULES, subject=subject)
    return Validation(
        violations=tuple(v for v in found if v.row.severity is Severity.ERROR),
        warnings=tuple(v for v in found if v.row.severity is Severity.WARNING),
        num_checked=sum(row.when.test(subject) for row in RULES),
    )


def render_all(violations: tuple[Violation, ...]) -> str:
    """Every violation, then the overrides of all hints on one line: typed together they must repair the run.

    Where two rows hint at one key the later one counts; `launcher.rules` orders the tables by that.
    """
    text = "\n\n".join(render(v) for v in violations)
    hints = {hint.partition("=")[0].lstrip("+~"): hint for v in violations for hint in v.finding.hints}
    return f"{text}\n\nall hints: {' '.join(hints.values())}" if len(violations) > 1 and hints else text
