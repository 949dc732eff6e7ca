# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Stand-alone parameter classes and the text dump."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import pytest

from praxis import base_hyperparams, pax_fiddle
from praxis.base_hyperparams import BaseHyperParams, nested_struct_to_text


class Inner(BaseHyperParams):
  x: int = 1


class Outer(BaseHyperParams):
  inner: Any = None
  y: float = 2.0


def test_unknown_and_frozen_attributes_are_refused():
  p = Outer(inner=Inner())
  with pytest.raises(AttributeError, match="doesn't exist on Outer"):
    p.z = 1
  p.freeze()
  with pytest.raises(AttributeError, match='HParam object is frozen: Inner'):
    p.inner.x = 2
  p.unfreeze()
  p.inner.x = 2
  assert p.inner.x == 2


def test_clone_is_deep_and_unfrozen():
  p = Outer(inner=Inner())
  p.freeze()
  cloned = p.clone()
  cloned.inner.x = 5
  assert p.inner.x == 1


def test_nested_parameters_are_not_shared_between_owners():
  inner = Inner()
  first, second = Outer(inner=inner), Outer(inner=inner)
  first.inner.x = 7
  assert (second.inner.x, inner.x) == (1, 1)


def test_copy_fields_from_wants_the_same_fields():
  assert Outer().copy_fields_from(Outer(y=9.0)).y == 9.0
  with pytest.raises(ValueError, match='Copying incompatible HParams'):
    Outer().copy_fields_from(Inner())
  with pytest.raises(TypeError):
    Outer().copy_fields_from({'y': 1})


def test_copy_fields_from_keeps_what_the_source_lacks():
  class More(Outer):
    z: int = 7

  copied = More(z=1).copy_fields_from(Outer(y=9.0))
  assert (copied.y, copied.z) == (9.0, 1)
  with pytest.raises(ValueError, match='Copying incompatible HParams: z not'):
    Outer().copy_fields_from(More())
  assert Outer().copy_fields_from(More(y=4.0), ['z']).y == 4.0


def test_parameters_are_positional_too():
  class Ordered(BaseHyperParams):
    a: int
    b: int = 2

  class RequiredLast(Ordered):
    c: list[int] = dataclasses.field(default_factory=list)
    d: int

  assert (Ordered(1, 5).b, Ordered(1).b) == (5, 2)
  late = RequiredLast(1, d=4)
  assert (late.a, late.c, late.d) == (1, [], 4)
  assert Ordered.config(a=3).Instantiate() == Ordered(3)
  make = pax_fiddle.build(Ordered.partial(b=3))
  assert make(a=1) == Ordered(1, 3)


def test_a_nested_class_of_parameters_is_a_dataclass():
  class Owner:
    class HParams(BaseHyperParams):
      width: int = 3

  hparams = Owner.HParams(width=4)
  assert isinstance(hparams, Owner.HParams) and hparams.width == 4
  assert repr(hparams).endswith('Owner.HParams(width=4)')


def test_overriding_a_field_has_to_be_said():
  with pytest.raises(AttributeError, match='Attribute y was overridden'):

    class Silent(Outer):
      y: float = 3.0

  class Said(Outer):
    _attribute_overrides: ClassVar[tuple[str, ...]] = ('y',)
    y: float = 3.0

  assert Said().y == 3.0


def test_text_is_sorted_and_typed():
  text = Outer(inner=Inner(), y=0.5).to_text()
  assert text == 'inner.x : 1\ny : 0.5\n'
  text, types = Outer(y=0.5).to_text(include_types=True, separator='=')
  assert text == 'inner = None\ny = 0.5\n'
  assert types == {'inner': 'NoneType', 'y': 'float'}


def test_text_of_many_kinds():
  value = {
    'dtype': jnp.bfloat16,
    'cls': Inner,
    'fn': nested_struct_to_text,
    'list': [Inner(x=3), None],
    'mesh': [1, 4],
    'text': "it's",
  }
  lines = nested_struct_to_text(value).splitlines()
  assert 'dtype : bfloat16' in lines
  assert f'cls : type/{__name__}/Inner' in lines
  assert 'list[0].x : 3' in lines and 'list[1] : None' in lines
  assert 'mesh : [1, 4]' in lines
  assert 'text : "it\'s"' in lines
  assert any(line.startswith('fn : callable/praxis') for line in lines)


def test_text_of_a_tensorflow_dtype_is_its_name():
  class DType:  # tf.DType, without TensorFlow.
    name = 'float32'
    as_numpy_dtype = float

  assert nested_struct_to_text({'dtype': DType()}) == 'dtype : float32\n'


def test_text_names_the_fields_of_tuples():
  class Point(NamedTuple):
    x: int
    inner: Any

  lines = nested_struct_to_text({'p': Point(1, Inner())}).splitlines()
  assert lines == ['p[inner].x : 1', 'p[x] : 1']


def test_text_of_a_cycle_is_refused():
  loop: dict[str, Any] = {'a': {}}
  loop['a']['b'] = loop
  with pytest.raises(ValueError, match='circular reference'):
    nested_struct_to_text(loop)


def test_str_override_prints_itself():
  class Secret(base_hyperparams.StrOverride):
    def __str__(self) -> str:
      return 'hidden'

  assert nested_struct_to_text({'s': Secret()}) == 's : hidden\n'
