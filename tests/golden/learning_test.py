# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: size=medium
"""Weights after some steps of each optimizer, and rates of each schedule.

    UPDATE_GOLDEN=1 pytest tests/golden/learning_test.py    # accepts them

The problem is a quadratic one, so that rounding does not grow.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from praxis import base_layer, optimizers, schedules

_FOLDER = pathlib.Path(__file__).parent / 'learning'
_RATE_STEPS = (0, 1, 5, 10, 20, 40, 100)
_WEIGHT_STEPS = (1, 2, 5, 20)

_RAMPUP = dict(
  max=1.0, warmup_steps=10, decay_start=20, decay_end=100, min_ratio=0.1
)
SCHEDULES = {
  'Constant': schedules.Constant.config(value=0.5),
  'ContinuousSchedule': schedules.ContinuousSchedule.config(
    start_step=10, half_life_steps=20, min=0.05
  ),
  'Cosine': schedules.Cosine.config(total_steps=40),
  'CycleSchedule': schedules.CycleSchedule.config(
    schedules=[
      schedules.Constant.config(value=1.0),
      schedules.Constant.config(value=2.0),
    ],
    steps=[4, 3],
  ),
  'DelayedCosine': schedules.DelayedCosine.config(
    start=(10, 1.0), limit=(40, 0.1)
  ),
  'Exponential': schedules.Exponential.config(start=(5, 1.0), limit=(40, 0.1)),
  'Linear': schedules.Linear.config(start=(5, 1.0), limit=(40, 0.1)),
  'LinearRampupCosineDecay': schedules.LinearRampupCosineDecay.config(
    **_RAMPUP
  ),
  'LinearRampupExponentialDecay': (
    schedules.LinearRampupExponentialDecay.config(**_RAMPUP)
  ),
  'LinearRampupPiecewiseConstant': (
    schedules.LinearRampupPiecewiseConstant.config(
      boundaries=[10, 40], values=[1.0, 0.1]
    )
  ),
  'LinearRampupPolynomialDecay': (
    schedules.LinearRampupPolynomialDecay.config(power=2, **_RAMPUP)
  ),
  'LinearRampupSqrtDecay': schedules.LinearRampupSqrtDecay.config(
    peak=0.5, warmup_steps=10
  ),
  'PiecewiseConstant': schedules.PiecewiseConstant.config(
    boundaries=[5, 20], values=[1.0, 0.1, 0.01]
  ),
  'PiecewiseSchedule': schedules.PiecewiseSchedule.config(
    boundaries=[10],
    schedules=[
      schedules.Linear.config(start=(0, 0.0), limit=(10, 1.0)),
      schedules.Linear.config(start=(0, 1.0), limit=(90, 0.0)),
    ],
  ),
  'Polynomial': schedules.Polynomial.config(
    power=3, start=(5, 1.0), limit=(40, 0.1), origin='limit'
  ),
  'SqrtDecay': schedules.SqrtDecay.config(decay_start=10, multiplier=2.0),
  'Transformer': schedules.Transformer.config(warmup_steps=10, model_dim=16),
}

_SHAMPOO = dict(
  block_size=4,
  matrix_epsilon=1e-2,
  start_preconditioning_step=2,
  preconditioning_compute_steps=2,
)
OPTIMIZERS = {
  'Adafactor': optimizers.Adafactor.config(min_dim_size_to_factor=2),
  'Adagrad': optimizers.Adagrad.config(),
  'Adam': optimizers.Adam.config(),
  'Adam.HParamsA': optimizers.Adam.HParamsA(),
  'Adam.HParamsB': optimizers.Adam.HParamsB(),
  'Adam.optax': optimizers.Adam.config(sharded_adam=False),
  'DistributedShampoo': optimizers.DistributedShampoo.config(**_SHAMPOO),
  'DistributedShampoo.image': (
    optimizers.DistributedShampoo.HParamsImageClassification().set(**_SHAMPOO)
  ),
  'DistributedShampoo.language': (
    optimizers.DistributedShampoo.HParamsLanguageModeling().set(**_SHAMPOO)
  ),
  'Lamb': optimizers.Lamb.config(weight_decay=0.01),
  'Lars': optimizers.Lars.config(trust_coefficient=0.1),
  'Lion': optimizers.Lion.config(m_dtype=jnp.float32),
  'Muon': optimizers.Muon.config(),
  'OptaxOptimizer': optimizers.OptaxOptimizer.config(
    grad_tx=optax.rmsprop(0.05)
  ),
  'Sgd': optimizers.Sgd.config(),
  'ShardedAdafactor.adam': optimizers.ShardedAdafactor.HParamsAdamB(),
  'ShardedAdafactor.pow': optimizers.ShardedAdafactor.config(
    decay_method='pow', decay_pow=0.8, multiply_by_parameter_scale=True
  ),
  'ShardedAdagrad': optimizers.ShardedAdagrad.config(),
  'ShardedDistributedShampoo': optimizers.ShardedDistributedShampoo.config(
    **_SHAMPOO
  ),
  'ShardedSgd': optimizers.ShardedSgd.config(momentum=0.9, nesterov=True),
  'ShardedStaticAccumulator': optimizers.ShardedStaticAccumulator.config(
    optimizer_tpl=optimizers.Adam.config(), num_sub_batches=2
  ),
}


def _rates(config) -> Iterator[list[float]]:
  schedule = config.Instantiate()
  yield [float(schedule.value_at(step)) for step in _RATE_STEPS]


def _weights(config) -> Iterator[list[float]]:
  """Yields the weights after some steps towards a matrix of waves."""
  optimizer = config.clone().set(
    learning_rate=0.05,
    lr_schedule=SCHEDULES['LinearRampupCosineDecay'],
    decoupled_weight_decay=0.01,
  )
  hparams = {
    'b': base_layer.WeightHParams([3], dtype=jnp.float32),
    'w': base_layer.WeightHParams([2, 3], dtype=jnp.float32),
  }
  tx = optimizer.Instantiate().get_grad_transformation(hparams)
  start = jax.tree.map(
    lambda hp: jnp.cos(jnp.arange(1.0, 1 + np.prod(hp.shape))).reshape(
      hp.shape
    ),
    hparams,
  )

  def one(carry, _):
    params, state = carry
    grads = jax.tree.map(lambda w: w - jnp.sin(7 * w.size + w) / 3, params)
    updates, state = tx.update(grads, state, params)
    params = jax.tree.map(jnp.add, params, updates)
    flat = jnp.concatenate([params['b'], params['w'].ravel()])
    return (params, state), flat

  run = jax.jit(
    lambda params: jax.lax.scan(
      one, (params, tx.init(params)), length=max(_WEIGHT_STEPS)
    )[1],
    compiler_options={'xla_backend_optimization_level': 0},
  )
  every = np.asarray(run(start))
  for step in _WEIGHT_STEPS:
    yield every[step - 1].tolist()


_PARTS = {
  'schedules': (SCHEDULES, _rates),
  'optimizers': (OPTIMIZERS, _weights),
}


def _golden(part: str) -> dict[str, list[list[float]]]:
  rows: dict[str, list[list[float]]] = {}
  for line in (_FOLDER / f'{part}.txt').read_text().splitlines():
    name, _, numbers = line.partition(' : ')
    rows.setdefault(name, []).append([float(x) for x in numbers.split()])
  return rows


def _update(part: str) -> None:
  configs, numbers_of = _PARTS[part]
  lines = [
    f'{name} : ' + ' '.join(f'{x:.5g}' for x in row)
    for name, config in configs.items()
    for row in numbers_of(config)
  ]
  (_FOLDER / f'{part}.txt').write_text('\n'.join(lines) + '\n')


@pytest.mark.parametrize('part', _PARTS)
def test_every_one_has_its_numbers(part):
  if os.environ.get('UPDATE_GOLDEN'):
    _update(part)
  assert set(_golden(part)) == set(_PARTS[part][0])


@pytest.mark.parametrize('name', SCHEDULES)
def test_schedule(name):
  got = list(_rates(SCHEDULES[name]))
  np.testing.assert_allclose(got, _golden('schedules')[name], rtol=1e-4)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_optimizer(name):
  got = list(_weights(OPTIMIZERS[name]))
  want = _golden('optimizers')[name]
  np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_no_class_is_forgotten():
  for module, configs in ((schedules, SCHEDULES), (optimizers, OPTIMIZERS)):
    base = getattr(module, 'BaseSchedule', None) or module.BaseOptimizer
    classes = {
      name
      for name in module.__all__
      if isinstance(getattr(module, name), type)
      and issubclass(getattr(module, name), base)
      and getattr(module, name) is not base
    }
    assert classes == {name.partition('.')[0] for name in configs}
