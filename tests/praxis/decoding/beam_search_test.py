# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Beam searches against exhaustive search, and against one in numpy."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from praxis import beam_search, flat_beam_search
from praxis.decoding import flat_beam_search as decoding_flat_beam_search
from praxis.decoding import hypotheses, model_fns, stop_sequences
from praxis.decoding.hparams import BeamSearchHParams, FlatBeamSearchHParams
from tests.praxis.decoding import toy_model as toy


def _paddings():
  columns = np.arange(4)[::-1]
  return jnp.asarray(columns[None] >= toy.LENGTHS[:, None], jnp.float32)


def _search(**fields):
  hparams = BeamSearchHParams(**{'eos_id': toy.EOS} | fields)
  steps = toy.steps(True)

  def search(model):
    return beam_search.beam_search(
      model,
      steps.extend_step,
      steps.fprop,
      steps.transform_state,
      toy.prefix(True).ids,
      _paddings(),
      hparams,
    )

  return toy.run(search, rng=False)


def _norm(length, alpha):
  return ((length + 5) / 5) ** alpha


def _score(text, prompt, alpha):
  total = sum(
    toy.log_probs(text[:i])[text[i]] for i in range(prompt, len(text))
  )
  return total / _norm(len(text) - prompt, alpha)


def _check(out, row, results, alpha=0.8):
  """`results`: (score, text) of one prompt, the best first."""
  np.testing.assert_allclose(
    out.scores[row], [score for score, _ in results], rtol=1e-5
  )
  for i, (_, text) in enumerate(results):
    prompt = toy.LENGTHS[row]
    assert out.decode_lengths[row, i] == len(text)
    got = out.output_ids[row, i]
    np.testing.assert_array_equal(got[: len(text)], text)
    assert not got[len(text) :].any()
    logprobs = out.logprobs[row, i]
    total = logprobs[prompt : len(text)].sum()
    norm = _norm(len(text) - prompt, alpha)
    np.testing.assert_allclose(total / norm, out.scores[row, i], rtol=1e-5)
    assert (np.delete(logprobs, np.arange(prompt, len(text))) == 1).all()


@pytest.mark.parametrize('alpha', [0.8, 0.0])
def test_a_wide_beam_finds_the_best_of_all_texts(alpha):
  steps, beam = 3, 37
  out = _search(
    beam_size=beam,
    tokens_per_beam=toy.V,
    max_decode_steps=steps,
    length_norm_alpha=alpha,
  )
  others = [token for token in range(toy.V) if token != toy.EOS]
  for row in range(3):
    prompt = list(toy.IDS[row][: toy.LENGTHS[row]])
    texts = [
      [*prompt, *middle, toy.EOS]
      for length in range(steps)
      for middle in itertools.product(others, repeat=length)
    ]
    scored = [(_score(text, len(prompt), alpha), text) for text in texts]
    _check(out, row, sorted(scored, reverse=True)[:beam], alpha)


def _by_hand(row, hparams):
  """Returns the results of a plain beam search for one prompt."""
  prompt = list(toy.IDS[row][: toy.LENGTHS[row]])
  eos, beam = stop_sequences.as_list(hparams.eos_id), hparams.beam_size
  has_eos = lambda text: any(token in eos for token in text[len(prompt) :])
  live, ended = [(0.0, prompt)], []
  for step in range(1, hparams.max_decode_steps + 1):
    grown = []
    if hparams.early_exit and all(has_eos(text) for _, text in live):
      break
    for score, text in live:
      scores = toy.log_probs(text)
      if step > hparams.min_decode_steps:
        best = max(eos, key=lambda token: scores[token])
        norm = _norm(step, hparams.length_norm_alpha)
        ended.append(((score + scores[best]) / norm, [*text, best]))
      else:
        scores[eos] = -1e20
      kept = np.argsort(-scores)[: hparams.tokens_per_beam or beam]
      grown += [
        (score + scores[token], [*text, int(token)])
        for token in kept
        if hparams.early_exit or token not in eos
      ]
    live = sorted(grown, reverse=True)[:beam]
  return sorted(ended, reverse=True)[:beam]


