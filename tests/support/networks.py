"""A study and its sites in one process: real files, ledgers and keys, and a transport in memory that has faults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dpfed.config.run import ConfigFile, RunConfig
from dpfed.config.site import SiteConfig, SiteFile
from dpfed.federated import network_launch, wire
from dpfed.federated.keys import PublicKey, SigningKey
from dpfed.federated.network_launch import Clock
from dpfed.federated.site import Site
from dpfed.federated.site_files import SITE_FILE, deal_trial, describe_hold_outs, write_site
from dpfed.federated.transport import LATE, LOST, Arrived, Sent
from dpfed.guarantee import Guarantee

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals.yaml"
SIZES = {"north": 182, "south": 114, "east": 159}
CLASSES = ["malignant", "benign"]
HOUR = 3600.0


@dataclass
class TestClock:
    """A clock that moves only when somebody waits."""

    __test__ = False

    time: float = 1_000_000.0

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class MemoryTransport:
    """Carries bytes to handles, with one scripted fault after another for each site; without a script, none.

    A fault is a name below, or a function of the request, the handle and the clock that gives what arrives.
    """

    clock: TestClock
    handles: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    faults: dict[str, list[Any]] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    pushed: list[tuple[str, bytes]] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)
    _waiting: list[Arrived] = field(default_factory=list)
    _held: list[tuple[str, str, bytes]] = field(default_factory=list)

    def sites(self) -> Mapping[str, str]:
        return {key: f"node {key}" for key in self.handles if key not in self.away}

    def push(self, address: str, content: bytes, *, deadline: float) -> Sent:
        key = address.removeprefix("node ")
        token = str(len(self.pushed))
        self.pushed.append((key, content))
        script = self.faults.get(key, [])
        fault = script.pop(0) if script else "none"
        held, self._held = self._held, []
        self._deliver(fault, key, token, content, deadline)
        for earlier in held:  # what was overtaken arrives now
            self._arrive(earlier[1], self.take_part(earlier[0], earlier[2]))
        return Sent(token)

    def pull(self, tokens: Collection[str]) -> list[Arrived]:
        found = [each for each in self._waiting if each.token in tokens]
        self._waiting = [each for each in self._waiting if each not in found]
        return found

    def take_part(self, key: str, content: bytes) -> bytes:
        """Deliver a request to the site of that key, and return its reply."""
        reply = self.handles[key](content)
        self.replies.append(reply)
        return reply

    def _arrive(self, token: str, content: bytes | None, failure: str | None = None) -> None:
        self._waiting.append(Arrived(token, content, failure))

    def _deliver(self, fault: Any, key: str, token: str, content: bytes, deadline: float) -> None:
        if callable(fault):
            self._arrive(token, fault(content))
        elif fault == "lost":  # on its way there
            self._arrive(token, None, LOST)
        elif fault == "lost reply":
            self.take_part(key, content)
            self._arrive(token, None, LOST)
        elif fault == "late":  # the site answers, and nobody waits any more
            self.take_part(key, content)
            self._arrive(token, None, LATE)
        elif fault == "duplicated":
            self._arrive(token, self.take_part(key, content))
            self._arrive(token, self.take_part(key, content))
        elif fault == "altered":
            self._arrive(token, _flip(self.take_part(key, content)))
        elif fault == "altered request":
            self._arrive(token, self.take_part(key, _flip(content)))
        elif fault == "replayed":  # an earlier reply of that site, or somebody else's
            self._arrive(token, self.replies[0] if self.replies else b"")
        elif fault == "reordered":
            self._held.append((key, token, content))
            self._arrive(token, None, LOST)
        elif fault == "stale":  # delivered after its deadline
            self.clock.time = deadline + 1
            self._arrive(token, self.take_part(key, content))
        elif fault == "oversized":
            self._arrive(token, bytes(40_000_000))
        else:
            self._arrive(token, self.take_part(key, content))


def _flip(content: bytes) -> bytes:
    place = len(content) - 3
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


class Network:
    """A run file with its sites, all in one folder; sites and server can be started again at any time."""

    def __init__(
        self, folder: Path, seed: int | None = 7, cap: float = 4.0, sizes: dict[str, int] | None = None, **changes: Any
    ) -> None:
        self.folder = folder
        self.sizes = SIZES if sizes is None else sizes
        self.clock = TestClock()
        self.transport = MemoryTransport(self.clock)
        self.study = SigningKey.make()
        folder.mkdir(exist_ok=True)
        self.study.write(folder / "study.key")
        policy, guarantee = changes.pop("policy", {}), changes.pop("guarantee", None) or Guarantee(cap, 1e-5)
        self.values = _make_values(seed, self.sizes, changes)
        self.config = RunConfig.of(self.values)
        tables = deal_trial(self.config.data, folder, folder, holds_out=self.config.metrics is not None)
        self.files: dict[str, SiteFile] = {}
        self.keys: dict[str, str] = {}
        for name in tables:
            config = self._make_site(name, seed, policy)
            self.keys[name] = write_site(folder / name, config, guarantee)
            self.files[name] = SiteFile.read(folder / name / SITE_FILE)
        network = {
            "key": "study.key",
            "deadline": 300,
            "sites": {name: {"key": key} for name, key in self.keys.items()},
        }
        (folder / "run.yaml").write_text(yaml.safe_dump(self.values | {"network": network}))
        self.file = ConfigFile.read(folder / "run.yaml")
        self.sites: dict[str, Site] = {}
        for name in tables:
            self.restart(name)

    def restart(self, name: str, **options: Any) -> Site:
        """Start the site's process anew."""
        if name in self.sites:
            self.sites[name].close()
        self.sites[name] = Site(self.files[name], now=self.clock.now, **options)
        self.transport.handles[self.keys[name]] = self.sites[name].handle
        return self.sites[name]

    def launch(self) -> network_launch.NetworkLaunch:
        """Return the run in its directory, as a new process of the server would."""
        return network_launch.open_run(self.file, self.folder / "run")

    def federation(self) -> Any:
        return self.launch().federation(self.transport, Clock(self.clock.now, self.clock.pause))

    def run(self, rounds: int = 1000) -> Any:
        """Do so many rounds at most, and return the last model."""
        with self.federation() as federation:
            for _, _result in zip(range(rounds), federation, strict=False):
                pass
            return federation.weights

    def make_request(self, name: str, verb: str, number: int, arrays: Any = None, /, **changes: Any) -> bytes:
        """Return a request to that site which the study's own key has signed, as a server would, or a hostile one."""
        outline = self.launch().outline
        text, recipe = outline.plan.to_json(), self.launch().recipe.text
        vectors = {"weights": outline.weights} if arrays is None and verb == wire.TRAIN else arrays or {}
        header = {"verb": verb, "site": name, "run": "study-1", "round": 1, "plan": wire.digest_text(text), "head": ""}
        header |= {
            "model": wire.digest_task(vectors, None, 0),
            "nonce": "n",
            "number": number,
            "deadline": self.clock.time + 9,
        }
        header |= {"plan_text": text, "recipe": recipe} if verb == wire.ENROLL else {"counted": 0, "clip_norm": None}
        key = changes.pop("key", self.study)
        return wire.pack(wire.Message(header | changes, vectors), key, wire.REQUEST)

    def ask(self, name: str, verb: str, number: int, arrays: Any = None, /, **changes: Any) -> wire.Message:
        """Return what the site answers to such a request; its signature is good."""
        reply = self.sites[name].handle(self.make_request(name, verb, number, arrays, **changes))
        return wire.unpack(reply, PublicKey.parse(self.keys[name]), wire.REPLY, 10**9)

    def forge(self, name: str, content: bytes, arrays: Any = None, **changes: Any) -> bytes:
        """Return an answer to that request which the site's own key has signed, with whatever it likes in it."""
        request = wire.unpack(content, self.study.public, wire.REQUEST, 10**9)
        header = {key: request.header[key] for key in wire.ECHOED}
        header |= {"code": "ok", "counts": [1], "head": "9:" + "ab" * 32, "is_private": True, "last": header["number"]}
        key = SigningKey.read(self.files[name].find("site.key"))
        return wire.pack(wire.Message(header | changes, arrays or {}), key, wire.REPLY)

    def close(self) -> None:
        for site in self.sites.values():
            site.close()

    def _make_site(self, name: str, seed: int | None, policy: dict[str, Any]) -> SiteConfig:
        allowed = {"styles": ["sample", "hybrid", "local"], "epsilon_per_run": 4, "least_noise": 0.3, "most_clip": 1}
        held_out = describe_hold_outs(self.config.data) if self.config.metrics is not None else {}
        return SiteConfig(
            site=name,
            superlink="127.0.0.1:9092",
            server_key=self.study.public.text,
            data={"source": "records.csv", "label": "label", "classes": CLASSES, "size": self.sizes[name]} | held_out,
            ledger={"url": "sqlite:///ledger.db", "account": f"{name}-records"},
            policy=allowed | policy,
            seed=seed,
        )


def _make_values(seed: int | None, sizes: dict[str, int], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the example with three hospitals and three rounds, and what a server must be told."""
    values = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    data = values["data"]
    data |= {"partition": {"kind": "quantity", "sizes": list(sizes.values())}, "names": list(sizes)}
    data |= {"classes": CLASSES, "shape": [30]}
    values["rounds"] = 3
    if seed is not None:
        values["seed"] = seed
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) and key != "privacy" else value
    return values
