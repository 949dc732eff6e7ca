# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Decoding with caches gives what whole forward passes give, step by step."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, decoder_hparams, decoder_utils
from praxis.decoding import streaming
from praxis.layers import attentions, models, transformers
from praxis.layers.models import LanguageModelType
from praxis.nested_map import NestedMap
from tests.praxis.layers import running

_B, _T, _V = 2, 6, 13
_PROMPTS = np.asarray([4, 2])
_STATES = [base_layer.DECODE_CACHE, base_layer.PREFIX_DECODE_CACHE]


def _config(kind='stacked', **fields):
  cfg = models.LanguageModel.config(name='model').set(**fields)
  cfg.lm_tpl.set(model_dims=8, vocab_size=_V)
  block = cfg.lm_tpl.stacked_transformer_tpl
  block.set(num_layers=2, hidden_dims=16, num_heads=2)
  if 'rotary' in kind:
    cfg.lm_tpl.position_emb_tpl = None
    attention = block.transformer_layer_params_tpl.tr_atten_tpl
    attention.set(use_rotary_position_emb=True)
  if 'lazy' in kind:
    block.transformer_layer_params_tpl.tr_atten_tpl = (
      attentions.DotProductAttentionWithLPB.config(
        use_rotary_position_emb='rotary' in kind, dconv_qkv='dconv' in kind
      )
    )
  if 'repeated' in kind:
    block.num_layers = 1
    cfg.lm_tpl.stacked_transformer_tpl = (
      transformers.StackedTransformerRepeated.config(
        block=block, x_times=2, unroll_in_decode='scanned' not in kind
      )
    )
  return cfg


def _batch(**extra):
  keys = jax.random.split(jax.random.key(3))
  return NestedMap(
    ids=jax.random.randint(keys[0], (_B, _T), 0, _V),
    labels=jax.random.randint(keys[1], (_B, _T), 0, _V),
    weights=jnp.ones((_B, _T)),
    paddings=jnp.asarray([[0.0] * 6, [0, 0, 0, 0, 1, 1]]),
    **extra,
  )


@functools.cache
def _model(kind, model_type=LanguageModelType.CAUSAL):
  """Returns the layer, its variables and a function that scores texts."""
  extra = {}
  if model_type == LanguageModelType.PREFIX:
    extra['inputs_indicator'] = jnp.ones((_B, _T), int)
  cfg = _config(kind, model_type=model_type)
  layer, variables = running.build(cfg, _batch(**extra))

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


def _decode(kind, hparams, batch, model_type=LanguageModelType.CAUSAL, **kw):
  layer, variables, _ = _model(kind, model_type)

  @running.jit
  def decode(batch):
    return layer.apply(
      variables,
      hparams,
      batch,
      method='decode_with_params',
      rngs=jax.random.key(1),
      mutable=_STATES,
      **kw,
    )[0]

  metrics, out, _ = decode(batch)
  return jax.tree.map(np.asarray, metrics), jax.tree.map(np.asarray, out)


def _check_scores(out, kind, model_type=LanguageModelType.CAUSAL, greedy=False):
  """Holds the log-probs against one pass over the results."""
  _, _, score = _model(kind, model_type)
  samples = out.output_ids.shape[1]
  ids = out.output_ids.reshape(-1, out.output_ids.shape[-1])
  scores = np.asarray(score(ids, np.repeat(_PROMPTS, samples)))
  for row, text in enumerate(ids):
    i, j = divmod(row, samples)
    new = np.arange(_PROMPTS[i], out.decode_lengths[i, j])
    want = scores[row, new - 1]
    got = out.logprobs[i, j]
    np.testing.assert_allclose(got[new], want[np.arange(len(new)), text[new]],
                               atol=2e-5)  # fmt: skip
    if greedy:
      np.testing.assert_array_equal(text[new], want.argmax(-1))
    assert (np.delete(got, new) == 1).all()


