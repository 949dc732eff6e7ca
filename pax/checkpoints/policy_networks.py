# SPDX-License-Identifier: Apache-2.0
"""Names of a language model's network, as a policy, and of its reference.

The network is `lm` in a LanguageModel and in a LanguageModelGRPO, whose
reference is `ref_lm`; in a LanguageModelDPO they are `mdl` and `ref_mdl`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Paths of the variables of references, for `bprop_variable_exclusion`.
REFERENCE_VARIABLES = '.*/ref_(mdl|lm)/.*'
# The network of a LanguageModel.
NETWORK = 'lm'

_POLICIES = ('mdl', NETWORK)
_LEAF = re.compile(r'(mdl_vars\.\w+)\.(ref_)?(mdl|lm)\.(.*)')


def policy_of(leaves: Iterable[str]) -> str:
  """Returns the name of the network that learns.

  Args:
    leaves: Names of leaves of a checkpoint.
  """
  found = {match[3] for match in map(_LEAF.fullmatch, leaves) if match}
  return next((name for name in _POLICIES if name in found), NETWORK)


def is_of_reference(leaf: str) -> bool:
  """Returns whether a leaf is a variable of a reference.

  Args:
    leaf: Name of a leaf of a checkpoint.
  """
  match = _LEAF.fullmatch(leaf)
  return match is not None and match[2] is not None


def source_leaves(leaf: str) -> list[str]:
  """Returns the leaves of another checkpoint that may initialize a leaf.

  They are the leaf, or that of a policy with another name. A reference is the
  policy at the start, so that a second round of preferences or rewards begins
  with the policy of the first.

  Args:
    leaf: Name of a leaf of the state.
  """
  match = _LEAF.fullmatch(leaf)
  if match is None:
    return [leaf]
  collection, _, network, variable = match.groups()
  names = [network, *(name for name in _POLICIES if name != network)]
  return [f'{collection}.{name}.{variable}' for name in names]
