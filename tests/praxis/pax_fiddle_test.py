# SPDX-License-Identifier: Apache-2.0
"""Configuration: both spellings, typos, templates, sharing, copying."""

from __future__ import annotations

from typing import Any

import pytest

from praxis import base_hyperparams, pax_fiddle


class Wheel(base_hyperparams.FiddleBaseParameterizable):
  size: int = 16
  spokes: int = 32


class Car(base_hyperparams.FiddleBaseParameterizable):
  class HParams(base_hyperparams.BaseHyperParams):
    doors: int = 4
    wheel_tpl: Any = base_hyperparams.sub_config_field(Wheel.HParams)
    spare: Any = pax_fiddle.instance_field(Wheel)


class SportsCar(Car):
  doors: int = 2


def test_nested_and_flat_fields_are_the_same_config():
  assert Wheel.HParams(size=3) == pax_fiddle.Config(Wheel, size=3)
  assert Car.HParams(doors=3) == Car.config(doors=3)
  assert Car.HParams.config(doors=3) == Car.config(doors=3)
  assert SportsCar.config().Instantiate().doors == 2


def test_typos_fail_at_once_with_a_near_name():
  config = Wheel.config()
  with pytest.raises(AttributeError, match="Did you mean 'size'"):
    config.sise = 3
  with pytest.raises(AttributeError, match="Did you mean 'spokes'"):
    Wheel.HParams(spoke=3)
  with pytest.raises(AttributeError, match="Did you mean 'spokes'"):
    pax_fiddle.instantiate(Wheel.config(), spoke=3)


def test_template_stays_a_config_instance_is_built():
  config = Car.config()
  config.wheel_tpl.size = 20
  config.spare.size = 10
  car = config.Instantiate()
  assert isinstance(car.wheel_tpl, pax_fiddle.Config)
  assert car.wheel_tpl.size == 20
  assert isinstance(car.spare, Wheel) and car.spare.size == 10


def test_a_config_used_twice_is_built_once():
  shared = Wheel.config()
  both = pax_fiddle.build([shared, shared, Wheel.config()])
  assert both[0] is both[1] and both[0] is not both[2]


def test_instantiate_leaves_the_config_alone():
  config = Wheel.config()
  assert config.Instantiate(size=1).size == 1
  assert not config.has('size')
  with pytest.raises(ValueError, match='Unknown configuration type'):
    pax_fiddle.instantiate(3)


def test_isinstance_of_hparams_follows_the_owners():
  assert isinstance(SportsCar.config(), Car.HParams)
  assert not isinstance(Car.config(), SportsCar.HParams)


def test_clone_is_deep():
  config = Car.config()
  cloned = config.clone()
  cloned.wheel_tpl.size = 99
  assert config.wheel_tpl.size == 16


def test_cls_can_be_swapped():
  config = Car.config(doors=5)
  config.cls = SportsCar
  assert config.Instantiate().doors == 5
  assert config.cls is SportsCar


def test_copy_fields_from():
  config = SportsCar.config().copy_fields_from(Car.config(doors=7))
  assert config.doors == 7
  with pytest.raises(ValueError, match="'doors' not in self"):
    Wheel.config().copy_fields_from(Car.config())
  with pytest.raises(TypeError, match='wants a Config'):
    Wheel.config().copy_fields_from(3)
  partly = Wheel.config().copy_fields_from(
    Car.config(name='c'), missing_fields_in_self=('doors', 'wheel_tpl', 'spare')
  )
  assert partly.name == 'c'


def test_hparams_builds_the_object_again():
  car = Car.config(doors=9).Instantiate()
  again = car.hparams.Instantiate()
  assert again.doors == 9 and again.spare.size == 16


def test_partial_waits_for_the_rest():
  make = pax_fiddle.build(Wheel.HParams.partial(size=5))
  assert make(spokes=1).size == 5


def test_hidden_overrides_are_refused():
  with pytest.raises(TypeError, match='annotate it'):

    class Silent(Wheel):
      size = 3

  with pytest.raises(ValueError, match='template_field'):

    class Shared(base_hyperparams.FiddleBaseParameterizable):
      wheel: Any = Wheel.config()


def test_sub_config_field_takes_one_source():
  with pytest.raises(TypeError, match='not both'):
    pax_fiddle.sub_config_field(Wheel, lazy_ref=lambda: Wheel)


def test_positional_construction_is_refused():
  with pytest.raises(TypeError):
    Wheel(3)


def test_mesh_shape_multiplies_slices():
  assert pax_fiddle.mesh_shape(None, [2, 1]) is None
  assert pax_fiddle.mesh_shape([1, 4], None) == [1, 4]
  assert pax_fiddle.mesh_shape([1, 4], [2, 1]) == [2, 4]
  with pytest.raises(ValueError, match='must have 2 entries'):
    pax_fiddle.mesh_shape([1, 4], [2])
