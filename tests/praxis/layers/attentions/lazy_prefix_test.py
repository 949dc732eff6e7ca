# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Steps after lazily shared prefixes equal the steps of separate sequences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, multi_query_attention
from tests.praxis.layers import running
from tests.testing import nightly

_B, _D, _N = 2, 8, 4
# Steps of the prompt, of the first samples, and of samples of those.
_PARTS, _SAMPLES = (3, 2, 2), (2, 3)
_STATES = [base_layer.DECODE_CACHE, base_layer.PREFIX_DECODE_CACHE]
_FROZEN = base_layer.PREFIX_DECODE_CACHE


def _texts():
  """Returns what each of the 2 * 2 * 3 samples reads, [12, 7, D]."""
  rows, parts = _B, []
  for i, length in enumerate(_PARTS):
    parts.append(running.normal(rows, length, _D, seed=i))
    rows *= (*_SAMPLES, 1)[i]
  total = parts[-1].shape[0]
  return parts, jnp.concatenate(
    [np.repeat(x, total // x.shape[0], axis=0) for x in parts], axis=1
  )


@pytest.mark.parametrize(
  'cls, options',
  [
    (
      attentions.DotProductAttentionWithLPB,
      {
        'use_rotary_position_emb': True,
        'dconv_qkv': True,
        'relative_bias_tpl': pax_fiddle.Config(attentions.RelativeBias),
      },
    ),
    (
      multi_query_attention.MultiQueryDotProductAttentionLPB,
      {
        'num_kv_heads': 1,
        'use_rotary_position_emb': True,
        'attention_chunk_size': 4,
      },
    ),
    (
      multi_query_attention.MultiQueryDotProductAttentionLPB,
      {
        'num_kv_heads': 2,
        'use_attention_sinks': True,
        'local_window_size': (3, 0),
      },
    ),
    *nightly.cases(
      (attentions.DotProductAttentionWithLPB, {}),
      *(
        (multi_query_attention.MultiQueryDotProductAttentionLPB, options)
        for options in (
          {'num_kv_heads': 1, 'use_rotary_position_emb': True},
          {'num_kv_heads': 2, 'use_attention_sinks': True},
          {'num_kv_heads': 2, 'local_window_size': (3, 0)},
          {'num_kv_heads': 2, 'attention_chunk_size': 4},
        )
      ),
    ),
  ],
)
def test_prefixes_of_prefixes(cls, options):
  parts, whole = _texts()
  mask = attentions.causal_mask(whole)
  config = cls.config(input_dim=_D, hidden_dim=_D, num_heads=_N, **options)
  layer, variables = running.build(config, whole, whole, whole, mask)
  want, _ = running.run(layer, variables, whole, whole, whole, mask)
  want = np.asarray(want)

  @running.jit
  def decode(variables):
    prompt = parts[0]
    cut = attentions.causal_mask(prompt)
    (_, _), states = layer.apply(
      variables, prompt, prompt, prompt, cut, mutable=_STATES
    )
    outputs, time = [], prompt.shape[1]
    for part, samples in zip(parts[1:], _SAMPLES, strict=True):
      _, states = layer.apply(
        {**variables, **states},
        samples,
        part.shape[1],
        method='lazy_broadcast_prefix',
        mutable=_STATES,
      )
      for i in range(part.shape[1]):
        # Masks may be longer than the cache.
        length = time + part.shape[1] - i + 2 * (i == 1)
        hidden = attentions.additive_mask(
          jnp.arange(length) > time, jnp.float32
        )
        output, changed = layer.apply(
          {**variables, **states},
          part[:, i],
          atten_mask=hidden[None, None],
          time_step=time,
          segment_pos=None,
          method='extend_step',
          mutable=[base_layer.DECODE_CACHE],
        )
        states |= changed
        outputs.append(output)
        time += 1
    return outputs, states

  outputs, states = decode(variables)
  for i, output in enumerate(outputs):
    rows = want[:: 12 // output.shape[0], 3 + i]
    np.testing.assert_allclose(output, rows, atol=3e-6)
  frozen = states[_FROZEN]
  assert frozen['key_state_0_pfx'].shape[:2] == (2, 3)
  assert frozen['key_state_1_pfx'].shape[:3] == (2, 2, 2)
  assert states['decoder_cache']['key_state'].shape[:4] == (2, 2, 3, 2)
  _check_alignment(layer, variables, states)


def _check_alignment(layer, variables, states):
  """Joined with the last 4 steps of prefixes: [4 of 5, 2], moved by 1."""
  aligned = lambda x, batch_dim, time_dim: jnp.roll(x, 1, time_dim)

  @running.jit
  def align(variables):
    return layer.apply(
      variables,
      4,
      aligned,
      method='right_align_decode_state_with_prefix',
      mutable=_STATES,
    )

  _, after = align({**variables, **states})
  before, after = jax.tree.map(np.asarray, (states, after))
  suffix = before['decoder_cache']['value_state']
  first, second = (before[_FROZEN][f'value_state_{i}_pfx'] for i in (0, 1))
  tail = suffix.ndim - 3
  first = first.reshape(_B, 1, 1, *first.shape[1:])
  second = second.reshape(_B, 2, 1, *second.shape[2:])
  lead = suffix.shape[:3]
  joined = np.concatenate(
    [
      np.broadcast_to(first, lead + first.shape[-tail:])[:, :, :, 1:],
      np.broadcast_to(second, lead + second.shape[-tail:]),
      suffix,
    ],
    axis=3,
  )
  got = after['decoder_cache']['value_state']
  np.testing.assert_array_equal(got, np.roll(joined, 1, axis=3))
  assert after[_FROZEN]['value_state_0_pfx'].shape[1] == 0
  assert after[_FROZEN]['value_state_1_pfx'].shape[2] == 0


def test_errors():
  x = running.normal(_B, 3, _D)
  mask = attentions.causal_mask(x)
  fields = {'input_dim': _D, 'hidden_dim': _D, 'num_heads': _N}
  plain = attentions.DotProductAttention.config(**fields)
  layer, variables = running.build(plain, x, x, x, mask)
  for method, arguments in (
    ('lazy_broadcast_prefix', (2, 3)),
    ('right_align_decode_state_with_prefix', (2, lambda x, *_: x)),
  ):
    with pytest.raises(NotImplementedError, match='DotProductAttentionWithLPB'):
      layer.apply(variables, *arguments, method=method)
  with pytest.raises(NotImplementedError, match='with DECODE_CACHE mutable'):
    layer.apply(variables, 2, 3, method='init_states')
  lazy = attentions.DotProductAttentionWithLPB.config(**fields)
  layer, variables = running.build(lazy, x, x, x, mask)
  message = 'add it to .decode.apply_mutable_list. of the task'
  with pytest.raises(ValueError, match=message):
    layer.apply(
      variables, 2, 3, method='lazy_broadcast_prefix', mutable=_STATES[:1]
    )
