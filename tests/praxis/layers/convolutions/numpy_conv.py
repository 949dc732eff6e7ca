# SPDX-License-Identifier: Apache-2.0
"""Reference convolution: loops in numpy."""

from __future__ import annotations

import itertools

import numpy as np


def convolve(x, w, stride, dilation, pads, groups=1):
  """Returns the grouped convolution, computed one output at a time."""
  rank = len(stride)
  x = np.pad(np.asarray(x, np.float64), [(0, 0), *pads, (0, 0)])
  w = np.asarray(w, np.float64)
  reach = [d * (k - 1) + 1 for k, d in zip(w.shape, dilation, strict=False)]
  sizes = [
    (n - r) // s + 1
    for n, r, s in zip(x.shape[1:-1], reach, stride, strict=True)
  ]
  out = np.zeros((len(x), *sizes, w.shape[-1]))
  in_channels, out_channels = w.shape[-2], w.shape[-1] // groups
  for at in itertools.product(*map(range, sizes)):
    for tap in itertools.product(*map(range, w.shape[:rank])):
      where = np.multiply(at, stride) + np.multiply(tap, dilation)
      frame = x[(slice(None), *where)]
      for g in range(groups):
        out[
          (slice(None), *at, slice(g * out_channels, (g + 1) * out_channels))
        ] += (
          frame[:, g * in_channels : (g + 1) * in_channels]
          @ w[
            (*tap, slice(None), slice(g * out_channels, (g + 1) * out_channels))
          ]
        )
  return out


def same_padding(sizes, dilations=None):
  """Returns the default 'SAME' padding, which ignores the stride."""
  dilations = dilations or [1] * len(sizes)
  total = [d * (k - 1) for k, d in zip(sizes, dilations, strict=True)]
  return [(t // 2, t - t // 2) for t in total]
