# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Shardings that are inferred from sharding constraints, by hand."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pax.aot.jaxpr import array_shardings

STAGES = MICROBATCH = 2
NUM_MICROBATCHES, DIM = 6, 4


def shardings_of(fn):
  """Shardings in the program of `fn(mesh)`."""
  mesh = Mesh(np.asarray(jax.devices()[:4]).reshape(2, 2), ('stage', 'data'))
  partitioner = types.SimpleNamespace(
    state_metadata=(), input_spec=(), mesh=mesh
  )
  jaxpr = jax.make_jaxpr(lambda: fn(mesh))().jaxpr
  return array_shardings.ArrayShardings(jaxpr, partitioner)


def shardings(*constraints):
  """Shardings in a program with arrays of (shape, spec)."""
  return shardings_of(
    lambda mesh: [
      jax.lax.with_sharding_constraint(
        jnp.zeros(shape), NamedSharding(mesh, P(*spec))
      )
      for shape, spec in constraints
    ]
  )


def test_dimensions_of_one_size_have_different_axes():
  found = shardings(
    ((STAGES, DIM), ('stage', None)),
    ((STAGES, MICROBATCH, DIM), ('stage', 'data', None)),
  )
  # Activations of a pipeline, saved at each of its iterations.
  shape = (NUM_MICROBATCHES, STAGES, MICROBATCH, DIM)
  assert found.dim_axes(shape) == ((), ('stage',), ('data',), ())
  assert found.dim_axes((MICROBATCH, MICROBATCH, MICROBATCH)) == (
    ('stage',), ('data',), (),
  )  # fmt: skip


def test_axes_that_constraints_use_most_win_over_others_and_over_none():
  found = shardings(
    ((DIM, DIM), ('data', None)),
    ((DIM,), ('data',)),
    ((DIM, DIM + 1), ('stage', None)),
  )
  assert found.dim_axes((DIM, DIM + 1)) == (('data',), ())


def test_a_size_that_the_axis_does_not_divide_is_whole():
  found = shardings(((3,), ('data',)))
  assert found.dim_axes((3,)) == ((),)


def test_stacks_of_what_a_shard_map_returns_are_sharded_as_there():
  # As jax.shard_map returns what the backward pass of a kernel needs: one part
  # per device, in the first dimension.
  spec = P(('stage', 'data'))

  def fn(mesh):
    kernel = jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)
    return jax.lax.scan(lambda c, _: (c, kernel(c)), jnp.zeros((8, 5)), None, 3)

  found = shardings_of(fn)
  assert found.dim_axes((8, 5)) == (('stage', 'data'), ())
  assert found.dim_axes((3, 8, 5)) == ((), ('stage', 'data'), ())
