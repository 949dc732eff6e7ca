# SPDX-License-Identifier: Apache-2.0
"""Layers without a feed-forward block: the residual of attention alone."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from praxis import base_layer
from praxis.layers import attentions, transformers
from tests.praxis.layers import running

_CACHE = [base_layer.DECODE_CACHE]


def _layers():
  fields = {'input_dims': 8, 'hidden_dims': 16, 'num_heads': 2}
  return (
    transformers.TransformerWithoutFeedForward.config(**fields),
    transformers.Transformer.config(**fields),
  )


def test_output_is_that_of_the_attention_block():
  x, paddings = running.normal(2, 5, 8), jnp.zeros((2, 5))
  mask = attentions.causal_mask(x)
  alone, whole = _layers()
  layer, variables = running.build(alone, x, paddings, mask)
  assert {*variables['params']} == {'layer_norm', 'self_attention'}
  out, _ = running.run(layer, variables, x, paddings, mask)
  # A feed-forward block whose weights are 0 adds nothing.
  layer, of_whole = running.build(whole, x, paddings, mask)
  zeros = {
    name: {k: jnp.zeros_like(v) for k, v in x.items()}
    for name, x in of_whole['params']['ff_layer']['ffn_layer2'].items()
  }
  feed_forward = {**of_whole['params']['ff_layer'], 'ffn_layer2': zeros}
  params = {**variables['params'], 'ff_layer': feed_forward}
  want, _ = running.run(layer, {'params': params}, x, paddings, mask)
  np.testing.assert_array_equal(out, want)
  assert np.abs(out - x).max() > 0.1


def test_decoding_steps_are_the_forward_pass():
  x, paddings = running.normal(2, 5, 8), jnp.zeros((2, 5))
  mask = attentions.causal_mask(x)
  layer, variables = running.build(_layers()[0], x, paddings, mask)
  (want, _), cache = running.run(
    layer, variables, x, paddings, mask, mutable=_CACHE
  )
  out, _ = running.run(
    layer,
    {**variables, **cache},
    x[:, 4],
    method=lambda layer, x: layer.extend_step(
      x, time_step=4, attention_mask=mask[:, :, 4]
    ),
    mutable=_CACHE,
  )
  np.testing.assert_allclose(out, want[:, 4], atol=1e-5)
