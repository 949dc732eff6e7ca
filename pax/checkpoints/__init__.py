# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a train state: saved atomically, restored on any mesh."""

from __future__ import annotations

from pax.checkpoints import init_from as init_from
from pax.checkpoints import reading as reading
from pax.checkpoints.manager import Checkpointer as Checkpointer
from pax.checkpoints.manager import FileCheckpointer as FileCheckpointer
from pax.checkpoints.manager import create_checkpointer as create_checkpointer
from pax.checkpoints.types import CheckpointError as CheckpointError
from pax.checkpoints.types import CheckpointOptions as CheckpointOptions
from pax.checkpoints.types import (
  CheckpointTimeoutError as CheckpointTimeoutError,
)
from pax.checkpoints.types import CheckpointType as CheckpointType
from pax.checkpoints.types import (
  CorruptCheckpointError as CorruptCheckpointError,
)
from pax.checkpoints.types import JobFunctions as JobFunctions
from pax.checkpoints.types import Restored as Restored
from pax.checkpoints.types import parse_duration as parse_duration
