"""Which accounts a charge reaches, and which accounts one source may have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.errors import InvalidArgument, UnknownAccount
from dpfed.ledger import relations
from dpfed.ledger.rules import Terms


def terms(name, source=None, **others):
    return Terms(name, 8.0, 1e-5, source=source or name, **others)


def world(*accounts):
    return {account.name: account for account in accounts}


def test_a_charge_reaches_the_parent_of_a_parent():
    accounts = world(terms("h"), terms("w", parent="h"), terms("bed", parent="w"))
    assert relations.find_reached("bed", accounts) == ("bed", "w", "h")
    assert relations.find_reached("h", accounts) == ("h",)


def test_a_charge_reaches_whoever_overlaps_and_their_parents():
    accounts = world(terms("a"), terms("p"), terms("b", overlaps=("a",), parent="p"), terms("c", overlaps=("b",)))
    assert set(relations.find_reached("a", accounts)) == {"a", "b", "c", "p"}
    assert set(relations.find_reached("b", accounts)) == {"b", "c", "p"}


def test_a_circle_of_relations_ends():
    accounts = world(terms("a"), terms("p", parent="a"), terms("b", overlaps=("a",), parent="p"))
    for name in accounts:
        assert set(relations.find_reached(name, accounts)) == {"a", "p", "b"}


def test_of_accounts_that_all_reach_each_other_one_is_carried():
    accounts = world(terms("a"), terms("p", parent="a"), terms("b", overlaps=("a",), parent="p"))
    assert relations.find_carried(terms("d", overlaps=("a", "p", "b")), accounts) == ("a",)
    assert relations.find_carried(terms("d", overlaps=("b", "p", "a")), accounts) == ("b",)


def test_an_account_whose_charges_another_one_has_is_not_carried_twice():
    accounts = world(terms("h"), terms("w", parent="h"), terms("x"))
    assert relations.find_carried(terms("d", overlaps=("w", "h", "x")), accounts) == ("h", "x")
    assert relations.find_carried(terms("d", overlaps=("w", "x")), accounts) == ("w", "x")


@st.composite
def worlds(draw):
    accounts: dict[str, Terms] = {}
    for number in range(draw(st.integers(1, 7))):
        names = sorted(accounts)
        overlaps = tuple(draw(st.lists(st.sampled_from(names), unique=True, max_size=3))) if names else ()
        free = [name for name in names if name not in overlaps]
        parent = draw(st.none() | st.sampled_from(free)) if free else None
        accounts[f"a{number}"] = terms(f"a{number}", overlaps=overlaps, parent=parent)
    return accounts


@given(accounts=worlds(), data=st.data())
def test_whatever_is_carried_covers_everything_that_overlaps(accounts, data):
    overlaps = tuple(data.draw(st.lists(st.sampled_from(sorted(accounts)), unique=True, min_size=1)))
    carried = relations.find_carried(terms("new", overlaps=overlaps), accounts)
    assert set(carried) <= set(overlaps)
    for name in overlaps:
        assert set(carried) & set(relations.find_reached(name, accounts)), name


@given(accounts=worlds())
def test_reach_is_closed_under_parents_and_overlaps(accounts):
    for name in accounts:
        found = relations.find_reached(name, accounts)
        assert len(set(found)) == len(found)
        for each in found:
            above = {accounts[each].parent} - {None} | {n for n, t in accounts.items() if each in t.overlaps}
            assert above <= set(found)


def test_a_second_account_on_one_source_must_lead_to_one_that_sees_everything():
    accounts = world(terms("a", "patients"))
    with pytest.raises(InvalidArgument, match="overlaps=") as refusal:
        relations.require_sound(terms("b", "patients"), accounts)
    assert refusal.value.argument == "overlaps"
    relations.require_sound(terms("b", "patients", overlaps=("a",)), accounts)
    relations.require_sound(terms("b", "patients", parent="a"), accounts)


def test_a_third_account_must_see_both_others_or_be_seen_with_them():
    accounts = world(terms("a", "patients"), terms("b", "patients", parent="a"))
    with pytest.raises(InvalidArgument):
        relations.require_sound(terms("c", "patients"), accounts)
    with pytest.raises(InvalidArgument):  # a sees b and not c, c sees b and not a
        relations.require_sound(terms("c", "patients", overlaps=("b",)), accounts)
    relations.require_sound(terms("c", "patients", parent="b"), accounts)
    relations.require_sound(terms("c", "patients", overlaps=("a",)), accounts)


def test_two_accounts_of_one_source_may_share_a_parent_on_another():
    accounts = world(terms("h"), terms("a", "patients", parent="h"))
    relations.require_sound(terms("b", "patients", parent="h"), accounts)
    with pytest.raises(InvalidArgument):
        relations.require_sound(terms("b", "patients"), accounts)


def test_promises_of_different_kinds_are_never_added_up():
    accounts = world(terms("a", "patients"))
    relations.require_sound(terms("b", "patients", unit="person"), accounts)
    for other in ({"unit": "person"}, {"adjacency": "replace_one"}):
        for relation in ({"parent": "a"}, {"overlaps": ("a",)}):
            with pytest.raises(InvalidArgument, match="never added up"):
                relations.require_sound(terms("b", **other, **relation), accounts)


def test_unknown_relatives_are_refused():
    for relation in ({"parent": "x"}, {"overlaps": ("x",)}, {"parent": "b"}):
        with pytest.raises(UnknownAccount):
            relations.require_sound(terms("b", **relation), {})
    with pytest.raises(UnknownAccount):
        relations.find_reached("x", {})


def test_a_parent_is_no_overlap_as_well():
    with pytest.raises(InvalidArgument, match="parent already"):
        relations.require_sound(terms("b", parent="a", overlaps=("a",)), world(terms("a")))


def test_the_top_of_a_source_sees_all_its_charges():
    accounts = world(terms("a", "s"), terms("b", "s", parent="a"), terms("c", "s", overlaps=("a",)), terms("z"))
    assert relations.find_tops("b", accounts) == ("c",)
    assert relations.find_tops("z", accounts) == ("z",)


WHOLE = {"unit": "client", "adjacency": "replace_one"}


@pytest.mark.parametrize("unit", ["record", "person"])
def test_a_charge_for_a_whole_client_may_reach_its_records_and_persons_under_replacement(unit):
    whole, finer = terms("whole", "ward", **WHOLE), terms("finer", "ward", unit=unit, adjacency="replace_one")
    relations.require_sound(replace(finer, overlaps=("whole",)), world(whole))
    relations.require_sound(replace(whole, parent="finer"), world(finer))
    assert relations.find_reached("whole", world(whole, replace(finer, overlaps=("whole",)))) == ("whole", "finer")
    assert relations.find_reached("whole", world(finer, replace(whole, parent="finer"))) == ("whole", "finer")


@pytest.mark.parametrize("unit", ["record", "person"])
def test_no_charge_for_a_record_reaches_a_whole_client_and_none_another_adjacency(unit):
    whole, finer = terms("whole", "ward", **WHOLE), terms("finer", "ward", unit=unit, adjacency="replace_one")
    added = replace(finer, adjacency="add_remove")
    for new, known in (
        (replace(whole, overlaps=("finer",)), finer),
        (replace(finer, parent="whole"), whole),
        (replace(added, overlaps=("whole",)), whole),
        (replace(whole, parent="finer"), added),
        (replace(whole, adjacency="add_remove", parent="finer"), added),
    ):
        with pytest.raises(InvalidArgument, match="never added up"):
            relations.require_sound(new, world(known))


def test_accounts_of_other_kinds_on_the_same_data_that_a_charge_does_not_reach_are_found():
    first = terms("first", "ward", adjacency="replace_one")
    second = terms("second", "ward", adjacency="replace_one", overlaps=("first",))
    person = terms("person", "ward", unit="person", adjacency="replace_one")
    whole, other = terms("whole", "ward", **WHOLE), terms("other", **WHOLE)
    accounts = world(first, second, person, whole, other)
    assert relations.find_unreached(["whole", "other"], accounts) == {"whole": ("second", "person"), "other": ()}
    passed_on = world(first, second, person, replace(whole, parent="first"))
    assert relations.find_unreached(["whole"], passed_on) == {"whole": ("person",)}


@pytest.mark.parametrize("unit", ["record", "person"])
def test_an_account_of_records_is_not_the_one_that_sees_all_charges_of_whole_clients(unit):
    finer = terms("finer", "ward", unit=unit, adjacency="replace_one")
    first, second = (terms(name, "ward", parent="finer", **WHOLE) for name in ("first", "second"))
    with pytest.raises(InvalidArgument, match=r"overlaps=\['first'\]"):
        relations.require_sound(second, world(finer, first))
    carries = replace(second, parent=None, overlaps=("first",))
    relations.require_sound(carries, world(finer, first))
    assert relations.find_tops("first", world(finer, first)) == ("first",)
    assert relations.find_tops("first", world(finer, first, carries)) == ("second",)


@pytest.mark.parametrize("unit", ["record", "person"])
def test_an_account_that_carries_those_of_whole_clients_does_not_pay_in_their_place(unit):
    whole, finer = terms("whole", "ward", **WHOLE), terms("finer", "ward", unit=unit, adjacency="replace_one")
    for accounts in (world(whole, replace(finer, overlaps=("whole",))), world(finer, replace(whole, parent="finer"))):
        with pytest.raises(InvalidArgument, match="name whole in its place"):
            relations.find_unreached(["finer"], accounts)
        assert relations.find_unreached(["whole"], accounts) == {"whole": ()}


def test_accounts_of_whole_clients_whose_charges_never_reach_a_record_are_found():
    whole, record = terms("whole", "ward", **WHOLE), terms("record", "ward")
    assert relations.find_uncarried(["record", "whole"], world(whole, record)) == {"record": ("whole",), "whole": ()}
    carries = replace(record, adjacency="replace_one", overlaps=("whole",))
    assert relations.find_uncarried(["record"], world(whole, carries)) == {"record": ()}
    assert relations.find_beside("record", world(whole, carries)) == ()
    assert relations.find_beside("whole", world(whole, carries)) == ("record",)
    user = replace(whole, adjacency="add_remove")
    assert relations.find_uncarried(["record"], world(user, record)) == {"record": ()}
