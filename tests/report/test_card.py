from __future__ import annotations

from dpfed.config.templates import hospitals
from dpfed.randomness import SeededSource
from dpfed.report.card import make_card, render_card
from dpfed.report.facts import collect_facts
from dpfed.runs.directory import RunDirectory
from report_plans import PLANS
from run_directories import ACCURACY, made


def card_of(directory):
    facts = collect_facts(RunDirectory(directory))
    return make_card(facts, hospitals().config, "m.safetensors", "ab12", {"w": (2, 3)})


def test_the_card_says_the_promise_the_digest_and_public_scores(tmp_path):
    card = card_of(made(tmp_path / "run", PLANS["hybrid"], is_public=True))
    assert [(each["unit"], each["epsilon"]) for each in card["promises"]] == [
        ("record", PLANS["hybrid"].record_epsilon(1e-5)),
        ("client", PLANS["hybrid"].client_epsilon(1e-5)),
    ]
    text = render_card(card)
    assert "at δ = 1e-05 for one client" in text
    assert "- SHA-256: ab12" in text
    assert f"- accuracy: {ACCURACY}" in text


def test_scores_on_private_records_are_not_on_the_card(tmp_path):
    card = card_of(made(tmp_path / "run", PLANS["sample"]))
    assert card["scores"] == {}
    assert "How good it is" not in render_card(card)


def test_a_card_of_a_seeded_run_promises_nothing(tmp_path):
    text = render_card(card_of(made(tmp_path / "run", PLANS["sample"], source=SeededSource(1))))
    assert "**NOT PRIVATE**" in text
    assert "What is promised" not in text
