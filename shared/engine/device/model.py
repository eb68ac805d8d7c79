"""The Llama-family forward on a device: this project's kernels, and the device library's matrix products.

Everything a step needs is in its `Batch`, nothing is read back and nothing depends on values, so that the
whole forward can be recorded once and replayed. A mixture of experts is the exception: see `experts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from shared.engine.checkpoint import Checkpoint, DenseTensors, ExpertTensors, LayerTensors
from shared.engine.device.batch import Batch
from shared.engine.device.experts import Experts
from shared.engine.model_config import ModelConfig, read_config
from shared.engine.rope import frequencies
from shared.engine.weights import Progress, Weights
from shared.errors import ModelError
from shared.kernels.extend_attention import extend_attention
from shared.kernels.kv_write import rotate_and_write_kv
from shared.kernels.rows import rms_norm, silu_mul

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's tensors on the device."""

    tensors: LayerTensors
    experts: Experts | None


class DeviceModel:
    """One loaded model. Its methods only read it. `graphable`: no step has to look at values on the host."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: str,
        embedding: Tensor,
        layers: list[Layer],
        norm: Tensor,
        head: Tensor,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = embedding.device
        self.graphable = config.experts is None
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._scale = config.head_dim**-0.5
        angles = torch.arange(config.max_context, dtype=torch.float32)[:, None]
        angles = angles * frequencies(config.rope, config.head_dim)
        self._cos = angles.cos().to(self.device)
        self._sin = angles.sin().to(self.device)

    def forward(self, batch: Batch, pool: Tensor) -> Tensor:
        """Last hidden states of each item's last token, [items, hidden]; the new KV is written to `pool`."""
        return self.states(batch, pool)[batch.last]

    def states(self, batch: Batch, pool: Tensor) -> Tensor:
        """Last hidden states of all rows, [tokens, hidden]; the new KV is written to `pool`."""
        residual = self._embedding[batch.ids]
        rows = rms_norm(residual, self._layers[0].tensors.input_norm, self.config.eps)
        # One result for all layers: the kernel writes no padding rows, which stay finite this way.
        heads = (len(rows), self.config.heads, self.config.head_dim)
        mixed = torch.zeros(heads, dtype=rows.dtype, device=rows.device)
        for number, layer in enumerate(self._layers):
            tensors = layer.tensors
            if number:
                rows = rms_norm(rows, tensors.input_norm, self.config.eps, residual)
            rows = self._attend(number, tensors, rows, batch, pool, mixed)
            rows = rms_norm(rows, tensors.mlp_norm, self.config.eps, residual)
            rows = _dense(tensors.mlp, rows) if layer.experts is None else layer.experts(rows)
        return rms_norm(rows, self._norm, self.config.eps, residual)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores, float32 [rows, vocab], of what `forward` gave."""
        return F.linear(hidden, self._head).float()

    def _attend(
        self, number: int, tensors: LayerTensors, rows: Tensor, batch: Batch, pool: Tensor, mixed: Tensor
    ) -> Tensor:
        config = self.config
        heads, kv_heads = config.heads, config.kv_heads
        qkv = F.linear(rows, tensors.qkv, tensors.qkv_bias)
        qkv = qkv.view(len(rows), heads + 2 * kv_heads, config.head_dim)
        q, k, v = qkv[:, :heads], qkv[:, heads:-kv_heads], qkv[:, -kv_heads:]
        if tensors.q_norm is not None and tensors.k_norm is not None:
            q = rms_norm(q, tensors.q_norm, config.eps)
            k = rms_norm(k, tensors.k_norm, config.eps)
        k_cache, v_cache = pool[:, number, 0], pool[:, number, 1]
        rotate_and_write_kv(q, k, v, self._cos, self._sin, batch.positions, batch.slots, k_cache, v_cache)
        extend_attention(
            q,
            k_cache,
            v_cache,
            batch.bounds,
            batch.start,
            batch.tables,
            self._scale,
            window=config.windows[number],
            out=mixed,
        )
        return F.linear(mixed.view(len(rows), -1), tensors.output, tensors.output_bias)


def _dense(tensors: DenseTensors | ExpertTensors, rows: Tensor) -> Tensor:
    assert isinstance(tensors, DenseTensors)
    both = F.linear(rows, tensors.gate_up, tensors.gate_up_bias)
    return F.linear(silu_mul(both), tensors.down, tensors.down_bias)


def load_device_model(
    directory: Path, dtype: str, device: torch.device, progress: Progress | None = None
) -> DeviceModel:
    """Load a Hugging Face directory onto a device as "float32", "bfloat16" or "float16", layer by layer.

    Raises ModelError where the directory cannot be served, naming the key, tensor or file.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r}: served are {', '.join(DTYPES)}")
    config = read_config(directory)
    with Weights(directory, DTYPES[dtype], progress) as weights:
        checkpoint = Checkpoint(config, weights)
        embedding = checkpoint.embedding().to(device)
        layers = [_layer(tensors, device) for tensors in checkpoint.layers()]
        norm, head = checkpoint.norm().to(device), checkpoint.head()
        checkpoint.refuse_unread(directory)
    whole = embedding if head is None else head.to(device)
    return DeviceModel(config, dtype, embedding, layers, norm, whole)


def _layer(tensors: LayerTensors, device: torch.device) -> Layer:
    experts = Experts.load(tensors.mlp, device) if isinstance(tensors.mlp, ExpertTensors) else None

    def moved(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(device)

    mlp: DenseTensors | ExpertTensors = tensors.mlp
    if isinstance(mlp, DenseTensors):
        mlp = DenseTensors(
            mlp.gate_up.to(device), moved(mlp.gate_up_bias), mlp.down.to(device), moved(mlp.down_bias)
        )
    else:
        mlp = ExpertTensors(mlp.shape, mlp.router, [], [])
    kept = LayerTensors(
        input_norm=tensors.input_norm.to(device),
        qkv=tensors.qkv.to(device),
        qkv_bias=moved(tensors.qkv_bias),
        q_norm=moved(tensors.q_norm),
        k_norm=moved(tensors.k_norm),
        output=tensors.output.to(device),
        output_bias=moved(tensors.output_bias),
        mlp_norm=tensors.mlp_norm.to(device),
        mlp=mlp,
    )
    return Layer(kept, experts)
