# SPDX-License-Identifier: Apache-2.0
"""Generation of a model small enough to be followed by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, decoder_hparams
from praxis.decoding import loop
from praxis.nested_map import NestedMap

_V = 7
_EOS = 1
_TABLE = np.random.RandomState(0).randn(31, _V).astype(np.float32)


def _hash(ids):
  """Stands for what a model makes of a text, every token and its place."""
  return sum((i + 2) * int(token) for i, token in enumerate(ids)) % 31


class Toy(base_layer.BaseLayer):
  """Keeps ids as its cache; logits are a table of the hash of the text."""

  def __call__(
    self, inputs, paddings, segment_ids=None, segment_pos=None,
    start_time_step=0, causal_attention_mask=None,
  ):  # fmt: skip
    self.update_decode_state('ids', inputs)
    self.update_decode_state('time_step', jnp.asarray(start_time_step))

  def extend_step(self, inputs, segment_pos=None):
    step = self.get_decode_state('time_step')
    ids = self.get_decode_state('ids').at[:, step].set(inputs)
    self.update_decode_state('ids', ids)
    self.update_decode_state('time_step', step + 1)
    place = jnp.arange(ids.shape[1])[None] - (step - segment_pos)[:, None]
    seen = (place >= 0) & (jnp.arange(ids.shape[1]) <= step)
    code = jnp.sum(jnp.where(seen, (place + 2) * ids, 0), axis=1) % 31
    return NestedMap(logits=jnp.asarray(_TABLE)[code])

  def transform_decode_state(self, fn):
    self.update_decode_state('ids', fn(self.get_decode_state('ids'), 0, 1))

  def generate(self, prompts, hparams):
    return loop.sample_decode(self, prompts, hparams, jax.random.key(4))


_IDS = np.asarray([[3, 2, 5, 0], [4, 0, 0, 0], [2, 6, 3, 4]])
_LENGTHS = np.asarray([3, 1, 4])


def _generate(hparams):
  prompts = loop.Prompts(ids=jnp.asarray(_IDS), lengths=jnp.asarray(_LENGTHS))
  layer = Toy.config(name='toy').Instantiate()
  run = jax.jit(
    lambda prompts: layer.apply(
      {},
      prompts,
      hparams,
      method='generate',
      mutable=[base_layer.DECODE_CACHE],
    )[0]
  )
  return jax.tree.map(np.asarray, run(prompts))


def _greedy_by_hand(row, steps, length, min_steps=0, eos=(_EOS,)):
  text = list(_IDS[row][: _LENGTHS[row]])
  logprobs = []
  while len(logprobs) < steps and len(text) < length:
    logits = _TABLE[_hash(text)].astype(np.float64)
    text.append(int(logits.argmax()))
    logprobs.append(logits.max() - np.log(np.exp(logits).sum()))
    if text[-1] in eos and len(logprobs) >= min_steps:
      break
  return text, logprobs


_MODES = [
  {'seqlen': 12},
  {'seqlen': 12, 'max_decode_steps': 3},
  {'fprop_for_prefix': True, 'max_decode_steps': 6},
  {'fprop_for_prefix': True, 'max_decode_steps': 6, 'min_decode_steps': 6},
  {'fprop_for_prefix': True, 'max_decode_steps': 5, 'eos_id': [_EOS, 5]},
]


@pytest.mark.parametrize('fields', _MODES)
def test_greedy_follows_the_argmax(fields):
  hparams = decoder_hparams.GreedyDecoderHParams(**{'eos_id': _EOS} | fields)
  out = _generate(hparams)
  steps = fields.get('max_decode_steps', 99)
  total = fields.get('seqlen', 4 + steps)
  eos = np.atleast_1d(hparams.eos_id)
  assert out.output_ids.shape == out.logprobs.shape == (3, 1, total)
  for row in range(3):
    text, logprobs = _greedy_by_hand(
      row, steps, total, hparams.min_decode_steps, eos
    )
    assert out.decode_lengths[row, 0] == len(text)
    got = out.output_ids[row, 0]
    np.testing.assert_array_equal(got[: len(text)], text)
    np.testing.assert_array_equal(got[len(text) :], 0)
    prompt = _LENGTHS[row]
    got = out.logprobs[row, 0]
    np.testing.assert_allclose(got[prompt : len(text)], logprobs, atol=1e-5)
    np.testing.assert_array_equal(got[:prompt], loop.NO_LOGPROB)
    np.testing.assert_array_equal(got[len(text) :], loop.NO_LOGPROB)


@pytest.mark.parametrize('at_once', [True, False])
def test_samples_are_texts_of_their_logprobs(at_once):
  hparams = decoder_hparams.SampleDecoderHParams(
    seqlen=9,
    max_decode_steps=5,
    fprop_for_prefix=at_once,
    num_samples=4,
    k=0,
    eos_id=_EOS,
  )
  out = _generate(hparams)
  assert out.output_ids.shape == (3, 4, 9)
  scores = np.zeros((3, 4))
  for row in range(3):
    prompt = _LENGTHS[row]
    for sample in range(4):
      length = out.decode_lengths[row, sample]
      text = out.output_ids[row, sample, :length]
      np.testing.assert_array_equal(text[:prompt], _IDS[row, :prompt])
      for i in range(prompt, length):
        logits = _TABLE[_hash(text[:i])].astype(np.float64)
        want = logits[text[i]] - np.log(np.exp(logits).sum())
        got = out.logprobs[row, sample, i]
        np.testing.assert_allclose(got, want, atol=1e-5)
        scores[row, sample] += got
      assert text[-1] == _EOS or length == prompt + 5
      assert _EOS not in text[prompt:-1]
  assert (np.diff(scores, axis=1) <= 0).all()
  assert len({tuple(ids) for ids in out.output_ids[0]}) > 1


def test_without_early_exit_nothing_changes():
  hparams = decoder_hparams.SampleDecoderHParams(seqlen=12, eos_id=_EOS, k=3)
  early = _generate(hparams)
  hparams.early_exit = False
  jax.tree.map(np.testing.assert_array_equal, early, _generate(hparams))


def test_right_align():
  ids = loop.right_align(jnp.asarray(_IDS), jnp.asarray(_LENGTHS))
  np.testing.assert_array_equal(ids, [[0, 3, 2, 5], [0, 0, 0, 4], [2, 6, 3, 4]])


class Beam(decoder_hparams.DecoderHParams):
  pass


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
      'must be at least 4',
    ),
    (
      decoder_hparams.GreedyDecoderHParams(fprop_for_prefix=True),
      ValueError,
      'max_decode_steps must be > 0',
    ),
    (Beam(seqlen=9), NotImplementedError, 'no decoder for Beam'),
  ],
)
def test_errors(hparams, error, message):
  with pytest.raises(error, match=message):
    _generate(hparams)
