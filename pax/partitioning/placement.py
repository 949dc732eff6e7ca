# SPDX-License-Identifier: Apache-2.0
"""The one thing in which the ways of running differ: what lies where."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh, PartitionSpec

from pax import train_states


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
  """Where state and batches lie, and how a step runs on them."""

  mesh: Mesh
  # Axis of the replicas that each run the step on their own part of the batch;
  # None when one program sees the whole batch.
  axis_name: str | None
  # WeightHParams of the variables -> TrainState of PartitionSpecs.
  state_specs: Callable[[Any], train_states.TrainState]
  # Rank of an input -> how it is split.
  batch_spec: Callable[[int], PartitionSpec]
  # Step on one part of the batch, specs of its outputs -> step on all of it.
  globalize: Callable[[Callable[..., Any], Any], Callable[..., Any]]
  # Whether a batch that the mesh does not divide is an error; steps split it
  # unevenly where it is not.
  even_batches: bool
