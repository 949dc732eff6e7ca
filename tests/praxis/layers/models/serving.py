# SPDX-License-Identifier: Apache-2.0
"""A continuous batching server, compared with single requests."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from praxis import base_layer, decoder_hparams
from praxis.layers import models, ngrammer, transformers
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.praxis.layers.models import decoding

V, P, STEPS = 13, 4, 5
CACHE = [base_layer.DECODE_CACHE]
HPARAMS = decoder_hparams.GreedyDecoderHParams(
  seqlen=P + STEPS,
  max_decode_steps=STEPS,
  eos_id=-1,
  num_cache_slots=2,
  fprop_for_prefix=True,
)
# Requests, and how many of their ids count.
IDS = np.asarray([[3, 2, 5, 7], [4, 1, 0, 0], [6, 6, 2, 0]])
LENGTHS = np.asarray([4, 2, 3])


def prompts(rows=slice(None)):
  paddings = np.arange(P)[None] >= LENGTHS[rows, None]
  return NestedMap(
    ids=jnp.asarray(IDS[rows]),
    labels=jnp.asarray(IDS[rows]),
    weights=jnp.ones((len(IDS[rows]), P)),
    paddings=jnp.asarray(paddings, jnp.float32),
  )


class Server:
  """A server's slots, and the tokens of each request."""

  def __init__(self, kind, step_shape, hparams=HPARAMS):
    cfg = models.LanguageModelContinuousBatching.config(name='model')
    cfg.lm_tpl.set(model_dims=8, vocab_size=V)
    block = cfg.lm_tpl.stacked_transformer_tpl
    block.set(num_layers=1, hidden_dims=16, num_heads=2)
    if 'ngrams' in kind:
      cfg.lm_tpl.ngrammer_tpl = ngrammer.Ngrammer.config(
        unigram_vocab_size=V,
        ngram_vocab_size=V * V,
        ngram_emb_dim=2,
        num_heads=2,
        dim_per_head=4,
        concat_ngrams=True,
      )
    if 'hybrid' in kind:
      block.num_layers = 2
      block.transformer_layer_params_tpl = decoding.with_gated_delta_net(
        block.transformer_layer_params_tpl
      )
    if 'scanned' in kind:
      cfg.lm_tpl.stacked_transformer_tpl = (
        transformers.StackedTransformerRepeated.config(
          block=block, x_times=2, unroll_in_decode=False
        )
      )
    self.layer, self.variables = running.build(cfg, prompts())
    self._compiled = {}
    self.state, self.cache = self.call('sample_init_slots', {}, hparams)
    self.state.step = jnp.reshape(self.state.step, step_shape)
    self.tokens = {}
    self.requests = [None] * HPARAMS.num_cache_slots

  def call(self, method, cache, *args):
    """Returns the result of a method, and the updated cache."""
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
          mutable=CACHE,
        )

      self._compiled[name] = run
    return self._compiled[name]({**self.variables, **cache}, arrays)

  def insert(self, request, slot):
    rows = slice(request, request + 1)
    state, cache = self.call('sample_prefill', {}, prompts(rows), HPARAMS)
    self.state, self.cache = self.call(
      'sample_insert', self.cache, HPARAMS, state, cache, self.state, 0, slot
    )
    self.requests[slot] = request
    self.tokens[request] = []
    self._record([slot])

  def generate(self, align=False):
    self.state, self.cache = self.call(
      'sample_generate', self.cache, self.state, HPARAMS, align
    )
    self._record(range(len(self.requests)))

  def _record(self, slots):
    for slot in slots:
      if self.requests[slot] is not None:
        pair = self.state.output_ids[slot], self.state.logprobs[slot]
        self.tokens[self.requests[slot]].append([float(x) for x in pair])


def check_requests(kind, step_shape=()):
  """Compares requests that start at different steps with single requests."""
  server = Server(kind, step_shape)
  assert server.state.done.all()
  (_, out, _), _ = server.call('decode_with_params', {}, HPARAMS, prompts())
  want = [
    np.stack([out.output_ids[i, 0, n : n + STEPS],
              out.logprobs[i, 0, n : n + STEPS]], axis=1)
    for i, n in enumerate(LENGTHS)
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
    server.generate(align=bool(server.state.step >= HPARAMS.seqlen))
  for request in range(3):
    got = np.asarray(server.tokens[request])[:STEPS]
    np.testing.assert_array_equal(got[:, 0], want[request][:, 0])
    np.testing.assert_allclose(got[:, 1], want[request][:, 1], atol=2e-5)
  np.testing.assert_array_equal(
    server.state.decode_lengths, LENGTHS[[1, 2]] + STEPS
  )
  # What is done, or deleted, gives nothing any more.
  server.insert(0, slot=0)
  server.state = server.layer.sample_delete(server.state, 0)
  server.generate()
  np.testing.assert_array_equal(server.state.output_ids, [0, 0])
  np.testing.assert_array_equal(server.state.logprobs, [1, 1])
