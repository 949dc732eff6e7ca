# SPDX-License-Identifier: Apache-2.0
"""A convolution as loops in numpy."""

from __future__ import annotations

import itertools

import numpy as np


def convolve(x, w, stride, dilation, pads, groups=1):
  """Sums filter taps times inputs, one output at a time."""
  rank = len(stride)
  x = np.pad(np.asarray(x, np.float64), [(0, 0), *pads, (0, 0)])
  w = np.asarray(w, np.float64)
  reach = [d * (k - 1) + 1 for k, d in zip(w.shape, dilation, strict=False)]
  sizes = [
    (n - r) // s + 1
    for n, r, s in zip(x.shape[1:-1], reach, stride, strict=True)
  ]
  out = np.zeros((len(x), *sizes, w.shape[-1]))
  taken, made = w.shape[-2], w.shape[-1] // groups
  for at in itertools.product(*map(range, sizes)):
    for tap in itertools.product(*map(range, w.shape[:rank])):
      where = np.multiply(at, stride) + np.multiply(tap, dilation)
      frame = x[(slice(None), *where)]
      for g in range(groups):
        out[(slice(None), *at, slice(g * made, (g + 1) * made))] += (
          frame[:, g * taken : (g + 1) * taken]
          @ w[(*tap, slice(None), slice(g * made, (g + 1) * made))]
        )
  return out


def same_padding(sizes, dilations=None):
  """Pads as Pax does by default: whatever the stride, an odd zero after."""
  dilations = dilations or [1] * len(sizes)
  total = [d * (k - 1) for k, d in zip(sizes, dilations, strict=True)]
  return [(t // 2, t - t // 2) for t in total]
