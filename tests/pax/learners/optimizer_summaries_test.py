# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Summaries of optimizers say what the optimizers do."""

from __future__ import annotations

import jax.numpy as jnp

from pax import learners
from praxis import base_layer, optimizers, schedules


def test_the_rate_of_accumulated_gradients_is_that_of_their_update():
  rate = schedules.Linear.config(start=(0, 1.0), limit=(100, 101.0))
  base = optimizers.Sgd.config(learning_rate=1.0, lr_schedule=rate)
  learner = learners.Learner.config(
    name='learner',
    loss_name='total_loss',
    optimizer=optimizers.ShardedStaticAccumulator.config(
      optimizer_tpl=base, num_sub_batches=3
    ),
  ).Instantiate()
  hparams = {'w': base_layer.WeightHParams([])}
  variables = grads = {'w': jnp.float32(1.0)}
  state = learner.get_grad_tx(hparams).init(variables)
  rates, updates = [], []
  for step in range(9):
    with base_layer.JaxContext.new_context():
      update, state = learner.update_states(
        grads, state, variables, hparams, step=step
      )
      summaries = base_layer.all_global_summaries()
    updates.append(float(update['w']))
    rates += [float(v) for k, v in summaries.items() if 'learning/lr' in k]
  assert rates == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]
  assert updates == [0.0, 0.0, -1.0, 0.0, 0.0, -2.0, 0.0, 0.0, -3.0]
