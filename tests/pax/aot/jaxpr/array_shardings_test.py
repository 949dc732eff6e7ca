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


def shardings(*constraints):
  """Shardings in a program with arrays of (shape, spec)."""
  mesh = Mesh(np.asarray(jax.devices()[:4]).reshape(2, 2), ('stage', 'data'))

  def fn():
    return [
      jax.lax.with_sharding_constraint(
        jnp.zeros(shape), NamedSharding(mesh, P(*spec))
      )
      for shape, spec in constraints
    ]

  partitioner = types.SimpleNamespace(
    state_metadata=(), input_spec=(), mesh=mesh
  )
  jaxpr = jax.make_jaxpr(fn)().jaxpr
  return array_shardings.ArrayShardings(jaxpr, partitioner)


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
