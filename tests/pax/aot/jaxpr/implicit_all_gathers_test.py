# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Gathered operands and partial sums of matmuls on four devices, by hand."""

from __future__ import annotations

from pax.aot.jaxpr import implicit_all_gathers
from tests.pax.aot.jaxpr import jaxprs

ROWS, DIM, HIDDEN = 16, 32, 48
GLOBAL_BYTES = DIM * HIDDEN * 4


def find(fn, *, hoist):
  eqns, _, shardings = jaxprs.inline(
    fn,
    jaxprs.shape((DIM, HIDDEN), 'data'),
    jaxprs.shape((ROWS, DIM), 'data', None),
  )
  return len(eqns), implicit_all_gathers.find_gathered_arrays(
    eqns, shardings, hoist=hoist
  )


def test_weights_that_the_devices_of_rows_split_are_gathered():
  fn = lambda w, x: (x + 1) @ w
  _, (array,) = find(fn, hoist=False)
  assert (array.num_bytes, array.first, array.last) == (GLOBAL_BYTES, 1, 1)
  _, (array,) = find(fn, hoist=True)
  assert (array.num_bytes, array.first, array.last) == (GLOBAL_BYTES, 0, 1)


def test_a_gradient_is_whole_before_it_is_scattered():
  gradient = lambda w, x: x.T @ (x @ w)
  num_eqns, arrays = find(gradient, hoist=True)
  (summed,) = [a for a in arrays if a.last == num_eqns]
  assert summed.num_bytes == GLOBAL_BYTES
  _, arrays = find(gradient, hoist=False)
  assert all(a.first == a.last for a in arrays)


def test_a_sum_that_is_wanted_is_scattered_before():
  # The second matmul reads the gradient through fused operations.
  fn = lambda w, x: x @ (2 * (x.T @ (x @ w)) + 1)
  num_eqns, arrays = find(fn, hoist=True)
  (summed,) = [
    a for a in arrays if a.num_bytes == GLOBAL_BYTES and a.first == 2
  ]
  assert summed.last == num_eqns - 1


def test_nothing_is_gathered_where_nothing_is_split():
  eqns, _, shardings = jaxprs.inline(
    lambda w, x: x @ w,
    jaxprs.shape((DIM, HIDDEN)),
    jaxprs.shape((ROWS, DIM), 'data', None),
  )
  assert (
    implicit_all_gathers.find_gathered_arrays(eqns, shardings, hoist=True) == []
  )
