"""A site decides: what a hostile server gets is one of a fixed list of words, and nothing is charged for it."""

from __future__ import annotations

import contextlib
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save

from dpfed.cli.site import release
from dpfed.errors import LeaseHeld
from dpfed.federated import wire
from dpfed.federated.keys import PublicKey, SigningKey
from dpfed.federated.sent import SentStore, read_key
from dpfed.federated.site_files import SITE_FILE
from dpfed.ledger.ledger import Ledger
from dpfed.plan.plan import Plan
from networks import Network

NOISY = {"style": "sample", "record": {"noise_multiplier": 3.0, "delta": 1e-5, "clip_norm": 1.0}}


@pytest.fixture
def network(tmp_path):
    made = Network(tmp_path / "net", rounds=2, local={"steps": 1}, privacy=NOISY, sizes={"north": 455})
    yield made
    made.close()


@pytest.fixture
def raw(tmp_path):
    """A site that trusts its server with raw updates."""
    made = Network(
        tmp_path / "net",
        rounds=2,
        spare_rounds=1,
        local={"steps": 1},
        privacy={"style": "user", "client": {"noise_multiplier": 3.0, "delta": 1e-5, "clip_norm": 1}},
        sizes={"north": 455},
        policy={"styles": ["user"]},
    )
    yield made
    made.close()


@pytest.fixture
def enrolled(network):
    assert network.ask("north", wire.ENROLL, 1).header["code"] == "ok"
    return network


def rows(network) -> int:
    with Ledger(network.files["north"].ledger_url, create=False) as ledger:
        return ledger.verify().rows


def test_a_round_is_committed_before_it_leaves_and_is_sent_again_free_of_charge(enrolled):
    first = enrolled.ask("north", wire.TRAIN, 2)
    again = enrolled.ask("north", wire.TRAIN, 3)
    assert again.header["counts"] == [1]
    enrolled.restart("north")
    later = enrolled.ask("north", wire.TRAIN, 4)
    assert [reply.header["counts"] for reply in (first, again, later)] == [[1], [1], [1]]
    for reply in (again, later):
        assert reply.arrays["value"].tobytes() == first.arrays["value"].tobytes()


def test_an_answer_echoes_the_request_by_value(enrolled):
    reply = enrolled.ask("north", wire.TRAIN, 2, nonce="only once")
    request = wire.unpack(
        enrolled.make_request("north", wire.TRAIN, 2, nonce="only once"), enrolled.study.public, wire.REQUEST, 10**9
    )
    assert {name: reply.header[name] for name in wire.ECHOED} == {name: request.header[name] for name in wire.ECHOED}


def test_a_frozen_site_sends_nothing_and_nothing_again(enrolled):
    enrolled.ask("north", wire.TRAIN, 2)
    with Ledger(enrolled.files["north"].ledger_url) as ledger:
        ledger.freeze("north-records", reason="an audit")
    reply = enrolled.ask("north", wire.TRAIN, 3)
    assert reply.header["code"] == "unavailable"
    assert reply.arrays == {}


def hostile_plan(network, **changes) -> dict:
    """Return the fields of an enrolment with a plan of which some things are otherwise."""
    plain = json.loads(network.launch().outline.plan.to_json()) | {"guarantee": None}
    local = changes.pop("local", {})
    plain["local"]["north"] |= local
    plain |= changes
    text = json.dumps(plain)
    return {"plan_text": text, "plan": wire.digest_text(text)}


def hostile_recipe(network, **changes) -> dict:
    plain = json.loads(network.launch().recipe.text)
    model = changes.pop("model", {})
    return {"recipe": json.dumps(plain | changes | {"model": plain["model"] | model})}


