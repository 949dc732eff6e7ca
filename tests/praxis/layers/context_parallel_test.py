# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Context-parallel attention and its gradients equal those of one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from praxis import pax_fiddle
from praxis.layers import attentions, context_parallel, grouped_query_attention
from tests.praxis.layers import running
from tests.testing import nightly

_B, _T, _D, _N, _H = 4, 16, 6, 4, 2
_AXES = ('data', 'seq', 'mdl')
# Two texts a row, and at the end of the last row padding.
_STARTS = np.array([5, 8, 11, 4])
_PLACE = np.arange(_T)
_IDS = np.where(_PLACE < _STARTS[:, None], 1, 2)
_IDS[3, 12:] = 0
_POS = np.where(_IDS == 1, _PLACE, _PLACE - _STARTS[:, None])
_POS[3, 12:] = np.arange(4)
_HIDDEN = -0.7 * np.finfo(np.float32).max
_WEIGHTS = (_IDS > 0).astype(np.float32)


def _dot_product(cls=attentions.DotProductAttention, **fields):
  config = pax_fiddle.Config(
    cls, input_dim=_D, hidden_dim=_N * _H, num_heads=_N, **fields
  )
  config.weight_split_dims_mapping.proj = [None, 'mdl', None]
  config.activation_split_dims_mapping.blnh = ['data', 'seq', 'mdl', None]
  config.activation_split_dims_mapping.bld = ['data', 'seq', None]
  return config


def _grouped(cls=grouped_query_attention.GroupedQueryAttention, **fields):
  config = pax_fiddle.Config(
    cls, input_dim=_D, dim_per_head=_H, num_heads=_N, **fields
  )
  split = config.activation_split_dims_mapping
  split.btd = ['data', 'seq', None]
  split.btnh = ['data', 'seq', 'mdl', None]
  split.bskh = ['data', 'seq', None, None]
  return config


def _stepped(config, mask, mesh=None):
  """Returns a loss with its gradients, and the program's text."""
  if mesh is not None:
    config.set(ici_mesh_shape=mesh, mesh_axis_names=_AXES)
  x = running.normal(_B, _T, _D)
  layer, variables = running.build(config, x, x, x, mask)
  pos = jnp.asarray(_POS, jnp.int32)

  def loss(variables, x):
    outputs, _ = layer.apply(variables, x, x, x, mask, pos, pos)
    return jnp.sum(jnp.sin(3.0 * outputs) * _WEIGHTS[..., None])

  step = running.jit(jax.value_and_grad(loss, argnums=(0, 1)))
  if mesh is None:
    return step(variables, x), ''
  mesh = jax.make_mesh(
    mesh, _AXES, axis_types=(jax.sharding.AxisType.Auto,) * 3
  )
  spec = PartitionSpec('data', 'seq')
  x = jax.device_put(x, NamedSharding(mesh, spec))
  variables = jax.device_put(variables, NamedSharding(mesh, PartitionSpec()))
  with jax.set_mesh(mesh):
    compiled = step.lower(variables, x).compile()
    return compiled(variables, x), compiled.as_text()


def _check(config, plain, mask, mesh):
  got, text = _stepped(config, mask, mesh)
  want, _ = _stepped(plain, mask)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-6 * max(1.0, np.abs(b).max()))
  return text


def _causal():
  return attentions.causal_segment_mask(jnp.asarray(_IDS))


_OPTIONS = {
  'atten_logit_cap': 0.7,
  'attention_extra_logit': 0.5,
  'scale_logits_by_head_dims': True,
  'use_rotary_position_emb': True,
}
_RING = context_parallel.ContextParallelAttention


@pytest.mark.parametrize('mesh', [(1, 4, 2), *nightly.cases(((2, 2, 1),))])
def test_ring_with_a_mask(mesh):
  # Both ways, but for the first three keys, which the first query alone sees;
  # and the last row of the mask hides all.
  mask = np.array(attentions.segment_mask(jnp.asarray(_IDS)))
  mask[:, :, 1:, :3] = _HIDDEN
  mask[:, :, -1] = _HIDDEN
  text = _check(
    _dot_product(_RING, zero_fully_masked=True, **_OPTIONS),
    _dot_product(zero_fully_masked=True, **_OPTIONS),
    jnp.asarray(mask),
    mesh,
  )
  assert 'collective-permute' in text


@pytest.mark.parametrize('balanced', [True, *nightly.cases(False)])
def test_causal_ring_holds_no_whole_sequence(balanced):
  ring = _dot_product(_RING, is_causal=True, is_balanced=balanced, **_OPTIONS)
  text = _check(ring, _dot_product(**_OPTIONS), _causal(), (1, 4, 2))
  assert 'collective-permute' in text
  # Neither keys of all devices nor a mask of all queries and keys.
  assert 'all-gather' not in text
  assert f'{_T},{_T}]' not in text


