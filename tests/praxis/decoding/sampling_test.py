# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Sampling with all its options, against the logits table of a toy model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.decoding import (
  decode_loop,
  hparams,
  termination_constraints,
  token_samplers,
)
from tests.praxis.decoding import toy_model as toy

_GREEDY = token_samplers.DefaultNextTokenSampler(top_k=1)
_ALL = token_samplers.DefaultNextTokenSampler(top_k=0)
_MODES = [
  (False, 12, {}),
  (False, 12, {'max_decode_steps': 3}),
  (True, 10, {'max_decode_steps': 6}),
  (True, 10, {'max_decode_steps': [2, 6]}),
  (True, 10, {'max_decode_steps': 6, 'min_decode_steps': 6}),
  (True, 9, {'max_decode_steps': 5, 'eos_id': [toy.EOS, 5]}),
]


@pytest.mark.parametrize('at_once, total, fields', _MODES)
def test_greedy_follows_the_argmax(at_once, total, fields):
  fields = {'eos_id': toy.EOS} | fields
  out = toy.sample(_GREEDY, (1, total), at_once, **fields)
  steps = np.max(fields.get('max_decode_steps', 99))
  assert out.output_ids.shape == out.logprobs.shape == (3, 1, total)
  np.testing.assert_array_equal(out.prefix_lengths[:, 0], toy.LENGTHS)
  np.testing.assert_array_equal(out.prefix_ids[:, 0], toy.IDS)
  for row in range(3):
    text, logprobs = toy.greedy(
      row,
      steps,
      total,
      fields.get('min_decode_steps', 0),
      np.atleast_1d(fields['eos_id']),
    )
    assert out.decode_lengths[row, 0] == len(text)
    got = out.output_ids[row, 0]
    np.testing.assert_array_equal(got[: len(text)], text)
    np.testing.assert_array_equal(got[len(text) :], 0)
    prompt = toy.LENGTHS[row]
    got = out.logprobs[row, 0]
    np.testing.assert_allclose(got[prompt : len(text)], logprobs, atol=1e-5)
    assert got[0] == decode_loop.NO_LOGPROB
    scores = [toy.log_probs(text[:i])[text[i]] for i in range(1, prompt)]
    if at_once:
      scores = np.full(prompt - 1, decode_loop.NO_LOGPROB)
    np.testing.assert_allclose(got[1:prompt], scores, atol=1e-5)
    np.testing.assert_array_equal(got[len(text) :], decode_loop.NO_LOGPROB)


def _texts(out):
  """Yields the row, the sample, the text and its log-probs."""
  for row, samples in enumerate(out.output_ids):
    for i, ids in enumerate(samples):
      length = out.decode_lengths[row, i]
      yield row, i, ids[:length], out.logprobs[row, i, :length]


@pytest.mark.parametrize('at_once', [True, False])
def test_samples_are_texts_of_their_logprobs(at_once):
  keys = jnp.asarray([5, 6, 7])
  options = {
    'max_decode_steps': 5, 'eos_id': toy.EOS, 'gumbel_prng_key': keys
  }  # fmt: skip
  out = toy.sample(_ALL, (4, 9), at_once, return_entropy_score=True, **options)
  assert out.output_ids.shape == (3, 4, 9)
  scores = np.zeros((3, 4))
  for row, i, text, logprobs in _texts(out):
    prompt = toy.LENGTHS[row]
    np.testing.assert_array_equal(text[:prompt], toy.IDS[row, :prompt])
    for t in range(prompt, len(text)):
      want = toy.log_probs(text[:t])
      np.testing.assert_allclose(logprobs[t], want[text[t]], atol=1e-5)
      entropy = -(np.exp(want) * want).sum()
      np.testing.assert_allclose(out.entropy[row, i, t], entropy, atol=1e-5)
      scores[row, i] += logprobs[t]
    assert text[-1] == toy.EOS or len(text) == prompt + 5
    assert toy.EOS not in text[prompt:-1]
  assert (np.diff(scores, axis=1) <= 0).all()
  assert len({tuple(ids) for ids in out.output_ids[0]}) > 1
  # The same key draws the same, and stopping late changes nothing.
  again = toy.sample(_ALL, (4, 9), at_once, early_exit=False, **options)
  del out['entropy']
  jax.tree.map(np.testing.assert_array_equal, dict(out), dict(again))


def test_samples_do_not_depend_on_whether_summaries_are_recorded():
  options = {'max_decode_steps': 5, 'eos_id': -1, 'early_exit': False}
  out, again = (
    toy.sample(_ALL, (4, 9), mutable=mutable, **options)
    for mutable in [(), (base_layer.SUMMARIES,)]
  )
  np.testing.assert_array_equal(out.output_ids, again.output_ids)