PLANS = {
    "no noise": {"local": {"noise_multiplier": 0.0}},
    "no noise at all": {"local": {"noise_multiplier": None}},
    "too little noise": {"local": {"noise_multiplier": 0.29}},
    "a larger clip": {"local": {"clip_norm": 1.5}},
    "another size": {"local": {"size": 456}},
    "100 more rounds": {"rounds": 102},
    "many spare rounds": {"spare_rounds": 3},
    "many steps": {"local": {"steps": 10_001}},
    "endless training": {"client_timeout": 1e6},
    "a style that sends raw updates": {"style": "none"},
    "code for an algorithm": {"algorithm": {"name": "os:system", "parameters": {}}},
    "no plan": {"version": "x"},
}
RECIPES = {
    "another model": {"model": {"kind": "cnn"}},
    "a model by code": {"model": {"kind": "os:system"}},
    "a loss by code": {"model": {"loss": "os:system"}},
    "a wider model": {"model": {"options": {"classes": 3}}},
    "a huge model": {"model": {"kind": "mlp", "options": {"hidden": [10_000_000]}}},
    "other classes": {"classes": ["benign", "malignant"]},
    "a scale that one record may not bear": {"feature_bounds": None, "scale": 1e-300},
    "bounds of one value, to ask whether it is there": {"feature_bounds": [17.99, 17.99]},
    "bounds of one column that are one value": {"feature_bounds": [[0, 1]] * 29 + [[17.99, 17.99]]},
    "bounds that are too far apart": {"feature_bounds": [-1.7e308, 1.7e308]},
    "bounds the wrong way round": {"feature_bounds": [1, 0]},
    "no recipe": {"model": {"kind": 7}},
}


@pytest.mark.parametrize("kind", ["plans", "recipes"])
def test_a_hostile_server_gets_a_fixed_word_and_reserves_nothing(network, kind):
    before = rows(network)
    cases = PLANS if kind == "plans" else RECIPES
    make = hostile_plan if kind == "plans" else hostile_recipe
    for name, changes in cases.items():
        reply = network.ask("north", wire.ENROLL, 1, **make(network, **json.loads(json.dumps(changes))))
        assert reply.header["code"] == "policy", name
        assert "counts" not in reply.header
    assert rows(network) == before
    assert network.sites["north"]._store.runs() == ()


def test_a_plan_that_costs_more_than_a_run_may_is_refused(network):
    fields = hostile_plan(network, local={"noise_multiplier": 0.31})
    assert network.ask("north", wire.ENROLL, 1, **fields).header["code"] == "policy"


def test_a_plan_that_the_account_cannot_pay_is_refused_with_the_word_budget(tmp_path):
    network = Network(tmp_path / "net", rounds=2, local={"steps": 1}, privacy=NOISY, sizes={"north": 455}, cap=0.5)
    fields = hostile_plan(network, rounds=100, local={"noise_multiplier": 1.0})
    assert network.ask("north", wire.ENROLL, 1, **fields).header["code"] == "budget"
    network.close()


def test_only_signed_requests_for_this_site_in_time_are_answered(enrolled):
    before = rows(enrolled)
    refused = {
        "of somebody else": ("policy", {"key": SigningKey.make()}),
        "for another site": ("policy", {"site": "south"}),
        "with an unknown verb": ("policy", {"verb": "execute"}),
        "too late": ("stale", {"deadline": enrolled.clock.time - 1}),
        "of a run that nobody agreed to": ("stale", {"run": "study-9"}),
        "with a path for a run": ("policy", {"run": "../study-1"}),
        "for another plan": ("policy", {"plan": "0" * 64}),
        "for another model than its digest": ("policy", {"model": "0" * 64}),
        "for a round that the plan has not": ("policy", {"round": 3}),
        "for no round": ("policy", {"round": "one"}),
        "with vectors of another shape": ("policy", {"arrays": {"weights": np.zeros(61, dtype=np.float32)}}),
        "with more vectors": ("policy", {"arrays": {"weights": np.zeros(62), "seed": np.zeros(1)}}),
        "with numbers that no model has": ("policy", {"arrays": {"weights": np.full(62, np.inf)}}),
        "with an unknown head": ("rolled_back", {"head": "99:" + "ab" * 32}),
    }
    for number, (name, (code, changes)) in enumerate(refused.items(), start=2):
        changes = dict(changes)
        reply = enrolled.ask("north", wire.TRAIN, number, changes.pop("arrays", None), **changes)
        assert (name, reply.header["code"]) == (name, code)
        assert reply.arrays == {}
    assert rows(enrolled) == before


