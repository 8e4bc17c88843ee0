from __future__ import annotations

import json
import math

from dpfed.cli.show import print_json


def test_json_has_no_numbers_that_json_does_not_know(capsys):
    print_json({"a": math.inf, "b": [1.5, -math.inf], "c": {"d": None}})
    assert json.loads(capsys.readouterr().out) == {"a": "inf", "b": [1.5, "-inf"], "c": {"d": None}}