@pytest.mark.parametrize('at_once', [True, False])
@pytest.mark.parametrize(
  'kind', ['stacked', 'stacked rotary', 'repeated', 'repeated scanned']
)
def test_greedy_decoding_equals_reading_the_whole_text(kind, at_once):
  batch = _batch(prefix_lengths=jnp.asarray(_PROMPTS))
  hparams = decoder_hparams.GreedyDecoderHParams(
    seqlen=8, max_decode_steps=4, fprop_for_prefix=at_once, eos_id=-1
  )
  metrics, out = _decode(kind, hparams, batch)
  np.testing.assert_array_equal(metrics.num_decoded, (2, 1))
  np.testing.assert_array_equal(out.original_lengths, [[6], [4]])
  np.testing.assert_array_equal(out.decode_lengths, [[8], [6]])
  for row, prompt in enumerate(_PROMPTS):
    np.testing.assert_array_equal(
      out.output_ids[row, 0, :prompt], batch.ids[row, :prompt]
    )
  _check_scores(out, kind, greedy=True)


_KEYS = jnp.asarray([11, 12])


@pytest.mark.parametrize(
  'kind',
  [
    'lazy',
    'lazy rotary',
    'lazy rotary dconv',
    'lazy repeated',
    'lazy repeated scanned',
  ],
)
def test_samples_may_share_the_cache_of_their_prompt(kind):
  batch = _batch(prefix_lengths=jnp.asarray(_PROMPTS), gumbel_prng_key=_KEYS)
  hparams = decoder_hparams.SampleDecoderHParams(
    max_decode_steps=[2, 4],
    fprop_for_prefix=True,
    num_samples=3,
    k=0,
    eos_id=-1,
    lazy_prefix_broadcast=True,
  )
  _, lazy = _decode(kind, hparams, batch)
  hparams.lazy_prefix_broadcast = False
  _, copied = _decode(kind, hparams, batch)
  np.testing.assert_array_equal(lazy.output_ids, copied.output_ids)
  np.testing.assert_allclose(lazy.logprobs, copied.logprobs, atol=2e-5)
  _check_scores(lazy, kind)
  assert (lazy.output_ids[:, 0] != lazy.output_ids[:, 1]).any()


def test_blocks_of_samples_share_caches():
  batch = _batch(prefix_lengths=jnp.asarray(_PROMPTS), gumbel_prng_key=_KEYS)
  hparams = decoder_hparams.SampleDecoderHParams(
    max_decode_steps=6,
    fprop_for_prefix=True,
    num_samples=4,
    k=0,
    eos_id=-1,
    sort_samples=False,
    lazy_prefix_broadcast=True,
  )
  hparams.controlled_decoding = decoder_utils.ControlledDecodingHParams(
    interval=2, block_num_samples=2
  )
  _, lazy = _decode('lazy', hparams, batch)
  _check_scores(lazy, 'lazy')
  hparams.lazy_prefix_broadcast = False
  _, copied = _decode('lazy', hparams, batch)
  np.testing.assert_array_equal(lazy.output_ids, copied.output_ids)


def test_one_sample_needs_no_sharing():
  batch = _batch(prefix_lengths=jnp.asarray(_PROMPTS))
  hparams = decoder_hparams.SampleDecoderHParams(
    max_decode_steps=3,
    fprop_for_prefix=True,
    k=1,
    eos_id=-1,
    lazy_prefix_broadcast=True,
    vanilla_sample_decode=True,
  )
  _, out = _decode('lazy', hparams, batch)
  assert out.output_ids.shape == out.logprobs.shape == (2, 9)
  assert out.decode_lengths.shape == out.prefix_lengths.shape == (2,)
  out = jax.tree.map(lambda x: x[:, None], out)
  _check_scores(out, 'lazy', greedy=True)


