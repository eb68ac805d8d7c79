"""The tensors of a Llama-family checkpoint, layer by layer, fused as an engine wants them.

Heads are as in the file (two rotary halves), every tensor of the asked dtype on the CPU. What an engine makes
of them (reordered heads, packed weights, another device) is its own business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from shared.engine.model_config import Experts, ModelConfig
from shared.engine.weights import Weights
from shared.errors import ModelError


@dataclass(frozen=True, slots=True)
class DenseTensors:
    """gate_up [2 ffn, hidden], gate before up; down [hidden, ffn]."""

    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """router [count, hidden]; by expert gate_up [2 ffn, hidden] and down [hidden, ffn]."""

    shape: Experts
    router: Tensor
    gate_up: list[Tensor]
    down: list[Tensor]


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """qkv [(heads + 2 kv_heads) * head_dim, hidden], q before k before v; output [hidden, heads * head_dim];
    norms [hidden], those of q and k [head_dim]."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    mlp: DenseTensors | ExpertTensors


class Checkpoint:
    """What `weights` holds of the model that `config` describes.

    Raises ModelError as `Weights` does. Read everything, then call `refuse_unread`.
    """

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self._config = config
        self._weights = weights

    def embedding(self) -> Tensor:
        """[vocab, hidden]"""
        return self._weights.get("model.embed_tokens.weight", self._config.vocab, self._config.hidden)

    def norm(self) -> Tensor:
        """[hidden]: the last norm's."""
        return self._weights.get("model.norm.weight", self._config.hidden)

    def head(self) -> Tensor | None:
        """[vocab, hidden]; None where the embedding serves."""
        if self._config.tied:
            return None
        return self._weights.get("lm_head.weight", self._config.vocab, self._config.hidden)

    def layers(self) -> Iterator[LayerTensors]:
        """One layer at a time, so that no second copy of the model is held."""
        for number in range(self._config.layers):
            yield self._layer(f"model.layers.{number}")

    def refuse_unread(self, directory: Path) -> None:
        """A tensor that nothing reads would change the numbers: configuration and file contradict."""
        harmless = (".rotary_emb.inv_freq",)
        left = [name for name in self._weights.unused() if not name.endswith(harmless)]
        if self._config.tied:
            left = [name for name in left if name != "lm_head.weight"]
        if left:
            shown = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
            raise ModelError(
                f"{directory}: {self._config.architecture} with this config.json has no place for {shown}"
            )

    def _layer(self, name: str) -> LayerTensors:
        config, weights = self._config, self._weights
        hidden, queries = config.hidden, config.heads * config.head_dim
        qkv, qkv_bias = self._qkv(f"{name}.self_attn")
        return LayerTensors(
            input_norm=weights.get(f"{name}.input_layernorm.weight", hidden),
            qkv=qkv,
            qkv_bias=qkv_bias,
            q_norm=self._head_norm(f"{name}.self_attn.q_norm.weight"),
            k_norm=self._head_norm(f"{name}.self_attn.k_norm.weight"),
            output=weights.get(f"{name}.self_attn.o_proj.weight", hidden, queries),
            output_bias=weights.get(f"{name}.self_attn.o_proj.bias", hidden) if config.output_bias else None,
            mlp_norm=weights.get(f"{name}.post_attention_layernorm.weight", hidden),
            mlp=self._mlp(f"{name}.mlp"),
        )

    def _qkv(self, name: str) -> tuple[Tensor, Tensor | None]:
        config = self._config
        heads = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
        rows = {which: count * config.head_dim for which, count in heads.items()}

        def fused(kind: str, *rest: int) -> Tensor:
            return self._weights.stack(
                [(f"{name}.{which}_proj.{kind}", rows[which]) for which in rows], *rest
            )

        return fused("weight", config.hidden), fused("bias") if config.qkv_bias else None

    def _head_norm(self, name: str) -> Tensor | None:
        return self._weights.get(name, self._config.head_dim) if self._config.qk_norm else None

    def _mlp(self, name: str) -> DenseTensors | ExpertTensors:
        shape = self._config.experts
        return self._dense(name) if shape is None else self._experts(name, shape)

    def _dense(self, name: str) -> DenseTensors:
        config, weights = self._config, self._weights
        parts = [(f"{name}.gate_proj", config.ffn), (f"{name}.up_proj", config.ffn)]
        biases = [(f"{part}.bias", rows) for part, rows in parts]
        return DenseTensors(
            gate_up=weights.stack([(f"{part}.weight", rows) for part, rows in parts], config.hidden),
            gate_up_bias=weights.stack(biases) if config.mlp_bias else None,
            down=weights.get(f"{name}.down_proj.weight", config.hidden, config.ffn),
            down_bias=weights.get(f"{name}.down_proj.bias", config.hidden) if config.mlp_bias else None,
        )

    def _experts(self, name: str, shape: Experts) -> ExpertTensors:
        hidden, ffn = self._config.hidden, shape.ffn
        gate_up, down = [], []
        for number in range(shape.count):
            expert = f"{name}.experts.{number}"
            parts = [(f"{expert}.gate_proj.weight", ffn), (f"{expert}.up_proj.weight", ffn)]
            gate_up.append(self._weights.stack(parts, hidden))
            down.append(self._weights.get(f"{expert}.down_proj.weight", hidden, ffn))
        return ExpertTensors(
            shape, self._weights.get(f"{name}.gate.weight", shape.count, hidden), gate_up, down
        )
