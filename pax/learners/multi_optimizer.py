# SPDX-License-Identifier: Apache-2.0
"""A learner with several optimizers for disjoint sets of variables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from jax.typing import ArrayLike
from jaxtyping import Array, Bool

from pax.learners import clipping, learner, optimizer_summaries
from praxis import base_layer, optimizers, py_utils
from praxis.optimizers import masked_trees, sharded_transforms
from praxis.pytypes import Nested

JTensor = learner.JTensor
Hparams = learner.Hparams


class MultiOptimizerLearner(learner.Learner):
  """Optimizes variables selected by path with auxiliary optimizers.

  The main optimizer updates the other variables. The optimizer state is a
  tuple: the moving average of all variables, if the main optimizer has an
  `ema_decay`, then the state of the main optimizer, and those of the auxiliary
  optimizers.
  """

  auxiliary_optimizers: Sequence[optimizers.Optimizer] = ()
  # A regular expression for each, matched at the start of paths.
  auxiliary_regex: Sequence[str] = ()
  # A name for each, for summaries.
  auxiliary_names: Sequence[str] = ()
  # Whether gradients are clipped per optimizer, by its own limits.
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
        f'MultiOptimizerLearner needs lists of equal length, got {lengths}'
      )
    names = ['main', *self.auxiliary_names]
    if len(set(names)) < len(names):
      raise ValueError(
        'MultiOptimizerLearner.auxiliary_names must differ from each other and'
        " from 'main', the name of the main optimizer in summaries, got"
        f' {list(self.auxiliary_names)}'
      )
    self.auxiliary_optimizers = [
      learner.build_optimizer('auxiliary_optimizers', opt)
      for opt in self.auxiliary_optimizers
    ]
    self._check_moving_averages()

  def plot_learning_rate(self, step: ArrayLike) -> None:
    """Records the learning rates of all optimizers after `step` batches."""
    super().plot_learning_rate(step)
    for name, opt in self._named_optimizers():
      optimizer_summaries.add_learning_rate(f'learning/lr_{name}', opt, step)

  def get_masks(self, var_weight_hparams: Hparams) -> list[Nested[bool]]:
    """Returns the mask of variables of each optimizer, the main one first.

    Raises:
      ValueError: several expressions match one variable.
    """

    def owner(path: str, hparams: base_layer.WeightHParams) -> int:
      del hparams
      matches = [
        i for i, r in enumerate(self.auxiliary_regex, 1) if re.match(r, path)
      ]
      if len(matches) > 1:
        raise ValueError(
          f'{path} matches {[self.auxiliary_regex[i - 1] for i in matches]};'
          ' auxiliary_regex must match each variable at most once'
        )
      return matches[0] if matches else 0

    owners = py_utils.map_with_path(owner, var_weight_hparams)
    return [
      jax.tree.map(lambda o, i=i: o == i, owners)
      for i in range(len(self.auxiliary_optimizers) + 1)
    ]

  def scale_gradients_by_optimizer(
    self, raw_grads: Nested[JTensor], var_weight_hparams: Hparams
  ) -> tuple[Nested[JTensor], Bool[Array, ''] | bool]:
    """Clips the gradients of each optimizer by the limits of the optimizer.

    Returns:
      The clipped gradients, and whether those of every optimizer are valid.
    """
    grads = raw_grads
    valid_step: Bool[Array, ''] | bool = True
    masks = self.get_masks(var_weight_hparams)
    for (name, opt), mask in zip(self._named_optimizers(), masks, strict=True):
      scaled, is_valid = self.scale_gradients(
        masked_trees.mask_tree(raw_grads, mask),
        name,
        opt.clip_gradient_norm_to_value,
        opt.clip_gradient_single_norm_to_value,
      )
      grads = masked_trees.merge_tree(scaled, grads)
      valid_step = is_valid if valid_step is True else valid_step & is_valid
    if self.check_valid_step:
      add = optimizer_summaries.add_aggregate
      add('learning/is_valid_step', jnp.asarray(valid_step, jnp.float32))
      if self.skip_step_gradient_norm_value:
        finite = clipping.is_valid(clipping.global_norm(raw_grads), 0.0)
        add('learning/is_finite_gradient', finite.astype(jnp.float32))
    return grads, valid_step

  def get_grad_tx(
    self, var_weight_hparams: Hparams
  ) -> optimizers.ShardedGradientTransformation:
    """Returns the gradient transformation, as `Learner.get_grad_tx`.

    An expression that matches no variable is logged.
    """
    paths = [path for path, _ in py_utils.tree_paths(var_weight_hparams)]
    unused = [
      pattern
      for pattern in self.auxiliary_regex
      if not any(re.match(pattern, path) for path in paths)
    ]
    if unused:
      logging.log_first_n(
        logging.WARNING,
        'auxiliary_regex has %s, which match no variable, so that their'
        ' optimizers have none; paths look like %s',
        1,
        unused,
        paths[:3],
      )
    return super().get_grad_tx(var_weight_hparams)

  def _scale_ordinary(
    self, grads: Nested[JTensor], var_weight_hparams: Hparams
  ) -> tuple[Nested[JTensor], Bool[Array, ''] | bool]:
    if self.apply_separate_scaling:
      return self.scale_gradients_by_optimizer(grads, var_weight_hparams)
    return super()._scale_ordinary(grads, var_weight_hparams)

  def _optimizer_tx(
    self, var_weight_hparams: Hparams
  ) -> optimizers.GradientTransformation:
    masks = self.get_masks(var_weight_hparams)
    chain = []
    for (_, opt), mask in zip(self._named_optimizers(), masks, strict=True):
      unmasked = opt.get_grad_transformation(
        masked_trees.mask_tree(var_weight_hparams, mask), include_ema=False
      )
      chain.append(optimizers.sharded_masked(unmasked, mask))
    tx = optimizers.sharded_chain(*chain)
    if not self.optimizer.ema_decay:
      return tx
    ema = sharded_transforms.as_sharded(
      optimizers.apply_ema_weights(self.optimizer.ema_decay)
    )
    return _chain_with_leading_ema_state(tx, ema)

  def _check_moving_averages(self) -> None:
    """Raises ValueError for decays other than that of all variables."""
    main = self.optimizer.ema_decay
    for name, opt in self._named_optimizers():
      if opt.ema_decay not in (0.0, main):
        raise ValueError(
          f'ema_decay of the auxiliary optimizer {name!r} must be 0 or that of '
          f'the main optimizer, {main}, got {opt.ema_decay}; the main '
          "optimizer's is that of all variables, set it there"
        )

  def _named_optimizers(self) -> list[tuple[str, optimizers.Optimizer]]:
    auxiliary = zip(
      self.auxiliary_names, self.auxiliary_optimizers, strict=True
    )
    return [('main', self.optimizer), *auxiliary]


def _chain_with_leading_ema_state(
  tx: optimizers.ShardedGradientTransformation,
  ema: optimizers.ShardedGradientTransformation,
) -> optimizers.ShardedGradientTransformation:
  """Returns the chain of `tx` and `ema`, with the state of `ema` first.

  Checkpoints have that order.
  """

  def update(
    updates: Nested[JTensor],
    state: tuple[Any, ...],
    params: Nested[JTensor] | None = None,
  ) -> tuple[Nested[JTensor], tuple[Any, ...]]:
    updates, tx_state = tx.update(updates, state[1:], params)
    updates, ema_state = ema.update(updates, state[0], params)
    return updates, (ema_state, *tx_state)

  return optimizers.ShardedGradientTransformation(
    init=lambda params: (ema.init(params), *tx.init(params)),
    update=update,
    init_partition_spec=lambda hparams: (
      ema.init_partition_spec(hparams),
      *tx.init_partition_spec(hparams),
    ),
  )
