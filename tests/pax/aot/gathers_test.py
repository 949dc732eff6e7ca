# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What products gather and add up on four devices, by hand."""

from __future__ import annotations

from pax.aot import gathers
from tests.pax.aot import jaxprs

ROWS, DIM, HIDDEN = 16, 32, 48
WHOLE = DIM * HIDDEN * 4


def find(fn, *, keeps):
  eqns, _, lie = jaxprs.flat(
    fn,
    jaxprs.shape((DIM, HIDDEN), 'data'),
    jaxprs.shape((ROWS, DIM), 'data', None),
  )
  return len(eqns), gathers.find(eqns, lie, keeps=keeps)


def test_weights_that_the_devices_of_rows_split_are_gathered():
  fn = lambda w, x: (x + 1) @ w
  _, (found,) = find(fn, keeps=False)
  assert (found.num_bytes, found.first, found.last) == (WHOLE, 1, 1)
  _, (found,) = find(fn, keeps=True)
  assert (found.num_bytes, found.first, found.last) == (WHOLE, 0, 1)


def test_a_gradient_is_whole_before_it_is_scattered():
  gradient = lambda w, x: x.T @ (x @ w)
  number, kept = find(gradient, keeps=True)
  (summed,) = [one for one in kept if one.last == number]
  assert summed.num_bytes == WHOLE
  _, found = find(gradient, keeps=False)
  assert all(one.first == one.last for one in found)


def test_a_sum_that_is_wanted_is_scattered_before():
  # The second product wants the gradient, behind what is fused with either.
  fn = lambda w, x: x @ (2 * (x.T @ (x @ w)) + 1)
  number, kept = find(fn, keeps=True)
  (summed,) = [one for one in kept if one.num_bytes == WHOLE and one.first == 2]
  assert summed.last == number - 1


def test_nothing_is_gathered_where_nothing_is_split():
  eqns, _, lie = jaxprs.flat(
    lambda w, x: x @ w,
    jaxprs.shape((DIM, HIDDEN)),
    jaxprs.shape((ROWS, DIM), 'data', None),
  )
  assert gathers.find(eqns, lie, keeps=True) == []
