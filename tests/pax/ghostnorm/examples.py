# SPDX-License-Identifier: Apache-2.0
"""Per-example gradient norms, by a layer and by vmap."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pax import ghostnorm
from praxis import base_layer


def check(config, inputs, twin=None):
  """Holds the norms and gradients of a layer against one example at a time.

  `twin` is the Config of the layer that is not for ghost norms, if any.
  """
  layer = config.Instantiate()
  plain = layer if twin is None else twin.Instantiate()
  variables = jax.jit(layer.init)(jax.random.key(0), *inputs)
  params = jax.tree.map(
    lambda w: w + 0.1 * jnp.arange(w.size, dtype=w.dtype).reshape(w.shape),
    base_layer.maybe_unbox_value(variables['params']),
  )
  if twin is None:
    plain_params = params
  else:
    plain_params = jax.tree.unflatten(
      jax.tree.structure(
        base_layer.maybe_unbox_value(
          jax.eval_shape(plain.init, jax.random.key(0), *inputs)['params']
        )
      ),
      jax.tree.leaves(params),
    )
  examples = jax.tree.leaves(inputs)[0].shape[0]
  scales = jnp.linspace(0.5, 1.5, examples)

  def loss(which, params, *inputs):
    outputs = which.apply({'params': params}, *inputs)
    per_example = jnp.sin(outputs).reshape(outputs.shape[0], -1).sum(axis=1)
    return per_example.mean()

  @jax.jit
  def both(params, plain_params):
    def alone(*inputs):
      one = jax.tree.map(lambda x: x[None], inputs)
      return jax.grad(lambda w: loss(plain, w, *one))(plain_params)

    wrapped = jax.tree.map(lambda w: ghostnorm.ParamWithAux(w, scales), params)
    ghosts = jax.grad(lambda w: loss(layer, w, *inputs))(wrapped)
    unwrapped = jax.grad(lambda w: loss(layer, w, *inputs))(params)
    return ghosts, jax.vmap(alone)(*inputs), unwrapped

  ghosts, each, unwrapped = both(params, plain_params)
  ghosts = jax.tree.leaves(
    ghosts, is_leaf=lambda x: isinstance(x, ghostnorm.ParamWithAux)
  )
  for ghost, grads, usual in zip(
    ghosts, jax.tree.leaves(each), jax.tree.leaves(unwrapped), strict=True
  ):
    flat = np.asarray(grads).reshape(examples, -1)
    want = np.square(flat * scales[:, None]).sum(axis=1)
    np.testing.assert_allclose(ghost.aux, want, rtol=1e-4, atol=1e-6)
    mean = np.tensordot(np.asarray(scales), grads, 1) / examples
    np.testing.assert_allclose(ghost.param, mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
      usual, np.mean(grads, axis=0), rtol=1e-4, atol=1e-6
    )
