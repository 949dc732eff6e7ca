# SPDX-License-Identifier: Apache-2.0
"""Our transformers give the logits of Hugging Face's with the same weights.

Models are small, their weights random: nothing is fetched.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from praxis import base_layer
from tests.compare import weights

VOCAB, BATCH, LENGTH = 97, 2, 12
TOLERANCE = 1e-4


def logits_of(ported: weights.Ported, ids: np.ndarray, **kwargs: Any) -> Any:
  lm = ported.config.clone().set(name='lm').Instantiate()
  paddings = kwargs.pop('paddings', jnp.zeros(ids.shape))

  @jax.jit
  def run(variables: Any, ids: Any) -> Any:
    context = base_layer.JaxContext.HParams(do_eval=True)
    with base_layer.JaxContext.new_context(hparams=context):
      return lm.apply(variables, ids, paddings, **kwargs).logits

  return run(ported.variables, ids)


def random_ids(seed: int = 0) -> np.ndarray:
  rng = np.random.default_rng(seed)
  return rng.integers(0, VOCAB, (BATCH, LENGTH), dtype=np.int32)


def theirs(model: Any, ids: np.ndarray, **kwargs: Any) -> np.ndarray:
  with torch.no_grad():
    return model(torch.tensor(ids).long(), **kwargs).logits.numpy()


def randomized(model: Any) -> Any:
  """Returns the model in eval, no weight of which is special."""
  torch.manual_seed(1)
  with torch.no_grad():
    for weight in model.parameters():
      weight.add_(0.1 * torch.randn_like(weight))
  return model.eval()


def gpt2() -> Any:
  return randomized(
    transformers.GPT2LMHeadModel(
      transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=48, n_layer=3, n_head=4
      )
    )
  )


def llama(**kwargs: Any) -> Any:
  sizes = dict(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
  )
  config = transformers.LlamaConfig(**{**sizes, **kwargs})
  return randomized(transformers.LlamaForCausalLM(config))


def t5(**kwargs: Any) -> Any:
  config = transformers.T5Config(
    vocab_size=VOCAB,
    d_model=48,
    d_kv=20,
    d_ff=80,
    num_layers=3,
    num_decoder_layers=2,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=10,
    **kwargs,
  )
  return randomized(transformers.T5ForConditionalGeneration(config))


def t5_version_1_1() -> Any:
  model = t5(feed_forward_proj='gated-gelu', tie_word_embeddings=False)
  # As checkpoints have it; the class ties what is initialized.
  head = torch.randn_like(model.lm_head.weight)
  model.lm_head.weight = torch.nn.Parameter(head)
  return model


DECODERS = {
  'gpt2': (gpt2, weights.gpt2),
  'llama': (llama, weights.llama),
  'llama_grouped_keys': (
    lambda: llama(
      num_key_value_heads=2,
      head_dim=20,
      rope_parameters={'rope_type': 'default', 'rope_theta': 5e5},
    ),
    weights.llama,
  ),
  'llama_3': (
    lambda: llama(
      num_key_value_heads=1,
      rope_parameters={
        'rope_type': 'llama3',
        'rope_theta': 100.0,
        'factor': 8.0,
        'low_freq_factor': 1.0,
        'high_freq_factor': 4.0,
        'original_max_position_embeddings': 16,
      },
    ),
    weights.llama,
  ),
}


@pytest.fixture(scope='module', params=DECODERS)
def decoder(request):
  make, port = DECODERS[request.param]
  model = make()
  return model, port(model)


def test_decoders_give_the_same_logits(decoder):
  model, ported = decoder
  ids = random_ids()
  ours = logits_of(ported, ids)
  np.testing.assert_allclose(ours, theirs(model, ids), 0, TOLERANCE)
  # A model that ignores its input would pass with too little variance.
  assert np.std(ours) > 100 * TOLERANCE


@pytest.mark.parametrize('make', [t5, t5_version_1_1])
def test_t5_gives_the_same_logits(make):
  model = make()
  inputs, targets = random_ids(), random_ids(1)[:, :7]
  lengths = np.array([LENGTH, LENGTH - 4])
  paddings = np.arange(LENGTH)[None] >= lengths[:, None]
  ported = weights.t5(model)
  ours = logits_of(
    ported,
    inputs,
    paddings=jnp.asarray(paddings, jnp.float32),
    targets=jnp.asarray(targets),
    target_paddings=jnp.zeros(targets.shape),
  )
  want = theirs(
    model,
    inputs,
    attention_mask=torch.tensor(1 - paddings),
    decoder_input_ids=torch.tensor(targets).long(),
  )
  np.testing.assert_allclose(ours, want, 0, TOLERANCE)
  assert np.std(ours) > 100 * TOLERANCE


def test_gpt2_is_scored_alike_in_a_packed_row():
  model = gpt2()
  ids = random_ids()[:1]
  first = LENGTH // 3
  segments = jnp.where(jnp.arange(LENGTH) < first, 1, 2)[None]
  positions = jnp.concatenate([jnp.arange(first), jnp.arange(LENGTH - first)])[
    None
  ]
  ported = weights.gpt2(model)
  ported.config.packed_input = True
  ours = logits_of(ported, ids, segment_ids=segments, segment_pos=positions)
  alone = [theirs(model, ids[:, :first]), theirs(model, ids[:, first:])]
  np.testing.assert_allclose(ours, np.concatenate(alone, 1), 0, TOLERANCE)
