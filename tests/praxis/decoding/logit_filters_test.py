# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Logits of tokens that are replaced, in vocabularies that are sharded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from praxis.decoding import logit_filters


@pytest.mark.parametrize('tokens', [3, [3], [3, 9]])
@pytest.mark.parametrize('num_shards', [1, 4])
def test_only_the_given_tokens_are_replaced(tokens, num_shards):
  logits = jnp.arange(24.0).reshape(2, 12)
  want = np.asarray(logits).copy()
  want[:, tokens] = -5.0
  mesh = jax.make_mesh(
    (num_shards,),
    ('mdl',),
    devices=jax.devices()[:num_shards],
    axis_types=(jax.sharding.AxisType.Auto,),
  )

  @jax.jit
  def replaced(logits):
    logits = jax.lax.with_sharding_constraint(
      logits, PartitionSpec(None, 'mdl')
    )
    return logit_filters.replace_logits(logits, tokens, -5.0)

  with jax.set_mesh(mesh):
    np.testing.assert_array_equal(replaced(logits), want)