@pytest.mark.parametrize("content", [b"", b"dpfed/1\n", pickle.dumps({"verb": "train"}), bytes(1000)])
def test_what_is_no_message_is_refused_and_nothing_of_it_is_loaded(network, content):
    reply = network.sites["north"].handle(content)
    header = wire.unpack(reply, PublicKey.parse(network.keys["north"]), wire.REPLY, 10**6).header
    assert header == {"code": "policy", "site": "north"}


@pytest.mark.parametrize("nonce", ["NaN", "-Infinity", "1e999"])
def test_a_header_that_cannot_be_echoed_is_refused_before_anything_is_charged(enrolled, nonce):
    request = wire.unpack(enrolled.make_request("north", wire.TRAIN, 2), enrolled.study.public, wire.REQUEST, 10**9)
    header = json.dumps({**request.header, "nonce": "here"}).replace('"here"', nonce)
    blob = bytes(save(dict(request.arrays), metadata={wire.HEADER: header}))
    sealed = wire.MAGIC + enrolled.study.sign(wire.MAGIC + wire.REQUEST + blob) + blob
    before, site = rows(enrolled), enrolled.sites["north"]
    with contextlib.suppress(ValueError):  # what leaves `handle` is told by what was charged, below
        reply = wire.unpack(site.handle(sealed), site._key.public, wire.REPLY, 10**9)
    assert rows(enrolled) == before
    assert reply.header["code"] == "policy"


def test_a_message_above_the_limit_is_not_read(network):
    config = network.files["north"].config
    small = config.model_copy(update={"policy": config.policy.model_copy(update={"most_bytes": 100_000})})
    network.files["north"] = replace(network.files["north"], config=small)
    network.restart("north")
    reply = network.ask("north", wire.ENROLL, 1, {"weights": np.zeros(20_000)})
    assert reply.header == {"code": "policy", "site": "north"}


def test_an_old_request_that_is_replayed_gets_nothing(enrolled):
    old = enrolled.make_request("north", wire.TRAIN, 2)
    site = enrolled.sites["north"]
    assert read(enrolled, site.handle(old)).header["code"] == "ok"
    replayed = read(enrolled, site.handle(old))
    assert (replayed.header["code"], replayed.arrays) == ("stale", {})
    enrolled.restart("north")
    assert read(enrolled, enrolled.sites["north"].handle(old)).header["code"] == "stale"


def read(network, reply):
    return wire.unpack(reply, PublicKey.parse(network.keys["north"]), wire.REPLY, 10**9)


def test_a_ledger_that_was_put_back_is_refused_though_the_server_names_no_head(enrolled):
    ledger = enrolled.folder / "north" / "ledger.db"
    enrolled.sites["north"].close()
    content = ledger.read_bytes()
    enrolled.restart("north")
    assert enrolled.ask("north", wire.TRAIN, 2).header["code"] == "ok"
    enrolled.sites["north"].close()
    for path in ledger.parent.glob("ledger.db-*"):
        path.unlink()
    ledger.write_bytes(content)
    enrolled.restart("north")
    for verb, run in ((wire.TRAIN, "study-1"), (wire.ENROLL, "study-1"), (wire.ENROLL, "another")):
        reply = enrolled.ask("north", verb, 3, run=run)
        assert (reply.header["code"], dict(reply.arrays)) == ("rolled_back", {}), verb


def test_a_ledger_that_was_put_back_after_all_runs_have_ended_is_refused(enrolled):
    ledger = enrolled.folder / "north" / "ledger.db"
    enrolled.sites["north"].close()
    content = ledger.read_bytes()
    enrolled.restart("north")
    for number, verb in enumerate((wire.TRAIN, wire.FINISH), start=2):
        assert enrolled.ask("north", verb, number).header["code"] == "ok"
    enrolled.restart("north")
    assert enrolled.ask("north", wire.ENROLL, 4, run="another").header["code"] == "ok"
    assert enrolled.ask("north", wire.FINISH, 5, run="another").header["code"] == "ok"
    enrolled.sites["north"].close()
    for path in ledger.parent.glob("ledger.db-*"):
        path.unlink()
    ledger.write_bytes(content)
    enrolled.restart("north")
    assert enrolled.ask("north", wire.ENROLL, 6, run="third").header["code"] == "rolled_back"
    for run in ("study-1", "another"):  # the owner answers for it
        reason = ["--reason", "restored", str(enrolled.folder / "north" / SITE_FILE)]
        assert CliRunner().invoke(release, [run, *reason]).exit_code == 0
    assert enrolled.ask("north", wire.ENROLL, 7, run="third").header["code"] == "ok"


