from __future__ import annotations

import pytest

from begun_runs import confirm
from dpfed.errors import InvalidArgument


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x05" + bytes(7) + b"[[[[[", b"\x02" + bytes(7) + b"{}"])
def test_a_checkpoint_that_cannot_be_read_is_refused_by_whoever_reads_the_run(run, content):
    run.append({"round": 1})
    confirm(run, 1)
    (run.path / "checkpoints" / "round-000001.safetensors").write_bytes(content)
    for read in (run.rounds, run.owner_rounds, lambda: run.status, run.require_readable):
        with pytest.raises(InvalidArgument, match="put back a copy"):
            read()
