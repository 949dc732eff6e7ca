# SPDX-License-Identifier: Apache-2.0
"""Low-rank updates of weights in checkpoints.

The factors of the update of a weight `w` are `lora_a` and `lora_b`, those of
another weight have its name before these.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from pax import storage
from pax.checkpoints import policy_networks
from pax.checkpoints.types import CheckpointError, Shapes

_FACTOR_A = re.compile(r'(mdl_vars\.params\..*\.)(?:(\w+)_)?lora_a')


def weight_of(leaf: str) -> str | None:
  """Returns the leaf of the weight that a factor A updates.

  Args:
    leaf: Name of a leaf.

  Returns:
    None if the leaf is no factor A.
  """
  match = _FACTOR_A.fullmatch(leaf)
  return None if match is None else f'{match[1]}{match[2] or "w"}'


def check_used(
  path: storage.Path, saved: Shapes, used: Collection[str]
) -> None:
  """Checks that no weight is used without its update.

  Args:
    path: The checkpoint, for messages.
    saved: Shapes and dtypes of its leaves.
    used: Names of the leaves that are read.

  Raises:
    CheckpointError: A weight is.
  """
  for leaf, (shape, _) in saved.items():
    is_left_out = leaf not in used and weight_of(leaf) in used
    if is_left_out and not policy_networks.is_frozen(leaf):
      raise CheckpointError(
        f'the model must have the low-rank updates of {path}, such as {leaf} of'
        f' shape {list(shape)}; set LORA_RANK={shape[-1]} and the'
        ' LORA_TARGET_LAYERS of its job, or add them to the weights by pax'
        ' convert pax-to-hf'
      )
