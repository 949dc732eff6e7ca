# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Generated code makes the same Config again, whatever values it holds."""

from __future__ import annotations

import enum
import functools
import math
from typing import Any, NamedTuple

import fiddle as fdl
import jax
import jax.numpy as jnp
import pytest

from praxis import base_hyperparams, base_layer, fiddle_tags, pax_fiddle
from praxis.nested_map import NestedMap
from praxis.pax_fiddle import config_codegen


class Size(enum.Enum):
  SMALL = 1


class Pair(NamedTuple):
  left: Any
  right: Any


class Record(base_hyperparams.BaseHyperParams):
  value: Any = None


class Holder(base_hyperparams.FiddleBaseParameterizable):
  value: Any = None
  other: Any = None


class Own(fdl.Tag):
  """A tag that no class mentions."""


def add(a: int, b: int) -> int:
  return a + b


def made_again(config: Any, **options: Any) -> Any:
  scope: dict[str, Any] = {}
  exec(config_codegen.new_codegen(config, **options), scope)
  return scope[options.get('top_level_fixture_name', 'config_fixture')]()


@pytest.mark.parametrize(
  'value',
  [
    (1, -2.5, 'a', b'b', None, True, [-1, None, ('data', 'mdl')], {'k': 1}),
    base_layer.WeightInit.Gaussian(0.25),
    [base_layer.WeightHParams(shape=(2, 3), mesh_shape=(1, 2))],
    NestedMap(a=1, b=NestedMap({'c/d': [base_layer.WeightInit.Xavier()]})),
    Record(value=Holder.config(value=3)),
    {'a': Record(value=Size.SMALL)},
    [jnp.bfloat16, jnp.float32, jnp.dtype('bfloat16'), jnp.dtype('int8')],
    [math.inf, -math.inf],
    jax.sharding.PartitionSpec('data', None, ('replica', 'mdl')),
    [add, int, Holder, jax.nn.relu],
  ],
)
def test_values(value):
  config = Holder.config(value=value)
  again = made_again(config)
  assert again == config
  assert type(again.value) is type(value)


def test_partials_and_named_tuples():
  again = made_again(
    Holder.config(
      value=functools.partial(add, 1, b=Size.SMALL), other=Pair(1, [2])
    )
  )
  assert (again.value.func, again.value.args) == (add, (1,))
  assert again.value.keywords == {'b': Size.SMALL}
  assert again.other == Pair(1, [2]) and type(again.other) is Pair


def test_all_kinds_of_configs():
  for kind in (pax_fiddle.Config, pax_fiddle.Partial, fdl.Config):
    config = kind(Holder, value=kind(add, a=1))
    again = made_again(config)
    assert again == config and type(again.value) is kind
  calls = pax_fiddle.Partial(add, a=pax_fiddle.ArgFactory(add, 1, b=2))
  assert made_again(calls) == calls


def test_what_is_shared_stays_shared():
  shared = Holder.config(value=base_layer.WeightInit.Constant(2))
  config = Holder.config(value=shared, other=[shared, Holder.config()])
  again = made_again(config)
  assert again == config
  assert again.value is again.other[0] is not again.other[1]


def test_tags_beyond_those_of_the_class():
  config = base_layer.BaseLayer.config(dtype=jnp.bfloat16)
  fdl.add_tag(config, 'dtype', Own)
  fdl.add_tag(config, 'name', Own)
  again = made_again(config)
  assert again == config and not again.has('name')
  assert fdl.get_tags(again, 'dtype') == {Own, fiddle_tags.ParamsDType}
  fdl.set_tagged(again, tag=Own, value='tagged')
  assert again.dtype == again.name == 'tagged'


def test_options_are_those_of_fiddle():
  config = Holder.config(value=Holder.config(value=[1, [2, [3]]]))
  code = config_codegen.new_codegen(
    config,
    top_level_fixture_name='outer',
    sub_fixtures={'inner': config.value},
    max_expression_complexity=2,
  )
  assert 'def outer' in code and 'def inner' in code
  again = made_again(
    config, top_level_fixture_name='outer', sub_fixtures={'inner': config.value}
  )
  assert again == config


@pytest.mark.parametrize('value', [lambda: 1, object(), jnp.ones(2)])
def test_what_cannot_be_written_is_named(value):
  with pytest.raises(ValueError, match=r'value.* must be a literal'):
    config_codegen.new_codegen(Holder.config(value=[value]))
