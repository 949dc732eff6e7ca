# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Batch and group normalization against numpy; padding does not count."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import normalizations
from tests.praxis.layers import running
from tests.testing import nightly
from tests.testing.layers import random_variables

_PADDINGS = jnp.asarray([[0.0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 1]])
_MUTABLE = [base_layer.NON_TRAINABLE]


def _x():
  return 2.0 * running.normal(3, 4, 8) + 1.0


def _run(layer, variables, *args, do_eval=False):
  context = base_layer.JaxContext.HParams(do_eval=do_eval)
  with base_layer.JaxContext.new_context(hparams=context):
    apply = functools.partial(layer.apply, mutable=_MUTABLE)
    return running.jit(apply)(variables, *args)


def _batch_norm(**fields):
  cfg = normalizations.BatchNorm.config(dim=8, decay=0.9, **fields)
  layer = cfg.Instantiate()
  variables = random_variables(layer, _x(), _PADDINGS)
  moving = variables[base_layer.NON_TRAINABLE]
  moving['moving_variance'] = jnp.abs(moving['moving_variance']) + 1.0
  return layer, variables


def _valid(x):
  return np.asarray(x, np.float64)[np.asarray(_PADDINGS) == 0]


def test_batch_norm_trains_by_the_moments_of_the_batch():
  layer, variables = _batch_norm()
  x = _x()
  y, updated = _run(layer, variables, x, _PADDINGS)
  params = jax.tree.map(np.asarray, variables['params'])
  mean, variance = _valid(x).mean(0), _valid(x).var(0)
  want = (_valid(x) - mean) / np.sqrt(variance + 1e-3)
  want = want * (1 + params['gamma']) + params['beta']
  np.testing.assert_allclose(_valid(y), want, atol=1e-5)
  np.testing.assert_array_equal(y[np.asarray(_PADDINGS) == 1], 0)
  old, new = variables['non_trainable'], updated['non_trainable']
  for name, value in (('moving_mean', mean), ('moving_variance', variance)):
    np.testing.assert_allclose(
      new[name], 0.9 * np.asarray(old[name]) + 0.1 * value, atol=1e-5
    )


@pytest.mark.parametrize('force', [True, False])
def test_batch_norm_evaluates_by_moving_averages(force):
  layer, variables = _batch_norm(
    force_eval_mode=force, set_padded_output_to_zero=False
  )
  x = _x()
  y, updated = _run(layer, variables, x, do_eval=not force)
  both = jax.tree.map(np.asarray, variables)
  moving, params = both['non_trainable'], both['params']
  want = (x - moving['moving_mean']) / np.sqrt(
    moving['moving_variance'] + 1e-3
  ) * (1 + params['gamma']) + params['beta']
  np.testing.assert_allclose(y, want, atol=1e-5)
  jax.tree.map(np.testing.assert_array_equal, updated['non_trainable'], moving)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_batch_norm_evaluates_to_bfloat16_with_float32_averages(dtype):
  layer, variables = _batch_norm(fprop_dtype=jnp.bfloat16)
  params = jax.tree.map(lambda x: x.astype(dtype), variables['params'])
  x = _x().astype(jnp.bfloat16)
  y, updated = _run(layer, {**variables, 'params': params}, x, do_eval=True)
  assert y.dtype == jnp.bfloat16
  assert updated['non_trainable']['moving_mean'].dtype == jnp.float32


def test_batch_norm_by_moving_averages_in_training():
  layer, variables = _batch_norm(use_moving_avg_in_training=True)
  y, updated = _run(layer, variables, _x())
  moving = updated['non_trainable']
  want = (_x() - moving['moving_mean']) / np.sqrt(
    np.asarray(moving['moving_variance']) + 1e-3
  )
  np.testing.assert_allclose(y, want, atol=1e-5)
  old = variables['non_trainable']['moving_mean']
  assert (moving['moving_mean'] != old).all()


