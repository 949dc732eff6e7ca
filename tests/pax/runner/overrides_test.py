# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""`--set`: constants and paths, typed, with near names for what is wrong."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest

from pax.runner import overrides, value_parsing
from praxis import pax_fiddle
from praxis.layers import activations


class Color(enum.StrEnum):
  RED = 'red'
  BLUE = 'blue'


class Experiment:
  NUM_LAYERS = 2
  ROWS: float = 16
  RATE = 0.1
  DEEP = True
  NAME = 'x'
  MESH: list[int] | None = [1, 2, 1]
  SHAPE = (1, 2)
  TEXTS = ('def', 'if')
  FILES: str | None = None
  MIXTURE: str | dict[str, float] | None = {'a.bin': 1.0}
  DATA: str | dict[str, float] | None = 'a.bin'
  ANYTHING = None
  COLOR = Color.RED
  DTYPE = jnp.float32
  ACTIVATION_CLS = activations.ReLU
  DOUBLE = NUM_LAYERS * 2

  def lower(self):
    return self.NUM_LAYERS


class Child(Experiment):
  """Has the constants of its parent."""


def _set(**settings: str) -> type:
  words = [f'{name}={text}' for name, text in settings.items()]
  return overrides.set_constants(Child, overrides.parse(words))


@pytest.mark.parametrize(
  ('name', 'text', 'value'),
  [
    ('NUM_LAYERS', '4', 4),
    ('NUM_LAYERS', '1e3', 1000),
    ('NUM_LAYERS', 'None', None),
    ('RATE', '1', 1.0),
    ('RATE', '1e-4', 1e-4),
    ('DEEP', 'false', False),
    ('ROWS', '0.5', 0.5),
    ('ROWS', '8', 8),
    ('NAME', '12', '12'),
    ('NAME', "'a b'", 'a b'),
    ('MESH', '[1,4,1]', [1, 4, 1]),
    ('MESH', '1,4,1', [1, 4, 1]),
    ('MESH', 'None', None),
    ('SHAPE', '3, 4', (3, 4)),
    ('FILES', '/data/*.txt', '/data/*.txt'),
    ('FILES', '1', '1'),
    ('MIXTURE', 'b.bin', 'b.bin'),
    ('MIXTURE', '{"b.bin": 0.5}', {'b.bin': 0.5}),
    ('DATA', '{"b.bin": 0.5}', {'b.bin': 0.5}),
    ('DATA', "'b.bin'", 'b.bin'),
    ('ANYTHING', '1', 1),
    ('ANYTHING', 'jnp.bfloat16', jnp.bfloat16),
    ('ANYTHING', 'text', 'text'),
    ('COLOR', 'BLUE', Color.BLUE),
    ('COLOR', 'Color.BLUE', Color.BLUE),
    ('COLOR', '"blue"', Color.BLUE),
    ('DTYPE', 'bfloat16', jnp.bfloat16),
    ('DTYPE', 'jnp.bfloat16', jnp.bfloat16),
    ('DTYPE', '"bfloat16"', jnp.bfloat16),
    ('ACTIVATION_CLS', 'GELU', activations.GELU),
    ('ACTIVATION_CLS', 'activations.GELU', activations.GELU),
    (
      'ACTIVATION_CLS',
      'praxis.layers.activations.GELU',
      activations.GELU,
    ),
  ],
)
def test_a_constant(name, text, value):
  changed = getattr(_set(**{name: text}), name)
  assert changed == value
  assert type(changed) is type(value)


def test_the_experiment_itself_is_left_alone():
  changed = _set(NUM_LAYERS='4')
  assert changed.__name__ == 'Child' and issubclass(changed, Child)
  assert (changed().lower(), changed.DOUBLE) == (4, 4)
  assert Child.NUM_LAYERS == 2
  assert _set() is Child


@pytest.mark.parametrize(
  ('name', 'text', 'message'),
  [
    ('NUM_LAYER', '4', 'has no constant NUM_LAYER; did you mean NUM_LAYERS?'),
    ('NUM_LAYERS', '1.5', "NUM_LAYERS wants an integer, got '1.5'"),
    ('NUM_LAYERS', 'True', "NUM_LAYERS wants an integer, got 'True'"),
    ('RATE', 'fast', "RATE wants a number, got 'fast'"),
    ('ROWS', 'True', "ROWS wants a number, got 'True'"),
    ('DEEP', '2', "DEEP wants True or False, got '2'"),
    ('MESH', '{}x', r'MESH wants a list such as \[1,2,1\]'),
    ('TEXTS', 'a b', r"TEXTS wants a list such as \['a','b'\], got 'a b'"),
    ('COLOR', 'GREEN', "COLOR wants one of RED, BLUE, got 'GREEN'"),
    ('DTYPE', 'float33', 'DTYPE wants a dtype such as bfloat16'),
    ('DTYPE', 'float', "DTYPE wants a dtype such as bfloat16, got 'float'"),
    ('ACTIVATION_CLS', 'GELUX', "there is none called 'GELUX'"),
  ],
)
def test_a_wrong_constant(name, text, message):
  with pytest.raises(ValueError, match=message) as error:
    _set(**{name: text})
  assert f'--set {name}={text}' in str(error.value)


