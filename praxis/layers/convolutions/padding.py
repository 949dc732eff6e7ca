# SPDX-License-Identifier: Apache-2.0
"""Zero padding of convolutions."""

from __future__ import annotations

from collections.abc import Sequence


def causal_padding(filter_shape: int, dilation_rate: int) -> int:
  """Returns the left padding of a causal convolution of one dimension."""
  return dilation_rate * (filter_shape - 1)


def window_padding(
  sizes: Sequence[int], dilations: Sequence[int], *, is_causal: bool = False
) -> list[tuple[int, int]]:
  """Returns the 'SAME' padding of stride 1, (low, high) of each dimension.

  An odd total puts the extra zero on the high side. If `is_causal`, all
  padding of the first dimension is on its low side.
  """
  totals = [causal_padding(k, d) for k, d in zip(sizes, dilations, strict=True)]
  pads = [(total // 2, total - total // 2) for total in totals]
  if is_causal:
    pads[0] = (totals[0], 0)
  return pads
