# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Decoding with caches, compared with forward passes without."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, decoder_hparams, decoder_utils
from praxis.decoding import hparams as decoding_hparams
from praxis.decoding import streaming
from praxis.layers import models
from praxis.layers.models import LanguageModelType
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.praxis.layers.models import decoding
from tests.testing import nightly


@pytest.mark.parametrize(
  'kind, at_once',
  [
    ('repeated scanned', False),
    ('hybrid', True),
    *nightly.cases(('hybrid', False)),
  ],
)
def test_greedy_decoding_equals_reading_the_whole_text(kind, at_once):
  decoding.check_greedy(kind, at_once)


@pytest.mark.nightly
@pytest.mark.parametrize(
  'kind', ['lazy rotary', 'hybrid lazy', 'lazy clusters scores']
)
def test_samples_may_share_the_cache_of_their_prompt(kind):
  decoding.check_sharing(kind)


@pytest.mark.nightly
@pytest.mark.parametrize('kind', ['lazy clusters', 'lazy clusters scores'])
def test_a_prompt_of_one_token_pairs_it_with_no_padding(kind, monkeypatch):
  monkeypatch.setattr(decoding, 'PROMPTS', np.asarray([4, 1]))
  decoding.check_sharing(kind)


@pytest.mark.parametrize('kind', ['lazy ngrams', *nightly.cases('hybrid')])
def test_beam_searches_agree(kind):
  decoding.check_beams(kind)


def test_hypotheses_do_not_share_a_state():
  hparams = decoder_hparams.FlatBeamSearchHParams(
    max_decode_steps=4, fprop_for_prefix=True, beam_size=3
  )
  with pytest.raises(ValueError, match='flat beam search; use BeamSearch'):
    decoding.decode('hybrid', hparams, decoding.batch())


