# SPDX-License-Identifier: Apache-2.0
"""A toy model: logits are a table lookup by the hash of the sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from praxis import base_layer
from praxis.decoding import (
  model_fns,
  sampling,
  sampling_options,
  sequence_alignment,
)
from praxis.nested_map import NestedMap
from tests.praxis.layers import running

V = 7
EOS = 1
TABLE = np.random.RandomState(0).randn(31, V).astype(np.float32)
IDS = np.asarray([[3, 2, 5, 0], [4, 0, 0, 0], [2, 6, 3, 4]])
LENGTHS = np.asarray([3, 1, 4])


def code(ids):
  """Returns a hash of a sequence that depends on every token and position."""
  return sum((i + 2) * int(token) for i, token in enumerate(ids)) % 31


def logits(ids):
  return TABLE[code(ids)].astype(np.float64)


def log_probs(ids):
  row = logits(ids)
  return row - np.log(np.exp(row).sum())


class Toy(base_layer.BaseLayer):
  """Its decode state is the ids so far."""

  def __call__(self, ids):
    self.update_decode_state('ids', ids)
    self.update_decode_state('time_step', jnp.zeros([], jnp.int32))

  def read(self, ids, step):
    self.update_decode_state('ids', ids)
    self.update_decode_state('time_step', jnp.asarray(step, jnp.int32))

  def extend_step(self, inputs, segment_pos):
    step = self.get_decode_state('time_step')
    ids = self.get_decode_state('ids').at[:, step].set(inputs)
    self.update_decode_state('ids', ids)
    self.update_decode_state('time_step', step + 1)
    place = jnp.arange(ids.shape[1])[None] - (step - segment_pos)[:, None]
    seen = (place >= 0) & (jnp.arange(ids.shape[1]) <= step)
    codes = jnp.sum(jnp.where(seen, (place + 2) * ids, 0), axis=1) % 31
    return jnp.asarray(TABLE)[codes]

  def transform_decode_state(self, fn):
    self.update_decode_state('ids', fn(self.get_decode_state('ids'), 0, 1))

  def call(self, function, *args):
    return function(self, *args)


def steps(at_once):
  """Returns the functions of a Toy that prefills its prompts, or nothing."""

  def read(toy, ids, paddings):
    if at_once:
      toy.read(ids, ids.shape[1] - 1)
    else:
      toy.read(jnp.zeros_like(ids[:, :1]), 0)

  return model_fns.ModelFns(
    extend_step=lambda toy, ids, pos, state: toy.extend_step(ids, pos),
    transform_state=lambda toy, fn: toy.transform_decode_state(fn),
    fprop=read,
  )


def run(function, *args, rng=True, mutable=()):
  """Returns the numpy result of a function of a bound Toy."""
  toy = Toy.config(name='toy').Instantiate()

  @running.jit
  def apply(args):
    return toy.apply(
      {},
      function,
      *args,
      method='call',
      mutable=[base_layer.DECODE_CACHE, *mutable],
      rngs=jax.random.key(4) if rng else None,
    )[0]

  return jax.tree.map(np.asarray, apply(args))


def prefix(at_once, ids=IDS, lengths=LENGTHS):
  ids, lengths = jnp.asarray(ids), jnp.asarray(lengths)
  if at_once:
    ids = sequence_alignment.right_align_tensors(ids, lengths)
  return sampling.Prefix(
    ids=ids,
    lengths=lengths,
    original_lengths=lengths,
    num_columns=ids.shape[1],
  )


def sample(
  sampler, shape, at_once=True, ids=IDS, lengths=LENGTHS, mutable=(), **options
):
  """Returns continuations of the prompts."""
  arrays = {k: v for k, v in options.items() if hasattr(v, 'shape')}
  fixed = {k: v for k, v in options.items() if k not in arrays}
  if not at_once and 'max_decode_steps' in fixed:
    fixed['max_decode_steps'] = fixed['max_decode_steps']

  def decode(toy, arrays):
    return sampling.decode(
      toy,
      steps(at_once),
      sampler,
      prefix(at_once, ids, lengths),
      shape,
      sampling_options.SamplingOptions(
        fprop_for_prefix=at_once, **fixed, **arrays
      ),
    )

  return NestedMap(run(decode, arrays, mutable=mutable))


def greedy(row, steps, length, min_steps=0, eos=(EOS,)):
  """Returns the expected sequence and logprobs of greedy decoding."""
  text = list(IDS[row][: LENGTHS[row]])
  logprobs = []
  while len(logprobs) < steps and len(text) < length:
    scores = log_probs(text)
    text.append(int(scores.argmax()))
    logprobs.append(scores.max())
    if text[-1] in eos and len(logprobs) >= min_steps:
      break
  return text, logprobs
