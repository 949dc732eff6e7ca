# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Counting declarations and tracing the model give the same number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from pax.tools import parameter_count
from praxis import base_layer, pax_fiddle
from praxis.layers import activations, linears, pipeline, repeats

_DIM = 4
_LINEAR = pax_fiddle.Config(linears.Linear, input_dims=_DIM, output_dims=_DIM)
_X = jax.ShapeDtypeStruct((8, _DIM), jnp.float32)


class Lazy(base_layer.BaseLayer):
  """Declares two children and calls one."""

  def setup(self):
    self.create_child('used', _LINEAR.clone())
    self.create_child('unused', _LINEAR.clone())

  def __call__(self, x):
    return self.used(x)


def _pipeline(cls, **fields):
  return pax_fiddle.Config(cls, single_stage_body=_LINEAR.clone(), **fields)


@pytest.mark.parametrize(
  ('config', 'count'),
  [
    (_LINEAR, _DIM**2),
    (
      pax_fiddle.Config(
        linears.FeedForward,
        input_dims=_DIM,
        output_dims=_DIM,
        activation_tpl=pax_fiddle.Config(activations.ReLU),
      ),
      _DIM**2 + _DIM,
    ),
    (
      pax_fiddle.Config(repeats.Repeat, sub_tpl=_LINEAR, x_times=3),
      3 * _DIM**2,
    ),
    (
      _pipeline(
        pipeline.LayerwiseShardablePipelined, num_stages=2, num_microbatches=2
      ),
      2 * _DIM**2,
    ),
    (
      _pipeline(
        pipeline.CircularLayerwiseShardablePipelined,
        num_stages=2,
        num_microbatches=2,
        circular_repeat=2,
      ),
      4 * _DIM**2,
    ),
    # Not of Pax: traced, so that what is not called does not count.
    (pax_fiddle.Config(Lazy), _DIM**2),
    (_LINEAR.clone().set(shared_weight_layer_id='shared'), _DIM**2),
  ],
)
def test_counts(config, count):
  config = config.clone().set(name='model')
  counter = parameter_count.ParameterCounter()
  spec = lambda: _X
  assert counter.count(config, spec) == count
  # Again, from memory.
  assert counter.count(config, spec) == count


def test_the_batch_is_needed_only_to_trace():
  def spec():
    raise AssertionError('the input was asked')

  counter = parameter_count.ParameterCounter()
  assert counter.count(_LINEAR.clone().set(name='model'), spec) == _DIM**2
  with pytest.raises(AssertionError, match='was asked'):
    counter.count(pax_fiddle.Config(Lazy, name='model'), spec)
