"""Builds what a worker process is made of from the mesh file: runner, identity, first Announce."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from shared.engine.api import Runner
from shared.engine.fingerprint import Fingerprint, fingerprint, template_fingerprint
from shared.engine.synthetic import SyntheticRunner, SyntheticTiming
from shared.errors import ConfigError, ModelError
from shared.kv.layout import full_attention
from shared.runtime.settings import MeshConfig, ModelConfig, NodeConfig
from shared.transport.compression import ChunkCodec
from shared.wire.messages import Announce, Role

_SYNTHETIC_CONTEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class Built:
    """A runner and what its model is."""

    runner: Runner
    fingerprint: Fingerprint
    max_context: int


def build(mesh: MeshConfig, node: NodeConfig) -> Built:
    """Load the model, or make the synthetic one. Raises ModelError or ConfigError."""
    model = mesh.model_of(node)
    if model.engine == "synthetic":
        return _synthetic(mesh, node, model)
    # Torch is needed only by processes that compute with it.
    from shared.engine.loading import compiled, load_runner

    log = structlog.get_logger()
    began = time.monotonic()
    directory = Path(model.path).expanduser()
    prints = fingerprint(directory)
    library = None
    if node.compiled and node.device == "cpu":
        library = compiled(lambda reason: log.warning("not compiled: torch computes", reason=reason))
    runner = load_runner(
        directory,
        dtype=model.dtype,
        kv_blocks=node.pool_blocks,
        block_tokens=model.block_tokens,
        threads=node.threads or 1,
        device=node.device,
        most_running=mesh.policy.worker.max_running,
        library=library,
    )
    log.info(
        "model loaded",
        path=str(directory),
        compiled=library is not None,
        seconds=round(time.monotonic() - began, 2),
    )
    return Built(runner, prints, _context(model, runner.max_context))


def plane_codec() -> Callable[[], ChunkCodec] | None:
    """What makes the codec of chunks on the wire; None where only the base is installed, without numpy."""
    try:
        from shared.transport.planes import PlaneCodec
    except ImportError:
        structlog.get_logger().info("no numpy: KV is neither sent nor received compressed")
        return None
    return PlaneCodec


def _synthetic(mesh: MeshConfig, node: NodeConfig, model: ModelConfig) -> Built:
    block_tokens = model.block_tokens
    token_bytes, rest = divmod(mesh.synthetic.block_bytes, block_tokens)
    if rest or token_bytes % 64:
        advice = f"give a multiple of {64 * block_tokens}"
        raise ConfigError("synthetic.block_bytes", f"{mesh.synthetic.block_bytes} fits no block; {advice}")
    layout = full_attention(
        layers=1, kv_heads=1, head_dim=token_bytes // 8, block_tokens=block_tokens, dtype="float32"
    )
    timing = SyntheticTiming(
        step=node.slowdown * mesh.synthetic.step_ms / 1e3,
        token=node.slowdown / mesh.synthetic.prefill_tokens_per_second,
    )
    vocab = _vocab(Path(model.path).expanduser())
    runner = SyntheticRunner(layout, node.pool_blocks, vocab=vocab, timing=timing, sleep=time.sleep)
    template = template_fingerprint(model.path)
    return Built(runner, Fingerprint(f"synthetic-{template}", template), _context(model, _SYNTHETIC_CONTEXT))


def _vocab(directory: Path) -> int:
    """Ids of the model that the synthetic one stands for: others could not be asked about again."""
    path = directory / "config.json"
    try:
        vocab = msgspec.json.decode(path.read_bytes())["vocab_size"]
    except (OSError, msgspec.DecodeError, LookupError, TypeError) as error:
        raise ModelError(f"{path}: no vocab_size can be read; the router's tokenizer needs it too") from error
    if not isinstance(vocab, int) or vocab < 1:
        raise ModelError(f"{path}: vocab_size is {vocab!r}; it has to be a number of ids")
    return vocab


def _context(model: ModelConfig, limit: int) -> int:
    if model.max_context > limit:
        raise ConfigError("model.max_context", f"{model.max_context} is more than the model's {limit}")
    return model.max_context or limit


def first_announce(mesh: MeshConfig, node: NodeConfig, built: Built) -> Announce:
    """What the worker tells its routers of itself."""
    layout = built.runner.layout
    return Announce(
        role=Role(node.role),
        model=mesh.model_of(node).served,
        block_tokens=layout.block_tokens,
        bytes_per_block=layout.block_bytes,
        pool_blocks=node.pool_blocks,
        max_context=built.max_context,
        max_running=mesh.policy.worker.max_running,
        draining=False,
        kv_address=node.address or node.listen,
        fingerprint=built.fingerprint.full,
        layout=layout.digest(),
    )
