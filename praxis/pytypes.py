# SPDX-License-Identifier: Apache-2.0
"""Type aliases of Praxis and Pax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped
from jaxtyping import PyTree as PyTreeOf

from praxis.alias_names import module_getattr
from praxis.nested_map import NestedMap as NestedMap

T = TypeVar('T')
# A pytree of T: maps, lists and tuples at any depth.
Nested: TypeAlias = T | tuple[Any, ...] | list[Any] | dict[str, Any] | NestedMap

JTensor = jax.Array
NpTensor = np.ndarray
JTensorOrPartitionSpec = JTensor | jax.sharding.PartitionSpec
NestedJTensor = Nested[JTensor]
NestedNpTensor = Nested[np.ndarray]
NestedBool = Nested[bool]
NestedHParams = Nested[Any]
NestedInt = Nested[int]
NestedShapeDtypeStruct = Nested[jax.ShapeDtypeStruct]
NestedShapedArray = Nested[jax.core.ShapedArray]
NestedShapeDtypeLike = (
  NestedJTensor | NestedNpTensor | NestedShapeDtypeStruct | NestedShapedArray
)
NestedPartitionSpec = Nested[jax.sharding.PartitionSpec]
NestedJTensorOrPartitionSpec = Nested[JTensorOrPartitionSpec]
PRNGKey = jax.Array

# The sharding of one tensor dimension: a mesh axis by name or index, several
# axes by a sequence of them, or None or -1 for a replicated dimension.
DimShardingAnnotation = Sequence[str | int] | str | int | None
SplitDimsMapping = Sequence[DimShardingAnnotation] | None

# Weighted scalars are (value, weight) pairs by name.
WeightedScalar = tuple[JTensor, JTensor]
WeightedScalars = NestedMap
WeightedScalarsList = NestedMap
Metrics = NestedMap

# The value of one summary.
SummaryValue = Any
SummaryDict = NestedMap | dict[str, JTensor]

PyTree = Any
PyTreeDef = jax.tree_util.PyTreeDef
DotGeneralT = Callable[..., JTensor]
# (logical axis, mesh axis or None) pairs.
LogicalAxisRules = Sequence[tuple[str, str | None]]


def typed(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns the function; decorates functions whose annotations are shapes.

  The shapes are checked in tests only.
  """
  return function


class _OneOf(type):
  """Makes `isinstance` accept any of a class's `types`."""

  types: tuple[Any, ...] = ()

  def __instancecheck__(cls, value: Any) -> bool:
    return isinstance(value, cls.types)


class JaxArrayT(metaclass=_OneOf):
  """An array of JAX, or its shape and dtype."""

  types = (jax.Array, jax.ShapeDtypeStruct)


class ArrayT(metaclass=_OneOf):
  """An array of JAX or numpy, or its shape and dtype."""

  types = (JaxArrayT, np.ndarray)


AnyJaxArray = Shaped[JaxArrayT, '...']
AnyNPArray = Shaped[np.ndarray, '...']
AnyArray = Shaped[ArrayT, '...']
AnyFloatArray = Float[ArrayT, '...']
AnyIntArray = Int[ArrayT, '...']
AnyPyTreeArray = PyTreeOf[AnyArray]
Scalar = Shaped[ArrayT, ''] | Shaped[np.generic, '']
ScalarInt = Int[ArrayT, ''] | Int[np.generic, '']
ScalarFloat = Float[ArrayT, ''] | Float[np.generic, '']

__getattr__ = module_getattr(__name__)
