# SPDX-License-Identifier: Apache-2.0
"""The C++ extension built from csrc/host."""

import numpy as np

def pack(
  lengths: np.ndarray, seq_len: int, fit: str, block_size: int
) -> tuple[np.ndarray, ...]: ...
def permute(indices: np.ndarray, size: int, seed: int) -> np.ndarray: ...
def write_rows(
  tokens: np.ndarray,
  starts: np.ndarray,
  plan: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
  rows: np.ndarray,
  places: np.ndarray,
  batch: tuple[np.ndarray, ...],
) -> None: ...
