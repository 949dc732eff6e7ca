# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""Compiled or not, one by one or scanned, every kind gives the same numbers."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from tests.praxis.layers.transformers import equality, kinds


@pytest.mark.parametrize('name', kinds.KINDS)
def test_scanned_layers_are_the_same_function(name):
  outputs, by_inputs, by_params = equality.reference(name)
  got = equality.scanned(name)
  want = outputs, by_inputs, equality.stacked(by_params)
  equality.assert_close(got, want, 1e-5)


@pytest.mark.parametrize('name', kinds.KINDS)
def test_compiled_layers_are_the_same_function(name):
  layer, variables = equality.unrolled(name)
  got = equality.results(layer, variables['params'], equality.inputs())
  equality.assert_close(got, equality.reference(name), 1e-5)


@pytest.mark.parametrize('name', sorted(set(kinds.KINDS) - kinds.DISCONTINUOUS))
def test_bfloat16_rounds_and_no_more(name):
  outputs, by_inputs, by_params = equality.reference(name)
  got = equality.scanned(name, jnp.bfloat16)
  assert got[0].dtype == got[1].dtype == jnp.bfloat16
  # Some products in a row, of numbers with 8 bits.
  want = outputs, by_inputs, equality.stacked(by_params)
  equality.assert_close_on_the_whole(got, want, 2**-5)
