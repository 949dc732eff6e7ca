# SPDX-License-Identifier: Apache-2.0
"""Boolean trees over variables: trainable, learned, overwritten."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from absl import logging

from praxis import base_layer, py_utils
from praxis.pytypes import Nested

Hparams = Nested[base_layer.WeightHParams]


def as_patterns(value: str | Sequence[str] | None) -> tuple[str, ...]:
  """Returns one or several regular expressions as a tuple."""
  if not value:
    return ()
  return (value,) if isinstance(value, str) else tuple(value)


def trainable(var_weight_hparams: Hparams) -> Nested[bool]:
  """Returns the mask of variables that gradients may update."""
  return py_utils.map_with_path(
    lambda path, hparams: base_layer.var_is_trainable(hparams),
    var_weight_hparams,
  )


def learned(
  var_weight_hparams: Hparams,
  *,
  exclusion: Sequence[str],
  inclusion: Sequence[str],
) -> Nested[bool]:
  """Returns the mask of trainable variables that the patterns select.

  Those that their gradient replaces are always in it: the scales of fp8 follow
  activations and gradients of frozen layers too.

  Args:
    var_weight_hparams: WeightHParams of the variables.
    exclusion: As in `selected`.
    inclusion: Likewise.
  """
  return jax.tree.map(
    lambda is_trainable, is_selected, is_overwritten: (
      is_trainable and (is_selected or is_overwritten)
    ),
    trainable(var_weight_hparams),
    selected(var_weight_hparams, exclusion=exclusion, inclusion=inclusion),
    overwritten(var_weight_hparams),
  )


def averageable(var_weight_hparams: Hparams) -> Nested[bool]:
  """Returns the mask of variables that are trainable or not of integers."""
  return py_utils.map_with_path(
    lambda path, hparams: (
      base_layer.var_is_trainable(hparams)
      or hparams.dtype is None
      or jnp.issubdtype(hparams.dtype, jnp.inexact)
    ),
    var_weight_hparams,
  )


def selected(
  var_weight_hparams: Hparams,
  *,
  exclusion: Sequence[str],
  inclusion: Sequence[str],
) -> Nested[bool]:
  """Returns the mask of variables, trainable or not, that patterns select.

  A pattern that matches no variable is logged.

  Args:
    var_weight_hparams: WeightHParams of the variables.
    exclusion: Regular expressions; a variable whose whole path, such as
      'params/lm/softmax/w', matches one of them is not selected.
    inclusion: Regular expressions; if there are any, only variables whose whole
      path matches one of them are selected.
  """
  paths = [path for path, _ in py_utils.tree_paths(var_weight_hparams)]
  for pattern in (*exclusion, *inclusion):
    if not any(re.fullmatch(pattern, path) for path in paths):
      logging.log_first_n(
        logging.WARNING,
        'bprop_variable_exclusion or bprop_variable_inclusion has %r, which'
        ' matches no variable; paths look like %s',
        1,
        pattern,
        paths[:3],
      )

  def matches(path: str, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, path) for pattern in patterns)

  return py_utils.map_with_path(
    lambda path, hparams: (
      not matches(path, exclusion)
      and (not inclusion or matches(path, inclusion))
    ),
    var_weight_hparams,
  )


def overwritten(var_weight_hparams: Hparams) -> Nested[bool]:
  """Returns the mask of variables that their gradient replaces."""
  return py_utils.map_with_path(
    lambda path, hparams: base_layer.var_overwrite_with_gradient(hparams),
    var_weight_hparams,
  )
