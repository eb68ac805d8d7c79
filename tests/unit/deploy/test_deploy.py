"""What is handed to operators fits the services: example files, schema, units, container files, documents."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from scripts import check_deploy, make_reference
from scripts.metric_names import ROOT
from shared.policy.config import RouterPolicy
from shared.runtime.mesh_file import load_mesh
from shared.runtime.mesh_schema import make_schema, schema_text

DEPLOY = ROOT / "deploy"
EXAMPLES = sorted(DEPLOY.glob("*.toml"))
SERVICES = sorted(DEPLOY.glob("systemd/datacenter-*/*.service"))
CONTAINERS = sorted(DEPLOY.glob("containers/*.Containerfile"))


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


# --- mesh files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", EXAMPLES, ids=name)
def test_examples_are_right_and_name_their_schema(file: Path) -> None:
    mesh = load_mesh(file)
    assert {node.role for node in mesh.nodes} >= {"router", "prefill", "relay", "main_decode"}
    assert file.read_text(encoding="utf-8").startswith("#:schema ./mesh.schema.json\n")


def test_there_is_an_example_for_each_kind_of_mesh() -> None:
    several = {"several-lines.toml", "several-models.toml"}
    assert {file.name for file in EXAMPLES} == {"mesh.toml", "two-datacenters.toml", *several}


def test_the_schema_is_current() -> None:
    text = (DEPLOY / "mesh.schema.json").read_text(encoding="utf-8")
    assert text == schema_text(), "run: python -m scripts.make_reference"


def test_the_schema_says_what_the_checks_ask_for() -> None:
    defined = make_schema()["$defs"]
    assert all(each["additionalProperties"] is False for each in defined.values())
    assert defined["NodeConfig"]["properties"]["pool_blocks"]["minimum"] == 2
    assert defined["LineConfig"]["properties"]["dscp"]["maximum"] == 63
    assert defined["LinkPolicy"]["properties"]["ping_every"]["exclusiveMinimum"] == 0
    assert defined["ModelConfig"]["properties"]["block_tokens"]["enum"] == [8, 16, 32, 64, 128]
    assert "minimum" not in defined["RouterPolicy"]["properties"]["relay"]
    assert defined["RouterPolicy"]["properties"]["drain"]["description"]


@pytest.mark.parametrize("file", EXAMPLES, ids=name)
def test_the_schema_allows_the_examples(file: Path) -> None:
    schema = make_schema()
    assert list(broken(tomllib.loads(file.read_text(encoding="utf-8")), schema, schema)) == []


def test_the_schema_refuses_what_the_checks_refuse() -> None:
    schema = make_schema()
    mesh = tomllib.loads((DEPLOY / "mesh.toml").read_text(encoding="utf-8"))
    mesh["nodes"][0] |= {"pool_blocks": 1, "device": "gpu", "role": "rooter", "pool": 3}
    mesh["policy"] = {"link": {"ping_every": 0}}
    del mesh["model"]["path"]
    assert sorted(broken(mesh, schema, schema)) == [
        ".model: path is missing",
        ".nodes[0].device: gpu",
        ".nodes[0].pool_blocks: 1",
        ".nodes[0].role: rooter",
        ".nodes[0]: pool is unknown",
        ".policy.link.ping_every: 0",
    ]


def broken(value: object, rule: dict[str, object], schema: dict[str, object], path: str = "") -> list[str]:
    """The few rules of JSON Schema that this one uses."""
    if "$ref" in rule:
        defined = schema["$defs"]
        assert isinstance(defined, dict)
        rule = defined[str(rule["$ref"]).rpartition("/")[2]] | {}
    found = []
    if isinstance(value, dict):
        properties = rule["properties"]
        assert isinstance(properties, dict)
        assert isinstance(rule.get("required", []), list)
        found += [f"{path}: {key} is unknown" for key in value if key not in properties]
        found += [f"{path}: {key} is missing" for key in rule.get("required", []) if key not in value]  # type: ignore[attr-defined]
        for key in value.keys() & properties.keys():
            found += broken(value[key], properties[key], schema, f"{path}.{key}")
    elif isinstance(value, list):
        items = rule.get("items") or {}
        assert isinstance(items, dict)
        for index, each in enumerate(value):
            found += broken(each, items, schema, f"{path}[{index}]")
    else:
        wrong = (
            (isinstance(value, str) and not re.search(str(rule.get("pattern", "")), value))
            or ("enum" in rule and value not in rule["enum"])  # type: ignore[operator]
            or ("minimum" in rule and value < rule["minimum"])  # type: ignore[operator]
            or ("maximum" in rule and value > rule["maximum"])  # type: ignore[operator]
            or ("exclusiveMinimum" in rule and value <= rule["exclusiveMinimum"])  # type: ignore[operator]
        )
        found += [f"{path}: {value}"] if wrong else []
    return found


# --- documents --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", make_reference.DOCUMENTS, ids=lambda file: file.name)
def test_the_generated_parts_of_documents_are_current(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    current = make_reference.filled(text, make_reference.DOCUMENTS[file])
    assert text == current, "run: python -m scripts.make_reference"


@pytest.mark.parametrize(
    "document",
    [
        ROOT / "README.md",
        ROOT / "docs" / "operations.md",
        DEPLOY / "install.md",
        DEPLOY / "containers" / "README.md",
    ],
    ids=name,
)
def test_documents_name_files_that_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text)
    missing = [link for link in linked if "://" not in link and not (document.parent / link).exists()]
    missing += [
        path
        for path in re.findall(
            r"\b(?:deploy|docs|scripts|services|shared|tests|benchmarks)/[\w./@-]*\w", text
        )
        if not (ROOT / path).exists()
    ]
    assert missing == []


# --- units ------------------------------------------------------------------------------------------------


def settings(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_each_datacenter_has_its_services_and_one_target() -> None:
    found = {
        directory.name: {unit.name for unit in directory.iterdir()}
        for directory in DEPLOY.glob("systemd/*-*")
    }
    assert found == {
        "datacenter-a": {
            "pdd-datacenter-a.target",
            "pdd-workers.target",
            "pdd-router@.service",
            "pdd-prefill@.service",
            "pdd-relay@.service",
        },
        "datacenter-b": {
            "pdd-datacenter-b.target",
            "pdd-workers.target",
            "pdd-router@.service",
            "pdd-main-decode@.service",
        },
    }


@pytest.mark.parametrize("unit", SERVICES, ids=name)
def test_a_unit_starts_a_service_that_exists(unit: Path) -> None:
    found = settings(unit)
    (start,) = found["ExecStart"]
    role = unit.name.removeprefix("pdd-").removesuffix("@.service").replace("-", "_")
    assert f" -m services.{role} --config /etc/pdd/mesh.toml --node %i" in start
    assert (ROOT / "services" / role / "__main__.py").exists()
    target = f"pdd-{unit.parent.name}.target"
    assert found["PartOf"] == found["WantedBy"] == [target]
    assert (unit.parent / target).exists()


@pytest.mark.parametrize("unit", SERVICES, ids=name)
def test_a_unit_waits_for_the_drain_and_for_what_is_closed_after_it(unit: Path) -> None:
    found = settings(unit)
    assert found["Type"] == ["notify"]
    assert int(found["WatchdogSec"][0]) > 0
    assert int(found["TimeoutStopSec"][0]) >= 2 * RouterPolicy().drain + 10


@pytest.mark.parametrize("unit", SERVICES, ids=name)
def test_a_router_stops_before_the_workers_of_its_machine(unit: Path) -> None:
    found = settings(unit)
    if "router" in unit.name:
        assert "pdd-workers.target" in found["After"]
    else:
        assert found["Before"] == ["pdd-workers.target"]


@pytest.mark.parametrize("unit", SERVICES, ids=name)
def test_a_unit_loads_the_credentials_that_the_example_names(unit: Path) -> None:
    mesh = tomllib.loads((DEPLOY / "two-datacenters.toml").read_text(encoding="utf-8"))
    named = {Path(path).name for path in mesh["security"].values()}
    if "router" in unit.name:
        named |= {Path(path).name for path in mesh["http"].values()}
    loaded = dict(value.split(":") for value in settings(unit)["LoadCredential"])
    assert loaded == {each: f"/etc/pdd/credentials/{each}" for each in named}


def test_both_datacenters_have_the_same_router() -> None:
    one, other = (DEPLOY / f"systemd/datacenter-{letter}/pdd-router@.service" for letter in "ab")
    assert one.read_text().replace("datacenter-a", "datacenter-b") == other.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_a_wrong_unit_fails_the_check(tmp_path: Path) -> None:
    directory = tmp_path / "datacenter-a"
    shutil.copytree(DEPLOY / "systemd/datacenter-a", directory)
    relay = directory / "pdd-relay@.service"
    relay.write_text("[Unit]\nWatchDog=1\n[Service]\nExecStart=/opt/pdd-mesh/current/bin/python\n")
    failures = list(check_deploy.check(directory))
    assert "Unknown key 'WatchDog'" in failures[0] or "Unknown key name 'WatchDog'" in failures[0]
    assert re.match(r"datacenter-a: pdd-relay@\.service: exposure 9\.\d is above 3\.0", failures[1])


# --- containers -------------------------------------------------------------------------------------------


def test_there_is_a_container_for_each_service() -> None:
    assert {file.stem for file in CONTAINERS} == {"router", "prefill", "relay", "main-decode"}


@pytest.mark.parametrize("file", CONTAINERS, ids=name)
def test_a_container_runs_its_service_as_nobody_special(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    (entry,) = (line for line in lines if line.startswith("ENTRYPOINT "))
    module = f"services.{file.stem.replace('-', '_')}"
    assert json.loads(entry.removeprefix("ENTRYPOINT "))[1:4] == ["-m", module, "--config"]
    assert "USER 10001" in lines
    assert "STOPSIGNAL SIGTERM" in lines
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            assert all((ROOT / source).exists() for source in line.split()[1:-1]), line


@pytest.mark.parametrize("file", CONTAINERS, ids=name)
def test_only_workers_install_torch(file: Path) -> None:
    assert ("[model]" in file.read_text(encoding="utf-8")) == (file.stem != "router")
