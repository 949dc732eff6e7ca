# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The train step against the same step written by hand."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import partitioning, steps, tasks_lib
from pax.steps.train_step import _variable_norms
from praxis import base_layer, pax_fiddle, py_utils
from praxis.layers.quantization import linears, quantization_hparams
from praxis.pytypes import NestedMap
from tests.pax import tiny

_KEY = jax.random.key(1)
_COMPILE_FAST = {'xla_backend_optimization_level': 0}


class _Setup(NamedTuple):
  """A task, what it declares, its state at step 0, and its compiled step."""

  task: Any
  declared: Any
  state: Any
  step: Any


@functools.cache
def _setup(changed_by='', model=tiny.TinyModel, **model_fields):
  """Returns the setup of a task.

  A test that changes the task names itself, to have one of its own.
  """
  del changed_by
  config = tiny.task([1, 1, 1], **model_fields)
  pax_fiddle.update_callable(config.model, model)
  made = partitioning.partition_task(
    config,
    tiny.spec(tiny.batch()),
    devices=jax.devices()[:1],
  )
  state = made.initialize(jax.random.key(0))
  step = _jitted(steps.train_step, made.task, made.var_weight_hparams)
  return _Setup(made.task, made.var_weight_hparams, state, step)


def _jitted(step, task, declared):
  """Returns `(state, batch, key)`; it is traced anew for the task as it is."""

  @functools.partial(jax.jit, compiler_options=_COMPILE_FAST)
  def run(state, batch, key):
    settings = steps.StepSettings(task=task, var_weight_hparams=declared)
    return step(settings, state, batch, key)

  return run


def _run(setup, batches, key=_KEY):
  state, outputs = setup.state, []
  for batch in batches:
    state, output = setup.step(state, batch, key)
    outputs.append(output)
  return state, outputs


def _loss_by_hand(weights, batch, dtype=jnp.float32):
  w1, b1, w2 = (w.astype(dtype) for w in weights)
  x, y, weight = (batch[k].astype(dtype) for k in ('x', 'y', 'weights'))
  predictions = (jax.nn.relu(x @ w1 + b1) @ w2)[:, 0]
  weight = weight.astype(jnp.float32)
  error = jnp.square(predictions - y) * weight
  return error.sum() / (weight.sum() + 1e-6)


def test_equals_the_step_by_hand():
  setup = _setup()
  batches = [tiny.batch(seed=i) for i in range(3)]
  state, outputs = _run(setup, batches)

  weights = tiny.weights(setup.state)
  for batch, output in zip(batches, outputs, strict=True):
    loss, grads = jax.value_and_grad(_loss_by_hand)(weights, batch)
    np.testing.assert_allclose(output.loss, loss, rtol=1e-6)
    norm = np.sqrt(sum(np.square(grad).sum() for grad in grads))
    np.testing.assert_allclose(
      output.summary_tensors['learning/raw_grad_norm_aggregate_scalar'],
      norm,
      rtol=1e-5,
    )
    weights = [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]
  for mine, wanted in zip(tiny.weights(state), weights, strict=True):
    np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-7)
  assert int(state.step) == 3


_FIRST = {'params/first/linear/w', 'params/first/bias/b'}
_SEEN = 'non_trainable/seen'


@pytest.mark.parametrize(
  ('patterns', 'kept'),
  [
    ({'bprop_variable_exclusion': 'params/first/.*'}, _FIRST),
    (
      {'bprop_variable_exclusion': [_SEEN, 'params/first/.*']},
      {_SEEN, *_FIRST},
    ),
    # What is not included by name is excluded.
    ({'bprop_variable_inclusion': 'params/second/.*'}, {_SEEN, *_FIRST}),
  ],
)
def test_excluded_variables_are_kept(patterns, kept):
  config = tiny.task()
  config.train.learner.set(**patterns)
  task = config.Instantiate()
  setup = _setup()
  step = _jitted(steps.train_step, task, setup.declared)
  state, _ = step(
    setup.state.replace(
      opt_states=task.create_opt_states(setup.state.mdl_vars, setup.declared)
    ),
    tiny.batch(),
    _KEY,
  )
  old, new = (
    dict(py_utils.tree_paths(s.mdl_vars)) for s in (setup.state, state)
  )
  assert {x for x in old if np.array_equal(old[x], new[x])} == kept
  mask = tasks_lib.get_frozen_var_mask(setup.declared, task.learners[0])
  assert {path for path, frozen in py_utils.tree_paths(mask) if frozen} == kept