def test_batch_norm_counts_replicas_as_one_batch():
  layer, variables = _batch_norm()
  x, mark = running.normal(4, 2, 8), running.normal(4, 2, 8, seed=3)
  paddings = jnp.zeros((4, 2)).at[3, 1].set(1.0)

  def train(variables, x, paddings, mark):
    """Output, new averages, and the gradient by weights and inputs."""

    def loss(variables, x):
      y, updated = layer.apply(variables, x, paddings, mutable=_MUTABLE)
      return jnp.sum(y * mark), (y, updated)

    grad = jax.grad(loss, (0, 1), has_aux=True)
    (by_variable, by_input), (y, updated) = grad(variables, x)
    return y, by_input, updated, by_variable['params']

  want = running.jit(train)(variables, x, paddings, mark)
  spec, axis = jax.sharding.PartitionSpec, base_layer.PMAP_PARALLEL_AXIS_NAME

  def replica(*args):
    y, by_input, updated, by_weight = train(*args)
    return y, by_input, updated, jax.lax.psum(by_weight, axis)

  mesh = jax.make_mesh(
    (4,),
    (axis,),
    axis_types=(jax.sharding.AxisType.Auto,),
    devices=jax.devices()[:4],
  )
  by_replica = jax.shard_map(
    replica,
    mesh=mesh,
    in_specs=(spec(), spec(axis), spec(axis), spec(axis)),
    out_specs=(spec(axis), spec(axis), spec(), spec()),
    check_vma=False,
  )
  got = running.jit(by_replica)(variables, x, paddings, mark)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, atol=1e-5), got, want
  )


def test_batch_norm_variables():
  layer, _ = _batch_norm()
  tree = layer.abstract_init_with_metadata(_x())
  for hparams in tree['non_trainable'].values():
    assert base_layer.var_requires_mean_sync(hparams)
    assert base_layer.var_disallow_bfloat16_conversion(hparams)
  start = running.jit(layer.init)(jax.random.key(0), _x())
  np.testing.assert_array_equal(start['params']['gamma'], 0)
  np.testing.assert_array_equal(start['non_trainable']['moving_variance'], 1)


def _group_norm(**fields):
  fields = {'dim': 8, 'num_groups': 2, 'input_rank': 3} | fields
  layer = normalizations.GroupNorm.config(**fields).Instantiate()
  x = jnp.zeros((2, 3, 2, 2, 8)[: fields['input_rank'] - 1] + (8,))
  return layer, random_variables(layer, x)


def _normed(x):
  return (x - x.mean()) / np.sqrt(x.var() + 1e-3)


def _scaled(y, variables):
  params = jax.tree.map(np.ravel, variables['params'])
  return y * (1 + params['gamma']) + params['beta']


@pytest.mark.parametrize('shape', [(2, 3, 8), (2, 3, 2, 8), (2, 3, 2, 2, 8)])
def test_group_norm(shape):
  layer, variables = _group_norm(input_rank=len(shape))
  x = running.normal(*shape)
  y, _ = _run(layer, variables, x)
  x = np.asarray(x, np.float64)
  want = np.empty_like(x)
  for example in range(2):
    for group in (slice(0, 4), slice(4, 8)):
      part = (example, ..., group)
      want[part] = _normed(x[part])
  np.testing.assert_allclose(y, _scaled(want, variables), atol=1e-5)


def test_group_norm_leaves_padding_out():
  layer, variables = _group_norm()
  y, _ = _run(layer, variables, _x(), _PADDINGS)
  np.testing.assert_array_equal(y[np.asarray(_PADDINGS) == 1], 0)
  short, _ = _run(layer, variables, _x()[1:2, :3])
  np.testing.assert_allclose(y[1, :3], short[0], atol=1e-5)


def test_cumulative_group_norm_sees_no_later_step():
  layer, variables = _group_norm(cumulative=True)
  x = _x()
  y, _ = _run(layer, variables, x)
  changed, _ = _run(layer, variables, x.at[:, 2].add(1.0))
  np.testing.assert_array_equal(y[:, :2], changed[:, :2])
  x = np.asarray(x, np.float64)
  first = np.concatenate([_normed(x[0, 0, :4]), _normed(x[0, 0, 4:])])
  np.testing.assert_allclose(y[0, 0], _scaled(first, variables), atol=1e-5)


