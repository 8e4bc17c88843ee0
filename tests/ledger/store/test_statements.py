from __future__ import annotations

import pytest
import sqlalchemy as sa

from dpfed.ledger.store.statements import Prepared

NUMBERS = sa.Table("numbers", sa.MetaData(), sa.Column("first", sa.Integer), sa.Column("second", sa.Text))
ROWS = [(1, "one"), (2, "it's ? and %s"), (3, None)]


@pytest.fixture
def link(new_url):
    engine = sa.create_engine(new_url(), poolclass=sa.NullPool)
    with engine.connect() as link:
        NUMBERS.create(link)
        yield link


def test_a_prepared_statement_does_what_the_statement_does(link):
    Prepared(sa.insert(NUMBERS)).run_each(link, ROWS)
    assert link.execute(sa.select(NUMBERS).order_by(NUMBERS.c.first)).fetchall() == ROWS
    last = Prepared(sa.select(NUMBERS.c.second).order_by(NUMBERS.c.first))
    assert last.first(link) == ("one",)
    assert last.text(link) is last.text(link)  # translated once
