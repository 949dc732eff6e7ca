# SPDX-License-Identifier: Apache-2.0
"""Masks of variables without a gradient or without optimizer state.

`Learner` decides by its own masks; these serve users' step functions.
"""

from __future__ import annotations

import jax

from pax import learners
from praxis import base_layer, py_utils, pytypes
from praxis.pytypes import Nested

JTensor = pytypes.JTensor
Hparams = Nested[base_layer.WeightHParams]


def get_excluded_var_mask_for_grad_or_opt(
  var_weight_hparams: Hparams,
  learner: learners.Learner,
  mask_all_non_trainable: bool,
  mask_all_overwrite_with_gradient: bool = False,
) -> Nested[bool]:
  """Returns the mask of variables that the learner excludes.

  Variables that become their gradient are not excluded by name.

  Args:
    var_weight_hparams: WeightHParams of the variables.
    learner: Its `bprop_variable_inclusion` or `bprop_variable_exclusion`
      selects the variables.
    mask_all_non_trainable: Whether to exclude non-trainable variables.
    mask_all_overwrite_with_gradient: Whether to exclude variables that become
      their gradient.
  """
  if learner.bprop_variable_inclusion:
    included = py_utils.match_variable_names(
      var_weight_hparams, learner.bprop_variable_inclusion
    )
    excluded = jax.tree.map(lambda is_included: not is_included, included)
  else:
    excluded = py_utils.match_variable_names(
      var_weight_hparams, learner.bprop_variable_exclusion
    )

  def is_excluded(hparams: base_layer.WeightHParams, by_name: bool) -> bool:
    is_overwritten = base_layer.var_overwrite_with_gradient(hparams)
    return (
      (by_name and not is_overwritten)
      or (mask_all_non_trainable and base_layer.var_not_trainable(hparams))
      or (mask_all_overwrite_with_gradient and is_overwritten)
    )

  return jax.tree.map(is_excluded, var_weight_hparams, excluded)


def get_excluded_var_mask_for_opt(
  var_weight_hparams: Hparams, learner: learners.Learner
) -> Nested[bool]:
  """Returns the mask of variables without optimizer state.

  Averages of non-trainable variables are part of the state.
  """
  if learner.keep_optimizer_state_for_excluded_vars:
    return jax.tree.map(lambda _: False, var_weight_hparams)
  return get_excluded_var_mask_for_grad_or_opt(
    var_weight_hparams,
    learner,
    mask_all_non_trainable=learner.optimizer.ema_decay == 0.0,
    mask_all_overwrite_with_gradient=True,
  )


def get_excluded_var_mask_for_grad(
  var_weight_hparams: Hparams, learner: learners.Learner
) -> Nested[bool]:
  """Returns the mask of variables without a gradient."""
  return get_excluded_var_mask_for_grad_or_opt(
    var_weight_hparams, learner, mask_all_non_trainable=True
  )


def get_frozen_var_mask(
  var_weight_hparams: Hparams, learner: learners.Learner
) -> Nested[bool]:
  """Returns the mask of variables that no training step changes.

  They are the parameters that do not learn, and the variables of the other
  collections, which the model updates, that are excluded by name.

  Args:
    var_weight_hparams: WeightHParams of the variables by collection.
    learner: The learner of the task.
  """
  is_excluded = get_excluded_var_mask_for_grad_or_opt(
    var_weight_hparams, learner, mask_all_non_trainable=False
  )
  is_learned = learner.bprop_mask(var_weight_hparams)
  params = f'{base_layer.PARAMS}/'
  return py_utils.map_with_path(
    lambda path, learned, excluded: (
      not learned if path.startswith(params) else excluded
    ),
    is_learned,
    is_excluded,
  )


def filter_vars_for_grad_or_opt(
  mdl_vars: Nested[JTensor], excluded_for_grad: Nested[bool]
) -> Nested[JTensor | py_utils.BpropMaskedNode]:
  """Returns the variables with a BpropMaskedNode for each excluded one."""
  return jax.tree.map(
    lambda value, excluded: py_utils.BpropMaskedNode() if excluded else value,
    mdl_vars,
    excluded_for_grad,
  )
