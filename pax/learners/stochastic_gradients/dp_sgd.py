# SPDX-License-Identifier: Apache-2.0
"""DP-SGD: per-example gradients are clipped, averaged and noised."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from absl import logging
from typing_extensions import override

from pax.learners import privacy
from pax.learners.stochastic_gradients import (
  gaussian_mechanism,
  stochastic_gradient,
)
from pax.train_states import Variables
from praxis import base_layer, py_utils, pytypes, value_domains
from praxis.pytypes import Nested

JTensor = stochastic_gradient.JTensor
NestedMap = stochastic_gradient.NestedMap
GradAuxInfo = stochastic_gradient.GradAuxInfo

# (Inputs of some groups of examples, the key of each gradient).
_Chunk = tuple[NestedMap, pytypes.PRNGKey]
# (Mean loss, auxiliary outputs, mean of clipped gradients, dp_aux_info).
_ChunkOutputs = tuple[JTensor, GradAuxInfo, Nested[JTensor], dict[str, Any]]


class DpSgdStochasticGradient(stochastic_gradient.BaseStochasticGradient):
  """DP-SGD with the gradient of each example clipped.

  Auxiliary outputs of the model are averaged over the examples.

  References:
    Abadi et al., https://arxiv.org/abs/1607.00133, algorithm 1.
  """

  changes_gradients: ClassVar[bool] = True

  # Maximum norm C of the gradient of an example.
  l2_norm_clip: float = 0.0
  # Standard deviation of the noise on the sum of gradients, in units of C.
  noise_multiplier: float = value_domains.field(0.0, ge=0.0)
  # Whether to scale the bound of an example by the weight of its loss; excludes
  # noise.
  use_loss_weight_scaling: bool = False
  # Whether to divide the gradients by C, which decouples the learning rate from
  # C.
  normalize_gradients: bool = False
  # Number of gradients in memory at a time, each of one example, or of as many
  # examples of a microbatch as needed to have this many; None is one gradient
  # for each example.
  inner_batch_size: int | None = value_domains.field(None, ge=1)
  # Mesh axes that split the batch; the model then computes one example and
  # splits nothing over these axes. None leaves the choice to XLA.
  spmd_axis_name: str | tuple[str, ...] | None = None
  # Number of examples of the training data. With it, the log and the summaries
  # have the epsilon of the steps so far.
  num_examples: int | None = value_domains.field(None, ge=1)
  # The delta of that epsilon: below 1 / num_examples.
  delta: float = value_domains.field(1e-5, gt=0.0, lt=1.0)

  def __post_init__(self) -> None:
    super().__post_init__()
    gaussian_mechanism.check_settings(
      self,
      bound=self.l2_norm_clip,
      noise_multiplier=self.noise_multiplier,
      use_loss_weight_scaling=self.use_loss_weight_scaling,
    )

  def process_aux_info(self, aux_info: GradAuxInfo) -> GradAuxInfo:
    """Returns the means over the examples."""
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), aux_info)

  @override
  def mechanism(self, batch_size: int) -> privacy.Mechanism | None:
    """Returns the noise and the sampling of a step.

    Raises:
      ValueError: the batch has more examples than the data.
    """
    if not self.noise_multiplier:
      return None
    name = type(self).__name__
    if self.num_examples is None:
      logging.warning('%s.num_examples is not set: no epsilon is known', name)
      return None
    if batch_size > self.num_examples:
      raise ValueError(
        f'{name}.num_examples must be the number of training examples, got'
        f' {self.num_examples} for batches of {batch_size}'
      )
    return privacy.Mechanism(
      noise_multiplier=self.noise_multiplier / self._sensitivity(),
      sampling_probability=batch_size / self.num_examples,
      delta=self.delta,
    )

  def _sensitivity(self) -> float:
    """Change of the sum of clipped gradients by one example, in units of C."""
    return 1.0

  @override
  def grad_fn(
    self,
    loss_fn: stochastic_gradient.LossFn,
    mdl_vars_grad: Variables[JTensor],
    mdl_vars_nograd_and_inputs: tuple[Variables[JTensor], NestedMap],
    prng_key: pytypes.PRNGKey,
  ) -> stochastic_gradient.Gradients:
    """Returns the mean loss, auxiliary outputs and private gradients.

    Raises:
      ValueError: `jax.vmap` does not map the model over examples.
    """
    nograd, inputs = mdl_vars_nograd_and_inputs
    grouped = jax.tree.map(self._group, inputs)
    num_groups, group_size = jax.tree.leaves(grouped)[0].shape[:2]
    num_gradients = self._num_gradients(num_groups * group_size)
    chunk_groups = math.gcd(num_groups, num_gradients)
    num_chunks = num_groups // chunk_groups
    gradients_per_group = num_gradients // chunk_groups
    per_example_grads = jax.vmap(
      jax.value_and_grad(self._of_an_example(loss_fn), has_aux=True),
      in_axes=(None, (None, 0), 0),
      spmd_axis_name=self.spmd_axis_name,
    )

    def clipped_grads(chunk: _Chunk) -> _ChunkOutputs:
      examples, keys = chunk
      (loss, aux), grads = per_example_grads(
        mdl_vars_grad, (nograd, examples), keys
      )
      bound = self._bound(aux.loss_weight, gradients_per_group)
      means, dp_aux_info = self._clip(
        gaussian_mechanism.group_means(grads, gradients_per_group), bound
      )
      return jnp.mean(loss), self.process_aux_info(aux), means, dp_aux_info

    # Chunk i takes groups i, i + num_chunks, ..., so that the sharding of the
    # batch dimension is kept.
    def split(x: JTensor) -> JTensor:
      rest = x.shape[2:]
      x = jnp.reshape(x, [chunk_groups, num_chunks, group_size, *rest])
      return jnp.reshape(
        jnp.swapaxes(x, 0, 1),
        [num_chunks, num_gradients, group_size // gradients_per_group, *rest],
      )

    loss_key, noise_key = jax.random.split(prng_key)
    # Else all examples, or copies of one, would have the same dropout.
    keys = jax.random.split(loss_key, (num_chunks, num_gradients))
    chunks = (jax.tree.map(split, grouped), keys)
    try:
      loss, aux, grads, dp_aux_info = _mean_over_chunks(
        clipped_grads, chunks, num_chunks
      )
    except NotImplementedError as error:
      raise ValueError(
        f'{type(self).__name__} needs a model that jax.vmap maps over the'
        f" examples, got: {error}; if gating_func is 'dropless', set"
        " 'top2'"
      ) from error
    grads, noise_std = self._normalize_and_add_noise(
      grads, num_groups, noise_key
    )
    aux = stochastic_gradient.DPGradAuxInfo(
      aux.aux_info, aux.loss_weight, {**dp_aux_info, 'noise_std': noise_std}
    )
    return (loss, aux), grads

  def _of_an_example(
    self, loss_fn: stochastic_gradient.LossFn
  ) -> stochastic_gradient.LossFn:
    """Returns the loss of a model that computes an example by itself.

    It splits nothing over the batch axes, and replicas share no statistics.
    """
    renamed = base_layer.cur_jax_context().hparams.mesh_axes_transpose
    if self.spmd_axis_name is not None:
      hidden = dict.fromkeys(py_utils.mesh_axes(self.spmd_axis_name))
      renamed = hidden | {
        new: None if old in hidden else old
        for new, old in (renamed or {}).items()
      }
    return stochastic_gradient.with_context(
      loss_fn, mesh_axes_transpose=renamed, sync_replicas=False
    )

  def _group(self, x: JTensor) -> JTensor:
    """Returns an input as [groups, examples of a group, ...]."""
    return x[:, None]

  def _bound(
    self, loss_weight: JTensor, gradients_per_group: int
  ) -> JTensor | float:
    """Returns the maximum norm, in the scale of the losses."""
    if self.use_loss_weight_scaling:
      weights = gaussian_mechanism.group_mean(loss_weight, gradients_per_group)
      return self.l2_norm_clip * weights
    return self.l2_norm_clip / gaussian_mechanism.num_replicas()

  def _clip(
    self, grads: Nested[JTensor], bound: JTensor | float
  ) -> tuple[Nested[JTensor], dict[str, Any]]:
    """Returns (mean of the clipped gradients, dp_aux_info)."""
    clipped = gaussian_mechanism.clip_and_mean(grads, bound)
    return clipped.mean, {'frac_clipped': clipped.fraction}

  def _normalize_and_add_noise(
    self, grads: Nested[JTensor], num_groups: int, key: pytypes.PRNGKey
  ) -> tuple[Nested[JTensor], JTensor]:
    """Returns (gradients, standard deviation of their noise)."""
    sensitivity = self.l2_norm_clip
    if self.normalize_gradients:
      grads = jax.tree.map(lambda g: g / self.l2_norm_clip, grads)
      sensitivity = 1.0
    total_groups = num_groups * gaussian_mechanism.num_replicas()
    stddev = self.noise_multiplier * sensitivity / total_groups
    if self.noise_multiplier:
      grads = gaussian_mechanism.add_noise(grads, stddev, key)
    return grads, jnp.float32(stddev)

  def _num_gradients(self, batch_size: int) -> int:
    """Returns the number of gradients that are in memory at a time."""
    if self.inner_batch_size and batch_size % self.inner_batch_size:
      raise ValueError(
        f'{type(self).__name__}.inner_batch_size must be a number that divides'
        f' the batch of {batch_size}, got {self.inner_batch_size}'
      )
    return self.inner_batch_size or batch_size


class MicrobatchDpSgdStochasticGradient(DpSgdStochasticGradient):
  """DP-SGD that clips the mean gradient of each microbatch."""

  # Number of examples of a microbatch; it must divide the batch size.
  microbatch_size: int = value_domains.field(1, ge=1)

  @override
  def _sensitivity(self) -> float:
    # The clipped mean of a microbatch may turn to its opposite.
    return 1.0 if self.microbatch_size == 1 else 2.0

  def _group(self, x: JTensor) -> JTensor:
    if x.shape[0] % self.microbatch_size:
      raise ValueError(
        f'{type(self).__name__}.microbatch_size must divide the batch of'
        f' {x.shape[0]}, got {self.microbatch_size}'
      )
    return jnp.reshape(x, [-1, self.microbatch_size, *x.shape[1:]])


class AugMulDpSgdStochasticGradient(MicrobatchDpSgdStochasticGradient):
  """DP-SGD with augmentation multiplicity.

  Each example is repeated `microbatch_size` times, for a model that augments
  its inputs, and the mean gradient of the copies is clipped.

  References:
    De et al., https://arxiv.org/abs/2204.13650
  """

  @override
  def _sensitivity(self) -> float:
    # A group has one example.
    return 1.0

  def _group(self, x: JTensor) -> JTensor:
    copies = (x.shape[0], self.microbatch_size, *x.shape[1:])
    return jnp.broadcast_to(x[:, None], copies)


class PerLayerDpSgdStochasticGradient(DpSgdStochasticGradient):
  """DP-SGD that clips the gradient of each variable by its own norm.

  The squares of the bounds of all variables sum to the square of
  `l2_norm_clip`.

  References:
    McMahan et al., https://arxiv.org/abs/1812.06210
  """

  # True gives all variables equal bounds; False bounds proportional to the
  # square root of the size of the variable.
  use_uniform: bool = True

  def _clip(
    self, grads: Nested[JTensor], bound: JTensor | float
  ) -> tuple[Nested[JTensor], dict[str, Any]]:
    leaves, treedef = jax.tree.flatten(grads)
    sizes = [
      1.0 if self.use_uniform else math.prod(g.shape[1:]) for g in leaves
    ]
    clipped = [
      gaussian_mechanism.clip_and_mean(g, bound * math.sqrt(size / sum(sizes)))
      for g, size in zip(leaves, sizes, strict=True)
    ]
    fractions = [c.fraction for c in clipped]
    mean_norms = [jnp.mean(gaussian_mechanism.norms([g])) for g in leaves]
    return jax.tree.unflatten(treedef, [c.mean for c in clipped]), {
      'frac_clipped': jax.tree.unflatten(treedef, fractions),
      'mean_frac_clipped': jnp.mean(jnp.stack(fractions)),
      'stdev_frac_clipped': jnp.std(jnp.stack(fractions)),
      'mean_layer_grad_norms': jax.tree.unflatten(treedef, mean_norms),
    }


def _mean_over_chunks(
  fn: Callable[[_Chunk], _ChunkOutputs], chunks: _Chunk, num_chunks: int
) -> _ChunkOutputs:
  """Returns the mean of `fn` over the first dimension of `chunks`."""
  first = jax.tree.map(lambda x: x[0], chunks)
  if num_chunks == 1:
    return fn(first)

  def add(total: _ChunkOutputs, chunk: _Chunk) -> tuple[_ChunkOutputs, None]:
    return jax.tree.map(jnp.add, total, fn(chunk)), None

  zeros = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(fn, first)
  )
  total, _ = jax.lax.scan(add, zeros, chunks)
  return jax.tree.map(lambda x: x / num_chunks, total)
