# SPDX-License-Identifier: Apache-2.0
"""Softmax cross entropy over a vocabulary in chunks of tokens.

The forward pass computes the gradient of the weighted sum that training
minimizes along with each chunk of logits, without recomputation.
Differentiating a result per token computes the logits a second time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, Int

from praxis import py_utils
from praxis.kernels import (
  native,
  softmax_xent_native,
  token_sharding,
  vocab_parallel,
)
from praxis.kernels import softmax_xent_reference as reference
from praxis.kernels.softmax_xent_reference import (
  Gradients,
  Spec,
  Tokens,
  Weights,
)

IMPLEMENTATIONS = ('auto', 'native', 'reference', 'xla')

# Instruction sets where the native kernel measures at least as fast as XLA
# (benchmarks/softmax_xent.py).
_FAST_ISAS = ('avx2', 'avx512')
# The kernel works on blocks of 32 tokens: 8 tokens take 1.8 times as long as by
# XLA.
_MIN_FAST_TOKENS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Spec):
  """The loss and its implementation.

  `implementation` is one of
    auto: native where it measures at least as fast (64 tokens and more on CPUs
      with AVX2 or AVX-512), else reference.
    native: the kernels in csrc; an error if they are not built, or not for
      the platform.
    reference: jnp, in chunks of tokens.
    xla: jnp on all logits; XLA partitions them.
  """

  implementation: str = 'auto'
  # Axes of the mesh of `jax.set_mesh` that shard the classes of the table
  # (vocab_parallel.py); empty: the table is gathered. 'xla' ignores them.
  class_axes: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    if self.implementation not in IMPLEMENTATIONS:
      raise ValueError(
        f'implementation must be one of {IMPLEMENTATIONS}, got '
        f'{self.implementation!r}'
      )
    # NaN is in no range.
    if not 0 <= self.soft_cap < math.inf or not 0 <= self.label_smoothing < 1:
      raise ValueError(
        'soft_cap must be at least 0 and finite and label_smoothing in [0, 1),'
        f' got {self.soft_cap} and {self.label_smoothing}'
      )


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['total', 'xent', 'logsumexp', 'argmax'],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftmaxXent:
  """Results of `softmax_xent`."""

  # Sum over tokens of weights * (xent + z_loss_weight * logsumexp**2), in nats.
  total: Float[Array, '']
  # Unweighted cross entropy of each token; 0 if the label is negative.
  xent: Float[Array, ' N']
  # log(sum(exp(logits))).
  logsumexp: Float[Array, ' N']
  # The class with the largest logit, the first one of several; that of the
  # first NaN, if there is one.
  argmax: Int[Array, ' N']


def softmax_xent(
  x: Float[Array, 'N D'],
  w: Float[Array, 'rows columns'],
  labels: Int[Array, ' N'],
  weights: Float[Array, ' N'],
  bias: Float[Array, ' V'] | None = None,
  options: Options = Options(),
) -> SoftmaxXent:
  """Returns the cross entropy of softmax(x w + bias), per token and in total.

  Differentiable in x, w, bias and weights. The gradient of `total` needs one
  pass over the vocabulary, that of `xent` or `logsumexp` another one. Sums are
  accumulated in float32. Under a mesh x, labels and weights may be sharded over
  tokens, and the gradient of w is all-reduced. A sharded w is all-gathered
  first, except over `options.class_axes` and by implementation 'xla'.

  Args:
    x: activations, float32 or bfloat16.
    w: table of the same dtype, [D, V], or [V, D] if `options.transposed`.
    labels: class ids; negative ones are ignored, others outside the vocabulary
      yield NaN.
    weights: weight of each token in the total.
    bias: added to the logits.
    options: the loss and its implementation.

  Raises:
    ValueError: shapes or dtypes do not match, or the native implementation is
      requested but not built, or not for the platform, or `class_axes` cannot
      shard the classes.
  """
  _check(x, w, bias, options)
  if options.implementation == 'auto' and len(x) < _MIN_FAST_TOKENS:
    options = dataclasses.replace(options, implementation='reference')
  if bias is None:
    bias = jnp.zeros((0,), jnp.float32)
  total, tokens = _softmax_xent(
    options,
    x,
    w,
    bias.astype(jnp.float32),
    labels.astype(jnp.int32),
    weights.astype(jnp.float32),
  )
  return SoftmaxXent(total=total, **tokens._asdict())


def _check(x: Array, w: Array, bias: Array | None, options: Options) -> None:
  vocab = options.vocab(w)
  expected = (vocab, x.shape[1]) if options.transposed else (x.shape[1], vocab)
  if w.shape != expected:
    raise ValueError(
      f'w must have shape {expected} for x {x.shape}, got {w.shape}; set '
      'options.transposed for a table [V, D]'
    )
  if vocab < 1:
    raise ValueError(f'w must have at least 1 class, got shape {w.shape}')
  if x.dtype != w.dtype or x.dtype not in (jnp.float32, jnp.bfloat16):
    raise ValueError(
      f'x and w must both be float32 or both bfloat16, got {x.dtype} and '
      f'{w.dtype}; cast one of them'
    )
  if bias is not None and bias.shape != (vocab,):
    raise ValueError(f'bias must have shape {(vocab,)}, got {bias.shape}')
  if options.implementation == 'native':
    _check_native()
  if options.class_axes and options.implementation != 'xla':
    error = vocab_parallel.error(options, options.class_axes, vocab)
    if error is not None:
      raise ValueError(error)


def _check_native() -> None:
  platforms = _native_platforms()
  if not platforms:
    raise ValueError(
      "implementation 'native' needs the extension praxis.kernels._native, "
      "which is not built; build it or use 'auto'"
    )
  target = py_utils.target_platform()
  if {'gpu': 'cuda'}.get(target, target) not in platforms:
    raise ValueError(
      f"implementation 'native' has kernels for {' and '.join(platforms)}, not "
      f"for {target}; use 'auto'"
    )


def _softmax_xent(
  options: Options, x: Array, w: Array, bias: Array, *rest: Array
) -> tuple[Array, Tokens]:
  if options.implementation == 'xla':
    labels, weights = rest
    logits = reference.logits(x, w, bias, options)
    tokens = reference.tokens_from_logits(logits, labels, options)
    return _total(options, tokens, labels, weights), tokens
  return _chunked(options, x, w, bias, *rest)


def _total(
  options: Options, tokens: Tokens, labels: Array, weights: Array
) -> Array:
  z_loss = options.z_loss_weight * jnp.square(tokens.logsumexp)
  return jnp.sum(jnp.where(labels < 0, 0.0, weights * (tokens.xent + z_loss)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _chunked(
  options: Options,
  x: Array,
  w: Array,
  bias: Array,
  labels: Array,
  weights: Array,
) -> tuple[Array, Tokens]:
  tokens = Tokens(*_forward(options)(x, w, bias, labels))
  return _total(options, tokens, labels, weights), tokens


@functools.partial(_chunked.defjvp, symbolic_zeros=True)
def _chunked_jvp(
  options: Options, primals: Any, tangents: Any
) -> tuple[tuple[Array, Tokens], tuple[Array, Tokens]]:
  """Returns the results and their tangents.

  The tangent of the total is linear in the gradients, so that its transpose
  scales them. Tangents per token compute the logits again: a transpose without
  their cotangents skips this.
  """
  x, w, bias, labels, weights = primals
  tokens, gradients = _value_and_gradients(options, *primals)
  value = tokens.xent + options.z_loss_weight * jnp.square(tokens.logsumexp)
  value = jnp.where(labels < 0, 0.0, value)
  dtotal = jnp.zeros((), jnp.float32)
  operands = (*tangents[:3], tangents[4])
  for tangent, slope in zip(operands, (*gradients, value), strict=True):
    if not isinstance(tangent, SymbolicZero):
      slope = token_sharding.reshard_like(slope, tangent)
      products = tangent.astype(jnp.float32) * slope.astype(jnp.float32)
      dtotal += jnp.sum(products)
  total = _total(options, tokens, labels, weights)
  dxent, dlogsumexp = _token_tangents(options)(
    x, w, bias, labels, *map(_instantiated, tangents[:3])
  )
  # JAX takes the tangents of integers as arrays of numpy.
  zeros: Any = np.zeros(tokens.argmax.shape, jax.dtypes.float0)
  dtokens = Tokens(dxent, dlogsumexp, zeros)
  return (total, tokens), (dtotal, dtokens)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value_and_gradients(
  options: Options,
  x: Array,
  w: Array,
  bias: Array,
  labels: Array,
  weights: Array,
) -> tuple[Tokens, Gradients]:
  """Returns the results and the gradients of the total."""
  results = _gradient(options)(
    x, w, bias, labels, weights, jnp.zeros_like(weights)
  )
  return Tokens(*results[:3]), Gradients(*results[3:])


@_value_and_gradients.defjvp
def _value_and_gradients_jvp(
  options: Options, primals: Any, tangents: Any
) -> tuple[Any, Any]:
  """Differentiates the jnp reference: second derivatives have no kernel."""

  def local(*args: Array) -> tuple[Array, ...]:
    weights = Weights(args[4], jnp.zeros_like(args[4]))
    tokens, gradients = reference.gradient(*args[:4], weights, options)
    return (*tokens, *gradients)

  mapped = local
  if not options.class_axes:
    kinds = ('nd rc b n n', 'n n n nd rc b')
    mapped = token_sharding.map_over_tokens(local, *kinds)

  def run(*args: Array) -> tuple[Tokens, Gradients]:
    results = mapped(*args)
    return Tokens(*results[:3]), Gradients(*results[3:])

  return jax.jvp(run, primals, tangents)


def _token_tangents(options: Options) -> Callable[..., tuple[Array, ...]]:
  def local(x: Array, w: Array, bias: Array, labels: Array, *tangents: Array):
    dx, dw, dbias = tangents
    return reference.token_tangents(
      (x, w, bias), (dx, dw, dbias), labels, options
    )

  if options.class_axes:
    return local
  return token_sharding.map_over_tokens(local, 'nd rc b n nd rc b', 'n n')


def _instantiated(tangent: Any) -> Array:
  if isinstance(tangent, SymbolicZero):
    return jnp.zeros(tangent.shape, tangent.dtype)
  return tangent


# ---- implementation, sharding and batching -----------------------------------


def _native_platforms() -> tuple[str, ...]:
  """Returns the platforms (of `jax.lax.platform_dependent`) with a kernel."""
  names = {
    'cpu': ('cpu', softmax_xent_native.GRADIENT),
    'cuda': ('CUDA', softmax_xent_native.ROWS),
  }
  return tuple(p for p, key in names.items() if native.has_kernel(*key))


@functools.cache
def _log_choice(platforms: tuple[str, ...]) -> None:
  logging.info(
    'softmax_xent: native on %s, jnp reference elsewhere.',
    ' and '.join(platforms) or 'no platform',
  )


def _platforms(options: Options) -> tuple[str, ...]:
  """Returns the platforms where `options` use the native kernel."""
  if options.implementation == 'reference':
    return ()
  platforms = _native_platforms()
  if options.implementation == 'auto':
    fast = native.cpu_isa() in _FAST_ISAS
    platforms = tuple(p for p in platforms if p == 'cpu' and fast)
    _log_choice(platforms)
  return platforms


def prefers_native(platform: str) -> bool:
  """Whether 'auto' uses the native kernel on `platform`, such as 'cpu'."""
  return platform in _platforms(Options())


@functools.cache
def _forward(options: Options) -> Callable[..., tuple[Array, ...]]:
  run = _local_forward(options)
  if options.class_axes:
    run = _vocab_parallel(options).forward

  def local(*args: Array) -> tuple[Array, ...]:
    return tuple(run(*args))

  kinds = _operand_kinds(options)
  return token_sharding.shard_over_tokens(
    local, f'{kinds} n', 'n n n', options.class_axes
  )


@functools.cache
def _gradient(options: Options) -> Callable[..., tuple[Array, ...]]:
  run = _local_gradient(options)
  if options.class_axes:
    run = _vocab_parallel(options).gradient

  def local(*args: Array) -> tuple[Array, ...]:
    tokens, grads = run(*args[:4], Weights(*args[4:]))
    return (*tokens, *grads)

  kinds = _operand_kinds(options)
  return token_sharding.shard_over_tokens(
    local, f'{kinds} n n n', f'n n n {kinds}', options.class_axes
  )


def _vocab_parallel(options: Options) -> vocab_parallel.VocabParallel:
  without_z_loss = dataclasses.replace(options, z_loss_weight=0.0)
  return vocab_parallel.VocabParallel(
    spec=options,
    axes=options.class_axes,
    shard_forward=_local_forward(options),
    shard_gradient=_local_gradient(without_z_loss),
  )


def _operand_kinds(options: Options) -> str:
  """Returns the dimensions of x, w and bias (`shard_over_tokens`)."""
  if not options.class_axes:
    return 'nd rc b'
  return 'nd vd v' if options.transposed else 'nd dv v'


def _local_forward(options: Options) -> Callable[..., Tokens]:
  # On GPUs XLA computes logits, and without a gradient the softmax, too.
  kernels = {'cpu': softmax_xent_native.forward, 'cuda': reference.forward}
  return _dispatch(options, kernels, reference.forward)


def _local_gradient(
  options: Options,
) -> Callable[..., tuple[Tokens, Gradients]]:
  on_gpu = reference.gradient_by(
    softmax_xent_native.rows_gradient, reference.gpu_chunk_tokens
  )
  if options.class_axes:
    # The CUDA kernel takes no normalizer.
    on_gpu = reference.gradient
  kernels = {'cpu': softmax_xent_native.gradient, 'cuda': on_gpu}
  return _dispatch(options, kernels, reference.gradient)


def _dispatch(
  options: Options,
  kernels: dict[str, Callable[..., Any]],
  default: Callable[..., Any],
) -> Callable[..., Any]:
  """Returns a function that chooses by `options` and platform."""
  default = functools.partial(default, spec=options)
  choices = {
    p: functools.partial(kernels[p], spec=options) for p in _platforms(options)
  }
  if not choices:
    return default
  if options.implementation != 'native':
    choices['default'] = default
  return lambda *args: jax.lax.platform_dependent(*args, **choices)
