"""The cluster of the tests: started once a session, ended with it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing_programs


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Skipped where Slurm is not installed or we are not root, unless REQUIRE_SLURM is exported, as .ci/run does."""
    missing = missing_programs() or ([] if os.geteuid() == 0 else ["root"])
    if missing and not os.environ.get("REQUIRE_SLURM"):
        pytest.skip(f"not here: {', '.join(missing)}; make slurm installs them")
    assert not missing
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    started = Cluster(folder)
    try:
        started.start()
        yield started
    finally:
        started.stop()
        shutil.rmtree(folder)
