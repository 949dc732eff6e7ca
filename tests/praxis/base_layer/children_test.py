# SPDX-License-Identifier: Apache-2.0
"""Tests of praxis.base_layer.children."""

# bazel: size=small
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fiddle import history

from praxis import base_layer, pax_fiddle


class Scale(base_layer.BaseLayer):
  dims: int = 0

  def setup(self):
    self.create_variable('w', base_layer.WeightHParams(shape=[self.dims]))

  def __call__(self, x):
    return x * self.theta.w


class Parent(base_layer.BaseLayer):
  child_tpl: Any = pax_fiddle.template_field(Scale)
  dims: int = 2

  def setup(self):
    child = self.child_tpl.clone().set(dims=self.dims)
    if self.dims < 0:
      raise ValueError('dims are negative')
    assert not child.__argument_history__['dims']
    self.create_child('child', child)

  def __call__(self, x):
    return self.child(x)


def test_children_have_the_name_of_their_attribute():
  """Not that of their Config."""
  layer = Parent.config(child_tpl=Scale.config(name='other')).Instantiate()
  x = jnp.ones([3, 2])
  variables = layer.init(jax.random.key(0), x)
  assert {*variables['params']} == {'child'}
  want = np.broadcast_to(variables['params']['child']['w'], (3, 2))
  np.testing.assert_array_equal(layer.apply(variables, x), want)


@pytest.mark.parametrize('dims', [2, -1])
def test_configs_have_no_history_within_setup_only(dims):
  layer = Parent.config(dims=dims).Instantiate()
  if dims > 0:
    layer.init(jax.random.key(0), jnp.ones([3, 2]))
  else:
    with pytest.raises(ValueError, match='negative'):
      layer.init(jax.random.key(0), jnp.ones([3, 2]))
  assert history.tracking_enabled()
