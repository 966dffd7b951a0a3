"""What the node must be."""

from dataclasses import dataclass
from enum import Enum


class PlatformKind(Enum):
    """Which row set the gates take."""

    cpu = "cpu"
    hopper = "hopper"
    blackwell = "blackwell"


@dataclass(frozen=True, kw_only=True)
class PlatformConfig:
    """The node's kind."""

    kind: PlatformKind
    """cpu: gloo and reference kernels. hopper: sm_90. blackwell: sm_100 and newer."""
