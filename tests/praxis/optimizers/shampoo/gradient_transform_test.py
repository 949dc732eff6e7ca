# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Twenty steps of Shampoo against a twin in numpy; how its state lies."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import optimizers
from praxis.optimizers import prefix_vectorization, shampoo
from tests.praxis.optimizers import problem

Graft = shampoo.GraftingType
EPSILON = 1e-3
DEFAULTS = dict(
  block_size=4,
  beta1=0.9,
  beta2=0.95,
  matrix_epsilon=EPSILON,
  diagonal_epsilon=1e-8,
  merge_small_dims_block_size=4,
  start_preconditioning_step=5,
  preconditioning_compute_steps=1,
)
CASES = {
  # Less momentum, or rounding would grow: the gradients are waves.
  'sgd': dict(graft_type=Graft.SGD, beta1=0.5),
  'adagrad': dict(
    graft_type=Graft.ADAGRAD,
    preconditioning_compute_steps=3,
    statistics_compute_steps=2,
    weight_decay=0.1,
  ),
  'rmsprop': dict(
    graft_type=Graft.RMSPROP,
    nesterov=False,
    moving_average_for_momentum=True,
    clip_by_scaled_gradient_norm=0.5,
    weight_decay=0.1,
    decoupled_weight_decay_from_momentum=False,
  ),
  'normalized': dict(
    graft_type=Graft.RMSPROP_NORMALIZED,
    decoupled_learning_rate_from_momentum=True,
    weight_decay=0.1,
    eigh=True,
  ),
  'sums': dict(
    graft_type=Graft.ADAGRAD_NORMALIZED,
    beta2=1.0,
    exponent_override=3,
  ),
  'compressed': dict(
    graft_type=Graft.SGD,
    beta1=0.5,
    compression_rank=1,
  ),
  # Its matrices are small, and so left as they are.
  'deflated': dict(graft_type=Graft.SGD, beta1=0.5, lobpcg_topk_precondition=1),
  'signs': dict(graft_type=Graft.SQRT_N, skip_preconditioning_rank_lt=2),
  'large_dims_skipped': dict(
    graft_type=Graft.SGD, beta1=0.5, skip_preconditioning_dim_size_gt=5
  ),
}


def _root(matrix, power, rank):
  values, vectors = np.linalg.eigh(matrix)
  if 0 < rank < len(values) - 1:
    values[:-rank] = values[:-rank].mean()
  damped = np.maximum(values, 0) + EPSILON * max(values[-1], 1e-6)
  return (vectors * damped ** (-1.0 / power)) @ vectors.T


def _blocks(shape, size):
  """Yields the slices of each block."""
  pieces = [[slice(i, i + size) for i in range(0, n, size)] for n in shape]
  return itertools.product(*pieces)


def _precondition(hp, step, g, memory, *, late):
  """Returns the preconditioned gradient, block by block."""
  out = np.zeros_like(g)
  power = hp.get('exponent_override') or 2 * g.ndim
  for where in _blocks(g.shape, hp['block_size']):
    block = g[where]
    for axis in range(g.ndim):
      key = (str(where), axis)
      others = [i for i in range(g.ndim) if i != axis]
      n = g[where].shape[axis]
      stat, root = memory.get(key, (EPSILON * np.eye(n), np.eye(n)))
      if step % hp.get('statistics_compute_steps', 1) == 0:
        new = 1.0 if hp['beta2'] == 1.0 else 1 - hp['beta2']
        gram = np.tensordot(g[where], g[where], (others, others))
        stat = hp['beta2'] * stat + new * gram
      used = root
      if step % hp['preconditioning_compute_steps'] == 0:
        root = _root(stat, power, hp.get('compression_rank', 0))
      memory[key] = stat, root
      used = used if late else root
      block = np.moveaxis(np.tensordot(used, block, (1, axis)), 0, axis)
    out[where] = block
  return out


def _graft(hp, g, memory):
  kind = hp['graft_type']
  if kind == Graft.SGD:
    return g
  if kind == Graft.SQRT_N:
    return np.sign(g)
  if 'NORMALIZED' in kind.name:
    g = g / np.linalg.norm(g)
  squares = memory.get('squares', 0.0)
  if 'ADAGRAD' in kind.name:
    memory['squares'] = squares + g**2
  else:
    memory['squares'] = hp['beta2'] * squares + (1 - hp['beta2']) * g**2
  update = g / (np.sqrt(memory['squares']) + hp['diagonal_epsilon'])
  limit = hp.get('clip_by_scaled_gradient_norm')
  rms = np.sqrt(np.mean(update**2))
  return update / max(1.0, rms / limit) if limit else update


