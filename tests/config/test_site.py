"""A site's file: every refusal names line and key, and a relative ledger lies beside the file."""

from __future__ import annotations

import pytest

from dpfed.config.site import SiteConfig, SiteFile
from dpfed.errors import InvalidArgument

TEXT = """site: north
superlink: hub.example:9092
server_key: ssh-ed25519 AAAA study
data: {source: records.csv, label: outcome, classes: [ill, well], size: 182}
ledger: {url: "sqlite:///ledger.db", account: north-records}
policy: {styles: [sample, hybrid], epsilon_per_run: 4, least_noise: 0.8, most_clip: 1, models: [logistic, mlp]}
"""


def test_a_written_file_reads_as_the_same_value_and_has_a_comment_for_every_setting():
    config = SiteConfig.parse(TEXT)
    written = config.to_yaml()
    assert SiteConfig.parse(written) == config
    assert written.count("#") > 25
    assert "partition" not in written


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("site: north", "", "site is missing"),
        ("ssh-ed25519 AAAA study", "secret", "line 3: server_key must be the one line"),
        ("size: 182", "size: 0", "line 4: data.size must be at least 1"),
        ("size: 182", "size: 182, test_is_public: true", "line 4: data.test_is_public is for federations"),
        ("size: 182", "size: 182, partition: {kind: iid, clients: 2}", "data.partition is for federations"),
        ("label: outcome, ", "", "data.label is missing"),
        ("account: north-records", "account: 'a b'", "line 5: ledger.account must be letters"),
        ("[sample, hybrid]", "[sample, magic]", "line 6: policy.styles"),
        ("least_noise: 0.8", "least_noise: -1", "line 6: policy.least_noise must be at least 0"),
        ("epsilon_per_run: 4, ", "", "policy.epsilon_per_run is missing"),
        ("most_clip", "max_grad_norm", "policy.max_grad_norm is not a key"),
    ],
)
def test_a_refusal_names_line_and_key(old, new, what):
    with pytest.raises(InvalidArgument, match=what):
        SiteConfig.parse(TEXT.replace(old, new), file="site.yaml")


def test_files_are_found_beside_the_site_file(tmp_path):
    (tmp_path / "site.yaml").write_text(TEXT)
    read = SiteFile.read(tmp_path / "site.yaml")
    assert read.find("node.key") == tmp_path / "node.key"
    assert read.ledger_url == tmp_path / "ledger.db"
    for url in ("postgresql://host/db", "sqlite:////var/ledger.db"):
        (tmp_path / "site.yaml").write_text(TEXT.replace("sqlite:///ledger.db", url))
        found = SiteFile.read(tmp_path / "site.yaml").ledger_url
        assert str(found) == url.replace("sqlite:///", "")


def test_raw_updates_must_be_allowed_by_name():
    assert "user" not in SiteConfig.parse(TEXT).policy.styles
    assert SiteConfig.parse(TEXT.replace("hybrid", "user")).policy.styles == ("sample", "user")
