# SPDX-License-Identifier: Apache-2.0
"""How many zeros stand around what is convolved."""

from __future__ import annotations

from collections.abc import Sequence


def causal_padding(filter_shape: int, dilation_rate: int) -> int:
  """Returns how many zeros before the first step hide all later steps."""
  return dilation_rate * (filter_shape - 1)


def window_padding(
  sizes: Sequence[int], dilations: Sequence[int], *, is_causal: bool = False
) -> list[tuple[int, int]]:
  """Returns zeros before and after each dimension, an odd one after.

  They keep the size where nothing is strided, and do not depend on the stride;
  all of the first dimension's stand before it if `is_causal`.
  """
  totals = [causal_padding(k, d) for k, d in zip(sizes, dilations, strict=True)]
  pads = [(total // 2, total - total // 2) for total in totals]
  if is_causal:
    pads[0] = (totals[0], 0)
  return pads
