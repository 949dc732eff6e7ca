# SPDX-License-Identifier: Apache-2.0
"""Muon: orthogonalized momentum for matrices, and Adam for the rest."""

from __future__ import annotations

import collections
import functools
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from praxis import base_layer, py_utils, value_domains, weight_matrices
from praxis.nested_map import NestedMap
from praxis.optimizers import (
  adam,
  base_optimizer,
  sharded_transforms,
  update_math,
)
from praxis.pytypes import JTensor, Nested

_Hparams = Nested[base_layer.WeightHParams]

# Of x, x x^T x and (x x^T)^2 x in a step of the iteration (Jordan et al.). Five
# steps map the singular values from 0.002 to 1 to values from 0.68 to 1.21.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(base_optimizer.BaseOptimizer):
  """Momentum whose matrices are orthogonalized by Newton-Schulz iterations.

  An update of a matrix [m, n] has the RMS `consistent_rms`, about that of Adam,
  so that both take one learning rate. Adam updates embeddings, logits, biases
  and variables of one dimension. Weight decay is `decoupled_weight_decay`.

  The matrix of a weight is [fan-in, fan-out] of its WeightHParams, whose other
  dimensions, such as experts and repeated layers, count matrices.

  References:
    Jordan et al., https://kellerjordan.github.io/posts/muon
    Liu et al., https://arxiv.org/abs/2502.16982
  """

  # Decay of the momentum.
  beta: float = value_domains.field(0.95, ge=0.0, lt=1.0)
  # Whether the gradient is mixed into the momentum once more.
  nesterov: bool = True
  newton_schulz_steps: int = value_domains.field(5, ge=1)
  # RMS of the update of an orthogonalized matrix, before the learning rate.
  consistent_rms: float = value_domains.field(0.2, gt=0.0)
  # Added to the norm of the momentum.
  epsilon: float = 1e-8
  # Storage dtype of the momentum.
  m_dtype: Any = jnp.float32
  # Matches, at the start of their paths, the variables of Adam besides those of
  # one dimension.
  adam_regex: str = r'.*(emb|softmax|logits|bias)|.*/(b|bi_\w+|bo)$'
  adam_beta1: float = value_domains.field(0.9, ge=0.0, lt=1.0)
  adam_beta2: float = value_domains.field(0.95, ge=0.0, lt=1.0)
  adam_epsilon: float = 1e-8

  def _get_raw_grad_transformation(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
  ) -> sharded_transforms.GradientTransformation:
    hparams = self._var_weight_hparams
    if hparams is None:
      raise ValueError(
        'Muon needs to know which variables are matrices; pass'
        ' var_weight_hparams to get_grad_transformation'
      )
    is_matrix = py_utils.map_with_path(self._is_matrix, hparams)
    adam_hyperparams = adam.AdamHyperparams(
      beta1=self.adam_beta1,
      beta2=self.adam_beta2,
      epsilon=self.adam_epsilon,
    )
    return sharded_transforms.sharded_chain(
      sharded_transforms.masked_transformation(
        self._matrix_transform(learning_rate_fn, hparams), is_matrix
      ),
      sharded_transforms.masked_transformation(
        adam.adam_transform(learning_rate_fn, adam_hyperparams),
        jax.tree.map(lambda x: not x, is_matrix),
      ),
    )

  def _is_matrix(self, path: str, hparams: base_layer.WeightHParams) -> bool:
    return len(hparams.shape) > 1 and not re.match(self.adam_regex, path)

  def _matrix_transform(
    self,
    learning_rate_fn: sharded_transforms.LearningRateFn,
    hparams: _Hparams,
  ) -> sharded_transforms.ShardedGradientTransformation:
    axes = {
      path: weight_matrices.matrix_axes(hp)
      for path, hp in py_utils.tree_paths(hparams)
    }

    def init(params: Nested[JTensor]) -> sharded_transforms.State:
      m = jax.tree.map(lambda w: jnp.zeros_like(w, self.m_dtype), params)
      return NestedMap(count=jnp.zeros([], jnp.int32), m=m)

    def update(
      grads: Nested[JTensor],
      state: sharded_transforms.State,
      params: Nested[JTensor] | None = None,
    ) -> tuple[Nested[JTensor], sharded_transforms.State]:
      del params
      lr = learning_rate_fn(state.count)
      mix = functools.partial(update_math.moving_average, decay=self.beta)
      m = jax.tree.map(lambda g, m: mix(m.astype(g.dtype), g), grads, state.m)
      steps = jax.tree.map(mix, m, grads) if self.nesterov else m
      directions = self._directions(dict(py_utils.tree_paths(steps)), axes)
      updates = py_utils.map_with_path(
        lambda path, step: -lr.astype(step.dtype) * directions[path], steps
      )
      m = jax.tree.map(lambda new, old: new.astype(old.dtype), m, state.m)
      return updates, NestedMap(count=state.count + 1, m=m)

    return sharded_transforms.sharded(init, update)

  def _directions(
    self,
    steps: Mapping[str, JTensor],
    axes: Mapping[str, weight_matrices.MatrixAxes],
  ) -> dict[str, JTensor]:
    """Returns the orthogonalized steps with `consistent_rms`, by path.

    Variables of one shape are orthogonalized together.
    """
    matrices = {
      p: weight_matrices.to_matrices(x, axes[p]) for p, x in steps.items()
    }
    paths_of = collections.defaultdict(list)
    for path, x in matrices.items():
      paths_of[x.shape, x.dtype].append(path)
    directions = {}
    for ((*_, fan_in, fan_out), _), paths in paths_of.items():
      scale = self.consistent_rms * math.sqrt(max(fan_in, fan_out))
      stacked = orthogonalize(
        jnp.stack([matrices[path] for path in paths]),
        self.newton_schulz_steps,
        self.epsilon,
      )
      for path, x in zip(paths, scale * stacked, strict=True):
        directions[path] = weight_matrices.from_matrices(
          x, steps[path].shape, axes[path]
        )
    return directions


