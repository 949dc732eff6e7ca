# SPDX-License-Identifier: Apache-2.0
"""Decoding of a sequence model, compared with forward passes."""

# bazel: size=medium
from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, decoder_hparams, token_samplers
from praxis.layers import models, transformers
from praxis.nested_map import NestedMap
from tests.praxis.layers import running

_B, _S, _T, _V = 2, 4, 7, 11


def _batch():
  numbers = np.random.default_rng(0)
  ids = lambda length: jnp.asarray(numbers.integers(2, _V, (_B, length)))
  return NestedMap(
    src=NestedMap(
      ids=ids(_S), paddings=jnp.asarray([[0.0] * _S, [0, 0, 1, 1]])
    ),
    tgt=NestedMap(
      ids=ids(_T),
      labels=ids(_T),
      weights=jnp.ones((_B, _T)),
      paddings=jnp.zeros((_B, _T)),
    ),
  )


@functools.cache
def _model():
  cfg = models.SequenceModel.config(name='model')
  network = cfg.model_tpl.set(model_dims=8)
  network.softmax_tpl.num_classes = _V
  for side in ('encoder', 'decoder'):
    block = transformers.StackedTransformer.config(
      num_layers=1,
      model_dims=8,
      hidden_dims=16,
      num_heads=2,
      mask_self_attention=side == 'decoder',
      use_cross_attention=side == 'decoder',
    )
    setattr(network, f'{side}_stacked_transformer_tpl', block)
  return running.build(cfg, _batch())


def _decode(hparams, batch):
  layer, variables = _model()

  @running.jit
  def decode(batch):
    return layer.apply(
      variables,
      batch,
      hparams,
      method='decode_with_params',
      rngs=jax.random.key(1),
      mutable=[base_layer.DECODE_CACHE],
    )[0]

  metrics, out, _ = decode(batch)
  return jax.tree.map(np.asarray, metrics), jax.tree.map(np.asarray, out)


@functools.cache
def _forward():
  """Returns what gives the logprobs of targets by one pass."""
  layer, variables = _model()

  @running.jit
  def forward(src, targets):
    return layer.apply(
      variables,
      src.ids,
      src.paddings,
      targets,
      jnp.zeros(targets.shape),
      method=lambda model, *args: model.model(*args).log_probs,
    )

  return forward


def _log_probs(targets, samples):
  """Returns the logprobs of [B * N, T] targets."""
  src = jax.tree.map(lambda x: jnp.repeat(x, samples, axis=0), _batch().src)
  return np.asarray(_forward()(src, targets))


@pytest.mark.parametrize('greedy', [True, False])
def test_tokens_are_those_of_the_whole_pass(greedy):
  fields = {'seqlen': _T, 'eos_id': -1}
  if greedy:
    hparams = decoder_hparams.GreedyDecoderHParams(**fields)
  else:
    hparams = decoder_hparams.SampleDecoderHParams(
      **fields, num_samples=2, k=4, temperature=2.0
    )
  batch = _batch()
  metrics, out = _decode(hparams, batch)
  np.testing.assert_array_equal(metrics.num_decoded, (2, 1))
  samples = out.output_ids.shape[1]
  ids = out.output_ids.reshape(-1, _T)
  first = np.repeat(batch.tgt.ids[:, 0], samples)
  np.testing.assert_array_equal(ids[:, 0], first)
  scores = _log_probs(ids, samples)[:, :-1]
  want = np.take_along_axis(scores, ids[:, 1:, None], axis=-1)[..., 0]
  got = out.logprobs.reshape(-1, _T)
  np.testing.assert_allclose(got[:, 1:], want, atol=2e-5)
  np.testing.assert_array_equal(got[:, 0], 1)
  if greedy:
    np.testing.assert_array_equal(ids[:, 1:], scores.argmax(-1))
  else:
    assert (out.output_ids[:, 0] != out.output_ids[:, 1]).any()
  np.testing.assert_array_equal(out.decode_lengths, np.full((2, samples), _T))
  np.testing.assert_array_equal(out.src.ids, batch.src.ids)


