# SPDX-License-Identifier: Apache-2.0
"""Which variables a learner learns, by regular expressions on their paths."""

from __future__ import annotations

import re
from collections.abc import Sequence

from absl import logging

from praxis import base_layer, py_utils, pytypes

Nested = pytypes.Nested
Hparams = Nested[base_layer.WeightHParams]


def patterns(value: str | Sequence[str] | None) -> tuple[str, ...]:
  """Returns one or more regular expressions as a tuple."""
  if not value:
    return ()
  return (value,) if isinstance(value, str) else tuple(value)


def trainable(var_weight_hparams: Hparams) -> Nested[bool]:
  """Returns which variables a gradient may change."""
  return py_utils.map_with_path(
    lambda path, hparams: base_layer.var_is_trainable(hparams),
    var_weight_hparams,
  )


def selected(
  var_weight_hparams: Hparams,
  *,
  exclusion: Sequence[str],
  inclusion: Sequence[str],
) -> Nested[bool]:
  """Returns which trainable variables are learned.

  An expression must match the whole path, as in 'params/lm/softmax/.*'. With
  `inclusion` only what matches one is learned, with `exclusion` what matches
  none. An expression that matches no variable at all is logged.
  """
  paths = [path for path, _ in py_utils.tree_paths(var_weight_hparams)]
  for pattern in (*exclusion, *inclusion):
    if not any(re.fullmatch(pattern, path) for path in paths):
      logging.log_first_n(
        logging.WARNING,
        'bprop_variable_exclusion or inclusion has %r, which matches no'
        ' variable; paths look like %s',
        1,
        pattern,
        paths[:3],
      )

  def matches(path: str, these: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, path) for pattern in these)

  def is_learned(path: str, hparams: base_layer.WeightHParams) -> bool:
    if not base_layer.var_is_trainable(hparams) or matches(path, exclusion):
      return False
    return not inclusion or matches(path, inclusion)

  return py_utils.map_with_path(is_learned, var_weight_hparams)


def overwritten(var_weight_hparams: Hparams) -> Nested[bool]:
  """Returns which variables are replaced by their gradient."""
  return py_utils.map_with_path(
    lambda path, hparams: base_layer.var_overwrite_with_gradient(hparams),
    var_weight_hparams,
  )
