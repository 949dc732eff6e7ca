# SPDX-License-Identifier: Apache-2.0
"""Softmax attention of a sequence to itself, without its logits in memory.

On CPUs it is the C++ kernel csrc/kernels/attention.h, on NVIDIA GPUs a Triton
kernel for bfloat16 and float16; the jnp reference elsewhere, and for
derivatives of gradients.

References: FlashAttention-2, arXiv:2307.08691.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from praxis import py_utils
from praxis.kernels import attention_reference as reference
from praxis.kernels import attention_triton as triton
from praxis.kernels import native, token_sharding
from praxis.kernels.attention_reference import Spec

FORWARD = 'pax_attention'
GRADIENT = 'pax_attention_gradient'
# Name of the saved results (jax.ad_checkpoint.checkpoint_name).
RESIDUALS = 'context'

# Queries, keys, values and segment ids.
_Operands = tuple[Array, Array, Array, Array]

# As in csrc/kernels/attention.cc.
_QUERIES = 64
_BLOCK = 32
_MIN_TASKS = 16


def has_kernel() -> bool:
  """Whether the C++ kernel is built."""
  return native.has_kernel('cpu', FORWARD)


def attention(
  query: Float[Array, 'B T N H'],
  key: Float[Array, 'B S K H'],
  value: Float[Array, 'B S K H'],
  segment_ids: Int[Array, 'B T'],
  spec: Spec,
  sinks: Float[Array, ' N'] | None = None,
) -> Float[Array, 'B T N H']:
  """Returns the values averaged with softmax(query key) of visible keys.

  Differentiable in reverse mode in all floats, in memory linear in the length.
  Derivatives of gradients are of the jnp reference. The batch may
  be sharded.

  Args:
    query: scaled queries, float32, bfloat16 or, on GPUs, float16.
    key: of the same length and dtype; K divides N.
    value: likewise.
    segment_ids: positions of other segments are not visible.
    spec: the visible keys and the logits.
    sinks: a further logit of each head, which is only in the denominator.

  Raises:
    ValueError: shapes or dtypes do not match.
  """
  batch, length, num_heads, dims = query.shape
  num_kv_heads = key.shape[2]
  if num_kv_heads == 0 or num_heads % num_kv_heads:
    raise ValueError(
      f'the heads of keys must divide those of queries, got {num_kv_heads} and '
      f'{num_heads}'
    )
  wanted = (batch, length, num_kv_heads, dims)
  if key.shape != wanted or value.shape != wanted:
    raise ValueError(
      f'key and value must have shape {wanted} for query {query.shape}, got '
      f'{key.shape} and {value.shape}'
    )
  dtypes = [jnp.float32, jnp.bfloat16]
  if py_utils.target_platform() == 'gpu':
    dtypes.append(jnp.float16)
  if {query.dtype} != {x.dtype for x in (query, key, value)} or (
    query.dtype not in dtypes
  ):
    names = ' or all '.join(jnp.dtype(d).name for d in dtypes)
    raise ValueError(
      f'query, key and value must all be {names}, got {query.dtype}, '
      f'{key.dtype} and {value.dtype}; cast them'
    )
  if sinks is not None:
    sinks = sinks.astype(jnp.float32)
  operands = (query, key, value, segment_ids.astype(jnp.int32))
  return _attend(spec, operands, sinks)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(spec: Spec, operands: _Operands, sinks: Array | None) -> Array:
  return _attend_fwd(spec, operands, sinks)[0]


def _attend_fwd(
  spec: Spec, operands: _Operands, sinks: Array | None
) -> tuple[Array, tuple[Any, ...]]:
  results = _forward(spec, *operands)
  if sinks is not None:
    results = _add_sinks(*results, sinks)
  out, logsumexp = (checkpoint_name(x, RESIDUALS) for x in results)
  return out, (operands, sinks, out, logsumexp)


def _add_sinks(
  out: Float[Array, 'B T N H'],
  logsumexp: Float[Array, 'B N T'],
  sinks: Float[Array, ' N'],
) -> tuple[Float[Array, 'B T N H'], Float[Array, 'B N T']]:
  """Returns the results with the sinks in the denominators."""
  total = jnp.logaddexp(logsumexp, sinks[:, jnp.newaxis])
  share = jnp.swapaxes(jnp.exp(logsumexp - total), 1, 2)[..., jnp.newaxis]
  return (out * share).astype(out.dtype), total


def _attend_bwd(
  spec: Spec, residuals: tuple[Any, ...], dout: Array
) -> tuple[tuple[Array | None, ...], Array | None]:
  operands, sinks, out, logsumexp = residuals
  delta = jnp.einsum(
    'BTNH,BTNH->BNT', dout, out, preferred_element_type=jnp.float32
  )
  gradients = _gradient(spec, *operands, dout, logsumexp, delta)
  dsinks = None
  if sinks is not None:
    probs = jnp.exp(sinks[:, jnp.newaxis] - logsumexp)
    dsinks = -jnp.einsum('BNT,BNT->N', probs, delta)
  return (*gradients, None), dsinks


_attend.defvjp(_attend_fwd, _attend_bwd)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _forward(spec: Spec, *operands: Array) -> tuple[Array, Array]:
  kinds = ('ntqh ntkh ntkh nt', 'ntqh nqt')
  kernels = (_native_forward, triton.forward, reference.forward)
  return _sharded(kernels, spec, kinds, _has_triton(operands))(*operands)


@_forward.defjvp
def _forward_jvp(spec: Spec, primals: Any, tangents: Any) -> tuple[Any, Any]:
  run = functools.partial(reference.forward, spec=spec)
  return _jvp_of_floats(run, primals, tangents)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradient(spec: Spec, *operands: Array) -> tuple[Array, Array, Array]:
  """Returns the gradients of queries, keys and values.

  Args:
    spec: the visible keys and the logits.
    *operands: query, key, value, segment_ids, dout, logsumexp and delta.
  """
  kinds = ('ntqh ntkh ntkh nt ntqh nqt nqt', 'ntqh ntkh ntkh')
  kernels = (_native_gradient, triton.gradient, reference.gradient)
  return _sharded(kernels, spec, kinds, _has_triton(operands))(*operands)


@_gradient.defjvp
def _gradient_jvp(spec: Spec, primals: Any, tangents: Any) -> tuple[Any, Any]:
  run = functools.partial(reference.gradient, spec=spec)
  return _jvp_of_floats(run, primals, tangents)


def _jvp_of_floats(
  run: Callable[..., Any], primals: Any, tangents: Any
) -> tuple[Any, Any]:
  """Returns the results and tangents of `run`, whose segment ids have none."""

  def of_floats(*floats: Array) -> Any:
    return run(*floats[:3], primals[3], *floats[3:])

  floats, tangents = ((*x[:3], *x[4:]) for x in (primals, tangents))
  return jax.jvp(of_floats, floats, tangents)


def _has_triton(operands: tuple[Array, ...]) -> bool:
  """Whether GPUs compute these operands by the Triton kernel."""
  is_half = operands[0].dtype in (jnp.bfloat16, jnp.float16)
  return is_half and py_utils.target_platform() == 'gpu'


@functools.cache
def _sharded(
  kernels: tuple[Callable[..., Any], ...],
  spec: Spec,
  kinds: tuple[str, str],
  has_triton: bool,
) -> Callable[..., Any]:
  """Returns the implementation of the platform, over shards of the batch.

  Args:
    kernels: for CPUs, for CUDA, and for all else.
    spec: the visible keys and the logits.
    kinds: the dimensions of operands and results, for token_sharding.
    has_triton: whether the second may be traced.
  """
  cpu, cuda, default = (functools.partial(f, spec=spec) for f in kernels)
  choices = dict(default=default)
  if has_kernel():
    choices['cpu'] = cpu
  if has_triton:
    choices['cuda'] = cuda

  def local(*operands: Array) -> tuple[Array, ...]:
    return jax.lax.platform_dependent(*operands, **choices)

  return token_sharding.shard_over_tokens(local, *kinds)


def _native_forward(*operands: Array, spec: Spec) -> tuple[Array, Array]:
  query = operands[0]
  batch, length, num_heads, _ = query.shape
  shapes = (
    jax.ShapeDtypeStruct(query.shape, query.dtype),
    jax.ShapeDtypeStruct((batch, num_heads, length), jnp.float32),
  )
  output, logsumexp = jax.ffi.ffi_call(FORWARD, shapes)(
    *operands, **_attributes(spec)
  )
  return output, logsumexp


def _native_gradient(*operands: Array, spec: Spec) -> tuple[Array, ...]:
  shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands[:3]]
  scratch = jax.ShapeDtypeStruct((_num_scratch(operands[1]),), jnp.float32)
  call = jax.ffi.ffi_call(GRADIENT, (*shapes, scratch))
  return tuple(call(*operands, **_attributes(spec))[:3])


def _attributes(spec: Spec) -> dict[str, Any]:
  before, after = (-1 if n is None else n for n in (spec.before, spec.after))
  return dict(
    soft_cap=np.float32(spec.soft_cap),
    before=np.int64(before),
    after=np.int64(after),
  )


def _num_scratch(key: Array) -> int:
  """Returns the number of floats of the gradient's scratch memory."""
  batch, length, num_kv_heads, dims = key.shape
  blocks = -(-length // _QUERIES)
  padded_dims = max(-(-dims // _BLOCK), 1) * _BLOCK
  pairs = batch * num_kv_heads
  splits = max(1, min(-(-_MIN_TASKS // max(pairs, 1)), blocks))
  return pairs * splits * 2 * blocks * _QUERIES * padded_dims
