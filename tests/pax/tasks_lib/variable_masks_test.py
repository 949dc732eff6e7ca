# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Masks of variables that a learner excludes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from pax import learners, tasks_lib
from praxis import base_layer, optimizers, py_utils

_COLLECTIONS = base_layer.WeightHParamsCollection


def _weight(*collections):
  return base_layer.WeightHParams(
    (2,), dtype=jnp.float32, collections=list(collections)
  )


def _hparams():
  return {
    'params': {
      'a': _weight(),
      'b': _weight(),
      'scale': _weight(_COLLECTIONS.OVERWRITE_WITH_GRADIENT),
    },
    'non_trainable': {'mean': _weight(_COLLECTIONS.NON_TRAINABLE)},
  }


def _excluded(mask):
  """Returns the paths of excluded variables."""
  return {
    jax.tree_util.keystr(path, simple=True, separator='/')
    for path, is_excluded in jax.tree_util.tree_flatten_with_path(mask)[0]
    if is_excluded
  }


def _learner(ema_decay=0.0, **fields):
  return learners.Learner.config(
    name='learner',
    loss_name='loss',
    optimizer=optimizers.Sgd.config(learning_rate=0.1, ema_decay=ema_decay),
    **fields,
  ).Instantiate()


@pytest.mark.parametrize(
  'fields, excluded',
  [
    ({}, set()),
    ({'bprop_variable_exclusion': 'params/b'}, {'params/b'}),
    ({'bprop_variable_exclusion': '.*/scale'}, set()),
    ({'bprop_variable_inclusion': ['params/b', '.*/mean']}, {'params/a'}),
  ],
)
def test_masks(fields, excluded):
  hparams, learner = _hparams(), _learner(**fields)
  mean, scale = 'non_trainable/mean', 'params/scale'
  mask = tasks_lib.get_excluded_var_mask_for_grad_or_opt(
    hparams, learner, False
  )
  assert _excluded(mask) == excluded
  mask = tasks_lib.get_excluded_var_mask_for_grad(hparams, learner)
  assert _excluded(mask) == excluded | {mean}
  mask = tasks_lib.get_excluded_var_mask_for_opt(hparams, learner)
  assert _excluded(mask) == excluded | {mean, scale}
  mask = tasks_lib.get_excluded_var_mask_for_opt(
    hparams, _learner(ema_decay=0.9, **fields)
  )
  assert _excluded(mask) == excluded | {scale}


def test_states_of_excluded_variables_are_kept():
  learner = _learner(
    keep_optimizer_state_for_excluded_vars=True, bprop_variable_exclusion='.*'
  )
  mask = tasks_lib.get_excluded_var_mask_for_opt(_hparams(), learner)
  assert not _excluded(mask)


def test_filter():
  values = {'a': jnp.ones(2), 'b': jnp.ones(2)}
  filtered = tasks_lib.filter_vars_for_grad_or_opt(
    values, {'a': False, 'b': True}
  )
  assert filtered['a'] is values['a']
  assert py_utils.is_bprop_masked_node(filtered['b'])
