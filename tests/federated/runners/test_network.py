"""The network runner at its socket: which plans it takes, whose answers it believes, and what it counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfed.config.network import SiteKeys
from dpfed.config.training import Local, Model
from dpfed.errors import InvalidArgument, SiteRefused
from dpfed.federated import wire
from dpfed.federated.asks import AskBook
from dpfed.federated.keys import PublicKey, SigningKey
from dpfed.federated.messages import Failure, Task, Update
from dpfed.federated.recipe import Recipe
from dpfed.federated.runners.network import NetworkRunner, Peer, StudyAccount
from dpfed.federated.wire import Message
from dpfed.plan.measure import Measurement
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan, PoissonCohort
from networks import MemoryTransport, TestClock

LOCAL = LocalPlan(size=100, batch_size=10, steps=5, clip_norm=1.0, noise_multiplier=2.0)
PLAN = Plan("study", rounds=3, local={"north": LOCAL, "south": LOCAL}, spare_rounds=1)
RECIPE = Recipe(
    model=Model(kind="logistic"), local=Local(steps=5, batch_size=10, learning_rate=1), shape=(2,), classes=("a", "b")
)
TASK = Task(1, {"weights": np.zeros(2)})


class World:
    """Two sites that are scripts: each answers as it is told, signed with its own key."""

    def __init__(self, folder, plan=PLAN):
        self.clock = TestClock()
        self.study = SigningKey.make()
        self.keys = {name: SigningKey.make() for name in plan.local}
        self.answers = {name: {} for name in plan.local}
        self.requests: list[Message] = []
        handles = {self.keys[name].public.text: self.answer(name) for name in plan.local}
        self.transport = MemoryTransport(self.clock, handles)
        self.path = folder / "asks.jsonl"
        self.runner = self.start(plan)

    def start(self, plan=PLAN):
        peers = {name: Peer.of(SiteKeys(key=key.public.text)) for name, key in self.keys.items()}
        book = AskBook(self.path, b"a secret")
        times = {"now": self.clock.now, "pause": self.clock.pause}
        return NetworkRunner(self.transport, peers, self.study, book, plan, RECIPE, **times)

    def answer(self, name):
        def answers(content):
            request = wire.unpack(content, self.study.public, wire.REQUEST, 10**7)
            self.requests.append(request)
            header = {key: request.header[key] for key in wire.ECHOED}
            header |= {"code": "ok", "counts": [0], "head": "3:" + "ab" * 32, "is_private": True}
            header |= {"last": header["number"]} | self.answers[name]
            arrays = {"value": np.ones(2)} if header["verb"] in wire.CHARGED and header["code"] == "ok" else {}
            return wire.pack(Message(header, arrays), self.keys[name], wire.REPLY)

        return answers


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.runner.enroll(PLAN, np.zeros(2))
    return made


def test_every_verb_is_signed_and_names_run_plan_and_head(world):
    list(world.runner.train(TASK, ["north", "south"]))
    world.runner.finish("study")
    verbs = [request.header["verb"] for request in world.requests]
    assert verbs == ["enroll"] * 2 + ["train"] * 2 + ["finish"] * 2
    assert {request.header["plan"] for request in world.requests} == {wire.digest_text(PLAN.to_json())}
    assert len({request.header["run"] for request in world.requests}) == 1
    assert len({request.header["nonce"] for request in world.requests}) == 6
    assert [request.header["head"] for request in world.requests[2:4]] == ["3:" + "ab" * 32] * 2


def test_updates_come_with_the_servers_own_head(world):
    found = list(world.runner.train(TASK, ["north", "south", "north"]))
    assert {update.client: update.head for update in found if isinstance(update, Update)} == {
        "north": "0:none",
        "south": "0:none",
    }


def test_measurements_are_counted_apart_from_rounds_and_each_ask_counts_until_it_is_heard(tmp_path):
    plan = replace(PLAN, measurement=Measurement(("accuracy",), epsilon=0.5, rounds=(1, 3), classes=2))
    world = World(tmp_path, plan)
    world.answers = {"north": {"counts": [4, 1]}, "south": {"counts": [0, 0]}}
    world.runner.enroll(plan, np.zeros(2))
    world.answers["south"] = {"code": "busy"}
    assert list(world.runner.train(TASK, ["north"])) == [Failure("north", "exhausted")]
    found = {outcome.client: type(outcome) for outcome in world.runner.measure(TASK, ["north", "south"])}
    assert found == {"north": Update, "south": Failure}
    charged = world.runner.charged()
    assert (charged.local, charged.measured) == ({"north": 4, "south": 0}, {"north": 1, "south": 3})
    world.answers["north"] = {"counts": [4, 3]}
    list(world.runner.measure(TASK, ["north"]))
    assert list(world.runner.measure(TASK, ["north"])) == [Failure("north", "exhausted")]


@pytest.mark.parametrize(
    ("code", "reason"),
    [("exhausted", "exhausted"), ("policy", "failed"), ("unavailable", "failed"), ("rolled_back", "failed")],
)
def test_a_code_is_a_failure_of_that_site_alone(world, code, reason):
    world.answers["south"] = {"code": code, "counts": [1]}
    outcomes = {outcome.client: outcome for outcome in world.runner.train(TASK, ["north", "south"])}
    assert isinstance(outcomes["north"], Update)
    assert outcomes["south"] == Failure("south", reason)


def test_a_busy_site_is_asked_again_and_each_ask_counts_until_it_is_heard(world):
    world.answers["south"] = {"code": "busy"}
    outcomes = list(world.runner.train(TASK, ["south"]))
    assert outcomes == [Failure("south", "failed")]
    assert len(world.requests) > 10
    assert world.runner.charged().local == {"north": 0, "south": 4}
    assert world.start().charged().local == {"north": 0, "south": 4}  # in another process too


@pytest.mark.parametrize("name", wire.ECHOED)
def test_an_answer_to_another_request_is_not_used(world, name):
    world.answers["south"] = {name: "another"}
    assert list(world.runner.train(TASK, ["south"])) == [Failure("south", "failed")]
    assert world.runner.charged().local["south"] == 3


def test_counts_of_a_rolled_back_ledger_settle_nothing(world):
    world.answers["south"] = {"counts": [2]}
    list(world.runner.train(TASK, ["south"]))
    world.answers["south"] = {"counts": [0], "code": "rolled_back"}
    list(world.runner.train(TASK, ["south"]))
    assert world.runner.charged().local["south"] == 3


@pytest.mark.parametrize("counts", [[-1], [5], ["1"], [1, 1], None, 1, [1.5]])
def test_counts_that_cannot_be_true_settle_nothing(world, counts):
    world.answers["south"] = {"counts": counts}
    list(world.runner.train(TASK, ["south"]))
    assert world.runner.charged().local["south"] == 1


def test_a_number_that_the_site_has_answered_already_is_raised_above_it(world):
    def stale_first(content):
        request = wire.unpack(content, world.study.public, wire.REQUEST, 10**7)
        code = {"code": "stale", "last": 40} if request.header["number"] <= 40 else {}
        world.answers["south"] = code
        return world.answer("south")(content)

    world.transport.handles[world.keys["south"].public.text] = stale_first
    (found,) = world.runner.train(TASK, ["south"])
    assert isinstance(found, Update)
    assert world.requests[-1].header["number"] == 41


def test_a_site_that_says_its_noise_can_be_predicted_stamps_the_run(world):
    assert world.runner.is_private
    world.answers["south"] = {"is_private": False}
    list(world.runner.train(TASK, ["south"]))
    assert not world.runner.is_private
    assert not world.start().is_private


def test_a_new_run_that_one_site_refuses_is_ended_at_the_others(tmp_path):
    world = World(tmp_path)
    world.answers["south"] = {"code": "budget"}
    with pytest.raises(SiteRefused, match=r"south \(budget\)"):
        world.runner.enroll(PLAN, np.zeros(2))
    ended = [request.header["site"] for request in world.requests if request.header["verb"] == "finish"]
    assert ended == ["north"]
    first = world.requests[0].header["run"]
    world.answers["south"] = {}
    world.runner.enroll(PLAN, np.zeros(2))
    assert world.requests[-1].header["run"] != first


def test_a_run_that_goes_on_does_so_without_a_site_that_is_away(world):
    world.transport.away.add(world.keys["south"].public.text)
    runner = world.start()
    runner.enroll(PLAN, np.zeros(2), [], counted=[])
    outcomes = {outcome.client: type(outcome) for outcome in runner.train(TASK, ["north", "south"])}
    assert outcomes == {"north": Update, "south": Failure}
    assert runner.charged().local["south"] == 0  # nothing was sent to it


def test_files_are_sealed_with_a_secret_of_the_study(world):
    assert world.runner.key(PLAN) == world.start().key(PLAN)
    assert world.runner.key(PLAN) != world.runner.key(replace(PLAN, name="another"))
    assert world.runner.seals_files(PLAN)


def make_shuffled_plan():
    noise = ClientPlan(clip_norm=1.0, noise_multiplier=2.0, norm="l1", shuffle_users=2)
    local = {name: replace(LOCAL, noise_multiplier=None) for name in PLAN.local}
    return Plan("study", rounds=3, local=local, style="local", client=noise, weighting="equal")


def test_plans_that_a_network_is_not_for_are_refused(tmp_path):
    secret = replace(PLAN, cohort=PoissonCohort(0.5, secret=True), weighting="equal")
    with pytest.raises(InvalidArgument, match="the cohort cannot be secret"):
        World(tmp_path, secret).runner.enroll(secret, np.zeros(2))
    shuffled = make_shuffled_plan()
    with pytest.raises(InvalidArgument, match="no shuffler hides it: leave shuffle out"):
        World(tmp_path, shuffled).runner.enroll(shuffled, np.zeros(2))
    other = World(tmp_path).runner
    with pytest.raises(InvalidArgument, match="for another plan"):
        other.enroll(secret, np.zeros(2))


def test_a_study_account_is_needed_where_the_server_adds_noise():
    bare = replace(LOCAL, noise_multiplier=None)
    plan = Plan(
        "s", 1, {"a": bare}, style="user", client=ClientPlan(clip_norm=1.0, noise_multiplier=1.0), weighting="equal"
    )
    with pytest.raises(InvalidArgument, match="needs a study account"):
        StudyAccount(None, {}).charges(plan)
    assert StudyAccount(None, {}, "study").charges(plan) == {"study": plan.study_charges()}
    assert StudyAccount(None, {}, None).charges(PLAN) == {}


def test_a_peer_is_found_by_its_nodes_key_and_believed_by_its_own():
    key, node = SigningKey.make().public.text, "ecdsa-sha2-nistp384 AAAA"
    peer = Peer.of(SiteKeys(key=f"{key} north", node=f"{node} a comment"))
    assert (peer.key, peer.node) == (PublicKey.parse(key), node)
