# SPDX-License-Identifier: Apache-2.0
"""Linear layers."""

from __future__ import annotations

from praxis.layers import activations, linears
from tests.golden.layer_case import case, f32

_DATA_MDL = ['data', 'mdl']


def _sharded(cfg):
  cfg.weight_split_dims_mapping.wt = _DATA_MDL
  return cfg


CASES = {
  'Linear': case(
    _sharded(linears.Linear.config(input_dims=4, output_dims=6)), f32(2, 3, 4)
  ),
  'Bias': case(linears.Bias.config(dims=4), f32(2, 4)),
  'FeedForward': case(
    _sharded(
      linears.FeedForward.config(
        input_dims=4,
        output_dims=6,
        activation_tpl=activations.GELU.config(),
      )
    ),
    f32(2, 3, 4),
  ),
  'StackingOverTime': case(
    linears.StackingOverTime.config(left_context=1, stride=2),
    f32(2, 5, 4),
    f32(2, 5, 1),
  ),
  'MLPBlock': case(
    linears.MLPBlock.config(
      ff_tpl=linears.FeedForward.config(input_dims=4, output_dims=2),
      hidden_dims=8,
    ),
    f32(2, 4),
  ),
}