def _twin(late=False, **hp):
  hp = {**DEFAULTS, **hp}
  b1 = hp['beta1']
  new = 1 - b1 if hp.get('moving_average_for_momentum') else 1.0
  late_lr = hp.get('decoupled_learning_rate_from_momentum', False)
  apart = hp.get('decoupled_weight_decay_from_momentum', True)

  def rule(step, g, w, memory):
    lr = float(problem.lr(step))
    simple = _graft(hp, g, memory) * (1.0 if late_lr else lr)
    skipped = g.ndim < hp.get('skip_preconditioning_rank_lt', 1) or max(
      g.shape
    ) > hp.get('skip_preconditioning_dim_size_gt', 4096)
    full = simple
    if not skipped:
      full = _precondition(hp, step, g, memory, late=late)
    full = full * np.linalg.norm(simple) / (np.linalg.norm(full) + 1e-16)
    decay = hp.get('weight_decay', 0.0) * w
    if not apart:
      simple, full = simple + decay, full + decay
    memory['m'] = b1 * memory.get('m', 0.0) + new * full
    memory['d'] = b1 * memory.get('d', 0.0) + new * simple
    running = step >= hp['start_preconditioning_step']
    out = memory['m'] if running else memory['d']
    if hp.get('nesterov', True):
      out = new * (full if running else simple) + b1 * out
    out = lr * out if late_lr else out
    return -(out + lr * decay) if apart else -out

  return rule


def _config(cls=optimizers.DistributedShampoo, **fields):
  return cls.config(**{**DEFAULTS, **fields})


@pytest.mark.parametrize('name', CASES)
def test_same_as_the_twin(name):
  # Matrices of several sizes, and a vector; others are compiled soon.
  params = problem.variables() if name in ('sgd', 'signs') else _few()
  got, _ = problem.run(problem.tx_of(_config(**CASES[name])), params)
  want = problem.run_numpy(_twin(**CASES[name]), params)
  problem.assert_close(got, want)


def test_sharded_uses_the_roots_of_the_step_before():
  params = problem.variables()
  case = dict(graft_type=Graft.ADAGRAD, beta1=0.5)
  config = _config(optimizers.ShardedDistributedShampoo, **case)
  got, state = problem.run(problem.tx_of(config), params)
  want = problem.run_numpy(_twin(late=True, **case), params)
  problem.assert_close(got, want)
  # Blocks of [4, 6] are [4, 4] and [4, 2]; of [6], [4] and [2]; of [3, 2] one.
  shapes = {key: x.values.shape[0] for key, x in state[2].statistics.items()}
  assert shapes == {'s2p2': 1, 's2p4': 2, 's3p4': 1, 's4p2': 1, 's4p4': 3}


def _few():
  """Returns variables whose matrices are of one size, and so soon compiled."""
  rng = np.random.default_rng(0)
  shapes = {'w': (4, 4), 'v': (4, 8)}
  return {k: rng.normal(size=x).astype(np.float32) for k, x in shapes.items()}


def test_less_memory_is_nearly_as_good():
  params = {**_few(), 'b': np.ones(4, np.float32)}
  config = _config(graft_type=Graft.RMSPROP)
  want, _ = problem.run(problem.tx_of(config), params, steps=8)
  small = config.set(best_effort_memory_usage_reduction=True)
  got, state = problem.run(problem.tx_of(small), params, steps=8)
  raw = state[2]
  assert raw.momentum['w'].values.dtype == jnp.int8
  assert raw.momentum['b'].values.dtype == jnp.float32
  assert raw.statistics.s4p4.values.dtype == jnp.int16
  problem.assert_close(got, want, rtol=0.05, atol=0.05)


def test_a_failed_root_is_not_used():
  params = _few()
  tx = problem.tx_of(_config(inverse_failure_threshold=0.0))
  state = tx.init(params)
  _, new = problem.jit(tx.update)(problem.gradients(params, 0), state, params)
  for old, now in zip(
    jax.tree.leaves(state[2].preconditioners),
    jax.tree.leaves(new[2].preconditioners),
    strict=True,
  ):
    np.testing.assert_array_equal(old, now)


