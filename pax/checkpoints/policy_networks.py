# SPDX-License-Identifier: Apache-2.0
"""Names of a language model's network and of those that do not learn.

The network that learns is `lm` in a LanguageModel, in a LanguageModelGRPO with
the reference `ref_lm`, and in a LanguageModelDistillation with the teacher
`teacher_lm`; in a LanguageModelDPO it is `mdl`, and the reference `ref_mdl`.
Where low-rank updates learn, the reference is the network with other updates,
whose factors have the prefix `ref_`.
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
_REFERENCE_FACTOR = re.compile(
  r'(mdl_vars\..*\.)ref_((?:\w+_)?lora_(?:a|b|magnitude_delta))'
)
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
  is_network = match is not None and match[2] is not None
  return is_network or _REFERENCE_FACTOR.fullmatch(leaf) is not None


def source_leaves(leaf: str, *, is_trained: bool = True) -> list[str]:
  """Returns the leaves of another checkpoint that may initialize a leaf.

  They are the leaf, or that of a policy with another name. The reference of
  training is the policy at its start, so that a second round of preferences or
  rewards begins with the policy of the first; that of an evaluation is the one
  of the checkpoint, if it has one. A teacher has its own.

  Args:
    leaf: Name of a leaf of the state.
    is_trained: Whether the state is that of training.
  """
  if factor := _REFERENCE_FACTOR.fullmatch(leaf):
    of_policy = source_leaves(factor[1] + factor[2], is_trained=is_trained)
    return of_policy if is_trained else [leaf, *of_policy]
  match = _LEAF.fullmatch(leaf)
  if match is None or match[2] == _TEACHER_PREFIX:
    return [leaf]
  collection, _, network, variable = match.groups()
  names = [network, *(name for name in _POLICIES if name != network)]
  policies = [f'{collection}.{name}.{variable}' for name in names]
  is_own_first = not is_trained and leaf not in policies
  return [leaf, *policies] if is_own_first else policies
