from __future__ import annotations

import sys

import pytest

from dpfed.errors import InvalidArgument
from dpfed.report.local_estimates import MOST, draw_estimates, require_drawing


def test_a_picture_has_every_name_and_a_line_at_zero(tmp_path):
    path = tmp_path / "a.svg"
    draw_estimates(path, ["wards & $ills", "b"], [0.7, -0.1], [0.6, -0.2], [0.8, 0.0], "share of persons")
    text = path.read_text()
    assert "share of persons" in text
    assert "ills" in text
    assert "<script" not in text


def test_a_png_is_written_for_more_values_than_fit(tmp_path):
    path, many = tmp_path / "a.png", [0.1] * (MOST + 20)
    draw_estimates(path, [f"a rather long name of value {n}" for n in range(MOST + 20)], many, many, many, "share")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"ends in \.png"):
        require_drawing(tmp_path / "a.txt")


def test_without_matplotlib_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidArgument, match="needs matplotlib"):
        require_drawing(tmp_path / "a.png")
