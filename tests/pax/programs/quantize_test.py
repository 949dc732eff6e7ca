# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The variables of a quantized task are those that its layers declare."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import pytest

from pax import train_states
from pax.programs import quantize


class Model:
  """Rounds its weight."""

  def apply(self, mdl_vars, method):
    return method(mdl_vars)

  def quantize_weight(self, mdl_vars):
    w = mdl_vars['params']['w']
    return {'params': {'w': jnp.int8(w), 'w_quantized_scale': jnp.float32(1)}}


def _state(**params):
  return train_states.TrainState(
    step=jnp.uint32(7), mdl_vars={'params': params}, opt_states=[]
  )


def _quantize(declared):
  partitioners = [
    types.SimpleNamespace(
      task=types.SimpleNamespace(model=Model()),
      eval_state_metadata=declared,
      run_on_mesh=lambda fn: fn(),
    )
  ] * 2
  return quantize.quantize(_state(w=jnp.float32([1.0, 2.0])), *partitioners)


def test_the_step_is_kept():
  made = _quantize(_state(w=jnp.int8([0, 0]), w_quantized_scale=jnp.float32(0)))
  assert int(made.step) == 7
  assert made.mdl_vars['params']['w'].tolist() == [1, 2]


@pytest.mark.parametrize(
  ('params', 'message'),
  [
    ({'w': jnp.int8([0, 0])}, 'w_quantized_scale with None, .*got float32'),
    (
      {'w': jnp.int32([0]), 'w_quantized_scale': 0.0},
      'w with int32.1., .*got int8.2.',
    ),
    (
      {'w': jnp.int8([0, 0]), 'b': jnp.ones(3)},
      'b with float32.3., .*got None',
    ),
  ],
)
def test_layers_that_return_other_variables_are_named(params, message):
  declared = _state(**jax.tree.map(jnp.asarray, params))
  with pytest.raises(ValueError, match=f'mdl_vars.params.{message}'):
    _quantize(declared)