def test_a_prefix_model_sees_its_whole_prompt():
  indicator = jnp.arange(_T)[None] < jnp.asarray(_PROMPTS)[:, None]
  hparams = decoder_hparams.GreedyDecoderHParams(
    max_decode_steps=3, fprop_for_prefix=True, eos_id=-1
  )
  kind = 'stacked', LanguageModelType.PREFIX
  batch = _batch(inputs_indicator=indicator.astype(int))
  _, out = _decode(kind[0], hparams, batch, kind[1])
  np.testing.assert_array_equal(out.prefix_lengths[:, 0], _PROMPTS)
  _check_scores(out, *kind, greedy=True)
  hparams = decoder_hparams.GreedyDecoderHParams(seqlen=9)
  with pytest.raises(ValueError, match='set fprop_for_prefix=True'):
    _decode(kind[0], hparams, batch, kind[1])
  with pytest.raises(ValueError, match="needs 'inputs_indicator'"):
    _decode(kind[0], hparams, _batch(), kind[1])


@pytest.mark.parametrize('kind', ['stacked', 'lazy', 'repeated scanned'])
def test_beam_searches_agree(kind):
  """Four ways to move caches about give the same texts and scores."""
  batch = _batch(prefix_lengths=jnp.asarray(_PROMPTS))
  fields = {'max_decode_steps': 4, 'fprop_for_prefix': True, 'beam_size': 3,
            'eos_id': [2, 5], 'length_norm_alpha': 0.6}  # fmt: skip
  plain = decoder_hparams.BeamSearchHParams(**fields)
  _, want = _decode(kind, plain, batch)
  assert (np.diff(want.scores, axis=1) <= 0).all()
  assert want.done.all()
  _check_scores(want, kind)
  others = [decoder_hparams.FlatBeamSearchHParams(**fields)]
  if kind == 'stacked':
    grown = fields | {'max_decode_steps': [1, 2, 4], 'early_exit': True}
    others.append(decoder_hparams.BeamSearchHParams(**grown))
    matmul = fields | {'use_matmul_beam_shuffle': True}
    others.append(decoder_hparams.BeamSearchHParams(**matmul))
  elif kind == 'lazy':
    shared = fields | {'lazy_prefix_broadcast': True}
    others.append(decoder_hparams.BeamSearchHParams(**shared))
  for hparams in others:
    _, got = _decode(kind, hparams, batch)
    for name in ('output_ids', 'decode_lengths', 'prefix_ids', 'done'):
      np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    for name in ('scores', 'logprobs'):
      np.testing.assert_allclose(got[name], want[name], atol=2e-5)


def test_tokens_stream_to_the_host():
  calls = []
  callback = streaming.StreamingResultCallback(
    callback_fn=lambda sent: calls.append(jax.tree.map(np.asarray, sent)),
    interval_steps=2,
    init_fn=calls.append,
    done_fn=lambda: calls.append('done'),
  )
  batch = _batch(prefix_lengths=jnp.asarray(_PROMPTS))
  hparams = decoder_hparams.SampleDecoderHParams(
    max_decode_steps=5,
    fprop_for_prefix=True,
    num_samples=2,
    sort_samples=False,
    eos_id=-1,
  )
  _, out = _decode('stacked', hparams, batch, result_callback=callback)
  jax.effects_barrier()
  first, *sent, last = calls
  assert first == (2, 2)
  assert last == 'done'
  assert [list(call.done.ravel()) for call in sent] == [
    [False] * 4, [False] * 4, [True] * 4
  ]  # fmt: skip
  ids = np.concatenate([call.output_ids for call in sent], axis=-1)[..., :5]
  logprobs = np.concatenate([call.logprobs for call in sent], axis=-1)[..., :5]
  for row, prompt in enumerate(_PROMPTS):
    new = slice(prompt, prompt + 5)
    np.testing.assert_array_equal(ids[row], out.output_ids[row, :, new])
    np.testing.assert_array_equal(logprobs[row], out.logprobs[row, :, new])
  np.testing.assert_allclose(sent[0].scores, logprobs[..., :2].sum(-1), 1e-5)


def test_results_are_processed_with_the_model():
  def count(lm, result):
    result.vocabulary = jnp.full(2, lm.vocab_size)
    return result

  hparams = decoder_hparams.GreedyDecoderHParams(
    max_decode_steps=1, fprop_for_prefix=True, process_result_fn=count
  )
  _, out = _decode('stacked', hparams, _batch())
  np.testing.assert_array_equal(out.vocabulary, _V)
  # Prompts are what is no padding.
  np.testing.assert_array_equal(out.prefix_lengths, [[6], [4]])


