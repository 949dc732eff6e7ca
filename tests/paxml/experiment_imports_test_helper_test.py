# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
# bazel: deps=//paxml:modules
"""Test cases that build registered experiments."""

from __future__ import annotations

import types
import unittest

import pytest

from pax.tasks.lm.params import quickstart
from paxml import experiment_imports_test_helper as helper
from praxis import base_input


class Bytes(quickstart.TinyLm):
  """An experiment whose tokens are bytes, which are soon made."""

  NUM_PIECES = None
  VOCAB_SIZE = 259


class NoData(Bytes):
  """An experiment without datasets."""

  def datasets(self):
    return []

  def decode_datasets(self):
    return []


class Specs(base_input.BaseInputSpecsProvider):
  """The shapes of a batch."""

  def get_input_specs(self):
    data = Bytes().training_dataset()
    return base_input.DatasetInputSpecsProvider(input_p=data).get_input_specs()


class HasSpecs(Bytes):
  """An experiment that knows the shapes of its batches."""

  def get_input_specs_provider_params(self):
    return Specs.config()


class ReadsData(Bytes):
  """An experiment whose input specs provider reads the data."""


class Registry(types.ModuleType):
  """A registry of three experiments."""

  experiments = {
    'a.params.HasSpecs': HasSpecs,
    'a.params.NoData': NoData,
    'b.params.ReadsData': ReadsData,
  }

  def get_all(self):
    return self.experiments

  def get(self, name):
    return self.experiments[name]

  def get_registry_tags(self, name):
    return ['smoke_test_abstract_init'] if 'NoData' not in name else []


def _case(**regexes):
  class Case(helper.ExperimentImportsTestHelper):
    pass

  create = Case.create_test_methods_for_all_registered_experiments
  return Case, create(Registry('registry'), **regexes)


def _run(case):
  result = unittest.TestResult()
  unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
  return {
    test.id().rpartition('.')[2]: text
    for test, text in result.failures + result.errors
  }


@pytest.mark.parametrize(
  ('regexes', 'count'),
  [
    ({}, 0),
    ({'task_regexes': ['.*']}, 3),
    ({'task_regexes': ['a.*']}, 3),
    ({'task_regexes': ['^a[.]'], 'exclude_regexes': ['No']}, 1),
    ({'task_regexes': ['.*'], 'include_only_regexes': ['Has', 'No']}, 2),
  ],
)
def test_regexes_select_experiments(regexes, count):
  case, num_methods = _case(**regexes)
  names = [name for name in dir(case) if name.startswith('test_experiment_')]
  assert len(names) == num_methods == count


def test_methods_build_the_experiments():
  case, _ = _case(task_regexes=['.*'])
  assert hasattr(case, 'test_experiment_params_a_params_HasSpecs')
  failures = _run(case)
  assert sorted(failures) == [
    'test_experiment_params_a_params_NoData',
    'test_experiment_params_b_params_ReadsData',
  ]
  text = failures['test_experiment_params_b_params_ReadsData']
  assert 'must not read the training data' in text
