"""The folders of a study over a network: a hub, the study's own, and one for each site.

Every file has its place, so that a folder is all that a machine needs::

    hub/           certificates, the keys of the nodes, start.sh: goes to the machine of the SuperLink
    study/         the run file with its network: block, the study's key: stays with whoever runs the study
    sites/NAME/    site.yaml, keys, an empty ledger, start.sh: goes to that site, which puts its records there

A site that makes its own keys gives away nothing but two public lines: `dpfed site init` instead of its folder here.

>>> Deployment(Path("wards")).sites, Deployment(Path("wards")).hub_folder.name
({}, 'hub')
"""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.config.run import ConfigFile, RunConfig
from dpfed.config.site import SiteConfig
from dpfed.config.yaml12 import dump
from dpfed.errors import InvalidArgument
from dpfed.federated.keys import SigningKey
from dpfed.federated.network_launch import outline_declared
from dpfed.federated.site_files import LABEL, SITE_FILE, deal_trial, describe_hold_outs, write_site
from dpfed.guarantee import Guarantee
from dpfed.integrations.flower_files import CA, write_certificates, write_node_key
from dpfed.integrations.flower_processes import OFF, Hub
from dpfed.ledger import inputs
from dpfed.plan.measuring import count_releases
from dpfed.plan.plan import Plan

HUB, STUDY, SITES = "hub", "study", "sites"
ADDRESS, NODES, STUDY_KEY, START = "hub.json", "nodes.pub", "study.key", "start.sh"
RECORDS = "records.csv"
SPARE = 2.0  # cap of a new account over what the run promises: room for a second one


@dataclass(frozen=True)
class Deployment:
    """A folder with all that a study over a network needs."""

    folder: Path

    @property
    def hub_folder(self) -> Path:
        """The folder of the SuperLink."""
        return self.folder / HUB

    @property
    def hub(self) -> Hub:
        """The SuperLink at its address."""
        try:
            address = json.loads((self.hub_folder / ADDRESS).read_text(encoding="utf-8"))["address"]
        except (OSError, ValueError, KeyError):
            message = f"{self.folder} is no deployment: `dpfed deploy init FILE --hub HOST:PORT` writes one"
            raise InvalidArgument("folder", message) from None
        return Hub(self.hub_folder, address)

    @property
    def sites(self) -> dict[str, Path]:
        """The folder of each site that has one here."""
        return {path.parent.name: path.parent for path in sorted((self.folder / SITES).glob(f"*/{SITE_FILE}"))}

    @property
    def run_file(self) -> Path:
        """The run file of the study."""
        return next(iter(sorted((self.folder / STUDY).glob("*.yaml"))), self.folder / STUDY / "run.yaml")

    @property
    def node_keys(self) -> list[str]:
        """The public keys of the nodes that may connect."""
        lines = (self.hub_folder / NODES).read_text(encoding="ascii").splitlines()
        return [line for line in lines if line.strip()]


