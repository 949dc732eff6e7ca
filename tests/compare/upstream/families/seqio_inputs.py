# SPDX-License-Identifier: Apache-2.0
"""Feature converters and batches of SeqIO tasks.

Our interpreter needs the extra `seqio`, too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from paxml import seqio_input
from praxis import pax_fiddle
from tests.compare.upstream import cases

_NUM_EXAMPLES = 23
_RANDOM = np.random.default_rng(0)
_TASK, _PAIRS, _MIXTURE = 'counted', 'pairs', 'both'
_LENGTHS = {
  _TASK: {'targets': 9},
  _PAIRS: {'inputs': 8, 'targets': 6},
  _MIXTURE: {'inputs': 8, 'targets': 6},
}


def _tokens(low: int = 2) -> list[list[int]]:
  sizes = _RANDOM.integers(1, 7, size=_NUM_EXAMPLES)
  return [_RANDOM.integers(low, 50, size=size).tolist() for size in sizes]


_INPUTS, _TARGETS, _SUFFIXES = _tokens(), _tokens(), _tokens()
_NEGATIVE = [[-x if x % 3 else x for x in row] for row in _TARGETS]


def _dataset(**features: Sequence[Sequence[int]]) -> tf.data.Dataset:
  ragged = {k: tf.ragged.constant(x, tf.int32) for k, x in features.items()}
  dataset = tf.data.Dataset.from_tensor_slices(ragged)
  to_tensor = lambda x: tf.convert_to_tensor(x)
  return dataset.map(lambda x: {k: to_tensor(v) for k, v in x.items()})


def _counted(split: str, shuffle_files: bool, seed: Any = None) -> Any:
  del split, shuffle_files, seed
  return _dataset(targets=_NEGATIVE)


def _pairs(split: str, shuffle_files: bool, seed: Any = None) -> Any:
  del split, shuffle_files, seed
  return _dataset(inputs=_INPUTS, targets=_TARGETS)


@functools.cache
def _add_tasks() -> None:
  vocabulary = seqio.PassThroughVocabulary(60)
  for name, read, names in (
    (_TASK, _counted, ['targets']),
    (_PAIRS, _pairs, ['inputs', 'targets']),
  ):
    seqio.TaskRegistry.add(
      name,
      source=seqio.FunctionDataSource(read, splits=['train', 'validation']),
      preprocessors=[],
      output_features={
        n: seqio.Feature(vocabulary, add_eos=False) for n in names
      },
      metric_fns=[],
    )
  seqio.MixtureRegistry.add(_MIXTURE, [_PAIRS], default_rate=1.0)


def _rows(
  converter: str,
  features: Mapping[str, Sequence[Sequence[int]]],
  lengths: Mapping[str, int],
  **fields: Any,
) -> Any:
  made = getattr(seqio_input, converter)(**fields)
  rows = made(_dataset(**features), lengths)
  return list(rows.as_numpy_iterator())


def _language_models() -> Iterator[cases.Case]:
  data = {
    'targets': ({'targets': _NEGATIVE}, {'targets': 9}),
    'prefix': (
      {'inputs': _INPUTS, 'targets': _NEGATIVE},
      {'inputs': 7, 'targets': 7},
    ),
  }
  settings = [
    {'bos_id': 3},
    {'weights_on_targets_only': True},
    {'weights_on_targets_only': False},
    {'reverse_bos_padding': True, 'eos_id': 2},
  ]
  for (name, (features, lengths)), pack, fields in itertools.product(
    data.items(), (False, True), settings
  ):
    yield cases.FunctionCase(
      name=f'LanguageModelFeatures, {name}, {pack}, {fields}',
      function=functools.partial(
        _rows, 'LanguageModelFeatures', features, lengths, pack=pack, **fields
      ),
    )
  for pack, has_suffix in itertools.product((False, True), (False, True)):
    features = {'inputs': _INPUTS, 'targets': _TARGETS, 'suffixes': _SUFFIXES}
    yield cases.FunctionCase(
      name=f'LanguageModelFeatures, suffixes, {pack}, {has_suffix}',
      function=functools.partial(
        _rows,
        'LanguageModelFeatures',
        features,
        dict.fromkeys(features, 7),
        pack=pack,
        target_has_suffix=has_suffix,
      ),
    )


def _pairs_of_sequences() -> Iterator[cases.Case]:
  pairs = {'inputs': _INPUTS, 'targets': _TARGETS}
  for pack, bos_id in itertools.product((False, True), (0, 4)):
    yield cases.FunctionCase(
      name=f'SequenceModelFeatures, {pack}, {bos_id}',
      function=functools.partial(
        _rows,
        'SequenceModelFeatures',
        pairs,
        {'inputs': 12, 'targets': 10},
        pack=pack,
        bos_id=bos_id,
      ),
    )
  for names in (['task_ids'], ['src_task_ids', 'tgt_task_ids']):
    ids = {n: [[i] for i in range(_NUM_EXAMPLES)] for n in names}
    yield cases.FunctionCase(
      name=f'SequenceModelFeaturesWithTaskInfo, {names}',
      function=functools.partial(
        _rows,
        'SequenceModelFeaturesWithTaskInfo',
        pairs | ids,
        {'inputs': 7, 'targets': 7} | dict.fromkeys(names, 1),
      ),
    )


def _prepared_examples() -> Iterator[cases.Case]:
  fixed = {
    name: cases.integers(5, 4, high=9, seed=i).tolist()
    for i, name in enumerate(
      f'{side}_{name}'
      for side in ('encoder', 'decoder')
      for name in (
        'input_tokens',
        'target_tokens',
        'loss_weights',
        'segment_ids',
        'positions',
      )
    )
  }
  for name in ('PackedLanguageModelFeatures', 'PackedSequenceModelFeatures'):
    yield cases.FunctionCase(
      name=name, function=functools.partial(_rows, name, fixed, {})
    )
  provenance = {'a/b': [[1]], 'provenance/c': [[2]]}
  for name in ('RemoveProvenance', 'UnflattenAndRemoveProvenance'):
    yield cases.FunctionCase(
      name=name, function=functools.partial(_rows, name, provenance, {})
    )


def _source(task: str, pack: bool, **fields: Any) -> Any:
  _add_tasks()
  cfg = pax_fiddle.Config(
    seqio_input.SeqIOInput,
    mixture_name=task,
    task_feature_lengths=_LENGTHS[task],
    feature_converter=seqio_input.LanguageModelFeatures(pack=pack),
    batch_size=4,
  )
  defaults = {
    'split_name': 'train' if fields.get('is_training') else 'validation',
    'num_infeed_hosts': 1,
  }
  for name, value in (defaults | fields).items():
    setattr(cfg, name, value)
  return cfg.Instantiate()


def _batches(task: str, pack: bool, **fields: Any) -> Any:
  source = _source(task, pack, **fields)
  batches = []
  while len(batches) < 20:
    try:
      batches.append(source.get_next())
    except StopIteration:
      break
  return batches


def _inputs() -> Iterator[cases.Case]:
  settings: list[dict[str, Any]] = [
    {'is_training': True, 'input_random_seed': 1},
    {'is_training': True, 'input_random_seed': 2, 'num_batches_to_skip': 3},
    {'is_training': True, 'shuffle': False},
    {
      'is_training': True,
      'input_random_seed': 1,
      'input_checkpointing_enabled': True,
      # TFDS has removed a name that upstream uses for it.
      'experimental_enable_index_shuffle': False,
    },
    {'reset_for_eval': True},
    {'reset_for_eval': True, 'annotate_padding_fields': True},
    {'reset_for_eval': True, 'eval_enable_cache': False},
    {'eval_auto_pad': False},
    {'eval_auto_pad': False, 'drop_remainder': False},
    {'repeat': True},
  ]
  products = [
    itertools.product((_TASK, _PAIRS), (False, True), (1, 2), settings),
    itertools.product((_MIXTURE,), (False,), (2,), settings[:1]),
  ]
  for task, pack, num_hosts, fields in itertools.chain(*products):
    yield cases.FunctionCase(
      name=f'SeqIOInput, {task}, {pack}, {num_hosts}, {fields}',
      function=functools.partial(
        _batches,
        task,
        pack,
        infeed_host_index=num_hosts - 1,
        num_infeed_hosts=num_hosts,
        **fields,
      ),
    )
  for fields in (
    {'deterministic_input': True},
    {'repeat': True, 'eval_loop_num_batches': None},
    {'mixture_name': 'unknown'},
  ):
    yield cases.FunctionCase(
      name=f'SeqIOInput refuses {fields}',
      function=functools.partial(_batches, _TASK, False, **fields),
      match='',
    )


def family() -> Iterator[cases.Case]:
  yield from _language_models()
  yield from _pairs_of_sequences()
  yield from _prepared_examples()
  yield from _inputs()
