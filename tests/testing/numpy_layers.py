# SPDX-License-Identifier: Apache-2.0
"""Parts of transformers in numpy, float64: references for tests of layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def softmax(x: np.ndarray) -> np.ndarray:
  """Returns the softmax over the last dimension."""
  exps = np.exp(x - x.max(-1, keepdims=True))
  return exps / exps.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray, weights: Mapping[str, np.ndarray]) -> np.ndarray:
  """Returns layer normalization with Pax's scale of 1 + weight."""
  centered = x - x.mean(-1, keepdims=True)
  deviation = np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
  return centered / deviation * (1 + weights['scale']) + weights['bias']


def rms_norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
  """Returns x by its root mean square over the last dimension, times scale."""
  return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * scale


def norm_all_heads(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
  """Returns x[B, T, N, H] by the RMS of all heads, times scale[N * H]."""
  mean_square = np.mean(x**2, (-2, -1), keepdims=True)
  return x / np.sqrt(mean_square + 1e-6) * scale.reshape(x.shape[-2:])


def rotate(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
  """Returns RoPE of x[B, T, N, H], halves rotated (arXiv:2104.09864)."""
  half = x.shape[-1] // 2
  angle = np.asarray(positions)[..., None, None] / 10_000 ** (
    np.arange(half) / half
  )
  a, b = x[..., :half], x[..., half:]
  sin, cos = np.sin(angle), np.cos(angle)
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
