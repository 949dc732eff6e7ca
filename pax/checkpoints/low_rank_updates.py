# SPDX-License-Identifier: Apache-2.0
"""Low-rank updates of weights in checkpoints.

The factors of the update of a weight `w` are `lora_a` and `lora_b`, the change
of the norms of its outputs `lora_magnitude_delta`; those of another weight have
its name before these.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from pax.checkpoints import policy_networks
from pax.checkpoints.types import CheckpointError, Shapes
from pax.files import storage

MAGNITUDE_DELTA = 'lora_magnitude_delta'

_VARIABLE = re.compile(
  rf'(mdl_vars\.params\..*\.)(?:(\w+)_)?(lora_a|{MAGNITUDE_DELTA})'
)


def weight_of(leaf: str) -> str | None:
  """Returns the leaf of the weight that a factor A updates.

  Args:
    leaf: Name of a leaf.

  Returns:
    None if the leaf is no factor A.
  """
  return None if leaf.endswith(MAGNITUDE_DELTA) else _weight_of(leaf)


def _weight_of(leaf: str) -> str | None:
  match = _VARIABLE.fullmatch(leaf)
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
    is_left_out = leaf not in used and _weight_of(leaf) in used
    if not is_left_out or policy_networks.is_frozen(leaf):
      continue
    settings = f'LORA_RANK={shape[-1]}'
    if leaf.endswith(MAGNITUDE_DELTA):
      settings = 'LORA_USE_DORA=True'
    raise CheckpointError(
      f'the model must have the low-rank updates of {path}, such as {leaf} of'
      f' shape {list(shape)}; set {settings} and the LORA_TARGET_LAYERS of its'
      ' job, or add them to the weights by pax convert pax-to-hf'
    )


def check_magnitudes(
  path: storage.Path, loaded: Collection[str], leaves: Collection[str]
) -> None:
  """Checks that no factor is loaded without the norms of its outputs.

  Norms that begin as those of the weight would not be those of the sum.

  Args:
    path: The checkpoint, for messages.
    loaded: Names of the leaves of the model that it initializes.
    leaves: Names of all leaves of the model.

  Raises:
    CheckpointError: A factor is.
  """
  for leaf in leaves:
    layer = leaf.removesuffix(MAGNITUDE_DELTA)
    if layer != leaf and leaf not in loaded and f'{layer}lora_a' in loaded:
      raise CheckpointError(
        f'the low-rank updates of {path} must have magnitudes, such as {leaf},'
        ' got a checkpoint without; set LORA_USE_DORA=False, or write them by'
        ' pax convert pax-to-hf --adapter and begin with LORA_ADAPTER_DIR'
      )
