# SPDX-License-Identifier: Apache-2.0
"""The dtypes of the forward pass."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from pax import steps, tasks_lib
from pax.steps import forward
from praxis import base_layer, optimizers
from praxis.base_layer import WeightHParams
from praxis.layers import models
from praxis.nested_map import NestedMap


def test_bfloat16_leaves_inputs_that_need_float32():
  task_p = tasks_lib.SingleTask.config(
    name='task',
    model=models.LanguageModelGRPO.config(name='lm', fprop_dtype=jnp.bfloat16),
  )
  learner = task_p.train.learner
  learner.set(loss_name='total_loss', optimizer=optimizers.Sgd.config())
  task = task_p.Instantiate()
  settings = steps.StepSettings(
    task=task, var_weight_hparams={base_layer.PARAMS: {'w': WeightHParams([2])}}
  )
  # The last one is no bfloat16.
  log_probs = jnp.asarray([[-1.0, -3.001]])
  batch = NestedMap(
    ids=jnp.zeros((1, 2), jnp.int32),
    paddings=jnp.zeros((1, 2)),
    advantages=jnp.asarray([1.001]),
    old_log_probs=log_probs,
  )
  variables, cast = forward.cast_inputs(
    settings, {base_layer.PARAMS: {'w': jnp.ones(2)}}, batch
  )
  assert variables[base_layer.PARAMS]['w'].dtype == jnp.bfloat16
  dtypes = {name: x.dtype for name, x in cast.items()}
  assert dtypes == {
    'ids': jnp.int32,
    'paddings': jnp.bfloat16,
    'advantages': jnp.float32,
    'old_log_probs': jnp.float32,
  }
  np.testing.assert_array_equal(cast.old_log_probs, log_probs)
