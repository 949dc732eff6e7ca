# SPDX-License-Identifier: Apache-2.0
"""The choice between einsum and a fused kernel for the attention of sequences.

einsum supports everything. splash is a TPU kernel without logits in memory.
auto takes splash on TPUs where it computes the same, and einsum elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
from absl import logging
from jaxtyping import Array

from praxis import py_utils, pytypes
from praxis.layers.attentions import segments, splash

EINSUM = 'einsum'
SPLASH = 'splash'
AUTO = 'auto'
IMPLEMENTATIONS = (AUTO, EINSUM, SPLASH)

# The methods of DotProductAttention that a kernel replaces.
STEPS = frozenset({
  '_attend', '_attend_dense', '_attend_rows', '_cap_logits', '_logits',
  '_logit_transform', '_probs',
})  # fmt: skip


def check_implementation(name: str) -> None:
  """Raises ValueError if `name` is not in IMPLEMENTATIONS."""
  if name not in IMPLEMENTATIONS:
    raise ValueError(
      f'atten_implementation must be one of {IMPLEMENTATIONS}, got {name!r}'
    )


def may_use_kernel(implementation: str) -> bool:
  """Whether attention of this implementation may run a kernel here."""
  is_tpu = py_utils.target_platform() == 'tpu'
  return implementation == SPLASH or (implementation == AUTO and is_tpu)


def uses_splash(
  implementation: str,
  unsupported: Mapping[str, bool],
  heads: splash.Heads,
  mask: Array | segments.SegmentMask,
  split: pytypes.SplitDimsMapping,
) -> bool:
  """Whether attention runs as splash attention; logs each choice once.

  Args:
    implementation: one of IMPLEMENTATIONS.
    unsupported: options that kernels lack, and whether the layer uses them.
    heads: queries, keys and values.
    mask: of the attention.
    split: mesh axes of the dimensions of the queries.

  Raises:
    ValueError: splash is required, and does not support the attention.
  """
  if not may_use_kernel(implementation):
    return False
  names = [name for name, is_used in unsupported.items() if is_used]
  if not isinstance(mask, segments.SegmentMask):
    names.append('a mask that is an array')
  reason = ' and '.join(names) or splash.reason_against(
    heads, split, jax.sharding.get_abstract_mesh()
  )
  if reason and implementation == SPLASH:
    raise ValueError(
      f"atten_implementation='splash' does not support {reason}; set it to "
      "'auto' or 'einsum'"
    )
  _log_choice(EINSUM if reason else SPLASH, reason, str(heads.query.aval))
  return not reason


@functools.cache
def _log_choice(name: str, reason: str | None, query: str) -> None:
  because = f', splash does not support {reason}' if reason else ''
  logging.info('Attention of %s: %s%s.', query, name, because)