def test_targets_that_begin_already():
  batch = _batch()
  batch.prefix_lengths = jnp.asarray([3, 1])
  hparams = decoder_hparams.GreedyDecoderHParams(
    seqlen=_T, max_decode_steps=2, eos_id=-1
  )
  _, out = _decode(hparams, batch)
  ids = out.output_ids[:, 0]
  np.testing.assert_array_equal(ids[0, :3], batch.tgt.ids[0, :3])
  np.testing.assert_array_equal(out.decode_lengths, [[5], [3]])
  best = _log_probs(ids, 1).argmax(-1)
  np.testing.assert_array_equal(ids[0, 3:5], best[0, 2:4])
  np.testing.assert_array_equal(ids[1, 1:3], best[1, :2])


def test_results_are_drawn_and_processed_with_the_sequence_model():
  seen = []

  class Sampler(token_samplers.BaseNextTokenSampler):
    def __call__(self, model, logits, temperature, decode_loop_state, **kwargs):
      seen.append(type(model))
      return NestedMap(new_ids=jnp.argmax(logits, axis=-1), logits=logits)

  hparams = decoder_hparams.SampleDecoderHParams(
    seqlen=4,
    num_samples=2,
    next_token_sampler_tpl=Sampler.config(),
    override_next_token_sampler_params=False,
    process_result_fn=lambda model, out: seen.append(type(model)) or out,
  )
  _decode(hparams, _batch())
  assert set(seen) == {models.SequenceModel}


def test_beam_search():
  hparams = decoder_hparams.BeamSearchHParams(
    seqlen=_T, max_decode_steps=3, beam_size=3, eos_id=1
  )
  batch = _batch()
  _, out = _decode(hparams, batch)
  assert out.output_ids.shape == (2, 3, 4)
  assert (np.diff(out.scores, axis=1) <= 0).all()
  first = np.repeat(batch.tgt.ids[:, :1], 3, axis=0)
  ids = out.output_ids.reshape(6, 4)
  scores = _log_probs(np.concatenate([first, ids[:, :3]], axis=1), 3)
  for row, length in enumerate(out.decode_lengths.ravel()):
    new = np.arange(length)
    assert ids[row, length - 1] == 1
    want = scores[row, new, ids[row, new]]
    got = out.logprobs.reshape(6, 4)[row, :length]
    np.testing.assert_allclose(got, want, atol=2e-5)
    norm = ((length + 5) / 5) ** 0.8
    np.testing.assert_allclose(
      out.scores.ravel()[row], want.sum() / norm, rtol=1e-4
    )


@pytest.mark.parametrize(
  'hparams, error, message',
  [
    (decoder_hparams.GreedyDecoderHParams(), ValueError, 'seqlen > 0, got 0'),
    (
      decoder_hparams.FlatBeamSearchHParams(seqlen=3),
      NotImplementedError,
      'without an encoder',
    ),
    (
      decoder_hparams.BeamSearchHParams(
        seqlen=3, max_decode_steps=2, fprop_for_prefix=True
      ),
      ValueError,
      'token by token',
    ),
    (
      decoder_hparams.SampleDecoderHParams(seqlen=_T, cf_guidance_scale=2.0),
      NotImplementedError,
      'SequenceModel does not support guidance',
    ),
  ],
)
def test_errors(hparams, error, message):
  with pytest.raises(error, match=message):
    _decode(hparams, _batch())


class _Vocabulary:
  def ids_to_strings(self, ids, lengths, key):
    return [
      key + ' ' + ' '.join(str(int(i)) for i in row[:length])
      for row, length in zip(ids, lengths, strict=True)
    ]


def test_process_decode_out():
  batch = _batch()
  out = NestedMap(
    **batch,
    output_ids=np.asarray([[[5, 6, 9], [5, 6, 0]], [[1, 0, 0], [1, 8, 0]]]),
    decode_lengths=np.asarray([[3, 2], [1, 2]]),
    logprobs=np.zeros((2, 2, 3)),
    eval_sample_weights=np.asarray([1.0, 0.0]),
  )
  layer, _ = _model()
  metrics, [(key, result)], _ = layer.process_decode_out(_Vocabulary(), out)
  assert metrics.decode_length == (3, 1)
  source = 'src ' + ' '.join(map(str, batch.src.ids[0].tolist()))
  assert key == result.source == result.prefix == source
  assert result.decoded == result.decoded_substr == 'tgt 5 6 9'
  assert result.target.startswith('tgt ')
  assert result.sampled == ['tgt 5 6 9', 'tgt 5 6']
  assert result.logprobs.shape == (2, 3)
