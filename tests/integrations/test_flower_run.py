"""What is submitted to a SuperLink: an app that only imports ours. The rest is in test_flower_node.py, for real."""

from __future__ import annotations

import ast
import tomllib

import pytest

from dpfed.errors import InvalidArgument
from dpfed.integrations import flower_files, flower_run
from dpfed.runs.server_status import HubAddress


def test_the_app_has_no_code_of_its_own():
    tree = ast.parse(flower_run.FILES["dpfed_run/__init__.py"])
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert tomllib.loads(flower_run.FILES["pyproject.toml"])["project"]["dependencies"] == []


def test_an_address_at_which_nobody_answers_is_refused_with_what_to_do(tmp_path):
    flower_files.write_certificates(tmp_path, "127.0.0.1")
    with pytest.raises(InvalidArgument, match=r"no SuperLink answers at 127.0.0.1:1 .*start it"):
        flower_run.submit(HubAddress("127.0.0.1:1", str(tmp_path / "ca.crt")), tmp_path)


def test_a_missing_certificate_is_refused_by_its_path(tmp_path):
    with pytest.raises(InvalidArgument, match=r"ca.crt cannot be read .*give the ca.crt of its deployment"):
        flower_run.require_hub(HubAddress("127.0.0.1:1", str(tmp_path / "ca.crt")))