def test_integers_are_not_trained():
  config = tiny.task([1, 1, 1])
  config.model.linear_tpl = pax_fiddle.Config(
    linears.Linear, quantization=quantization_hparams.QuantizationParams()
  )
  made = partitioning.partition_task(
    config, tiny.spec(tiny.batch()), devices=jax.devices()[:1]
  )
  step = _jitted(steps.train_step, made.task, made.var_weight_hparams)
  with pytest.raises(ValueError, match='int8 of params/first/linear/w; .*conv'):
    jax.eval_shape(step, made.state_metadata, tiny.batch(), _KEY)


def test_scalars_summaries_and_non_trainables():
  state, (output,) = _run(_setup(), [tiny.batch()])
  value, weight = output.weighted_scalars.total_loss
  assert (float(value), float(weight)) == (float(output.loss), 7.0)
  assert float(state.mdl_vars['non_trainable']['seen']) == 8.0
  assert float(output.summary_tensors['mean_hidden_scalar']) > 0
  assert output.per_example_out.error.shape == (8,)


def test_each_step_has_root_mean_squares_of_all_variables():
  state, outputs = _run(_setup(), [tiny.batch()] * 2)
  first, second = (
    {k: float(v) for k, v in o.summary_tensors.items() if k[:5] == 'vars/'}
    for o in outputs
  )
  assert all(first.values())
  assert second == pytest.approx(
    {
      f'vars/{path}_scalar': np.sqrt(np.mean(np.square(x)))
      for path, x in py_utils.tree_paths(state.mdl_vars)
    },
    rel=1e-5,
  )


def test_variable_norms_are_computed_when_due():
  setup = _setup()

  @functools.partial(jax.jit, compiler_options=_COMPILE_FAST)
  def step(state, batch, key):
    settings = steps.StepSettings(
      task=setup.task,
      var_weight_hparams=setup.declared,
      variable_norm_interval=2,
    )
    return steps.train_step(settings, state, batch, key)

  _, outputs = _run(setup._replace(step=step), [tiny.batch()] * 2)
  name = 'vars/params/second/w_scalar'
  first, second = (float(o.summary_tensors[name]) for o in outputs)
  assert first > 0
  assert second == 0


def test_variables_may_have_more_than_int32_elements():
  setup = _setup()
  settings = steps.StepSettings(
    task=setup.task, var_weight_hparams=setup.declared
  )
  table = jax.ShapeDtypeStruct((3, 2**30), jnp.float32)
  norms = jax.eval_shape(
    lambda x: _variable_norms(settings, jnp.uint32(0), {'w': x}),
    table,
  )
  assert [x.shape for x in norms.values()] == [()]


def test_bfloat16_forward_keeps_float32_state():
  setup = _setup(fprop_dtype=jnp.bfloat16)
  batch = tiny.batch()
  state, (output,) = _run(setup, [batch])
  wanted = _loss_by_hand(tiny.weights(setup.state), batch, jnp.bfloat16)
  assert output.loss.dtype == jnp.float32
  np.testing.assert_allclose(output.loss, wanted, rtol=2e-2)
  exact = _loss_by_hand(tiny.weights(setup.state), batch)
  assert float(output.loss) != float(exact)
  assert {x.dtype for x in jax.tree.leaves(state.mdl_vars)} == {
    jnp.dtype('float32')
  }


def test_randomness_follows_the_step_alone():
  setup = _setup(noise=0.5)
  batches = [tiny.batch()] * 3
  straight, outputs = _run(setup, batches)
  half, _ = _run(setup, batches[:2])
  resumed, _ = _run(setup._replace(state=half), batches[2:])
  for mine, wanted in zip(
    jax.tree.leaves(resumed), jax.tree.leaves(straight), strict=True
  ):
    np.testing.assert_array_equal(mine, wanted)
  frozen, noise = _run(setup, [batches[0]], jax.random.key(2))
  assert float(noise[0].loss) != float(outputs[0].loss)


