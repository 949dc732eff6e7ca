# SPDX-License-Identifier: Apache-2.0
"""Token samplers, filters of logits, alignment and other decoding functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from praxis import decoder_utils, py_utils, sample_decode, token_samplers
from tests.compare.upstream import cases
from tests.compare.upstream.cases import floats, function, integers

_V = 7
_LOGITS = floats(4, _V, scale=2.0)
_IDS = np.asarray([[3, 2, 5, 0], [4, 0, 0, 0], [2, 6, 3, 4]], np.int32)
_LENGTHS = np.asarray([3, 1, 4], np.int32)


_KEY = np.asarray(jax.random.PRNGKey(3))
_KEYS = np.asarray(jax.random.split(jax.random.PRNGKey(5), 4))
_COLUMN = np.asarray([[0.2], [0.5], [1.0], [2.0]], np.float32)
_TOP_P = np.asarray([[0.2], [0.5], [0.9], [0.7]], np.float32)
_TOP_K = np.asarray([1, 2, 3, 9], np.int32)

_CALLS = [
  ('defaults', (1.0, 3), {}),
  ('top_k 0', (1.0, 0), {}),
  ('top_p', (1.0, 4, 0.6), {}),
  ('top_p 1', (1.0, 4, 1.0), {}),
  ('top_p by row', (1.0, 4, _TOP_P), {}),
  ('per_example_top_k', (1.0, 4), {'per_example_top_k': _TOP_K}),
  ('global_normalize', (1.0, 4, 0.6), {'global_normalize': True}),
  (
    'global_normalize, top_p by row',
    (1.0, 4, _TOP_P),
    {'global_normalize': True},
  ),
  ('temperature', (0.5, 4), {}),
  ('temperature 0', (0.0, 4), {}),
  ('temperature None', (None, 4), {}),
  ('temperature by row', (_COLUMN, 4), {}),
  ('approximate', (1.0, 4), {'top_k_recall_target': 0.9}),
]
_SAMPLERS = [
  ('defaults', {}, {}),
  ('all', {'top_k': 0}, {}),
  ('greedy', {'top_k': 1}, {}),
  ('greedy, epsilon', {'top_k': 1, 'epsilon_p': 0.1}, {}),
  ('temperature 0', {'top_k': 0}, {'temperature': 0.0}),
  ('temperature by row', {'top_k': 0}, {'temperature': _COLUMN}),
  ('top_p', {'top_k': 0, 'top_p': 0.5}, {}),
  ('top_k, top_p', {'top_k': 4, 'top_p': 0.5}, {}),
  (
    'global_normalize',
    {'top_k': 4, 'top_p': 0.5, 'global_normalize': True},
    {},
  ),
  (
    'global_normalize without top_k',
    {'top_k': 0, 'top_p': 0.5, 'global_normalize': True},
    {},
  ),
  ('epsilon', {'top_k': 4, 'epsilon_p': 0.1}, {}),
  ('logprobs', {'top_k': 4, 'use_top_k_for_logprobs': True}, {}),
  ('per_example_top_p', {'top_k': 4}, {'per_example_top_p': _TOP_P}),
  ('per_example_top_p, all', {'top_k': 0}, {'per_example_top_p': _TOP_P}),
  ('per_example_top_k', {'top_k': 4}, {'per_example_top_k': _TOP_K}),
  ('keys', {'top_k': 4}, {'gumbel_prng_key': _KEYS}),
  (
    'dummy keys',
    {'top_k': 4},
    {'gumbel_prng_key': np.full((4, 2), 15753, np.uint32)},
  ),
]


class _Keys:
  """A model that has keys only."""

  def next_prng_key(self) -> Any:
    return jax.random.PRNGKey(11)


def _sampler(
  fields: dict[str, Any], temperature: Any = 1.0, **per_example: Any
) -> Any:
  sampler = token_samplers.DefaultNextTokenSampler(**fields)
  return sampler(
    _Keys(),
    jnp.asarray(_LOGITS),
    jnp.asarray(temperature)
    if isinstance(temperature, np.ndarray)
    else temperature,
    py_utils.NestedMap(),
    **{k: jnp.asarray(v) for k, v in per_example.items()},
  )


def _samplers() -> Iterator[cases.Case]:
  sample = token_samplers.sample_from_top_k_and_top_p
  for name, args, kwargs in _CALLS:
    for label, rng in {'key': _KEY, 'keys': _KEYS}.items():
      yield function(
        f'sample_from_top_k_and_top_p, {name}, {label}',
        lambda *args, **kwargs: list(sample(*args, **kwargs)),
        _LOGITS,
        rng,
        *args,
        **kwargs,
      )
  order = np.argsort(-_LOGITS)[:, :4].astype(np.int32)
  top = np.take_along_axis(_LOGITS, order, 1)
  for name, values, ids, options in [
    ('sorted', top, order, {}),
    ('unsorted', top[:, ::-1], order[:, ::-1], {'topk_is_sorted': False}),
    ('sum', np.abs(top), order, {'logits_sum': np.full((4, 1), 9.0)}),
  ]:
    yield function(
      f'sample_from_top_p_given_top_k, {name}',
      lambda *args, **kwargs: list(
        token_samplers.sample_from_top_p_given_top_k(*args, **kwargs)
      ),
      values.copy(),
      ids.copy(),
      _KEY,
      1.0,
      0.6,
      **options,
    )
  for name, fields, options in _SAMPLERS:
    fields = {'top_k': 5} | fields
    yield function(
      f'DefaultNextTokenSampler, {name}', _sampler, fields, **options
    )
  yield from _filters()


def _filters() -> Iterator[cases.Case]:
  for name, args in {
    '0': (0, None),
    '3': (3, None),
    'by row': (4, _TOP_K),
    'approximate': (3, None, 0.9),
  }.items():
    yield function(
      f'get_top_k, {name}',
      lambda *args: list(token_samplers.get_top_k(*args)),
      _LOGITS,
      *args,
    )
  ordered = -np.sort(-_LOGITS, axis=-1)
  # The sums of these are exact.
  exact = np.asarray([[5.0, 3, 2], [6, 2, 2]], np.float32)
  total = np.full((2, 1), 10.0, np.float32)
  for name, args in {
    'p': (_LOGITS, 0.5),
    'p 1': (_LOGITS, 1.0),
    'p by row': (_LOGITS, _TOP_P),
    'sorted': (ordered, 0.5, True),
    'sorted, p by row': (ordered, _TOP_P, True),
    'sum': (exact, 0.5, False, total),
    'sorted, sum': (exact, 0.5, True, total),
  }.items():
    yield function(
      f'top_p_mask_logits, {name}', token_samplers.top_p_mask_logits, *args
    )
  for epsilon in (0.0, 0.05, 0.2):
    yield function(
      f'epsilon_mask_logits, {epsilon}',
      token_samplers.epsilon_mask_logits,
      _LOGITS,
      epsilon,
    )


def _alignment() -> Iterator[cases.Case]:
  x, lengths = floats(3, 6), np.asarray([2, 0, 4], np.int32)
  for align_dim in (1, 2):
    yield function(
      f'right_align_tensors, {align_dim}',
      decoder_utils.right_align_tensors,
      floats(3, 6, 6),
      lengths,
      align_dim,
    )
  for pad_value in (0.0, 1.0):
    yield function(
      f'left_align_tensor, {pad_value}',
      decoder_utils.left_align_tensor,
      x,
      lengths,
      4,
      pad_value,
    )
  for rest in ((5,), (2, 5)):
    yield function(
      f'left_align_kv_cache, {len(rest)}',
      decoder_utils.left_align_kv_cache,
      floats(3, 6, *rest),
      lengths,
      4,
      batch_size=3,
    )
  yield function(
    'concat_suffix_and_left_align',
    decoder_utils.concat_suffix_and_left_align,
    integers(4, 8, high=9),
    integers(12, 2, high=9, seed=1),
    np.asarray([5, 6, 7, 8], np.int32),
    np.asarray([1, 1, 3, 3], np.int32),
    4,
    2,
    3,
    0,
  )
  yield function(
    'right_align_prefix_ids',
    sample_decode.right_align_prefix_ids,
    _IDS,
    _LENGTHS,
    jnp.float32,
  )
  yield function(
    'right_align_segment_position',
    sample_decode.right_align_segment_position,
    _LENGTHS,
    5,
  )


def _state_transforms() -> Iterator[cases.Case]:
  x, lengths = floats(3, 6), np.asarray([2, 0, 4], np.int32)
  for name, transform in {
    'pad_state_fn': decoder_utils.pad_state_fn(2),
    'slice_state_fn': decoder_utils.slice_state_fn(0, -1),
    'slice_state_fn from the end': decoder_utils.slice_state_fn(-3, -1),
    'batch_broadcast_state_fn': decoder_utils.batch_broadcast_state_fn(2),
    'right_align_state_fn': decoder_utils.right_align_state_fn(
      jnp.asarray(lengths)
    ),
  }.items():
    for time_dim in (-1, 1):
      batch_dim = -1 if time_dim < 0 else 0
      yield function(f'{name}, {time_dim}', transform, x, batch_dim, time_dim)


def _beam_helpers() -> Iterator[cases.Case]:
  for alpha in (0.0, 0.8, 2.0):
    yield function(
      f'length_norm, {alpha}',
      decoder_utils.length_norm,
      np.arange(6, dtype=np.int32),
      alpha,
    )
  yield function(
    'gather_output_id',
    decoder_utils.gather_output_id,
    integers(2, 9, high=20),
    integers(2, 3, high=9),
  )
  yield function(
    'gather_logprobs',
    decoder_utils.gather_logprobs,
    floats(2, 3, _V),
    integers(2, 3, high=3),
    integers(2, 3, high=_V),
  )
  for terminal_ids in ([], [1], [1, 4]):
    for tokens_per_beam in (None, 2, 5):
      yield function(
        f'two_stage_topk, {terminal_ids}, {tokens_per_beam}',
        decoder_utils.two_stage_topk,
        floats(2, 3, _V),
        floats(2, 3, seed=1),
        terminal_ids,
        tokens_per_beam,
      )


def _stop_sequences() -> Iterator[cases.Case]:
  sequences = np.asarray([[3, 4, 5, 0], [3, 4, 5, 4], [4, 2, 6, 7]], np.int32)
  stops = np.asarray([[[3, 4, 5], [0, 2, 6]]] * 3, np.int32)
  for step in (0, 2, 3):
    yield function(
      f'end_with_sequences, {step}',
      decoder_utils.end_with_sequences,
      stops[:, 0],
      sequences,
      step,
    )
  yield function(
    'end_with_any_sequence_any_position',
    decoder_utils.end_with_any_sequence_any_position,
    stops,
    sequences,
    np.tile(np.arange(4, dtype=np.int32), (3, 1)),
  )
  yield function(
    'find_first_new_stop_seq_match',
    decoder_utils.find_first_new_stop_seq_match,
    np.asarray([2, 0, 2], np.int32),
    2,
    stops,
    sequences,
  )
  for eos_ids in (4, [4], [4, 5, 6]):
    yield function(
      f'has_any_eos, {eos_ids}', decoder_utils.has_any_eos, sequences, eos_ids
    )


def _results() -> Iterator[cases.Case]:
  yield function(
    'collect_results_to_optimize_eos',
    lambda: decoder_utils.collect_results_to_optimize_eos(
      py_utils.NestedMap(
        start_step=-1,
        output_ids=jnp.asarray(integers(3, 5, high=9)),
        logprobs=-jnp.abs(jnp.asarray(floats(3, 5))),
        eos_ids=jnp.asarray(integers(3, 5, high=9, seed=1)),
        eos_logprobs=-jnp.abs(jnp.asarray(floats(3, 5, seed=1))),
        done=jnp.zeros(3, bool),
        has_eos=jnp.zeros(3, bool),
      )
    ),
  )
  yield function(
    'reorder_with_indices',
    sample_decode.reorder_with_indices,
    floats(2, 3, 4),
    integers(2, 3, high=3),
  )
  logprobs = np.where(floats(2, 3, 5) > 0.5, 1.0, -np.abs(floats(2, 3, 5)))
  for recall in (0.85, 1.0):
    yield function(
      f'sort_samples_by_scores, {recall}',
      lambda logprobs, recall: sample_decode.sort_samples_by_scores(
        py_utils.NestedMap(
          logprobs=logprobs, output_ids=jnp.asarray(integers(2, 3, 5, high=9))
        ),
        recall,
      ),
      logprobs.astype(np.float32),
      recall,
    )
  for batch_dim in (0, 1):
    yield function(
      f'split_batch_dim, {batch_dim}',
      sample_decode.split_batch_dim,
      floats(6, 4),
      batch_dim,
      2,
    )


def _masks() -> Iterator[cases.Case]:
  for dtype in ('float32', 'bfloat16', 'int32'):
    yield function(
      f'get_large_negative_number, {dtype}',
      lambda dtype: py_utils.get_large_negative_number(jnp.dtype(dtype)),
      dtype,
    )
  yield function('sequence_mask', py_utils.sequence_mask, _LENGTHS, 5)
  yield function('sequence_paddings', py_utils.sequence_paddings, _LENGTHS, 5)


def family() -> Iterator[cases.Case]:
  yield from _samplers()
  yield from _alignment()
  yield from _state_transforms()
  yield from _beam_helpers()
  yield from _stop_sequences()
  yield from _results()
  yield from _masks()
