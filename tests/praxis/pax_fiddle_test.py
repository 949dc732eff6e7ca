# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Configuration: both spellings, typos, templates, sharing, copying."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
from typing import Any

import jax.numpy as jnp
import pytest
from fiddle import daglish
from fiddle.experimental import serialization
from flax import linen as nn

from praxis import base_hyperparams, base_layer, nested_map, pax_fiddle


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
  with pytest.raises(AttributeError, match="Did you mean 'size'"):
    _ = config.sise
  with pytest.raises(AttributeError, match=r'that Instantiate\(\) returns'):
    _ = config.hparams
  assert not hasattr(config, 'sise')


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
  with pytest.raises(TypeError, match='expects a Config'):
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
    base_hyperparams.sub_config_field(Wheel, lazy_ref=lambda: Wheel)


def test_positional_construction_is_refused():
  with pytest.raises(TypeError):
    Wheel(3)


def test_mesh_shape_multiplies_slices():
  assert pax_fiddle.mesh_shape(None, [2, 1]) is None
  assert pax_fiddle.mesh_shape([1, 4], None) == [1, 4]
  assert pax_fiddle.mesh_shape([1, 4], [2, 1]) == [2, 4]
  with pytest.raises(ValueError, match='must have 2 entries'):
    pax_fiddle.mesh_shape([1, 4], [2])


class Tag(pax_fiddle.Tag):
  """A tag for tests."""


class Kinds(base_hyperparams.FiddleBaseParameterizable):
  tagged: int = pax_fiddle.field(default=1, tags=Tag)
  listed: Any = pax_fiddle.field(default_factory=list, tags=[Tag])
  plain: int = 3
  required: Any = pax_fiddle.template_field()


def test_fields_put_tags_on_arguments():
  config = Kinds.config()
  assert pax_fiddle.get_tags(config, 'tagged') == {Tag}
  pax_fiddle.set_tagged(config, tag=Tag, value=7)
  assert (config.tagged, config.listed, config.plain) == (7, 7, 3)
  fields = {f.name: f for f in pax_fiddle.fields_of(Kinds)}
  assert pax_fiddle.field_has_tag(fields['tagged'], Tag)
  assert not pax_fiddle.field_has_tag(fields['plain'], Tag)
  assert pax_fiddle.field_metadata(fields['plain']) is None


def test_a_required_field_is_missed_by_name():
  with pytest.raises(TypeError, match='required'):
    Kinds.config().Instantiate()
  with pytest.raises(ValueError, match=r"needs values of \['required'\]"):
    Kinds.make(plain=4)
  assert Kinds.make(plain=4, required=None).plain == 4


Templates = dict[str, pax_fiddle.Config[Wheel]] | None


class ByType(base_hyperparams.FiddleBaseParameterizable):
  one: pax_fiddle.Config[Wheel] | None = None
  many: Templates = None
  mixed: list[pax_fiddle.Config | int] | None = None
  built: Any = None
  bad: set[pax_fiddle.Config] | None = None
  unknown: 'Nowhere' = None  # noqa: F821


def test_a_field_of_configs_is_a_template_by_its_type():
  wheel = Wheel.config(size=2)
  made = ByType.config(
    one=wheel, many={'a': wheel}, mixed=[wheel, 1], built=[wheel], unknown=3
  ).Instantiate()
  assert made.one == made.many['a'] == made.mixed[0] == wheel
  assert made.one is not made.built[0] and made.built[0].size == 2
  with pytest.raises(ValueError, match='Unsupported type .* of ByType.bad'):
    ByType.config(bad=wheel).Instantiate()
  with pytest.raises(TypeError, match="annotation 'Nowhere' of ByType.unknown"):
    ByType.config(unknown=wheel).Instantiate()


def take(template: pax_fiddle.Config, built: Any) -> tuple[Any, Any]:
  return template, built


def test_arguments_of_functions_are_templates_by_their_type_too():
  wheel = Wheel.config()
  template, built = pax_fiddle.build(pax_fiddle.Config(take, wheel, wheel))
  assert template == wheel and isinstance(built, Wheel)


def collect(*values: Any) -> list[Any]:
  return list(values)


def test_positional_arguments_are_built():
  config = pax_fiddle.Config(collect, 1, Wheel.config(size=2), [3])
  one, wheel, three = pax_fiddle.build(config)
  assert (one, wheel.size, three) == (1, 2, [3])