def write_deployment(file: ConfigFile, folder: Path, address: str, *, deals: bool = False) -> Deployment:
    """Write the folders of hub, study and sites for a run file; with `deals` the sites get the file's own records.

    What could not be written or read again is refused before the first file is there.
    """
    made = Deployment(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidArgument(
            "directory", f"{folder} is not empty, and keys are not written over: choose another folder"
        )
    plan = outline_declared(file.config, file.folder).plan
    _require_writable(file, plan)
    _require_movable(file, plan)
    for path in (made.hub_folder, folder / STUDY):
        path.mkdir(mode=0o700, parents=True)
    hub = _write_hub(made, address)
    study = SigningKey.make()
    study.write(folder / STUDY / STUDY_KEY)
    (folder / STUDY / CA).write_bytes((made.hub_folder / CA).read_bytes())
    if deals:
        deal_trial(file.config.data, file.folder, folder / SITES, holds_out=file.config.metrics is not None)
    keys = {name: _write_site(folder / SITES / name, name, hub, study, file.config, plan) for name in plan.local}
    (made.hub_folder / NODES).write_text("".join(f"{each['node']}\n" for each in keys.values()), encoding="ascii")
    (folder / STUDY / f"{plan.name}.yaml").write_text(_add_network(file, keys), encoding="utf-8")
    _copy_first_weights(file, folder / STUDY)
    return made


def _require_writable(file: ConfigFile, plan: Plan) -> None:
    """Refuse names that make no folder or account, and a run file to which no network: block can be added."""
    for name in plan.local:
        if "/" in name or not inputs.is_name(_name_account(name)):
            message = f"a site's name is that of its folder and account, and {name[:40]!r} cannot be"
            raise InvalidArgument(
                "names", f"{message}: use at most 90 letters, digits or any of ._:@-, a letter or digit first"
            )
    if file.config.network is not None:
        message = "the run file has a network: block, and the keys in it would not be those of the new folders"
        raise InvalidArgument("network", f"{message}: remove the block, or go on with the deployment that it is of")
    tried = {"key": "ssh-ed25519 AAAA", "node": "ecdsa-sha2-nistp384 AAAA"}
    try:
        RunConfig.parse(_add_network(file, dict.fromkeys(plan.local, tried)))
    except InvalidArgument as error:
        message = f"no network: block can be put at the end of the run file ({error})"
        raise InvalidArgument(
            "config", f"{message}: write its settings as lines `key: value`, as `dpfed init` does"
        ) from None


def _copy_first_weights(file: ConfigFile, folder: Path) -> None:
    """Copy the public weights to the place where the run file's copy looks for them."""
    name = file.config.model.init
    if name is not None and not Path(name).is_absolute():
        (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / name).write_bytes((file.folder / name).read_bytes())


def _require_movable(file: ConfigFile, plan: Plan) -> None:
    """Refuse files that the run file names by a path that its copy in another folder has no such file at."""
    config = file.config
    if config.model.init is not None and ".." in Path(config.model.init).parts:
        message = f"the study's folder gets a copy of the run file, and {config.model.init} is outside of it"
        raise InvalidArgument("model.init", f"{message}: put the weights beside the run file, or write a whole path")
    if config.ledger is not None and plan.server_noises and not _is_whole(config.ledger.url):
        message = f"the study's folder gets a copy of the run file, and a ledger such as {config.ledger.url} has none"
        raise InvalidArgument("ledger.url", f"{message}: write its whole path, such as sqlite:////srv/study/ledger.db")


def _is_whole(url: str) -> bool:
    """Return whether an address of a ledger is the same from every folder."""
    path = url.removeprefix("sqlite:///")
    return "://" in path or Path(path).is_absolute()


def _write_hub(made: Deployment, address: str) -> Hub:
    (made.hub_folder / ADDRESS).write_text(json.dumps({"address": address}), encoding="utf-8")
    hub = made.hub
    write_certificates(hub.folder, hub.host)
    _write_script(
        hub.folder,
        ["flower-superlink", *hub.flags()],
        "Start the SuperLink; its port is for sites and for whoever starts runs.",
    )
    return hub


def _write_site(folder: Path, name: str, hub: Hub, study: SigningKey, config: RunConfig, plan: Plan) -> dict[str, str]:
    """Write the folder of one site, and return the public keys of its answers and of its node."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / CA).write_bytes((hub.folder / CA).read_bytes())
    node = write_node_key(folder)
    values = {
        "site": name,
        "superlink": hub.address,
        "server_key": study.public.text,
        "data": _describe_data(config, plan.local[name].size),
        "ledger": {"url": "sqlite:///ledger.db", "account": _name_account(name)},
        "policy": _propose_policy(plan, name),
    }
    seeded = {} if config.seed is None else {"seed": config.seed}
    promise = plan.guarantee or Guarantee(1.0, 1e-5)
    cap = Guarantee(SPARE * promise.epsilon, promise.delta, promise.unit, promise.adjacency)
    key = write_site(folder, SiteConfig.model_validate(values | seeded), cap)
    _write_script(
        folder, ["dpfed", "site", "serve", SITE_FILE], "Serve the site; look at its policy in site.yaml first."
    )
    return {"key": key, "node": node}


def _describe_data(config: RunConfig, size: int) -> dict[str, Any]:
    data = config.data
    known = data.model_dump(mode="json", exclude_unset=True, include={"categories", "ignore", "person_column"})
    known |= {} if config.metrics is None else describe_hold_outs(data)
    return known | {"source": RECORDS, "label": data.label or LABEL, "classes": list(data.classes), "size": size}


def _propose_policy(plan: Plan, name: str) -> dict[str, Any]:
    """Return a policy that allows this plan and little more: the site's owner decides."""
    parts = [part for part in (plan.local[name] if plan.noises_steps else None, plan.client) if part is not None]
    least = min(plan.noise_schedule or (1.0,)) * min((part.noise_multiplier or 0.0 for part in parts), default=0.0)
    return {
        "styles": [plan.style],
        "epsilon_per_run": plan.guarantee.epsilon if plan.guarantee is not None else 1.0,
        "least_noise": math.floor(90 * least) / 100,
        "most_clip": max((part.clip_norm for part in parts), default=1.0),
        "most_rounds": plan.rounds,
        "most_spare_rounds": plan.spare_rounds,
    } | ({} if plan.charges_clients else {"most_raw_updates": int(SPARE) * _count_raw(plan)})


def _count_raw(plan: Plan) -> int:
    """Return how many values without noise the plan may ask of a site."""
    return plan.rounds + plan.spare_rounds + count_releases(plan)


def _name_account(site: str) -> str:
    return f"{site}-records"


def _add_network(file: ConfigFile, keys: dict[str, dict[str, str]]) -> str:
    """Return the run file as it was, with the network: block at its end."""
    lines = ["", "# the sites of the run, for `dpfed run --on`", "network:", f"  key: {STUDY_KEY}", "  sites:"]
    lines += [f"    {dump(name)}: {dump(each)}" for name, each in keys.items()]
    text = file.content.decode("utf-8").rstrip()
    return "\n".join([text, *lines, ""])


def _write_script(folder: Path, command: list[str], what: str) -> None:
    settings = "\n".join(f"export {name}={value}" for name, value in OFF.items())
    words = " ".join(shlex.quote(word.replace(f"{folder}/", "")) for word in command)
    path = folder / START
    path.write_text(
        f'#!/bin/sh\n# {what}\ncd "$(dirname "$0")" || exit 1\n{settings}\nexec {words}\n', encoding="utf-8"
    )
    path.chmod(0o700)
