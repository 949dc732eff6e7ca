# SPDX-License-Identifier: Apache-2.0
"""Targets of a SeqIO task, which its metrics compare outputs with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from praxis import py_utils, pytypes

NestedMap = pytypes.NestedMap


class InputWithTargets(Protocol):
  """An input with iterators over the examples of all hosts."""

  batch_size: int
  ds_ragged_tensor_keys: Sequence[str]
  eval_auto_pad: bool
  eval_loop_num_batches: int | None
  eval_metrics_filter_targets_fields: Sequence[str] | None
  eval_num_examples: int | None
  is_targets_init: bool
  num_infeed_hosts: int
  reset_for_eval: bool
  should_repeat: bool
  targets_iter: Iterator[Mapping[str, Any]]
  targets_iter_ori: Iterator[Mapping[str, Any]]

  def init_targets(self) -> None:
    """Makes the iterators and sets `is_targets_init`."""
    ...

  def init_targets_iter(self) -> None:
    """Makes the iterators again, at the first example."""
    ...


class TargetReader:
  """Reads the examples of each evaluation of an input, those of all hosts.

  With `reset_for_eval` an evaluation is one epoch, which is read once.
  Otherwise the next evaluation continues where the last one ended.
  """

  def __init__(self, inp: InputWithTargets):
    """Reads nothing yet."""
    self._inp = inp
    self._epoch: dict[str, NestedMap] | None = None

  def read(self) -> dict[str, NestedMap]:
    """Returns the examples of the next evaluation by enumeration id."""
    if self._epoch is not None:
      return self._epoch
    if not self._inp.is_targets_init:
      self._inp.init_targets()
    elif self._inp.reset_for_eval:
      self._inp.init_targets_iter()
    examples = dict(self._iterate(self._limit()))
    if self._inp.reset_for_eval:
      self._epoch = examples
    return examples

  def _limit(self) -> int | None:
    """Returns the number of examples of an evaluation; None is all."""
    num_batches = self._inp.eval_loop_num_batches
    if self._inp.reset_for_eval or not num_batches or num_batches < 0:
      return None
    return num_batches * self._inp.batch_size * self._inp.num_infeed_hosts

  def _iterate(self, limit: int | None) -> Iterator[tuple[str, NestedMap]]:
    """Yields (id, example) of the next examples.

    Args:
      limit: Number of examples; None is all.
    """
    num_read = 0
    while limit is None or num_read < limit:
      try:
        example = NestedMap(next(self._inp.targets_iter))
      except StopIteration:
        if not self._inp.reset_for_eval:
          self._inp.init_targets_iter()
        return
      ragged = self._next_ragged()
      num_read += 1
      is_evaluated = self._is_evaluated(example)
      example_id = py_utils.get_enumeration_id(example, pop=True)
      if is_evaluated and example_id is not None:
        yield example_id, NestedMap(self._filtered(example), **ragged)

  def _next_ragged(self) -> dict[str, np.ndarray]:
    """Returns the ragged features of an example, [1, number of values]."""
    if not self._inp.ds_ragged_tensor_keys:
      return {}
    example = next(self._inp.targets_iter_ori)
    return {
      key: example[key].flat_values.numpy()[np.newaxis]
      for key in self._inp.ds_ragged_tensor_keys
    }

  def _is_evaluated(self, example: NestedMap) -> bool:
    """Returns whether the model gets an example: `eval_num_examples`."""
    inp = self._inp
    is_epoch = inp.reset_for_eval and not inp.should_repeat
    if not (inp.eval_num_examples and inp.eval_auto_pad and is_epoch):
      return True
    index = int(example[py_utils.INDEX_WITHIN_SHARD_KEY])
    return index < inp.eval_num_examples

  def _filtered(self, example: NestedMap) -> NestedMap:
    """Returns the features that metrics read."""
    fields = self._inp.eval_metrics_filter_targets_fields
    if fields is None:
      return example
    return NestedMap({k: v for k, v in example.items() if k in fields})
