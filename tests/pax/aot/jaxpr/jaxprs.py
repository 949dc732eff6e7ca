# SPDX-License-Identifier: Apache-2.0
"""Small jaxprs on a mesh of four devices, for tests of jaxpr analyses."""

from __future__ import annotations

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pax.aot.jaxpr import array_shardings, jaxpr_walk


@functools.cache
def mesh():
  """Four devices along one axis."""
  return Mesh(np.asarray(jax.devices()[:4]), ('data',))


def shape(dims, *spec, dtype=jnp.float32):
  """An abstract array, sharded by `spec`."""
  sharding = NamedSharding(mesh(), P(*spec))
  return jax.ShapeDtypeStruct(dims, dtype, sharding=sharding)


def products_of_product(w, x):
  """Returns two matmuls of y, the elementwise product of two matmuls."""
  y = (x @ w) * (x @ (w + 1))
  return y @ w, y.T @ x


def trace(fn, weights, batch):
  """Returns the jaxpr of fn(weights, batch) and a stand-in partitioner."""
  jaxpr = jax.make_jaxpr(fn)(weights, batch).jaxpr
  return jaxpr, types.SimpleNamespace(
    state_metadata=weights, input_spec=batch, mesh=mesh()
  )


def inline(fn, weights, batch):
  """Returns inlined equations, result variables and array shardings."""
  jaxpr, partitioner = trace(fn, weights, batch)
  eqns, results = jaxpr_walk.inline_calls(jaxpr)
  return (
    eqns,
    jaxpr_walk.variables(results),
    array_shardings.ArrayShardings(jaxpr, partitioner),
  )
