"""A round over a network: three resident sites of dpfed, and three SuperNodes of Flower, at the same SuperLink.

    python benchmarks/flower.py [--json] [--quick]

Each round asks three nodes with 10 kB and waits for 10 kB of each, on loopback with TLS and known nodes. Resident sites
and SuperNodes answer the same question with the same bytes; a third row is a whole round of `dpfed run --on`, with its
signatures, ledgers and training. Goals: a resident round under 1.5 s and at least five times as fast as on SuperNodes,
in one run; of a whole round, the CPU of server and sites at most 10 % and 0.3 s above the bare one.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bench
from bench import Result, Row
from processes import TICKS

SIZE, NODES = 10_000, 3
GOAL_SECONDS, GOAL_RATIO = 1.5, 5.0
MORE, BESIDES = 1.1, 0.3
PATIENCE = 600.0
APP = {
    "pyproject.toml": """\
[project]
name = "bench-round"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "dpfed"

[tool.flwr.app.components]
serverapp = "bench_round:app"
clientapp = "bench_round:client"

[tool.flwr.app.config]
output = ""
size = 0
rounds = 0
nodes = 0
""",
    "bench_round/__init__.py": '''\
"""Ask all nodes for the bytes that they are sent, again and again, and write down how long each time takes."""
import json, os, time
from pathlib import Path

from dpfed.integrations.flower import GridTransport
from dpfed.integrations.flower_node import hasten_replies
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

app = ServerApp()
client = ClientApp()


@client.query("dpfed")
def echo(message, context):
    return Message(message.content, reply_to=message)


@app.main()
def main(grid, context):
    hasten_replies()
    config, transport, seconds, used = context.run_config, GridTransport(grid), [], []
    while len(transport.sites()) < config["nodes"]:
        time.sleep(0.2)
    started = time.time()
    for _ in range(config["rounds"]):
        begun, cpu = time.perf_counter(), time.process_time()
        content, deadline = os.urandom(config["size"]), time.time() + 120
        tokens = {transport.push(each, content, deadline=deadline).token for each in transport.sites().values()}
        while tokens:
            tokens -= {each.token for each in transport.pull(tokens)}
            time.sleep(0.1 if tokens else 0)
        seconds.append(time.perf_counter() - begun)
        used.append(time.process_time() - cpu)
    path = Path(config["output"])
    path.with_suffix(".tmp").write_text(json.dumps({"seconds": seconds, "cpu": used, "times": [started, time.time()]}))
    path.with_suffix(".tmp").rename(path)
''',
}
SITE = """
import sys
from pathlib import Path
from dpfed.integrations.flower_node import NodeSettings, serve
serve(NodeSettings(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])), lambda content: content)
"""


def cpu_seconds(pids: list[int]) -> float:
    """The CPU time of these processes until now."""
    fields = [(Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(sum(map(int, each[11:13])) for each in fields) / TICKS


@contextmanager
def started(commands: list[list[str]], folder: Path, environment: dict[str, str]) -> Iterator[list[int]]:
    """Start processes, and end them with their children, which are in their groups."""
    logs = [(folder / f"node-{number}.log").open("ab") for number in range(len(commands))]
    running = [
        subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        for command, log in zip(commands, logs, strict=True)
    ]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        for process, log in zip(running, logs, strict=True):
            process.wait(20)
            log.close()


def submit(hub, folder: Path, name: str, rounds: int) -> dict[str, list[float]]:
    """Submit the app, and return what it measured."""
    for file, text in APP.items():
        (folder / "app" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "app" / file).write_text(text)
    output = folder / f"{name}.json"
    settings = f'output="{output}" size={SIZE} rounds={rounds} nodes={NODES}'
    said = hub.flwr("run", str(folder / "app"), "dpfed", "--run-config", settings, "--format", "json")
    until = time.monotonic() + PATIENCE
    while not output.exists():
        if time.monotonic() > until:
            raise TimeoutError(said)
        time.sleep(0.1)
    return json.loads(output.read_text())


def measure_echoes(folder: Path, rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Rounds of resident sites, and of SuperNodes, at one SuperLink."""
    from dpfed.integrations import flower_files, flower_node, trial
    from dpfed.integrations.flower_processes import Hub, end, program

    hub = Hub(folder, f"127.0.0.1:{trial.free_port()}")
    flower_files.write_certificates(folder, hub.host)
    hub.configure()
    homes = [folder / f"node{number}" for number in range(NODES)]
    for home in homes:
        home.mkdir()
    keys = [flower_files.write_node_key(home) for home in homes]
    link = hub.start()
    try:
        flower_node.register(hub.address, hub.authority, keys)
        sites = [
            [sys.executable, "-c", SITE, hub.address, str(hub.authority), str(home / "node.key")] for home in homes
        ]
        with started(sites, folder, hub.environment()) as pids, sampled(lambda: cpu_seconds(pids)) as samples:
            resident = submit(hub, folder, "resident", 2 * rounds)
        stock_node = [
            program("flower-supernode"),
            "--superlink",
            hub.address,
            "--root-certificates",
            str(hub.authority),
        ]
        own = "--auth-supernode-private-key"
        nodes = [[*stock_node, "--port", str(trial.free_port()), own, str(home / "node.key")] for home in homes]
        with started(nodes, folder, hub.environment()):
            stock = submit(hub, folder, "stock", rounds)
    finally:
        end([link])
    begun, ended = resident["times"]
    inside = [used for at, used in samples if begun <= at <= ended]
    resident["cpu"] = [sum(resident["cpu"]) / (2 * rounds) + (inside[-1] - inside[0]) / (2 * rounds)]
    return resident, stock


