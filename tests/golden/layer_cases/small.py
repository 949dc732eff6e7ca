# SPDX-License-Identifier: Apache-2.0
"""Einsum, chains, choices, and layers that share their weights."""

from __future__ import annotations

import functools

import flax.linen as nn

from praxis import pax_fiddle
from praxis.layers import (
  chain,
  einsum,
  flax_adapter,
  linears,
  searchable,
  sequential,
)
from tests.golden.layer_case import case, f32


def _sharded(cfg, mapping):
  cfg.weight_split_dims_mapping.wt = mapping
  return cfg


_LINEAR = linears.Linear.config(input_dims=4, output_dims=4)

CASES = {
  'Einsum': case(
    _sharded(
      einsum.Einsum.config(
        eqn='...d,dnh->...nh', w_shape=[4, 2, 3], use_bias=True
      ),
      ['data', 'mdl', None],
    ),
    f32(2, 3, 4),
  ),
  'Sequential': case(
    sequential.Sequential.config(layers=[_LINEAR, _LINEAR.clone()]),
    f32(2, 4),
  ),
  'Chain': case(
    chain.chain(
      chain.feed_forward(4, 6), chain.copy_n_times(2, chain.feed_forward(6, 6))
    ),
    f32(2, 4),
  ),
  'Repeat': case(chain.repeat(3, chain.feed_forward(4, 4)), f32(2, 4)),
  'FlaxModuleAdapter': case(
    flax_adapter.FlaxModuleAdapter.config(
      module_factory_method=functools.partial(nn.Dense, 6)
    ),
    f32(2, 4),
  ),
  'DirectFlaxModuleAdapter': case(
    flax_adapter.DirectFlaxModuleAdapter.config(
      cld=pax_fiddle.Config(nn.Dense, 6)
    ),
    f32(2, 4),
  ),
  'EncoderDecoderFlaxModuleAdaptor': case(
    flax_adapter.EncoderDecoderFlaxModuleAdaptor.config(
      module_factory_method=functools.partial(nn.Dense, 6)
    ),
    f32(2, 4),
  ),
  'AddResidual': case(chain.add_residual(chain.feed_forward(4, 4)), f32(2, 4)),
  'AutoMLSelect': case(
    searchable.AutoMLSelect.config(
      search_options_tpl=[_LINEAR, chain.feed_forward(4, 4)]
    ),
    f32(2, 4),
  ),
  'shared_weight_layer_id': case(
    chain.chain(
      pax_fiddle.Config(
        linears.MLPBlock,
        num_layers=2,
        hidden_dims=4,
        ff_tpl=pax_fiddle.Config(
          linears.FeedForward,
          input_dims=4,
          output_dims=4,
          shared_weight_layer_id='shared',
        ),
      )
    ),
    f32(2, 4),
  ),
}
