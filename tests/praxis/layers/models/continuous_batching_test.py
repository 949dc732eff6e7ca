# SPDX-License-Identifier: Apache-2.0
"""Requests that come and go get the tokens that they would get alone."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, decoder_hparams
from praxis.layers import models, transformers
from praxis.nested_map import NestedMap
from tests.praxis.layers import running

_V, _P, _STEPS = 13, 4, 5
_CACHE = [base_layer.DECODE_CACHE]
_HPARAMS = decoder_hparams.GreedyDecoderHParams(
  seqlen=_P + _STEPS,
  max_decode_steps=_STEPS,
  eos_id=-1,
  num_cache_slots=2,
  fprop_for_prefix=True,
)
# Requests, and how many of their ids count.
_IDS = np.asarray([[3, 2, 5, 7], [4, 1, 0, 0], [6, 6, 2, 0]])
_LENGTHS = np.asarray([4, 2, 3])


def _prompts(rows=slice(None)):
  paddings = np.arange(_P)[None] >= _LENGTHS[rows, None]
  return NestedMap(
    ids=jnp.asarray(_IDS[rows]),
    labels=jnp.asarray(_IDS[rows]),
    weights=jnp.ones((len(_IDS[rows]), _P)),
    paddings=jnp.asarray(paddings, jnp.float32),
  )


class _Server:
  """Slots, the calls on them, and the tokens that each request got."""

  def __init__(self, kind):
    cfg = models.LanguageModelContinuousBatching.config(name='model')
    cfg.lm_tpl.set(model_dims=8, vocab_size=_V)
    block = cfg.lm_tpl.stacked_transformer_tpl
    block.set(num_layers=2, hidden_dims=16, num_heads=2)
    if kind == 'scanned':
      block.num_layers = 1
      cfg.lm_tpl.stacked_transformer_tpl = (
        transformers.StackedTransformerRepeated.config(
          block=block, x_times=2, unroll_in_decode=False
        )
      )
    self.layer, self.variables = running.build(cfg, _prompts())
    self._compiled = {}
    self.state, self.cache = self.call('sample_init_slots', {}, _HPARAMS)
    self.tokens = {}
    self.requests = [None] * _HPARAMS.num_cache_slots

  def call(self, method, cache, *args):
    """Returns the result of a method, and the cache it leaves."""
    # Dicts (with NestedMaps) and slots are arrays; bools are not.
    is_array = lambda x: isinstance(x, dict) or type(x) is int
    fixed = {i: x for i, x in enumerate(args) if not is_array(x)}
    arrays = {i: x for i, x in enumerate(args) if i not in fixed}
    name = method, tuple(map(repr, fixed.values()))
    if name not in self._compiled:

      @running.jit
      def run(variables, arrays):
        both = {**fixed, **arrays}
        return self.layer.apply(
          variables,
          *(both[i] for i in range(len(args))),
          method=method,
          mutable=_CACHE,
        )

      self._compiled[name] = run
    return self._compiled[name]({**self.variables, **cache}, arrays)

  def insert(self, request, slot):
    rows = slice(request, request + 1)
    state, cache = self.call('sample_prefill', {}, _prompts(rows), _HPARAMS)
    self.state, self.cache = self.call(
      'sample_insert', self.cache, _HPARAMS, state, cache, self.state, 0, slot
    )
    self.requests[slot] = request
    self.tokens[request] = []
    self._record([slot])

  def generate(self, align=False):
    self.state, self.cache = self.call(
      'sample_generate', self.cache, self.state, _HPARAMS, align
    )
    self._record(range(len(self.requests)))

  def _record(self, slots):
    for slot in slots:
      if self.requests[slot] is not None:
        pair = self.state.output_ids[slot], self.state.logprobs[slot]
        self.tokens[self.requests[slot]].append([float(x) for x in pair])


def test_requests_get_what_they_would_get_alone():
  check_requests('scanned')


def check_requests(kind):
  server = _Server(kind)
  assert server.state.done.all()
  (_, out, _), _ = server.call('decode_with_params', {}, _HPARAMS, _prompts())
  want = [
    np.stack([out.output_ids[i, 0, n : n + _STEPS],
              out.logprobs[i, 0, n : n + _STEPS]], axis=1)
    for i, n in enumerate(_LENGTHS)
  ]  # fmt: skip
  server.insert(0, slot=1)
  server.generate()
  server.generate()
  server.insert(1, slot=0)
  server.generate()
  # Request 0 has its last token, the caches end: all move to the left.
  server.generate()
  assert list(server.state.done) == [False, True]
  server.insert(2, slot=1)
  while not server.state.done.all():
    server.generate(align=bool(server.state.step >= _HPARAMS.seqlen))
  for request in range(3):
    got = np.asarray(server.tokens[request])[:_STEPS]
    np.testing.assert_array_equal(got[:, 0], want[request][:, 0])
    np.testing.assert_allclose(got[:, 1], want[request][:, 1], atol=2e-5)
  np.testing.assert_array_equal(
    server.state.decode_lengths, _LENGTHS[[1, 2]] + _STEPS
  )
  # What is done, or deleted, gives nothing any more.
  server.insert(0, slot=0)
  server.state = server.layer.sample_delete(server.state, 0)
  server.generate()
  np.testing.assert_array_equal(server.state.output_ids, [0, 0])
  np.testing.assert_array_equal(server.state.logprobs, [1, 1])


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
      _prompts(),
      decoder_hparams.GreedyDecoderHParams(seqlen=9, max_decode_steps=4),
    )
