"""A deployment's folders fit together: the run file has the keys of the sites, and each site accepts the run."""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest
import yaml

from dpfed.config.run import ConfigFile
from dpfed.config.site import SiteFile
from dpfed.errors import InvalidArgument
from dpfed.federated.network_launch import outline_declared
from dpfed.federated.site import Site
from dpfed.federated.site_policy import require_allowed_plan
from dpfed.integrations.deployment import Deployment, write_deployment
from dpfed.integrations.trial import make_trial_file


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_deployment(make_trial_file(2), tmp_path_factory.mktemp("x") / "study", "127.0.0.1:9092", deals=True)


def test_the_run_file_names_the_keys_that_the_sites_have(made):
    network = ConfigFile.read(made.run_file).config.network
    assert set(network.sites) == set(made.sites)
    for name, folder in made.sites.items():
        site = Site(SiteFile.read(folder / "site.yaml"))
        assert network.sites[name].key == site.public_key
        assert network.sites[name].node == (folder / "node.pub").read_text().strip()
        site.close()


def test_each_site_trusts_the_study_and_the_hub(made):
    for folder in made.sites.values():
        config = SiteFile.read(folder / "site.yaml").config
        assert config.server_key == (made.folder / "study" / "study.key.pub").read_text().strip()
        assert (folder / "ca.crt").read_bytes() == (made.hub_folder / "ca.crt").read_bytes()
        assert config.superlink == made.hub.address == "127.0.0.1:9092"


def test_the_policy_allows_this_run_and_no_other(made):
    file = ConfigFile.read(made.run_file)
    plan = outline_declared(file.config, file.folder).plan
    config = SiteFile.read(made.sites["north"] / "site.yaml").config
    require_allowed_plan(config.policy, plan, "north", config.data.size, 1e-5)
    more = outline_declared(file.config.model_copy(update={"rounds": plan.rounds + 1}), file.folder).plan
    with pytest.raises(Exception, match="the policy allows at most 10 for rounds"):
        require_allowed_plan(config.policy, more, "north", config.data.size, 1e-5)


def test_the_nodes_that_may_connect_are_those_of_the_sites(made):
    assert sorted(made.node_keys) == sorted((each / "node.pub").read_text().strip() for each in made.sites.values())


@pytest.mark.parametrize(
    "name",
    ["hub/server.key", "study/study.key", "sites/north/node.key", "sites/north/site.key", "sites/north/records.csv"],
)
def test_private_keys_and_records_are_for_their_owner_alone(made, name):
    assert (made.folder / name).stat().st_mode & 0o077 == 0


def test_start_scripts_can_be_moved_and_turn_off_what_talks_to_others(made):
    for folder in (made.hub_folder, *made.sites.values()):
        script = folder / "start.sh"
        text = script.read_text()
        assert script.stat().st_mode & stat.S_IXUSR
        assert str(made.folder) not in text
        assert "export FLWR_TELEMETRY_ENABLED=0" in text
    assert "--database superlink.db" in (made.hub_folder / "start.sh").read_text()


def test_keys_are_never_written_over(made):
    with pytest.raises(InvalidArgument, match="is not empty"):
        write_deployment(make_trial_file(2), made.folder, "127.0.0.1:9092")


def test_a_folder_that_is_no_deployment_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="is no deployment: `dpfed deploy init FILE --hub HOST:PORT`"):
        _ = Deployment(tmp_path).hub


def renamed(tmp_path, change):
    """Return the run file of a trial with a text in it changed."""
    path = tmp_path / "run.yaml"
    path.write_text(change(make_trial_file(2).content.decode()))
    return ConfigFile.read(path)


@pytest.mark.parametrize(
    "name", ["../../evil", "a/../../../evil", "a/b", "..", "-n", "a b", "a\nb", "x: {key: 1}", "x" * 300]
)
def test_a_site_s_name_that_makes_no_folder_is_refused_before_anything_is_written(tmp_path, name):
    file = renamed(tmp_path, lambda text: text.replace("north", json.dumps(name), 1))
    assert name in file.config.data.names
    with pytest.raises(InvalidArgument, match="a site's name is that of its folder and account"):
        write_deployment(file, tmp_path / "new", "127.0.0.1:9092")
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: json.dumps(yaml.safe_load(text)),
        lambda text: f"{text}\n...\n",
    ],
    ids=["JSON", "the end of a document"],
)
def test_a_run_file_that_nothing_can_be_added_to_is_refused_before_anything_is_written(tmp_path, change):
    with pytest.raises(InvalidArgument, match="no network: block can be put at the end"):
        write_deployment(renamed(tmp_path, change), tmp_path / "new", "127.0.0.1:9092")
    assert not (tmp_path / "new").exists()


def test_a_run_file_that_has_a_network_already_is_refused(made, tmp_path):
    with pytest.raises(InvalidArgument, match="has a network: block"):
        write_deployment(ConfigFile.read(made.run_file), tmp_path / "new", "127.0.0.1:9092")
    assert not (tmp_path / "new").exists()


def test_the_study_has_the_first_weights_that_its_run_file_names(tmp_path):
    def name_weights(text: str) -> str:
        return text.replace("kind: logistic", "kind: logistic\n  init: weights/first.safetensors", 1)

    (tmp_path / "weights").mkdir()
    outline = outline_declared(make_trial_file(2).config, tmp_path)
    outline.model.layout.write(tmp_path / "weights" / "first.safetensors", outline.weights + 1)
    made = write_deployment(renamed(tmp_path, name_weights), tmp_path / "new", "127.0.0.1:9092")
    file = ConfigFile.read(made.run_file)
    assert np.array_equal(outline_declared(file.config, file.folder).weights, outline.weights + 1)


@pytest.mark.parametrize(
    ("added", "why"),
    [
        ("model: {kind: logistic, init: ../first.safetensors}", "is outside of it"),
        ("ledger: {url: ledger.db, account: study}", "write its whole path"),
        ("ledger: {url: 'sqlite:///ledger.db', account: study}", "write its whole path"),
    ],
)
def test_a_file_beside_the_run_file_that_its_copy_would_not_find_is_refused(tmp_path, added, why):
    values = yaml.safe_load(make_trial_file(2).content) | yaml.safe_load(added)
    values["privacy"] = {"style": "user", "client": {"epsilon": 4.0, "delta": 1e-5, "clip_norm": 1.0}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    outline = outline_declared(make_trial_file(2).config, tmp_path)
    outline.model.layout.write(tmp_path / "first.safetensors", outline.weights)
    (tmp_path / "files").mkdir()
    (tmp_path / "run.yaml").rename(tmp_path / "files" / "run.yaml")
    file = ConfigFile.read(tmp_path / "files" / "run.yaml")
    with pytest.raises(InvalidArgument, match=why):
        write_deployment(file, tmp_path / "new", "127.0.0.1:9092")
    assert not (tmp_path / "new").exists()
