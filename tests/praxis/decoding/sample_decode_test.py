# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The functions of upstream's module give the results of `sampling.decode`."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import decoder_utils, sample_decode
from praxis.decoding import token_samplers
from tests.praxis.decoding import toy_model as toy

_GREEDY = token_samplers.DefaultNextTokenSampler(top_k=1)
_STEPS, _LENGTH = 4, 8


def _without_state(model, ids, segment_pos):
  return model.extend_step(ids, segment_pos)


def _prompts():
  prefix = toy.prefix(True)
  return prefix.ids, prefix.paddings(True)


def _expected():
  return toy.sample(
    _GREEDY, (1, _LENGTH), max_decode_steps=_STEPS, eos_id=toy.EOS
  )


@pytest.mark.parametrize('is_prefilled', [False, True])
def test_sample_and_greedy_decode(is_prefilled):
  fns = toy.steps(True)
  ids, paddings = _prompts()
  options = {
    'fprop_for_prefix': True,
    'max_decode_steps': _STEPS,
    'eos_id': toy.EOS,
  }

  def sample(model):
    if is_prefilled:
      room = jnp.zeros((ids.shape[0], _STEPS), ids.dtype)
      model.read(jnp.concatenate([ids, room], axis=1), ids.shape[1] - 1)
      return sample_decode.sample_decode_after_fprop(
        model, _without_state, fns.transform_state, None, _GREEDY, ids,
        paddings, _LENGTH, 1, **options,
      )  # fmt: skip
    return sample_decode.sample_decode(
      model, _without_state, fns.transform_state, None, _GREEDY, ids, paddings,
      _LENGTH, 1, fprop_fn=fns.fprop, **options,
    )  # fmt: skip

  def greedy(model):
    return sample_decode.greedy_decode(
      model, fns.extend_step, ids, paddings, _LENGTH, fprop_fn=fns.fprop,
      transform_state_fn=fns.transform_state, **options,
    )  # fmt: skip

  expected = _expected()
  for function in (sample, greedy):
    out = toy.run(function, rng=False)
    np.testing.assert_array_equal(out.output_ids, expected.output_ids)
    np.testing.assert_array_equal(out.logprobs, expected.logprobs)
    np.testing.assert_array_equal(out.decode_lengths, expected.decode_lengths)


def test_the_key_of_a_token_is_folded_from_the_column_before():
  """Prompts of no columns: column 0 is sampled, from logits of column -1."""
  ids = jnp.zeros((3, 4), jnp.int32)
  seeds = jnp.asarray([7, 8, 9])

  def sample(model):
    model.read(ids, 0)
    return sample_decode.sample_decode(
      model, _without_state, lambda *_: None, None,
      token_samplers.DefaultNextTokenSampler(top_k=0), ids, jnp.zeros((3, 4)),
      seq_len=4, num_samples=1, fprop_for_prefix=True, max_prefix_len=0,
      max_decode_steps=4, prefix_lengths=jnp.zeros(3, jnp.int32),
      gumbel_prng_key=seeds,
    )  # fmt: skip

  out = toy.run(sample)
  assert out.output_ids.shape == out.prefix_ids.shape == (3, 1, 4)
  np.testing.assert_array_equal(out.original_lengths, [[4]] * 3)
  np.testing.assert_array_equal(out.decode_lengths, [[4]] * 3)
  for row, seed in enumerate(seeds):
    key = jax.random.wrap_key_data(jnp.stack([seed, seed]).astype(jnp.uint32))
    key = jax.random.fold_in(jax.random.split(key, 1)[0], jnp.asarray(-1))
    noisy = toy.TABLE[0] + jax.random.gumbel(key, (toy.V,))
    assert out.output_ids[row, 0, 0] == jnp.argmax(noisy)


def test_prompts_are_prefilled_with_the_paddings_of_the_caller():
  fns, seen = toy.steps(True), []
  ids, paddings = _prompts()
  wide = jnp.pad(ids, [(0, 0), (0, 1)])

  def sample(model):
    return sample_decode.sample_decode(
      model, _without_state, fns.transform_state, None, _GREEDY, wide,
      jnp.pad(paddings, [(0, 0), (0, 1)], constant_values=1.0), _LENGTH, 1,
      fprop_fn=lambda model, *args: seen.append(jax.tree.map(jnp.shape, args))
      or fns.fprop(model, ids, paddings),
      fprop_for_prefix=True, max_prefix_len=4, max_decode_steps=_STEPS,
      eos_id=toy.EOS,
    )  # fmt: skip

  out = toy.run(sample, rng=False)
  assert seen == [((3, 5), (3, 5))]
  np.testing.assert_array_equal(out.output_ids, _expected().output_ids)
  assert out.prefix_ids.shape == (3, 1, 5)


def test_vanilla_sample_decode_has_no_sample_dimension():
  fns = toy.steps(True)
  ids, paddings = _prompts()

  def vanilla(model, **options):
    return sample_decode.vanilla_sample_decode(
      model, fns.fprop, fns.extend_step, fns.transform_state, _GREEDY, ids,
      paddings, **options,
    )  # fmt: skip

  out = toy.run(
    lambda model: vanilla(model, max_decode_steps=_STEPS, eos_id=toy.EOS),
    rng=False,
  )
  expected = _expected()
  np.testing.assert_array_equal(out.output_ids, expected.output_ids[:, 0])
  with pytest.raises(ValueError, match='max_decode_steps must be > 0'):
    toy.run(vanilla, rng=False)


def test_decode_steps_of_both_protocols_are_accepted():
  def expanded(model, ids, segment_pos, state):
    return ids + state

  def without_state(model, ids, segment_pos):
    return ids + segment_pos

  coerce = decoder_utils.coerce_to_expanded_extend_step_fn
  assert coerce(expanded) is expanded
  for function in (coerce(without_state), coerce(expanded)):
    assert len(inspect.signature(function).parameters) == 4
  assert coerce(without_state)(None, 1, 2, 40) == 3


def test_signatures_are_explicit():
  for name in ('sample_decode', 'sample_decode_after_fprop', 'greedy_decode'):
    parameters = inspect.signature(getattr(sample_decode, name)).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
