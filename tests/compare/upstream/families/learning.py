# SPDX-License-Identifier: Apache-2.0
"""Schedules, optimizers, learners, losses."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from praxis import base_layer, optimizers, pax_fiddle, py_utils, schedules
from praxis.layers import ctc_objectives, losses
from tests.compare.upstream import cases
from tests.compare.upstream.cases import floats, integers

NestedMap = py_utils.NestedMap
_STEPS = np.array([0, 1, 2, 3, 5, 8, 10, 15, 20, 30, 100], np.int32)


def _two_schedules() -> list[Any]:
  return [
    schedules.Constant.config(value=0.5),
    schedules.Linear.config(start=(0, 1.0), limit=(4, 0.0)),
  ]


_SCHEDULES: list[tuple[str, dict[str, Any]]] = [
  ('Constant', {'value': 0.3}),
  ('Polynomial', {'start': (2, 1.0), 'limit': (10, 0.1), 'power': 2}),
  (
    'Polynomial',
    {'start': (2, 1.0), 'limit': (10, 0.1), 'power': 2, 'origin': 'limit'},
  ),
  ('Polynomial', {'start': (2, 1.0), 'limit': (10, 0.1), 'origin': 'other'}),
  ('Polynomial', {'start': (12, 1.0), 'limit': (10, 0.1)}),
  ('Linear', {'start': (2, 1.0), 'limit': (10, 0.1)}),
  ('Exponential', {'start': (2, 1.0), 'limit': (10, 0.1)}),
  ('Exponential', {'start': (2, 1.0), 'limit': (2, 0.1)}),
  ('Cosine', {'initial_value': 1.0, 'final_value': 0.1, 'total_steps': 10}),
  ('DelayedCosine', {'start': (2, 1.0), 'limit': (10, 0.1)}),
  ('PiecewiseConstant', {'boundaries': [3, 9], 'values': [1.0, 0.1, 0.01]}),
  ('PiecewiseConstant', {'boundaries': [3], 'values': [1.0]}),
  ('PiecewiseConstant', {'boundaries': [9, 3], 'values': [1.0, 0.1, 0.01]}),
  ('Transformer', {'warmup_steps': 5, 'model_dim': 16}),
  (
    'Transformer',
    {
      'warmup_steps': 5,
      'model_dim': 16,
      'worker_replicas': 2,
      'decay_end': 12,
    },
  ),
  ('SqrtDecay', {}),
  ('SqrtDecay', {'multiplier': 2.0, 'offset': 3.0}),
  ('LinearRampupSqrtDecay', {'warmup_steps': 5, 'peak': 0.5}),
  (
    'LinearRampupCosineDecay',
    {'warmup_steps': 4, 'decay_start': 8, 'decay_end': 20, 'max': 0.5},
  ),
  (
    'LinearRampupCosineDecay',
    {'warmup_steps': 0, 'decay_start': 8, 'decay_end': 20, 'max': 0.5},
  ),
  (
    'LinearRampupCosineDecay',
    {'warmup_steps': 9, 'decay_start': 8, 'decay_end': 20, 'max': 0.5},
  ),
  (
    'LinearRampupCosineDecay',
    {
      'start_step': 2,
      'warmup_steps': 6,
      'decay_start': 8,
      'decay_end': 20,
      'max': 0.5,
      'min_ratio': 0.1,
    },
  ),
  (
    'LinearRampupExponentialDecay',
    {'warmup_steps': 4, 'decay_start': 8, 'decay_end': 20, 'max': 0.5},
  ),
  (
    'LinearRampupExponentialDecay',
    {'warmup_steps': 4, 'decay_start': 2, 'decay_end': 20, 'max': 0.5},
  ),
  (
    'LinearRampupPolynomialDecay',
    {
      'warmup_steps': 4,
      'decay_start': 8,
      'decay_end': 20,
      'max': 0.5,
      'power': 2,
    },
  ),
  (
    'LinearRampupPolynomialDecay',
    {'warmup_steps': 0, 'decay_start': 0, 'decay_end': 20, 'max': 0.5},
  ),
  (
    'LinearRampupPiecewiseConstant',
    {'boundaries': [4, 8], 'values': [1.0, 0.1]},
  ),
  (
    'LinearRampupPiecewiseConstant',
    {'boundaries': [4, 8, 12], 'values': [1.0, 0.1, 0.01]},
  ),
  ('LinearRampupPiecewiseConstant', {'boundaries': [4], 'values': [1, 0]}),
  ('PiecewiseSchedule', {'boundaries': [5], 'schedules': _two_schedules}),
  ('PiecewiseSchedule', {'boundaries': [5, 7], 'schedules': _two_schedules}),
  ('CycleSchedule', {'steps': [2, 3], 'schedules': _two_schedules}),
  ('CycleSchedule', {'steps': [2], 'schedules': _two_schedules}),
  (
    'ContinuousSchedule',
    {'initial_value': 2.0, 'start_step': 3, 'half_life_steps': 4, 'min': 0.1},
  ),
]


def _schedules() -> Iterator[cases.Case]:
  for index, (name, fields) in enumerate(_SCHEDULES):

    def values(name: str = name, fields: dict[str, Any] = fields) -> Any:
      made = {k: v() if callable(v) else v for k, v in fields.items()}
      schedule = base_layer.instantiate(getattr(schedules, name).config(**made))
      return [schedule.value_at(jnp.asarray(step)) for step in _STEPS]

    yield cases.FunctionCase(
      name=f'{name}, {index}', function=values, tolerance=2e-6
    )


_PARAMS = {
  'w': floats(8, 6),
  'b': floats(6),
  'square': floats(5, 5),
  'nested': {'w': floats(2, 8, 6), 'scalar': floats()},
}


def _hparams(params: Any, mesh: bool = True) -> Any:
  def make(x: Any) -> Any:
    splits = ['data', 'mdl', None, None][: x.ndim] if mesh else None
    return base_layer.WeightHParams(
      shape=list(x.shape),
      dtype=x.dtype,
      mesh_shape=[1, 2, 2] if mesh else None,
      tensor_split_dims_mapping=splits,
      init=base_layer.WeightInit.Constant(0.0),
      collections=['_lingvo_jax_skip_regularization'] if x.ndim == 1 else [],
    )

  return jax.tree.map(make, params)


_UNSHARDED = ('Sgd', 'Lamb', 'Lars', 'Adagrad', 'Adafactor')


def _run(optimizer: Any, steps: int = 4) -> Any:
  """Returns updates of every step, the last state and its hparams."""
  hparams = NestedMap.FromNestedDict(_hparams(_PARAMS))
  is_sharded = type(optimizer).__name__ not in _UNSHARDED and getattr(
    optimizer, 'sharded_adam', True
  )
  tx = optimizer.get_grad_transformation(hparams if is_sharded else None)
  params = jax.tree.map(jnp.asarray, NestedMap.FromNestedDict(_PARAMS))
  state = tx.init(params)
  updates = []
  for step in range(steps):
    grads = jax.tree.map(
      lambda x, step=step: jnp.asarray(
        floats(*x.shape, seed=step + 1, scale=0.1 * (step + 1))
      ),
      params,
    )
    update, state = tx.update(grads, state, params)
    params = jax.tree.map(jnp.add, params, update)
    updates.append(update)
  specs = _specs(tx.init_partition_spec(hparams)) if is_sharded else None
  return {'updates': updates, 'state': state, 'specs': specs}


def _specs(declared: Any) -> Any:
  """Returns shapes and shardings in the structure of the state.

  Declarations of chains are in a MaskedState in upstream. Its
  create_state_partition_specs removes it, as is done here.
  """
  is_masked = lambda x: isinstance(x, optax.MaskedState)
  declared = jax.tree.map(
    lambda x: x.inner_state if is_masked(x) else x, declared, is_leaf=is_masked
  )
  return jax.tree.map(
    lambda h: (
      f'{list(h.shape)} {jnp.dtype(h.dtype)} '
      f'{list(h.tensor_split_dims_mapping or ()) or None}'
    ),
    declared,
    is_leaf=lambda x: isinstance(x, base_layer.WeightHParams),
  )


_OPTIMIZERS: dict[str, list[dict[str, Any]]] = {
  'Sgd': [{}, {'momentum': 0.9}, {'momentum': 0.9, 'nesterov': True}],
  'ShardedSgd': [{}, {'momentum': 0.9}, {'momentum': 0.9, 'nesterov': True}],
  'Lamb': [{}, {'weight_decay': 0.1}],
  'Lars': [{}, {'weight_decay': 0.1, 'nesterov': True}],
  'Adagrad': [{}, {'initial_accumulator_value': 0.5}],
  'ShardedAdagrad': [{}],
  'Adam': [
    {},
    {'sharded_adam': False},
    {'beta1': 0.5, 'beta2': 0.9},
    {'epsilon_root': 0.1},
    {'clip_threshold': 0.5},
    {'weight_decay': 0.1},
    {'weight_decay': 0.1, 'sharded_adam': False},
    {'maybe_inf_to_nan': False},
  ],
  'Lion': [
    {},
    {'clip_threshold': 0.5},
    {'weight_decay': 0.1},
    {'m_dtype': jnp.float32},
  ],
  'Adafactor': [
    {},
    {'min_dim_size_to_factor': 4},
    {'momentum': 0.9},
    {'weight_decay_rate': 0.1},
    {'factored': False},
  ],
  'ShardedAdafactor': [
    {'decay_method': 'adam', 'decay_adam': 0.9},
    {'decay_method': 'pow', 'decay_pow': 0.8},
    {'decay_method': 'pow', 'decay_pow': 0.8, 'beta1': 0.9},
    {
      'decay_method': 'pow',
      'decay_pow': 0.8,
      'beta1': 0.9,
      'quantized_dtype': 'bfloat16',
    },
    {
      'decay_method': 'pow',
      'decay_pow': 0.8,
      'beta1': 0.9,
      'quantized_dtype': 'float32',
    },
    {
      'decay_method': 'adam',
      'decay_adam': 0.9,
      'min_dim_size_to_factor': 2,
    },
    {
      'decay_method': 'adam',
      'decay_adam': 0.9,
      'factored': False,
      'clip_threshold': 0.5,
    },
    {
      'decay_method': 'adam',
      'decay_adam': 0.9,
      'multiply_by_parameter_scale': True,
    },
    {'decay_method': 'adam', 'decay_adam': 0.9, 'weight_decay': 0.1},
    {
      'decay_method': 'adam',
      'decay_adam': 0.9,
      'layerwise_adaptation': True,
    },
    {
      'decay_method': 'adam',
      'decay_adam': 0.9,
      'sort_factored_second_moment_dims': True,
      'min_dim_size_to_factor': 2,
    },
    {'decay_method': 'other'},
  ],
}


_COMMON: list[dict[str, Any]] = [
  {'l2_regularizer_weight': 0.1},
  {'l1_regularizer_weight': 0.1},
  {'l2_regularizer_weight': 0.1, 'skip_lp_1d_vectors': True},
  {'decoupled_weight_decay': 0.1},
  {'ema_decay': 0.9},
  {'ewc_regularizer_weight': 0.1},
]


def _optimizers_1() -> Iterator[cases.Case]:
  for name, settings in _OPTIMIZERS.items():
    every = [*settings, *({**settings[0], **c} for c in _COMMON)]
    for index, fields in enumerate(every):

      def updates(name: str = name, fields: dict[str, Any] = fields) -> Any:
        config = getattr(optimizers, name).config(
          learning_rate=0.1,
          lr_schedule=schedules.Linear.config(start=(0, 1.0), limit=(10, 0.5)),
          **fields,
        )
        return _run(base_layer.instantiate(config))

      label = ' '.join(f'{k}={v}' for k, v in fields.items())
      yield cases.FunctionCase(
        name=f'{name}, {index}, {label}', function=updates, tolerance=3e-6
      )


def _optimizers_2() -> Iterator[cases.Case]:
  for steps in (1, 2):

    def accumulated(steps: int = steps) -> Any:
      config = optimizers.ShardedStaticAccumulator.config(
        optimizer_tpl=optimizers.Adam.config(
          learning_rate=0.1, lr_schedule=schedules.Constant.config()
        ),
        num_sub_batches=steps,
        learning_rate=0.1,
        lr_schedule=schedules.Constant.config(),
      )
      return _run(base_layer.instantiate(config))

    yield cases.FunctionCase(
      name=f'ShardedStaticAccumulator, {steps}',
      function=accumulated,
      tolerance=3e-6,
    )


def _losses() -> Iterator[cases.Case]:
  logits = floats(2, 6, 5)
  labels = integers(2, 3, high=4, seed=1) + 1
  pads = cases.paddings([6, 4], 6)
  label_pads = cases.paddings([3, 2], 3)
  yield cases.FunctionCase(
    name='ctc_loss_with_alignments',
    function=lambda: ctc_objectives.ctc_loss_with_alignments(
      jnp.asarray(logits), pads, labels, label_pads
    ),
    tolerance=3e-6,
  )
  yield cases.FunctionCase(
    name='gradient of ctc_loss_with_alignments',
    function=lambda: jax.grad(
      lambda x: ctc_objectives.ctc_loss_with_alignments(
        x, pads, labels, label_pads
      )[0].sum()
    )(jnp.asarray(logits)),
    tolerance=3e-6,
  )
  for name in ('forced_alignment', 'is_valid_ctc_seq'):
    first = (jnp.asarray(logits),) if name == 'forced_alignment' else ()
    yield cases.FunctionCase(
      name=name,
      function=functools.partial(
        getattr(ctc_objectives, name), *first, pads, labels, label_pads
      ),
    )
  one_hot = np.eye(5, dtype=np.float32)[integers(4, high=5)]
  for fields in (
    {},
    {'t1': 0.5, 't2': 1.5},
    {'label_smoothing': 0.1},
    {'t1': 1.0},
  ):
    label = ' '.join(f'{k}={v}' for k, v in fields.items())
    yield cases.layer(
      f'BiTemperedLoss, {label}',
      losses.BiTemperedLoss,
      floats(4, 5),
      one_hot,
      fields=fields,
      variants=(cases.TRAIN, cases.EVAL),
      tolerance=1e-5,
    )


def _learners() -> Iterator[cases.Case]:
  learners = importlib.import_module('paxml.learners')

  grads = jax.tree.map(lambda x: 0.1 * x, NestedMap.FromNestedDict(_PARAMS))
  settings: dict[str, dict[str, Any]] = {
    'plain': {},
    'clip norm': {'optimizer.clip_gradient_norm_to_value': 0.5},
    'clip single norm': {'optimizer.clip_gradient_single_norm_to_value': 0.05},
    'skip step': {'skip_step_gradient_norm_value': 1e-3},
    'no check': {'check_valid_step': False},
    'no vectorization': {'vectorize_on_repeat_prefix': False},
    'norms': {
      'grad_norm_individual_vars': True,
      'var_norm_individual_vars': True,
    },
  }
  for label, fields in settings.items():
    for bad in (False, True):

      def update(fields: dict[str, Any] = fields, bad: bool = bad) -> Any:
        cfg = pax_fiddle.Config(
          learners.Learner,
          name='learner',
          loss_name='loss',
          optimizer=optimizers.Adam.config(
            learning_rate=0.1, lr_schedule=schedules.Constant.config()
          ),
        )
        for path, value in fields.items():
          owner, _, key = path.rpartition('.')
          setattr(getattr(cfg, owner) if owner else cfg, key, value)
        learner = base_layer.instantiate(cfg)
        params = jax.tree.map(jnp.asarray, NestedMap.FromNestedDict(_PARAMS))
        hparams = NestedMap.FromNestedDict(_hparams(_PARAMS))
        tx = learner.get_grad_tx(hparams)
        states = tx.init(params)
        these = grads.copy()
        if bad:
          these.b = these.b * np.nan
        with base_layer.JaxContext.new_context(
          hparams=base_layer.JaxContext.HParams(do_eval=False)
        ):
          transformed, states = learner.update_states(
            these, states, params, hparams
          )
          params = learner.apply_gradient(params, transformed, hparams)
        return params

      yield cases.FunctionCase(
        name=f'Learner, {label}, bad={bad}', function=update, tolerance=3e-6
      )


def _functions() -> Iterator[cases.Case]:
  x = floats(8, 6)
  for name, args in {
    'to_quantized': (x, jnp.int8),
    'reduce_mean': (x,),
    'reduce_rms': (x,),
    'adafactor_decay_rate_adam': (0.9, 3),
    'adafactor_decay_rate_pow': (0.8, 3),
    'to_float': (np.int8([[4, -3]]), np.float32([0.5, 0.25])),
  }.items():
    if hasattr(optimizers, name):
      yield cases.FunctionCase(
        name=name, function=functools.partial(getattr(optimizers, name), *args)
      )


def family() -> Iterator[cases.Case]:
  yield from _schedules()
  yield from _optimizers_1()
  yield from _optimizers_2()
  yield from _losses()
  yield from _learners()
  yield from _functions()
