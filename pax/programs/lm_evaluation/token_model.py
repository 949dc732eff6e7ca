# SPDX-License-Identifier: Apache-2.0
"""A language model on its devices that scores and continues token ids."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from pax import partitioning, steps, train_states
from pax.inputs.rows import packing
from pax.programs import metric_accumulator
from praxis import base_input, pytypes
from praxis.decoding import hparams as decoding

NestedMap = pytypes.NestedMap
Ids = Sequence[int]

# Rows are padded to a power of two of at least this length, so that few steps
# are compiled, and at most the length of the model.
_MIN_LENGTH = 64


@dataclasses.dataclass(frozen=True)
class Continuation:
  """Token ids after a context of at least one id."""

  context: Ids
  ids: Ids


@dataclasses.dataclass(frozen=True)
class Score:
  """How a model predicts a continuation."""

  # Sum of the log-probabilities of its ids, in nats.
  log_prob: float
  # Whether each id is the most probable one.
  is_greedy: bool


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TokenModel:
  """Applies a LanguageModel to batches of the rows of all processes.

  All processes call it with the same arguments, and get the same results.
  """

  partitioner: partitioning.Partitioner
  # The eval state.
  state: train_states.TrainState
  # Its batch size is that of a process; it has the vocabulary.
  inp: base_input.BaseInput
  # Number of positions of the longest row.
  max_length: int
  key: jax.Array
  # Called before each batch; an exception ends the evaluation.
  before_batch: Callable[[], None] = lambda: None

  def score(self, continuations: Sequence[Continuation]) -> list[Score]:
    """Returns the score of each continuation.

    Contexts lose their first ids where a row would be longer than the longest.

    Raises:
      ValueError: A continuation is longer than the longest row.
    """
    for each in continuations:
      if len(each.ids) > self.max_length:
        raise ValueError(
          f'a continuation must have at most {self.max_length} tokens, the'
          f' length of a row, got {len(each.ids)}; set LM_EVAL_SEQ_LEN'
        )
    scores: dict[int, Score] = {}
    rows = [[*each.context, *each.ids] for each in continuations]
    rows = [row[-self.max_length - 1 :] for row in rows]
    for indices in self._batches([len(row) - 1 for row in rows]):
      length = self._padded_length(max(len(rows[i]) - 1 for i in indices))
      batch = self._empty_batch(length)
      for at, index in self._rows_of_process(indices):
        row, num_scored = rows[index], len(continuations[index].ids)
        _set_row(batch, at, row[:-1])
        batch.labels[at, : len(row) - 1] = row[1:]
        batch.weights[at, len(row) - 1 - num_scored : len(row) - 1] = 1.0
      out = self._run(steps.score_step, batch)
      for at, index in enumerate(indices):
        log_prob, is_greedy = out.log_probs[at], out.is_greedy[at]
        scores[index] = Score(float(log_prob), bool(is_greedy))
    return [scores[index] for index in range(len(rows))]

  def generate(self, prompts: Sequence[Ids], max_tokens: int) -> list[str]:
    """Returns the greedy continuation of each prompt, up to eos.

    Prompts lose their first ids where a row would be longer than the longest.

    Args:
      prompts: Token ids.
      max_tokens: Number of tokens of the longest continuation.

    Raises:
      ValueError: max_tokens leaves no room for a prompt.
    """
    max_prompt_length = self.max_length - max_tokens
    if max_prompt_length < 1:
      raise ValueError(
        f'max_gen_toks must be less than {self.max_length}, the length of a'
        f' row, got {max_tokens}; set LM_EVAL_SEQ_LEN'
      )
    eos_ids = self.partitioner.task.model.decoder_tpl.eos_id
    if isinstance(eos_ids, int):
      eos_ids = [eos_ids]
    step = _greedy_step(max_tokens, tuple(eos_ids))
    texts: dict[int, str] = {}
    rows = [list(prompt)[-max_prompt_length:] for prompt in prompts]
    for indices in self._batches([len(row) for row in rows]):
      longest = self._padded_length(max(len(rows[i]) for i in indices))
      batch = self._empty_batch(min(longest, max_prompt_length))
      for at, index in self._rows_of_process(indices):
        _set_row(batch, at, rows[index])
      out = self._run(step, batch)
      _, pairs, _ = self.partitioner.task.model.process_decode_out(
        self.inp, out
      )
      for index, (_, result) in zip(indices, pairs, strict=True):
        texts[index] = result.decoded_substr
    return [texts[index] for index in range(len(rows))]

  def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yields the indices of the rows of each batch, the longest rows first."""
    size = self._batch_size * self._num_processes
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for first in range(0, len(order), size):
      self.before_batch()
      yield order[first : first + size]

  def _padded_length(self, length: int) -> int:
    power = 1 << (length - 1).bit_length()
    return min(max(power, _MIN_LENGTH), self.max_length)

  def _empty_batch(self, length: int) -> NestedMap:
    """Returns a batch of this process without ids."""
    batch = packing.empty_batch(self._batch_size, length)
    batch.eval_sample_weights = np.zeros(self._batch_size, np.float32)
    return batch

  def _rows_of_process(
    self, indices: Sequence[int]
  ) -> Iterator[tuple[int, int]]:
    """Yields (row in the batch of this process, index)."""
    first = self.inp.infeed_host_index * self._batch_size
    yield from enumerate(indices[first : first + self._batch_size])

  def _run(
    self, step: Callable[..., steps.StepFnOutput], batch: NestedMap
  ) -> NestedMap:
    """Returns the outputs of a step by example, of all processes."""
    placed = self.partitioner.put_batch(batch)
    output = self.partitioner.step_for(step, placed)(
      self.state, placed, self.key
    )
    return NestedMap(metric_accumulator.gather_to_host(output.per_example_out))

  @property
  def _batch_size(self) -> int:
    return self.inp.get_batch_size(self.inp)

  @property
  def _num_processes(self) -> int:
    return self.inp.get_global_batch_size(self.inp) // self._batch_size


def _set_row(batch: NestedMap, at: int, ids: Ids) -> None:
  batch.ids[at, : len(ids)] = ids
  batch.paddings[at, : len(ids)] = 0.0
  batch.segment_ids[at, : len(ids)] = 1
  batch.segment_pos[at, : len(ids)] = np.arange(len(ids))
  batch.eval_sample_weights[at] = 1.0


@functools.cache
def _greedy_step(
  max_tokens: int, eos_ids: tuple[int, ...]
) -> Callable[..., steps.StepFnOutput]:
  """Returns the step that decodes; one for equal arguments, compiled once."""
  decoder = decoding.GreedyDecoderHParams(
    fprop_for_prefix=True, max_decode_steps=max_tokens, eos_id=list(eos_ids)
  )
  return functools.partial(steps.decode_step, decoder_tpl=decoder)
