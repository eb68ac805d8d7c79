"""`--check` and `--schema`: what an operator is told before anything is started."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from services.__main__ import main
from shared.errors import ConfigError
from shared.runtime.check import check
from shared.runtime.local_checks import local_notes, local_problems
from shared.runtime.mesh_file import load_mesh

TEXT = """
[model]
path = "model"
[[datacenters]]
name = "a"
[[datacenters]]
name = "b"
[[lines]]
name = "a-b"
between = ["a", "b"]
rate_mbit = 1000
rtt_ms = 40
[[nodes]]
name = "r"
role = "router"
datacenter = "a"
listen = "127.0.0.1:0"
address = "127.0.0.1:7100"
http = "127.0.0.1:0"
[[nodes]]
name = "p"
role = "prefill"
datacenter = "a"
listen = "127.0.0.1:0"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A right mesh file beside a directory that looks like a model."""
    (tmp_path / "mesh.toml").write_text(TEXT)
    (tmp_path / "model").mkdir()
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        (tmp_path / "model" / name).touch()
    return tmp_path / "mesh.toml"


def local(file: Path, node: str, added: str = "") -> list[str]:
    file.write_text(f"{TEXT}\n{added}\n")
    mesh = load_mesh(file)
    return [str(problem).replace(str(file.parent), ".") for problem in local_problems(mesh, mesh.node(node))]


def test_a_right_file(file: Path) -> None:
    out = io.StringIO()
    assert check(str(file), "", out) == 0
    assert out.getvalue() == f"{file}: right; 2 nodes, 2 datacenters, 1 line\n"
    out = io.StringIO()
    assert check(str(file), "p", out) == 0
    assert out.getvalue().splitlines()[0].endswith("; p can run here")


def test_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "mesh.toml").write_text("[modle]\n")
    out = io.StringIO()
    assert check(str(tmp_path / "mesh.toml"), "", out) == 2
    assert out.getvalue().splitlines()[0].endswith("mesh.toml: 4 problems")
    assert "  modle: unknown key; did you mean 'model'?" in out.getvalue().splitlines()


def test_a_node_that_is_not_there(file: Path) -> None:
    out = io.StringIO()
    assert check(str(file), "q", out) == 2
    assert out.getvalue() == "nodes: there is no node 'q'; this file names r, p\n"


def test_a_model_that_is_not_whole(file: Path) -> None:
    (file.parent / "model" / "config.json").unlink()
    (file.parent / "model" / "model.safetensors").unlink()
    assert local(file, "r") == []
    assert local(file, "p") == [
        "model.path: ./model holds no config.json; is it a Hugging Face directory?",
        "model.path: ./model holds no *.safetensors: a worker needs the weights",
    ]
    (file.parent / "model" / "tokenizer.json").unlink()
    (file.parent / "model").rmdir()
    assert local(file, "p") == ["model.path: ./model is no directory on this machine"]


def test_keys_that_are_not_there_or_too_short(file: Path) -> None:
    (file.parent / "mesh.key").write_text("short\n")
    (file.parent / "api.keys").write_text("\n")
    added = '[security]\nkey_file = "mesh.key"\n[http]\napi_keys_file = "api.keys"\nadmin_key_file = "none"'
    assert local(file, "r", added) == [
        "security.key_file: ./mesh.key holds 5 bytes; at least 16 are needed",
        "http.api_keys_file: ./api.keys is empty",
        "http.admin_key_file: ./none: No such file or directory",
    ]
    assert len(local(file, "p", added)) == 1  # a worker needs the mesh's key alone


def tls(cert: str, more: str = "") -> str:
    folder = Path(__file__).parents[2] / "golden" / "tls"
    lines = [
        f'tls_{kind} = "{folder / name}"' for kind, name in (("cert", f"{cert}.pem"), ("key", f"{cert}.key"))
    ]
    return "\n".join(["[security]", *lines, f'tls_ca = "{folder / "mesh-ca.pem"}"', more])


def test_a_certificate_is_made_out_to_its_node(file: Path) -> None:
    assert local(file, "p", tls("p")) == []
    [problem] = local(file, "p", tls("md"))
    assert problem.endswith("is made out to md; issue one with subjectAltName DNS:p or URI:pdd://p")
    assert local(file, "p", tls("md", "tls_names = false")) == []
    [problem] = local(file, "p", tls("expired"))
    assert "will not be taken by peers" in problem
    assert "expired" in problem


def test_traces_that_cannot_be_sent(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added = '[tracing]\nendpoint = "http://127.0.0.1:4318"\nheaders_file = "headers"'
    missing = "tracing.headers_file: ./headers: No such file or directory"
    assert local(file, "p", added) == [missing]
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    first, second = local(file, "p", added)
    assert first.startswith("tracing.endpoint: needs OpenTelemetry, which is not installed here; pip install")
    assert second == missing


def test_an_endpoint_for_traces_is_an_address(file: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"tracing.endpoint: 'collector:4318' .* http://host:port, or empty"
    ):
        local(file, "p", '[tracing]\nendpoint = "collector:4318"')
    with pytest.raises(ConfigError, match=r"tracing.sample: 1.5 is not allowed"):
        local(file, "p", "[tracing]\nsample = 1.5")


def test_certificates_that_are_none(file: Path) -> None:
    (file.parent / "tls.crt").write_text("x")
    added = '[security]\ntls_cert = "tls.crt"\ntls_key = "tls.key"\ntls_ca = "ca.crt"'
    found = local(file, "p", added)
    assert len(found) == 2
    assert found[0].startswith("security.tls_cert: ./tls.crt with ./tls.key: ")
    assert found[1] == "security.tls_ca: ./ca.crt: No such file or directory"


def test_a_host_of_another_machine(file: Path) -> None:
    added = '[security]\nkey_file = "mesh.key"'
    (file.parent / "mesh.key").write_text("k" * 32)
    text = TEXT.replace('listen = "127.0.0.1:0"\n', 'listen = "192.0.2.1:7101"\n')
    file.write_text(f"{text}\n{added}\n")
    mesh = load_mesh(file)
    (problem,) = local_problems(mesh, mesh.node("p"))
    assert problem.path == "nodes[1].listen"
    assert problem.text.startswith("192.0.2.1 cannot be listened on here: ")


def test_congestion_control_that_the_kernel_lacks(file: Path) -> None:
    if not os.access("/proc/sys/net/ipv4/tcp_available_congestion_control", os.R_OK):
        pytest.skip("this kernel does not say what it has")
    file.write_text(TEXT.replace("rtt_ms = 40", 'rtt_ms = 40\ncongestion = "nosuch"'))
    mesh = load_mesh(file)
    (problem,) = local_problems(mesh, mesh.node("p"))
    assert str(problem).startswith("lines[0].congestion: 'nosuch' is not there: this kernel has ")


def test_socket_buffers_below_the_line_are_noted(file: Path, tmp_path: Path) -> None:
    mesh = load_mesh(file)
    (tmp_path / "tcp_rmem").write_text("4096 131072 6291456\n")
    (tmp_path / "tcp_wmem").write_text("4096 16384 10000000\n")
    (note,) = local_notes(mesh, mesh.node("p"), tmp_path)
    assert str(note) == (
        "lines[0]: 1000 Mbit/s x 40 ms keeps 5000000 bytes under way, and net.ipv4.tcp_rmem allows 6291456; "
        "set net.ipv4.tcp_rmem to at least 10000000 (docs/operations.md)"
    )
    assert list(local_notes(mesh, mesh.node("p"), tmp_path / "none")) == []


def test_the_command_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(file)]) == 0
    assert "right; 2 nodes" in capsys.readouterr().out
    assert main(["--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "mesh.toml"
    assert main(["--config", str(file.parent / "none.toml")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
