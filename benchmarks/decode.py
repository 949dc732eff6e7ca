# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding relative to a hand-written loop, in tokens/s.

    python -m benchmarks.decode --rounds=5

Both programs run the model of `experiments.Lm4x256`. They process the prompts
at once and extend them token by token with a KV cache. Tokens and
log-probabilities must be equal.
"""

# bazel: deps=//benchmarks:experiments
from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import baseline_lm, experiments, measure
from praxis import base_layer, pax_fiddle
from praxis.decoding import hparams
from praxis.nested_map import NestedMap

Cache = list[tuple[jax.Array, jax.Array]]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rows', type=int, default=8)
  parser.add_argument('--prompt', type=int, default=32)
  parser.add_argument('--steps', type=int, default=128)
  parser.add_argument('--rounds', type=int, default=10)
  args = parser.parse_args()
  ours = _Ours(args.rows, args.prompt, args.steps)
  written = _Written(ours, args.steps)
  _check(ours(), written())
  times = measure.alternate({'ours': ours, 'twin': written}, args.rounds)
  best = {name: min(t.wall) for name, t in times.items()}
  tokens = args.rows * args.steps
  measure.report(
    'decode',
    {
      'rows': args.rows,
      'prompt': args.prompt,
      'steps': args.steps,
      'ratio': measure.ratio(times['ours'].wall, times['twin'].wall),
      'cpu_ratio': measure.ratio(times['ours'].cpu, times['twin'].cpu),
      'ours_tokens_per_s': round(tokens / best['ours']),
      'twin_tokens_per_s': round(tokens / best['twin']),
      'ours': measure.summary(times['ours'].wall),
      'twin': measure.summary(times['twin'].wall),
    },
  )


def greedy(model_p: pax_fiddle.Config, steps: int) -> pax_fiddle.Config:
  """Returns the Config in float32, whose rows all decode `steps` tokens."""
  return model_p.clone().set(
    name='model',
    dtype=jnp.float32,
    fprop_dtype=jnp.float32,
    decoder_tpl=hparams.GreedyDecoderHParams(
      fprop_for_prefix=True,
      max_decode_steps=steps,
      # No such token exists, so all rows run to the end.
      eos_id=model_p.lm_tpl.vocab_size,
    ),
  )


def compiled(
  model: Any, variables: Any, batch: NestedMap
) -> Callable[[Any, NestedMap], tuple[jax.Array, jax.Array]]:
  """Returns `model.decode` as (variables, batch) to ids, log-probabilities."""

  def decode(variables: Any, batch: NestedMap) -> tuple[jax.Array, jax.Array]:
    context = base_layer.JaxContext.HParams(do_eval=True)
    with base_layer.JaxContext.new_context(hparams=context):
      (_, result, _), _ = model.apply(
        variables,
        batch,
        method=model.decode,
        mutable=[base_layer.DECODE_CACHE],
      )
    return result.output_ids[:, 0], result.logprobs[:, 0]

  return jax.jit(decode).lower(variables, batch).compile()


class _Ours:
  """`LanguageModel.decode`, compiled."""

  def __init__(self, rows: int, prompt: int, steps: int):
    model_p = greedy(experiments.Lm4x256().task().model, steps)
    vocab = model_p.lm_tpl.vocab_size
    self._model = model_p.Instantiate()
    batch = measure.random_lm_batch(rows, prompt, vocab)
    self.ids = jnp.asarray(batch['ids'])
    self._batch = NestedMap(jax.tree.map(jnp.asarray, batch))
    key = jax.random.key(0)
    self.variables = jax.jit(self._model.init)(key, self._batch)
    self._run = compiled(self._model, self.variables, self._batch)

  def __call__(self) -> tuple[jax.Array, jax.Array]:
    """Returns ids and log-probabilities, [rows, prompt + steps]."""
    return jax.block_until_ready(self._run(self.variables, self._batch))


class _Written:
  """The hand-written loop with the same parameters."""

  def __init__(self, ours: _Ours, steps: int):
    self._steps = steps
    self._params = baseline_lm.params_of(ours.variables)
    self._ids = ours.ids
    jitted = jax.jit(self._decode)
    self._run = jitted.lower(self._params, self._ids).compile()

  def __call__(self) -> tuple[jax.Array, jax.Array]:
    """Returns ids and log-probabilities, [rows, prompt + steps]."""
    return jax.block_until_ready(self._run(self._params, self._ids))

  def _decode(
    self, params: baseline_lm.Params, ids: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    rows, prompt = ids.shape
    cache, logits = _read(params, ids, prompt + self._steps)
    room = [(0, 0), (0, self._steps)]
    ids = jnp.pad(ids, room)
    log_probs = jnp.pad(jnp.ones([rows, prompt]), room, constant_values=1.0)

    def put(state: Any, column: Any, logits: jax.Array) -> Any:
      ids, log_probs = state
      token = jnp.argmax(logits, axis=-1).astype(ids.dtype)
      log_prob = jnp.max(jax.nn.log_softmax(logits), axis=-1)
      return ids.at[:, column].set(token), log_probs.at[:, column].set(log_prob)

    def step(column: jax.Array, state: Any) -> Any:
      cache, texts = state
      token = texts[0][:, column]
      logits, cache = _extend(params, cache, token, column)
      return cache, put(texts, column + 1, logits)

    texts = put((ids, log_probs), prompt, logits)
    last = prompt + self._steps - 1
    _, texts = jax.lax.fori_loop(prompt, last, step, (cache, texts))
    return texts


def _read(
  params: baseline_lm.Params, ids: jax.Array, length: int
) -> tuple[Cache, jax.Array]:
  """Returns the KV cache of the prompts and the logits of the next token."""
  x = _embed(params, ids, jnp.arange(ids.shape[1]))
  visible = baseline_lm.causal_segments(jnp.ones_like(ids))
  cache = []
  for layer in params['layers']:
    normed = baseline_lm.layer_norm(layer['ln'], x)
    _, key, value = jnp.einsum('BTD,KDNH->KBTNH', normed, layer['qkv'])
    room = [(0, 0), (0, length - ids.shape[1]), (0, 0), (0, 0)]
    cache.append((jnp.pad(key, room), jnp.pad(value, room)))
    x = baseline_lm.transformer(layer, x, visible)
  return cache, _logits(params, x[:, -1])


def _extend(
  params: baseline_lm.Params, cache: Cache, token: jax.Array, column: jax.Array
) -> tuple[jax.Array, Cache]:
  """Returns the logits after one more token, and the updated cache."""
  x = _embed(params, token[:, None], column[None])[:, 0]
  longer = []
  for layer, own in zip(params['layers'], cache, strict=True):
    normed = baseline_lm.layer_norm(layer['ln'], x)
    query, key, value = jnp.einsum('BD,KDNH->KBNH', normed, layer['qkv'])
    keys, values = (
      jax.lax.dynamic_update_slice_in_dim(old, new[:, None], column, 1)
      for old, new in zip(own, (key, value), strict=True)
    )
    longer.append((keys, values))
    scale = jax.nn.softplus(layer['scale']) * 1.442695041
    logits = jnp.einsum(
      'BNH,BSNH->BNS', query * (scale / math.sqrt(query.shape[-1])), keys
    )
    logits = 50.0 * jnp.tanh(logits / 50.0)
    seen = jnp.arange(keys.shape[1]) <= column
    probs = jax.nn.softmax(jnp.where(seen, logits, -1e30))
    context = jnp.einsum('BNS,BSNH->BNH', probs, values)
    x = x + jnp.einsum('BNH,DNH->BD', context, layer['post'])
    x = x + baseline_lm.feed_forward(layer, x)
  return _logits(params, x), longer


def _embed(
  params: baseline_lm.Params, ids: jax.Array, positions: jax.Array
) -> jax.Array:
  dims = params['table'].shape[0]
  vectors = params['table'][:, ids]
  vectors = jnp.moveaxis(vectors, 0, -1) * math.sqrt(dims)
  return vectors + baseline_lm.sinusoids(positions, dims)


def _logits(params: baseline_lm.Params, x: jax.Array) -> jax.Array:
  x = baseline_lm.layer_norm(params['final_ln'], x)
  logits = x @ params['table'] + params['table_bias']
  return 30.0 * jnp.tanh(logits / 30.0)


def _check(ours: Any, theirs: Any) -> None:
  if not np.array_equal(ours[0], theirs[0]):
    raise SystemExit('the two programs generate different tokens')
  np.testing.assert_allclose(ours[1], theirs[1], 0, 1e-4)


if __name__ == '__main__':
  main()
