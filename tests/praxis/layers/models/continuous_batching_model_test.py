# SPDX-License-Identifier: Apache-2.0
"""Continuous batching generates the tokens of single requests."""

# bazel: size=medium
from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from praxis import decoder_hparams
from praxis.layers import models
from tests.praxis.layers.models import serving


def test_requests_get_what_they_would_get_alone():
  # The step of a server of Sax has shape [1]. The n-grams of the second step
  # have the last token of the prompt.
  serving.check_requests('hybrid ngrams', step_shape=(1,))


def test_slots_keep_the_fractions_of_requests():
  """Also where the settings of the decoder are whole numbers."""
  hparams = decoder_hparams.SampleDecoderHParams(
    **vars(serving.HPARAMS), temperature=1, p=1, k=1
  )
  server = serving.Server('stacked', (), hparams)
  prompts = serving.prompts(slice(1))
  prompts.temperature = jnp.asarray([0.5])
  prompts.per_example_top_p = jnp.asarray([0.75])
  state, cache = server.call('sample_prefill', {}, prompts, hparams)
  slots, _ = server.call(
    'sample_insert', server.cache, hparams, state, cache, server.state, 0, 1
  )
  np.testing.assert_array_equal(slots.temperature, [1, 0.5])
  np.testing.assert_array_equal(slots.per_example_top_p, [1, 0.75])


def test_no_request_ends_before_min_decode_steps():
  server = serving.Server('stacked', ())
  prompts = serving.prompts()
  first, _ = server.call('sample_prefill', {}, prompts, serving.HPARAMS)
  ends = [int(token) for token in first.output_ids]
  for min_steps, want in [(1, True), (2, False)]:
    hparams = dataclasses.replace(
      serving.HPARAMS, eos_id=ends, min_decode_steps=min_steps
    )
    state, _ = server.call('sample_prefill', {}, prompts, hparams)
    np.testing.assert_array_equal(state.output_ids, ends)
    np.testing.assert_array_equal(state.has_eos, [want] * 3)
    np.testing.assert_array_equal(state.done, [want] * 3)


def test_rows_outside_the_state_are_refused():
  """They would clear the cache of another request."""
  server = serving.Server('stacked', ())
  state, _ = server.call(
    'sample_prefill', {}, serving.prompts(slice(1)), serving.HPARAMS
  )
  insert = functools.partial(
    server.layer.sample_insert, serving.HPARAMS, state, {}, server.state
  )
  with pytest.raises(ValueError, match='slot must be from 0 to 1.*got 2'):
    insert(0, 2)
  with pytest.raises(ValueError, match='prefix_slot must be from 0 to 0'):
    insert(jnp.asarray(1), 0)
  with pytest.raises(ValueError, match='slot must be from 0 to 1.*got -3'):
    server.layer.sample_delete(server.state, -3)


@pytest.mark.parametrize(
  'method, hparams, message',
  [
    (
      'sample_init_slots',
      decoder_hparams.GreedyDecoderHParams(seqlen=4, max_decode_steps=4),
      'seqlen > max_decode_steps > 0',
    ),
    (
      'sample_init_slots',
      decoder_hparams.GreedyDecoderHParams(seqlen=9, max_decode_steps=4),
      'num_cache_slots must be > 0',
    ),
  ],
)
def test_errors(method, hparams, message):
  cfg = models.LanguageModelContinuousBatching.config(name='model')
  model = cfg.Instantiate().bind({})
  with pytest.raises(ValueError, match=message):
    getattr(model, method)(hparams)
  with pytest.raises(ValueError, match='prompts must have 5 columns'):
    model.sample_prefill(
      serving.prompts(),
      decoder_hparams.GreedyDecoderHParams(seqlen=9, max_decode_steps=4),
    )