def test_prompts_beyond_the_vocabulary_have_a_logprob():
  ids = np.asarray([[3, 2 * toy.V, 5]])
  out = toy.sample(
    _GREEDY, (1, 5), False, ids=ids, lengths=np.asarray([3]), eos_id=-1
  )
  want = toy.log_probs(ids[0, :1])[-1]
  np.testing.assert_allclose(out.logprobs[0, 0, 1], want, atol=1e-5)


def test_entropy_and_candidates_are_those_of_all_steps_that_ran():
  out = toy.sample(
    _GREEDY,
    (1, 8),
    max_decode_steps=4,
    eos_id=-1,
    per_example_max_decode_steps=jnp.asarray([1, 4, 2]),
    num_per_token_logprobs=jnp.asarray([2, 2, 2]),
    return_entropy_score=True,
  )
  np.testing.assert_array_equal(
    np.count_nonzero(out.entropy[:, 0], axis=1), [4, 4, 4]
  )
  assert (out.top_candidate_logprobs[:, 0, :4, :2] < 0).all()
  # Token by token, the steps that read the prompt count.
  out = toy.sample(
    _GREEDY, (1, 8), False, max_decode_steps=4, eos_id=-1,
    return_entropy_score=True,
  )  # fmt: skip
  assert (out.entropy[2, 0, 1:] > 0).all()


def test_examples_decide_for_themselves():
  keys = jnp.asarray([5, 6, 7])
  options = {'max_decode_steps': 4, 'eos_id': -1, 'gumbel_prng_key': keys}
  both = toy.sample(_ALL, (2, 8), sort_samples=False, **options)
  permuted = toy.sample(
    _ALL,
    (2, 8),
    ids=toy.IDS[[2, 1, 0]],
    lengths=toy.LENGTHS[[2, 1, 0]],
    sort_samples=False,
    **options | {'gumbel_prng_key': keys[::-1]},
  )
  # Samples depend on the example's key only, not on its row.
  np.testing.assert_array_equal(both.output_ids, permuted.output_ids[::-1])
  assert (both.output_ids[:, 0] != both.output_ids[:, 1]).any()
  dummy = jnp.full(3, token_samplers.DUMMY_PRNG_KEY)
  unset = toy.sample(
    _ALL, (2, 8), sort_samples=False, **options | {'gumbel_prng_key': dummy}
  )
  assert (unset.output_ids != both.output_ids).any()

  limits = toy.sample(
    token_samplers.DefaultNextTokenSampler(top_k=5),
    (2, 8),
    temperature=jnp.asarray([[0.0, 9.0], [0.0, 9.0], [0.0, 9.0]]),
    per_example_max_decode_steps=jnp.asarray([0, 3, 9]),
    per_example_top_k=jnp.asarray([5, 5, 1]),
    per_example_top_p=jnp.asarray([1.0, 1e-3, 1.0]),
    sort_samples=False,
    max_decode_steps=4,
    eos_id=-1,
  )
  np.testing.assert_array_equal(
    limits.decode_lengths - toy.LENGTHS[:, None], [[1, 1], [3, 3], [4, 4]]
  )
  for row, i, text, _ in _texts(limits):
    steps = len(text) - toy.LENGTHS[row]
    # Temperature 0, top p of nearly nothing and the top 1 are all greedy.
    if i == 0 or row > 0:
      np.testing.assert_array_equal(text, toy.greedy(row, steps, 99, eos=())[0])


def test_stop_sequences():
  plain = toy.sample(_GREEDY, (1, 10), max_decode_steps=6, eos_id=-1)
  new = [ids[n : n + 6] for ids, n in zip(
    plain.output_ids[:, 0], toy.LENGTHS, strict=True
  )]  # fmt: skip
  # The third and fourth token, the second, and nothing.
  stops = [[0, *new[0][2:4]], [0, 0, new[1][1]], [0, 0, 0]]
  out = toy.sample(
    _GREEDY, (1, 10), max_decode_steps=6, eos_id=jnp.asarray(stops)
  )
  first = lambda ids, stop: next(
    i + 1
    for i in range(len(ids))
    if list(ids[: i + 1][-len(stop) :]) == list(stop)
  )
  want = [first(new[0], new[0][2:4]), first(new[1], new[1][1:2]), 6]
  np.testing.assert_array_equal(out.decode_lengths[:, 0], toy.LENGTHS + want)


