# SPDX-License-Identifier: Apache-2.0
"""DP-SGD: the gradient of each example is clipped before they are averaged."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from pax.learners.stochastic_gradients import (
  gaussian_mechanism,
  stochastic_gradient,
)
from praxis import base_layer, py_utils, pytypes

JTensor = stochastic_gradient.JTensor
Nested = stochastic_gradient.Nested


class DpSgdStochasticGradient(stochastic_gradient.BaseStochasticGradient):
  """Gradients of single examples, clipped, averaged, with noise.

  What the model returns beside the loss is averaged over the examples.

  References:
    Abadi et al., https://arxiv.org/abs/1607.00133
  """

  # Largest norm of the gradient of one example.
  l2_norm_clip: float = 0.0
  # Standard deviation of the noise on the sum of gradients, in these norms.
  noise_multiplier: float = 0.0
  # Scales the norm by the weight of an example's loss; not with noise.
  use_loss_weight_scaling: bool = False
  # Divides the result by l2_norm_clip, so that the learning rate need not
  # follow it.
  normalize_gradients: bool = False
  # Examples whose gradients are in memory at a time; None: all of the batch.
  inner_batch_size: int | None = None
  # Mesh axes that the batch is split over; the model, which sees one example,
  # splits nothing over them then. None leaves it to the compiler.
  spmd_axis_name: str | tuple[str, ...] | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    gaussian_mechanism.check(
      self,
      bound=self.l2_norm_clip,
      noise_multiplier=self.noise_multiplier,
      use_loss_weight_scaling=self.use_loss_weight_scaling,
    )

  def process_aux_info(
    self, aux_info: stochastic_gradient.GradAuxInfo
  ) -> stochastic_gradient.GradAuxInfo:
    """Returns the mean over the examples."""
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), aux_info)

  def grad_fn(
    self,
    loss_fn: stochastic_gradient.LossFn,
    mdl_vars_grad: Nested[JTensor],
    mdl_vars_nograd_and_inputs: tuple[Nested[JTensor], Nested[JTensor]],
    prng_key: pytypes.PRNGKey,
  ) -> stochastic_gradient.Gradients:
    nograd, inputs = mdl_vars_nograd_and_inputs
    grouped = jax.tree.map(self._group, inputs)
    groups, size = jax.tree.leaves(grouped)[0].shape[:2]
    rounds = self._rounds(groups, size)
    grads_of = jax.vmap(
      jax.value_and_grad(self._without_axes(loss_fn), has_aux=True),
      in_axes=(None, (None, 0), None),
      spmd_axis_name=self.spmd_axis_name,
    )

    def some(chosen: tuple[Nested[JTensor], pytypes.PRNGKey]) -> Any:
      examples, key = chosen
      (loss, aux), grads = grads_of(mdl_vars_grad, (nograd, examples), key)
      bound = self._bound(aux.loss_weight, size)
      means, dp_aux_info = self._clip(
        gaussian_mechanism.group_means(grads, size), bound
      )
      return jnp.mean(loss), self.process_aux_info(aux), means, dp_aux_info

    # Rounds take every rounds-th group: the batch stays split as it is.
    def split(x: JTensor) -> JTensor:
      x = jnp.reshape(x, [groups // rounds, rounds, size, *x.shape[2:]])
      x = jnp.swapaxes(x, 0, 1)
      return jnp.reshape(x, [rounds, -1, 1, *x.shape[3:]])

    keys = jax.random.split(prng_key, rounds + 1)
    chosen = (jax.tree.map(split, grouped), keys[:-1])
    loss, aux, grads, dp_aux_info = _mean_of_rounds(some, chosen, rounds)
    grads, noise_std = self._finish(grads, groups, keys[-1])
    aux = stochastic_gradient.DPGradAuxInfo(
      aux.aux_info, aux.loss_weight, {**dp_aux_info, 'noise_std': noise_std}
    )
    return (loss, aux), grads

  def _without_axes(
    self, loss_fn: stochastic_gradient.LossFn
  ) -> stochastic_gradient.LossFn:
    """Returns the loss of a model that does not split the examples."""
    axes = self.spmd_axis_name
    if axes is None:
      return loss_fn
    settings = base_layer.cur_jax_context().hparams.clone()
    hidden = dict.fromkeys(py_utils.mesh_axes(axes))
    renamed = {
      new: None if old in hidden else old
      for new, old in (settings.mesh_axes_transpose or {}).items()
    }
    settings.mesh_axes_transpose = hidden | renamed

    def without(*args: Any) -> Any:
      with base_layer.JaxContext.new_context(hparams=settings):
        return loss_fn(*args)

    return without

  def _group(self, x: JTensor) -> JTensor:
    """Returns a tensor of inputs as [groups, examples of a group, ...]."""
    return x[:, None]

  def _bound(self, loss_weight: JTensor, size: int) -> JTensor | float:
    """Returns the largest norm, in the scale that losses have here."""
    if self.use_loss_weight_scaling:
      return self.l2_norm_clip * gaussian_mechanism.group_means(
        loss_weight, size
      )
    return self.l2_norm_clip / gaussian_mechanism.replicas()

  def _clip(
    self, grads: Nested[JTensor], bound: JTensor | float
  ) -> tuple[Nested[JTensor], dict[str, Any]]:
    """Returns (the mean of clipped gradients, what there is to report)."""
    clipped = gaussian_mechanism.clip_and_mean(grads, bound)
    return clipped.mean, {'frac_clipped': clipped.fraction}

  def _finish(
    self, grads: Nested[JTensor], groups: int, key: pytypes.PRNGKey
  ) -> tuple[Nested[JTensor], JTensor]:
    """Returns (gradients, normalized and with noise; the noise's deviation)."""
    unit = self.l2_norm_clip
    if self.normalize_gradients:
      grads = jax.tree.map(lambda g: g / self.l2_norm_clip, grads)
      unit = 1.0
    stddev = (
      self.noise_multiplier * unit / (groups * gaussian_mechanism.replicas())
    )
    if self.noise_multiplier:
      grads = gaussian_mechanism.add_noise(grads, stddev, key)
    return grads, jnp.float32(stddev)

  def _rounds(self, groups: int, size: int) -> int:
    """Returns in how many rounds the groups are worked through."""
    at_a_time = self.inner_batch_size or groups * size
    if at_a_time % size or (groups * size) % at_a_time:
      raise ValueError(
        f'{type(self).__name__}.inner_batch_size must be a multiple of the'
        f' microbatch of {size} that divides the batch of {groups * size}, got'
        f' {at_a_time}'
      )
    return groups * size // at_a_time


class MicrobatchDpSgdStochasticGradient(DpSgdStochasticGradient):
  """DP-SGD that clips the mean gradient of every few examples."""

  # Examples of one mean; it divides the batch.
  microbatch_size: int = 1

  def _group(self, x: JTensor) -> JTensor:
    if x.shape[0] % self.microbatch_size:
      raise ValueError(
        f'{type(self).__name__}.microbatch_size must divide the batch of'
        f' {x.shape[0]}, got {self.microbatch_size}'
      )
    return jnp.reshape(x, [-1, self.microbatch_size, *x.shape[1:]])


class AugMulDpSgdStochasticGradient(MicrobatchDpSgdStochasticGradient):
  """DP-SGD with several augmentations of each example.

  Each example is repeated `microbatch_size` times, for a model that augments
  its inputs, and the mean gradient of the copies is clipped.

  References:
    De et al., https://arxiv.org/abs/2204.13650
  """

  def _group(self, x: JTensor) -> JTensor:
    copies = (x.shape[0], self.microbatch_size, *x.shape[1:])
    return jnp.broadcast_to(x[:, None], copies)


class PerLayerDpSgdStochasticGradient(DpSgdStochasticGradient):
  """DP-SGD that clips the gradient of each variable by itself.

  Their bounds make up `l2_norm_clip` together: all are equal or, with
  `use_uniform` False, proportional to the root of the variable's size.

  References:
    McMahan et al., https://arxiv.org/abs/1812.06210
  """

  use_uniform: bool = True

  def _clip(
    self, grads: Nested[JTensor], bound: JTensor | float
  ) -> tuple[Nested[JTensor], dict[str, Any]]:
    leaves, tree = jax.tree.flatten(grads)
    sizes = [
      1.0 if self.use_uniform else math.prod(g.shape[1:]) for g in leaves
    ]
    clipped = [
      gaussian_mechanism.clip_and_mean(g, bound * math.sqrt(size / sum(sizes)))
      for g, size in zip(leaves, sizes, strict=True)
    ]
    fractions = [c.fraction for c in clipped]
    mean_norms = [jnp.mean(gaussian_mechanism.norms([g])) for g in leaves]
    return tree.unflatten([c.mean for c in clipped]), {
      'frac_clipped': tree.unflatten(fractions),
      'mean_frac_clipped': jnp.mean(jnp.stack(fractions)),
      'stdev_frac_clipped': jnp.std(jnp.stack(fractions)),
      'mean_layer_grad_norms': tree.unflatten(mean_norms),
    }


def _mean_of_rounds(some: Any, chosen: Any, rounds: int) -> Any:
  """Returns the mean of some(...) over the first dimension of `chosen`."""
  first = jax.tree.map(lambda x: x[0], chosen)
  if rounds == 1:
    return some(first)

  def add(total: Any, one: Any) -> tuple[Any, None]:
    return jax.tree.map(jnp.add, total, some(one)), None

  zeros = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(some, first)
  )
  total, _ = jax.lax.scan(add, zeros, chosen)
  return jax.tree.map(lambda x: x / rounds, total)
