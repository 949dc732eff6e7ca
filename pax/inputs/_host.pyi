# SPDX-License-Identifier: Apache-2.0
"""The C++ extension built from csrc/host."""

import numpy as np

def pack(
  lengths: np.ndarray, seq_len: int, fit: str, block_size: int
) -> tuple[np.ndarray, ...]: ...
def permute(indices: np.ndarray, size: int, seed: int) -> np.ndarray: ...
def write_row(
  tokens: np.ndarray,
  starts: np.ndarray,
  pieces: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
  row: tuple[np.ndarray, ...],
) -> None: ...