@pytest.mark.parametrize(
  'fields',
  [
    {'beam_size': 2, 'max_decode_steps': 5},
    {'beam_size': 4, 'tokens_per_beam': 2, 'eos_id': [toy.EOS, 6]},
    {'beam_size': 3, 'min_decode_steps': 2, 'length_norm_alpha': 1.5},
    {'beam_size': 2, 'early_exit': True, 'max_decode_steps': 9},
    {'beam_size': 2, 'use_matmul_beam_shuffle': True},
  ],
)
def test_a_narrow_beam(fields):
  fields = {'max_decode_steps': 5} | fields
  out = _search(**fields)
  hparams = BeamSearchHParams(**{'eos_id': toy.EOS} | fields)
  for row in range(3):
    _check(out, row, _by_hand(row, hparams), hparams.length_norm_alpha)
  np.testing.assert_array_equal(out.prefix_lengths[:, 0], toy.LENGTHS)
  np.testing.assert_array_equal(out.prefix_ids[:, 0], toy.IDS)
  assert out.done.shape == (3, hparams.beam_size)


def test_early_exit_ends_when_all_live_hypotheses_have_ended():
  out = _search(
    beam_size=4, eos_id=list(range(toy.V)), early_exit=True, max_decode_steps=5
  )
  assert out.done.all()
  # Every token ends a hypothesis, so there is a single step.
  np.testing.assert_array_equal(out.decode_lengths[:, 0], toy.LENGTHS + 1)


def test_results_that_do_not_exist():
  out = _search(beam_size=3, max_decode_steps=1, length_norm_alpha=0.0)
  np.testing.assert_array_equal(out.scores[:, 1:], -1e9)
  np.testing.assert_array_equal(out.decode_lengths[:, 1:], 5)
  for row, prompt in enumerate(toy.LENGTHS):
    np.testing.assert_array_equal(out.output_ids[row, 1, prompt:], 0)


def test_an_offset_is_added_to_all_tokens_but_the_end():
  options = {'beam_size': 1, 'max_decode_steps': 2, 'min_decode_steps': 1}
  plain = _search(**options)
  # 31 is the size of the table, so that the model reads the same token.
  offset = 31
  out = _search(output_id_offset=offset, **options)
  for row, prompt in enumerate(toy.LENGTHS):
    got, want = out.output_ids[row, 0], plain.output_ids[row, 0]
    np.testing.assert_array_equal(got[:prompt], want[:prompt])
    assert got[prompt] == want[prompt] + offset
    assert got[prompt + 1] == want[prompt + 1] == toy.EOS


def test_flat_search_on_a_scripted_model():
  """A mask selects the tokens of its hypothesis from the flat cache."""
  prompt, beam, steps = 3, 3, 4
  ids = jnp.asarray([[0, 3, 2], [5, 2, 6]])

  def extend(model, tokens, segment_pos, state):
    step = model.get_decode_state('time_step')
    cached = model.get_decode_state('ids')
    cached = cached.at[:, step + jnp.arange(beam)].set(tokens)
    model.update_decode_state('ids', cached)
    model.update_decode_state('time_step', step + beam)
    visible = state.atten_mask[:, 0] == 0
    # The place of a token in its text is how many it sees before it.
    place = jnp.cumsum(visible, axis=-1) - 1
    code = jnp.where(visible, (place + 2) * cached[:, None], 0).sum(-1) % 31
    return jnp.asarray(toy.TABLE)[code]

  hparams = FlatBeamSearchHParams(
    beam_size=beam, max_decode_steps=steps, eos_id=toy.EOS
  )
  search = decoding_flat_beam_search.FlatBeamSearch(
    fns=model_fns.ModelFns(extend_step=extend),
    hparams=hparams,
    prefix_ids=ids,
    prefix_lengths=jnp.asarray([2, 3]),
  )

  def run(model):
    room = jnp.zeros((2, beam * steps - 1), jnp.int32)
    model.read(jnp.concatenate([ids, room], axis=1), prompt - 1)
    return search.result(search.run_loop(model))

  out = toy.run(run, rng=False)
  texts = ([3, 2], [5, 2, 6])
  for row, text in enumerate(texts):
    results = _of(text, hparams)
    np.testing.assert_allclose(
      out.scores[row], [score for score, _ in results], rtol=1e-5
    )
    for i, (_, want) in enumerate(results):
      np.testing.assert_array_equal(out.output_ids[row, i, : len(want)], want)


def _of(text, hparams):
  ids, lengths = toy.IDS, toy.LENGTHS
  try:
    toy.IDS, toy.LENGTHS = np.asarray([text]), np.asarray([len(text)])
    return _by_hand(0, hparams)
  finally:
    toy.IDS, toy.LENGTHS = ids, lengths