def test_small_groups_are_enlarged():
  layer, variables = _group_norm(
    num_groups=8, min_group_size=4, use_scale=False, use_bias=False
  )
  assert not jax.tree.leaves(variables)
  two, _ = _group_norm(use_scale=False, use_bias=False)
  np.testing.assert_array_equal(
    _run(layer, {}, _x())[0], _run(two, {}, _x())[0]
  )


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'input_rank': 2}, 'input_rank must be 3, 4 or 5, got 2'),
    ({'min_group_size': 3, 'num_groups': 8}, 'multiple of the group size 3'),
    ({'num_groups': 3}, 'num_groups must be positive and divide dim 8, got 3'),
    ({'num_groups': 0}, 'num_groups must be positive and divide dim 8, got 0'),
  ],
)
def test_group_norm_errors(fields, message):
  with pytest.raises(ValueError, match=message):
    _group_norm(**fields)


@pytest.mark.parametrize('decay', [-0.1, 1.5])
def test_batch_norm_refuses_a_decay_that_is_no_share(decay):
  cfg = normalizations.BatchNorm.config(dim=8, decay=decay)
  with pytest.raises(ValueError, match=r'decay of BatchNorm .* in \[0, 1\]'):
    cfg.Instantiate().init(jax.random.key(0), _x(), _PADDINGS)


@pytest.mark.parametrize(
  ('cls', 'fprop_dtype', 'dtype'),
  nightly.except_for(
    [
      (cls, *dtypes)
      for cls in ('BatchNorm', 'GroupNorm')
      for dtypes in itertools.permutations([jnp.float32, jnp.bfloat16])
    ],
    itertools.product(
      ('BatchNorm', 'GroupNorm'), *[(jnp.float32, jnp.bfloat16)] * 2
    ),
  ),
)
def test_outputs_have_fprop_dtype(cls, fprop_dtype, dtype):
  fields = {'num_groups': 2, 'input_rank': 3} if cls == 'GroupNorm' else {}
  cfg = getattr(normalizations, cls).config(
    dim=8, fprop_dtype=fprop_dtype, **fields
  )
  layer, variables = running.build(cfg, _x())
  got = running.run(layer, variables, _x().astype(dtype), _PADDINGS)
  assert got.dtype == fprop_dtype
  if fprop_dtype == jnp.float32:
    # Computed in float32, not rounded to the dtype of the inputs.
    x = _x().astype(dtype).astype(jnp.float32)
    want = running.run(layer, variables, x, _PADDINGS)
    np.testing.assert_array_equal(got, want)


def test_moments_and_their_averages_are_summaries() -> None:
  layer = base_layer.instantiate(normalizations.BatchNorm.config(dim=3))
  x = jnp.arange(12.0).reshape(4, 3)
  hparams = base_layer.JaxContext.HParams(do_eval=False, summary_verbosity=4)
  with base_layer.JaxContext.new_context(hparams=hparams):
    variables = layer.init(jax.random.key(0), x)
    _, updated = layer.apply(variables, x, mutable=True)
  summaries = updated['summaries']
  np.testing.assert_allclose(summaries['mean_scalar'], x.mean(0))
  np.testing.assert_allclose(summaries['variance_scalar'], x.var(0))
  moving = updated['non_trainable']
  for name in ('moving_mean', 'moving_variance'):
    np.testing.assert_array_equal(summaries[f'{name}_scalar'], moving[name])


def test_subclasses_get_moments_beta_and_scale() -> None:
  class Centered(normalizations.BatchNorm):
    def __call__(self, inputs, paddings=None):
      mean, _, beta, scale = self.compute_and_update_moments(
        inputs, jnp.zeros_like(inputs[..., :1])
      )
      return (inputs - mean) * scale + beta

  layer = base_layer.instantiate(Centered.config(dim=3))
  x = jnp.arange(12.0).reshape(4, 3)
  hparams = base_layer.JaxContext.HParams(do_eval=False)
  with base_layer.JaxContext.new_context(hparams=hparams):
    variables = layer.init(jax.random.key(0), x)
    outputs, _ = layer.apply(variables, x, mutable=True)
  np.testing.assert_allclose(outputs, x - x.mean(0))
