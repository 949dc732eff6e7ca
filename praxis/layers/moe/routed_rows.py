# SPDX-License-Identifier: Apache-2.0
"""The share of rows that experts multiply, in the names of their products.

A device multiplies buffers that have space for more rows than balanced experts
have. Grouped products skip the other rows at run time, so that their shapes do
not show their cost. What runs only if experts are not balanced
has the share 0.
"""

from __future__ import annotations

import contextlib
import fractions
import re

import jax

_SHARE = re.compile(r'routed_rows_(\d+)_of_(\d+)')


def scope(share: fractions.Fraction) -> contextlib.AbstractContextManager[None]:
  """Names products after the share of their rows that balanced experts have."""
  return jax.named_scope(
    f'routed_rows_{share.numerator}_of_{share.denominator}'
  )


def share_of(op_name: str) -> fractions.Fraction:
  """Returns the share in the name of an operation; 1 without one."""
  match = _SHARE.search(op_name)
  if match is None:
    return fractions.Fraction(1)
  return fractions.Fraction(int(match[1]), int(match[2]))
