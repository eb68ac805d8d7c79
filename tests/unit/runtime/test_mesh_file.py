"""Mesh files: what is right is loaded, what is wrong is said at once and by key path."""

from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.runtime.mesh_file import load_mesh, parse_mesh, read_mesh

HEAD = """
[model]
path = "model"
[[datacenters]]
name = "a"
[[datacenters]]
name = "b"
"""
ROUTER = """
[[nodes]]
name = "router-0"
role = "router"
datacenter = "a"
listen = "127.0.0.1:7100"
http = "127.0.0.1:8100"
"""
WORKERS = """
[[nodes]]
name = "prefill-0"
role = "prefill"
datacenter = "a"
listen = "127.0.0.1:7101"
[[nodes]]
name = "main-0"
role = "main_decode"
datacenter = "b"
listen = "127.0.0.1:7103"
"""
LINE = """
[[lines]]
name = "a-b"
between = ["a", "b"]
"""
WHOLE = HEAD + ROUTER + WORKERS + LINE


def problems(text: str) -> list[str]:
    return [str(problem) for problem in read_mesh(text)[1]]


def test_a_right_file_has_no_problem() -> None:
    mesh = parse_mesh(WHOLE)
    assert [node.name for node in mesh.nodes] == ["router-0", "prefill-0", "main-0"]
    assert mesh.policy.router.drain == 30.0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("[model]", "[modle]"), ["modle: unknown key; did you mean 'model'?", "model: is missing"]),
        (("path =", "pth ="), ["model.pth: unknown key; did you mean 'path'?", "model.path: is missing"]),
        (
            ('role = "prefill"', 'role = "prefil"'),
            [
                (
                    "nodes[1].role: 'prefil' is not one of router, prefill, relay, main_decode; "
                    "did you mean 'prefill'?"
                )
            ],
        ),
        (('role = "router"', 'role = "relay"'), ["nodes: there is no router; workers and clients need one"]),
        (('http = "127.0.0.1:8100"', ""), ["nodes[0].http: a router needs host:port for its clients"]),
        (
            ('http = "127.0.0.1:8100"', 'http = "8100"'),
            ["nodes[0].http: '8100' is no host:port (port 0-65535)"],
        ),
        (
            ('http = "127.0.0.1:8100"', 'http = "127.0.0.1:7100"'),
            ["nodes[0].http: 127.0.0.1:7100 is this node's listen too; give it a port of its own"],
        ),
        (
            ('http = "127.0.0.1:8100"', 'http = "0.0.0.0:8100"'),
            [
                (
                    "nodes[0].http: 0.0.0.0:8100 is open to others and asks for no key; "
                    "set http.api_keys_file, or listen on 127.0.0.1 behind a proxy that asks"
                )
            ],
        ),
        (
            ("127.0.0.1:7103", "10.1.2.3:7103"),
            [
                (
                    "nodes[2].listen: 10.1.2.3:7103 is open to others and asks for no key; "
                    "set security.key_file or security.tls_cert, or listen on 127.0.0.1"
                )
            ],
        ),
        (
            ("127.0.0.1:7103", "127.0.0.1:77103"),
            ["nodes[2].listen: '127.0.0.1:77103' is no host:port (port 0-65535)"],
        ),
        (
            ("127.0.0.1:7103", "127.0.0.1:7101"),
            ["nodes[2].listen: 127.0.0.1:7101 is nodes[1].listen already"],
        ),
        (
            ("127.0.0.1:7100", "127.0.0.1:0"),
            ["nodes[0].address: is needed: 127.0.0.1:0 tells workers no port to dial"],
        ),
        (
            ('name = "main-0"', 'name = "prefill-0"'),
            ["nodes[2].name: 'prefill-0' is the name of nodes[1] already"],
        ),
        (('name = "main-0"', 'name = "b"'), ["nodes[2].name: 'b' is a datacenter's name; call it otherwise"]),
        (
            ('role = "prefill"\ndatacenter = "a"', 'role = "prefill"\ndatacenter = "c"'),
            ["nodes[1].datacenter: 'c' is not a datacenter of this file (a, b)"],
        ),
        (
            ('role = "prefill"', 'role = "prefill"\nslowdown = 2.0'),
            ["nodes[1].slowdown: only the synthetic engine can be slowed down; leave it out"],
        ),
        (('["a", "b"]', '["a", "a"]'), ["lines[0].between: a line joins two different datacenters"]),
        (('["a", "b"]', '["a", "x"]'), ["lines[0].between: 'x' is not a datacenter of this file (a, b)"]),
        (('["a", "b"]', '"a"'), ["lines[0].between: 'a' is not a list of two strings"]),
    ],
)
def test_one_wrong_thing_is_one_problem(change: tuple[str, str], expected: list[str]) -> None:
    assert change[0] in WHOLE
    assert problems(WHOLE.replace(*change)) == expected


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        (
            '[[lines]]\nname = "again"\nbetween = ["b", "a"]',
            ["lines[1].between: lines[0] joins b and a already"],
        ),
        (
            '[[lines]]\nname = "a-b"\nbetween = ["b", "a"]',
            [
                "lines[1].name: 'a-b' is the name of lines[0] already",
                "lines[1].between: lines[0] joins b and a already",
            ],
        ),
        (
            '[[routes]]\nsource = "b"\ntarget = "router"\naddress = "127.0.0.1:1"',
            [
                (
                    "routes[0].target: 'router' is not a node of this file (router-0, prefill-0, main-0); "
                    "did you mean 'router-0'?"
                )
            ],
        ),
        (
            '[[routes]]\nsource = "x"\ntarget = "router-0"\naddress = "127.0.0.1"',
            [
                (
                    "routes[0].source: 'x' is not a node or a datacenter of this file "
                    "(router-0, prefill-0, main-0, a, b)"
                ),
                "routes[0].address: '127.0.0.1' is no host:port (port 0-65535)",
            ],
        ),
        (
            '[[routes]]\nsource = "main-0"\ntarget = "main-0"\naddress = "127.0.0.1:0"',
            [
                "routes[0].source: a node needs no route to itself",
                "routes[0].address: 127.0.0.1:0 names no port to dial",
            ],
        ),
        (
            2 * '[[routes]]\nsource = "b"\ntarget = "router-0"\naddress = "127.0.0.1:5"\n',
            ["routes[1].source: b has a route to router-0 already: routes[0]"],
        ),
        (
            '[security]\ntls_cert = "c.pem"',
            [
                "security.tls_key: is needed beside tls_cert: TLS here is mutual",
                "security.tls_ca: is needed beside tls_cert: TLS here is mutual",
            ],
        ),
        (
            "[policy.link]\nping_every = 3",
            ["policy.link.suspect_after: 2.0 s is not above policy.link.ping_every 3.0 s"],
        ),
        (
            "[policy.link]\nlease = 60\nmin_chunk = 300000",
            [
                "policy.link.min_chunk: 300000 is above max_chunk 262144",
                "policy.worker.orphan_lease: 40.0 s is not above policy.link.lease 60.0 s",
            ],
        ),
        (
            "[policy.link]\nresend_bytes = 1000000",  # one message might be more
            ["policy.link.max_control_payload: 16777216 is above resend_bytes 1000000"],
        ),
        (
            "[policy.worker]\norphan_pause = 50",
            ["policy.worker.orphan_lease: 40.0 s is not above orphan_pause 50.0 s"],
        ),
        (
            "[policy.worker]\nmax_waiting = 5",
            ["policy.worker.max_waiting: unknown key here; it belongs to [policy.router]"],
        ),
        ("[router]\ndrain = 5", ["router: unknown key here; it belongs to [policy.router]"]),
        (
            "[policy.router]\nbreaker_first = 90",
            ["policy.router.breaker_first: 90.0 is above breaker_most 30.0"],
        ),
    ],
)
def test_what_is_added_wrongly_is_found(added: str, expected: list[str]) -> None:
    assert problems(f"{WHOLE}\n{added}\n") == expected


