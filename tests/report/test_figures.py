from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.report.figures import digits_for, format_balance, format_percent, replace_controls


@given(st.floats(0, 50), st.floats(0, 50), st.floats(1e-6, 100))
def test_shown_figures_are_on_the_safe_side_and_add_up(spent, reserved, cap):
    digits = digits_for(cap)
    remaining = max(0.0, cap - spent - reserved)
    shown = format_balance(spent, reserved, remaining, digits)
    used, held, rest = map(Decimal, shown)
    slack = Decimal("1e-12")
    assert used >= Decimal(spent) - slack
    assert used + held >= Decimal(spent) + Decimal(reserved) - slack
    assert rest <= Decimal(remaining) + slack
    assert {len(text.partition(".")[2]) for text in shown} == {digits}


@pytest.mark.parametrize("cap", [0.1, 0.3, 0.7, 1.1, 8.0, 0.001, 1e-5, 1000.0])
def test_a_fresh_account_shows_its_cap_as_it_was_typed(cap):
    assert float(format_balance(0.0, 0.0, cap, digits_for(cap))[2]) == cap


@pytest.mark.parametrize(("share", "text"), [(0.0, "0.0 %"), (0.1234, "12.4 %"), (1.0, "100.0 %"), (5.0, "500.0 %")])
def test_shares_are_rounded_up(share, text):
    assert format_percent(share) == text


def test_what_could_steer_a_terminal_is_replaced():
    assert replace_controls("a\x1b[31mb\u202ec\nd") == "a�[31mb�c�d"
