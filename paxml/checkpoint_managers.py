# SPDX-License-Identifier: Apache-2.0
"""Re-exports directories of checkpoints under paxml's path."""

from __future__ import annotations

from pax.checkpoints.types import (
  CheckpointType,
)
from pax.paxml_api.checkpoint_manager_options import CheckpointManagerOptions
from pax.paxml_api.checkpoint_managers import (
  INPUT_ITEM_NAME,
  METADATA_ITEM_NAME,
  STATE_ITEM_NAME,
  OptionalNestedShapeDtypeStruct,
  OrbaxCheckpointManager,
)

__all__ = [
  'CheckpointManagerOptions',
  'CheckpointType',
  'INPUT_ITEM_NAME',
  'METADATA_ITEM_NAME',
  'OptionalNestedShapeDtypeStruct',
  'OrbaxCheckpointManager',
  'STATE_ITEM_NAME',
]