def test_the_synthetic_engine_needs_blocks_that_fit_and_may_be_slow() -> None:
    text = WHOLE.replace('path = "model"', 'path = "model"\nengine = "synthetic"')
    assert problems(text.replace('role = "prefill"', 'role = "prefill"\nslowdown = 2.0')) == []
    assert problems(f"{text}\n[synthetic]\nblock_bytes = 1000") == [
        "synthetic.block_bytes: 1000 fits no block; give a multiple of 2048"
    ]


def test_a_pool_is_no_larger_than_its_routers_can_be_told() -> None:
    text = WHOLE.replace('role = "prefill"', 'role = "prefill"\npool_blocks = 1048513')
    [found] = problems(text)
    assert found.startswith("nodes[1].pool_blocks: 1048513 are more than the 1048512 that a router")
    assert problems(text.replace("1048513", "1048512")) == []
    raised = "[policy.link]\nmax_control_payload = 20000000"
    assert problems(f"{text}\n{raised}") == []


def test_keys_open_the_doors() -> None:
    text = WHOLE.replace("127.0.0.1", "10.0.0.1")
    assert len(problems(text)) == 4
    assert problems(f'{text}\n[security]\nkey_file = "k"\n[http]\napi_keys_file = "a"') == []


def test_a_host_that_means_any_needs_an_address() -> None:
    text = f'{WHOLE}\n[security]\nkey_file = "k"'.replace('"127.0.0.1:7103"', '"0.0.0.0:7103"')
    assert problems(text) == [
        "nodes[2].address: is needed: 0.0.0.0:7103 names no host that others could dial"
    ]
    assert problems(text.replace('"0.0.0.0:7103"', '"0.0.0.0:7103"\naddress = "md.example:7103"')) == []
    assert problems(text.replace('"0.0.0.0:7103"', '"0.0.0.0:7103"\naddress = "0.0.0.0:7103"')) == [
        "nodes[2].address: 0.0.0.0:7103 is nothing that others could dial"
    ]


