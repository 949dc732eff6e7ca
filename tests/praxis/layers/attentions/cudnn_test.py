# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""cuDNN attention against einsum, by XLA's implementation of the same call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import py_utils
from praxis.kernels import nvidia
from praxis.layers.attentions import cudnn, kernel_inputs, masks
from tests.praxis.layers.attentions import kernel_cases
from tests.testing import nightly

_Window = masks.ContextWindow
_LENGTHS = np.array([96, 37])


def _padded_ids(length=96):
  return jnp.asarray(np.arange(length) < _LENGTHS[:, None], jnp.int32)


def _spec(
  is_causal=True,
  window=None,
  split=None,
  is_packed=False,
  cap=0.0,
  length=96,
  extra_logit=None,
):
  mask = kernel_cases.segment_mask(_padded_ids(length), is_causal, is_packed)
  return kernel_inputs.KernelSpec(mask, window, cap, split, extra_logit)


@pytest.mark.parametrize(
  'fields',
  [
    dict(num_kv_heads=2, length=97),
    dict(window=_Window(20, None)),
    dict(is_causal=False),
    *nightly.cases(
      dict(),
      dict(num_kv_heads=2),
      dict(length=97),
      dict(window=_Window(None, 0)),
    ),
  ],
  ids=str,
)
def test_values_and_gradients_of_tokens_equal_einsum(fields):
  fields = dict(fields)
  num_kv_heads = fields.pop('num_kv_heads', 1)
  spec = _spec(split=kernel_cases.SPLIT, **fields)
  length = spec.mask.segment_ids.shape[1]
  heads = kernel_cases.random_heads(
    4, num_kv_heads, jnp.bfloat16, length=length
  )
  is_token = spec.mask.segment_ids[:, :, None, None] > 0

  def tokens(attend):
    return lambda heads: jnp.where(is_token, attend(heads, spec), 0)

  with jax.set_mesh(kernel_cases.mesh()):
    mesh = jax.sharding.get_abstract_mesh()
    assert cudnn.reason_against(heads, spec, mesh) is None
    got = kernel_cases.with_gradients(tokens(cudnn.attend), heads)
    want = kernel_cases.with_gradients(tokens(kernel_cases.by_einsum), heads)
  kernel_cases.assert_close(got, want, 2e-2)


def test_padding_before_tokens_is_not_computed_wrongly():
  heads = kernel_cases.random_heads(dtype=jnp.bfloat16, length=4)
  ids = jnp.array([[0, 1, 1, 1], [0, 0, 0, 0]], jnp.int32)
  mask = kernel_cases.segment_mask(ids, is_packed=False)
  outputs = cudnn.attend(heads, kernel_inputs.KernelSpec(mask))
  assert jnp.all(jnp.isnan(outputs[0, :3]))
  # A row without tokens, which fills a batch, has finite values.
  assert jnp.all(jnp.isfinite(outputs[1]))


@pytest.mark.parametrize(
  ('head_dim', 'dtype', 'fields', 'reason'),
  [
    (64, jnp.float32, {}, 'float32'),
    (64, jnp.bfloat16, dict(is_packed=True), 'packed rows'),
    (64, jnp.bfloat16, dict(cap=50.0), 'a cap of the logits, 50.0'),
    (
      *(64, jnp.bfloat16, dict(extra_logit=0.0)),
      'attention_extra_logit or use_attention_sinks',
    ),
    (64, jnp.bfloat16, dict(cap=-1.0, split=kernel_cases.SPLIT), None),
    (
      *(64, jnp.bfloat16, {}),
      "a mesh {'data': 2, 'mdl': 2} that shards no dimension of the queries",
    ),
    (60, jnp.bfloat16, {}, 'a head dimension of 60, not a multiple of 8'),
    (
      *(64, jnp.bfloat16, dict(is_causal=False, window=_Window(9, 9))),
      'a window without a causal mask',
    ),
    (
      *(64, jnp.bfloat16, dict(split=['data', 'mdl', None, None])),
      "('mdl',) over the sequence",
    ),
  ],
)
def test_reasons_against_the_kernel(head_dim, dtype, fields, reason):
  heads = kernel_cases.random_heads(dtype=dtype, length=96, head_dim=head_dim)
  mesh = kernel_cases.mesh().abstract_mesh
  got = cudnn.reason_against(heads, _spec(**fields), mesh)
  assert got == reason


@pytest.mark.parametrize(
  ('capability', 'head_dim', 'reason'),
  [
    ((7, 0), 64, 'a compute capability of 7.0'),
    ((8, 0), 128, None),
    ((8, 6), 256, 'a head dimension of 256, more than 128'),
    ((9, 0), 256, None),
    ((10, 0), 264, 'a head dimension of 264, more than 256'),
  ],
)
def test_reasons_of_the_gpu(monkeypatch, capability, head_dim, reason):
  heads = kernel_cases.random_heads(
    dtype=jnp.bfloat16, length=96, head_dim=head_dim
  )
  monkeypatch.setattr(nvidia.importlib.util, 'find_spec', lambda _: True)
  monkeypatch.setattr(nvidia, 'compute_capability', lambda: capability)
  with py_utils.tracing_for('gpu'):
    got = cudnn.reason_against(heads, _spec(), kernel_cases.NO_MESH)
  assert got == reason


def test_gpus_without_the_cuda_plugin_have_no_kernel(monkeypatch):
  heads = kernel_cases.random_heads(dtype=jnp.bfloat16, length=96)
  monkeypatch.setattr(nvidia.importlib.util, 'find_spec', lambda _: None)
  with py_utils.tracing_for('gpu'):
    got = cudnn.reason_against(heads, _spec(), kernel_cases.NO_MESH)
  assert got == "a process without JAX's CUDA plugin"
