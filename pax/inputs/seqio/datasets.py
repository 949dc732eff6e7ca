# SPDX-License-Identifier: Apache-2.0
"""tf.data datasets of rows: ids of examples, padding, targets of metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pax.inputs.seqio import tasks
from praxis import py_utils

NestedMap = py_utils.NestedMap
# A tf.data.Dataset; its elements, tensors by name.
Dataset = Any
Element = dict[str, Any]

# The shard of the data of one host: its index, and the number of shards.
Shard = tuple[int, int]
# Id of rows that are not evaluated.
_NO_ID = -1


def add_ids(dataset: Dataset, shard: Shard | None) -> Dataset:
  """Returns the dataset with the id of each element, three integers.

  An id is unique in a split: the index of the shard, the number of shards, and
  the index within the shard.

  Args:
    dataset: The elements of a shard, in order.
    shard: The shard; None for elements without id, which get -1.
  """
  if shard is None:
    return dataset.map(lambda x: _with_id(x, _NO_ID, _NO_ID, _NO_ID))
  index, num_shards = shard
  return dataset.enumerate().map(lambda i, x: _with_id(x, index, num_shards, i))


def _with_id(element: Element, shard: int, num_shards: int, index: Any) -> Any:
  tf = tasks.load_tensorflow()
  element = element.copy()
  element[py_utils.SHARD_INDEX_KEY] = tf.cast(shard, tf.int32)
  element[py_utils.NUM_SHARDS_KEY] = tf.cast(num_shards, tf.int32)
  element[py_utils.INDEX_WITHIN_SHARD_KEY] = tf.cast(index, tf.int64)
  return element


def add_sample_weights(dataset: Dataset) -> Dataset:
  """Returns the dataset of NestedMaps with `eval_sample_weights` of 1."""

  def add(element: Element) -> NestedMap:
    return NestedMap(_as_nested_map(element), eval_sample_weights=1.0)

  return dataset.map(add)


def padding_rows(dataset: Dataset, annotate_padding_fields: bool) -> Dataset:
  """Returns the dataset as rows that pad a batch.

  Args:
    dataset: Rows, whose values remain.
    annotate_padding_fields: Whether `weights` are 0 and `paddings` 1.
  """

  def pad(element: Element) -> NestedMap:
    row = _with_id(_as_nested_map(element), _NO_ID, _NO_ID, _NO_ID)
    row.eval_sample_weights = 0.0
    if annotate_padding_fields and 'weights' in row:
      row.weights *= 0
      if 'paddings' in row:
        row.paddings = 1 - row.weights
    return row

  return dataset.map(pad)


def _as_nested_map(element: Element) -> NestedMap:
  if isinstance(element, NestedMap):
    return element
  return NestedMap.FromNestedDict(element)


def take_and_end(dataset: Dataset, count: int) -> Dataset:
  """Returns the first elements of a longer dataset.

  Unlike `take` it reads one more, so that a cache that ends before knows its
  end; tf.data discards a cache that was not read to the end.
  """
  numbered = dataset.enumerate().take_while(lambda i, _: i < count)
  return numbered.map(lambda _, x: x)


def without_autotuning(dataset: Dataset) -> Dataset:
  """Returns the dataset without the thread that adjusts its parallelism.

  A deleted iterator waits for that thread, which may miss the cancellation and
  sleep to the end of its period, up to 60 s: in TensorFlow 2.21 callbacks of a
  CancellationManager run before it is cancelled.
  """
  options = tasks.load_tensorflow().data.Options()
  options.autotune.enabled = False
  return dataset.with_options(options)


def num_elements(dataset: Dataset) -> int:
  """Returns the number of elements, after reading all of them."""
  tf = tasks.load_tensorflow()
  zero = tf.constant(0, tf.int64)
  return int(dataset.reduce(zero, lambda count, _: count + 1))


class Targets(NamedTuple):
  """The examples of all hosts before conversion, with their ids."""

  # Without ragged features, and with them.
  dataset: Dataset
  unfiltered: Dataset
  ragged_keys: list[str]
  other_keys: list[str]
  # Number of examples; 0 if they repeat.
  num_examples: int


def split_ragged(dataset: Dataset, num_examples: int) -> Targets:
  """Returns the targets of a dataset of examples with ids.

  Args:
    dataset: The examples.
    num_examples: Number of examples; 0 if they repeat.
  """
  ragged_type = tasks.load_tensorflow().RaggedTensorSpec
  ragged: list[str] = []
  others: list[str] = []
  for key, spec in dataset.element_spec.items():
    (ragged if isinstance(spec, ragged_type) else others).append(key)
  filtered = dataset.map(lambda x: {key: x[key] for key in others})
  return Targets(filtered, dataset, ragged, others, num_examples)


def interleaved_shards(
  read_shard: Callable[[Shard], Dataset], num_shards: int, repeats: bool
) -> tuple[Dataset, int]:
  """Returns the examples of all shards with ids, one of each shard in turn.

  Args:
    read_shard: Returns the examples of a shard.
    num_shards: Number of shards.
    repeats: Whether the examples repeat indefinitely.

  Returns:
    The dataset, and its number of examples, 0 if they repeat.
  """
  tf = tasks.load_tensorflow()
  shards: list[Dataset] = []
  sizes: Sequence[int] = []
  for index in range(num_shards):
    shard = (index, num_shards)
    dataset = read_shard(shard)
    if not repeats:
      sizes = [*sizes, num_elements(dataset)]
    shards.append(add_ids(dataset.repeat(-1 if repeats else 1), shard))
  rounds = -1 if repeats else max(sizes)
  choices = tf.data.Dataset.range(num_shards).repeat(rounds)
  # Shards of files have different sizes, the first perhaps the smallest.
  dataset = tf.data.Dataset.choose_from_datasets(
    shards, choices, stop_on_empty_dataset=False
  )
  return dataset, sum(sizes)
