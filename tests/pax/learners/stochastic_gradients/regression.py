# SPDX-License-Identifier: Apache-2.0
"""A regression with per-example gradients in closed form."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pax.learners import stochastic_gradients
from praxis import base_layer

ROWS = 8


def batch():
  """Returns rows of very different size, so that some are clipped."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(ROWS, 3)) * np.geomspace(0.1, 3.0, ROWS)[:, None]
  return {
    'x': x.astype(np.float32),
    'y': rng.normal(size=ROWS).astype(np.float32),
  }


def variables():
  return {'params': {'b': jnp.float32(0.5), 'w': jnp.array([1.0, -2.0, 0.5])}}


def loss_fn(variables, others_and_inputs, key):
  """Returns the mean loss; of replicas, this one's share of it."""
  del key
  _, inputs = others_and_inputs
  params = variables['params']
  error = inputs['x'] @ params['w'] + params['b'] - inputs['y']
  loss = 0.5 * jnp.mean(error**2)
  share = 1.0
  if base_layer.is_running_under_pmap():
    share = 1.0 / jax.lax.axis_size('batch')
  return loss * share, stochastic_gradients.GradAuxInfo({'error': error}, share)


def gradients_by_hand():
  """Returns the gradient of each example, [ROWS, 4], the bias first."""
  inputs, params = batch(), variables()['params']
  error = inputs['x'] @ np.asarray(params['w']) + 0.5 - inputs['y']
  return np.concatenate([error[:, None], error[:, None] * inputs['x']], axis=1)


def losses_by_hand():
  return 0.5 * gradients_by_hand()[:, 0] ** 2


def clipped(grads, bound):
  """Returns gradients [N, 4], each at most `bound` long."""
  norms = np.linalg.norm(grads, axis=1, keepdims=True)
  return grads * np.minimum(1.0, bound / norms)


def flat(grads):
  """Returns a gradient as one array, the bias first."""
  params = grads['params']
  return np.concatenate([np.ravel(params['b']), np.ravel(params['w'])])


def run(gradient, seed=0):
  """Returns ((loss, aux), gradients) of the whole batch."""
  return _compiled(gradient)(variables(), batch(), jax.random.key(seed))


def run_on_replicas(gradient, seed=0, loss_fn=loss_fn):
  """Returns (the summed gradients, what was reported by each of 4 replicas)."""
  step = _compiled_on_replicas(gradient, loss_fn)
  return step(variables(), batch(), jax.random.key(seed))


@functools.cache
def _compiled(gradient):
  return jax.jit(
    lambda variables, inputs, key: gradient.grad_fn(
      loss_fn, variables, ({}, inputs), key
    )
  )


@functools.cache
def _compiled_on_replicas(gradient, loss_fn):
  mesh = jax.sharding.Mesh(jax.devices()[:4], ('batch',))
  spec = jax.sharding.PartitionSpec

  def step(variables, inputs, key):
    key = jax.random.fold_in(key, jax.lax.axis_index('batch'))
    (_, aux), grads = gradient.grad_fn(loss_fn, variables, ({}, inputs), key)
    reported = jax.tree.map(lambda x: jnp.asarray(x)[None], aux.dp_aux_info)
    return jax.lax.psum(grads, 'batch'), reported

  return jax.jit(
    jax.shard_map(
      step,
      mesh=mesh,
      in_specs=(spec(), spec('batch'), spec()),
      out_specs=(spec(), spec('batch')),
      check_vma=False,
    )
  )
