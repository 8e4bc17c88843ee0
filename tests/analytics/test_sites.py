"""Columns asked of one table or of sites: at zero noise one unit moves the answer by the norm, and accounts pay."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed import events as ev
from dpfed.analytics.queries import Histogram, Moments
from dpfed.analytics.sites import ColumnStudy, Owner, ask_bounds
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.errors import BudgetExceeded, InvalidArgument, PrivacyError
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from studies import SilentSource, committed

QUERIES = [Histogram(((0.0, 1.0, 5.0), (-3.0, 2.0))), Moments(((0.0, 10.0), (-1.0, 1.0)))]
TABLES = {"north": np.array([[1.0, 2.0], [3.0, -1.0], [7.0, 0.5]]), "west": np.array([[0.5, 0.5], [2.0, 1.0]])}
STYLES = {  # by what is asked: for whom, from whom, and which accounts there are
    "sample": {"record": ("record", ADD_REMOVE)},
    "sample, public counts": {"record": ("record", REPLACE_ONE)},
    "person": {"record": ("person", ADD_REMOVE)},
    "user": {"client": ("client", ADD_REMOVE), "study": True},
    "hybrid": {"record": ("record", ADD_REMOVE), "client": ("client", ADD_REMOVE), "study": True},
    "local": {"client": ("client", REPLACE_ONE)},
}


@pytest.fixture
def ask(tmp_path_factory):
    def run(style: str, query, tables, source=None, epsilon: float = 1.0):
        options = STYLES[style]
        asked = {name: Guarantee(epsilon, 1e-5, *options[name]) for name in ("record", "client") if name in options}
        study = "study" if options.get("study") else None
        kind = options.get("record", options.get("client"))
        folder = tmp_path_factory.mktemp("study")
        with Ledger(f"sqlite:///{folder / 'ledger.db'}") as ledger:
            for name in tables:
                ledger.open(name, epsilon=9.0, delta=1e-5, unit=kind[0], adjacency=kind[1])
            if study:
                ledger.open(study, epsilon=9.0, delta=1e-5, unit="client", adjacency=ADD_REMOVE)
            rows = {
                name: np.ones(len(table), dtype=int) if kind[0] == "person" else None for name, table in tables.items()
            }
            owners = {name: Owner(name, table, rows[name]) for name, table in tables.items()}
            answer = ColumnStudy("ask", query, owners, ledger, study, source=source).ask(**asked)
            return answer, committed(ledger)

    return run


def vector(answer):
    return getattr(answer, "counts", None) if hasattr(answer, "counts") else answer.sums


@pytest.mark.parametrize("query", QUERIES, ids=["histogram", "moments"])
@pytest.mark.parametrize("style", STYLES)
def test_at_zero_noise_one_unit_moves_the_answer_by_the_norm_at_most(ask, style, query):
    before = vector(ask(style, query, TABLES, SilentSource())[0])
    if "client" in STYLES[style] and STYLES[style].get("study"):  # a client more
        after = vector(ask(style, query, {**TABLES, "harbour": np.full((400, 2), 9.0)}, SilentSource())[0])
        most = query.norm
    elif style == "local":  # all of its records are others
        after = vector(ask(style, query, {**TABLES, "west": np.full((400, 2), -9.0)}, SilentSource())[0])
        most = 2 * query.norm
    else:  # a record more, or another one in its place
        more = np.array([*TABLES["west"], [9.0, -9.0]]) if "public" not in style else TABLES["west"] - [[0, 0], [9, 9]]
        after = vector(ask(style, query, {**TABLES, "west": more}, SilentSource())[0])
        most = 2 * query.norm if "public" in style else query.norm
    assert 0 < np.linalg.norm(after - before) <= most * (1 + 1e-6)  # noise is on a grid, to which sums are rounded


@pytest.mark.parametrize("style", STYLES)
def test_every_account_that_somebody_noises_for_pays_once_before(ask, style):
    _, charged = ask(style, QUERIES[0], TABLES)
    paying = set(TABLES) if "record" in STYLES[style] or style == "local" else set()
    paying |= {"study"} if STYLES[style].get("study") else set()
    assert set(charged) == paying
    for charges in charged.values():
        assert [(type(event), times) for event, times in charges.items()] == [(ev.Gaussian, 1)]


def test_what_does_not_fit_is_refused_and_nothing_is_drawn(ask):
    with pytest.raises(BudgetExceeded):
        ask("sample", QUERIES[0], TABLES, epsilon=20.0)


def test_one_table_is_an_owner_alone(ask):
    answer, charged = ask("sample", Histogram(((0.0, 1.0),)), {"table": np.full((5000, 1), 0.5)})
    assert answer.quantile(0, 0.5).value == pytest.approx(0.5, abs=0.1)
    assert set(charged) == {"table"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "nobody would be protected"),
        ({"record": Guarantee(1.0, 1e-5, "client")}, "record must be for a record"),
        ({"client": Guarantee(1.0, 1e-5, "client")}, "replace_one"),
        ({"record": Guarantee(1.0, 1e-5, "person")}, "give it an account for that"),
        ({"record": Guarantee(1.0, 1e-5, "record", REPLACE_ONE)}, "give it an account for that"),
    ],
)
def test_promises_that_do_not_fit_the_accounts_are_refused(tmp_path, options, why):
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.open("ward", epsilon=9.0, delta=1e-5)
        study = ColumnStudy("ask", QUERIES[0], {"ward": Owner("ward", TABLES["north"])}, ledger)
        with pytest.raises(PrivacyError, match=why):
            study.ask(**options)
        assert committed(ledger) == {}


def test_an_account_beside_two_owners_pays_for_the_release_of_each(tmp_path):
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        options = {"epsilon": 50.0, "delta": 1e-5, "adjacency": REPLACE_ONE, "source": "table"}
        ledger.open("all", unit="client", **options)
        for name in TABLES:
            ledger.open(name, unit="client", parent="all", **options)
        ledger.open("records", unit="record", **options)
        owners = {name: Owner(name, table) for name, table in TABLES.items()}
        ColumnStudy("ask", QUERIES[0], owners, ledger).ask(client=Guarantee(1.0, 1e-5, "client", REPLACE_ONE))
        charged = committed(ledger)
        assert [sum(charged[name].values()) for name in (*TABLES, "records")] == [1, 1, 2]


def test_a_promise_for_one_person_needs_to_know_whose_rows_there_are(tmp_path):
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.open("ward", epsilon=9.0, delta=1e-5, unit="person")
        study = ColumnStudy("ask", QUERIES[0], {"ward": Owner("ward", TABLES["north"])}, ledger)
        with pytest.raises(InvalidArgument, match="whose rows there are"):
            study.ask(record=Guarantee(1.0, 1e-5, "person"))
        assert committed(ledger) == {}


@pytest.mark.parametrize(
    ("values", "rows", "why"),
    [
        (TABLES["north"][:, :1], None, "with 2 columns"),
        (TABLES["north"][:, 0], None, "with 2 columns"),
        (TABLES["north"].astype(str), None, "a table of numbers"),
        (TABLES["north"], np.array([1]), "how many rows each person has"),
    ],
)
def test_a_table_of_another_form_is_refused_before_anything_is_charged(tmp_path, values, rows, why):
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.open("ward", epsilon=9.0, delta=1e-5)
        study = ColumnStudy("ask", Moments(((0, 1), (0, 1))), {"ward": Owner("ward", values, rows)}, ledger)
        with pytest.raises(InvalidArgument, match=why):
            study.ask(record=Guarantee(1.0, 1e-5))
        assert committed(ledger) == {}
        assert not ledger.has_run("ask")


def test_two_owners_on_one_account_are_refused(tmp_path):
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.open("ward", epsilon=9.0, delta=1e-5)
        owners = {name: Owner("ward", table) for name, table in TABLES.items()}
        with pytest.raises(InvalidArgument, match="an account of its own"):
            ColumnStudy("ask", QUERIES[0], owners, ledger).ask(record=Guarantee(1.0, 1e-5))


def test_bounds_of_one_table_are_asked_and_paid_for_in_one_call(tmp_path):
    values = np.random.default_rng(1).uniform(20, 80, (40_000, 2))
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.open("ward", epsilon=9.0, delta=1e-5)
        assert ask_bounds("bounds", values, "ward", ledger, Guarantee(1.0, 1e-5)) == ((16.0, 128.0),) * 2
        assert list(committed(ledger)) == ["ward"]


def test_an_account_of_records_that_lacks_what_its_whole_client_was_charged_for_is_refused(tmp_path):
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        kind = {"epsilon": 9.0, "delta": 1e-5, "source": "ward", "adjacency": REPLACE_ONE}
        ledger.open("records", **kind)
        ledger.open("whole", unit="client", **kind)
        ledger.reserve({"whole": {ev.Gaussian(2.0): 1}}, run="by-hand").commit({"whole": {ev.Gaussian(2.0): 1}})
        study = ColumnStudy("ask", QUERIES[0], {"ward": Owner("records", TABLES["north"])}, ledger)
        with pytest.raises(InvalidArgument, match=r"overlaps=\['whole'\]"):
            study.ask(record=Guarantee(1.0, 1e-5, adjacency=REPLACE_ONE))
        assert set(committed(ledger)) == {"whole"}
