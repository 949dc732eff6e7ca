# SPDX-License-Identifier: Apache-2.0
"""Names of a language model's network and of those that do not learn.

The network that learns is `lm` in a LanguageModel, in a LanguageModelGRPO with
the reference `ref_lm`, and in a LanguageModelDistillation with the teacher
`teacher_lm`; in a LanguageModelDPO it is `mdl`, and the reference `ref_mdl`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Paths of variables that do not learn, for `bprop_variable_exclusion`.
FROZEN_VARIABLES = '.*/(ref_mdl|ref_lm|teacher_lm)/.*'
# The network of a LanguageModel.
NETWORK = 'lm'
# The teacher of a LanguageModelDistillation.
TEACHER = 'teacher_lm'

_POLICIES = ('mdl', NETWORK)
_TEACHER_PREFIX = 'teacher_'
_LEAF = re.compile(rf'(mdl_vars\.\w+)\.(ref_|{_TEACHER_PREFIX})?(mdl|lm)\.(.*)')


def policy_of(leaves: Iterable[str]) -> str:
  """Returns the name of the network that learns.

  Args:
    leaves: Names of leaves of a checkpoint.
  """
  found = {match[3] for match in map(_LEAF.fullmatch, leaves) if match}
  return next((name for name in _POLICIES if name in found), NETWORK)


def is_frozen(leaf: str) -> bool:
  """Returns whether a leaf is a variable of a reference or a teacher.

  Args:
    leaf: Name of a leaf of a checkpoint.
  """
  match = _LEAF.fullmatch(leaf)
  return match is not None and match[2] is not None


def source_leaves(leaf: str) -> list[str]:
  """Returns the leaves of another checkpoint that may initialize a leaf.

  They are the leaf, or that of a policy with another name. A reference is the
  policy at the start, so that a second round of preferences or rewards begins
  with the policy of the first. A teacher has its own.

  Args:
    leaf: Name of a leaf of the state.
  """
  match = _LEAF.fullmatch(leaf)
  if match is None or match[2] == _TEACHER_PREFIX:
    return [leaf]
  collection, _, network, variable = match.groups()
  names = [network, *(name for name in _POLICIES if name != network)]
  return [f'{collection}.{name}.{variable}' for name in names]
