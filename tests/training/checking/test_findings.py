from __future__ import annotations

from dpfed.training.checking.findings import Change, LayerCheck, ModeCheck, ModelCheck, Movement, Unused


def found(distance: float, **others) -> ModelCheck:
    worst = Movement("on the grid", Change("removed", 1), size=4, distance=distance)
    modes = (ModeCheck("all at once", 0.5, 1.2), ModeCheck("on the grid", distance, None))
    layers = (LayerCheck("", "Net", 1234, "parameter"),)
    return ModelCheck("Net", 2, 9, modes, (Unused("together", "why not"),), worst, layers, **others)


def test_a_failure_says_where_it_was_and_what_to_do():
    text = str(found(1.7))
    assert "FAILED" in text
    assert "on the grid, record 2 of 4 removed: 1.7000 clip norms, where 1 is allowed" in text
    assert "Do not train this model." in text
    assert "this is a bug of dpfed: please report it" in text


def test_the_largest_movement_of_all_modes_is_shown():
    check = found(0.9999)
    assert (check.is_sound, check.moved, check.replaced) == (True, 0.9999, 1.2)
    assert "at most 0.9999 clip norms, and by 1.2000 where a record was replaced; not a proof." in str(check)
    assert "together: not used, why not" in str(check)
    assert "(the model)  Net   1,234" in str(check)


def test_the_price_is_no_part_of_what_two_checks_have_in_common():
    assert found(0.5, cost=1.0) == found(0.5, cost=2.0)


def test_a_slow_model_says_why():
    assert "alone, because it sorts." in str(found(0.5, slow="it sorts"))