def test_an_object_may_change_its_lists():
  config = ByType.config(built=[1, 2])
  config.Instantiate().built.append(3)
  assert config.built == [1, 2]


def test_copies_have_values_and_tags_of_their_own():
  config = Kinds.config(plain=4)
  copied = copy.copy(config)
  copied.plain = 5
  pax_fiddle.clear_tags(copied, 'tagged')
  assert config.plain == 4 and pax_fiddle.get_tags(config, 'tagged') == {Tag}
  assert copied.plain == 5 and not pax_fiddle.get_tags(copied, 'tagged')
  again = copy.deepcopy(copied)
  pax_fiddle.add_tag(copied, 'plain', Tag)
  pax_fiddle.add_tag(config, 'plain', Tag)
  assert not pax_fiddle.get_tags(again, 'plain')


@pax_fiddle.register_dataclass
@dataclasses.dataclass(frozen=True)
class Frozen:
  value: Any


def test_configs_in_frozen_dataclasses_are_built_and_copied():
  config = Kinds.config(
    plain=Frozen(Wheel.config(size=5)),
    listed=Frozen(6),
    required=Wheel.config(),
  )
  copied = copy.deepcopy(config)
  copied.plain.value.size = 7
  built = [c.Instantiate() for c in (config, copied)]
  assert [b.plain.value.size for b in built] == [5, 7]
  assert [b.listed for b in built] == [Frozen(6)] * 2


def test_templates_within_templates_are_left_alone():
  outer = Car.config(wheel_tpl=ByType.config(one=Wheel.config()))
  wrapped = pax_fiddle.wrap_templates(outer)
  assert isinstance(wrapped.wheel_tpl, pax_fiddle.TemplateWrapper)
  assert wrapped.wheel_tpl() is outer.wheel_tpl


def small_wheel():
  return Wheel(size=4)


class Bicycle(base_hyperparams.FiddleBaseParameterizable):
  front: Any = pax_fiddle.instance_field(small_wheel)
  back_tpl: Any = pax_fiddle.template_field(small_wheel)
  bell: Any = pax_fiddle.instance_field(None)


def test_the_config_of_a_function_is_that_of_what_it_builds():
  config = Bicycle.config()
  assert config.front.cls is Wheel and config.front.size == 4
  config.front.spokes = 8
  made = config.Instantiate()
  assert (made.front.size, made.front.spokes) == (4, 8)
  assert made.back_tpl == Wheel.config(size=4) and made.bell is None
  assert Bicycle().front.size == 4


@pax_fiddle.auto_config
def make_pair(size):
  wheel = Wheel(size=size)
  return [wheel, wheel]


def test_auto_config():
  front, back = make_pair(3)
  assert front is back and front.size == 3
  configs = make_pair.as_buildable(3)
  assert configs[0] is configs[1] and isinstance(configs[0], pax_fiddle.Config)
  assert pax_fiddle.auto_config(make_pair) is make_pair
  assert pax_fiddle.auto_config(Wheel).as_buildable() == Wheel.config()
  with pytest.raises(ValueError, match='should not be used with auto_config'):
    pax_fiddle.field(default_factory=make_pair, configurable_factory=True)
  with pytest.raises(ValueError, match='needs a default_factory'):
    pax_fiddle.field(configurable_factory=True)


def test_each_call_of_a_partial_builds_its_own_defaults():
  partial = pax_fiddle.Partial(Bicycle)
  assert isinstance(partial.front, pax_fiddle.ArgFactory)
  assert isinstance(partial.back_tpl, pax_fiddle.Config)
  partial.front.size = 5
  make = pax_fiddle.build(partial)
  first, second = make(), make()
  assert first.front is not second.front and first.front.size == 5


@pax_fiddle.auto_config
def make_later():
  return functools.partial(take, built=Wheel())


class Later(base_hyperparams.FiddleBaseParameterizable):
  make: Any = pax_fiddle.instance_field(make_later)


def test_a_default_that_cannot_be_shared_rightly_is_refused():
  assert Later.config().Instantiate().make(1)[1].size == 16
  with pytest.raises(ValueError, match='Unable to safely replace Later.make'):
    pax_fiddle.Partial(Later)


def test_update_callable_checks_or_drops_what_is_set():
  config = Car.config(doors=3)
  with pytest.raises(TypeError, match='doors'):
    pax_fiddle.update_callable(config, Wheel)
  pax_fiddle.update_callable(config, Bicycle, drop_invalid_args=True)
  assert config.cls is Bicycle and config.front.size == 4