def test_blocks_of_samples_share_caches():
  kind = 'lazy ngrams'
  batch = decoding.batch(
    prefix_lengths=jnp.asarray(decoding.PROMPTS), gumbel_prng_key=decoding.KEYS
  )
  hparams = decoder_hparams.SampleDecoderHParams(
    max_decode_steps=4,
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
  _, lazy = decoding.decode(kind, hparams, batch)
  decoding.check_scores(lazy, kind)
  hparams.lazy_prefix_broadcast = False
  _, copied = decoding.decode(kind, hparams, batch)
  np.testing.assert_array_equal(lazy.output_ids, copied.output_ids)


@pytest.mark.nightly
def test_prompts_of_one_token_may_be_shared():
  """The first step reads the token, so that the shared cache is empty."""
  texts = decoding.batch(gumbel_prng_key=decoding.KEYS)
  for name in ('ids', 'labels', 'weights', 'paddings'):
    texts[name] = texts[name][:, :1]
  fields = {'fprop_for_prefix': True, 'max_decode_steps': [1, 3]}
  for hparams in (
    decoder_hparams.SampleDecoderHParams(**fields, num_samples=2, k=0),
    decoder_hparams.BeamSearchHParams(**fields, beam_size=3),
  ):
    _, want = decoding.decode('lazy rotary', hparams, texts)
    hparams.lazy_prefix_broadcast = True
    _, got = decoding.decode('lazy rotary', hparams, texts)
    np.testing.assert_array_equal(got.output_ids, want.output_ids)
    np.testing.assert_allclose(got.logprobs, want.logprobs, atol=2e-5)


def test_one_sample_needs_no_sharing():
  batch = decoding.batch(prefix_lengths=jnp.asarray(decoding.PROMPTS))
  hparams = decoder_hparams.SampleDecoderHParams(
    max_decode_steps=3,
    fprop_for_prefix=True,
    k=1,
    eos_id=-1,
    lazy_prefix_broadcast=True,
    vanilla_sample_decode=True,
  )
  _, out = decoding.decode('lazy ngrams', hparams, batch)
  assert out.output_ids.shape == out.logprobs.shape == (2, 9)
  assert out.decode_lengths.shape == out.prefix_lengths.shape == (2,)
  out = jax.tree.map(lambda x: x[:, None], out)
  decoding.check_scores(out, 'lazy ngrams', greedy=True)


def test_a_prefix_model_sees_its_whole_prompt():
  indicator = (
    jnp.arange(decoding.T)[None] < jnp.asarray(decoding.PROMPTS)[:, None]
  )
  hparams = decoder_hparams.GreedyDecoderHParams(
    max_decode_steps=3, fprop_for_prefix=True, eos_id=-1
  )
  kind = 'stacked', LanguageModelType.PREFIX
  batch = decoding.batch(inputs_indicator=indicator.astype(int))
  _, out = decoding.decode(kind[0], hparams, batch, kind[1])
  np.testing.assert_array_equal(out.prefix_lengths[:, 0], decoding.PROMPTS)
  decoding.check_scores(out, *kind, greedy=True)
  with pytest.raises(ValueError, match="needs 'inputs_indicator'"):
    decoding.decode(kind[0], hparams, decoding.batch(), kind[1])


def test_a_prefix_model_may_read_its_prompt_token_by_token():
  """It then attends to the prompt causally."""
  indicator = (
    jnp.arange(decoding.T)[None] < jnp.asarray(decoding.PROMPTS)[:, None]
  )
  hparams = decoder_hparams.GreedyDecoderHParams(seqlen=8, eos_id=-1)
  texts = decoding.batch(inputs_indicator=indicator.astype(int))
  _, out = decoding.decode('stacked', hparams, texts, LanguageModelType.PREFIX)
  texts = decoding.batch(prefix_lengths=jnp.asarray(decoding.PROMPTS))
  _, want = decoding.decode('stacked', hparams, texts)
  np.testing.assert_array_equal(out.output_ids, want.output_ids)
  np.testing.assert_array_equal(out.prefix_lengths[:, 0], decoding.PROMPTS)


def test_flat_beam_search_starts_from_the_last_token_without_a_prefill():
  fields = {'seqlen': 5, 'beam_size': 3, 'eos_id': 2, 'length_norm_alpha': 0.6}
  hparams = decoder_hparams.FlatBeamSearchHParams(**fields)
  texts = decoding.batch()
  _, out = decoding.decode('stacked', hparams, texts)
  assert out.output_ids.shape == (2, 3, 5)
  first = np.repeat(texts.ids[:, -1:], 3, axis=1)
  np.testing.assert_array_equal(out.output_ids[:, :, 0], first)
  assert (np.diff(out.scores, axis=1) <= 0).all()
  layer, variables, _ = decoding.model('stacked')
  ids = jnp.asarray(out.output_ids.reshape(6, 5))
  read = lambda *args: layer.apply(
    *args, method=lambda model, *args: model.lm(*args).logits
  )
  logits = np.asarray(running.jit(read)(variables, ids, jnp.zeros(ids.shape)))
  for row, text in enumerate(np.asarray(ids)):
    i, j = divmod(row, 3)
    length = out.decode_lengths[i, j]
    assert text[length - 1] == 2
    total = sum(logits[row, t, text[t + 1]] for t in range(length - 1))
    want = total / ((length + 4) / 5) ** 0.6
    np.testing.assert_allclose(out.scores[i, j], want, atol=2e-5)


class _NextTokens(base_layer.BaseLayer):
  """A network without attention: the next token is the last one plus one."""

  model_type: LanguageModelType = LanguageModelType.CAUSAL

  def __call__(self, ids, paddings, **segments):
    self.update_decode_state('time_step', jnp.zeros([], jnp.int32))
    return NestedMap()

  def extend_step(self, inputs, segment_pos):
    assert segment_pos is None
    return NestedMap(logits=jax.nn.one_hot((inputs + 1) % 6, 6))

  def transform_decode_state(self, fn):
    del fn

  def check_decoding(self, *, prefill, sequential):
    del prefill, sequential


def test_flat_beam_search_of_a_network_without_attention():
  cfg = models.LanguageModel.config(name='model')
  cfg.lm_tpl = _NextTokens.config()
  cfg.decoder_tpl = decoder_hparams.FlatBeamSearchHParams(
    seqlen=4, beam_size=2, eos_id=5, length_norm_alpha=0.0
  )
  texts = NestedMap(ids=jnp.asarray([[0, 2]]), paddings=jnp.ones((1, 2)))
  (_, out, _), _ = running.run(
    cfg.Instantiate(), {}, texts, method='decode', mutable=decoding.STATES
  )
  np.testing.assert_array_equal(out.output_ids[0, 0], [2, 3, 4, 5])
  assert out.scores[0, 0] == 3


def test_a_prefix_model_reads_a_prompt_of_one_token():
  texts = decoding.batch(inputs_indicator=jnp.ones((decoding.B, decoding.T)))
  texts = jax.tree.map(lambda x: x[:, :1], texts)
  hparams = decoder_hparams.GreedyDecoderHParams(seqlen=4, eos_id=-1)
  _, want = decoding.decode('stacked', hparams, texts)
  _, out = decoding.decode('stacked', hparams, texts, LanguageModelType.PREFIX)
  np.testing.assert_array_equal(out.output_ids, want.output_ids)


@pytest.mark.parametrize('at_once', [False, True])
def test_an_empty_prompt_has_no_tokens(at_once):
  hparams = decoder_hparams.GreedyDecoderHParams(
    seqlen=10, max_decode_steps=4, fprop_for_prefix=at_once, eos_id=-1
  )
  texts = decoding.batch()
  texts.paddings = jnp.asarray([[1.0] * 6, [0, 0, 0, 0, 1, 1]])
  decode = decoding.decoder('stacked', hparams)
  _, out = decode(texts)
  np.testing.assert_array_equal(out.prefix_lengths, [[0], [4]])
  np.testing.assert_array_equal(out.decode_lengths, [[4], [8]])
  np.testing.assert_array_equal(out.prefix_ids[0], 0)
  is_scored = out.logprobs[0, 0] != 1
  if at_once:
    np.testing.assert_array_equal(np.flatnonzero(is_scored), [0, 1, 2, 3])
  else:
    # Column 0 starts the loop, and counts as a step.
    assert out.output_ids[0, 0, 0] == texts.ids[0, 0]
    np.testing.assert_array_equal(np.flatnonzero(is_scored), [1, 2, 3])
  _, want = decode(decoding.batch())
  np.testing.assert_array_equal(out.output_ids[1], want.output_ids[1])


def test_an_empty_prompt_does_not_depend_on_the_others():
  fields = {'fprop_for_prefix': True, 'max_decode_steps': 4}
  greedy = decoder_hparams.GreedyDecoderHParams(**fields, eos_id=-1)
  beams = [
    decoder_hparams.BeamSearchHParams(**fields, beam_size=3),
    decoder_hparams.FlatBeamSearchHParams(**fields, beam_size=3),
  ]

  texts = decoding.batch()
  texts.paddings = texts.paddings.at[0].set(1)
  narrow, shorter = jax.tree.map(lambda x: x[:, :3], texts), texts.copy()
  shorter.paddings = texts.paddings.at[1, 2:].set(1)

  def first_row(decode, texts):
    _, out = decode(texts)
    return out.output_ids[0, :, :4], out.logprobs[0, :, :4]

  rows = []
  for hparams, others in zip(
    (greedy, *beams), (narrow, shorter, shorter), strict=True
  ):
    decode = decoding.decoder('stacked', hparams)
    ids, logprobs = first_row(decode, texts)
    other_ids, other_logprobs = first_row(decode, others)
    np.testing.assert_array_equal(ids, other_ids)
    np.testing.assert_allclose(logprobs, other_logprobs, atol=1e-5)
    rows.append((ids, logprobs))
  _, want, got = rows
  np.testing.assert_array_equal(got[0], want[0])
  np.testing.assert_allclose(got[1], want[1], atol=2e-5)


def test_a_result_may_be_shorter_than_the_prompt():
  hparams = decoder_hparams.GreedyDecoderHParams(seqlen=3, eos_id=-1)
  texts = decoding.batch()
  _, out = decoding.decode('stacked', hparams, texts)
  np.testing.assert_array_equal(out.output_ids[:, 0], texts.ids[:, :3])
  np.testing.assert_array_equal(out.decode_lengths, 3)
  np.testing.assert_array_equal(out.prefix_lengths, [[6], [4]])
  assert out.prefix_ids.shape == (2, 1, 6)


def test_the_result_has_the_prefix_lengths_of_the_batch():
  hparams = decoder_hparams.GreedyDecoderHParams(
    max_decode_steps=[2, 4], fprop_for_prefix=True, eos_id=-1
  )
  texts = decoding.batch(prefix_lengths=jnp.asarray(decoding.PROMPTS))
  _, out = decoding.decode('stacked', hparams, texts)
  np.testing.assert_array_equal(out.prefix_lengths, decoding.PROMPTS)
  # Prompts, and the room of the first steps.
  assert out.prefix_ids.shape == (2, 1, 8)
  np.testing.assert_array_equal(out.prefix_ids[0, 0, 4:], 0)


def test_a_loop_without_early_exit_records_summaries():
  texts = decoding.batch(prefix_lengths=jnp.asarray(decoding.PROMPTS))
  layer, variables, _ = decoding.model('stacked')
  hparams = decoder_hparams.SampleDecoderHParams(
    max_decode_steps=[1, 3], fprop_for_prefix=True, k=1, eos_id=-1
  )
  _, want = decoding.decode('stacked', hparams, texts)
  hparams.early_exit = False
  decode = lambda variables, texts: layer.apply(
    variables,
    hparams,
    texts,
    method='decode_with_params',
    rngs=jax.random.key(1),
    mutable=decoding.STATES,
  )
  (_, out, _), updated = running.jit(decode)(variables, texts)
  np.testing.assert_array_equal(out.output_ids, want.output_ids)
  summaries = updated[base_layer.SUMMARIES]['lm']
  new_ids = summaries['new_ids_scalar']
  for row, prompt in enumerate(decoding.PROMPTS):
    np.testing.assert_array_equal(
      new_ids[:, row], out.output_ids[row, 0, prompt : prompt + 3]
    )
  assert summaries['sample_logits_scalar'].shape == (3, 2, decoding.V)
  # Those of the prefill remain.
  assert 'transformer' in summaries


@pytest.mark.parametrize('devices', [4, *nightly.cases(1)])
def test_tokens_stream_to_the_host(devices):
  calls = []
  callback = streaming.StreamingResultCallback(
    callback_fn=calls.append,
    interval_steps=2,
    init_fn=calls.append,
    done_fn=lambda: calls.append('done'),
  )
  batch = decoding.batch(prefix_lengths=jnp.asarray(decoding.PROMPTS))
  hparams = decoder_hparams.SampleDecoderHParams(
    max_decode_steps=5,
    fprop_for_prefix=True,
    num_samples=2,
    sort_samples=False,
    eos_id=-1,
  )
  kind = 'stacked'
  with contextlib.ExitStack() as stack:
    if devices > 1:
      kind = 'sharded'
      mesh = jax.make_mesh(
        (1, 2, devices // 2),
        ('replica', 'data', 'mdl'),
        (jax.sharding.AxisType.Auto,) * 3,
        devices=jax.devices()[:devices],
      )
      stack.enter_context(jax.set_mesh(mesh))
      by_example = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec('data')
      )
      batch = jax.device_put(batch, by_example)
    _, out = decoding.decode(kind, hparams, batch, result_callback=callback)
    jax.effects_barrier()
  first, *sent, last = calls
  assert first == (2, 2)
  assert last == 'done'
  assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(sent))
  assert [list(call.done.ravel()) for call in sent] == [
    [False] * 4, [False] * 4, [True] * 4
  ]  # fmt: skip
  ids = np.concatenate([call.output_ids for call in sent], axis=-1)[..., :5]
  logprobs = np.concatenate([call.logprobs for call in sent], axis=-1)[..., :5]
  for row, prompt in enumerate(decoding.PROMPTS):
    new = slice(prompt, prompt + 5)
    np.testing.assert_array_equal(ids[row], out.output_ids[row, :, new])
    np.testing.assert_array_equal(logprobs[row], out.logprobs[row, :, new])
  np.testing.assert_allclose(sent[0].scores, logprobs[..., :2].sum(-1), 1e-5)
  assert 'num_calls' not in out


