# SPDX-License-Identifier: Apache-2.0
"""LLaMA experiments with Hugging Face's weights give Hugging Face's logits."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers

from pax.contrib.gpu.scripts_gpu import llama_weights
from praxis import base_layer
from praxis.nested_map import NestedMap
from tests.pax.contrib.gpu.scripts_gpu import tiny_llama

_TOLERANCE = 1e-5
_SHAPES = {
  'all heads': {},
  'repeated': {'USE_REPEATED_LAYER': True},
  'shared keys': {'USE_MQA': True, 'NUM_KV_HEADS': 2},
  'one key': {'USE_MQA': True, 'NUM_KV_HEADS': 1},
}


def _theirs(llama: Any) -> Any:
  torch.manual_seed(0)
  keys = llama.NUM_KV_HEADS if llama.USE_MQA else llama.NUM_HEADS
  config = transformers.LlamaConfig(
    vocab_size=llama.VOCAB_SIZE,
    hidden_size=llama.MODEL_DIMS,
    intermediate_size=llama.HIDDEN_DIMS,
    num_hidden_layers=llama.NUM_LAYERS,
    num_attention_heads=llama.NUM_HEADS,
    num_key_value_heads=keys,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
  )
  model = transformers.LlamaForCausalLM(config).eval()
  with torch.no_grad():
    for weight in model.parameters():
      weight.add_(0.1 * torch.randn_like(weight))
  return model


def _logits(llama: Any, variables: Any, ids: np.ndarray) -> jax.Array:
  model = llama.task().model.set(name='model').Instantiate()
  ones = np.ones(ids.shape, np.float32)
  batch = NestedMap(
    ids=ids,
    labels=ids,
    paddings=0 * ones,
    weights=ones,
    eval_sample_weights=ones[:, 0],
  )

  @jax.jit
  def run(variables: Any, batch: NestedMap) -> jax.Array:
    context = base_layer.JaxContext.HParams(do_eval=True)
    with base_layer.JaxContext.new_context(hparams=context):
      return model.apply(
        variables, batch, method=model.compute_predictions
      ).logits

  return run(variables, batch)


@pytest.mark.parametrize('shape', _SHAPES)
def test_logits_are_those_of_hugging_face(shape):
  llama = tiny_llama.made(**_SHAPES[shape])
  model = _theirs(llama)
  weights = {k: v.numpy() for k, v in model.state_dict().items()}
  variables = llama_weights.from_huggingface(weights, llama)
  random = np.random.default_rng(0)
  ids = random.integers(llama.VOCAB_SIZE, size=(2, 12), dtype=np.int32)
  with torch.no_grad():
    wanted = model(torch.tensor(ids).long()).logits.numpy()
  found = _logits(llama, variables, ids)
  np.testing.assert_allclose(found, wanted, rtol=0, atol=_TOLERANCE)
  assert np.std(found) > 1000 * _TOLERANCE
