"""The plan in words names who is protected, from whom, and who must be trusted, and only public numbers."""

from __future__ import annotations

import re
from dataclasses import replace

from dpfed.accounting.tradeoff import detection_rate
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.events import Repeated
from dpfed.guarantee import Guarantee
from dpfed.plan.explain import sentence, simulation
from dpfed.plan.plan import AdaptiveClip, ClientPlan, FixedCohort, LocalPlan, Plan, PoissonCohort
from dpfed.plan.rules import ROWS

RECORD, CLIENT = Guarantee(4.0, 1e-5), Guarantee(8.0, 1e-5, unit="client")
BARE = LocalPlan(size=100, batch_size=10, steps=5, clip_norm=1.0)
LOCAL = {"north": BARE, "harbour": replace(BARE, size=20)}


def a_plan(style, **others):
    client = ClientPlan(clip_norm=0.5) if style in ("user", "hybrid") else None
    return Plan(**{"name": "study", "rounds": 10, "local": LOCAL, "style": style, "client": client, **others})


def test_style_sample_protects_a_record_from_the_server_too():
    text = a_plan("sample").calibrated(RECORD).explain()
    assert "whether one record, in any site, took part" in text
    assert "the server and the other clients included" in text
    assert "Trusted for it: each client with its own records" in text
    assert "Binding: harbour" in text
    assert "nobody's record is in two sites" in text
    assert "one client" not in text


def test_one_owner_whose_count_is_public_is_no_simulation():
    own = replace(BARE, noise_multiplier=2.0, adjacency=REPLACE_ONE)
    plan = a_plan("sample", local={"owner": own}, dealing=ROWS)
    assert simulation(plan) == ""
    assert "SIMULATION" in simulation(replace(plan, local={"owner": own, "other": own}))
    assert "SIMULATION" in simulation(replace(plan, local={"owner": replace(own, adjacency=ADD_REMOVE)}))


def test_what_an_attacker_catches_is_above_the_exact_rate_of_every_site_and_below_what_one_epsilon_allows():
    plan = a_plan("sample").calibrated(RECORD)
    said = float(re.search(r"catches at most ([\d.]+) %", sentence(plan, RECORD)).group(1)) / 100
    exact = [detection_rate(Repeated(local.event, plan.record_charges), 0.01) for local in plan.local.values()]
    assert max(exact) <= said < RECORD.detection_rate(0.01) / 2


def test_style_user_protects_a_client_but_not_from_the_server():
    text = a_plan("user").calibrated(CLIENT).explain()
    assert "whether one client's records, all at once, were used" in text
    assert "not from the server" in text
    assert "Trusted for it: the server" in text
    assert "clipped to norm 0.5, noise multiplier" in text
    assert "one record" not in text
    assert "secret" not in text


def test_hybrid_has_both_statements():
    text = a_plan("hybrid").calibrated(RECORD, CLIENT).explain()
    assert text.count("Protected:") == text.count("Trusted for it:") == 2
    assert text.count("Whoever sees everything released") + text.count("promises next to nothing") == 2


def test_style_none_says_that_nobody_is_protected():
    assert "Nobody is protected" in a_plan("none").explain()


def test_a_secret_cohort_names_what_the_server_must_keep():
    text = a_plan("user", cohort=PoissonCohort(0.5, secret=True)).calibrated(CLIENT).explain()
    assert "each client with probability 0.5, kept secret by the server" in text
    assert "charged 10 times as a secret random cohort" in text
    assert "No list, count or client's spend may leave it" in text


def test_a_known_cohort_is_said_to_be_charged_in_full():
    text = a_plan("user", cohort=FixedCohort(1)).calibrated(CLIENT).explain()
    assert "1 client drawn without replacement, not secret" in text
    assert "in full, since who takes part is not secret" in text


def test_the_ledger_of_a_secret_cohorts_clients_is_named_as_part_of_the_secret():
    secret = PoissonCohort(0.5, secret=True)
    assert "that ledger stays with the server" in a_plan("hybrid", cohort=secret).explain()
    assert "ledger" not in a_plan("user", cohort=secret).explain()


def test_a_person_in_several_sites_is_said_so():
    text = a_plan("sample", max_sites_per_person=2).calibrated(RECORD).explain()
    assert "one record in each of 2 sites" in text
    assert "nobody's record" not in text


def test_variants_and_caps_are_said():
    part = replace(BARE, norm="l1", layers="each")
    adaptive = replace(BARE, adaptive=AdaptiveClip(0.7, 0.2, 3.0))
    text = a_plan("sample", local={"a": part, "b": adaptive}, max_participations=4, spare_rounds=1).explain()
    assert "clip norm 1 in L1 with Laplace noise, shared out to every layer" in text
    assert "following the 0.7 quantile" in text
    assert "charged at most 5 times" in text


def test_many_clients_are_told_by_what_they_have_in_common():
    local = {f"c{number}": BARE for number in range(1000)} | {"last": replace(BARE, size=50)}
    lines = a_plan("sample", local=local).explain().splitlines()
    assert sum(line.startswith("- c") or "1000 clients from c0 to c999" in line for line in lines) == 1
    assert any(line.startswith("- last: 5 steps a round") for line in lines)
