# SPDX-License-Identifier: Apache-2.0
"""Token ids of prompts with responses, and their cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Bool, Int

from pax.files import atomic_file
from pax.inputs.tokens import cache

# Changes with the meaning of the files of the cache.
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class ResponseTokens:
  """Token ids of a prompt with a response."""

  ids: Int[np.ndarray, ' T']
  # Whether the model writes the token.
  is_response: Bool[np.ndarray, ' T']

  @property
  def num_labels(self) -> int:
    """Number of tokens after the first."""
    return len(self.ids) - 1

  @property
  def has_labels(self) -> bool:
    """Whether the model writes one of them."""
    return bool(self.is_response[1:].any())


def cached(
  identity: Mapping[str, Any], tokenize: Callable[[], list[ResponseTokens]]
) -> list[ResponseTokens]:
  """Returns the examples of `tokenize`, which is called once for an identity.

  One process of a machine tokenizes, the others wait for it.

  Args:
    identity: What decides the examples, values of JSON.
    tokenize: Returns them.
  """
  text = json.dumps([_VERSION, identity], sort_keys=True)
  digest = hashlib.sha256(text.encode()).hexdigest()[:16]
  path = cache.folder() / f'responses_{digest}.npz'
  with cache.lock(path.with_suffix('.lock')):
    if (examples := _read(path)) is not None:
      return examples
    examples = tokenize()
    _write(path, examples)
  return examples


def _read(path: pathlib.Path) -> list[ResponseTokens] | None:
  """Returns the examples in a file; None if it is missing or damaged."""
  try:
    with path.open('rb') as f, np.load(f) as content:
      ids, is_response = content['ids'], content['is_response']
      ends = np.cumsum(content['lengths'])
  except FileNotFoundError:
    return None
  except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as e:
    logging.warning('%s is damaged, and is written again: %s', path, e)
    return None
  return [
    ResponseTokens(*parts)
    for parts in zip(
      np.split(ids, ends[:-1]), np.split(is_response, ends[:-1]), strict=True
    )
  ]


def _write(path: pathlib.Path, examples: list[ResponseTokens]) -> None:
  if not examples:
    return
  try:
    with atomic_file.open_atomic(path) as f:
      np.savez(
        f,
        ids=np.concatenate([x.ids for x in examples]).astype(np.int32),
        is_response=np.concatenate([x.is_response for x in examples]),
        lengths=np.array([len(x.ids) for x in examples], np.int64),
      )
  except OSError as e:
    logging.warning('Tokenized responses are not cached: %s', e)
