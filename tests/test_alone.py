"""Each file alone: what passes only beside others is found and listed."""

from __future__ import annotations

import alone


def test_files_that_fail_alone_are_listed_and_counted(tmp_path, capsys):
    sources = {"a": "import sys\nsys.left = 1\ndef test_it(): pass\n", "b": "import sys\ndef test_it(): sys.left\n"}
    for name, source in sources.items():
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / f"test_{name}.py").write_text(source)
    assert alone.main(tmp_path, None, workers=2) == 1
    said = capsys.readouterr().out
    assert "has no attribute 'left'" in said
    assert said.endswith("1 of 2 failed alone\n  tests/b/test_b.py\n")


def test_the_tenths_together_are_all_files_once(tmp_path):
    for number in range(23):
        (tmp_path / f"test_{number}.py").touch()
    parts = [alone.files(tmp_path, str(tenth)) for tenth in range(10)]
    assert all(parts)
    assert sorted(file for part in parts for file in part) == alone.files(tmp_path, None)
    assert len(alone.files(tmp_path, "")) == 23


def test_campaigns_are_left_to_the_whole_suite(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFED_CAMPAIGN", "1")
    (tmp_path / "test_it.py").write_text("import os\ndef test_it(): assert 'DPFED_CAMPAIGN' not in os.environ\n")
    assert alone.outcome(tmp_path, "test_it.py").is_passed