def test_everything_wrong_is_said_at_once_and_only_once() -> None:
    text = """
[model]
block_tokens = 31
[[datacenters]]
name = "a"
[[nodes]]
role = "router"
datacenter = "a"
listen = "127.0.0.1:x"
http = "127.0.0.1:8100"
pool_block = 3
[[lines]]
name = "l"
between = ["a"]
[policy.worker]
align_fraction = 1.5
"""
    assert problems(text) == [
        "model.path: is missing",
        "model.block_tokens: 31 is not allowed; it must be one of 8, 16, 32, 64, 128",
        "nodes[0].pool_block: unknown key; did you mean 'pool_blocks'?",
        "nodes[0].name: is missing",
        "lines[0].between: ['a'] is not a list of two strings",
        "policy.worker.align_fraction: 1.5 is not allowed; it must be 0 to 1",
        "nodes[0].listen: '127.0.0.1:x' is no host:port (port 0-65535)",
    ]
    with pytest.raises(ConfigError, match=r"^m.toml: 7 problems\n  model.path: is missing\n  model.block"):
        parse_mesh(text, "m.toml")


def test_what_is_no_toml_names_the_line() -> None:
    with pytest.raises(ConfigError, match=r"^m.toml: is no TOML: .*line 2"):
        parse_mesh("[model]\npath = \n", "m.toml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_mesh(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_mesh(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(ConfigError, match=r"is no UTF-8 text: .* at byte 8"):
        load_mesh(tmp_path / "latin.toml")


def test_named_files_are_found_from_the_mesh_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    file = tmp_path / "mesh.toml"
    file.write_text(
        f'{WHOLE}\n[security]\nkey_file = "$CREDENTIALS_DIRECTORY/mesh.key"\n'
        '[http]\napi_keys_file = "~/keys"\n'
    )
    mesh = load_mesh(file)
    assert [model.path for model in mesh.served] == [str(tmp_path / "model")]
    assert mesh.http.api_keys_file == "/home/someone/keys"
    assert mesh.http.admin_key_file == ""
    assert mesh.security.key_file == "$CREDENTIALS_DIRECTORY/mesh.key"
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/pdd")
    assert load_mesh(file).security.key_file == "/run/credentials/pdd/mesh.key"


# --- several models -----------------------------------------------------------------------------------------

MODELS = """
[[models]]
path = "small"
[[models]]
path = "large"
name = "big"
block_tokens = 64
"""
TWO = (
    WHOLE.replace('[model]\npath = "model"\n', MODELS)
    .replace('role = "prefill"', 'role = "prefill"\nmodel = "big"')
    .replace('role = "main_decode"', 'role = "main_decode"\nmodel = "small"')
)


def test_several_models_and_which_a_worker_runs(tmp_path: Path) -> None:
    mesh = parse_mesh(TWO)
    assert [model.served for model in mesh.served] == ["small", "big"]
    runs = [mesh.model_of(node).served for node in mesh.nodes[1:]]
    assert runs == ["big", "small"]
    file = tmp_path / "mesh.toml"
    file.write_text(TWO)
    assert [model.path for model in load_mesh(file).models] == [
        str(tmp_path / one) for one in ("small", "large")
    ]


def test_with_one_model_no_worker_has_to_name_it() -> None:
    mesh = parse_mesh(WHOLE.replace("[model]", "[[models]]"))
    assert {mesh.model_of(node).served for node in mesh.nodes} == {"model"}
    assert problems(WHOLE.replace('role = "prefill"', 'role = "prefill"\nmodel = "model"')) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('[[models]]\npath = "small"', '[model]\npath = "small"'), "models: goes instead of [model]: name"),
        (('model = "big"', ""), "nodes[1].model: is needed: this file has several models (small, big)"),
        (
            ('model = "big"', 'model = "bug"'),
            "nodes[1].model: 'bug' is not a model of this file (small, big)",
        ),
        (('role = "router"', 'role = "router"\nmodel = "big"'), "nodes[0].model: a router serves all models"),
        (('name = "big"', 'name = "small"'), "models[1].name: 'small' is the name of models[0] already"),
        (
            ('path = "large"\nname = "big"\nblock_tokens = 64', 'path = "small"\nname = "big"'),
            "models[1].path: is the same pool of workers as models[0] already",
        ),
        (("block_tokens = 64", "block_tokens = 63"), "models[1].block_tokens: 63 is not allowed"),
        (("block_tokens = 64", "max_context = 8"), "models[1].max_context: 8 is less than one block of 32"),
    ],
)
def test_what_is_wrong_with_several_models(change: tuple[str, str], expected: str) -> None:
    assert change[0] in TWO
    found = problems(TWO.replace(*change, 1))
    assert any(one.startswith(expected) for one in found), found
