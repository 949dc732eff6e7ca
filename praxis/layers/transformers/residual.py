# SPDX-License-Identifier: Apache-2.0
"""Where a block normalises: before it, after it, or around it.

With f the block and x its input, the policies are

    pre             x + f(LN(x))
    post            x + LN(f(x))
    post_skip       LN(x + f(x))
    primer_hybrid   x + LN(f(LN(x)))
"""

from __future__ import annotations

import enum

from jaxtyping import Array, Float, Num

from praxis import base_layer, pax_fiddle
from praxis.layers import stochastics

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class Place(enum.Enum):
  """Where a norm may stand: around f, or after the residual connection."""

  BEFORE = 'before'
  AFTER = 'after'
  SKIP = 'skip'


# By policy: where the norms stand, and what their names begin with.
_PREFIXES = {
  'pre': {Place.BEFORE: ''},
  'post': {Place.AFTER: ''},
  'post_skip': {Place.SKIP: ''},
  'primer_hybrid': {Place.BEFORE: 'pre_', Place.AFTER: 'post_'},
}
NORM_POLICIES = tuple(_PREFIXES)


def check_norm_policy(policy: str) -> None:
  """Raises ValueError unless `policy` is one of those above."""
  if policy not in NORM_POLICIES:
    raise ValueError(
      f'norm_policy must be one of {", ".join(NORM_POLICIES)}; got {policy!r}'
    )


def norm_names(policy: str, name: str) -> dict[Place, str]:
  """Returns what a policy calls its norms `name`, by their places."""
  return {place: prefix + name for place, prefix in _PREFIXES[policy].items()}


def create_norms(
  layer: base_layer.BaseLayer,
  template: LayerTpl,
  input_size: int,
  output_size: int,
  name: str,
) -> None:
  """Creates the norms of the layer's policy, of their places' sizes."""
  for place, child in norm_names(layer.norm_policy, name).items():
    size = input_size if place is Place.BEFORE else output_size
    layer.create_child(child, template.clone().set(dim=size))


def norm(
  layer: base_layer.BaseLayer,
  place: Place,
  x: Float[Array, '...'],
  paddings: Num[Array, '...'] | None,
  name: str = 'layer_norm',
) -> Float[Array, '...']:
  """Returns `x` normalised if the layer's policy does so at this place."""
  child = norm_names(layer.norm_policy, name).get(place)
  return x if child is None else getattr(layer, child)(x, paddings)


def droppath(prob: float, residual_weight: float = 1.0) -> LayerTpl:
  """Returns a residual connection whose branch is dropped with `prob`."""
  return pax_fiddle.Config(
    stochastics.StochasticResidual,
    residual_weight=residual_weight,
    survival_prob=1.0 - prob,
  )
