# SPDX-License-Identifier: Apache-2.0
"""The gated hidden units and the biases of experts.

Shapes: E experts, S tokens of each of G groups, M model dimension, H hidden
dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer
from praxis.pytypes import SplitDimsMapping


def gated(
  activation: Callable[[Array], Array],
  gate: Float[Array, '*B H'],
  linear: Float[Array, '*B H'],
  *,
  limit: float | None = None,
  offset: float = 0.0,
) -> Float[Array, '*B H']:
  """Returns activation(gate) * (linear + offset).

  Args:
    activation: of the gate.
    gate: one projection of the inputs.
    linear: the other.
    limit: of the gate, from above, and of the other on both sides.
    offset: added to the other.
  """
  if limit is not None:
    gate = jnp.minimum(gate, limit)
    linear = jnp.clip(linear, -limit, limit)
  if offset:
    linear = linear + offset
  return activation(gate) * linear


def check_fields(layer: base_layer.BaseLayer) -> None:
  """Checks that a TransformerFeedForwardMoe has what its fields are of.

  Raises:
    ValueError: a field has no effect.
  """
  if layer.has_bias and layer.gating_func != 'dropless':
    raise ValueError(
      f'has_bias must be False with gating_func={layer.gating_func!r}, got '
      "True; set gating_func='dropless'"
    )
  if layer.has_bias and layer.gates_scale_inputs:
    raise ValueError(
      'has_bias must be False with gates_scale_inputs=True, got True; the '
      'biases of outputs have gates'
    )
  if layer.gating_func == 'dense_top2' and layer.use_gated_activation:
    raise ValueError(
      "use_gated_activation must be False with gating_func='dense_top2', got "
      "True; 'dropless' supports gated activations"
    )
  is_changed = layer.gated_limit is not None or layer.gated_offset
  if is_changed and not layer.use_gated_activation:
    raise ValueError(
      'use_gated_activation must be True with gated_limit='
      f'{layer.gated_limit} and gated_offset={layer.gated_offset}, got False; '
      'they are of the two projections of gated activations'
    )


def create_choice_bias(layer: base_layer.BaseLayer) -> None:
  """Creates `choice_bias` [E] of a layer, which no gradient updates."""
  bias = base_layer.WeightHParams(
    shape=[layer.num_experts],
    init=base_layer.WeightInit.Constant(0.0),
    mesh_shape=layer.mesh_shape,
    # Steps are smaller than what bfloat16 resolves.
    dtype=jnp.float32,
    collections=[
      base_layer.WeightHParamsCollection.REQUIRES_MEAN_SYNC,
      base_layer.WeightHParamsCollection.DISALLOW_BFLOAT16_CONVERSION,
    ],
  )
  layer.create_variable('choice_bias', bias, trainable=False)


def create_biases(
  layer: base_layer.BaseLayer, inputs: Sequence[str], active_fraction: float
) -> None:
  """Creates `gate_bias` [E], that of each input projection, and `bo` [E, M].

  Args:
    layer: a TransformerFeedForwardMoe, whose biases are sharded as its weights.
    inputs: names of the input projections [E, M, H], each in as many variables
      as the layer's weights have shards.
    active_fraction: fraction of the experts that a token has.
  """

  def create(name: str, shape: list[int], split: SplitDimsMapping) -> None:
    bias = base_layer.WeightHParams(
      shape=shape,
      init=base_layer.WeightInit.Constant(0.0),
      mesh_shape=layer.mesh_shape,
      tensor_split_dims_mapping=split,
      active_fraction=active_fraction if len(shape) > 1 else 1.0,
    )
    layer.create_variable(name, bias)

  split, experts = layer.weight_split_dims_mapping, layer.num_experts
  hidden = layer.hidden_dims // layer.expert_weight_shards
  create('gate_bias', [experts], split.me and split.me[1:])
  hidden_split = split.emh and [split.emh[0], split.emh[2]]
  for name in map(bias_name, inputs):
    for i in range(layer.expert_weight_shards):
      create(f'{name}_{i}', [experts, hidden], hidden_split)
  output_split = split.ehm and [split.ehm[0], split.ehm[2]]
  create('bo', [experts, layer.input_dims], output_split)


def bias_name(weight: str) -> str:
  """Returns `bi` for the weight `wi`."""
  return f'b{weight.removeprefix("w")}'


def output_biases(
  gates: Float[Array, 'G S E'], biases: Float[Array, 'E M']
) -> Float[Array, 'G S M']:
  """Returns the gated sum of the biases of the outputs of experts."""
  return jnp.einsum('gse,em->gsm', gates.astype(biases.dtype), biases)
