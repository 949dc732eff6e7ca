# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Code in parts: constants, sharding, other experiments, each on its own."""

# bazel: deps=//pax/tasks:experiments
from __future__ import annotations

import pytest

from pax import tasks_lib
from pax.checkpoints import init_from
from pax.tasks.lm.params import lm_cloud
from pax.tools.fiddler import codegen, sharding
from praxis import pax_fiddle


class Small(lm_cloud.LmCloudSpmdTest):
  """With a constant of each type."""

  MODEL_DIMS = 48


class Warm(Small):
  """With a constant as the key of a dict."""

  SOURCE = '/jobs/first'

  def task(self):
    task = super().task()
    rules = tasks_lib.CheckpointLoadingRules(
      task_p=None, load_rules=[init_from.LOAD_ALL]
    )
    task.train.init_from_checkpoint_rules = {self.SOURCE: rules}
    return task


def _made(code, **changed):
  """What the code makes; with other constants, what it makes then."""
  for name, value in changed.items():
    lines = code.splitlines()
    (at,) = (i for i, x in enumerate(lines) if x.startswith(f'{name} = '))
    lines[at] = f'{name} = {value!r}'
    code = '\n'.join(lines)
  scope = {}
  exec(code, scope)
  return scope[codegen.FIXTURE]()


def _text(task):
  # What is at its default may be an int in one and a float in the other.
  return task.to_text().replace(' : 1.0\n', ' : 1\n')


def test_a_constant_is_changed_in_one_place():
  code = codegen.codegen_with_constants(Small, has_input_specs_provider=False)
  assert 'MODEL_DIMS = 48\n' in code
  assert _text(_made(code).task) == _text(Small().task())
  found = _made(code, MODEL_DIMS=64).task
  assert found.model.lm_tpl.model_dims == 64


def test_a_constant_that_is_a_key_appears_as_its_value():
  code = codegen.codegen_with_constants(Warm, has_input_specs_provider=False)
  rules = _made(code).task.train.init_from_checkpoint_rules
  assert rules == Warm().task().train.init_from_checkpoint_rules


def test_sharding_stands_apart():
  config = codegen.from_legacy(
    Small, normalizer=codegen.normalizer(), has_input_specs_provider=False
  )
  code = codegen.codegen_with_sharding_apart(config)
  head, _, tail = code.partition('def add_sharding(config):')
  assert 'split_dims_mapping' not in head
  assert 'config.task.model.lm_tpl' in tail
  assert _text(_made(code).task) == _text(Small().task())
  bare = sharding.remove_sharding(config)
  assert sharding.sharding_annotations(bare) == []
  assert _made(codegen.codegen_with_sharding_apart(bare))


def test_sharding_that_code_cannot_tell():
  from praxis.layers import linears

  config = pax_fiddle.Config(linears.Linear)
  config.weight_split_dims_mapping.wt = [object()]
  with pytest.raises(ValueError, match='must be mesh axes'):
    sharding.sharding_annotations(config)
  config.weight_split_dims_mapping = pax_fiddle.Config(
    linears.Linear.ActivationSharding
  )
  with pytest.raises(ValueError, match='of the class that its owner declares'):
    sharding.sharding_annotations(config)


def test_other_experiments_are_named():
  config = codegen.from_legacy(
    Small, normalizer=codegen.normalizer(), has_input_specs_provider=False
  )
  other = lm_cloud.LmCloudSpmdTest
  rules = tasks_lib.CheckpointLoadingRules(
    task_p=other().task(), load_rules=[init_from.LOAD_ALL]
  )
  config.task.train.init_from_checkpoint_rules = {'/models/a': rules}
  name = codegen.name_init_checkpoint_experiments
  config.task = name(config.task, {'/models/a': other})
  code = codegen.codegen_experiment(config)
  # Written out it would be a second model.
  assert 'task_of(' in code and code.count('language_model.Lang') == 1
  found = _made(code).task.train.init_from_checkpoint_rules['/models/a']
  assert _text(found.task_p) == _text(other().task())
  assert found.input_specs_provider_p is None
  assert found.load_rules == rules.load_rules
  config.task.train.init_from_checkpoint_rules = {'/models/b': rules}
  with pytest.raises(ValueError, match="has '/models/b'"):
    name(config.task, {})
  kept = name(config.task, {}, strict=False)
  assert kept.train.init_from_checkpoint_rules['/models/b'] is rules
