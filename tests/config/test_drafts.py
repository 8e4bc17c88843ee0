from __future__ import annotations

from dataclasses import replace

import pytest

from dpfed.config.drafts import TableDraft, count_kept
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument

COLUMNS = ("age", "sex", "patient", "site", "y")
DRAFT = TableDraft(
    "my.csv",
    COLUMNS,
    label="y",
    site_column="site",
    classes=("0", "1"),
    bounds={"age": (0, 100)},
    categories={"sex": ("f", "m")},
    ignore=("patient",),
    sites=("n", "s"),
    sizes=200,
)


def test_a_complete_draft_is_a_configuration_and_round_trips():
    config = DRAFT.to_config()
    assert DRAFT.is_complete
    assert RunConfig.parse(DRAFT.to_yaml()) == config
    assert config.data.names == ("n", "s")
    assert config.local.batch_size == 50


@pytest.mark.parametrize(
    ("opened", "what"),
    [
        ({"classes": None}, r"data\.classes is not declared yet"),
        ({"bounds": {}}, r"data\.feature_bounds of age is not declared yet"),
        ({"categories": {}}, r"data\.feature_bounds of sex is not declared yet"),
        ({"sites": None}, r"data\.names is not declared yet"),
        ({"sizes": None}, r"data\.sizes is missing"),
    ],
)
def test_what_is_open_is_refused_by_a_run_with_what_to_write(opened, what):
    draft = replace(DRAFT, **opened)
    assert not draft.is_complete
    with pytest.raises(InvalidArgument, match=what):
        RunConfig.parse(draft.to_yaml())
    with pytest.raises(InvalidArgument, match="not all is declared"):
        draft.to_config()


def test_one_owner_is_one_client():
    draft = replace(DRAFT, site_column=None, sites=None, ignore=("patient", "site"))
    assert draft.to_config().data.clients == ("owner",)


def test_a_person_column_protects_persons():
    draft = replace(DRAFT, ignore=(), person_column="patient", rows_per_person=3, epsilon=2.0)
    config = draft.to_config()
    assert (config.privacy.person.epsilon, config.data.rows_per_person) == (2.0, 3)


def test_a_quantity_has_no_classes():
    draft = replace(DRAFT, classes=())
    assert draft.open_columns == ("y",)
    config = replace(draft, bounds={**draft.bounds, "y": (0, 9)}).to_config()
    assert (config.model.loss, config.data.classes, config.data.label_bounds) == ("mse", (), (0, 9))
    assert "y" not in config.data.feature_bounds


def test_sizes_by_site_name_the_sites():
    draft = replace(DRAFT, sites=None, sizes={"b": 9, "a": 30})
    assert (draft.to_config().data.clients, draft.to_config().local.batch_size) == (("a", "b"), 9)


@pytest.mark.parametrize(
    "wrong",
    [{"label": "z"}, {"site_column": "y"}, {"bounds": {"aeg": (0, 1)}}, {"ignore": ("y",)}, {"fill": {"z": 1}}],
)
def test_columns_that_do_not_fit_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        replace(DRAFT, **wrong)


def test_a_true_count_is_used_only_where_sizes_are_public():
    assert replace(DRAFT, sizes="public", counts=(10, 40)).to_config().local.batch_size == count_kept(10) == 8
