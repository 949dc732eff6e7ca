# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Embeddings and the token counter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import embedding_softmax as es

_IDS = jnp.asarray([[1, 0, 6], [3, 3, 2]])


@pytest.mark.parametrize('style', ['index', 'matmul'])
def test_embedding_looks_up_rows(style):
  cfg = es.Embedding.config(num_classes=7, input_dims=4, lookup_style=style)
  layer = cfg.Instantiate()
  variables = layer.init(jax.random.key(0), _IDS)
  table = np.asarray(variables['params']['emb_var'])
  assert table.shape == (7, 4)
  y = layer.apply(variables, _IDS)
  np.testing.assert_allclose(y, table[np.asarray(_IDS)], atol=1e-6)
  scaled = cfg.clone().set(scale_sqrt_depth=True).Instantiate()
  np.testing.assert_allclose(scaled.apply(variables, _IDS), 2 * y, atol=1e-6)
  scaled = scaled.clone(embedding_scale=0.75)
  np.testing.assert_allclose(scaled.apply(variables, _IDS), 1.5 * y, atol=1e-6)
  step = layer.apply(
    variables, _IDS[:, 0], time_step=jnp.asarray(0), method='extend_step'
  )
  np.testing.assert_allclose(step, y[:, 0])


def test_ids_outside_can_give_nan():
  cfg = es.Embedding.config(
    num_classes=7, input_dims=4, set_nan_for_oob_id=True
  )
  layer = cfg.Instantiate()
  variables = layer.init(jax.random.key(0), _IDS)
  y = layer.apply(variables, jnp.asarray([[6, 7, 8]]))
  np.testing.assert_array_equal(np.isnan(y).all(-1), [[False, True, True]])
  assert not np.isnan(y[0, 0]).any()


def test_embedding_in_bfloat16():
  cfg = es.Embedding.config(
    num_classes=7, input_dims=4, fprop_dtype=jnp.bfloat16
  )
  layer = cfg.Instantiate()
  variables = layer.init(jax.random.key(0), _IDS)
  assert variables['params']['emb_var'].dtype == jnp.float32
  assert layer.apply(variables, _IDS).dtype == jnp.bfloat16


def test_token_counter_counts_what_is_no_padding_in_training():
  layer = es.TokenCounter.config(name='counter').Instantiate()
  paddings = jnp.asarray([[0.0, 0, 1], [0, 0, 0]])
  variables = layer.init(jax.random.key(0), _IDS, paddings)
  name = 'approx_total_tokens_mm'
  mutable = [base_layer.NON_TRAINABLE, base_layer.SUMMARIES]
  for step in (1, 2):
    _, variables = layer.apply(variables, _IDS, paddings, mutable=mutable)
    count = variables[base_layer.NON_TRAINABLE][name]
    np.testing.assert_allclose(count, step * 5e-6, rtol=1e-6)
    np.testing.assert_allclose(
      variables[base_layer.SUMMARIES].pop(f'{name}_scalar'),
      (step - 1) * 5e-6,
      rtol=1e-6,
    )
  context = base_layer.JaxContext.HParams(do_eval=True)
  with base_layer.JaxContext.new_context(hparams=context):
    _, evaluated = layer.apply(variables, _IDS, paddings, mutable=mutable)
  np.testing.assert_allclose(
    evaluated[base_layer.NON_TRAINABLE][name], 1e-5, rtol=1e-6
  )


def test_token_counter_is_summed_over_replicas_in_float32():
  layer = es.TokenCounter.config(fprop_dtype=jnp.bfloat16).Instantiate()
  tree = layer.abstract_init_with_metadata(_IDS, jnp.zeros(_IDS.shape))
  hparams = tree[base_layer.NON_TRAINABLE]['approx_total_tokens_mm']
  assert base_layer.var_requires_sum_sync(hparams)
  assert base_layer.var_disallow_bfloat16_conversion(hparams)
