from __future__ import annotations

from ledger_commands import facts, refused, shown


def test_a_backup_is_made_restored_and_unfrozen_by_a_steward_with_its_head(run, icu, book, tmp_path):
    copy, new = tmp_path / "may.backup", tmp_path / "new.db"
    icu.close()
    made = facts(run("backup", str(copy), "--json"))
    assert made["rows"] == 6
    refused(run("backup", str(copy)), "nothing is overwritten")
    refused(run("show", "--ledger", str(copy)), "is a backup")
    assert facts(run("restore", str(copy), "--ledger", str(new), "--json"))["frozen"] == ["icu"]
    refused(run("restore", str(copy), "--ledger", str(new)), "nothing is overwritten")
    refused(run("unfreeze", "icu", "--ledger", str(new), "--reason", "x"), "--steward")
    answer = ("unfreeze", "icu", "--ledger", str(new), "--reason", "nothing came after", "--steward", "dpo")
    refused(run(*answer, "--head", "1:" + "0" * 64), "may be missing")
    refused(run(*answer[:-2], "--head", made["head"]), "by name")
    refused(run("open", "other", "--ledger", str(new), "--epsilon", "1", "--delta", "1e-5"), "no account is opened")
    assert "unfrozen icu" in shown(run(*answer, "--head", made["head"]))
    assert "sound" in shown(run("verify", "--ledger", str(new)))


def test_a_backup_and_a_restore_say_what_they_did(run, icu, tmp_path):
    copy = tmp_path / "may.backup"
    assert "backed up 6 entries, 1 account to" in shown(run("backup", str(copy)))
    told = shown(run("restore", str(copy), "--ledger", str(tmp_path / "new.db")))
    assert "with 1 account, all frozen" in told
    refused(run("restore", str(tmp_path / "none"), "--ledger", str(tmp_path / "more.db")), "there is no backup")