def test_a_reservation_that_is_used_up_answers_exhausted(enrolled):
    other = {"weights": np.zeros(62, dtype=np.float32)}
    codes = [enrolled.ask("north", wire.TRAIN, n, {"weights": other["weights"] + n}).header["code"] for n in (2, 3, 4)]
    assert codes == ["ok", "ok", "exhausted"]
    enrolled.restart("north")
    kept = enrolled.ask("north", wire.TRAIN, 5, {"weights": other["weights"] + 3})
    assert (kept.header["code"], kept.header["counts"]) == ("ok", [2])


def test_finishing_releases_the_rest_and_forgets_what_was_kept(enrolled):
    enrolled.ask("north", wire.TRAIN, 2)
    assert enrolled.ask("north", wire.FINISH, 3).header["code"] == "ok"
    with Ledger(enrolled.files["north"].ledger_url) as ledger:
        assert ledger.reservations() == ()
    assert [path.name for path in (enrolled.folder / "north" / "sent").rglob("*")] == ["study-1", "ended"]
    assert enrolled.ask("north", wire.TRAIN, 4).header["code"] == "stale"


def test_what_was_asked_of_a_run_that_has_ended_does_not_begin_it_again(raw):
    old = [raw.make_request("north", verb, number) for verb, number in ((wire.ENROLL, 1), (wire.TRAIN, 2))]
    site = raw.sites["north"]
    assert [read(raw, site.handle(each)).header["code"] for each in old] == ["ok", "ok"]
    assert raw.ask("north", wire.FINISH, 3).header["code"] == "ok"
    for each in old:
        replayed = read(raw, site.handle(each))
        assert (replayed.header["code"], replayed.arrays) == ("stale", {})
    raw.restart("north")
    assert read(raw, raw.sites["north"].handle(old[0])).header["code"] == "stale"
    assert raw.ask("north", wire.ENROLL, 1, run="study-2").header["code"] == "ok"


def test_raw_updates_leave_as_often_as_the_plan_has_rounds_whichever_models_are_sent(raw):
    raw.ask("north", wire.ENROLL, 1)
    models = {number: {"weights": np.full(62, number, dtype=np.float32)} for number in range(2, 6)}
    codes = [raw.ask("north", wire.TRAIN, number, model).header["code"] for number, model in models.items()]
    assert codes == ["ok", "ok", "ok", "exhausted"]  # two rounds and a spare one
    raw.restart("north")
    assert raw.ask("north", wire.TRAIN, 6, models[5]).header["code"] == "exhausted"
    assert raw.ask("north", wire.TRAIN, 7, models[4]).header["code"] == "ok"  # what left before


def test_a_study_that_begins_run_after_run_gets_no_more_raw_updates_than_the_policy_says(tmp_path):
    """Nobody is charged for them at the site, so that no cap holds: the policy counts them."""
    user = {"style": "user", "client": {"noise_multiplier": 3.0, "delta": 1e-5, "clip_norm": 1}}
    policy = {"styles": ["user"], "most_raw_updates": 3}
    made = Network(tmp_path / "net", rounds=2, privacy=user, sizes={"north": 455}, policy=policy, local={"steps": 1})
    codes = []
    for run in ("study-1", "study-2", "study-3"):
        made.ask("north", wire.ENROLL, 1, run=run)
        models = [{"weights": np.full(62, number, dtype=np.float32)} for number in (2, 3)]
        codes += [made.ask("north", wire.TRAIN, 2 + i, models[i], run=run).header["code"] for i in range(2)]
        made.ask("north", wire.FINISH, 4, run=run)
        made.restart("north")
    made.close()
    assert codes == ["ok", "ok", "ok", "exhausted", "exhausted", "exhausted"]


