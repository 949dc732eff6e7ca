# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Settings of quantized layers whose numbers no level or dtype holds."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers.quantization import linears
from praxis.layers.quantization.quantization_hparams import (
  ActQuantizationParams,
  QuantizationMode,
  QuantizationParams,
  QuantizationType,
  WeightQuantizationParams,
)
from tests.praxis.layers import running

_X = running.normal(2, 3, 8)
_BIN = {'precision': 1, 'quant_method': 'bin'}


def _served(kind, act=None, **weight):
  """Returns the float weight of a Linear, and what its integers give."""
  params = WeightQuantizationParams(**weight)
  cfg = linears.Linear.config(input_dims=8, output_dims=16)
  layers = [
    cfg.clone().set(quantization=QuantizationParams(kind, mode, act, params))
    for mode in (QuantizationMode.MATERIALIZE, QuantizationMode.INFERENCE)
  ]
  layer, variables = running.build(layers[0], _X)
  serving = layers[1].Instantiate(name='serving')
  with base_layer.JaxContext.new_context():
    tree = layer.apply(variables, method=layer.quantize_weight)
    return np.asarray(variables['params']['w']), serving.apply(tree, _X)


@pytest.mark.parametrize(
  ('kind', 'weight', 'act', 'message'),
  [
    ('ptq', {'dtype': jnp.uint8}, {}, 'must hold -128 to 127.*got uint8'),
    ('ptq', {'dtype': jnp.uint8, 'precision': 4}, {}, 'must hold -8 to 7'),
    ('aqt', {'unsigned_int_bounds': True}, {}, 'must hold 0 to 255.*jnp.uint8'),
    (
      'aqt',
      {'unsigned_int_bounds': True, 'precision': 4},
      {},
      'must hold 0 to 15',
    ),
    ('ptq', {'dtype': jnp.float8_e5m2}, {}, 'must be float8_e4m3fn'),
    ('aqt', {'dtype': jnp.float8_e4m3fn}, {}, 'with aqt'),
    (
      'ptq',
      {'dtype': jnp.float8_e4m3fn, 'precision': 4},
      {},
      'packed weights must have dtype int8',
    ),
    ('ptq', {'precision': 0}, {}, 'weight_params.precision must be at least 2'),
    ('fq', {'precision': 1}, {}, "one bit needs quant_method='bin'"),
    ('aqt', _BIN, {}, 'weight_params.precision must be at least 2, got 1'),
    ('ptq', {'quant_method': 'binary'}, {}, "got 'binary'"),
    ('fq', {'clipping_coeff': 1.5}, {}, 'weight_params.clipping_coeff must be'),
    ('fq', {}, {'precision': 1}, 'act_params.precision must be at least 2'),
    ('fq', {}, {'clipping_coeff': 0.0}, 'act_params.clipping_coeff must be'),
  ],
)
def test_numbers_that_no_level_or_dtype_holds_are_refused(
  kind, weight, act, message
):
  params = {'kind': QuantizationType(kind), 'act': ActQuantizationParams(**act)}
  with pytest.raises(ValueError, match=message):
    _served(**params, **weight)


@pytest.mark.parametrize(
  ('kind', 'weight'),
  [
    ('fq', _BIN),
    ('ptq', {'precision': 1, 'use_symmetric': False}),
    (
      'aqt',
      {
        'unsigned_int_bounds': True,
        'use_symmetric': False,
        'dtype': jnp.uint8,
      },
    ),
    ('ptq', {'dtype': jnp.float8_e4m3fn}),
  ],
)
def test_all_levels_are_served(kind, weight):
  w, served = _served(kind=QuantizationType(kind), **weight)
  want = np.asarray(_X) @ w
  atol = 1.0 if weight.get('precision') == 1 else 0.05
  assert np.abs(served - want).max() < atol * np.abs(want).max()