def orthogonalize(
  x: Float[Array, '*B m n'], steps: int, epsilon: float
) -> Float[Array, '*B m n']:
  """Returns about U V^T of each matrix x = U S V^T.

  The matrices are distributed over the devices of the mesh: XLA would compute
  products of sharded matrices on all devices.

  Args:
    x: the matrices.
    steps: of the Newton-Schulz iteration.
    epsilon: added to the Frobenius norm.
  """

  @custom_vmap
  def run(x: JTensor) -> JTensor:
    matrices = x.reshape(-1, *x.shape[-2:])
    iterated = _newton_schulz(_distributed(matrices), steps, epsilon)
    return iterated[: len(matrices)].reshape(x.shape)

  # With the matrices of all layers if vectorized over them.
  run.def_vmap(lambda size, is_batched, x: (run(x), True))
  return run(x)


def _distributed(x: Float[Array, 'B m n']) -> Float[Array, 'P m n']:
  """Returns the matrices, and zeros, as many on each device of the mesh."""
  mesh = jax.sharding.get_abstract_mesh()
  num_devices = math.prod(mesh.shape[axis] for axis in mesh.auto_axes)
  if num_devices == 1:
    return x
  padding = -len(x) % num_devices
  padded = jnp.pad(x, ((0, padding), (0, 0), (0, 0)))
  return jax.lax.with_sharding_constraint(padded, PartitionSpec(mesh.auto_axes))


def _newton_schulz(
  x: Float[Array, 'B m n'], steps: int, epsilon: float
) -> Float[Array, 'B m n']:
  if x.shape[-2] > x.shape[-1]:
    return _newton_schulz(x.mT, steps, epsilon).mT
  x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + epsilon)
  a, b, c = _COEFFICIENTS
  for _ in range(steps):
    squares = x @ x.mT
    x = a * x + (b * squares + c * squares @ squares) @ x
  return x
