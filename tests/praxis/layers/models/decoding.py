# SPDX-License-Identifier: Apache-2.0
"""Small language models whose decoding is compared with forward passes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from praxis import base_layer, decoder_hparams
from praxis.layers import (
  attentions,
  gated_delta_net,
  models,
  ngrammer,
  ssm_transformers,
  transformers,
)
from praxis.layers.models import LanguageModelType
from praxis.nested_map import NestedMap
from tests.praxis.layers import running

B, T, V = 2, 6, 13
PROMPTS = np.asarray([4, 2])
STATES = [
  base_layer.DECODE_CACHE,
  base_layer.PREFIX_DECODE_CACHE,
  base_layer.SUMMARIES,
]


def _num_layers(kind):
  """Two kinds of layers need two; `repeated` runs its layer twice."""
  return 2 if 'hybrid' in kind else 1


def config(kind='stacked', **fields):
  cfg = models.LanguageModel.config(name='model').set(**fields)
  cfg.lm_tpl.set(model_dims=8, vocab_size=V)
  block = cfg.lm_tpl.stacked_transformer_tpl
  block.set(num_layers=_num_layers(kind), hidden_dims=16, num_heads=2)
  if 'rotary' in kind:
    cfg.lm_tpl.position_emb_tpl = None
    attention = block.transformer_layer_params_tpl.tr_atten_tpl
    attention.set(use_rotary_position_emb=True)
  if 'ngrams' in kind:
    cfg.lm_tpl.ngrammer_tpl = ngrammer.Ngrammer.config(
      unigram_vocab_size=V,
      ngram_vocab_size=V * V,
      ngram_emb_dim=2,
      num_heads=2,
      dim_per_head=4,
      concat_ngrams=True,
      params_init=base_layer.WeightInit.Gaussian(1.0),
    )
  if 'ssm' in kind:
    block.transformer_layer_params_tpl = ssm_transformers.SSMTransformer.config(
      ssm_nheads=3, ssm_dim=8, ssm_l_max=8, decode_num_samples=1
    )
  if 'lazy' in kind:
    block.transformer_layer_params_tpl.tr_atten_tpl = (
      attentions.DotProductAttentionWithLPB.config(
        use_rotary_position_emb='rotary' in kind, dconv_qkv='dconv' in kind
      )
    )
  if 'clusters' in kind:
    attention = block.transformer_layer_params_tpl.tr_atten_tpl
    attention.ngrammer_tpl = ngrammer.VQNgrammer.config(
      ngram_vocab_size=64,
      ngram_emb_dim=2,
      num_clusters=4,
      num_heads=2,
      dim_per_head=4,
      concat_ngrams=True,
      ngram_using_attention_scores='scores' in kind,
    )
  if 'hybrid' in kind:
    block.transformer_layer_params_tpl = with_gated_delta_net(
      block.transformer_layer_params_tpl
    )
  if 'sharded' in kind:
    cfg.lm_tpl = _on_one_device(cfg.lm_tpl)
  if 'repeated' in kind:
    cfg.lm_tpl.stacked_transformer_tpl = (
      transformers.StackedTransformerRepeated.config(
        block=block, x_times=2, unroll_in_decode='scanned' not in kind
      )
    )
  return cfg


def _on_one_device(lm_tpl):
  """Returns a language model with shardings, over one device."""
  return lm_tpl.cls.set_sharding_params_v1(
    lm_tpl,
    replica_axis='replica',
    data_axis='data',
    mdl_axis='mdl',
    ici_mesh_shape=[1, 1, 1],
    mesh_axis_names=['replica', 'data', 'mdl'],
    training_optimized=True,
  )


def with_gated_delta_net(layer_p):
  """Returns a layer with linear attention, and `layer_p`, as templates."""
  first_p = layer_p.clone()
  first_p.tr_atten_tpl = gated_delta_net.GatedDeltaNet.config(
    num_key_heads=1, key_head_dim=3, chunk_size=4
  )
  return [first_p, layer_p]


def batch(**extra):
  keys = jax.random.split(jax.random.key(3))
  return NestedMap(
    ids=jax.random.randint(keys[0], (B, T), 0, V),
    labels=jax.random.randint(keys[1], (B, T), 0, V),
    weights=jnp.ones((B, T)),
    paddings=jnp.asarray([[0.0] * 6, [0, 0, 0, 0, 1, 1]]),
    **extra,
  )


@functools.cache
def model(kind, model_type=LanguageModelType.CAUSAL):
  """Returns the layer, its variables and a function that scores texts."""
  extra = {}
  if model_type == LanguageModelType.PREFIX:
    extra['inputs_indicator'] = jnp.ones((B, T), int)
  cfg = config(kind, model_type=model_type)
  layer, variables = running.build(cfg, batch(**extra))

  @running.jit
  def score(ids, prompts):
    visible = {}
    if model_type == LanguageModelType.PREFIX:
      later = jnp.arange(ids.shape[1])[None] >= prompts[:, None]
      visible['causal_attention_mask'] = later.astype(int)
    return layer.apply(
      variables,
      ids,
      jnp.zeros(ids.shape),
      method=lambda model, *args: model.lm(*args, **visible).log_probs,
    )

  return layer, variables, score


def decode(kind, hparams, batch, model_type=LanguageModelType.CAUSAL, **kw):
  return decoder(kind, hparams, model_type, **kw)(batch)


def decoder(kind, hparams, model_type=LanguageModelType.CAUSAL, **kw):
  """Returns `decode` for batches that share a program."""
  layer, variables, _ = model(kind, model_type)

  @running.jit
  def decode(batch):
    return layer.apply(
      variables,
      hparams,
      batch,
      method='decode_with_params',
      rngs=jax.random.key(1),
      mutable=STATES,
      **kw,
    )[0]

  return lambda batch: jax.tree.map(np.asarray, decode(batch)[:2])


def check_scores(
  out,
  kind,
  model_type=LanguageModelType.CAUSAL,
  greedy=False,
  scores_prompts=False,
):
  """Compares logprobs with a forward pass over the results."""
  _, _, score = model(kind, model_type)
  samples = out.output_ids.shape[1]
  ids = out.output_ids.reshape(-1, out.output_ids.shape[-1])
  scores = np.asarray(score(ids, np.repeat(PROMPTS, samples)))
  for row, text in enumerate(ids):
    i, j = divmod(row, samples)
    new = np.arange(PROMPTS[i], out.decode_lengths[i, j])
    scored = np.arange(1 if scores_prompts else PROMPTS[i], new[-1] + 1)
    want = scores[row, scored - 1]
    got = out.logprobs[i, j]
    np.testing.assert_allclose(
      got[scored], want[np.arange(len(scored)), text[scored]], atol=2e-5
    )
    if greedy:
      np.testing.assert_array_equal(text[new], scores[row, new - 1].argmax(-1))
    assert (np.delete(got, scored) == 1).all()


KEYS = jnp.asarray([11, 12])


def check_greedy(kind, at_once):
  """Checks that each token is the argmax of a forward pass."""
  texts = batch(prefix_lengths=jnp.asarray(PROMPTS))
  hparams = decoder_hparams.GreedyDecoderHParams(
    seqlen=8, max_decode_steps=4, fprop_for_prefix=at_once, eos_id=-1
  )
  metrics, out = decode(kind, hparams, texts)
  np.testing.assert_array_equal(metrics.num_decoded, (2, 1))
  np.testing.assert_array_equal(out.original_lengths, [[6], [4]])
  np.testing.assert_array_equal(out.decode_lengths, [[8], [6]])
  for row, prompt in enumerate(PROMPTS):
    np.testing.assert_array_equal(
      out.output_ids[row, 0, :prompt], texts.ids[row, :prompt]
    )
  check_scores(out, kind, greedy=True, scores_prompts=not at_once)


def check_sharing(kind):
  """Compares samples with shared and with copied prompt caches."""
  texts = batch(prefix_lengths=jnp.asarray(PROMPTS), gumbel_prng_key=KEYS)
  hparams = decoder_hparams.SampleDecoderHParams(
    max_decode_steps=[2, 4],
    fprop_for_prefix=True,
    num_samples=3,
    k=0,
    eos_id=-1,
    lazy_prefix_broadcast=True,
  )
  _, lazy = decode(kind, hparams, texts)
  hparams.lazy_prefix_broadcast = False
  _, copied = decode(kind, hparams, texts)
  np.testing.assert_array_equal(lazy.output_ids, copied.output_ids)
  np.testing.assert_allclose(lazy.logprobs, copied.logprobs, atol=2e-5)
  check_scores(lazy, kind)
  assert (lazy.output_ids[:, 0] != lazy.output_ids[:, 1]).any()


def check_beams(kind):
  """Compares four beam searches that reorder caches in different ways."""
  texts = batch(prefix_lengths=jnp.asarray(PROMPTS))
  fields = {'max_decode_steps': 4, 'fprop_for_prefix': True, 'beam_size': 3,
            'eos_id': [2, 5], 'length_norm_alpha': 0.6}  # fmt: skip
  plain = decoder_hparams.BeamSearchHParams(**fields)
  _, want = decode(kind, plain, texts)
  assert (np.diff(want.scores, axis=1) <= 0).all()
  assert (want.scores > -1e8).all()
  check_scores(want, kind)
  others = []
  if 'ngrams' not in kind and 'hybrid' not in kind:
    others.append(decoder_hparams.FlatBeamSearchHParams(**fields))
  if kind == 'stacked':
    grown = fields | {'max_decode_steps': [1, 2, 4]}
    others.append(decoder_hparams.BeamSearchHParams(**grown))
    matmul = fields | {'use_matmul_beam_shuffle': True}
    others.append(decoder_hparams.BeamSearchHParams(**matmul))
  elif 'lazy' in kind:
    shared = fields | {'lazy_prefix_broadcast': True}
    others.append(decoder_hparams.BeamSearchHParams(**shared))
  for hparams in others:
    _, got = decode(kind, hparams, texts)
    for name in ('output_ids', 'decode_lengths', 'prefix_ids', 'done'):
      np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    for name in ('scores', 'logprobs'):
      np.testing.assert_allclose(got[name], want[name], atol=2e-5)
