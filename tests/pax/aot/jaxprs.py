# SPDX-License-Identifier: Apache-2.0
"""Small jaxprs on four devices, which split rows, for tests of predictions."""

from __future__ import annotations

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pax.aot import equations, parts


@functools.cache
def mesh():
  """Four devices in one row."""
  return Mesh(np.asarray(jax.devices()[:4]), ('data',))


def shape(dims, *spec, dtype=jnp.float32):
  """An array of these dimensions that `spec` splits."""
  sharding = NamedSharding(mesh(), P(*spec))
  return jax.ShapeDtypeStruct(dims, dtype, sharding=sharding)


def trace(fn, weights, batch):
  """Returns the jaxpr of fn(weights, batch) and what a partitioner knows."""
  jaxpr = jax.make_jaxpr(fn)(weights, batch).jaxpr
  return jaxpr, types.SimpleNamespace(
    state_metadata=weights, input_spec=batch, mesh=mesh()
  )


def flat(fn, weights, batch):
  """Returns its equations, the variables of its results, how arrays lie."""
  jaxpr, partitioner = trace(fn, weights, batch)
  eqns, results = equations.flat(jaxpr)
  return eqns, equations.variables(results), parts.Parts(jaxpr, partitioner)
