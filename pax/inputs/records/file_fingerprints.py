# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of files: names, sizes, and samples of the content."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence

# Evenly spaced blocks of the concatenated files that are compared: a constant
# cost for any amount of data.
_NUM_BLOCKS, _BLOCK_BYTES = 256, 1 << 12
_NUM_DIGITS = 12


def describe(paths: Sequence[str]) -> str:
  """Returns a text that changes with names, order, sizes or samples of files.

  Folders do not count, so that data may move. The samples are 1 MiB of all
  files together: a change of a few bytes may pass.
  """
  names = [os.path.basename(path) for path in paths]
  sizes = [os.path.getsize(path) for path in paths]
  content = f'content {_sample_digest(paths, sizes)}'
  if len(paths) == 1:
    return f'{names[0]} of {sizes[0]:,} bytes, {content}'
  listing = '\n'.join(f'{n} {s}' for n, s in zip(names, sizes, strict=True))
  digest = hashlib.sha256(listing.encode()).hexdigest()[:_NUM_DIGITS]
  ends = f' from {names[0]} to {names[-1]}' if names else ''
  return (
    f'{len(paths)} files of {sum(sizes):,} bytes{ends}, names {digest},'
    f' {content}'
  )


def _sample_digest(paths: Sequence[str], sizes: Sequence[int]) -> str:
  """Returns a checksum of evenly spaced blocks."""
  digest = hashlib.sha256()
  starts = [0, *itertools.accumulate(sizes)]
  step = max(_BLOCK_BYTES, -(-starts[-1] // _NUM_BLOCKS))
  position = 0
  for path, start, end in zip(paths, starts[:-1], starts[1:], strict=True):
    if position >= end:
      continue
    with open(path, 'rb', buffering=0) as f:
      while position < end:
        block = os.pread(f.fileno(), _BLOCK_BYTES, position - start)
        digest.update(block)
        # Files that are small together are read whole.
        position += len(block) if step == _BLOCK_BYTES else step
        if not block:
          break  # The file became shorter.
  return digest.hexdigest()[:_NUM_DIGITS]
