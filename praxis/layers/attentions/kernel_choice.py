# SPDX-License-Identifier: Apache-2.0
"""The choice between einsum and a fused kernel for the attention of sequences.

einsum supports everything. Kernels have no logits in memory: splash on TPUs,
cudnn and triton on GPUs, native on CPUs. auto takes the first kernel of the
platform that computes the same and is faster, and einsum elsewhere.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
from absl import logging
from jax.sharding import AbstractMesh
from jaxtyping import Array, Float

from praxis import base_layer, py_utils
from praxis.layers.attentions import (
  cudnn,
  flash,
  kernel_inputs,
  native,
  segments,
  splash,
  triton,
)

EINSUM = 'einsum'
AUTO = 'auto'

Heads = kernel_inputs.Heads
KernelSpec = kernel_inputs.KernelSpec
Mask = kernel_inputs.Mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
  """A fused kernel."""

  name: str
  # The platform it is for; on CPUs most can run, in tests.
  platform: str
  # Returns what it does not support of an attention, or None.
  reason_against: Callable[[Heads, KernelSpec, AbstractMesh], str | None]
  # Attends with scaled queries.
  attend: Callable[[Heads, KernelSpec], Float[Array, 'B T N H']]
  # Whether values may have another dimension than keys.
  has_value_dim: bool = False
  # Whether auto takes it on this machine for sequences of a length.
  is_fast: Callable[[int], bool] = lambda length: True


_KERNELS = {
  kernel.name: kernel
  for kernel in (
    Kernel(
      name='splash',
      platform='tpu',
      reason_against=splash.reason_against,
      attend=splash.attend,
      has_value_dim=True,
    ),
    Kernel(
      name='cudnn',
      platform='gpu',
      reason_against=cudnn.reason_against,
      attend=cudnn.attend,
    ),
    Kernel(
      name='triton',
      platform='gpu',
      reason_against=triton.reason_against,
      attend=flash.attend,
      is_fast=triton.is_fast,
    ),
    Kernel(
      name='native',
      platform='cpu',
      reason_against=native.reason_against,
      attend=flash.attend,
      is_fast=native.is_fast,
    ),
  )
}
IMPLEMENTATIONS = (AUTO, EINSUM, *_KERNELS)

# The methods of attention layers that a kernel replaces.
_STEPS = frozenset({
  '_atten_context', '_attend', '_attend_dense', '_attend_rows', '_cap_logits',
  '_logits', '_logit_transform', '_probs',
})  # fmt: skip


class KernelAttention(base_layer.BaseLayer):
  """An attention layer whose sequences may attend by a kernel."""

  # How sequences attend: one of IMPLEMENTATIONS.
  atten_implementation: str = AUTO

  # Whether kernels compute the same; not so if a subclass overrides a step.
  has_kernel: ClassVar[bool] = True
  # What runs without a kernel, for the log.
  without_kernel: ClassVar[str] = EINSUM

  def __init_subclass__(cls, **kwargs: Any) -> None:
    if 'has_kernel' not in vars(cls):
      cls.has_kernel = all(
        _knows_kernels(cls, base)
        for base in cls.__mro__
        if _STEPS & vars(base).keys()
      )
    super().__init_subclass__(**kwargs)

  def _check_implementation(self) -> None:
    """Raises ValueError if atten_implementation is not in IMPLEMENTATIONS."""
    if self.atten_implementation not in IMPLEMENTATIONS:
      raise ValueError(
        f'atten_implementation must be one of {IMPLEMENTATIONS}, got '
        f'{self.atten_implementation!r}'
      )

  def _attend_by_kernel(
    self, heads: Heads, mask: Mask
  ) -> Float[Array, 'B T N H'] | None:
    """Returns the attended values of a kernel; None where none can run.

    Logs each choice once.

    Raises:
      ValueError: a kernel is required, and does not support the attention.
    """
    batch, length = heads.query.shape[:2]
    value_dim = heads.value.shape[-1]
    kernels = _candidates(self.atten_implementation, length)
    spec = None
    if isinstance(mask, segments.SegmentMask):
      spec = self._kernel_spec(mask.for_batch(batch))
    unsupported = {
      type(self).__name__: not self.has_kernel,
      **self._unsupported_by_kernels(),
      **self._kernel_conflicts(mask),
    }
    reasons: dict[str, list[str]] = {}
    for kernel in kernels:
      reason = _reason_against(kernel, heads, spec, unsupported)
      if reason and self.atten_implementation == kernel.name:
        raise ValueError(
          f'atten_implementation={kernel.name!r} does not support {reason}; '
          f"set it to '{AUTO}' or '{EINSUM}'"
        )
      if reason is None and spec is not None:
        _log_choice(str(heads.query.aval), kernel.name, reasons)
        query = self._kernel_queries(heads.query)
        if not kernel.has_value_dim:
          heads = heads.with_padded_values()
        encoded = kernel.attend(heads._replace(query=query), spec)
        return encoded[..., :value_dim]
      reasons.setdefault(str(reason), []).append(kernel.name)
    if kernels:
      _log_choice(str(heads.query.aval), self.without_kernel, reasons)
    return None

  def _kernel_spec(self, mask: segments.SegmentMask) -> KernelSpec:
    """Returns what a kernel computes."""
    raise NotImplementedError

  def _kernel_queries(
    self, query: Float[Array, 'B T N H']
  ) -> Float[Array, 'B T N H']:
    """Returns the queries with all scales of the logits."""
    raise NotImplementedError

  def _unsupported_by_kernels(self) -> dict[str, bool]:
    """Returns the options that kernels lack, and whether they are used."""
    raise NotImplementedError

  def _kernel_conflicts(self, mask: Mask) -> dict[str, bool]:
    """Returns the options of a variant that exclude kernels, likewise."""
    del mask
    return {}


def _knows_kernels(cls: type, base: type) -> bool:
  """Whether a class or a base says that kernels compute the steps of `base`."""
  heirs = (c for c in cls.__mro__ if issubclass(c, base))
  said = (vars(c)['has_kernel'] for c in heirs if 'has_kernel' in vars(c))
  return next(said, False)


def may_use_kernel(implementation: str, length: int) -> bool:
  """Whether sequences of a length may attend by a kernel here."""
  return bool(_candidates(implementation, length))


def _candidates(implementation: str, length: int) -> list[Kernel]:
  """Returns the kernels of an implementation on this platform, best first."""
  if implementation != AUTO:
    return [k for k in _KERNELS.values() if k.name == implementation]
  platform = py_utils.target_platform()
  kernels = (k for k in _KERNELS.values() if k.platform == platform)
  return [k for k in kernels if k.is_fast(length)]


def _reason_against(
  kernel: Kernel,
  heads: Heads,
  spec: KernelSpec | None,
  unsupported: Mapping[str, bool],
) -> str | None:
  """Returns why a kernel cannot attend, or None.

  Args:
    kernel: the kernel.
    heads: its queries, keys and values.
    spec: None for a mask that is an array, which no kernel supports.
    unsupported: options that no kernel supports, and whether they are used.
  """
  names = [name for name, is_used in unsupported.items() if is_used]
  if spec is None:
    names.append('a mask that is an array')
  platform = py_utils.target_platform()
  if platform not in (kernel.platform, 'cpu'):
    names.append(f'the platform {platform}')
  if spec is None or names:
    return ' and '.join(names)
  mesh = jax.sharding.get_abstract_mesh()
  return kernel.reason_against(heads, spec, mesh)


def _log_choice(
  query: str, choice: str, reasons: Mapping[str, Sequence[str]]
) -> None:
  """Logs a choice once.

  Args:
    query: dtype and shape.
    choice: what computes the attention.
    reasons: the names of the kernels that do not, by what they lack.
  """
  lacks = (
    f'{" and ".join(names)} {"do" if len(names) > 1 else "does"} not support '
    + reason
    for reason, names in reasons.items()
  )
  _log_once(f'Attention of {query}: {", ".join([choice, *lacks])}.')


@functools.cache
def _log_once(message: str) -> None:
  logging.info('%s', message)