def test_a_sub_config_may_be_named_before_its_class():
  class Early(base_hyperparams.BaseHyperParams):
    late: Any = base_hyperparams.sub_config_field(lazy_ref=lambda: Late)

  class Late(base_hyperparams.BaseHyperParams):
    x: int = 5

  assert Early().late.x == 5

  class Own:
    def __to_sub_config_field__(self):
      return dataclasses.field(default=9)

  assert isinstance(Own(), base_hyperparams.OverrideSubConfigFieldProtocol)
  assert base_hyperparams.sub_config_field(Own()).default == 9


class Copied(base_hyperparams.FiddleBaseParameterizable):
  names: Any = dataclasses.field(default_factory=list)
  more: Any = dataclasses.field(default_factory=list)


class Other(base_hyperparams.FiddleBaseParameterizable):
  names: Any = dataclasses.field(default_factory=list)
  more: Any = dataclasses.field(default_factory=dict)


def test_copies_between_factories():
  config = Copied.config(names=[1]).copy_fields_from(Copied.config(more=[2]))
  assert not config.has('names') and config.more == [2]
  with pytest.raises(
    ValueError, match="Can't copy from default_factory Copied.more"
  ):
    Other.config().copy_fields_from(Copied.config())
  with pytest.raises(ValueError, match='missing required value'):
    Kinds.config().copy_fields_from(Kinds.config())


def test_what_a_built_object_was_configured_with_is_read_only():
  car = Car.make(doors=9)
  assert car.hparams.doors == 9 and car.hparams.cls is Car
  assert car.hparams == Car.make(doors=9).hparams
  with pytest.raises(AttributeError, match='is built already'):
    car.hparams.doors = 3
  again = car.hparams.clone().set(doors=3).Instantiate()
  assert (again.doors, car.doors) == (3, 9)
  assert 'doors : 9' in car.hparams.to_text()


def test_mesh_and_its_names_have_one_length():
  config = base_layer.BaseLayer.config(
    ici_mesh_shape=[1, 2], dcn_mesh_shape=[3, 1], mesh_axis_names=['a', 'b']
  )
  assert config.mesh_shape == [3, 2]
  config.mesh_axis_names = ['a']
  with pytest.raises(ValueError, match='mesh_axis_names must have 2 entries'):
    _ = config.mesh_shape


class Owner(base_layer.BaseLayer):
  subs: Any = None
  tpl: Any = pax_fiddle.template_field(base_layer.BaseLayer)


def test_layers_in_lists_inherit_and_the_users_config_is_left_alone():
  sub = base_layer.BaseLayer.config()
  config = Owner.config(subs=[{'a': sub}], fprop_dtype=jnp.bfloat16)
  made = config.Instantiate()
  assert made.subs[0]['a'].fprop_dtype == jnp.bfloat16
  assert not sub.has('fprop_dtype')
  assert not made.tpl.has('fprop_dtype')


class Mode(enum.Enum):
  FAST = 'fast'


class Record(base_hyperparams.BaseHyperParams):
  x: Any = None


def test_values_of_all_kinds_survive_json():
  config = Owner.config(
    subs=nested_map.NestedMap(
      record=Record(x=Wheel.config()), mode=Mode.FAST, shape=(1, -1, None)
    ),
    dtype=jnp.bfloat16,
    params_init=base_layer.WeightInit.Gaussian(0.25),
    ici_mesh_shape=[1, 2],
    mesh_axis_names=('data', 'mdl'),
  )
  config.weight_split_dims_mapping.wt = ['data', None]
  again = serialization.load_json(serialization.dump_json(config))
  assert again == config
  assert type(again.subs) is nested_map.NestedMap
  built = again.Instantiate()
  assert built.subs.record.x.size == 16 and built.subs.mode is Mode.FAST
  assert built.params_init == base_layer.WeightInit.Gaussian(0.25)
  config.subs.record.x.size = 1
  assert again != config


def test_fields_of_containers_hold_plain_containers():
  @dataclasses.dataclass
  class Owner:
    items: list = pax_fiddle.template_field(list)
    options: dict = pax_fiddle.instance_field(dict)

  cfg, other = pax_fiddle.Config(Owner), pax_fiddle.Config(Owner)
  cfg.items.append(1)
  cfg.options['a'] = 2
  assert (other.items, other.options) == ([], {})
  built = pax_fiddle.build(cfg)
  assert (built.items, built.options) == ([1], {'a': 2})
  assert Owner().items == []


