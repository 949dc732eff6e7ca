# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts of gpt-oss: fused tensors, biases and clamped gates."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pax.huggingface import weight_layouts
from pax.huggingface.layers.mixture_of_experts import (
  ExpertTensors,
  MixtureOfExperts,
)
from pax.huggingface.weight_layouts import WeightLayout
from praxis import base_layer, pax_fiddle
from praxis.layers import activations

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


_TENSORS = ExpertTensors(
  mixture='mlp', gate='gate_up_proj', up='gate_up_proj', down='down_proj'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptOssExperts(MixtureOfExperts):
  """The settings of the mixtures of a model."""

  normalize_gates: bool = True
  tensors: ExpertTensors = _TENSORS
  # The gate is x * sigmoid(slope * x).
  slope: float
  # Limit of the gate, from above, and of what it multiplies on both sides.
  limit: float

  def set_layers(self, stack: LayerTpl, **feed_forward: LayerTpl) -> None:
    """Sets the feed-forward layers of a stack; see MixtureOfExperts."""
    feed_forward['activation_tpl'] = pax_fiddle.Config(
      activations.Swish, beta=self.slope
    )
    super().set_layers(stack, **feed_forward)
    stack.moe_layer_tpl.set(
      has_bias=True, gated_limit=self.limit, gated_offset=1.0
    )

  def weights(
    self, source: str, target: str, model_dims: int
  ) -> Iterator[WeightLayout]:
    """Yields the layouts of the weights of a layer; see MixtureOfExperts."""
    experts, hidden = self.num_experts, self.hidden_dims
    source = f'{source}.{self.tensors.mixture}'
    router, source = f'{source}.router', f'{source}.experts'
    yield weight_layouts.transposed(
      f'{router}.weight', f'{target}/gate', experts, model_dims
    )
    yield weight_layouts.same(f'{router}.bias', f'{target}/gate_bias', experts)
    for tensor, kind, dims in (
      ('gate_up_proj', 'w', (experts, model_dims)),
      ('gate_up_proj_bias', 'b', (experts,)),
    ):
      # Gates and what they multiply alternate.
      for i, variable in enumerate((f'{kind}i_gate_0', f'{kind}i_0')):
        yield weight_layouts.split(
          f'{source}.{tensor}',
          f'{target}/{variable}',
          (*dims, 2 * hidden),
          (*dims, hidden, 2),
        ).take(
          *[slice(None)] * len(dims),
          slice(None),
          slice(i, i + 1),
          merged_shape=(*dims, hidden),
        )
    yield weight_layouts.same(
      f'{source}.down_proj',
      f'{target}/wo_0',
      experts,
      hidden,
      model_dims,
    )
    yield weight_layouts.same(
      f'{source}.down_proj_bias', f'{target}/bo', experts, model_dims
    )
