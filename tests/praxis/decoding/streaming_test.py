# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Streaming of generated tokens, against the result of the decode loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.decoding import streaming, token_samplers
from tests.praxis.decoding import toy_model as toy

_GREEDY = token_samplers.DefaultNextTokenSampler(top_k=1)


def _stream(interval, shape, **options):
  """Returns shapes that init_fn gets, calls, the calls joined, the result."""
  shapes, calls = [], []
  callback = streaming.StreamingResultCallback(
    callback_fn=calls.append, interval_steps=interval, init_fn=shapes.append
  )
  out = toy.sample(
    _GREEDY, shape, eos_id=-1, result_callback=callback, **options
  )
  jax.effects_barrier()
  names = 'output_ids', 'top_candidate_ids', 'top_candidate_logprobs'
  streamed = {
    name: np.concatenate([call[name] for call in calls], axis=2)
    for name in names
    if name in calls[0]
  }
  return shapes, calls, streamed, out


@pytest.mark.parametrize('at_once', [True, False])
def test_candidates_of_each_step(at_once):
  _, calls, streamed, out = _stream(
    2,
    (1, 9),
    at_once=at_once,
    max_decode_steps=5 if at_once else None,
    num_per_token_logprobs=jnp.asarray([2, 0, 9]),
  )
  np.testing.assert_array_equal(
    calls[0].num_per_token_logprobs, [[2], [0], [9]]
  )
  for name in ('top_candidate_ids', 'top_candidate_logprobs'):
    steps = streamed[name].shape[2]
    np.testing.assert_array_equal(streamed[name], out[name][:, :, :steps])
  assert streamed['top_candidate_ids'][0, 0, :, 1].any()


def test_tokens_before_the_last_column_are_sent():
  """The columns end before max_decode_steps, and no row is done."""
  _, calls, streamed, out = _stream(2, (1, 9), max_decode_steps=8)
  assert not any(call.done.any() for call in calls)
  for row, prompt in enumerate(toy.LENGTHS):
    want = out.output_ids[row, 0, prompt : prompt + 5]
    np.testing.assert_array_equal(streamed['output_ids'][row, 0, :5], want)


def test_guidance_streams_the_rows_with_a_condition():
  ids = np.asarray([[3, 2, 5, 0], [5, 0, 0, 0], [2, 6, 3, 4], [4, 0, 0, 0]])
  shapes, calls, _, _ = _stream(
    1,
    (2, 7),
    ids=ids,
    lengths=np.asarray([3, 1, 4, 1]),
    cf_guidance_scale=[1.0, 2.5],
    max_decode_steps=2,
    num_per_token_logprobs=jnp.asarray([1, 2]),
  )
  assert [tuple(np.ravel(shape)) for shape in shapes] == [(2, 2)]
  assert calls[0].output_ids.shape == (2, 2, 1)
  np.testing.assert_array_equal(
    calls[0].num_per_token_logprobs, [[1, 1], [2, 2]]
  )
