"""The operator's kit: a daemon's pages read by a real Prometheus; alerts, dashboard and docs/monitoring.md say what there is."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from collection import tools

ROOT = Path(__file__).resolve().parents[1]
KIT = ROOT / "examples/monitoring"
PAGE = (ROOT / "docs/monitoring.md").read_text("utf-8")
ALERTS = {r["alert"]: r for g in yaml.safe_load((KIT / "surefoot.rules.yml").read_text("utf-8"))["groups"] for r in g["rules"]}
VECTORS = ROOT / "tests/vectors"
DEADLINE_S = 60.0
WORKLOAD = """\
platform = "server-1"
duration_s = 600
[[lc]]
service = "moses"
load = 0.4
[[lc]]
service = "xapian"
load = 0.3
[[be]]
job = "stream"
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def until(what: str, look: Callable[[], Any]) -> Any:
    """The first thing that is true of what `look` gives; what it gave last is told where none comes."""
    end = time.monotonic() + DEADLINE_S
    last: object = None
    while time.monotonic() < end:
        try:
            last = look()
        except OSError as e:
            last = e
        else:
            if last:
                return last
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {DEADLINE_S:g} s; last: {last!r}")


@pytest.fixture(scope="module")
def prometheus() -> Path:
    """The folder of prometheus and promtool."""
    done = subprocess.run([str(ROOT / "scripts/test/prometheus.sh")], capture_output=True, text=True)
    if done.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"no Prometheus: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def families() -> list[dict[str, str]]:
    told = subprocess.run([str(tools.find(tools.SUREFOOTD)), "schema", "--json"], check=True, capture_output=True)
    found: list[dict[str, str]] = json.loads(told.stdout)["metrics"]
    return found


@dataclass
class Node:
    base: str
    config: Path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A daemon in real time on a virtual server, with a bundle and a policy in the shadow; not at 127.0.0.1."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "w.toml").write_text(WORKLOAD)
    port = free_port()
    config = folder / "node.toml"
    config.write_text(f'workload = "w.toml"\nmetrics_port = {port}\nmetrics_address = "127.0.0.2"\n')
    run = ["run", "--server", "virtual:server-1", "--policy", "parties", "--shadow", "osml-plus", "--config", str(config)]
    run += ["--bundle", str(VECTORS / "bundle-small"), "--trust", str(VECTORS / "keys/trusted")]
    with (folder / "log").open("w") as log:
        daemon = subprocess.Popen([str(tools.find(tools.SUREFOOTD)), *run], stdout=log, stderr=log)
        try:
            base = f"http://127.0.0.2:{port}"
            until(f"a daemon ({(folder / 'log')})", lambda: daemon.poll() is None and get(f"{base}/healthz")[0] == 200)
            # The last to come: a comparison needs a window of latency.
            until("a page with everything", lambda: "surefoot_model_error_qos{" in get(f"{base}/metrics")[1])
            yield Node(base, config)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)


