# SPDX-License-Identifier: Apache-2.0
"""What only a GPU shows: its kernels, products in fp8, a job.

JAX_PLATFORMS=cuda PAX_NIGHTLY=1 pytest tests/integration/gpu_nightly_test.py
"""

# bazel: size=large
# bazel: tags=nightly
# bazel: deps=//pax/tasks:experiments
# bazel: deps=//pax:main_lib
# bazel: deps=//third_party/pip:accelerator
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.kernels import attention, grouped_matmul, native
from praxis.kernels import attention_reference as reference
from praxis.kernels import softmax_xent as softmax_xent_lib
from praxis.layers import attentions, gpu_fast_attention

if jax.default_backend() != 'gpu':
  pytest.skip('no GPU', allow_module_level=True)

_ROOT = pathlib.Path(__file__).absolute().parents[2]
_B, _T, _D, _N = 2, 512, 256, 4
# Of bfloat16, relative to the largest value.
_BOUND = 2e-2


def _check_close(got, want, bound=_BOUND):
  """Compares trees, relative to the largest value of all their arrays."""
  got, want = (
    np.concatenate([np.ravel(a).astype(np.float32) for a in jax.tree.leaves(t)])
    for t in (got, want)
  )
  assert np.isfinite(got).all()
  assert np.max(np.abs(got - want)) <= bound * np.max(np.abs(want))


def test_cudnn_attention_equals_the_unfused():
  x = jax.random.normal(jax.random.key(0), (_B, _T, _D), jnp.bfloat16)
  mask = attentions.causal_mask(x)
  fields = {
    'input_dim': _D,
    'hidden_dim': _D,
    'num_heads': _N,
    'fprop_dtype': jnp.bfloat16,
  }
  plain, fused = (
    pax_fiddle.Config(cls, name='attention', **fields).Instantiate()
    for cls in (
      attentions.DotProductAttention,
      gpu_fast_attention.GpuCudnnFusedDotProductAttention,
    )
  )
  variables = plain.init(jax.random.key(1), x, x, x, mask)

  def loss(layer, params, x):
    out, _ = layer.apply({'params': params}, x, x, x, mask)
    return jnp.sum(jnp.square(out.astype(jnp.float32))), out

  def run(layer):
    grad = jax.value_and_grad(lambda p, x: loss(layer, p, x), (0, 1), True)
    step = jax.jit(grad).lower(variables['params'], x).compile()
    return step.as_text(), step(variables['params'], x)

  _, ((_, want), want_grads) = run(plain)
  text, ((_, got), grads) = run(fused)
  assert '__cudnn$fmha' in text
  _check_close(got, want)
  _check_close(grads, want_grads)


