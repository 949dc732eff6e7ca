# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Configs made simpler, drawn, and written as code."""

# bazel: deps=//pax/tasks:experiments
from __future__ import annotations

import importlib

import fiddle as fdl
import pytest

from pax.tasks.lm.params import lm_cloud
from pax.tools import graph
from pax.tools.fiddler import codegen, config_normalization, sharding
from praxis import base_layer, pax_fiddle
from praxis.layers import linears
from praxis.nested_map import NestedMap


def layer(**fields):
  config = pax_fiddle.Config(linears.Linear, input_dims=3, **fields)
  config.weight_split_dims_mapping.wt = ['data', 'mdl']
  return config


def test_sharding_is_removed_and_nothing_else():
  config = {'a': [layer()], 'b': 1}
  found = sharding.remove_sharding(config)
  assert not found['a'][0].has('weight_split_dims_mapping')
  assert found['a'][0].input_dims == 3 and found['b'] == 1
  assert config['a'][0].weight_split_dims_mapping.wt == ['data', 'mdl']
  found = sharding.remove_sharding(config, replace_with_default=True)
  assert found['a'][0].weight_split_dims_mapping.wt is None


def test_sharding_without_a_name_stays():
  weights = pax_fiddle.Config(base_layer.WeightSharding)
  config = pax_fiddle.Config(lambda *args: args, weights, 3)
  assert sharding.remove_sharding(config) == config
  assert not sharding.sharding_annotations(config)


def test_all_fields_of_sharding_are_known():
  names = {
    name
    for name, value in fdl.ordered_arguments(
      pax_fiddle.Config(base_layer.BaseLayer), include_defaults=True
    ).items()
    if sharding.is_sharding(value)
  }
  assert names == sharding.BASE_LAYER_SHARDING_FIELDS


def test_only_sharding_is_unshared():
  kind = base_layer.BaseLayer.WeightSharding
  shared_sharding = pax_fiddle.Config(kind, wt=['x', 'y'])
  shared = layer()
  shared.weight_split_dims_mapping = shared_sharding
  other = layer()
  other.weight_split_dims_mapping = shared_sharding
  first, second, again = sharding.unshare_sharding([shared, other, shared])
  assert first is again and first is not second
  assert first == shared and second == other
  assert first.weight_split_dims_mapping is not (
    second.weight_split_dims_mapping
  )


def test_nested_maps_are_made_again():
  config = pax_fiddle.Config(dict, x=NestedMap(a=1, b=NestedMap(c=2)))
  found = config_normalization.wrap_nested_maps(config)
  assert isinstance(found.x, fdl.Buildable)
  built = fdl.build(found)['x']
  assert built == config.x and isinstance(built.b, NestedMap)


def test_an_experiment_of_constants_becomes_one_of_configs():
  old = lm_cloud.LmCloudSpmdTest()
  from_legacy = codegen.from_legacy
  whole = from_legacy(lm_cloud.LmCloudSpmdTest, normalizer=None)
  assert whole.task == old.task()
  assert whole.Instantiate().eval_datasets() == old.eval_datasets()
  assert whole.input_specs_provider == old.get_input_specs_provider_params()
  small = from_legacy(
    lm_cloud.LmCloudSpmdTest,
    normalizer=config_normalization.ConfigNormalizer(
      remove_eval_datasets=True, remove_sharding_annotations=True
    ),
    has_input_specs_provider=False,
  )
  assert not small.has('eval_datasets')
  assert not small.has('input_specs_provider')
  assert 'ActivationSharding' not in str(small.task)
  lm = small.task.model.lm_tpl
  assert lm.model_dims == old.task().model.lm_tpl.model_dims
  assert len(str(small)) < len(str(whole)) / 2


def test_normalizers_of_parts_have_the_fields_of_the_whole():
  config = config_normalization.ConfigNormalizer(
    remove_sharding_annotations=True, remove_eval_datasets=True
  ).lowlevel_config()
  assert config.task_normalizer.remove_sharding_annotations
  assert config.remove_eval_datasets and not config.remove_decode_datasets
  assert config.dataset_normalizer.convert_seqio_task_objects
  config.task_normalizer.remove_sharding_annotations = False
  normalize = pax_fiddle.build(config)
  experiment = codegen.from_legacy(lm_cloud.LmCloudSpmdTest, normalizer=None)
  normalized = normalize(experiment)
  assert not normalized.has('eval_datasets')
  assert 'WeightSharding' in str(normalized.task)


@pytest.mark.parametrize('name', ['noop', 'default', 'aggressive'])
def test_normalizers(name):
  make = getattr(config_normalization, f'{name}_normalizer')
  config = codegen.from_legacy(lm_cloud.LmCloudSpmdTest, normalizer=make())
  has_sharding = 'WeightSharding' in str(config.task)
  assert has_sharding == (name != 'aggressive')


def test_generated_code_makes_what_is_declared():
  config = codegen.from_legacy(
    lm_cloud.LmCloudSpmdTest,
    normalizer=codegen.normalizer(remove_decode_datasets=True),
  )
  scope = {}
  exec(codegen.codegen_experiment(config), scope)
  task = scope[codegen.FIXTURE]().task
  # What is at its default may be an int in one and a float in the other.
  texts = [
    t.to_text().replace(' : 1.0\n', ' : 1\n')
    for t in (task, lm_cloud.LmCloudSpmdTest().task())
  ]
  assert texts[0] == texts[1]


def test_pictures():
  task = lm_cloud.LmCloudSpmdTest().task()
  plain = graph.render(task.model, max_depth=None).source
  bare = graph.render(
    task.model, max_depth=None, remove_sharding_annotations=True
  ).source
  assert 'TransformerLm' in plain and 'WeightSharding' in plain
  assert 'TransformerLm' in bare and 'WeightSharding' not in bare


@pytest.mark.parametrize(
  ('old', 'new'),
  [
    (
      'paxml.tools.fiddle.config_normalization',
      'pax.tools.fiddler.config_normalization',
    ),
    ('paxml.tools.dump_input_specs_lib', 'pax.tools.dump_input_specs'),
  ],
)
def test_names_of_paxml(old, new):
  assert importlib.import_module(old) is importlib.import_module(new)