def test_a_parameter_of_the_batch_counts_for_single_samples():
  options = {'max_decode_steps': 3, 'eos_id': -1}
  shared = toy.sample(
    _GREEDY, (1, 8), num_per_token_logprobs=jnp.asarray([2]), **options
  )
  own = toy.sample(
    _GREEDY, (1, 8), num_per_token_logprobs=jnp.asarray([2] * 3), **options
  )
  np.testing.assert_array_equal(shared.top_candidate_ids, own.top_candidate_ids)
  with pytest.raises(ValueError, match=r'must have shape \(3,\)'):
    toy.sample(
      _GREEDY, (2, 8), num_per_token_logprobs=jnp.asarray([2]), **options
    )


def test_candidates_of_each_step():
  out = toy.sample(
    _GREEDY,
    (1, 8),
    max_decode_steps=3,
    eos_id=-1,
    num_per_token_logprobs=jnp.asarray([2, 0, 9]),
  )
  assert out.top_candidate_ids.shape == (3, 1, 8, 5)
  for row, count in enumerate([2, 0, 5]):
    text, prompt = out.output_ids[row, 0], toy.LENGTHS[row]
    for step in range(3):
      want = toy.log_probs(text[: prompt + step])
      best = np.argsort(-want)[:count]
      ids = out.top_candidate_ids[row, 0, step]
      logprobs = out.top_candidate_logprobs[row, 0, step]
      np.testing.assert_array_equal(ids[:count], best)
      np.testing.assert_allclose(logprobs[:count], want[best], atol=1e-5)
      np.testing.assert_array_equal(ids[count:], 0)
      np.testing.assert_array_equal(logprobs[count:], 1)


def test_logprobs_among_the_top_k():
  sampler = token_samplers.DefaultNextTokenSampler(
    top_k=2, use_top_k_for_logprobs=True
  )
  options = {'max_decode_steps': 2, 'eos_id': -1}
  out = toy.sample(sampler, (1, 6), use_top_k_for_logprobs=True, **options)
  for _, _, text, logprobs in _texts(out):
    want = np.sort(toy.log_probs(text[:-1]))[-2:]
    want -= np.log(np.exp(want).sum())
    assert np.isclose(logprobs[-1], want, atol=1e-5).any()


@pytest.mark.parametrize('as_ids', [list, jnp.asarray])
def test_ends_where_an_end_is_most_probable(as_ids):
  eos = [toy.EOS, 4]
  out = toy.sample(
    _GREEDY, (1, 9), max_decode_steps=5, eos_id=as_ids(eos), optimize_eos=True
  )
  for row in range(3):
    text = list(toy.IDS[row][: toy.LENGTHS[row]])
    score, ends = 0.0, []
    for _ in range(5):
      scores = toy.log_probs(text)
      best = max(eos, key=lambda token: scores[token])
      ends.append((score + scores[best], [*text, best]))
      scores[eos] = -np.inf
      text.append(int(scores.argmax()))
      score += scores.max()
    want, text = max(ends)
    assert out.decode_lengths[row, 0] == len(text)
    np.testing.assert_array_equal(out.output_ids[row, 0, : len(text)], text)
    got = out.logprobs[row, 0]
    np.testing.assert_allclose(got[got < 1].sum(), want, atol=1e-5)


def test_no_sample_ends_within_a_prompt_that_is_read_token_by_token():
  options = {'eos_id': [toy.EOS, 4], 'optimize_eos': True}
  want = toy.sample(_GREEDY, (1, 9), max_decode_steps=5, **options)
  got = toy.sample(_GREEDY, (1, 9), False, max_decode_steps=5, **options)
  np.testing.assert_array_equal(got.output_ids, want.output_ids)
  np.testing.assert_array_equal(got.decode_lengths, want.decode_lengths)
  # The second prompt has a single token, the others fill the result.
  got = toy.sample(_GREEDY, (1, 3), False, **options)
  np.testing.assert_array_equal(got.output_ids[[0, 2], 0], toy.IDS[[0, 2], :3])
  np.testing.assert_array_equal(got.decode_lengths[[0, 2], 0], 3)


def test_guidance_mixes_a_text_with_one_without_condition():
  ids = np.asarray([[3, 2, 5, 0], [5, 0, 0, 0], [2, 6, 3, 4], [4, 0, 0, 0]])
  lengths = np.asarray([3, 1, 4, 1])
  out = toy.sample(
    _GREEDY,
    (2, 7),
    ids=ids,
    lengths=lengths,
    cf_guidance_scale=[1.0, 2.5],
    max_decode_steps=3,
    eos_id=-1,
    sort_samples=False,
  )
  assert out.output_ids.shape == (2, 2, 7)
  for row in range(2):
    for i, scale in enumerate([1.0, 2.5]):
      pair = 2 * row, 2 * row + 1
      given, free = (list(ids[j][: lengths[j]]) for j in pair)
      for _ in range(3):
        without = toy.logits(free)
        mixed = without + scale * (toy.logits(given) - without)
        token = int(mixed.argmax())
        want = mixed[token] - np.log(np.exp(mixed).sum())
        got = out.logprobs[row, i, len(given)]
        np.testing.assert_allclose(got, want, atol=1e-4)
        given.append(token)
        free.append(token)
      np.testing.assert_array_equal(out.output_ids[row, i, : len(given)], given)


