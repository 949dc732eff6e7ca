# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The functions of upstream's module give the results of `sampling.decode`."""

from __future__ import annotations

import inspect

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
