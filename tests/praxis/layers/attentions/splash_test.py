# SPDX-License-Identifier: Apache-2.0
"""Splash attention against einsum, alone and in language models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from praxis import pax_fiddle
from praxis.layers import (
  attentions,
  grouped_query_attention,
  multi_query_attention,
)
from praxis.layers.attentions import flash, kernel_inputs, masks, splash
from tests.praxis.layers import running
from tests.praxis.layers.attentions import kernel_cases
from tests.testing import nightly

_KernelSpec = kernel_inputs.KernelSpec


@pytest.mark.parametrize(
  'fields',
  [
    dict(dtype=jnp.bfloat16),
    dict(cap=2.0, num_kv_heads=2, extra_logit=1.5),
    dict(cap=-1.0, length=513, head_dim=96),
    dict(window=masks.ContextWindow(40, 31), is_causal=False),
    *nightly.cases(dict(), dict(window=masks.ContextWindow(40, 0))),
  ],
  ids=str,
)
def test_values_and_gradients_equal_einsum(fields):
  fields = dict(fields)
  cap, window = fields.pop('cap', None), fields.pop('window', None)
  is_causal = fields.pop('is_causal', True)
  extra_logit = fields.pop('extra_logit', None)
  heads = kernel_cases.random_heads(**fields)
  ids = kernel_cases.segment_ids(heads.query.shape[1])
  mask = kernel_cases.segment_mask(ids, is_causal)
  spec = _KernelSpec(mask, window, cap, extra_logit=extra_logit)
  assert splash.reason_against(heads, spec, kernel_cases.NO_MESH) is None
  got = kernel_cases.with_gradients(lambda h: splash.attend(h, spec), heads)
  want = kernel_cases.with_gradients(
    lambda h: kernel_cases.by_einsum(h, spec), heads
  )
  is_half = heads.query.dtype == jnp.bfloat16
  kernel_cases.assert_close(got, want, 2e-2 if is_half else 2e-5)


@pytest.mark.parametrize('is_causal', [True, *nightly.cases(False)])
def test_a_sharded_sequence_equals_einsum(is_causal):
  heads = kernel_cases.random_heads(num_kv_heads=2, length=512)
  mask = kernel_cases.segment_mask(kernel_cases.segment_ids(512), is_causal)
  window, split = masks.ContextWindow(300, 0), ['data', 'mdl', None, None]
  spec, mesh = _KernelSpec(mask, window, split=split), kernel_cases.mesh()
  with jax.set_mesh(mesh):
    assert splash.reason_against(heads, spec, mesh.abstract_mesh) is None
    got = kernel_cases.with_gradients(lambda h: splash.attend(h, spec), heads)
  assert got[0].sharding.spec[:2] == ('data', 'mdl')
  want = kernel_cases.with_gradients(
    lambda h: kernel_cases.by_einsum(h, spec), heads
  )
  kernel_cases.assert_close(got, want, 2e-5)


@pytest.mark.parametrize('kernel', [splash, flash])
def test_shards_of_queries_may_share_a_head_of_keys(kernel):
  heads = kernel_cases.random_heads(8, num_kv_heads=2, length=128)
  mask = kernel_cases.segment_mask(kernel_cases.segment_ids(128))
  spec = _KernelSpec(mask, split=[None, None, 'mdl', None])
  mesh = jax.make_mesh((4,), ('mdl',), (AxisType.Auto,))
  with jax.set_mesh(mesh):
    assert splash.reason_against(heads, spec, mesh.abstract_mesh) is None
    got = kernel_cases.with_gradients(lambda h: kernel.attend(h, spec), heads)
  assert got[0].sharding.spec[2] == 'mdl'
  want = kernel_cases.with_gradients(
    lambda h: kernel_cases.by_einsum(h, spec), heads
  )
  kernel_cases.assert_close(got, want, 2e-5)


@pytest.mark.parametrize(
  ('kernel', 'dtype', 'split', 'tolerance'),
  [
    (splash, jnp.float32, kernel_cases.SPLIT, 2e-5),
    (flash, jnp.float32, kernel_cases.SPLIT, 2e-5),
    *nightly.cases(
      (splash, jnp.float32, None, 2e-5),
      (splash, jnp.bfloat16, None, 2e-2),
      (flash, jnp.float32, None, 2e-5),
      (flash, jnp.bfloat16, None, 2e-2),
    ),
  ],
)
def test_sinks_of_heads_equal_einsum(kernel, dtype, split, tolerance):
  heads = kernel_cases.random_heads(4, 2, dtype, length=256)
  mask = kernel_cases.segment_mask(kernel_cases.segment_ids(256))
  window = masks.ContextWindow(40, 0)

  def attend_by(attend):
    def run(operands):
      heads, sinks = operands
      return attend(
        heads, _KernelSpec(mask, window, split=split, extra_logit=sinks)
      )

    sinks = jnp.array([-3.0, 0.5, 2.0, 6.0])
    return kernel_cases.with_gradients(run, (heads, sinks))

  want = attend_by(kernel_cases.by_einsum)
  if split is None:
    got = attend_by(kernel.attend)
  else:
    with jax.set_mesh(kernel_cases.mesh()):
      got = attend_by(kernel.attend)
  assert got[1][1].dtype == jnp.float32
  kernel_cases.assert_close(got, want, tolerance)


def test_explicit_axes_may_shard_queries_keys_and_segments_differently():
  heads = kernel_cases.random_heads(num_kv_heads=2, length=256)
  ids = kernel_cases.segment_ids(256)
  split = ['data', 'mdl', None, None]
  mesh = jax.make_mesh((2, 2), ('data', 'mdl'), (AxisType.Explicit,) * 2)

  def attend(heads):
    mask = kernel_cases.segment_mask(ids)
    return splash.attend(heads, _KernelSpec(mask, split=split))

  with jax.set_mesh(mesh):
    sharded = jax.device_put(heads, PartitionSpec('data', 'mdl'))
    got = kernel_cases.with_gradients(attend, sharded)
  want = kernel_cases.with_gradients(
    lambda h: kernel_cases.by_einsum(
      h, _KernelSpec(kernel_cases.segment_mask(ids))
    ),
    heads,
  )
  kernel_cases.assert_close(got, want, 2e-5)


def test_within_a_shard_map_over_other_axes():
  heads = kernel_cases.random_heads(num_kv_heads=2, length=128)
  ids = kernel_cases.segment_ids(128)
  split = [None, None, 'mdl', None]

  def attend(heads, ids):
    mask = kernel_cases.segment_mask(ids)
    return splash.attend(heads, _KernelSpec(mask, split=split))

  spec = PartitionSpec('data')
  with jax.set_mesh(kernel_cases.mesh()):
    mapped = jax.shard_map(
      attend,
      in_specs=(spec, spec),
      out_specs=spec,
      axis_names={'data'},
      check_vma=False,
    )
    got = running.jit(mapped)(heads, ids)
  mask = kernel_cases.segment_mask(ids)
  want = kernel_cases.by_einsum(heads, _KernelSpec(mask))
  kernel_cases.assert_close(got, want, 2e-5)


@pytest.mark.parametrize(
  ('shape', 'split', 'reason'),
  [
    ((2, 200, 4, 64), kernel_cases.SPLIT, 'length of 200'),
    ((2, 256, 4, 80), kernel_cases.SPLIT, None),
    ((2, 256, 4, 32), kernel_cases.SPLIT, 'head dimension of 32'),
    ((2, 256, 4, 64), None, 'that shards no dimension of the queries'),
    ((3, 256, 4, 64), kernel_cases.SPLIT, 'over a batch of 3'),
    ((2, 256, 3, 64), kernel_cases.SPLIT, 'over 3 heads'),
    ((2, 256, 4, 64), [None, None, None, 'data'], 'over the head dimension'),
    ((2, 768, 4, 64), [None, 'data', None, None], None),
    ((2, 640, 4, 64), [None, 'data', None, None], 'length of 320'),
    ((2, 513, 4, 64), kernel_cases.SPLIT, None),
  ],
)
def test_reasons_against_the_kernel(shape, split, reason):
  x = jax.ShapeDtypeStruct(shape, jnp.float32)
  mask = kernel_cases.segment_mask(jnp.zeros(shape[:2], jnp.int32))
  got = splash.reason_against(
    kernel_inputs.Heads(x, x, x),
    _KernelSpec(mask, split=split),
    kernel_cases.mesh().abstract_mesh,
  )
  assert got is None if reason is None else reason in got


def test_float16_has_no_kernel():
  heads = kernel_cases.random_heads(dtype=jnp.float16)
  spec = _KernelSpec(kernel_cases.segment_mask(kernel_cases.segment_ids()))
  reason = splash.reason_against(heads, spec, kernel_cases.NO_MESH)
  assert reason == 'float16'
  # Types may differ, as with float32 rotations.
  heads = heads._replace(
    query=heads.query.astype(jnp.float32),
    key=heads.key.astype(jnp.bfloat16),
    value=heads.value.astype(jnp.bfloat16),
  )
  assert splash.reason_against(heads, spec, kernel_cases.NO_MESH) is None


_MULTI_QUERY = pax_fiddle.Config(
  multi_query_attention.MultiQueryDotProductAttention
)
_LOCAL = pax_fiddle.Config(
  attentions.LocalSelfAttention, left_context=20, right_context=0
)
_GROUPED_QUERY = pax_fiddle.Config(
  grouped_query_attention.GroupedQueryAttention, num_kv_heads=2
)


@pytest.mark.parametrize(
  ('stack', 'attention', 'fields'),
  [
    ('plain', _MULTI_QUERY, dict(local_window_size=(20, 0))),
    *nightly.cases(
      ('plain', None, {}),
      ('plain', _LOCAL, {}),
      ('plain', _GROUPED_QUERY, {}),
      ('repeated', None, {}),
      ('pipelined', None, {}),
    ),
  ],
)
def test_language_models(stack, attention, fields):
  def results(implementation):
    template = attention and attention.clone()
    return kernel_cases.loss_and_gradients(
      kernel_cases.language_model(implementation, stack, template, **fields)
    )

  with jax.set_mesh(kernel_cases.mesh()):
    got, text = results('splash')
  assert 'pallas_call' in text
  want, text = results('einsum')
  assert 'pallas_call' not in text
  kernel_cases.assert_close(got, want, 1e-4)
