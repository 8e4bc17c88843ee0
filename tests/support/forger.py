"""Whoever can write entries of a ledger by hand, whole and with right digests, but not in order."""

from __future__ import annotations

import pytest

from dpfed.errors import LedgerCorrupted
from dpfed.ledger.rows import GENESIS, Head
from dpfed.ledger.verify import replay


class Forger:
    """The entries of a ledger, and others after them."""

    def __init__(self, ledger):
        with ledger._store.reading() as link:
            from dpfed.ledger.journal import rows

            self.rows = list(rows(link))

    @property
    def head(self):
        return Head(len(self.rows), self.rows[-1].hash if self.rows else GENESIS)

    def again(self, drop=lambda row: False, change=lambda row: row):
        """The entries without some and with others changed, every digest made right."""
        kept, self.rows, numbers = self.rows, [], {}
        for row in kept:
            if not drop(row):
                seq = len(self.rows) + 1
                numbers[row.seq] = seq
                item = numbers.get(row.item, row.item)
                moved = change(row)._replace(seq=seq, item=item, previous=self.head.digest if self.rows else GENESIS)
                self.rows.append(moved._replace(hash=moved.digest()))
        return self

    def add(self, draft, at="2026-01-01T00:00:00.000000Z"):
        self.rows.append(draft.row(self.head.sequence + 1, at, self.head.digest))
        return self

    def is_sound(self):
        return replay(self.rows, self.head)

    def is_bad(self, why):
        with pytest.raises(LedgerCorrupted, match=why):
            replay(self.rows, self.head)