@pytest.mark.parametrize('is_flat', [False, True])
def test_flat_search_from_the_last_token_adds_up_logits(is_flat):
  """Logits of each step by hypothesis, as [B, K, V] or [B * K, V]."""
  beam, length, eos = 2, 4, 3
  # The second step continues tokens 1 (first) and 0 of the first.
  script = np.asarray(
    [
      [[4, 5, 0, 1], [4, 5, 0, 1]],
      [[2, 1, 0, 7], [0, 6, 5, 1]],
      [[0, 0, 0, 2], [0, 0, 0, 1]],
    ],
    np.float32,
  )
  seen = []

  def extend(model, ids, segment_pos):
    step = model.get_decode_state('time_step')
    model.update_decode_state('time_step', step + 1)
    seen.append((ids.shape, segment_pos))
    logits = jnp.asarray(script)[step]
    return logits if is_flat else logits[jnp.newaxis]

  def search(model):
    model.read(jnp.zeros((1, 1), jnp.int32), 0)
    return flat_beam_search.flat_beam_search(
      model, extend, jnp.asarray([[9, 8]]), jnp.ones((1, 2)), length, beam,
      eos_id=eos, length_norm_alpha=0.0,
    )  # fmt: skip

  out = toy.run(search, rng=False)
  assert set(seen) == {((1, beam), None)}
  # 1 then end (5 + 7); 0, 1, end (4 + 6 + 2).
  np.testing.assert_array_equal(out.scores, [[12.0, 12.0]])
  np.testing.assert_array_equal(out.output_ids, [[[8, 1, 3, 0], [8, 0, 1, 3]]])
  np.testing.assert_array_equal(out.decode_lengths, [[3, 4]])
  assert out.beam_mask.shape == out.end_mask.shape == (1, beam, beam * length)
  with pytest.raises(ValueError, match='must be > 0, current value = 0'):
    flat_beam_search.flat_beam_search(
      None, extend, jnp.asarray([[8]]), None, 0, beam
    )


def test_pieces():
  logprobs = jnp.asarray([[[0.0, -1, -2], [-3, -4, -5]]])
  scores = jnp.asarray([[0.0, 2.5]])
  values, ids, best, chosen = hypotheses.two_stage_topk(logprobs, scores, [0])
  np.testing.assert_allclose(values, [[-1e9, -1, -1e9, -1.5]])
  np.testing.assert_array_equal(ids, [[0, 1, 0, 1]])
  np.testing.assert_allclose(best, [[-1, -1.5]])
  np.testing.assert_array_equal(chosen, [[1, 3]])
  picked = hypotheses.gather_logprobs(
    logprobs, jnp.asarray([[1, 0]]), jnp.asarray([[2, 1]])
  )
  np.testing.assert_allclose(picked, [[-5, -1]])
  norm = hypotheses.length_norm(jnp.asarray([0, 5]), 2.0)
  np.testing.assert_allclose(norm, [1, 4])
  # Masks after one step of flat beam search.
  mask = jnp.asarray([[[0, 1, 0, 0.0], [1, 0, 0, 0]]])
  grown = flat_beam_search.update_beam_mask(mask, jnp.asarray([[1, 1]]), 1)
  np.testing.assert_array_equal(grown, [[[1, 0, 1, 0], [1, 0, 0, 1]]])
  same = flat_beam_search.update_beam_mask(mask, jnp.asarray([[1.0, 1]]), 1)
  np.testing.assert_array_equal(same, grown)
  tokens = jnp.asarray([[[4, 6], [5, 7]]])
  final = flat_beam_search.get_final_output_ids(grown, tokens)
  np.testing.assert_array_equal(final, [[[4, 6], [4, 7]]])


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'beam_size': 2}, 'max_decode_steps must be > 0 in a beam search'),
    ({'beam_size': 0, 'max_decode_steps': 2}, 'beam_size must be >= 1, got 0'),
    ({'max_decode_steps': 2, 'eos_id': -1}, 'eos_id .* of the 7 .*, got -1'),
    ({'max_decode_steps': 2, 'eos_id': [1, 7]}, 'eos_id .*, got .1, 7.'),
    ({'max_decode_steps': 2, 'eos_id': []}, 'eos_id .*, got ..; without'),
  ],
)
def test_errors(fields, message):
  with pytest.raises(ValueError, match=message):
    _search(**fields)