def test_iterate_visits_templates():
  paths = {daglish.path_str(p) for _, p in pax_fiddle.iterate(Car.config())}
  assert {'', '.wheel_tpl', '.spare'} <= paths
  config = Car.config(wheel_tpl=Wheel.config(size=3))
  values = {daglish.path_str(p): v for v, p in pax_fiddle.iterate(config)}
  assert values['.wheel_tpl.size'] == 3


def test_build_with_empty_flax_module_stack_builds_templates_too():
  config = Car.config(wheel_tpl=Wheel.config(size=3))
  car = pax_fiddle.build_with_empty_flax_module_stack(config)
  assert isinstance(car.wheel_tpl, Wheel) and car.wheel_tpl.size == 3


def test_empty_flax_module_stack_detaches_modules():
  parents = {}

  class Parent(nn.Module):
    @nn.compact
    def __call__(self):
      config = pax_fiddle.Config(base_layer.BaseLayer, name='x')
      with pax_fiddle.empty_flax_module_stack():
        parents['detached'] = nn.Dense(2).parent
        parents['config'] = pax_fiddle.build(config).parent
      parents['attached'] = nn.Dense(2).parent is self
      parents['built'] = pax_fiddle.build(config.set(name='y')).parent is self

  Parent().init({})
  assert parents == {
    'detached': None,
    'config': None,
    'attached': True,
    'built': True,
  }


def test_layers_inherit_values_that_equal_the_defaults():
  owner = pax_fiddle.Config(
    base_layer.BaseLayer,
    dtype=jnp.bfloat16,
    ici_mesh_shape=[1, 2],
    params_init=base_layer.WeightInit.Gaussian(0.1),
  )
  child = pax_fiddle.Config(base_layer.BaseLayer, fprop_dtype=jnp.float32)
  # copy_fields_from assigns the defaults of its source.
  child.copy_fields_from(child.clone())
  base_layer.BaseLayer.copy_base_hparams(owner, child)
  assert child.dtype == jnp.bfloat16 and child.fprop_dtype == jnp.float32
  assert child.params_init == owner.params_init
  assert child.ici_mesh_shape == [1, 2]
  assert child.ici_mesh_shape is not owner.ici_mesh_shape


def test_config_of_base_layer_has_its_fields():
  config = pax_fiddle.Config(base_layer.BaseLayer)
  assert config.mesh_shape is None and config.dtype == jnp.float32
  config.set(ici_mesh_shape=[1, 2], dcn_mesh_shape=[2, 1])
  assert config.mesh_shape == [2, 2]


def test_history_names_the_caller():
  config = Car.config(doors=3)
  config.doors = 4
  config.set(doors=5)
  locations = [e.location for e in config.__argument_history__['doors']]
  assert {location.filename for location in locations[1:]} == {__file__}
  assert len(locations) == 3


def test_copies_have_histories_of_their_own():
  config = Car.config(doors=3)
  copies = copy.copy(config), copy.deepcopy(config), copy.copy(config)
  config.doors = 4
  copies[1].doors = 5
  copies[1].doors = 6
  values = [
    [entry.new_value for entry in c.__argument_history__['doors'][1:]]
    for c in (config, *copies)
  ]
  assert values == [[4], [], [5, 6], []]


def test_deep_copies_share_what_the_original_shares_and_nothing_with_it():
  wheel = Wheel.config(size=2)
  config = Kinds.config(plain=wheel, tagged=[wheel, {'of': wheel}])
  copied = copy.deepcopy(config)
  assert copied == config
  assert copied.plain is copied.tagged[0] is copied.tagged[1]['of']
  copied.plain.size = 3
  copied.tagged.append(1)
  assert wheel.size == 2 and len(config.tagged) == 2


def test_unknown_fields_are_type_and_attribute_errors():
  @dataclasses.dataclass
  class Part:
    size: int = 1

  for error in (TypeError, AttributeError):
    with pytest.raises(error, match="no field 'sise'.*Did you mean 'size'"):
      pax_fiddle.Config(Part, sise=2)
  with pytest.raises(AttributeError, match='sise'):
    pax_fiddle.Config(Part).sise = 2


def test_nested_hparams_are_parameters():
  with pytest.raises(ValueError, match='nested HParams classes. Instead, add'):

    class Layer(base_layer.BaseLayer):
      class HParams:
        x: int = 0