def test_a_bad_step_changes_nothing_but_the_count():
  setup = _setup()
  bad = tiny.batch()
  bad.x[0, 0] = np.nan
  state, (output,) = _run(setup, [bad])
  assert np.isnan(output.loss)
  assert int(state.step) == 1
  for mine, wanted in zip(
    tiny.weights(state), tiny.weights(setup.state), strict=True
  ):
    np.testing.assert_array_equal(mine, wanted)


class _Averaging(tiny.TinyModel):
  """Has a moving average of its inputs."""

  def setup(self):
    super().setup()
    zero = base_layer.WeightInit.Constant(0.0)
    weight = base_layer.WeightHParams(shape=[], init=zero)
    self.create_variable('average', weight, trainable=False)

  def compute_predictions(self, input_batch):
    mean = jnp.mean(input_batch.x)
    self.update_var('average', 0.5 * self.get_var('average') + 0.5 * mean)
    return super().compute_predictions(input_batch)


def test_a_bad_step_makes_no_moving_average_nan():
  setup = _setup(model=_Averaging)
  bad = tiny.batch()
  bad.x[0, 0] = np.nan
  state, _ = _run(setup, [tiny.batch(), bad, tiny.batch()])
  variables = state.mdl_vars['non_trainable']
  mean = np.mean(tiny.batch().x)
  np.testing.assert_allclose(variables['average'], 0.75 * mean, rtol=1e-5)
  # What is finite goes on.
  assert float(variables['seen']) == 3 * 8.0


def test_per_example_outputs_on_request():
  setup = _setup('per_exa')
  setup.task.train.log_train_output_interval_steps = 5
  _, (output,) = _run(setup, [tiny.batch()])
  assert output.per_example_out.error.shape == (8,)


def test_eval_step_changes_nothing_and_sees_do_eval():
  task, declared, state, _ = _setup('eval_st')
  seen = []

  class Spy(tiny.TinyModel):
    def compute_predictions(self, input_batch):
      seen.append(self.do_eval)
      return super().compute_predictions(input_batch)

  task.model = Spy(name='model')
  output = _jitted(steps.eval_step, task, declared)(state, tiny.batch(), _KEY)
  wanted = _loss_by_hand(tiny.weights(state), tiny.batch())
  np.testing.assert_allclose(output.loss, wanted, rtol=1e-6)
  assert output.per_example_out.error.shape == (8,)
  assert seen == [True]


def test_scalars_must_be_pairs():
  task, declared, state, _ = _setup('scalars')

  class Unweighted(tiny.TinyModel):
    def compute_loss(self, predictions, input_batch):
      scalars, out = super().compute_loss(predictions, input_batch)
      return NestedMap(scalars, accuracy=jnp.float32(1.0)), out

  task.model = Unweighted(name='model')
  with pytest.raises(ValueError, match="'accuracy' must be a .value, weight."):
    _jitted(steps.eval_step, task, declared)(state, tiny.batch(), _KEY)


def test_variational_noise_reaches_the_loss():
  plain = _run(_setup(), [tiny.batch()])[1][0]
  setup = _setup('variati')
  task, state = setup.task, setup.state
  task.vn.set(vn_scale=0.1, vn_regex='params/second', vn_start_step=1)
  early = _run(setup, [tiny.batch()])[1][0]
  np.testing.assert_array_equal(early.loss, plain.loss)
  setup = setup._replace(state=state.replace(step=state.step + 1))
  late = _run(setup, [tiny.batch()])[1][0]
  assert float(late.loss) != float(plain.loss)
  task.vn.vn_regex = 'second'
  step = _jitted(steps.train_step, task, setup.declared)
  with pytest.raises(RuntimeError, match='matches none'):
    step(state, tiny.batch(), _KEY)


def test_context_is_left_behind():
  before = base_layer.JaxContext.has_context()
  task, declared, state, _ = _setup()
  _jitted(steps.train_step, task, declared).trace(state, tiny.batch(), _KEY)
  assert base_layer.JaxContext.has_context() == before
