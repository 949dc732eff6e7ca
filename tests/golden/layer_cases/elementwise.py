# SPDX-License-Identifier: Apache-2.0
"""Activations and other functions of each element, and products."""

from __future__ import annotations

from praxis.layers import activations, base_ops, stochastics
from praxis.layers.chain import chain_extensions
from tests.golden.layer_case import case, f32, i32

_ACTIVATIONS = (
  'CubedReLU ELU Exp GELU Identity LeakyReLU ReLU ReLU6 SiLU Sigmoid SineReLU '
  'Softplus SquaredReLU Swish Tanh'
).split()
_X = f32(2, 3)

CASES = {
  **{
    name: case(getattr(activations, name).config(), _X) for name in _ACTIVATIONS
  },
  'Dropout': case(stochastics.Dropout.config(keep_prob=0.5), _X),
  'StochasticResidual': case(
    stochastics.StochasticResidual.config(survival_prob=0.5), _X, _X
  ),
  'EinsumOp': case(base_ops.EinsumOp.config(), 'ab,bc->ac', _X, f32(3, 4)),
  'EinsumGatedOp': case(
    base_ops.EinsumGatedOp.config(), 'ab,bc->ac', _X, f32(3, 4), f32(3, 4)
  ),
  'ArrayLookup': case(base_ops.ArrayLookup.config(), f32(5, 4), i32(2, 3)),
  'ApplyPadding': case(chain_extensions.apply_padding(), f32(2, 3, 4), _X),
  'DictToArgs': case(
    chain_extensions.dict_to_args('b', 'a'), {'a': _X, 'b': i32(2)}
  ),
  'FullLike': case(chain_extensions.full_like(2.0), _X),
  'LogArgs': case(chain_extensions.log_args('x'), _X),
}