def test_blocks_go_on_with_their_best_sample():
  control = hparams.ControlledDecodingHParams(interval=2, block_num_samples=2)
  out = toy.sample(
    _ALL,
    (4, 10),
    max_decode_steps=6,
    eos_id=-1,
    sort_samples=False,
    controlled_decoding=control,
  )
  for row in range(3):
    prompt = toy.LENGTHS[row]
    for block in (0, 2):
      first, second = out.output_ids[row, block : block + 2]
      same = prompt + 4
      np.testing.assert_array_equal(first[:same], second[:same])
  for _, _, text, logprobs in _texts(out):
    want = toy.log_probs(text[:-1])[text[-1]]
    np.testing.assert_allclose(logprobs[-1], want, atol=1e-5)
  assert (out.output_ids[:, 0] != out.output_ids[:, 1]).any()
  assert (out.output_ids[:, 0] != out.output_ids[:, 2]).any()


class _NoFives(termination_constraints.BaseSampleTerminationConstraint):
  def __call__(self, enforce_sample_constraints, decode_loop_state):
    state = decode_loop_state
    last = decode_loop.get_column(state.output_ids, state.step + 1)
    return state.done | (enforce_sample_constraints & (last == 5))


def test_constraints_end_samples():
  plain = toy.sample(_GREEDY, (1, 12), max_decode_steps=8, eos_id=-1)
  out = toy.sample(
    _GREEDY,
    (1, 12),
    max_decode_steps=8,
    eos_id=-1,
    sample_constraint=_NoFives(),
    enforce_sample_constraints=jnp.asarray([True, True, False]),
  )
  for row, enforced in enumerate([True, True, False]):
    new = plain.output_ids[row, 0, toy.LENGTHS[row] :][:8]
    fives = np.flatnonzero(new == 5)
    want = fives[0] + 1 if enforced and len(fives) else 8
    assert out.decode_lengths[row, 0] == toy.LENGTHS[row] + want


@pytest.mark.parametrize(
  'options, message',
  [
    ({}, 'max_decode_steps must be > 0 with fprop_for_prefix'),
    ({'max_decode_steps': 0}, 'max_decode_steps must be > 0'),
    (
      {'max_decode_steps': 2, 'temperature': jnp.ones(2)},
      r'temperature must have shape \(3,\) or \(3, 1\)',
    ),
    (
      {'max_decode_steps': 2, 'per_example_top_k': jnp.ones(4, int)},
      r'per_example_top_k must have shape \(3,\)',
    ),
    (
      {'max_decode_steps': 2, 'gumbel_prng_key': jnp.ones((3, 5), int)},
      'gumbel_prng_key must have shape',
    ),
    ({'max_decode_steps': 2, 'optimize_eos': True}, 'needs an eos_id'),
    (
      {'max_decode_steps': 2, 'sample_constraint': _NoFives()},
      'must be given together',
    ),
    (
      {
        'max_decode_steps': 2,
        'controlled_decoding': hparams.ControlledDecodingHParams(
          block_num_samples=2
        ),
      },
      'divide num_samples=1',
    ),
    (
      {'max_decode_steps': 2, 'cf_guidance_scale': [1.0, 2.0]},
      'one for each of 1 samples',
    ),
    (
      {'max_decode_steps': 2, 'temperature': -0.5},
      'temperature must be >= 0, got -0.5',
    ),
    (
      {'max_decode_steps': 2, 'temperature': float('nan')},
      'temperature must be >= 0, got nan',
    ),
  ],
)
def test_errors(options, message):
  with pytest.raises(ValueError, match=message):
    toy.sample(_GREEDY, (1, 8), **options)


@pytest.mark.parametrize(
  'shape, message',
  [
    ((0, 8), 'num_samples must be >= 1, got 0'),
    ((1, toy.IDS.shape[1] - 1), 'must be >= .*, the columns of the prompts'),
  ],
)
def test_impossible_shapes_of_the_result(shape, message):
  with pytest.raises(ValueError, match=message):
    toy.sample(_GREEDY, shape, max_decode_steps=2)
