# SPDX-License-Identifier: Apache-2.0
"""A learner with several optimizers, each for variables of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from pax.learners import clipping, learner
from praxis import base_layer, optimizers, pax_fiddle, py_utils
from praxis.optimizers import masked_trees

JTensor = learner.JTensor
Nested = learner.Nested
Hparams = learner.Hparams


class MultiOptimizerLearner(learner.Learner):
  """Auxiliary optimizers for variables by path, the main one for the rest.

  The state of the optimizer is a tuple: the moving average of all variables, if
  the main optimizer has an `ema_decay`, then the main one's state, and those of
  the auxiliary ones.
  """

  auxiliary_optimizers: Sequence[optimizers.Optimizer] = ()
  # For each of them a regular expression, matched at the start of paths.
  auxiliary_regex: Sequence[str] = ()
  # And a name, for summaries.
  auxiliary_names: Sequence[str] = ()
  # Clips the gradients of each optimizer apart, by its own limits.
  apply_separate_scaling: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    lengths = {
      'auxiliary_optimizers': len(self.auxiliary_optimizers),
      'auxiliary_regex': len(self.auxiliary_regex),
      'auxiliary_names': len(self.auxiliary_names),
    }
    if len(set(lengths.values())) != 1:
      raise ValueError(
        f'MultiOptimizerLearner needs lists of one length, got {lengths}'
      )
    self.auxiliary_optimizers = [
      opt.Instantiate() if isinstance(opt, pax_fiddle.Config) else opt
      for opt in self.auxiliary_optimizers
    ]

  def plot_learning_rate(self, step: ArrayLike) -> None:
    """Records the learning rates of all optimizers at `step`."""
    super().plot_learning_rate(step)
    for name, opt in self._named_optimizers():
      base_layer.add_global_summary(
        f'learning/lr_{name}',
        opt.get_learning_rate(step),
        base_layer.SummaryType.AGGREGATE_SCALAR,
      )

  def get_masks(self, var_weight_hparams: Hparams) -> list[Nested[bool]]:
    """Returns which variables are whose, the main optimizer's first.

    Raises:
      ValueError: two expressions match one variable.
    """

    def owner(path: str, hparams: base_layer.WeightHParams) -> int:
      del hparams
      found = [
        i for i, r in enumerate(self.auxiliary_regex, 1) if re.match(r, path)
      ]
      if len(found) > 1:
        raise ValueError(
          f'{path} matches {[self.auxiliary_regex[i - 1] for i in found]};'
          ' auxiliary_regex must give each variable to one optimizer'
        )
      return found[0] if found else 0

    owners = py_utils.map_with_path(owner, var_weight_hparams)
    return [
      jax.tree.map(lambda o, i=i: o == i, owners)
      for i in range(len(self.auxiliary_optimizers) + 1)
    ]

  def scale_gradients_by_optimizer(
    self, raw_grads: Nested[JTensor], var_weight_hparams: Hparams
  ) -> clipping.ScaledGradients:
    """Returns the gradients, those of each optimizer clipped by its limits."""
    grads, raw, clipped = raw_grads, [], []
    masks = self.get_masks(var_weight_hparams)
    for (name, opt), mask in zip(self._named_optimizers(), masks, strict=True):
      scaled = self.scale_gradients(
        masked_trees.mask_tree(raw_grads, mask),
        name,
        opt.clip_gradient_norm_to_value,
        opt.clip_gradient_single_norm_to_value,
      )
      grads = masked_trees.merge_tree(scaled.grads, grads)
      raw.append(scaled.raw_norm)
      clipped.append(scaled.clipped_norm)
    norm, after = (jnp.linalg.norm(jnp.stack(x)) for x in (raw, clipped))
    ratio = after / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny)
    return clipping.ScaledGradients(grads, norm, after, ratio)

  def _scale_ordinary(
    self, grads: Nested[JTensor], var_weight_hparams: Hparams
  ) -> clipping.ScaledGradients:
    if self.apply_separate_scaling:
      return self.scale_gradients_by_optimizer(grads, var_weight_hparams)
    return super()._scale_ordinary(grads, var_weight_hparams)

  def _optimizer_tx(
    self, var_weight_hparams: Hparams
  ) -> optimizers.GradientTransformation:
    masks = self.get_masks(var_weight_hparams)
    chain = []
    for (_, opt), mask in zip(self._named_optimizers(), masks, strict=True):
      tx = opt.get_grad_transformation(
        masked_trees.mask_tree(var_weight_hparams, mask), include_ema=False
      )
      chain.append(optimizers.sharded_masked(tx, mask))
    several = optimizers.sharded_chain(*chain)
    if not self.optimizer.ema_decay:
      return several
    average = optimizers.apply_ema_weights(self.optimizer.ema_decay)
    return _then_average(several, average)

  def _named_optimizers(self) -> list[tuple[str, optimizers.Optimizer]]:
    auxiliary = zip(
      self.auxiliary_names, self.auxiliary_optimizers, strict=True
    )
    return [('main', self.optimizer), *auxiliary]


def _then_average(
  tx: optimizers.ShardedGradientTransformation,
  average: optimizers.ShardedGradientTransformation,
) -> optimizers.ShardedGradientTransformation:
  """Returns `tx`, then `average`, whose state nevertheless stands first.

  That is how checkpoints have it.
  """

  def update(
    updates: Nested[JTensor],
    state: tuple[Any, ...],
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], tuple[Any, ...]]:
    updates, rest = tx.update(updates, state[1:], params)
    updates, mean = average.update(updates, state[0], params)
    return updates, (mean, *rest)

  return optimizers.ShardedGradientTransformation(
    init=lambda params: (average.init(params), *tx.init(params)),
    update=update,
    init_partition_spec=lambda hparams: (
      average.init_partition_spec(hparams),
      *tx.init_partition_spec(hparams),
    ),
  )
