# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Remat policies: what they keep, by what jax itself says it saves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from praxis.layers import checkpoint_policy

Type = checkpoint_policy.AutodiffCheckpointType

_ATTENTION = {
  'combined_qkv_proj',
  'query_proj',
  'key_proj',
  'value_proj',
  'context',
  'out_proj',
}
_SAVED = {
  Type.SAVE_QKV_OUT_PROJ: {'combined_qkv_proj', 'out_proj'},
  Type.SAVE_QKV_OUT_PROJ_SEPARATE: {
    'query_proj',
    'value_proj',
    'key_proj',
    'out_proj',
  },
  Type.SAVE_CONTEXT: {'context'},
  Type.SAVE_OUT_PROJ: {'out_proj'},
  Type.SAVE_CONTEXT_AND_OUT_PROJ: {'context', 'out_proj'},
  Type.SAVE_DOT_FOR_MLPERF_200B: _ATTENTION,
  Type.SAVE_DOT_EXCEPT_LOGITS_FFN1: _ATTENTION | {'ffn2'},
  Type.SAVE_DOT_EXCEPT_LOGITS: _ATTENTION | {'ffn1', 'ffn2'},
  Type.SAVE_QUANTIZED: {
    'context',
    'out_proj',
    'combined_qkv_proj',
    'qlhs',
    'qrhs',
    'lhs_scale',
    'rhs_scale',
  },
  Type.SAVE_ITERATION_INPUT: {'iteration_input'},
  Type.SAVE_TRANSFORMER_LAYER_OUTPUT: {'transformer_layer_out'},
  Type.SAVE_UNET_CONV: {'conv_out'},
  Type.SAVE_UNET_ALL_CONV: {'conv_0', 'conv_1', 'conv_out'},
  Type.SAVE_NOTHING: set(),
}
_NAMES = sorted(
  set().union(*_SAVED.values()) | {'logits', 'ffn1_gate', 'unheard_of'}
)


def _kept(policy, fn):
  """Returns the sizes of what the forward pass leaves for the backward."""
  x = jnp.ones((3,))
  _, pullback = jax.vjp(jax.checkpoint(fn, policy=policy), x)
  return sorted(
    leaf.size for leaf in jax.tree.leaves(pullback) if leaf.size > 3
  )


def test_policies_have_values_of_their_own():
  offloading = [kind for kind in Type if kind.value.startswith('offload_')]
  assert len(Type) - len(offloading) == 17
  assert len(Type) == len({kind.value for kind in Type})
  assert Type('save_encoded_and_out_proj') is Type.SAVE_CONTEXT_AND_OUT_PROJ


@pytest.mark.parametrize('kind', sorted(_SAVED))
def test_policy_keeps_exactly_its_names(kind):
  def fn(x):
    # One tensor of its own length per name; squaring needs it for the gradient.
    named = [
      checkpoint_name(jnp.sin(jnp.tile(x, 2 + i)), name)
      for i, name in enumerate(_NAMES)
    ]
    return sum(jnp.sum(y**2) for y in named)

  want = [3 * (2 + i) for i, n in enumerate(_NAMES) if n in _SAVED[kind]]
  assert _kept(checkpoint_policy.custom_policy(kind), fn) == want


def test_policies_by_operation():
  def fn(x):
    batched = jnp.einsum('ij,ijk->ik', jnp.sin(jnp.ones((4, 3)) * x), _cube())
    plain = jnp.sin(batched) @ jnp.ones((2, 5))
    return jnp.sum(jnp.sin(plain))

  def _cube():
    return jnp.ones((4, 3, 2))

  dots = _kept(checkpoint_policy.custom_policy('save_dot_only'), fn)
  weights = _kept(
    checkpoint_policy.custom_policy('save_dot_with_no_batch_dims'), fn
  )
  everything = _kept(checkpoint_policy.custom_policy('save_everything'), fn)
  assert 8 in dots and 20 in dots
  assert 8 not in weights and 20 in weights
  assert len(everything) > len(dots)


def test_only_save_everything_saves_everything():
  yes = [kind for kind in Type if checkpoint_policy.saves_everything(kind)]
  assert yes == [Type.SAVE_EVERYTHING]


def test_unknown_policy_is_an_error_that_lists_the_known():
  with pytest.raises(ValueError, match="save_out_proj.*got 'save_all'"):
    checkpoint_policy.custom_policy('save_all')


_OFFLOADED = {
  Type.OFFLOAD_QKV_OUT_PROJ: Type.SAVE_QKV_OUT_PROJ,
  Type.OFFLOAD_CONTEXT_AND_OUT_PROJ: Type.SAVE_CONTEXT_AND_OUT_PROJ,
  Type.OFFLOAD_DOT_EXCEPT_LOGITS: Type.SAVE_DOT_EXCEPT_LOGITS,
  Type.OFFLOAD_ITERATION_INPUT: Type.SAVE_ITERATION_INPUT,
  Type.OFFLOAD_TRANSFORMER_LAYER_OUTPUT: Type.SAVE_TRANSFORMER_LAYER_OUTPUT,
}


@pytest.mark.parametrize('kind', _OFFLOADED)
def test_what_is_offloaded_comes_back(kind):
  names = sorted(_SAVED[_OFFLOADED[kind]])

  def fn(x):
    for name in [*names, 'unheard_of']:
      x = checkpoint_name(jnp.sin(3.0 * x), name)
    return jnp.sum(x**2)

  def step(policy):
    # As a loop over layers does it.
    body = jax.checkpoint(fn, policy=policy, prevent_cse=False)
    return jax.grad(lambda x: jax.lax.map(body, x).sum())

  x = jnp.linspace(0.0, 1.0, 6).reshape(2, 3)
  policy = checkpoint_policy.custom_policy(kind)
  got = jax.jit(step(policy))(x)
  want = step(checkpoint_policy.custom_policy(Type.SAVE_EVERYTHING))(x)
  np.testing.assert_allclose(got, want, rtol=1e-6)
  # Each name goes to the host, and the one that has none does not.
  text = str(jax.make_jaxpr(step(policy))(x))
  assert text.count('Host') == len(names)
