# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Errors of constructors and of `setup` have the path of their Config."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from praxis import base_layer, pax_fiddle
from praxis.pax_fiddle import build_errors

Config = pax_fiddle.Config


@dataclasses.dataclass
class Engine:
  cylinders: int = 4

  def __post_init__(self):
    if self.cylinders <= 0:
      raise ValueError(f'cylinders must be positive, got {self.cylinders}')


@dataclasses.dataclass
class Car:
  engine: Engine
  spare_tpl: Config = pax_fiddle.template_field(Engine)

  def __post_init__(self):
    self.spare_tpl.Instantiate()


class Leaf(base_layer.BaseLayer):
  dims: int = 1

  def setup(self):
    self.create_variable('w', base_layer.WeightHParams(shape=[8 // self.dims]))

  def __call__(self, x):
    return x * self.theta.w


class Strict(Leaf):
  def __post_init__(self):
    super().__post_init__()
    if self.dims > 8:
      raise ValueError('too wide')


class Block(base_layer.BaseLayer):
  leaf_tpl: Config = pax_fiddle.template_field(Leaf)
  strict_tpl: Config = pax_fiddle.template_field(Strict)

  def setup(self):
    self.create_child('leaf', self.leaf_tpl.clone())
    self.create_child('strict', self.strict_tpl)

  def __call__(self, x):
    return self.strict(self.leaf(x))


class Model(base_layer.BaseLayer):
  blocks_tpl: Config = pax_fiddle.template_field(Block)

  def setup(self):
    self.create_children('blocks', [self.blocks_tpl] * 2)

  def __call__(self, x):
    for block in self.blocks:
      x = block(x)
    return x


def _location(error):
  return str(build_errors.location_of(error.value))


def test_a_constructor_within_a_tree():
  config = Config(Car, engine=Config(Engine, cylinders=-1))
  with pytest.raises(
    ValueError, match='^cylinders must be positive, got -1$'
  ) as e:
    pax_fiddle.build({'cars': [config]})
  assert _location(e) == "Engine at dict['cars'][0].engine"
  with pytest.raises(ValueError) as e:
    config.Instantiate()
  assert _location(e) == 'Engine at Car.engine'


def test_a_template_that_a_constructor_builds():
  config = Config(Car, engine=None)
  config.spare_tpl.cylinders = 0
  with pytest.raises(ValueError, match='got 0') as e:
    config.Instantiate()
  assert _location(e) == 'Engine at Car.spare_tpl'


@pytest.mark.parametrize(
  ('field', 'dims', 'error', 'cls'),
  [
    ('leaf_tpl', 0, ZeroDivisionError, 'Leaf'),
    ('strict_tpl', 9, ValueError, 'Strict'),
  ],
)
def test_a_layer(field, dims, error, cls):
  config = Config(Model, name='model')
  getattr(config.blocks_tpl, field).dims = dims
  with pytest.raises(error) as e:
    jax.eval_shape(config.Instantiate().init, jax.random.key(0), jnp.ones(8))
  assert _location(e) == f'{cls} at Model.blocks_tpl.{field}'


def test_errors_of_calls_have_no_location():
  with pytest.raises(Exception) as e:
    Config(Leaf, name='x').Instantiate().init(jax.random.key(0), jnp.ones(7))
  assert build_errors.location_of(e.value) is None