@pytest.mark.parametrize(
  ('shape', 'num_kv_heads', 'spec'),
  [
    ((2, 1024, 8, 64), 8, attention.Spec()),
    ((2, 1000, 8, 128), 2, attention.Spec(soft_cap=20.0)),
    ((1, 2048, 2, 256), 1, attention.Spec(before=300)),
  ],
  ids=str,
)
def test_packed_attention_equals_the_reference(shape, num_kv_heads, spec):
  keys = jax.random.split(jax.random.key(0), 3)
  kv_shape = (*shape[:2], num_kv_heads, shape[-1])
  heads = [
    jax.random.normal(k, s, jnp.bfloat16)
    for k, s in zip(keys, (shape, kv_shape, kv_shape), strict=True)
  ]
  heads[0] *= shape[-1] ** -0.5
  ids = jnp.tile(jnp.arange(shape[1]) // 300, (shape[0], 1))

  def run(attend):
    def loss(*heads):
      out = attend(*heads, ids, spec)
      return jnp.sum(jnp.square(out.astype(jnp.float32))), out

    grad = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
    step = jax.jit(grad).lower(*heads).compile()
    return step.as_text(), step(*heads)

  text, ((_, got), grads) = run(attention.attention)
  assert 'xla.gpu.triton' in text
  _, ((_, want), want_grads) = run(lambda *a: reference.forward(*a)[0])
  _check_close(got, want)
  _check_close(grads, want_grads)


@pytest.mark.parametrize('dims', [(256, 192), (512, 1024)])
def test_grouped_products_equal_those_of_xla(dims):
  sizes = jnp.asarray([300, 0, 1, 127, 596], jnp.int32)
  keys = jax.random.split(jax.random.key(0), 3)
  shapes = ((1100, dims[0]), (len(sizes), *dims), (1100, dims[1]))
  rows, weights, cotangents = (
    jax.random.normal(k, s, jnp.bfloat16)
    for k, s in zip(keys, shapes, strict=True)
  )
  is_grouped = jnp.arange(1100)[:, jnp.newaxis] < jnp.sum(sizes)

  def run(product):
    def step(rows, weights, cotangents):
      outputs, pull = jax.vjp(lambda *x: product(*x, sizes), rows, weights)
      of_rows, of_weights = pull(jnp.where(is_grouped, cotangents, 0))
      of_each_row = (jnp.where(is_grouped, x, 0) for x in (outputs, of_rows))
      return *of_each_row, of_weights

    program = jax.jit(step).lower(rows, weights, cotangents).compile()
    return program.as_text(), program(rows, weights, cotangents)

  text, got = run(grouped_matmul.grouped_matmul)
  assert text.count('"__gpu$xla.gpu.triton"') == 3
  _, want = run(jax.lax.ragged_dot)
  for a, b in zip(got, want, strict=True):
    _check_close(a, b)


@pytest.mark.skipif(
  not native.has_kernel('CUDA', 'pax_softmax_xent_rows'),
  reason='the extension has no CUDA kernels',
)
@pytest.mark.parametrize('vocab', [4096, 5003])
def test_the_cuda_kernel_equals_the_reference(vocab):
  keys = jax.random.split(jax.random.key(0), 3)
  x = jax.random.normal(keys[0], (5000, 64))
  table = jax.random.normal(keys[1], (64, vocab)) / 8
  labels = jax.random.randint(keys[2], (5000,), -1, vocab)

  def run(implementation):
    options = softmax_xent_lib.Options(
      implementation=implementation,
      soft_cap=8.0,
      label_smoothing=0.1,
      z_loss_weight=1e-2,
    )

    def total(x, table):
      out = softmax_xent_lib.softmax_xent(
        x, table, labels, jnp.ones(5000), None, options
      )
      return out.total, out

    return jax.jit(jax.value_and_grad(total, (0, 1), True))(x, table)

  with jax.default_matmul_precision('highest'):
    got, want = run('native'), run('reference')
  for name in ('xent', 'logsumexp'):
    _check_close(getattr(got[0][1], name), getattr(want[0][1], name), 1e-4)
  _check_close(got[1], want[1], 1e-4)


def _losses(folder: pathlib.Path, steps: int, *flags: str) -> dict[int, float]:
  subprocess.run(
    [
      *(sys.executable, '-m', 'pax.main', f'--job_log_dir={folder}'),
      '--exp=tasks.lm.params.quickstart.TinyLm',
      f'--set=NUM_TRAIN_STEPS={steps}',
      '--set=task.train.save_interval_steps=10',
      '--set=task.train.summary_interval_steps=1',
      *flags,
    ],
    cwd=_ROOT,
    env={**os.environ, 'XLA_FLAGS': '--xla_gpu_deterministic_ops=true'},
    check=True,
  )
  (metrics,) = folder.rglob('metrics.jsonl')
  lines = map(json.loads, metrics.read_text().splitlines())
  return {
    line['step']: line['loss'] for line in lines if line['split'] == 'train'
  }


def test_a_job_learns_and_resumes_bit_by_bit(tmp_path):
  whole = _losses(tmp_path / 'whole', 40)
  _losses(tmp_path / 'parts', 20)
  resumed = _losses(tmp_path / 'parts', 40)
  assert resumed == whole
  assert whole[max(whole)] < whole[min(whole)] - 0.1


@pytest.mark.parametrize('scaling', ['delayed', 'current'])
def test_fp8_follows_bfloat16(tmp_path, scaling):
  fields = ('--set=FPROP_DTYPE=bfloat16', '--set=USE_REPEATED_LAYER=True')
  wide = _losses(tmp_path / 'bfloat16', 40, *fields)
  narrow = _losses(
    tmp_path / 'fp8',
    40,
    *fields,
    f'--set=task.model.lm_tpl.fp8_scaling={scaling}',
  )
  assert narrow.keys() == wide.keys() and narrow != wide
  assert abs(narrow[max(narrow)] - wide[max(wide)]) < 0.1
