# SPDX-License-Identifier: Apache-2.0
"""Moments and steps of Adam, in one pass over memory on CPUs.

XLA writes each of them in a loop of its own. The native kernel for CPUs
(csrc/kernels/adam.h) writes them in place of moments and gradient, if these are
not used any more.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from praxis import py_utils
from praxis.kernels import native

KERNEL = 'pax_adam'

# Where the kernel measures at least 1.2 times as fast as XLA in a learner
# (benchmarks/adam.py).
_MIN_ELEMENTS = 2**16
_FAST_ISAS = ('avx512', 'avx2')
# Results are in place of gradient, m and v.
_ALIASES = {0: 0, 1: 1, 2: 2}

# Step, m and v.
Update = tuple[Array, Array, Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
  """The step m / (sqrt(v + epsilon_root) + epsilon)."""

  epsilon: float
  epsilon_root: float = 0.0
  # Replaces infinite gradients by NaN.
  inf_to_nan: bool = True


def is_fast(gradient: Array, m: Array, v: Array) -> bool:
  """Whether the native kernel is faster than XLA, and can run.

  A program that is partitioned over the devices of a known mesh has no kernel:
  with a sharding rule it would not be found in the persistent compilation
  cache.

  Args:
    gradient: of one variable.
    m: its first moment.
    v: its second moment.
  """
  mesh = jax.sharding.get_abstract_mesh()
  return (
    gradient.size >= _MIN_ELEMENTS
    and all(x.dtype == jnp.float32 for x in (gradient, m, v))
    and (mesh.size <= 1 or set(mesh.axis_types) == {AxisType.Manual})
    and py_utils.target_platform() == 'cpu'
    and native.has_kernel('cpu', KERNEL)
    and native.cpu_isa() in _FAST_ISAS
  )


@functools.partial(jax.custom_jvp, nondiff_argnums=(5,))
def update(
  gradient: Float[Array, '*dims'],
  m: Float[Array, '*dims'],
  v: Float[Array, '*dims'],
  beta1: Float[Array, ''],
  beta2: Float[Array, ''],
  spec: Spec,
) -> Update:
  """Returns the step before the learning rate, and the next moments.

  Differentiable as `reference` is. Operands may be sharded in any way, but all
  alike: nothing moves between devices.

  Args:
    gradient: float32, as all operands.
    m: moving average of the gradients.
    v: moving average of their squares.
    beta1: decay of m.
    beta2: decay of v.
    spec: the formula.
  """
  return _vectorized(spec)(gradient, m, v, beta1, beta2)


@update.defjvp
def _update_jvp(spec: Spec, primals: Any, tangents: Any) -> tuple[Any, Any]:
  return jax.jvp(functools.partial(reference, spec=spec), primals, tangents)


def reference(
  gradient: Float[Array, '*dims'],
  m: Float[Array, '*dims'],
  v: Float[Array, '*dims'],
  beta1: Float[Array, '*rows'],
  beta2: Float[Array, '*rows'],
  spec: Spec,
) -> Update:
  """Returns the same by XLA, for operands of any dtype.

  Args:
    gradient: as for `update`.
    m: likewise, and in the dtype of its result.
    v: likewise.
    beta1: decay of each row along the leading dimensions.
    beta2: likewise.
    spec: the formula.
  """
  if spec.inf_to_nan:
    gradient = jnp.where(jnp.isinf(gradient), jnp.nan, gradient)
  m = _average(m, gradient, beta1)
  v = _average(v, gradient * gradient, beta2)
  return m / (jnp.sqrt(v + spec.epsilon_root) + spec.epsilon), m, v


def _average(average: Array, new: Array, decay: Array) -> Array:
  decay = jnp.expand_dims(decay, range(decay.ndim, average.ndim))
  return (decay * average + (1.0 - decay) * new).astype(average.dtype)


@functools.cache
def _vectorized(spec: Spec) -> Callable[..., Update]:
  """Returns the update whose vmap is one call with more rows."""

  @custom_vmap
  def run(gradient: Array, m: Array, v: Array, *betas: Array) -> Update:
    partitioned = _partitioned(spec, gradient.ndim, betas[0].ndim)
    return partitioned(gradient, m, v, *betas)

  @run.def_vmap
  def _rule(
    size: int, batched: Sequence[bool], *args: Array
  ) -> tuple[Update, tuple[bool, ...]]:
    rows = [
      x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
      for x, is_batched in zip(args, batched, strict=True)
    ]
    return run(*rows), (True,) * 3

  return run


@functools.cache
def _partitioned(spec: Spec, ndim: int, row_ndim: int) -> Callable[..., Update]:
  """Returns the update of local arrays, sharded as the gradient.

  Args:
    spec: the formula.
    ndim: number of dimensions of the gradient.
    row_ndim: number of its leading dimensions along which the decays differ.
  """

  def local(*operands: Array) -> Update:
    return _local(operands, spec)

  def partition(
    mesh: Mesh, args: Sequence[Any], out: Any
  ) -> tuple[Mesh, Callable[..., Update], Any, Any]:
    del out
    axes = args[0].sharding.spec
    like = NamedSharding(mesh, PartitionSpec(*axes))
    rows = NamedSharding(mesh, PartitionSpec(*axes[:row_ndim]))
    return mesh, local, (like,) * 3, (like,) * 3 + (rows,) * 2

  dims = [f'd{i}' for i in range(ndim)]
  like, rows = ' '.join(dims), ' '.join(dims[:row_ndim])
  operands = ', '.join((like,) * 3 + (rows,) * 2)
  partitioned = custom_partitioning(local)
  partitioned.def_partition(
    partition=partition,
    infer_sharding_from_operands=lambda mesh, args, out: (
      (args[0].sharding,) * 3
    ),
    sharding_rule=f'{operands} -> {", ".join((like,) * 3)}',
  )
  return partitioned


def _local(operands: Sequence[Array], spec: Spec) -> Update:
  otherwise = functools.partial(reference, spec=spec)
  if not native.has_kernel('cpu', KERNEL):
    return otherwise(*operands)
  return jax.lax.platform_dependent(
    *operands, cpu=functools.partial(_native, spec=spec), default=otherwise
  )


def _native(*operands: Array, spec: Spec) -> Update:
  like = jax.ShapeDtypeStruct(operands[0].shape, jnp.float32)
  call = jax.ffi.ffi_call(KERNEL, (like,) * 3, input_output_aliases=_ALIASES)
  step, m, v = call(
    *operands,
    epsilon=np.float32(spec.epsilon),
    epsilon_root=np.float32(spec.epsilon_root),
    inf_to_nan=spec.inf_to_nan,
  )
  return step, m, v
