# SPDX-License-Identifier: Apache-2.0
"""Placement of the norms of a residual block, by `norm_policy`.

For a block f with input x:

    pre             x + f(LN(x))
    post            x + LN(f(x))
    post_skip       LN(x + f(x))
    primer_hybrid   x + LN(f(LN(x)))

References: pre- and post-norm, https://arxiv.org/abs/2002.04745;
Primer, https://arxiv.org/abs/2109.08668.
"""

from __future__ import annotations

import enum

from jaxtyping import Array, Float, Num

from praxis import base_layer, pax_fiddle

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class NormPosition(enum.Enum):
  """The value that is normalized: input of f, output of f, or the sum."""

  INPUT = 'input'
  OUTPUT = 'output'
  SUM = 'sum'


# Prefixes of the names of the norms, by policy and position.
_NAME_PREFIXES = {
  'pre': {NormPosition.INPUT: ''},
  'post': {NormPosition.OUTPUT: ''},
  'post_skip': {NormPosition.SUM: ''},
  'primer_hybrid': {NormPosition.INPUT: 'pre_', NormPosition.OUTPUT: 'post_'},
}
NORM_POLICIES = tuple(_NAME_PREFIXES)


def check_norm_policy(policy: str) -> None:
  """Checks that `policy` is one of NORM_POLICIES.

  Raises:
    ValueError: it is not.
  """
  if policy not in NORM_POLICIES:
    raise ValueError(
      f'norm_policy must be one of {", ".join(NORM_POLICIES)}; got {policy!r}'
    )


def norm_names(policy: str, name: str) -> dict[NormPosition, str]:
  """Returns the names of the policy's norms, which end in `name`."""
  prefixes = _NAME_PREFIXES[policy]
  return {position: prefix + name for position, prefix in prefixes.items()}


def create_norms(
  layer: base_layer.BaseLayer,
  policy: str,
  template: LayerTpl,
  input_dims: int,
  output_dims: int,
  name: str = 'layer_norm',
) -> None:
  """Creates the policy's norms as children of the layer.

  Args:
    layer: the residual block.
    policy: one of NORM_POLICIES.
    template: of each norm.
    input_dims: dimension of the block's input.
    output_dims: dimension of the block's output.
    name: suffix of the names of the norms.
  """
  for position, child in norm_names(policy, name).items():
    dim = input_dims if position is NormPosition.INPUT else output_dims
    layer.create_child(child, template.clone().set(dim=dim))


def apply_norm(
  layer: base_layer.BaseLayer,
  policy: str,
  position: NormPosition,
  x: Float[Array, '...'],
  paddings: Num[Array, '...'] | None,
  name: str = 'layer_norm',
) -> Float[Array, '...']:
  """Returns `x`, normalized if the policy has a norm at this position.

  Args:
    layer: the residual block, with norms of `create_norms`.
    policy: one of NORM_POLICIES.
    position: of `x` in the block.
    x: input or output of the block, or their sum.
    paddings: 1 for padding, for norms that use it.
    name: suffix of the names of the norms.
  """
  child = norm_names(policy, name).get(position)
  return x if child is None else getattr(layer, child)(x, paddings)
