# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What Pax's README showed its users to write, written so, runs so."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_input, base_layer, py_utils
from praxis.base_hyperparams import sub_config_field
from praxis.layers import activations

NestedMap = py_utils.NestedMap
BaseHParams = base_layer.BaseHParams
ReLU = activations.ReLU


class Linear(base_layer.BaseLayer):
  """Linear layer without bias, its parameters nested as in the README."""

  class HParams(BaseHParams):
    input_dims: int = 0
    output_dims: int = 0

  def setup(self):
    p = self.hparams
    shape = [p.input_dims, p.output_dims]
    self.create_variable('w', base_layer.WeightHParams(shape=shape))

  def fprop(self, inputs):
    return jnp.einsum('...d,df->...f', inputs, self.theta.w)


class FeedForward(base_layer.BaseLayer):
  """Feedforward layer with activation, nesting the HParams of others."""

  class HParams(BaseHParams):
    input_dims: int = 0
    output_dims: int = 0
    has_bias: bool = True
    linear_tpl: BaseHParams = sub_config_field(Linear.HParams)
    activation_tpl: activations.BaseActivation.HParams = sub_config_field(
      ReLU.HParams
    )

  def setup(self):
    linear = self.linear_tpl.clone()
    linear.set(input_dims=self.input_dims, output_dims=self.output_dims)
    self.create_child('linear', linear)
    self.create_child('activation', self.activation_tpl)

  def fprop(self, inputs):
    return self.activation(self.linear(inputs))


def test_nested_hparams_configure_a_layer():
  layer = FeedForward.HParams(input_dims=2, output_dims=3).Instantiate()
  x = jnp.array([[1.0, -1.0]])
  variables = layer.init(jax.random.key(0), x)
  w = variables['params']['linear']['w']
  want = np.maximum(np.asarray(x) @ np.asarray(w), 0)
  np.testing.assert_allclose(layer.apply(variables, x), want, rtol=1e-6)


def test_fiddle_config_and_partial():
  fdl_config = Linear.HParams.config(input_dims=1, output_dims=1)
  with pytest.raises(AttributeError, match="Did you mean 'input_dims'"):
    fdl_config.input_dimz = 31337
  fdl_partial = Linear.HParams.partial(input_dims=1)
  fdl_partial.output_dims = 2
  assert fdl_partial.input_dims == 1


class Ones(base_input.BaseInput):
  def get_next(self):
    return NestedMap(x=np.ones([self.batch_size]))


class MyInput(Ones):
  def get_next(self):
    batch = super().get_next()
    batch.new_field = batch.x + 1
    return batch


def test_an_input_is_inherited_and_looked_at():
  p = MyInput.HParams(name='train', batch_size=3)
  inp = p.Instantiate()
  b = inp.get_next()
  assert b.new_field.tolist() == [2.0, 2.0, 2.0]
