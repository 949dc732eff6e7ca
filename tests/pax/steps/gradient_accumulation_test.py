# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Steps whose batch is divided equal steps on the whole batch."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from pax import base_metrics, learners, partitioning
from praxis import optimizers, pax_fiddle, py_utils, schedules
from praxis.nested_map import NestedMap
from tests.pax import tiny
from tests.testing import nightly

_NAME = 'gradient_accumulation_steps'


@functools.cache
def _steps(num_microbatches, mesh):
  """Returns the state and the outputs of three steps."""
  config = tiny.task(list(mesh) if mesh else None)
  config.train.set(
    **{_NAME: num_microbatches}, log_train_output_interval_steps=1
  )
  # Clips the gradient of the whole batch.
  config.train.learner.optimizer = pax_fiddle.Config(
    optimizers.Adam,
    learning_rate=0.02,
    lr_schedule=pax_fiddle.Config(schedules.Constant),
    clip_gradient_norm_to_value=0.5,
    decoupled_weight_decay=0.1,
    epsilon=1e-4,
  )
  num_devices = int(np.prod(mesh)) if mesh else 2
  made = partitioning.partition_task(
    config, tiny.spec(_batch()), devices=jax.devices()[:num_devices]
  )
  state = made.initialize(jax.random.key(0))
  step, outputs = made.train_step(), []
  for i in range(3):
    state, output = step(state, made.put_batch(_batch(i)), jax.random.key(1))
    outputs.append(output)
  return state, outputs


def _batch(seed=0):
  batch = tiny.batch(rows=16, seed=seed)
  # Microbatches have different weights; one of four has none.
  return NestedMap(
    {**batch, 'weights': np.float32([0, 2, 1, 1, 0, 1, 3, 1] * 2)}
  )


def _check_equal(found, want, **tolerances):
  for (path, x), (_, y) in zip(
    py_utils.tree_paths(found), py_utils.tree_paths(want), strict=True
  ):
    np.testing.assert_allclose(x, y, err_msg=path, **tolerances)


_MESHES = {'one device': (1, 1, 1), 'four devices': (1, 2, 2), 'pmap': None}


@pytest.mark.parametrize(
  ('num_microbatches', 'mesh'),
  [
    (4, 'one device'),
    (2, 'four devices'),
    (2, 'pmap'),
    *nightly.cases((2, 'one device'), (4, 'four devices'), (4, 'pmap')),
  ],
)
def test_equals_the_step_on_the_whole_batch(mesh, num_microbatches):
  whole_state, whole = _steps(1, _MESHES[mesh])
  state, outputs = _steps(num_microbatches, _MESHES[mesh])
  tolerances = {'rtol': 2e-5, 'atol': 2e-6}
  _check_equal(state.mdl_vars, whole_state.mdl_vars, **tolerances)
  _check_equal(state.opt_states, whole_state.opt_states, **tolerances)
  for found, want in zip(outputs, whole, strict=True):
    np.testing.assert_allclose(found.loss, want.loss, rtol=1e-5)
    # `rows` is that of a microbatch, as over replicas.
    assert found.weighted_scalars.keys() == want.weighted_scalars.keys()
    _check_equal(
      found.weighted_scalars.total_loss,
      want.weighted_scalars.total_loss,
      rtol=1e-5,
    )
    # Outputs have the order of the rows.
    assert want.per_example_out.error.shape == (16,)
    _check_equal(found.per_example_out, want.per_example_out, rtol=1e-4)
    assert 'mean_hidden_scalar' in want.summary_tensors
    assert found.summary_tensors.keys() == want.summary_tensors.keys()
    for name, value in want.summary_tensors.items():
      np.testing.assert_allclose(
        found.summary_tensors[name], value, err_msg=name, rtol=1e-4, atol=1e-6
      )
  # Counts each row once.
  assert float(np.max(state.mdl_vars['non_trainable']['seen'])) == 3 * 16


class _ArrayModel(tiny.TinyModel):
  """Has the mean of an array among its numbers."""

  def compute_loss(self, predictions, input_batch):
    scalars, rows = super().compute_loss(predictions, input_batch)
    mean = input_batch.x.mean(axis=0)
    return NestedMap({**scalars, 'mean_x': (mean, scalars.total_loss[1])}), rows


@pytest.mark.parametrize('num_microbatches', [1, tiny.DIM])
def test_metrics_are_numbers(num_microbatches):
  config = tiny.task([1, 1, 1])
  pax_fiddle.update_callable(config.model, _ArrayModel)
  config.train.set(**{_NAME: num_microbatches})
  made = partitioning.partition_task(
    config, tiny.spec(_batch()), devices=jax.devices()[:1]
  )
  state = made.initialize(jax.random.key(0))
  with pytest.raises(ValueError, match="'mean_x' must be numbers, got .*8,"):
    made.train_step()(state, made.put_batch(_batch()), jax.random.key(1))


def test_memory_is_that_of_a_microbatch():
  config = tiny.task([1, 1, 1], hidden=4096)

  def temporaries(num_microbatches):
    config.train.set(**{_NAME: num_microbatches})
    made = partitioning.partition_task(
      config, tiny.spec(tiny.batch(rows=512)), devices=jax.devices()[:1]
    )
    step = made.train_step().compile()
    return step.compiled.memory_analysis().temp_size_in_bytes

  assert temporaries(8) < 0.4 * temporaries(1)


class _Gradient(learners.StandardGradient):
  changes_gradients = True


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({_NAME: 3}, 'must divide the rows of a batch, got 3 and'),
    (
      {_NAME: 2, 'stochastic_gradient': pax_fiddle.Config(_Gradient)},
      'must be 1 with _Gradient, which clips gradients or adds noise, got 2',
    ),
    (
      {
        _NAME: 2,
        'loss_aggregator': pax_fiddle.Config(
          base_metrics.MultiLossAggregator, loss_keys=['total_loss', 'rows']
        ),
      },
      'must be 1 with MultiLossAggregator, whose loss has no weight',
    ),
  ],
)
def test_what_is_no_sum_is_refused(change, message):
  config = tiny.task([1, 1, 1])
  if 'loss_aggregator' in change:
    config.train.learner.loss_name = None
  for name, value in change.items():
    owner = {
      'stochastic_gradient': config.train.learner,
      'loss_aggregator': config,
    }.get(name, config.train)
    setattr(owner, name, value)
  made = partitioning.partition_task(
    config, tiny.spec(_batch()), devices=jax.devices()[:1]
  )
  state = made.initialize(jax.random.key(0))
  with pytest.raises(ValueError, match=message):
    made.train_step()(state, made.put_batch(_batch()), jax.random.key(1))
