# SPDX-License-Identifier: Apache-2.0
"""Meshes, shardings, global batches and compiled steps."""

from __future__ import annotations

from pax.partitioning.memory import MemoryReport as MemoryReport
from pax.partitioning.memory import (
  state_bytes_per_device as state_bytes_per_device,
)
from pax.partitioning.mesh import create_mesh as create_mesh
from pax.partitioning.partitioned_step import (
  PartitionedStep as PartitionedStep,
)
from pax.partitioning.partitioner import Partitioner as Partitioner
from pax.partitioning.partitioner import (
  create_partitioner as create_partitioner,
)