def test_a_negative_cap_caps_neither_logits_nor_gradients():
  ring = _dot_product(_RING, is_causal=True, atten_logit_cap=-1.0)
  text = _check(ring, _dot_product(), _causal(), (1, 4, 2))
  assert 'all-gather' not in text


def test_ring_of_three_is_balanced_too():
  length = 12

  def cut(config):
    config.set(ici_mesh_shape=(1, 3, 1), mesh_axis_names=_AXES)
    x = running.normal(_B, length, _D)
    mask = attentions.causal_mask(x)
    layer, variables = running.build(config, x, x, x, mask)
    return running.jit(
      lambda variables, x: layer.apply(variables, x, x, x, mask)[0]
    )(variables, x)

  want = cut(_dot_product())
  mesh = jax.make_mesh(
    (1, 3, 1),
    _AXES,
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
    devices=jax.devices()[:3],
  )
  with jax.set_mesh(mesh):
    got = cut(_dot_product(_RING, is_causal=True, is_balanced=True))
  np.testing.assert_allclose(got, want, atol=1e-6)


def test_all_gather_keeps_what_a_ring_has_not():
  fields = {
    **_OPTIONS,
    'relative_bias_tpl': pax_fiddle.Config(attentions.RelativeBias),
  }
  gathered = _dot_product(_RING, context_method='all_gather', **fields)
  text = _check(gathered, _dot_product(**fields), _causal(), (2, 4, 1))
  assert 'all-gather' in text
  with pytest.raises(ValueError, match='has no relative_bias_tpl'):
    _stepped(_dot_product(_RING, **fields), _causal())


# Heads of keys that the axis of heads divides, or has to be copied for.
@pytest.mark.parametrize('num_kv_heads', [1, *nightly.cases(2)])
def test_grouped_queries(num_kv_heads):
  fields = {
    'num_kv_heads': num_kv_heads,
    'atten_logit_cap': 0.7,
    'rope_min_max_timescales': (1, 100),
  }
  ring = context_parallel.ContextParallelGroupedQueryAttention
  _check(
    _grouped(ring, is_causal=True, is_balanced=True, **fields),
    _grouped(**fields),
    _causal(),
    (2, 2, 2),
  )


def test_grouped_queries_by_mask_and_gathered():
  fields = {'num_kv_heads': 2, 'atten_temp': 2.0}
  ring = context_parallel.ContextParallelGroupedQueryAttention
  for method in ('ring', 'all_gather'):
    config = _grouped(ring, context_method=method, **fields)
    _check(config, _grouped(**fields), _causal(), (1, 4, 2))


def test_bad_settings():
  for fields, words in (
    ({'context_method': 'rng'}, 'one of ring, all_gather'),
    ({'is_balanced': True}, 'is_causal must be True'),
    ({'atten_dropout_prob': 0.1}, 'has no atten_dropout_prob'),
    ({'use_attention_sinks': True}, 'has no use_attention_sinks'),
    (
      {'mesh_axis_names': ('data', 'mdl'), 'ici_mesh_shape': (1, 1)},
      'add it to the mesh',
    ),
  ):
    with pytest.raises(ValueError, match=words):
      _stepped(_dot_product(_RING, **fields), _causal())


@pytest.mark.parametrize(
  ('fields', 'length'),
  [
    ({}, 7),
    ({'is_causal': True}, 1),
    ({'is_causal': True, 'is_balanced': True}, 7),
    *nightly.cases(
      ({}, 1),
      ({'is_causal': True}, 7),
      ({'is_causal': True, 'is_balanced': True}, 1),
    ),
  ],
)
def test_lengths_that_do_not_divide_into_the_ring(fields, length):
  config = _dot_product(_RING, **fields)
  config.set(ici_mesh_shape=(1, 4, 1), mesh_axis_names=_AXES)
  x = running.normal(_B, length, _D)
  mask = attentions.causal_segment_mask(jnp.asarray(_IDS)[:, :length])
  pos = jnp.asarray(_POS, jnp.int32)[:, :length]
  layer, variables = running.build(config, x, x, x, mask)
  plain, _ = running.build(_dot_product(), x, x, x, mask)

  def loss(layer, x):
    outputs, _ = layer.apply(variables, x, x, x, mask, pos, pos)
    return jnp.sum(jnp.sin(outputs) * _WEIGHTS[:, :length, None]), outputs

  def step(layer):
    return running.jit(
      jax.value_and_grad(lambda x: loss(layer, x), has_aux=True)
    )(x)

  want = step(plain)
  with jax.set_mesh(
    jax.make_mesh(
      (1, 4, 1),
      _AXES,
      axis_types=(jax.sharding.AxisType.Auto,) * 3,
      devices=jax.devices()[:4],
    )
  ):
    got = step(layer)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, atol=2e-6 * max(1.0, np.abs(b).max()))