def test_the_owner_ends_a_run_that_the_site_s_process_holds(enrolled):
    enrolled.ask("north", wire.TRAIN, 2)
    site, file = enrolled.sites["north"], enrolled.files["north"]
    store = SentStore(file.find("sent"), read_key(file.find("sent.key")))
    site.release_asked()
    assert store.runs() == ("study-1",)
    store.ask_release("study-1", "the study was stopped")
    site.release_asked()
    with Ledger(file.ledger_url) as ledger:
        assert ledger.reservations() == ()
        assert "the study was stopped" in str(ledger.statement("north-records").lines[-1])
    assert (store.asked_releases(), store.has_ended("study-1")) == ({}, True)
    assert enrolled.ask("north", wire.TRAIN, 3).header["code"] == "stale"


def test_what_cannot_be_released_is_said_in_the_log_and_asked_no_more(enrolled, caplog, monkeypatch):
    def refuse(*_, **__):
        raise LeaseHeld("another process works on it")

    store = enrolled.sites["north"]._store
    monkeypatch.setattr(Ledger, "release", refuse)
    store.ask_release("study-1", "the study was stopped")
    enrolled.sites["north"].release_asked()
    assert (store.asked_releases(), store.has_ended("study-1")) == ({}, False)
    assert "study-1 was not released: another process" in caplog.text
    assert enrolled.ask("north", wire.TRAIN, 3).header["code"] == "ok"


def test_a_status_reply_tells_counts_and_no_round(enrolled):
    enrolled.ask("north", wire.TRAIN, 2)
    header = enrolled.ask("north", wire.STATUS, 3, round=0).header
    assert (header["code"], header["counts"], header["last"]) == ("ok", [1], 3)
    assert set(header) == {*wire.ECHOED, "code", "counts", "head", "is_private", "last"}


def test_raw_updates_are_deleted_when_the_next_round_is_asked_for(raw):
    network = raw
    network.ask("north", wire.ENROLL, 1)
    first = network.ask("north", wire.TRAIN, 2).arrays["value"]
    kept = network.folder / "north" / "sent" / "study-1"
    assert first.tobytes() not in (kept / "round-000001").read_bytes()  # encrypted
    network.ask("north", wire.TRAIN, 3, round=2)
    assert not (kept / "round-000001").exists()


def test_a_plan_is_the_one_of_its_digest_and_a_run_keeps_it(enrolled):
    other = hostile_plan(enrolled, local={"noise_multiplier": 4.0})
    lying = enrolled.ask("north", wire.ENROLL, 2, run="study-2", plan_text=other["plan_text"])
    changed = enrolled.ask("north", wire.ENROLL, 3, **other)
    assert [reply.header["code"] for reply in (lying, changed)] == ["policy", "policy"]
    assert enrolled.ask("north", wire.ENROLL, 4).header["code"] == "ok"


def test_a_site_that_is_busy_says_so(enrolled):
    with enrolled.sites["north"]._lock:
        assert enrolled.ask("north", wire.TRAIN, 2).header["code"] == "busy"


def test_an_error_that_is_none_of_ours_is_a_code_and_its_text_stays_out_of_the_log(enrolled, caplog, monkeypatch):
    run = enrolled.sites["north"]._runs["study-1"]
    monkeypatch.setattr(run, "find_kept", lambda *_: 1 / 0)
    assert enrolled.ask("north", wire.TRAIN, 2).header["code"] == "unavailable"
    assert "division" not in caplog.text


def test_a_site_with_a_seed_says_that_it_is_not_private(enrolled):
    assert enrolled.ask("north", wire.STATUS, 2).header["is_private"] is False


def test_the_plan_that_is_charged_is_the_one_that_is_executed(enrolled):
    run = enrolled.sites["north"]._runs["study-1"]
    assert replace(run.plan, name="hospitals") == Plan.from_json(enrolled.launch().outline.plan.to_json())
    assert enrolled.folder.joinpath("north", SITE_FILE).exists()
