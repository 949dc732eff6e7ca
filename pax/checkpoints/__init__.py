# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saved when due, complete or absent, restored on any mesh."""

from __future__ import annotations

from pax.checkpoints import init_from as init_from
from pax.checkpoints import reading as reading
from pax.checkpoints.contract import (
  CheckpointError as CheckpointError,
)
from pax.checkpoints.contract import (
  CheckpointOptions as CheckpointOptions,
)
from pax.checkpoints.contract import (
  CheckpointType as CheckpointType,
)
from pax.checkpoints.contract import (
  CorruptCheckpointError as CorruptCheckpointError,
)
from pax.checkpoints.contract import (
  Restored as Restored,
)
from pax.checkpoints.manager import (
  Checkpointer as Checkpointer,
)
from pax.checkpoints.manager import (
  FileCheckpointer as FileCheckpointer,
)
from pax.checkpoints.manager import (
  NoopCheckpointer as NoopCheckpointer,
)
from pax.checkpoints.manager import (
  create_checkpointer as create_checkpointer,
)
from pax.checkpoints.retention import parse_duration as parse_duration
