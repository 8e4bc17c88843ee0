"""What leaves a site that wraps its own Flower client: at zero noise, by every way that an answer has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import TensorDataset

from dpfed.errors import InvalidArgument
from dpfed.integrations.flower_app import private_app, private_model
from dpfed.integrations.flower_policy import SitePolicy
from dpfed.ledger.ledger import Ledger
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import SeededSource
from flower_apps import (
    SENT,
    MemoryGrid,
    app_of,
    ask,
    ask_old,
    context_of,
    count_charges,
    flower_task,
    record_of,
    tell,
    vector_of,
)
from studies import Crash, SilentSource

CLIP = 0.5
SITE, ROWS = "north", "rows"
FAILED = (2, "dpfed: failed")


@pytest.fixture(autouse=True)
def task():
    with flower_task():
        yield


@pytest.fixture
def url(tmp_path):
    """A ledger with an account for the whole site, and one for a record of other data."""
    return make_ledger(tmp_path)


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    """A policy of many rounds without noise, for tests that look at no charge."""
    return local_policy(make_ledger(tmp_path_factory.mktemp("silent")), rounds=200, source=SilentSource())


def make_ledger(folder):
    url = f"sqlite:///{folder / 'ledger.db'}"
    with Ledger(url) as ledger:
        ledger.open(SITE, epsilon=20.0, delta=1e-5, unit="client", adjacency="replace_one")
        ledger.open(ROWS, epsilon=20.0, delta=1e-5)
    return url


def local_policy(url, rounds=4, source=None, **settings):
    settings = {"account": SITE, "epsilon": 8.0, "delta": 1e-5, "clip_norm": CLIP} | settings
    return SitePolicy.local("study", rounds=rounds, ledger=url, source=source, **settings)


def sample_policy(url, source=None, **settings):
    steps = LocalPlan(size=40, batch_size=10, steps=3, clip_norm=1.0)
    settings = {"account": ROWS, "epsilon": 8.0, "delta": 1e-5, "rounds": 3} | settings
    return SitePolicy.sample("study", steps=steps, ledger=url, source=source, **settings)


def answer_with(arrays, message, **metrics):
    content = RecordDict({"arrays": record_of(arrays), "metrics": MetricRecord({"num-examples": 1, **metrics})})
    return Message(content, reply_to=message)


def moved(by):
    """A client whose training moves every number of the model by that much."""
    return app_of(lambda message, context: answer_with({name: array + by for name, array in SENT.items()}, message))


def call(client, policy, message=None):
    return private_app(client, policy)(ask() if message is None else message, context_of())


def sent_vector():
    return np.concatenate([array.ravel() for array in SENT.values()]).astype(np.float64)


# ---- the update ----


def test_any_two_clients_are_at_most_two_clip_norms_apart_at_zero_noise(silent):
    draws = SeededSource(3)
    answers = [sent_vector()]
    for scale in np.logspace(-6, 30, 13):
        update = np.float32(scale) * draws.normal((4,)).astype(np.float32)
        client = app_of(
            lambda message, context, update=update: answer_with(
                {"weight": SENT["weight"] + update[:3], "bias": SENT["bias"] + update[3:]}, message
            )
        )
        answers.append(vector_of(call(client, silent)))
    distances = [np.linalg.norm(one - other) for one in answers for other in answers]
    assert max(distances) <= 2 * CLIP + 1e-6
    assert max(np.linalg.norm(one - sent_vector()) for one in answers) == pytest.approx(CLIP, rel=1e-6)


def test_opposite_clients_are_two_clip_norms_apart_which_is_what_is_charged(silent):
    distance = np.linalg.norm(vector_of(call(moved(9.0), silent)) - vector_of(call(moved(-9.0), silent)))
    assert distance == pytest.approx(2 * CLIP, rel=1e-6)
    assert float(silent.plan.client_release.sensitivity) == pytest.approx(distance, rel=1e-6)


def test_the_noise_that_leaves_is_the_noise_that_is_charged(url):
    """20,000 numbers: their standard deviation is off by 2.5 % with a chance of about 6e-7."""
    arrays = {"weight": np.zeros(20_000, np.float64)}
    policy = local_policy(url, source=SeededSource(5))
    reply = call(app_of(lambda message, context: answer_with(arrays, message)), policy, ask(arrays))
    ((event, times),) = policy.plan.local_charges("site").items()
    assert times == 4
    assert np.std(vector_of(reply)) == pytest.approx(event.noise_multiplier * CLIP, rel=0.025)


def test_no_two_trainings_have_the_same_noise(url):
    policy = local_policy(url, source=SeededSource(5))
    one, other = (vector_of(call(moved(0.0), policy)) for _ in range(2))
    assert not np.isclose(one, other).any()


def test_noise_is_unpredictable_unless_somebody_asks_for_a_seed(url):
    assert local_policy(url).noise_source(1).is_private


# ---- everything else that an answer could tell ----


def with_content(make):
    return lambda secret: app_of(
        lambda message, context: Message(RecordDict({"arrays": record_of(SENT), **make(secret)}), reply_to=message)
    )


def raising(kind):
    def make(secret):
        def train(message, context):
            if secret > 1:
                raise kind(f"secret {secret}")
            return answer_with(SENT, message)

        return app_of(train)

    return make


def writing_into(change):
    def make(secret):
        def train(message, context):
            change(message, secret)
            return answer_with(SENT, message)

        return app_of(train)

    return make


def sometimes(arrays):
    """A client that sends other arrays than it was sent if its records are so."""
    return lambda secret: app_of(
        lambda message, context: answer_with(arrays if secret > 1 else SENT, message, loss=float(secret))
    )


class Stop(BaseException):
    pass


def old(**results):
    """A client of the older API that returns the secret in every place there is."""

    class Old(NumPyClient):
        def __init__(self, secret):
            self.secret = secret

        def get_properties(self, config):
            return {"secret": self.secret}

        def get_parameters(self, config):
            return [np.full(2, self.secret)]

        def fit(self, parameters, config):
            extra = [np.full(3, self.secret)] if self.secret > 1 and results.get("extra") else []
            return [*parameters, *extra], self.secret, {"loss": float(self.secret), f"key {self.secret}": 1}

        def evaluate(self, parameters, config):
            return float(self.secret), self.secret, {"accuracy": float(self.secret)}

    return lambda secret: lambda context: Old(secret).to_client()


LEAKS = {
    "a metric": with_content(lambda secret: {"metrics": MetricRecord({"num-examples": 1, "loss": float(secret)})}),
    "a count of examples": with_content(lambda secret: {"metrics": MetricRecord({"num-examples": secret})}),
    "the name of a metric": with_content(lambda secret: {"metrics": MetricRecord({f"loss {secret}": 1.0})}),
    "a record of settings": with_content(lambda secret: {"config": ConfigRecord({"note": f"secret {secret}"})}),
    "the name of a record": with_content(lambda secret: {f"record {secret}": ConfigRecord({})}),
    "a second record of arrays": with_content(lambda secret: {"more": record_of({"rows": np.full(3, secret)})}),
    "one array more": sometimes({**SENT, "rows": np.ones(3)}),
    "one array less": sometimes({"weight": SENT["weight"]}),
    "no array": sometimes({}),
    "another name": sometimes({"weight": SENT["weight"], "secret": SENT["bias"]}),
    "another order": sometimes(dict(reversed(SENT.items()))),
    "another shape": sometimes({**SENT, "weight": np.ones((2, 3), np.float32)}),
    "a shape of as many numbers": sometimes({**SENT, "weight": SENT["weight"].reshape(3, 1)}),
    "another type": sometimes({name: array.astype(np.float64) for name, array in SENT.items()}),
    "whole numbers": sometimes({name: array.astype(np.int64) for name, array in SENT.items()}),
    "texts": sometimes({name: np.full(array.shape, "secret") for name, array in SENT.items()}),
    "no numbers": sometimes({name: np.full_like(array, np.nan) for name, array in SENT.items()}),
    "one that is infinite": sometimes({**SENT, "bias": np.array([np.inf], np.float32)}),
    "an error": raising(ValueError),
    "an exit": raising(SystemExit),
    "what is no Exception": raising(Stop),
    "an error of dpfed": raising(lambda text: InvalidArgument(text, text)),
    "a message that is an error": lambda secret: app_of(
        lambda message, context: Message(Error(secret, f"secret {secret}"), reply_to=message)
    ),
    "bytes that are no array": lambda secret: app_of(
        lambda message, context: Message(
            RecordDict({"arrays": ArrayRecord({name: Array("float32", (), "x", b"1" * secret) for name in SENT})}),
            reply_to=message,
        )
    ),
    "no message": lambda secret: app_of(lambda message, context: secret),
    "metadata": writing_into(lambda message, secret: setattr(message.metadata, "group_id", f"secret {secret}")),
    "whom it goes to": writing_into(lambda message, secret: setattr(message.metadata, "dst_node_id", secret)),
    "the type of the message": writing_into(
        lambda message, secret: setattr(message.metadata, "message_type", f"train.secret_{secret}")
    ),
    "what was sent": writing_into(lambda message, secret: message.content.update({"x": ConfigRecord({"s": secret})})),
    "the arrays that were sent": writing_into(
        lambda message, secret: message.content["arrays"].update({"rows": record_of({"r": np.ones(secret)})["r"]})
    ),
    "a mod's metric": lambda secret: ClientApp(
        client_fn=old()(secret),
        mods=[
            lambda message, context, following: Message(
                RecordDict({f"m {secret}": MetricRecord({"s": secret})}), reply_to=message
            )
        ],
    ),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_an_answer_tells_nothing_beside_its_numbers(silent, leak):
    one, other = (call(LEAKS[leak](secret), silent) for secret in (1, 17))
    assert tell(one) == tell(other)
    assert tell(one)["others"] == {"metrics": {"num-examples": 1}}
    assert np.linalg.norm(vector_of(one) - vector_of(other)) <= 2 * CLIP + 1e-6
    assert np.isfinite(vector_of(other)).all()


@pytest.mark.parametrize("extra", [False, True])
def test_an_answer_in_the_older_form_tells_nothing_beside_its_numbers(url, extra):
    policy = local_policy(url, source=SilentSource(), weight=3)
    one, other = (call(old(extra=extra)(secret), policy, ask_old()) for secret in (1, 17))
    assert tell(one) == tell(other)
    assert tell(one)["others"] == {
        "fitres.num_examples": {"num_examples": 3},
        "fitres.metrics": {},
        "fitres.status": {"code": 0, "message": "Success"},
    }
    assert vector_of(other) == pytest.approx(sent_vector())


@pytest.mark.parametrize("kind", ["evaluate", "query", "query.secret", "get_parameters", "get_properties", "reconnect"])
def test_whatever_is_not_training_is_withheld_and_runs_nothing(url, kind):
    def client_fn(context):
        raise AssertionError("the client was made")

    reply = call(client_fn, local_policy(url), ask_old(kind=kind))
    assert tell(reply)["error"] == (2, "dpfed: withheld")
    assert count_charges(url, SITE) == 0


def test_what_was_sent_and_is_no_float_comes_back_as_it_was(url):
    arrays = {**SENT, "seen": np.array(41, np.int64)}
    client = app_of(lambda message, context: answer_with({**arrays, "seen": np.array(99, np.int64)}, message))
    reply = call(client, local_policy(url), ask(arrays))
    assert reply.content["arrays"]["seen"].numpy() == 41


def test_a_single_number_is_clipped_with_the_rest(url):
    arrays = {"weight": SENT["weight"], "temperature": np.array(1.0, np.float32)}
    client = app_of(lambda message, context: answer_with({**arrays, "temperature": np.array(1e6, np.float32)}, message))
    reply = call(client, local_policy(url, source=SilentSource()), ask(arrays))
    assert reply.content["arrays"]["temperature"].numpy() == pytest.approx(1.0 + CLIP)


# ---- the charge ----


def test_a_training_is_on_disk_before_the_client_sees_it(url):
    seen = []

    def train(message, context):
        seen.append(count_charges(url, SITE))
        return answer_with(SENT, message)

    for _ in range(2):
        call(app_of(train), local_policy(url))
    assert seen == [1, 2]


def test_a_crash_after_the_charge_costs_and_gives_nothing_away(url):
    def crash(message, context):
        raise Crash

    policy = local_policy(url, rounds=2, source=SeededSource(2))
    with pytest.raises(Crash):
        call(app_of(crash), policy)
    assert count_charges(url, SITE) == 1
    assert not call(moved(0.0), policy).has_error()
    assert tell(call(moved(0.0), policy))["error"] == (2, "dpfed: exhausted")
    assert count_charges(url, SITE) == 2
    with Ledger(url, create=False) as ledger:
        ledger.verify()


def test_a_spent_run_is_refused_before_the_client_runs(url):
    ran = []
    app = app_of(lambda message, context: ran.append(1) or answer_with(SENT, message))
    for _ in range(3):
        reply = call(app, local_policy(url, rounds=2))
    assert (len(ran), tell(reply)["error"]) == (2, (2, "dpfed: exhausted"))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda policy, url: replace(policy, account="nobody"), "unavailable"),
        (lambda policy, url: replace(policy, account=ROWS), "policy"),
        (lambda policy, url: replace(policy, ledger=url.replace("ledger.db", "none.db")), "unavailable"),
        (lambda policy, url: local_policy(url, rounds=400, epsilon=3000.0), "budget"),
        (lambda policy, url: lambda context: context.node_config["secret"], "policy"),
        (lambda policy, url: Ledger(url).freeze(SITE, reason="a question") or policy, "unavailable"),
    ],
)
def test_what_cannot_be_paid_is_refused_by_a_code_and_the_client_never_runs(url, change, code):
    ran = []
    app = app_of(lambda message, context: ran.append(1))
    reply = call(app, change(local_policy(url), url))
    assert (tell(reply)["error"], ran) == ((2, f"dpfed: {code}"), [])


def test_a_ledger_that_was_rolled_back_in_a_run_is_refused(url):
    app, context = private_app(moved(0.1), local_policy(url)), context_of()
    assert not app(ask(), context).has_error()
    assert not app(ask(), context).has_error()
    context.state["dpfed.ledger"]["head"] = f"999:{'0' * 64}"  # a head that the ledger had, and lacks now
    assert tell(app(ask(), context))["error"] == (2, "dpfed: rolled_back")
    assert count_charges(url, SITE) == 2


def test_a_policy_is_made_of_what_the_site_was_started_with_alone(url):
    seen = []
    context = context_of(7, own="site")
    context.run_config = {"epsilon": 1e9}

    def policy(context):
        seen.append((dict(context.node_config), dict(context.run_config)))
        return local_policy(url)

    private_app(moved(0.1), policy)(ask(), context)
    assert seen == [({"own": "site"}, {})]
    assert context.run_config == {"epsilon": 1e9}  # the client's own code has it


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"a": record_of(SENT), "b": record_of(SENT)}),
        RecordDict({"a": ArrayRecord()}),
        RecordDict({"a": record_of({"counter": np.array([3])})}),
        RecordDict({"a": record_of({"text": np.array(["model"])})}),
    ],
)
def test_a_request_that_is_no_model_costs_nothing(url, content):
    reply = call(moved(1.0), local_policy(url), Message(content, dst_node_id=7, message_type="train"))
    assert tell(reply)["error"] == (2, "dpfed: request")
    assert count_charges(url, SITE) == 0


def test_functions_and_lifespans_are_registered_with_the_wrapped_app_only(url):
    app = private_app(moved(1.0), local_policy(url))
    with pytest.raises(ValueError, match="not both"):
        app.train()(lambda message, context: message)
    with pytest.raises(InvalidArgument, match="given to private_app"):
        app.lifespan()


# ---- private steps ----

DATA = TensorDataset(torch.linspace(-1, 1, 120).reshape(40, 3), torch.ones(40, 1))


def squares(output, target):
    return (output - target).square().sum(1)


def train_by(own, returned=None):
    """A client that trains a linear model through `private_model`, with `own` code in the middle."""

    def train(message, context):
        model = nn.Linear(3, 1)
        private = private_model(model, torch.optim.SGD(model.parameters(), lr=0.5), DATA, loss=squares)
        own(private, model)
        return answer_with(SENT if returned is None else returned, message, loss=0.25)

    return app_of(train)


def all_steps(private, model):
    for batch in private.loader:
        private.step(batch)


def test_what_private_steps_released_leaves_and_not_what_the_client_returns(url):
    found = {}

    def own(private, model):
        all_steps(private, model)
        found.update({name: value.detach().clone() for name, value in model.named_parameters()})
        with torch.no_grad():
            model.weight.fill_(1234.0)  # after the last step

    reply = call(train_by(own, {name: array + 77 for name, array in SENT.items()}), sample_policy(url))
    assert tell(reply)["others"] == {"metrics": {"num-examples": 1}}
    for name, value in found.items():
        assert np.array_equal(reply.content["arrays"][name].numpy(), value.numpy())
    assert count_charges(url, ROWS) == 1


def test_a_model_starts_from_what_the_server_sent(url):
    starts = []

    def own(private, model):
        starts.append(model.weight.detach().clone().numpy())
        all_steps(private, model)

    call(train_by(own), sample_policy(url))
    assert np.array_equal(starts[0], SENT["weight"])


def change_between(private, model):
    for number, batch in enumerate(private.loader):
        if number == 1:
            with torch.no_grad():
                model.bias.add_(1.0)
        private.step(batch)


def stop_early(private, model):
    for batch in private.loader:
        private.step(batch)
        break


def train_twice(private, model):
    all_steps(private, model)
    again = nn.Linear(3, 1)
    private_model(again, torch.optim.SGD(again.parameters(), lr=0.5), DATA, loss=squares)


def leak_an_error(private, model):
    raise ValueError(f"secret {DATA[3]}")


@pytest.mark.parametrize("own", [change_between, stop_early, train_twice, leak_an_error])
def test_steps_that_are_not_all_private_are_answered_with_a_fixed_code(url, own):
    reply = call(train_by(own), sample_policy(url))
    assert tell(reply)["error"] == FAILED
    assert count_charges(url, ROWS) == 1


def test_a_charge_without_a_private_model_lets_nothing_out(url):
    reply = call(moved(3.0), sample_policy(url))
    assert tell(reply)["error"] == FAILED
    assert count_charges(url, ROWS) == 1


def test_a_private_model_outside_a_paid_round_is_refused(url):
    model = nn.Linear(3, 1)
    call(train_by(all_steps), sample_policy(url))
    with pytest.raises(InvalidArgument, match="nothing is paid for"):
        private_model(model, torch.optim.SGD(model.parameters(), lr=0.5), DATA, loss=squares)


def test_private_steps_work_in_the_older_api_too(url):
    class Old(NumPyClient):
        def fit(self, parameters, config):
            model = nn.Linear(3, 1)
            private = private_model(model, torch.optim.SGD(model.parameters(), lr=0.5), DATA, loss=squares)
            all_steps(private, model)
            return [array + 77 for array in parameters], 40, {"loss": 0.25}

    reply = call(lambda context: Old().to_client(), sample_policy(url), ask_old())
    assert list(reply.content.array_records["fitres.parameters"]) == ["0", "1"]
    assert 0 < np.linalg.norm(vector_of(reply) - sent_vector()) < 50


# ---- with Flower's own strategy ----


def test_three_sites_train_two_rounds_under_flowers_own_fedavg(tmp_path):
    urls = {node: f"sqlite:///{tmp_path / f'{node}.db'}" for node in (1, 2, 3)}
    for url in urls.values():
        with Ledger(url) as ledger:
            ledger.open(SITE, epsilon=9.0, delta=1e-5, unit="client", adjacency="replace_one")
    app = private_app(moved(0.1), lambda context: local_policy(context.node_config["ledger"], rounds=2))
    grid = MemoryGrid(dict.fromkeys(urls, app))
    grid.contexts = {node: context_of(node, ledger=url) for node, url in urls.items()}
    found = FedAvg(min_train_nodes=3, min_available_nodes=3).start(grid, record_of(SENT), num_rounds=3)
    assert [count_charges(url, SITE) for url in urls.values()] == [2, 2, 2]
    assert np.isfinite(found.arrays["weight"].numpy()).all()
    assert list(found.train_metrics_clientapp) == [1, 2]  # round 3 is not paid for
    assert found.evaluate_metrics_clientapp == {}
