from __future__ import annotations

import pytest

import dpfed
from dpfed.errors import AccountUnavailable, InvalidArgument, PrivacyError
from dpfed.events import Gaussian

STEP = Gaussian(40.0)


def test_a_restored_ledger_is_frozen_and_has_spent_at_least_what_was_spent(lost):
    file, copy, head, spent = lost
    file.unlink()
    with dpfed.Ledger.restore(copy, file) as ledger:
        ledger.require(head)
        ledger.verify()
        for balance in ledger.accounts():
            assert balance.status == "frozen"
            assert balance.reserved == 0.0
            assert balance.spent >= spent.get(balance.account.name, 0.0)
        with pytest.raises(AccountUnavailable, match="frozen"):
            ledger.reserve({"icu": STEP}, run="second")
        assert ledger.resume("study").left("ward") == 0


def test_an_account_is_unfrozen_by_a_steward_and_with_no_other_head_than_that_of_the_backup(lost):
    file, copy, head, _ = lost
    with dpfed.Ledger(file) as ledger:
        newer = ledger.head()
    file.unlink()
    with dpfed.Ledger.restore(copy, file) as ledger:
        for wrong in (None, str(newer), str(ledger.head()), "1:" + "0" * 64, str(head).replace(head.digest[0], "x", 1)):
            with pytest.raises(PrivacyError):
                ledger.unfreeze("icu", reason="nothing came after", head=wrong, steward=wrong and "A. Steward")
        with pytest.raises(AccountUnavailable, match="by name"):  # whoever has the backup can read its head
            ledger.unfreeze("icu", reason="nothing came after", head=str(head))
        ledger.unfreeze("icu", reason="nothing came after", head=str(head), steward="A. Steward")
        ledger.reserve({"icu": STEP}, run="second").commit({"icu": STEP})
        with pytest.raises(AccountUnavailable):
            ledger.reserve({"ward": STEP}, run="third")
        ledger.verify()


def test_a_steward_answers_by_name_and_the_statement_shows_it(lost):
    file, copy, _, _ = lost
    file.unlink()
    with dpfed.Ledger.restore(copy, file) as ledger:
        with pytest.raises(InvalidArgument):
            ledger.unfreeze("icu", reason="we know what came after", steward="  ")
        ledger.unfreeze("icu", reason="we know what came after", steward="A. Steward")
        kinds = {line.kind: line.note for line in ledger.statement("icu").lines}
        assert kinds["unfrozen"] == "steward A. Steward: we know what came after"
        assert "restored from a backup" in kinds["restored"]
        ledger.verify()


def test_a_second_freeze_does_not_make_a_restored_account_easy_to_unfreeze(lost):
    file, copy, _, _ = lost
    file.unlink()
    with dpfed.Ledger.restore(copy, file) as ledger:
        with pytest.raises(PrivacyError):
            ledger.freeze("icu", reason="again")
        with pytest.raises(AccountUnavailable):
            ledger.unfreeze("icu", reason="just so")


def test_no_account_is_opened_in_a_restored_ledger_until_all_are_answered_for(lost):
    file, copy, _, _ = lost
    with dpfed.Ledger(file) as ledger:
        ledger.open("later", epsilon=8.0, delta=1e-5)
        ledger.record({"later": {STEP: 5}}, reason="spent after the backup")
    file.unlink()
    promise = dpfed.Guarantee(8.0, 1e-5)
    with dpfed.Ledger.restore(copy, file) as ledger:
        for name in ("icu", "ward", "old"):
            for attempt in (
                lambda: ledger.open("later", epsilon=8.0, delta=1e-5),
                lambda: ledger.open("all", epsilon=9.0, delta=1e-5, source=b"records", overlaps=["icu", "ward"]),
                lambda: ledger.open("part", epsilon=1.0, delta=1e-5, source=b"records", parent="icu"),
                lambda: ledger.open_all({"later": promise}),
            ):
                with pytest.raises(AccountUnavailable, match="no account is opened"):
                    attempt()
            ledger.unfreeze(name, reason="we know what came after", steward="A. Steward")
        ledger.open("all", epsilon=9.0, delta=1e-5, source=b"records", overlaps=["icu", "ward"])
        ledger.verify()