@dataclass
class Database:
    base: str

    def ask(self, expression: str) -> list[dict[str, Any]]:
        status, text = get(f"{self.base}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        said = json.loads(text)
        assert status == 200, (expression, said)
        result: list[dict[str, Any]] = said["data"]["result"]
        return result


@pytest.fixture(scope="module")
def database(prometheus: Path, node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A Prometheus with the example's configuration, but for the address and the time between two looks."""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(KIT / "surefoot.rules.yml", folder)
    text = (KIT / "prometheus.yml").read_text("utf-8")
    ours = text.replace("127.0.0.1:19464", node.base.removeprefix("http://")).replace(
        "scrape_interval: 15s", "scrape_interval: 1s"
    )
    assert ours.count("127.0.0.2") == ours.count("interval: 1s") == 1
    (folder / "prometheus.yml").write_text(ours)
    at = f"127.0.0.1:{free_port()}"
    run = [str(prometheus / "prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*run, f"--web.listen-address={at}"], cwd=folder, stdout=log, stderr=log)
        try:
            until(f"a Prometheus ({folder / 'log'})", lambda: process.poll() is None and get(f"http://{at}/-/ready")[0] == 200)
            yield Database(f"http://{at}")
        finally:
            process.terminate()
            process.wait(30)


def exposed(page: str) -> dict[str, list[str]]:
    """Labels of each family of a page."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, flags=re.MULTILINE))
    found: dict[str, list[str]] = {}
    for name, labels in re.findall(r"^([a-z_0-9]+)(?:\{(.*)\})? \S+$", page, flags=re.MULTILINE):
        family = name if name in types else re.sub(r"_(bucket|sum|count)$", "", name)
        assert family in types, name
        keys = [k for k in re.findall(r'([a-z_]+)="', labels) if k != "le"]
        assert found.setdefault(family, keys) == keys, name
    return found


def rows(heading: str) -> list[list[str]]:
    """Cells of the table of a section of the page."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names_in(expression: str) -> set[str]:
    """Metrics that an expression reads."""
    plain = re.sub(r"\{[^}]*\}|\"[^\"]*\"", "", expression)
    return {re.sub(r"_bucket$", "", n) for n in re.findall(r"\b(?:surefoot_|process_)\w+|\bup\b", plain)}


def test_the_page_has_every_metric(families: list[dict[str, str]]) -> None:
    """docs/monitoring.md has name, type and meaning of each metric as the daemon says them, in its order."""
    said = [[name.strip("`"), kind, meaning] for name, kind, _, meaning in rows("All metrics")]
    assert said == [[f["name"], f["type"], f["help"]] for f in families]


def test_the_page_has_the_labels_that_a_daemon_shows(node: Node) -> None:
    """The labels of each metric that a run exposes stand in the table."""
    said = {name.strip("`"): re.findall(r"`(\w+)`", labels) for name, _, labels, _ in rows("All metrics")}
    found = exposed(get(f"{node.base}/metrics")[1])
    assert len(found) > 50
    assert {name: said[name] for name in found} == found


def test_promtool_finds_nothing_in_the_metrics(prometheus: Path, node: Node) -> None:
    """Names, types, units and help of every metric keep Prometheus' conventions."""
    status, page = get(f"{node.base}/metrics")
    assert status == 200
    done = subprocess.run([str(prometheus / "promtool"), "check", "metrics"], input=page, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_index_leads_to_every_page(node: Node) -> None:
    """What / links to is there; /healthz says ok while the daemon decides, and what is not there is a 404."""
    status, index = get(f"{node.base}/")
    links = re.findall(r'href="(/\w+)"', index)
    assert (status, links) == (200, ["/metrics", "/status", "/healthz"])
    assert [get(node.base + link)[0] for link in links] == [200, 200, 200]
    assert get(f"{node.base}/healthz") == (200, "ok\n")
    assert get(f"{node.base}/none")[0] == 404


def test_top_finds_the_address_of_the_configuration(node: Node) -> None:
    """`top --config` asks where metrics_address says; nothing answers at 127.0.0.1."""
    done = subprocess.run([str(tools.find(tools.SUREFOOTD)), "top", "--json", "--config", str(node.config)], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["policy"] == "parties"
    with pytest.raises(OSError, match="refused"):
        get(node.base.replace("127.0.0.2", "127.0.0.1"))


def test_rules_and_configuration_are_sound(prometheus: Path) -> None:
    """promtool takes the configuration and the rules, and every unit test of the rules holds."""
    for args in (["check", "config", "prometheus.yml"], ["test", "rules", "surefoot.rules.test.yml"]):
        done = subprocess.run([str(prometheus / "promtool"), *args], cwd=KIT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_is_wrong_is_found(prometheus: Path, tmp_path: Path) -> None:
    """The unit tests name each alert whose time or threshold is changed: they are no formality."""
    rules = yaml.safe_load((KIT / "surefoot.rules.yml").read_text("utf-8"))
    shutil.copy(KIT / "surefoot.rules.test.yml", tmp_path)
    later = {
        "SurefootRestarts": ("> 2", "> 3"),
        "SurefootForeignChanges": ("> 5", "> 50"),
        "SurefootModelFalseHope": ("0.3", "0.6"),
    }
    for rule in (r for g in rules["groups"] for r in g["rules"]):
        if "for" in rule:
            rule["for"] = f"{int(rule['for'].removesuffix('m')) + 20}m"
        else:
            changed = rule["expr"].replace(*later[rule["alert"]])
            assert changed != rule["expr"], rule["alert"]
            rule["expr"] = changed
    (tmp_path / "surefoot.rules.yml").write_text(yaml.safe_dump(rules))
    done = subprocess.run(
        [str(prometheus / "promtool"), "test", "rules", "surefoot.rules.test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert set(re.findall(r"alertname: (\w+)", done.stdout + done.stderr)) == set(ALERTS)


def test_every_alert_is_tested_and_explained(families: list[dict[str, str]]) -> None:
    """Each alert has a case in which it fires, one in which it does not, and a row on the page; it reads metrics of ours."""
    cases = [
        c for t in yaml.safe_load((KIT / "surefoot.rules.test.yml").read_text("utf-8"))["tests"] for c in t["alert_rule_test"]
    ]
    assert {c["alertname"] for c in cases if c.get("exp_alerts")} == set(ALERTS)
    assert {c["alertname"] for c in cases if not c.get("exp_alerts")} == set(ALERTS)
    assert [row[0].strip("`") for row in rows("Alerts")] == list(ALERTS)
    known = {f["name"] for f in families} | {"up"}
    for name, rule in ALERTS.items():
        assert names_in(rule["expr"]), name
        assert names_in(rule["expr"]) <= known, name


def test_every_panel_has_data(node: Node, database: Database) -> None:
    """Each expression of the dashboard reads metrics that a run exposes, and a Prometheus that scrapes it has data."""
    dashboard = json.loads((KIT / "dashboard.json").read_text("utf-8"))
    panels = [p for p in dashboard["panels"] if p["type"] != "row"]
    assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])
    expressions = {(p["title"], t["expr"]) for p in panels for t in p["targets"]}
    assert len(expressions) > 20
    here = set(exposed(get(f"{node.base}/metrics")[1])) | {"up"}
    waiting = []
    for title, expression in sorted(expressions):
        assert names_in(expression), title
        assert names_in(expression) <= here, (title, names_in(expression) - here)
        # As Grafana fills its variables in, with "All" and a short interval.
        filled = expression.replace("$__rate_interval", "5s")
        for variable in ("job", "instance", "service"):
            filled = filled.replace(f'=~"${variable}"', '=~".*"')
        assert "$" not in filled, title
        waiting.append((title, filled))

    def empty() -> list[tuple[str, str]]:
        waiting[:] = [(title, e) for title, e in waiting if not database.ask(e)]
        return waiting

    until("data of every panel", lambda: not empty() or None)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            metric = re.sub(r'=~"\$\w+"', '=~".*"', metric)
            assert all(label in line["metric"] for line in database.ask(metric)), variable["name"]
            assert database.ask(metric), variable["name"]


def test_no_alert_fires_on_a_node_that_is_well(database: Database) -> None:
    """The expressions of all alerts are evaluated by a real Prometheus; none holds that must not while a node is well."""
    until("a scrape", lambda: database.ask('up{job="surefoot"} == 1'))
    firing = {name for name, rule in ALERTS.items() if database.ask(rule["expr"])}
    # A workload begins with services that share everything: targets may be missed at first.
    assert firing <= {"SurefootQosViolated", "SurefootTicksLate"}
