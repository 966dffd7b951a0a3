"""Reports for the tests, made by the real `compare` from seeded log-probabilities."""

import torch

from launcher.schema import Backend, PlatformKind
from zero_kl.measure import Response, compare
from zero_kl.verdict import Measurement, Report, Throughput


def responses(seed: int, *, num: int = 24, length: int = 32, noise: float = 0.0, exact: float = 0.0) -> list[Response]:
    """`num` responses of `length` tokens; a share of 1 - `exact` is off by Gaussian noise of that deviation."""
    generator = torch.Generator().manual_seed(seed)
    made: list[Response] = []
    for request in range(num):
        generation = -8 * torch.rand(length, generator=generator)
        off = torch.randn(length, generator=generator) * (torch.rand(length, generator=generator) >= exact)
        made.append(
            Response(
                request=request,
                prompt_length=1 + 7 * request % 48,
                tokens=tuple(range(length)),
                generation=generation,
                training=generation + noise * off,
            )
        )
    return made


ZERO = [compare(responses(step), step=step) for step in range(3)]
ORDINARY = [compare(responses(step, noise=8e-3 * (step + 1), exact=0.4), step=step) for step in range(3)]


def report(
    measurements: list[Measurement], *, required: bool = False, config_yaml: str = "model:\n  name: tiny\n"
) -> Report:
    """A report of these measurements."""
    return Report(
        required=required,
        platform=PlatformKind.cpu,
        mode=Backend.cpu_reference if required else Backend.none,
        model="tiny",
        num_parameters=123_456,
        layout="TP 1, PP 1, EP 1, DP 1",
        measurements=tuple(measurements),
        throughput=tuple(
            Throughput(step=m.step, generation_tokens=m.n, generation_s=2.0, training_tokens=2 * m.n, training_s=0.25)
            for m in measurements
        ),
        stages_s={"import": 1.25, "generate": 6.0},
        config_yaml=config_yaml,
        overrides=("+preset=zero_kl_cpu", "model.hf_config_overrides={num_hidden_layers: 4}"),
        versions={"torch": "2.11.0", "transformer-engine": "absent"},
        git={"commit": "0123abc", "tree": "clean"},
        run_folder="outputs/zero_kl_cpu-tiny-1a2b3c4d/attempt_1",
        started="2026-07-01T10:00:00+00:00",
        finished="2026-07-01T10:00:41+00:00",
    )
