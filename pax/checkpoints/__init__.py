# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saved when due, complete or absent, restored on any mesh."""

from __future__ import annotations

from pax.checkpoints.manager import (
    Checkpointer as Checkpointer,
    FileCheckpointer as FileCheckpointer,
    NoopCheckpointer as NoopCheckpointer,
    create_checkpointer as create_checkpointer,
)
from pax.checkpoints.retention import parse_duration as parse_duration
from pax.checkpoints.contract import (
    CheckpointError as CheckpointError,
    CheckpointOptions as CheckpointOptions,
    CheckpointType as CheckpointType,
    CorruptCheckpointError as CorruptCheckpointError,
    Restored as Restored,
)