def test_errors_of_roots_are_kept_to_be_shown():
  params = _few()
  tx = problem.tx_of(_config(preconditioning_compute_steps=4))
  update = problem.jit(tx.update)
  _, state = update(problem.gradients(params, 0), tx.init(params), params)
  shown = state[2].summaries.inverse_pth_root_errors
  assert {name: len(x) for name, x in shown.items()} == {'w': 2, 'v': 4}
  assert np.all((shown['w'] > 0) & (shown['w'] < 1e-3))
  _, state = update(problem.gradients(params, 1), state, params)
  kept = state[2].summaries.inverse_pth_root_errors
  jax.tree.map(np.testing.assert_array_equal, kept, shown)
  silent = problem.tx_of(_config(summarize_training_metrics=False))
  assert not silent.init(params)[2].summaries


def test_stacked_layers_are_each_alone():
  hparams = {'w': problem.weight([4, 2], repeat_prefix=[3])}
  vectorize = (
    prefix_vectorization.get_transformations_with_vectorized_repeat_prefix
  )
  config = _config(preconditioning_compute_steps=2).set(
    learning_rate=1.0, lr_schedule=problem.SCHEDULE
  )
  optimizer = config.Instantiate()
  stacked = vectorize(optimizer.get_grad_transformation, hparams)
  alone = optimizer.get_grad_transformation()
  rng = np.random.default_rng(0)
  layers = rng.normal(size=(3, 4, 2)).astype(np.float32)
  got, _ = problem.run(stacked, {'w': layers}, steps=8)
  want, _ = problem.run(alone, {'w': layers[1]}, steps=8)
  np.testing.assert_allclose(got['w'][1], want['w'], rtol=2e-3, atol=1e-4)


def test_replicas_share_the_work():
  config = _config(learning_rate=1.0, lr_schedule=problem.SCHEDULE)
  tx = config.Instantiate().get_grad_transformation()
  params = _few()
  grads = problem.gradients(params, 0)
  state = tx.init(params)
  want = problem.jit(tx.update)(grads, state, params)
  mesh = jax.sharding.Mesh(jax.devices()[:4], ('batch',))
  spec = jax.sharding.PartitionSpec()
  shared = problem.jit(
    jax.shard_map(
      tx.update, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
  )
  got = shared(grads, state, params)
  problem.assert_close(got, want, rtol=1e-3, atol=1e-3)
  assert 'all-gather' in shared.lower(grads, state, params).compile().as_text()


def test_devices_of_a_mesh_share_the_roots():
  params = _few()
  grads = problem.gradients(params, 0)
  names = ('replica', 'data', 'mdl')

  def run(mesh_shape):
    config = _config(
      optimizers.ShardedDistributedShampoo,
      learning_rate=1.0,
      lr_schedule=problem.SCHEDULE,
      mesh_axis_names=names,
      tensor_split_dims_mapping=[-1, 1, 2],
      tensor_split_dims_mapping_for_inverse_pth_root=[1, -1, 2],
    )
    hparams = {
      k: problem.weight(list(v.shape), mesh_shape=mesh_shape)
      for k, v in params.items()
    }
    tx = config.Instantiate().get_grad_transformation(hparams)
    mesh = jax.make_mesh(
      mesh_shape,
      names,
      devices=jax.devices()[: mesh_shape[1]],
      axis_types=(jax.sharding.AxisType.Auto,) * 3,
    )
    with jax.set_mesh(mesh):
      return problem.jit(tx.update)(grads, tx.init(params), params)

  got, want = jax.device_get((run((1, 4, 1)), run((1, 1, 1))))
  # Four devices compute the roots of six matrices.
  assert got[1][2].preconditioners.s4p4.values.shape == (6, 4, 4)
  problem.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_compressed_preconditioners_take_less_memory():
  tx = problem.tx_of(_config(compression_rank=1))
  state = tx.init(_few())[2]
  assert state.statistics.s4p4.values.shape[1:] == (4, 4)
  assert state.preconditioners.s4p4.values.shape[1:] == (4, 2)
  specs = tx.init_partition_spec(
    {k: problem.weight(list(v.shape)) for k, v in _few().items()}
  )
  assert jax.tree.structure(specs[2].preconditioners) == jax.tree.structure(
    state.preconditioners
  )
