from __future__ import annotations

import json
import math

import pytest

from dpfed import accounting
from dpfed import events as ev
from dpfed.cli.epsilon import _format_answer

RUN = "--noise-multiplier 1 --sample-rate 0.01 --steps 10000"
EVENT = ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0), 0.01), 10_000)
MIXED = ev.Repeated(ev.Composed([ev.Laplace(10), ev.Gaussian(10)]), 20)


def facts(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_epsilon_is_the_reference_value_rounded_up(dpfed):
    first, sentence = dpfed(f"epsilon {RUN} --delta 1e-5").stdout.splitlines()
    assert first == "ε ≤ 6.18772 at δ = 1e-05 for one record, add-remove (exact)"
    assert "one record took part" in sentence


def test_the_letters_z_q_and_t_are_short_for_the_run(dpfed):
    assert dpfed("epsilon -z 1 -q 0.01 -t 10000 --delta 1e-5").stdout == dpfed(f"epsilon {RUN} --delta 1e-5").stdout


def test_epsilon_as_json_is_what_the_library_says(dpfed):
    shown = facts(dpfed(f"epsilon {RUN} --delta 1e-5 --json"))
    assert shown["epsilon"] == accounting.epsilon(EVENT, 1e-5)
    assert ev.from_dict(shown["event"]) == EVENT
    assert (shown["delta"], shown["unit"], shown["adjacency"], shown["notion"]) == (
        1e-5,
        "record",
        "add_remove",
        "exact",
    )


def test_one_step_without_sampling_is_the_default(dpfed):
    assert facts(dpfed("epsilon -z 1 --delta 1e-5 --json"))["epsilon"] == accounting.epsilon(ev.Gaussian(1.0), 1e-5)


def test_the_adjacency_is_passed_on(dpfed):
    shown = facts(dpfed("epsilon -z 4 -t 10 --delta 1e-5 --adjacency replace_one --unit client --json"))
    event = ev.Repeated(ev.Gaussian(4.0), 10)
    assert shown["epsilon"] == accounting.epsilon(event, 1e-5, adjacency="replace_one")
    assert shown["epsilon"] > accounting.epsilon(event, 1e-5)
    assert "one client was swapped for another" in shown["sentence"]


@pytest.mark.parametrize("notion", ["rdp", "basic", "advanced"])
def test_another_notion_is_looser_and_named(dpfed, notion):
    result = dpfed(f"epsilon {RUN} --delta 1e-5 --notion {notion}")
    assert f"({notion})" in result.stdout
    shown = facts(dpfed(f"epsilon {RUN} --delta 1e-5 --notion {notion} --json"))
    assert shown["notion"] == notion
    assert shown["epsilon"] == accounting.epsilon(EVENT, 1e-5, notion=notion) > accounting.epsilon(EVENT, 1e-5)


def test_bounds_hold_the_truth_between_them(dpfed):
    shown = facts(dpfed(f"epsilon {RUN} --delta 1e-5 --bounds --json"))
    assert shown["epsilon_lower"] <= 6.18771239 + 1e-8
    assert shown["epsilon"] >= 6.18771239 - 1e-8
    line = dpfed(f"epsilon {RUN} --delta 1e-5 --bounds").stdout.splitlines()[0]
    lower, upper = line.split(" at ")[0].split(" ≤ ε ≤ ")
    assert float(lower) <= shown["epsilon_lower"] <= shown["epsilon"] <= float(upper)


def test_an_event_is_read_from_a_file(dpfed, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(ev.dumps(MIXED))
    assert facts(dpfed(f"epsilon --event {path} --delta 1e-6 --json"))["epsilon"] == accounting.epsilon(MIXED, 1e-6)


def test_an_event_is_read_from_stdin(dpfed):
    shown = facts(dpfed("epsilon --event - --delta 1e-6 --json", stdin=ev.dumps(MIXED)))
    assert shown["epsilon"] == accounting.epsilon(MIXED, 1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSON form of an event"),
        ("", "JSON form of an event"),
        ('{"event_type":"Magic","version":1}', "unknown event type 'Magic'"),
        ('{"event_type":"Unprotected","version":7}', "version 1"),
        (ev.dumps(ev.PureDP(1.0, "replace_one")), "replace_one"),
    ],
)
def test_a_wrong_event_is_refused_in_one_line(dpfed, text, message):
    result = dpfed("epsilon --event - --delta 1e-6", stdin=text)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_no_protection_is_format_answer_as_infinity(dpfed):
    text = ev.dumps(ev.Unprotected())
    assert "ε ≤ ∞" in dpfed("epsilon --event - --delta 1e-6", stdin=text).stdout
    assert facts(dpfed("epsilon --event - --delta 1e-6 --json", stdin=text))["epsilon"] == "inf"


def test_delta_is_what_the_library_says(dpfed):
    shown = facts(dpfed(f"delta {RUN} --epsilon 6 --json"))
    assert shown["delta"] == accounting.delta(EVENT, 6.0)
    line = dpfed(f"delta {RUN} --epsilon 6").stdout.splitlines()[0]
    number = float(line.removeprefix("δ ≤ ").split()[0])
    assert number >= shown["delta"]
    assert math.isclose(number, shown["delta"], rel_tol=1e-5)


def test_calibrate_finds_the_least_noise_and_never_shows_less(dpfed):
    line = "calibrate --epsilon 8 --delta 1e-5 --sample-rate 0.1 --steps 1000"
    shown = facts(dpfed(f"{line} --json"))
    assert shown["found"] == "noise_multiplier"
    assert 2.0507321 <= shown["noise_multiplier"] <= 2.0507321 + 1e-4
    assert shown["epsilon"] <= 8
    first = dpfed(line).stdout.splitlines()[0]
    printed = float(first.removeprefix("noise_multiplier = "))
    assert printed >= shown["noise_multiplier"]
    run = ev.Repeated(ev.PoissonSampled(ev.Gaussian(printed), 0.1), 1000)
    assert accounting.epsilon(run, 1e-5) <= 8


@pytest.mark.parametrize("value", [2.0000004, 1.9999996, 0.123456789, 0.0123456123])
def test_calibrate_shows_no_less_noise_and_no_higher_rate_than_it_found(value):
    assert float(_format_answer("noise_multiplier", value)) > value
    assert float(_format_answer("sample_rate", value)) < value


def test_calibrate_finds_the_most_steps(dpfed):
    shown = facts(dpfed("calibrate --epsilon 8 --delta 1e-5 -z 1 -q 0.01 --json"))
    step = ev.PoissonSampled(ev.Gaussian(1.0), 0.01)
    assert shown["found"] == "steps"
    assert accounting.epsilon(ev.Repeated(step, shown["steps"]), 1e-5) <= 8
    assert accounting.epsilon(ev.Repeated(step, shown["steps"] + 1), 1e-5) > 8


def test_calibrate_finds_the_largest_rate_and_never_shows_more(dpfed):
    line = "calibrate --epsilon 8 --delta 1e-5 -z 1 -t 1000"
    shown = facts(dpfed(f"{line} --json"))
    assert shown["found"] == "sample_rate"
    printed = float(dpfed(line).stdout.splitlines()[0].removeprefix("sample_rate = "))
    assert printed <= shown["sample_rate"]
    run = ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0), printed), 1000)
    assert 7.99 < accounting.epsilon(run, 1e-5) <= 8


def test_calibrate_refuses_a_target_out_of_reach_with_a_remedy_in_one_line(dpfed):
    result = dpfed("calibrate --epsilon 0.1 --delta 1e-5 -z 1 -q 0.5")
    assert result.exit_code == 2
    assert "would do" in result.stderr
    assert result.stderr.count("\n") == 1
