# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Fiddle's tools on the Configs of an experiment."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from fiddle import selectors
from fiddle.experimental import serialization

from pax.tasks.lm.params import lm_cloud
from praxis import fiddle_tags, pax_fiddle
from praxis.layers import linears, stochastics, transformers
from praxis.pax_fiddle import config_codegen


@pytest.fixture(scope='module')
def experiment():
  return lm_cloud.LmCloudSpmd2BLimitSteps()


@pytest.fixture
def task(experiment):
  return experiment.task()


def test_a_whole_experiment_survives_json(experiment, task):
  for config in (task, *experiment.datasets()):
    again = serialization.load_json(serialization.dump_json(config))
    assert again == config
    assert type(again) is type(config)
    assert again.to_text() == config.to_text()
  again = serialization.load_json(serialization.dump_json(task.model))
  assert again.Instantiate().hparams == task.model.Instantiate().hparams


def test_a_changed_experiment_differs_after_json(task):
  changed = serialization.load_json(serialization.dump_json(task))
  changed.model.lm_tpl.model_dims = 8
  assert changed != task


def test_selectors_reach_every_layer(task):
  dropouts = selectors.select(task, stochastics.Dropout)
  assert len(list(dropouts)) > 0
  dropouts.set(keep_prob=0.75)
  blocks = list(selectors.select(task, transformers.Transformer))
  assert blocks
  assert all(b.dropout_tpl.keep_prob == 0.75 for b in blocks)
  selectors.select(task, linears.Linear).replace(
    pax_fiddle.Config(linears.Linear, output_dims=3)
  )
  found = list(selectors.select(task, linears.Linear))
  assert found and all(linear.output_dims == 3 for linear in found)


def test_tags_reach_every_layer(task):
  pax_fiddle.set_tagged(task, tag=fiddle_tags.ParamsDType, value=jnp.bfloat16)
  linear = next(iter(selectors.select(task, linears.Linear)))
  assert linear.dtype == task.model.lm_tpl.dtype == jnp.bfloat16
  assert linear.fprop_dtype != jnp.bfloat16 or not linear.has('fprop_dtype')
  pax_fiddle.set_tagged(task, tag=fiddle_tags.BaseDType, value=jnp.float16)
  assert linear.dtype == linear.fprop_dtype == jnp.float16


def test_a_picture_names_the_layers(task):
  graphviz = pytest.importorskip('graphviz', reason='draws the picture')
  from fiddle import graphviz as fiddle_graphviz

  picture = fiddle_graphviz.render(task.model)
  assert isinstance(picture, graphviz.Graph)
  for name in ('TransformerLm', 'StackedTransformer', 'Linear', 'params_init'):
    assert name in picture.source


def test_generated_code_makes_the_experiment_again(experiment, task):
  for config in (task, *experiment.datasets()):
    scope = {}
    exec(
      config_codegen.new_codegen(config, max_expression_complexity=12), scope
    )
    again = scope['config_fixture']()
    assert again == config
    assert again.to_text() == config.to_text()
