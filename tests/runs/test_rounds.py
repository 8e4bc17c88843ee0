from __future__ import annotations

import pytest

from begun_runs import confirm
from dpfed.errors import InvalidArgument
from dpfed.runs.directory import sequence


def test_half_a_line_of_a_crash_is_ignored_and_then_cut_off(run):
    run.append({"round": 1})
    with (run.path / "rounds.jsonl").open("ab") as stream:
        stream.write(b'{"round": 2, "contr')
    confirm(run, 1)
    assert run.rounds() == [{"round": 1}]
    run.append({"round": 2})
    confirm(run, 2)
    assert run.rounds() == [{"round": 1}, {"round": 2}]
    assert (run.path / "rounds.jsonl").read_bytes().count(b"\n") == 2


def test_values_that_are_no_numbers_are_not_written(run):
    with pytest.raises(ValueError, match="JSON"):
        run.append({"round": 1, "loss": float("nan")})


def test_a_heads_number_is_that_of_its_entry():
    assert sequence("12:ab") == 12


@pytest.mark.parametrize("place", range(0, 60, 3))
def test_a_line_that_was_changed_is_noticed_by_whoever_reads_it(run, place):
    for number in (1, 2):
        run.append({"round": number, "spent": 1.5})
    path = run.path / "rounds.jsonl"
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"rounds.jsonl is not what this run wrote \(line 1"):
        run.rounds()


@pytest.mark.parametrize("change", ["swapped", "left out", "twice", "without a digest"])
def test_lines_in_another_order_or_number_are_noticed(run, change):
    for number in (1, 2, 3):
        run.append({"round": number})
    path = run.path / "rounds.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    changed = {
        "swapped": [second, first, third],
        "left out": [first, third],
        "twice": [first, first, second, third],
        "without a digest": [first, b'{"round": 2}\n', third],
    }
    path.write_bytes(b"".join(changed[change]))
    with pytest.raises(InvalidArgument, match="put back a copy"):
        run.rounds()
