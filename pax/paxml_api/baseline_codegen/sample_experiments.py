# SPDX-License-Identifier: Apache-2.0
"""Small experiments for tests of the code generator."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from pax import base_experiment, tasks_lib
from pax.parameterized_experiment import ParameterizedExperiment
from pax.paxml_api import baseline_experiment
from praxis import base_input, base_layer, base_model, pax_fiddle
from praxis.pytypes import NestedMap

Configs = list[pax_fiddle.Config[base_input.BaseInput]]


class TestLayer(base_layer.BaseLayer):
  """A layer with a field."""

  # Pytest does not collect it.
  __test__ = False

  x: int = 12


class SampleModel(base_model.BaseModel):
  """A model whose fields follow from one constant."""

  my_setting: int = 1
  derived_setting: int = 2
  derived_list_setting: list[int] = dataclasses.field(
    default_factory=lambda: [3, 4]
  )
  sublayers: list[base_layer.BaseLayer] = dataclasses.field(
    default_factory=list
  )


class SampleExperiment(base_experiment.BaseExperiment):
  """A task without data."""

  FOO_SETTING = 4123

  def datasets(self) -> Configs:
    return []

  @property
  def derived_setting(self) -> int:
    return 2 * self.FOO_SETTING

  @property
  def derived_list_setting(self) -> list[int]:
    return [self.FOO_SETTING, self.derived_setting]

  def task(self) -> pax_fiddle.Config[Any]:
    model = pax_fiddle.Config(
      SampleModel,
      my_setting=self.FOO_SETTING,
      derived_setting=self.derived_setting,
      derived_list_setting=self.derived_list_setting,
    )
    return pax_fiddle.Config(tasks_lib.SingleTask, model=model)


class SampleShardedExperiment(SampleExperiment):
  """The model has sharding annotations."""

  def task(self) -> pax_fiddle.Config[Any]:
    task = super().task()
    task.model.activation_split_dims_mapping.out = ['foo_axis', 'bar_axis']
    return task


class SampleExperimentWithSharedShardingAnnotations(SampleShardedExperiment):
  """Layers have the annotations of the model."""

  def task(self) -> pax_fiddle.Config[Any]:
    task = super().task()
    annotations = task.model.activation_split_dims_mapping
    task.model.sublayers = [
      pax_fiddle.Config(TestLayer, activation_split_dims_mapping=annotations)
      for _ in range(2)
    ]
    return task


class SampleExperimentWithDatasets(SampleExperiment):
  """Inputs for training and evaluation."""

  def datasets(self) -> Configs:
    return [_input(1024, is_training=True), _input(128)]


class SampleExperimentWithDecodeDatasets(SampleExperiment):
  """An input for decoding."""

  def decode_datasets(self) -> Configs:
    return [_input(256)]


class SampleInputSpecsProvider(base_input.BaseInputSpecsProvider):
  """One array."""

  def get_input_specs(self) -> NestedMap:
    return NestedMap(inputs=jax.ShapeDtypeStruct((16, 32), jnp.int32))


class SampleExperimentWithInputSpecsProvider(SampleExperiment):
  """The input specs need no data."""

  def get_input_specs_provider_params(self) -> pax_fiddle.Config[Any]:
    return pax_fiddle.Config(SampleInputSpecsProvider)


class SampleExperimentWithInitFromCheckpointRules(SampleExperiment):
  """Training starts from the checkpoint of another experiment."""

  def task(self) -> pax_fiddle.Config[Any]:
    task = super().task()
    other = SampleExperimentWithInputSpecsProvider()
    task.train.init_from_checkpoint_rules = {
      '/path/to/my/checkpoint': pax_fiddle.Config(
        tasks_lib.CheckpointLoadingRules,
        task_p=other.task(),
        load_rules=[('(.*)', '{}')],
        ignore_rules=[],
        load_opt_states=False,
        load_step=False,
        safe_load=True,
        step=532000,
        input_specs_provider_p=other.get_input_specs_provider_params(),
      )
    }
    return task


class SampleExperimentCustomObject(SampleExperiment):
  """A field holds an object without code."""

  def task(self) -> pax_fiddle.Config[Any]:
    task = super().task()
    task.model.my_setting = object()
    return task


@dataclasses.dataclass
class SampleExperimentNewBaseline(baseline_experiment.BaselineExperiment):
  """The class that the generator writes of SampleExperiment."""

  foo_setting: int = 4123
  derived_setting: int = 8246
  derived_list_setting: list[int] = dataclasses.field(
    default_factory=lambda: [4123, 8246]
  )

  def experiment_fixture(self) -> pax_fiddle.Config[ParameterizedExperiment]:
    task = pax_fiddle.Config(tasks_lib.SingleTask, model=self.model_fixture())
    return pax_fiddle.Config(
      ParameterizedExperiment, task=task, eval_datasets=[]
    )

  def model_fixture(self) -> pax_fiddle.Config[SampleModel]:
    return pax_fiddle.Config(
      SampleModel,
      my_setting=self.foo_setting,
      derived_setting=self.derived_setting,
      derived_list_setting=self.derived_list_setting,
    )


class SampleDerivedExperiment(SampleExperiment):
  """Differs in a field."""

  def task(self) -> pax_fiddle.Config[Any]:
    task = super().task()
    task.model.my_setting = 4217
    return task


class SampleDerivedExperimentHighlevel(SampleExperiment):
  """Differs in the constant."""

  FOO_SETTING = 4217


def _input(batch_size: int, is_training: bool = False) -> Any:
  return pax_fiddle.Config(
    base_input.BaseInput, batch_size=batch_size, is_training=is_training
  )