@pytest.mark.parametrize(
  'hparams, error, message',
  [
    (
      decoder_hparams.GreedyDecoderHParams(),
      ValueError,
      'Must set p.decoder_tpl.seqlen > 0, got 0',
    ),
    (
      decoder_hparams.GreedyDecoderHParams(seqlen=3),
      ValueError,
      'must be at least 6',
    ),
    (
      decoder_hparams.GreedyDecoderHParams(fprop_for_prefix=True),
      ValueError,
      'max_decode_steps must be > 0',
    ),
    (
      decoder_hparams.DecoderHParams(seqlen=9),
      NotImplementedError,
      'algorithm DecoderHParams is not implemented',
    ),
    (
      decoder_hparams.BeamSearchHParams(seqlen=9, max_decode_steps=2),
      ValueError,
      'reads its prompts at once',
    ),
    (
      decoder_hparams.SampleDecoderHParams(
        max_decode_steps=2, fprop_for_prefix=True, cf_guidance_scale=2.0
      ),
      NotImplementedError,
      'LanguageModel does not support guidance',
    ),
    (
      decoder_hparams.SampleDecoderHParams(
        max_decode_steps=2,
        fprop_for_prefix=True,
        num_samples=2,
        lazy_prefix_broadcast=True,
      ),
      NotImplementedError,
      'use DotProductAttentionWithLPB',
    ),
    ('greedy', ValueError, 'decoder_tpl must be a DecoderHParams, got str'),
  ],
)
def test_errors(hparams, error, message):
  with pytest.raises(error, match=message):
    _decode('stacked', hparams, _batch())


def test_bidirectional_models_cannot_decode():
  cfg = _config(model_type=LanguageModelType.BIDIRECTIONAL)
  with pytest.raises(NotImplementedError, match='bidirectional'):
    cfg.Instantiate().bind({}).decode(_batch())


class _Vocabulary:
  def ids_to_strings(self, ids, lengths, key=None):
    return [
      ' '.join(str(int(i)) for i in row[:length])
      for row, length in zip(ids, lengths, strict=True)
    ]


def test_process_decode_out():
  out = NestedMap(
    ids=np.asarray([[5, 6, 7, 8], [1, 2, 3, 0]]),
    original_lengths=np.asarray([[4, 4], [3, 3]]),
    prefix_ids=np.asarray([[[5, 6]] * 2, [[1, 0]] * 2]),
    prefix_lengths=np.asarray([[2, 2], [1, 1]]),
    output_ids=np.asarray(
      [[[5, 6, 9, 2], [5, 6, 3, 0]], [[1, 4, 0, 0], [1, 8, 8, 8]]]
    ),
    decode_lengths=np.asarray([[4, 3], [2, 4]]),
    logprobs=np.ones((2, 2, 4)),
    eval_sample_weights=np.asarray([1.0, 1.0]),
  )
  layer = _config().Instantiate()
  metrics, pairs, _ = layer.process_decode_out(_Vocabulary(), out)
  assert metrics.decoded_length == (3, 1)
  (prefix, first), (_, second) = pairs
  assert prefix == first.prefix == '5 6'
  assert first.original == '5 6 7 8'
  assert first.decoded == '5 6 9 2'
  assert first.decoded_substr == '9 2'
  np.testing.assert_array_equal(first.decoded_ids, [9, 2])
  assert first.sampled == ['5 6 9 2', '5 6 3']
  assert (first.prefix_length, first.decode_length) == (2, 4)
  assert second.decoded_substr == '4'
  # Results without a dimension of samples; the first example fills the batch.
  vanilla = NestedMap(
    {k: v[:, 0] if v.ndim > 1 and k != 'ids' else v for k, v in out.items()}
  )
  vanilla.eval_sample_weights = np.asarray([0.0, 1.0])
  _, pairs, _ = layer.process_decode_out(_Vocabulary(), vanilla)
  assert [key for key, _ in pairs] == ['1']
  assert 'sampled' not in pairs[0][1]
