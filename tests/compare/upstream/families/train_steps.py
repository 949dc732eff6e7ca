# SPDX-License-Identifier: Apache-2.0
"""Training and evaluation steps of whole tasks: states, losses, summaries."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from paxml import trainer_lib
from praxis import base_layer, optimizers, pax_fiddle, schedules
from tests.compare.upstream import cases, tasks

learners = importlib.import_module('paxml.learners')
sgf = importlib.import_module('paxml.sgf')
tasks_lib = importlib.import_module('paxml.tasks_lib')
generic_wrapper = importlib.import_module('paxml.ghostnorm.generic_wrapper')

_PMAP_AXIS = base_layer.PMAP_PARALLEL_AXIS_NAME
_NUM_REPLICAS = 2


def _learner(cls: Any = None, optimizer: Any = None, **fields: Any) -> Any:
  return pax_fiddle.Config(
    cls or learners.Learner,
    **{
      'name': 'learner',
      'loss_name': 'loss',
      'optimizer': optimizer or _adam(),
      **fields,
    },
  )


def _language_task(model: Callable[[], Any], learner: Callable[[], Any]) -> Any:
  return tasks.task(model(), learner().set(loss_name='total_loss'))


def _optimizer(name: str, **fields: Any) -> Any:
  return getattr(optimizers, name).config(
    **{
      'learning_rate': 0.1,
      'lr_schedule': schedules.Linear.config(start=(0, 1.0), limit=(9, 0.1)),
      **fields,
    }
  )


def _adam(**fields: Any) -> Any:
  return _optimizer('Adam', **fields)


def _adafactor(**fields: Any) -> Any:
  return _optimizer(
    'ShardedAdafactor',
    decay_method='adam',
    decay_adam=0.9,
    min_dim_size_to_factor=4,
    beta1=0.9,
    ema_decay=0.9,
    **fields,
  )


def _two_optimizers(**fields: Any) -> Any:
  return _learner(
    learners.MultiOptimizerLearner,
    auxiliary_optimizers=[_optimizer('ShardedSgd', momentum=0.9)],
    auxiliary_regex=['.*linear.w'],
    auxiliary_names=['weights'],
    **fields,
  )


def _state_of(task: Any, hparams: Any, has_optimizers: bool = True) -> Any:
  return tasks_lib.create_state(
    tasks.values(hparams), hparams, not has_optimizers, task.learners
  )


def _train(
  make_task: Callable[[], Any],
  batch: Any = None,
  steps: int = 3,
  dtype: Any = jnp.float32,
  has_replicas: bool = False,
) -> Any:
  """Returns losses, metrics and summaries of each step and the last state."""
  task = make_task()
  batch = jax.tree.map(jnp.asarray, tasks.vectors() if batch is None else batch)
  hparams = task.model.abstract_init_with_metadata(batch)
  state = _state_of(task, hparams)

  def step(state: Any, key: Any, batch: Any) -> Any:
    return trainer_lib.train_step_single_learner(
      task, state, key, batch, dtype, hparams
    )

  run = jax.jit(step)
  if has_replicas:
    run = _on_replicas(step, (None, 0, 0))
    batch = jax.tree.map(
      lambda x: x.reshape(_NUM_REPLICAS, -1, *x.shape[1:]), batch
    )
  outputs = []
  for index in range(steps):
    key = jax.random.fold_in(jax.random.PRNGKey(3), index)
    if has_replicas:
      key = jax.random.split(key, _NUM_REPLICAS)
    state, output = run(state, key, batch)
    if has_replicas:
      # All replicas have one state.
      state = jax.tree.map(lambda x: x[0], state)
    outputs.append(output)
  state = {
    'step': state.step,
    'vars': state.mdl_vars,
    'opt_states': state.opt_states,
  }
  return {'outputs': outputs, 'state': state}


def _on_replicas(function: Callable[..., Any], in_axes: Any) -> Any:
  """Returns the function of replicas, as pmap over as many devices runs it."""
  run = jax.jit(jax.vmap(function, in_axes=in_axes, axis_name=_PMAP_AXIS))

  def run_with_devices(*args: Any) -> Any:
    # Upstream takes the number of devices for the number of replicas.
    with mock.patch.object(jax, 'device_count', lambda: _NUM_REPLICAS):
      return run(*args)

  return run_with_devices


def _case(name: str, make: Any, **options: Any) -> cases.Case:
  tolerance = options.pop('tolerance', 3e-6)
  return cases.FunctionCase(
    name=name,
    function=functools.partial(_train, make, **options),
    tolerance=tolerance,
  )


_LEARNERS: dict[str, Callable[[], Any]] = {
  'adam': _learner,
  'ema': lambda: _learner(optimizer=_adam(ema_decay=0.9)),
  'sgd': lambda: _learner(optimizer=_optimizer('ShardedSgd', momentum=0.9)),
  'adafactor': lambda: _learner(optimizer=_adafactor()),
  'accumulator': lambda: _learner(
    optimizer=_optimizer(
      'ShardedStaticAccumulator', optimizer_tpl=_adam(), num_sub_batches=2
    )
  ),
  'clip': lambda: _learner(optimizer=_adam(clip_gradient_norm_to_value=0.1)),
  'clip single': lambda: _learner(
    optimizer=_adam(clip_gradient_single_norm_to_value=0.1)
  ),
  'skipped': lambda: _learner(skip_step_gradient_norm_value=1e-3),
  'excluded': lambda: _learner(bprop_variable_exclusion=['.*bias.*']),
  'excluded ema': lambda: _learner(
    optimizer=_adam(ema_decay=0.9), bprop_variable_exclusion=['.*bias.*']
  ),
  'included': lambda: _learner(bprop_variable_inclusion=['.*linear.*']),
  'kept states': lambda: _learner(
    bprop_variable_exclusion=['.*bias.*'],
    keep_optimizer_state_for_excluded_vars=True,
  ),
  'all norms': lambda: _learner(
    grad_norm_individual_vars=True, var_norm_individual_vars=True
  ),
  'no norms': lambda: _learner(
    grad_norm_summary=False, var_norm_summary=False, check_valid_step=False
  ),
  'scaled by norm': lambda: _learner(scale_update_by_var_norm=True),
  'decay': lambda: _learner(
    optimizer=_adam(l2_regularizer_weight=0.1, weight_decay=0.01)
  ),
  'two optimizers': _two_optimizers,
  'two optimizers ema': lambda: _two_optimizers(optimizer=_adam(ema_decay=0.9)),
  'two optimizers scaled': lambda: _two_optimizers(
    apply_separate_scaling=True,
    optimizer=_adam(clip_gradient_norm_to_value=0.1),
  ),
}


# The gradient of a bias of keys is 0 but for rounding, and both optimizers
# divide a gradient by its own size: such a variable is not learned, and their
# epsilons are above the rounding of the other gradients.
_LANGUAGE_LEARNERS: dict[str, Callable[[], Any]] = {
  'adam': lambda: _learner(
    optimizer=_adam(epsilon=1e-2), bprop_variable_exclusion=['.*key/b']
  ),
  'adafactor': lambda: _learner(
    optimizer=_adafactor(epsilon1_grad_sq_reg=1e-4),
    bprop_variable_exclusion=['.*key/b'],
  ),
}


def _learner_cases() -> Iterator[cases.Case]:
  for label, learner in _LEARNERS.items():
    uses_average = 'ema' in label or label in ('adam', 'excluded', 'clip')
    for model in (tasks.two_layers, tasks.with_batch_norm):
      if model is tasks.with_batch_norm and not uses_average:
        continue
      make = functools.partial(
        lambda m, ln: tasks.task(m(), ln()), model, learner
      )
      yield _case(f'train, {model.__name__}, {label}', make)
  for model, make_model in tasks.MODELS.items():
    for label, learner in _LANGUAGE_LEARNERS.items():
      make = functools.partial(_language_task, make_model, learner)
      # Experts are sampled with other random streams in training.
      if model != 'experts':
        yield _case(
          f'train, {model}, {label}',
          make,
          batch=tasks.tokens(),
          steps=2,
          tolerance=1e-5,
        )
  for model in (tasks.two_layers, tasks.with_batch_norm):
    make = functools.partial(lambda m: tasks.task(m(), _learner()), model)
    yield _case(
      f'train, {model.__name__}, bfloat16',
      make,
      dtype=jnp.bfloat16,
      tolerance=1e-2,
    )
    yield _case(f'train, {model.__name__}, replicas', make, has_replicas=True)
    make = functools.partial(
      lambda m: tasks.task(m(), _learner(), variable_norm_summary=False), model
    )
    yield _case(f'train, {model.__name__}, no variable norms', make)


_GRADIENTS: dict[str, tuple[str, dict[str, Any]]] = {
  'standard': ('StandardGradient', {}),
  'dp': ('DpSgdStochasticGradient', {'l2_norm_clip': 0.2}),
  'dp noise': (
    'DpSgdStochasticGradient',
    {'l2_norm_clip': 0.2, 'noise_multiplier': 0.3},
  ),
  'dp normalized': (
    'DpSgdStochasticGradient',
    {
      'l2_norm_clip': 0.2,
      'noise_multiplier': 0.3,
      'normalize_gradients': True,
    },
  ),
  'dp inner batch': (
    'DpSgdStochasticGradient',
    {'l2_norm_clip': 0.2, 'inner_batch_size': 2},
  ),
  'dp odd inner batch': (
    'DpSgdStochasticGradient',
    {'l2_norm_clip': 0.2, 'inner_batch_size': 3},
  ),
  'dp loss weight': (
    'DpSgdStochasticGradient',
    {'l2_norm_clip': 0.2, 'use_loss_weight_scaling': True},
  ),
  'dp loss weight and noise': (
    'DpSgdStochasticGradient',
    {
      'l2_norm_clip': 0.2,
      'use_loss_weight_scaling': True,
      'noise_multiplier': 0.3,
    },
  ),
  'dp without bound': ('DpSgdStochasticGradient', {}),
  'microbatch': (
    'MicrobatchDpSgdStochasticGradient',
    {'l2_norm_clip': 0.2, 'microbatch_size': 2},
  ),
  'microbatch inner': (
    'MicrobatchDpSgdStochasticGradient',
    {'l2_norm_clip': 0.2, 'microbatch_size': 2, 'inner_batch_size': 2},
  ),
  'augmented': (
    'AugMulDpSgdStochasticGradient',
    {'l2_norm_clip': 0.2, 'microbatch_size': 2},
  ),
  'per layer': ('PerLayerDpSgdStochasticGradient', {'l2_norm_clip': 0.2}),
  'per layer scaled': (
    'PerLayerDpSgdStochasticGradient',
    {'l2_norm_clip': 0.2, 'use_uniform': False},
  ),
  'per core': (
    'PercoreClippedDpSgdGradient',
    {'l2_norm_clip': 0.2, 'noise_multiplier': 0.3},
  ),
  'per core, least': (
    'PercoreClippedDpSgdGradient',
    {'adaptive_clipping_method': 'min'},
  ),
  'per core, other': (
    'PercoreClippedDpSgdGradient',
    {'adaptive_clipping_method': 'max'},
  ),
  'ghost': ('GhostClippingDpSgdStochasticGradient', {'l2_norm_clip': 0.2}),
  'ghost noise': (
    'GhostClippingDpSgdStochasticGradient',
    {'l2_norm_clip': 0.2, 'noise_multiplier': 0.3},
  ),
  'ghost inner batch': (
    'GhostClippingDpSgdStochasticGradient',
    {'l2_norm_clip': 0.2, 'inner_batch_size': 2},
  ),
}


def _gradient_task(name: str, fields: Any, model: Any) -> Any:
  cfg = model()
  if name.startswith('Ghost'):
    cfg = generic_wrapper.generate_wrapped_template(cfg)
  gradient = pax_fiddle.Config(getattr(sgf, name), **fields)
  return tasks.task(cfg, _learner(stochastic_gradient=gradient))


def _gradient_cases() -> Iterator[cases.Case]:
  for label, (name, fields) in _GRADIENTS.items():
    for has_replicas in (False, True):
      make = functools.partial(_gradient_task, name, fields, tasks.two_layers)
      yield _case(
        f'train, {label}, {"replicas" if has_replicas else "one"}',
        make,
        has_replicas=has_replicas,
        steps=2,
        tolerance=1e-5,
      )
  for label in ('dp', 'ghost', 'per layer'):
    name, fields = _GRADIENTS[label]
    make = functools.partial(_gradient_task, name, fields, tasks.with_embedding)
    yield _case(f'train, embedding, {label}', make, steps=2, tolerance=1e-5)


def _noise_over_replicas(gradient: Any) -> Any:
  """Returns the deviation of the noise in the sum over replicas."""

  def loss_fn(params: Any, nograd_and_inputs: Any, key: Any) -> Any:
    del key
    loss = 0.0 * jnp.sum(params['w']) * jnp.sum(nograd_and_inputs[1])
    weight = jnp.float32(1.0 / _NUM_REPLICAS)
    return loss, sgf.GradAuxInfo(aux_info=loss, loss_weight=weight)

  def noise(key: Any, inputs: Any) -> Any:
    params = {'w': jnp.zeros([200, 200])}
    _, grads = gradient.grad_fn(loss_fn, params, ({}, inputs), key)
    return jax.lax.psum(grads['w'], _PMAP_AXIS)

  keys = jax.random.split(jax.random.PRNGKey(3), _NUM_REPLICAS)
  inputs = jnp.ones([_NUM_REPLICAS, 4, 1])
  return jnp.std(_on_replicas(noise, (0, 0))(keys, inputs)[0])


def _noise_cases() -> Iterator[cases.Case]:
  fields = {'l2_norm_clip': 8.0, 'noise_multiplier': 3.0}
  for name in (
    'DpSgdStochasticGradient',
    'PerLayerDpSgdStochasticGradient',
    'MicrobatchDpSgdStochasticGradient',
    'PercoreClippedDpSgdGradient',
  ):
    for label, more in (
      ('', {}),
      (', normalized', {'normalize_gradients': True, 'noise_multiplier': 24.0}),
    ):
      gradient = pax_fiddle.Config(
        getattr(sgf, name), **{**fields, **more}
      ).Instantiate()
      yield cases.FunctionCase(
        name=f'noise over replicas, {name}{label}',
        function=functools.partial(_noise_over_replicas, gradient),
        tolerance=0.03,
      )


def _eval(make_task: Any, batch: Any, dtype: Any) -> Any:
  task = make_task()
  batch = jax.tree.map(jnp.asarray, batch)
  hparams = task.model.abstract_init_with_metadata(batch)
  state = _state_of(task, hparams, has_optimizers=False)
  new_state, output = jax.jit(
    lambda state, batch: trainer_lib.eval_step_single_learner(
      task, state, jax.random.PRNGKey(3), batch, dtype, hparams
    )
  )(state, batch)
  return {'state': new_state, 'output': output}


def _eval_cases() -> Iterator[cases.Case]:
  made: dict[str, tuple[Any, Any]] = {
    'two_layers': (tasks.two_layers, tasks.vectors()),
    'with_batch_norm': (tasks.with_batch_norm, tasks.vectors()),
    'with_embedding': (tasks.with_embedding, tasks.vectors()),
    **{k: (v, tasks.tokens()) for k, v in tasks.MODELS.items()},
  }
  for label, (model, batch) in made.items():
    for dtype in (jnp.float32, jnp.bfloat16):
      make = functools.partial(_language_task, model, _learner)
      if label not in tasks.MODELS:
        make = functools.partial(lambda m: tasks.task(m(), _learner()), model)
      yield cases.FunctionCase(
        name=f'eval, {label}, {jnp.dtype(dtype)}',
        function=functools.partial(_eval, make, batch, dtype),
        tolerance=1e-2 if dtype == jnp.bfloat16 else 3e-6,
      )


def family() -> Iterator[cases.Case]:
  yield from _learner_cases()
  yield from _gradient_cases()
  yield from _noise_cases()
  yield from _eval_cases()
