# SPDX-License-Identifier: Apache-2.0
"""The types that signatures across Praxis and Pax are written in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from praxis.nested_map import NestedMap as NestedMap

T = TypeVar('T')
# A tree: a leaf, or maps, lists and tuples of them at any depth.
Nested = T | tuple[Any, ...] | list[Any] | dict[str, Any] | NestedMap

JTensor = jax.Array
NpTensor = np.ndarray
JTensorOrPartitionSpec = JTensor | jax.sharding.PartitionSpec
NestedJTensor = Nested[JTensor]
NestedNpTensor = Nested[np.ndarray]
NestedBool = Nested[bool]
NestedInt = Nested[int]
NestedShapeDtypeStruct = Nested[jax.ShapeDtypeStruct]
NestedPartitionSpec = Nested[jax.sharding.PartitionSpec]
NestedJTensorOrPartitionSpec = Nested[JTensorOrPartitionSpec]
PRNGKey = jax.Array

# One entry a tensor dimension: a mesh axis by name, several by a tuple, a mesh
# axis by its index, or None or -1 for a dimension that is not split.
DimShardingAnnotation = Sequence[str] | str | int | None
SplitDimsMapping = Sequence[DimShardingAnnotation] | None

# Weighted scalars are (value, weight) pairs by name.
WeightedScalar = tuple[JTensor, JTensor]
WeightedScalars = NestedMap
Metrics = NestedMap

# What one value in a summary may be.
SummaryValue = Any
