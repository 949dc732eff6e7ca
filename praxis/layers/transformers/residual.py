# SPDX-License-Identifier: Apache-2.0
"""Where a block normalises: before it, after it, or around it.

With f the block and x its input, the policies are

    pre             x + f(LN(x))
    post            x + LN(f(x))
    post_skip       LN(x + f(x))
    primer_hybrid   x + LN(f(LN(x)))
"""

from __future__ import annotations

from jaxtyping import Array, Float, Num

from praxis import base_layer, pax_fiddle
from praxis.layers import stochastics

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

NORM_POLICIES = ('pre', 'post', 'post_skip', 'primer_hybrid')


def check_norm_policy(policy: str) -> None:
  """Raises ValueError unless `policy` is one of those above."""
  if policy not in NORM_POLICIES:
    raise ValueError(
      f'norm_policy must be one of {", ".join(NORM_POLICIES)}; got {policy!r}'
    )


def create_norms(
  layer: base_layer.BaseLayer,
  template: LayerTpl,
  input_size: int,
  output_size: int,
  name: str,
) -> None:
  """Creates the layer's norms: `name`, or pre_`name` and post_`name`."""
  before = template.clone().set(dim=input_size)
  after = template.clone().set(dim=output_size)
  if layer.norm_policy == 'primer_hybrid':
    layer.create_child(f'pre_{name}', before)
    layer.create_child(f'post_{name}', after)
  else:
    layer.create_child(name, before if layer.norm_policy == 'pre' else after)


def norm_before(
  layer: base_layer.BaseLayer,
  inputs: Float[Array, '...'],
  paddings: Num[Array, '...'] | None,
  name: str = 'layer_norm',
) -> Float[Array, '...']:
  """Returns what the block gets."""
  if layer.norm_policy == 'pre':
    return getattr(layer, name)(inputs, paddings)
  if layer.norm_policy == 'primer_hybrid':
    return getattr(layer, f'pre_{name}')(inputs, paddings)
  return inputs


def norm_after(
  layer: base_layer.BaseLayer,
  outputs: Float[Array, '...'],
  paddings: Num[Array, '...'] | None,
  name: str = 'layer_norm',
) -> Float[Array, '...']:
  """Returns what the block gives to the residual connection."""
  if layer.norm_policy == 'post':
    return getattr(layer, name)(outputs, paddings)
  if layer.norm_policy == 'primer_hybrid':
    return getattr(layer, f'post_{name}')(outputs, paddings)
  return outputs


def norm_skip(
  layer: base_layer.BaseLayer,
  outputs: Float[Array, '...'],
  paddings: Num[Array, '...'] | None,
  name: str = 'layer_norm',
) -> Float[Array, '...']:
  """Returns what follows the residual connection."""
  if layer.norm_policy == 'post_skip':
    return getattr(layer, name)(outputs, paddings)
  return outputs


def droppath(prob: float, residual_weight: float = 1.0) -> LayerTpl:
  """Returns a residual connection whose branch is dropped with `prob`."""
  return pax_fiddle.Config(
    stochastics.StochasticResidual,
    residual_weight=residual_weight,
    survival_prob=1.0 - prob,
  )
