# SPDX-License-Identifier: Apache-2.0
"""The learner: clips gradients, runs the optimizer, updates variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from pax.learners import clipping, optimizer_summaries, variable_masks
from pax.learners.stochastic_gradients import (
  stochastic_gradient as stochastic_gradients,
)
from praxis import (
  base_hyperparams,
  base_layer,
  optimizers,
  pax_fiddle,
  py_utils,
  pytypes,
  value_domains,
)
from praxis.nested_map import NestedMap
from praxis.optimizers import (
  masked_trees,
  prefix_vectorization,
  sharded_transforms,
)
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
Hparams = Nested[base_layer.WeightHParams]
# A pytree of the variables.
_VarsT = TypeVar('_VarsT', bound=Nested[JTensor])


class Learner(base_hyperparams.FiddleBaseParameterizable):
  """Clips gradients, runs the optimizer, skips invalid steps, applies updates.

  All trees have the structure of the model's variables. `get_grad_tx` defines
  the optimizer state; `update_states` and `apply_gradient` are one step:

      updates, states = learner.update_states(grads, states, vars, hparams)
      vars = learner.apply_gradient(vars, updates, hparams)

  Summaries go to the current `JaxContext`.
  """

  # The optimizer; required.
  optimizer: optimizers.Optimizer
  # Name of the weighted scalar of the model to minimize.
  loss_name: str | None = None
  # Computes gradients; None is plain differentiation.
  stochastic_gradient: stochastic_gradients.BaseStochasticGradient | None = None
  # Not supported; must be None.
  skip_zero_gradients: bool | None = None
  # Whether to record the norm of gradients and variables, overall and by
  # variable.
  grad_norm_summary: bool = True
  grad_norm_individual_vars: bool = False
  var_norm_summary: bool = True
  var_norm_individual_vars: bool = False
  # Whether a step with a non-finite gradient is invalid; see also
  # `task.train.max_consecutive_nonfinite_steps`.
  check_valid_step: bool = True
  # Whether to vectorize the optimizer over the layers of a repeated stack; see
  # praxis.optimizers.
  vectorize_on_repeat_prefix: bool = True
  # Whether the state has the structure of repeated stacks without any.
  force_repeat_prefix_structure: bool = False
  # A step whose gradient norm is at least this is invalid; 0 is no limit.
  skip_step_gradient_norm_value: float = value_domains.field(0.0, ge=0.0)
  # Whether an invalid step keeps variables and optimizer state unchanged.
  enable_skip_step_on_gradient_anomalies: bool = True
  # Regular expressions on whole paths: variables to exclude from learning, or
  # the only variables to learn. At most one of the two may be set.
  bprop_variable_exclusion: str | Sequence[str] = pax_fiddle.instance_field(
    list
  )
  bprop_variable_inclusion: str | Sequence[str] = pax_fiddle.instance_field(
    list
  )
  # Separator in the names of groups in the state of repeated stacks.
  repeat_prefix_sep: str = '#'
  # Whether excluded and non-trainable variables have optimizer state; their
  # gradients are zero.
  keep_optimizer_state_for_excluded_vars: bool = False
  # Whether to multiply updates by the scale of the variable's initializer, if
  # the variable has two or more dimensions.
  scale_update_by_var_norm: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.name:
      raise ValueError("Learner.name must be set, for example 'learner'")
    NestedMap.CheckKey(self.name)
    if self.skip_zero_gradients is not None:
      raise ValueError(
        'Learner.skip_zero_gradients is not supported, got'
        f' {self.skip_zero_gradients}; leave it None'
      )
    if self.bprop_variable_exclusion and self.bprop_variable_inclusion:
      raise ValueError(
        'Learner takes bprop_variable_exclusion or bprop_variable_inclusion,'
        f' got both: {self.bprop_variable_exclusion} and'
        f' {self.bprop_variable_inclusion}'
      )
    if self.force_repeat_prefix_structure and not (
      self.vectorize_on_repeat_prefix
    ):
      raise ValueError(
        'Learner.force_repeat_prefix_structure needs'
        ' vectorize_on_repeat_prefix=True, got False'
      )
    self.optimizer = build_optimizer('Learner.optimizer', self.optimizer)

  def bprop_mask(self, var_weight_hparams: Hparams) -> Nested[bool]:
    """Returns the mask of learned variables: trainable and not excluded."""
    return variable_masks.learned(var_weight_hparams, **self._bprop_patterns())

  def get_grad_tx(
    self, var_weight_hparams: Hparams
  ) -> optimizers.ShardedGradientTransformation:
    """Returns the gradient transformation, masked to variables with state.

    Its `init` and `init_partition_spec` take trees of all variables.
    """
    mask = self._state_mask(var_weight_hparams)
    tx = self._make_tx(masked_trees.mask_tree(var_weight_hparams, mask))
    return sharded_transforms.masked_transformation(tx, mask)

  def update_states(
    self,
    grads: Nested[JTensor],
    states: Any,
    old_vars: Nested[JTensor],
    var_weight_hparams: Hparams,
    step: ArrayLike | None = None,
  ) -> tuple[Nested[JTensor], Any]:
    """Returns (updates to add to the variables, new optimizer state).

    Args:
      grads: Gradients; those of variables that are not learned are ignored and
        may be masked.
      states: The optimizer state.
      old_vars: The variables.
      var_weight_hparams: WeightHParams of the variables.
      step: Number of previous steps, for summaries of the learning rate and of
        skipped steps; None records neither.
    """
    if step is not None:
      self.plot_learning_rate(step)
    mask = self.bprop_mask(var_weight_hparams)
    grads, valid_step = self._scale(
      masked_trees.mask_tree(grads, mask), var_weight_hparams
    )
    grads = self._fill_excluded(grads, old_vars, var_weight_hparams)
    tx = self.get_grad_tx(var_weight_hparams)

    def update() -> tuple[Nested[JTensor], Any]:
      updates, new_states = tx.update(grads, states, old_vars)
      updates = jax.tree.map(lambda u, g: u.astype(g.dtype), updates, grads)
      return masked_trees.mask_tree(updates, mask), new_states

    def skip() -> tuple[Nested[JTensor], Any]:
      no_updates = self._no_updates(grads, old_vars, var_weight_hparams)
      return masked_trees.mask_tree(no_updates, mask), states

    updates, new_states = self._if_valid(valid_step, update, skip)
    if self.grad_norm_summary:
      optimizer_summaries.add_aggregate(
        'learning/applied_grad_norm',
        clipping.global_norm(
          self._mask_overwritten(updates, var_weight_hparams)
        ),
      )
    if step is not None:
      optimizer_summaries.add_skipped_steps(step, new_states)
    optimizer_summaries.add_summaries_of_transformations(new_states)
    return updates, new_states

  def is_applied(
    self, grads: Nested[JTensor], var_weight_hparams: Hparams
  ) -> Bool[Array, ''] | bool:
    """Returns whether `update_states` applies these gradients or skips them.

    True if it always applies them.
    """
    if not self.enable_skip_step_on_gradient_anomalies:
      return True
    learned = masked_trees.mask_tree(grads, self.bprop_mask(var_weight_hparams))
    # The summaries are those of `update_states`.
    with base_layer.JaxContext.new_context():
      return self._scale(learned, var_weight_hparams)[1]

  def apply_gradient(
    self,
    old_vars: _VarsT,
    transformed_grads: Nested[JTensor],
    var_weight_hparams: Hparams,
  ) -> _VarsT:
    """Returns the variables with the updates `transformed_grads` applied.

    A variable with a masked update is unchanged; a variable with the collection
    OVERWRITE_WITH_GRADIENT becomes its update.
    """

    def new_value(
      path: str,
      hparams: base_layer.WeightHParams,
      update: JTensor,
      old: JTensor,
    ) -> JTensor:
      if masked_trees.is_masked(update):
        return old
      if base_layer.var_overwrite_with_gradient(hparams):
        return update.astype(old.dtype)
      if self.scale_update_by_var_norm and len(hparams.shape) > 1:
        update = update * base_layer.var_init_scale(hparams, path)
      return (old + update).astype(old.dtype)

    new_vars = py_utils.map_with_path(
      new_value, var_weight_hparams, transformed_grads, old_vars
    )
    # The variables of this learner: those that it updates or has state of.
    mask = jax.tree.map(
      lambda is_learned, has_state: is_learned or has_state,
      self.bprop_mask(var_weight_hparams),
      self._state_mask(var_weight_hparams),
    )
    own_vars = masked_trees.mask_tree(old_vars, mask)
    if self.var_norm_summary:
      optimizer_summaries.add_aggregate(
        'learning/var_norm',
        clipping.global_norm(
          self._mask_overwritten(own_vars, var_weight_hparams)
        ),
      )
    if self.var_norm_individual_vars:
      self.summarize_norms('per_var_norm', own_vars)
    return new_vars

  def scale_gradients(
    self,
    raw_grads: Nested[JTensor],
    optimizer_name: str | None = None,
    clip_gradient_norm_to_value: float | None = None,
    clip_gradient_single_norm_to_value: float | None = None,
  ) -> tuple[Nested[JTensor], Bool[Array, ''] | bool]:
    """Clips gradients by norm; records their norms and whether they are valid.

    Args:
      raw_grads: Gradients.
      optimizer_name: Summaries are under `learning/<optimizer_name>/`; None is
        `learning/`.
      clip_gradient_norm_to_value: Maximum global norm, 0 for none; None takes
        the setting of the optimizer.
      clip_gradient_single_norm_to_value: Maximum norm of each gradient,
        likewise.

    Returns:
      The clipped gradients, and whether the step is valid: True without
      `check_valid_step`.
    """
    opt = self.optimizer
    if clip_gradient_norm_to_value is None:
      clip_gradient_norm_to_value = opt.clip_gradient_norm_to_value
    if clip_gradient_single_norm_to_value is None:
      clip_gradient_single_norm_to_value = (
        opt.clip_gradient_single_norm_to_value
      )
    scaled = clipping.clip(
      raw_grads,
      global_limit=clip_gradient_norm_to_value,
      single_limit=clip_gradient_single_norm_to_value,
    )
    group = f'learning/{optimizer_name}' if optimizer_name else 'learning'
    add = optimizer_summaries.add_aggregate
    add(f'{group}/grad_scale', scaled.scale)
    if self.grad_norm_summary:
      add(f'{group}/raw_grad_norm', scaled.raw_norm)
      add(f'{group}/clipped_grad_norm', scaled.clipped_norm)
    if self.grad_norm_individual_vars:
      name = f'/{optimizer_name}' if optimizer_name else ''
      self.summarize_norms(f'per_var_grad_norm{name}', raw_grads)
    return scaled.grads, self._is_valid(scaled.raw_norm, group)

  def plot_learning_rate(self, step: ArrayLike) -> None:
    """Records the learning rate after `step` batches in the summaries."""
    for name in ('learning/lr', 'lr'):
      optimizer_summaries.add_learning_rate(name, self.optimizer, step)

  def summarize_norms(
    self, summary_prefix: str, tensors: Nested[JTensor]
  ) -> None:
    """Records the norm of each tensor as `<summary_prefix>/<path>`."""
    for path, x in py_utils.tree_paths(tensors):
      optimizer_summaries.add_aggregate(
        f'{summary_prefix}/{path}', clipping.global_norm(x)
      )

  def _bprop_patterns(self) -> dict[str, tuple[str, ...]]:
    return {
      'exclusion': variable_masks.as_patterns(self.bprop_variable_exclusion),
      'inclusion': variable_masks.as_patterns(self.bprop_variable_inclusion),
    }

  def _make_tx(
    self, var_weight_hparams: Hparams
  ) -> optimizers.GradientTransformation:
    """Returns the gradient transformation of variables that are all learned."""
    if not self.vectorize_on_repeat_prefix:
      return self._optimizer_tx(var_weight_hparams)
    make = (
      prefix_vectorization.get_transformations_with_vectorized_repeat_prefix
    )
    return make(
      self._optimizer_tx,
      var_weight_hparams,
      repeat_prefix_sep=self.repeat_prefix_sep,
      force_prefix_structure=self.force_repeat_prefix_structure,
    )

  def _optimizer_tx(
    self, var_weight_hparams: Hparams
  ) -> optimizers.GradientTransformation:
    return self.optimizer.get_grad_transformation(var_weight_hparams)

  def _state_mask(self, var_weight_hparams: Hparams) -> Nested[bool]:
    """Returns the mask of variables with optimizer state.

    With a moving average these are also non-trainable variables, whose averages
    are part of the state, as in paxml.
    """
    hparams = var_weight_hparams
    if self.keep_optimizer_state_for_excluded_vars:
      mask = variable_masks.averageable(hparams)
    elif self.optimizer.ema_decay > 0.0:
      mask = jax.tree.map(
        lambda is_selected, is_averageable: is_selected and is_averageable,
        variable_masks.selected(hparams, **self._bprop_patterns()),
        variable_masks.averageable(hparams),
      )
    else:
      mask = self.bprop_mask(hparams)
    overwritten = variable_masks.overwritten(hparams)
    return jax.tree.map(lambda m, o: m and not o, mask, overwritten)

  def _fill_excluded(
    self,
    grads: Nested[JTensor],
    old_vars: Nested[JTensor],
    var_weight_hparams: Hparams,
  ) -> Nested[JTensor]:
    """Returns `grads` with zeros for further variables with state."""
    mask = self._state_mask(var_weight_hparams)
    zeros = jax.tree.map(jnp.zeros_like, masked_trees.mask_tree(old_vars, mask))
    return masked_trees.merge_tree(grads, zeros)

  def _scale(
    self, grads: Nested[JTensor], var_weight_hparams: Hparams
  ) -> tuple[Nested[JTensor], Bool[Array, ''] | bool]:
    """Returns (clipped gradients, whether the step is valid).

    Gradients of OVERWRITE_WITH_GRADIENT variables are not clipped.
    """
    scaled, valid_step = self._scale_ordinary(
      self._mask_overwritten(grads, var_weight_hparams), var_weight_hparams
    )
    return masked_trees.merge_tree(scaled, grads), valid_step

  def _mask_overwritten(
    self, tree: Nested[JTensor], var_weight_hparams: Hparams
  ) -> Nested[JTensor]:
    """Returns the tree without OVERWRITE_WITH_GRADIENT variables."""
    overwritten = variable_masks.overwritten(var_weight_hparams)
    ordinary = jax.tree.map(
      lambda is_overwritten: not is_overwritten, overwritten
    )
    return masked_trees.mask_tree(tree, ordinary)

  def _scale_ordinary(
    self, grads: Nested[JTensor], var_weight_hparams: Hparams
  ) -> tuple[Nested[JTensor], Bool[Array, ''] | bool]:
    del var_weight_hparams  # One optimizer scales all gradients alike.
    return self.scale_gradients(grads)

  def _is_valid(
    self, norm: Float[Array, ''], group: str
  ) -> Bool[Array, ''] | bool:
    """Returns whether gradients with this norm are valid, and records it."""
    if not self.check_valid_step:
      return True
    limit = self.skip_step_gradient_norm_value
    valid = clipping.is_valid(norm, limit)
    add = optimizer_summaries.add_aggregate
    add(f'{group}/is_valid_step', valid.astype(jnp.float32))
    if limit:
      # Otherwise a step is valid exactly if its gradient is finite.
      finite = clipping.is_valid(norm, 0.0)
      add(f'{group}/is_finite_gradient', finite.astype(jnp.float32))
    return valid

  def _if_valid(
    self,
    valid: Bool[Array, ''] | bool,
    update: Callable[[], tuple[Any, Any]],
    skip: Callable[[], tuple[Any, Any]],
  ) -> tuple[Any, Any]:
    """Returns the result of `update` in a valid step, else of `skip`."""
    if valid is True or not self.enable_skip_step_on_gradient_anomalies:
      return update()
    if py_utils.target_platform() == 'cpu':
      # With an elementwise select XLA:CPU copies the donated buffers.
      return jax.lax.cond(valid, update, skip)
    # Accelerators fuse the select into the update, which then overwrites the
    # old state in place. A conditional would hold gradients, updates, old and
    # new state at the same time.
    return jax.tree.map(
      lambda new, old: jnp.where(valid, new, old), update(), skip()
    )

  def _no_updates(
    self,
    grads: Nested[JTensor],
    old_vars: Nested[JTensor],
    var_weight_hparams: Hparams,
  ) -> Nested[JTensor]:
    """Returns updates that change no variable."""

    def no_update(overwrite: bool, grad: JTensor, old: JTensor) -> JTensor:
      if masked_trees.is_masked(grad):
        return grad
      return old.astype(grad.dtype) if overwrite else jnp.zeros_like(grad)

    overwritten = variable_masks.overwritten(var_weight_hparams)
    return jax.tree.map(no_update, overwritten, grads, old_vars)


def build_optimizer(field: str, optimizer: Any) -> optimizers.Optimizer:
  """Returns the optimizer, built if it is a Config.

  Raises:
    ValueError: it is not an optimizer; the message begins with `field`.
  """
  if isinstance(optimizer, pax_fiddle.Config):
    optimizer = optimizer.Instantiate()
  if isinstance(optimizer, optimizers.Optimizer):
    return optimizer
  hint = 'optimizers.Adam.config(learning_rate=1e-3)'
  if hasattr(optimizer, 'init') and hasattr(optimizer, 'update'):
    hint = 'optimizers.OptaxOptimizer.config(grad_tx=optax.adam(1e-3))'
  raise ValueError(
    f'{field} must be an optimizer or its Config, got {optimizer!r}; e.g.'
    f' {hint}'
  )
