"""The sections of `mesh.toml` as frozen Structs: one file for the whole mesh, each process picks its node.

Knows nothing of files: `mesh_file` reads and checks. Behaviour's tunables are `shared.policy.config`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from shared.errors import ConfigError
from shared.policy.config import LinePolicy, LinkPolicy, RouterPolicy, WorkerPolicy

RoleName = Literal["router", "prefill", "relay", "main_decode"]


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[model]: what all workers of this mesh serve; where there are several models, [[models]] stands for it
    and each has workers of its own."""

    path: str
    """Hugging Face directory of the model, on every machine (a router reads its tokenizer and template
    alone); `~` is the user's home, and a relative name starts at this file's directory."""
    name: str = ""
    """Name served to clients; the directory's name when empty."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Type of weights, activations and KV; float16 on a GPU alone."""
    block_tokens: int = 32
    """Tokens per KV block; one value for all workers of a model."""
    max_context: int = 0
    """Tokens of prompt and output together; 0: the model's own limit."""
    engine: Literal["torch", "synthetic"] = "torch"
    """`synthetic` is a timing model without weights: for tests of the mesh itself."""

    @property
    def served(self) -> str:
        """The name that clients use."""
        return self.name or Path(self.path).expanduser().name


class SyntheticConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[synthetic]: the timing of the synthetic engine."""

    block_bytes: int = 65536
    """Bytes of one KV block."""
    prefill_tokens_per_second: float = 20_000.0
    """New tokens per second in a step."""
    step_ms: float = 5.0
    """Milliseconds a step takes beside its tokens."""


class DatacenterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[[datacenters]]: where nodes stand. Lines join them, and nodes of one share a LAN."""

    name: str
    """Its name; no node may have the same."""


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[[nodes]]: one process."""

    name: str
    """Its name: what `--node` takes, and what logs, metrics and peers show."""
    role: RoleName
    """What it does; decides which of the services runs it."""
    datacenter: str
    """The datacenter it stands in."""
    model: str = ""
    """Served name of the model that a worker runs; may be left out where the file has one. A router serves
    all."""
    listen: str
    """host:port for mesh connections; port 0 takes a free one."""
    address: str = ""
    """host:port under which others reach `listen`; `listen` itself when empty."""
    http: str = ""
    """host:port for clients (router), or for /metrics, /health and /ready (workers); empty: none."""
    pool_blocks: int = 512
    """KV blocks of a worker's pool."""
    threads: int = 0
    """CPU threads of the engine; 0: one."""
    compiled: bool = True
    """On a CPU: compute in C++ that is compiled for this machine at the first start, where it has a compiler
    (bfloat16 in torch all the same where only torch can use the processor's matrix unit, AMX); false:
    with torch."""
    device: str = "cpu"
    """`cpu` or `cuda` (with an index: `cuda:1`)."""
    slowdown: float = 1.0
    """Synthetic engine only: factor on its times."""


class LineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[[lines]]: what joins two datacenters. Where none is named, a pair of datacenters has no rate limit."""

    name: str
    """Its name in logs and metrics."""
    between: tuple[str, str]
    """The two datacenters; one line joins a pair."""
    rate_mbit: float = 0.0
    """Cap in Mbit/s, each direction; 0: none."""
    rtt_ms: float = 0.0
    """Round trip in milliseconds, as the router's first guess; it measures its own."""
    bulk_connections: int = 0
    """Bulk connections per pair of workers across it; 0: [policy.link]'s."""
    congestion: str = ""
    """TCP congestion control by name (`bbr`); empty: the kernel's default."""
    dscp: int = 0
    """Differentiated services code point of its packets, 0-63."""
    compress: Literal["off", "auto", "on"] = "auto"
    """Lossless compression of KV on it; `auto`: while the line is slower than that."""


class RouteConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[[routes]]: where a node's address differs as seen from one datacenter (a proxy, a NAT)."""

    source: str
    """Datacenter or node that dials."""
    target: str
    """Node that is dialled."""
    address: str
    """host:port to dial instead."""


class SecurityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[security]: without a key or certificates a service binds to loopback only. Names of files may begin
    with `~`, or with `$CREDENTIALS_DIRECTORY` under systemd; relative ones start at this file's directory."""

    key_file: str = ""
    """File with the key all nodes share (at least 16 bytes; blanks around it do not count)."""
    tls_cert: str = ""
    """PEM certificate chain of this node; with it every mesh connection is mutual TLS 1.3."""
    tls_key: str = ""
    """PEM private key of `tls_cert`."""
    tls_ca: str = ""
    """PEM certificates that peers must be signed by."""
    tls_names: bool = True
    """Whether a peer's certificate must carry the node's name as subjectAltName, `DNS:NAME` or
    `URI:pdd://NAME`. False: whoever `tls_ca` has signed may say any name."""


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[http]: the router's front door."""

    api_keys_file: str = ""
    """File with one `tenant key` pair a line; empty: no key is asked for (loopback only)."""
    admin_key_file: str = ""
    """File with the key of the admin endpoints; empty: they are not served."""
    max_body: int = 16 << 20
    """Bytes of a request body at most."""
    keep_alive: float = 15.0
    """Seconds of silence on a stream until a comment line is sent. More than `queue_wait`: what waits in vain
    is told a status then, and no error in a stream that has begun."""
    splice: bool = True
    """Whether generated ids are spliced back in where their text returns."""
    splice_bytes: int = 64 << 20
    """Bytes of prompts and answers kept for that, of all models together."""
    splice_ttl: float = 3600.0
    """Seconds they are kept after their last use."""
    max_header: int = 64 << 10
    """Bytes of a request's line and headers at most."""
    body_timeout: float = 60.0
    """Seconds from the headers until the whole body has to be there."""
    max_choices: int = 128
    """Choices of one request (prompts x n) at most."""
    thread_chars: int = 8192
    """Characters of text from which on it is tokenized in a thread, so that no stream waits for it."""
    tokenize_threads: int = 2
    """Texts tokenized in threads at the same time."""
    tool_format: Literal["auto", "hermes", "llama3_json", "smollm2", "none"] = "auto"
    """How the model writes calls of tools: `hermes` (Hermes and Qwen, `<tool_call>` around a JSON object),
    `llama3_json` (Llama 3, bare JSON), `smollm2` (SmolLM2, `<tool_call>` around a list). `auto` goes by its
    chat template; `none` refuses tools."""
    responses_bytes: int = 64 << 20
    """Bytes of conversations kept for `previous_response_id` of /v1/responses; of the tenant that has most,
    the oldest goes first."""
    responses_ttl: float = 3600.0
    """Seconds they are kept after their last use."""
    reasoning_format: Literal["auto", "think", "none"] = "auto"
    """Whether thoughts between `<think>` and `</think>` are told apart from answers; `auto`: where the chat
    template knows these marks."""


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[logs]: one JSON object a line on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe events that are written."""
    format: Literal["auto", "json", "pretty"] = "auto"
    """`auto`: pretty on a terminal, JSON elsewhere."""


class TracingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[tracing]: spans of every request in OpenTelemetry's form, sent by each node to a collector."""

    endpoint: str = ""
    """Where OTLP over HTTP is taken, as `http://collector:4318`; empty: nothing is recorded. Needs the extra
    `otel` of this package."""
    sample: float = 1.0
    """Share of the requests that are recorded, of those whose client has not decided by its `traceparent`."""
    headers_file: str = ""
    """File with `name: value` lines, sent with every batch: for collectors that ask for a key."""


class PolicyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[policy.*]"""

    link: LinkPolicy = LinkPolicy()
    line: LinePolicy = LinePolicy()
    worker: WorkerPolicy = WorkerPolicy()
    router: RouterPolicy = RouterPolicy()


class MeshConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    model: ModelConfig | None = None
    models: tuple[ModelConfig, ...] = ()
    datacenters: tuple[DatacenterConfig, ...]
    nodes: tuple[NodeConfig, ...]
    lines: tuple[LineConfig, ...] = ()
    routes: tuple[RouteConfig, ...] = ()
    policy: PolicyConfig = PolicyConfig()
    synthetic: SyntheticConfig = SyntheticConfig()
    security: SecurityConfig = SecurityConfig()
    http: HttpConfig = HttpConfig()
    logs: LogConfig = LogConfig()
    tracing: TracingConfig = TracingConfig()

    @property
    def served(self) -> tuple[ModelConfig, ...]:
        """All models, in the file's order."""
        return self.models if self.model is None else (self.model, *self.models)

    def model_of(self, node: NodeConfig) -> ModelConfig:
        """What a worker runs. Raises ConfigError where the file does not say."""
        served = self.served
        if len(served) == 1:
            return served[0]
        for model in served:
            if model.served == node.model:
                return model
        known = ", ".join(model.served for model in served)
        raise ConfigError(f"nodes.{node.name}.model", f"{node.model!r} is not one of the models ({known})")

    def node(self, name: str) -> NodeConfig:
        """The node called `name`. Raises ConfigError naming those there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise ConfigError("nodes", f"there is no node {name!r}; this file names {known}")

    def line_between(self, one: str, other: str) -> LineConfig | None:
        """The line that joins two datacenters, in either order; None within one, or where none is named."""
        for line in self.lines:
            if set(line.between) == {one, other}:
                return line
        return None

    def address_of(self, target: NodeConfig, source: NodeConfig) -> tuple[str, int]:
        """(host, port) that `source` dials to reach `target`."""
        for route in self.routes:
            if route.target == target.name and route.source in (source.name, source.datacenter):
                return split_address(route.address, "routes")
        return split_address(target.address or target.listen, f"nodes.{target.name}")


def split_address(text: str, path: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` apart. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(path, f"{text!r} is no host:port (port 0-65535)")
    return host.strip("[]"), int(port)