def test_the_loop_may_be_sharded_otherwise():
  """On one device: weights and caches are resharded without error."""
  batch = decoding.batch(prefix_lengths=jnp.asarray(decoding.PROMPTS))
  hparams = decoder_hparams.GreedyDecoderHParams(
    max_decode_steps=3,
    fprop_for_prefix=True,
    eos_id=-1,
    decode_loop_mesh_axes_transpose={'data': 'mdl', 'mdl': 'data'},
  )
  names = 'replica', 'data', 'mdl'
  devices = np.asarray(jax.devices()[:1]).reshape(1, 1, 1)
  with jax.set_mesh(jax.sharding.Mesh(devices, names)):
    _, out = decoding.decode('sharded', hparams, batch)
  decoding.check_scores(out, 'sharded', greedy=True)


def test_results_are_processed_with_the_model():
  def count(lm, result):
    result.vocabulary = jnp.full(2, lm.vocab_size)
    return result

  hparams = decoder_hparams.GreedyDecoderHParams(
    max_decode_steps=1, fprop_for_prefix=True, process_result_fn=count
  )
  _, out = decoding.decode('stacked', hparams, decoding.batch())
  np.testing.assert_array_equal(out.vocabulary, decoding.V)
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
      'needs fprop_for_prefix=True',
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
  ],
)
def test_errors(hparams, error, message):
  with pytest.raises(error, match=message):
    decoding.decode('stacked', hparams, decoding.batch())


def test_models_that_cannot_decode():
  with pytest.raises(ValueError, match='must be a DecoderHParams, got str'):
    decoding_hparams.check_supported('greedy')
  cfg = decoding.config(model_type=LanguageModelType.BIDIRECTIONAL)
  with pytest.raises(NotImplementedError, match='bidirectional'):
    cfg.Instantiate().bind({}).decode(decoding.batch())


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
  layer = decoding.config().Instantiate()
  metrics, pairs, _ = layer.process_decode_out(_Vocabulary(), out)
  assert metrics.decoded_length == (3, 2)
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
  metrics, pairs, _ = layer.process_decode_out(_Vocabulary(), vanilla)
  assert [key for key, _ in pairs] == ['1']
  assert metrics.decoded_length == (2, 1)
  assert 'sampled' not in pairs[0][1]
  vanilla.eval_sample_weights = np.zeros(2)
  metrics, pairs, _ = layer.process_decode_out(_Vocabulary(), vanilla)
  assert metrics.decoded_length == (0, 0)
  assert not pairs