@pytest.mark.parametrize('annotation', [float, float | None, 'float'])
def test_annotations_are_evaluated_in_files_without_the_future_import(
  annotation,
):
  body = {'RATE': 1, 'EMPTY': None}
  annotations = dict.fromkeys(body, annotation)
  cls = type('Evaluated', (), {**body, '__annotations__': annotations})
  words = overrides.parse(['RATE=0.5', 'EMPTY=2'])
  changed = overrides.set_constants(cls, words)
  assert (changed.RATE, changed.EMPTY) == (0.5, 2.0)
  with pytest.raises(ValueError, match="EMPTY wants a number, got 'x'"):
    overrides.set_constants(cls, overrides.parse(['EMPTY=x']))


def test_a_word_that_sets_nothing():
  with pytest.raises(ValueError, match="wants NAME=VALUE, got 'NUM_LAYERS'"):
    overrides.parse(['NUM_LAYERS'])


@dataclasses.dataclass(kw_only=True)
class Leaf:
  size: int = 1
  rate: float | None = None
  activation: Any = pax_fiddle.template_field(activations.ReLU)


@dataclasses.dataclass(kw_only=True)
class Root:
  leaf: Any = pax_fiddle.template_field(Leaf)
  leaves: list[Any] = dataclasses.field(default_factory=list)
  table: dict[str, int] = dataclasses.field(default_factory=dict)


def _tree(*words: str):
  tree = pax_fiddle.Config(
    Root, leaves=[pax_fiddle.Config(Leaf)], table={'a': 1}
  )
  overrides.set_fields(tree, overrides.parse(words))
  return tree


def test_paths():
  tree = _tree(
    'leaf.size=3', 'leaves[0].rate=1', 'table[a]=5', 'NOT_A_PATH=ignored'
  )
  assert tree.leaf.size == 3
  assert tree.leaves[0].rate == 1.0
  assert tree.table == {'a': 5}


@dataclasses.dataclass(frozen=True)
class Frozen:
  scale: float = 1


class Named(NamedTuple):
  first: int = 1
  second: str | None = None


def test_fields_of_named_tuples_by_name_and_by_index():
  tree = pax_fiddle.Config(Root, leaf=Named(), leaves=[Named(), Named()])
  words = ['leaf.second=x', 'leaves[0][0]=2', 'leaves[1].first=3']
  overrides.set_fields(tree, overrides.parse(words))
  assert tree.leaf == Named(1, 'x')
  assert tree.leaves == [Named(2), Named(3)]
  with pytest.raises(ValueError, match="Named has no 'third'"):
    overrides.set_fields(tree, overrides.parse(['leaf.third=1']))


def test_values_that_cannot_change_or_are_shared_are_replaced():
  sizes = [1, 2]
  tree = pax_fiddle.Config(
    Root, leaves=sizes, table={'a': (1, 2), 'b': Frozen()}
  )
  words = ['leaves[1]=4', 'table[a][0]=3', 'table[b].scale=0.5']
  overrides.set_fields(tree, overrides.parse(words))
  assert (tree.leaves, sizes) == ([1, 4], [1, 2])
  assert tree.table == {'a': (3, 2), 'b': Frozen(0.5)}


def test_the_last_assignment_counts():
  assert _tree('leaf.size=3', 'leaf.size=4').leaf.size == 4


@pytest.mark.parametrize(
  ('word', 'message'),
  [
    ('leaf.sise=3', "Leaf has no field 'sise'; did you mean size?"),
    ('leef.size=3', "Root has no field 'leef'; did you mean leaf"),
    ('inputs[0].size=3', "has no field 'inputs'; it has leaf, leaves, table"),
    ('leaves[3].size=3', 'list has no 3'),
    ('leaf.size.x=3', "int has no 'x'"),
    ('table[b]=3', "dict has no 'b'"),
    ('leaf.size=three', "leaf.size wants an integer, got 'three'"),
    ('leaf.rate=x', "leaf.rate wants a number, got 'x'"),
    ('leaf.activation=3', 'cannot be set as a whole; set its fields'),
    ('leaf..size=3', 'cannot read the path'),
  ],
)
def test_a_wrong_path(word, message):
  with pytest.raises(ValueError, match=message) as error:
    _tree(word)
  assert f'--set {word}' in str(error.value)


def test_none_is_always_none():
  assert value_parsing.parse_value('None', 3) is None