@contextmanager
def sampled(look: Callable[[], Any]) -> Iterator[list[tuple[float, Any]]]:
    """Look ten times a second, and note when."""
    found: list[tuple[float, Any]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            found.append((time.time(), look()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def measure_run(folder: Path, rounds: int) -> tuple[float, float]:
    """Wall seconds, and CPU seconds of server and sites, of a round of `dpfed run --on` with a model of 10 kB."""
    from dpfed.integrations import trial
    from dpfed.integrations.deployment import write_deployment
    from dpfed.runs.directory import RunDirectory
    from dpfed.runs.server_status import read_status

    model = {"kind": "mlp", "options": {"hidden": [75]}}
    file = trial.make_trial_file(NODES, rounds=rounds, model=model)
    made = write_deployment(file, folder / "study", f"127.0.0.1:{trial.free_port()}", deals=True)
    with trial.running(made) as processes:
        command = [sys.executable, "-m", "dpfed", "run", str(made.run_file), "--on", made.hub.address]
        run = subprocess.Popen([*command, "--directory", str(folder / "run")], stdout=subprocess.DEVNULL)
        sites = [process.pid for name, process in processes.items() if name != "hub"]
        run_directory = folder / "run"

        def look() -> tuple[int, float] | None:
            """Return how many rounds are done, and what server and sites have used."""
            status = read_status(run_directory)
            if status is None or status.is_over or not (run_directory / "plan.json").exists():
                return None
            return len(RunDirectory(run_directory).rounds()), cpu_seconds([*sites, status.pid])

        try:
            with sampled(look) as samples:
                code = run.wait(PATIENCE)
        finally:
            run.kill()
    if code:
        raise RuntimeError(f"dpfed run ended with {code}")
    lines = [json.loads(line) for line in (folder / "run" / "owner.jsonl").read_text().splitlines()]
    seen = [found for _, found in samples if found is not None and found[0] >= 1]
    first, last = seen[0], seen[-1]
    return statistics.median(line["seconds"] for line in lines[1:]), (last[1] - first[1]) / max(last[0] - first[0], 1)


def rows(quick: bool) -> list[Row]:
    rounds = 3 if quick else 6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "echo").mkdir()
        (folder / "whole").mkdir()
        resident, stock = measure_echoes(folder / "echo", rounds)
        seconds, cpu = measure_run(folder / "whole", 2 * rounds)
    ours, theirs = (Result(0.0, statistics.median(each["seconds"][1:])) for each in (resident, stock))
    whole, spent = Result(0.0, seconds), Result(cpu, 0.0)
    bare = Result(MORE * resident["cpu"][0] + BESIDES, 0.0)
    under = f"a round of {NODES} resident sites at 10 kB: seconds, at most {GOAL_SECONDS}"
    return [
        bench.faster("a round of 3 nodes at 10 kB: seconds, SuperNodes", ours, theirs, GOAL_RATIO),
        bench.faster(under, ours, Result(0.0, GOAL_SECONDS), 1.0),
        bench.smaller("CPU seconds of server and sites in a round; a bare one, 10 % and 0.3 s", spent, bare, 1.0),
        bench.compared("a whole round of `dpfed run --on`: seconds, SuperNodes that only echo", whole, theirs),
    ]


if __name__ == "__main__":
    sys.exit(bench.run(__file__, [], rows))
