# SPDX-License-Identifier: Apache-2.0
"""Muon: orthogonalized momentum for matrices, and Adam for the rest."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, py_utils, value_domains
from praxis.nested_map import NestedMap
from praxis.optimizers import adam, base_optimizer, sharded_transforms
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
  adam_regex: str = r'.*(emb|softmax|logits|bias)|.*/b$'
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
    declarations = dict(py_utils.tree_paths(hparams))

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
      mix = lambda m, g: self.beta * m + (1.0 - self.beta) * g
      m = jax.tree.map(lambda g, m: mix(m.astype(g.dtype), g), grads, state.m)
      steps = jax.tree.map(mix, m, grads) if self.nesterov else m
      updates = py_utils.map_with_path(
        lambda path, step: (
          -lr.astype(step.dtype)
          * self._orthogonalized(step, *matrix_axes(declarations[path]))
        ),
        steps,
      )
      m = jax.tree.map(lambda new, old: new.astype(old.dtype), m, state.m)
      return updates, NestedMap(count=state.count + 1, m=m)

    return sharded_transforms.sharded(init, update)

  def _orthogonalized(
    self,
    x: Float[Array, '...'],
    fan_in_axes: Sequence[int],
    fan_out_axes: Sequence[int],
  ) -> Float[Array, '...']:
    """Returns the matrices of x, orthogonalized, with `consistent_rms`."""
    ends = [*fan_in_axes, *fan_out_axes]
    last = range(-len(ends), 0)
    matrices = jnp.moveaxis(x, ends, last)
    shape = matrices.shape
    batch = shape[: x.ndim - len(ends)]
    fan_in = math.prod(x.shape[axis] for axis in fan_in_axes)
    fan_out = math.prod(x.shape[axis] for axis in fan_out_axes)
    matrices = orthogonalize(
      matrices.reshape(*batch, fan_in, fan_out),
      self.newton_schulz_steps,
      self.epsilon,
    )
    scale = self.consistent_rms * math.sqrt(max(fan_in, fan_out))
    return jnp.moveaxis(scale * matrices.reshape(shape), last, ends)


def matrix_axes(
  hparams: base_layer.WeightHParams,
) -> tuple[list[int], list[int]]:
  """Returns the dimensions of fan-in and fan-out, counted from the last."""
  axes = hparams.matrix_axes or (hparams.fan_in_axes, hparams.fan_out_axes)
  if None in axes:
    return [-2], [-1]
  rank = len(hparams.shape)
  fan_in, fan_out = ([a % rank - rank for a in side or ()] for side in axes)
  return fan_in, fan_out


def orthogonalize(
  x: Float[Array, '*B m n'], steps: int, epsilon: float
) -> Float[Array, '*B m n']:
  """Returns about U V^T of each matrix x = U S V^T.

  Args:
    x: the matrices.
    steps: of the Newton-Schulz iteration.
    epsilon: added to the Frobenius norm.
  """
  if x.shape[-2] > x.shape[-1]:
    return orthogonalize(x.mT, steps, epsilon).mT
  x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + epsilon)
  a, b, c = _COEFFICIENTS
  for _ in range(steps):
    squares = x @ x.mT
    x = a * x + (b * squares + c * squares @ squares) @ x
  return x
