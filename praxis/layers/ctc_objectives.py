# SPDX-License-Identifier: Apache-2.0
"""Connectionist temporal classification, and alignments of its labels.

References: Graves et al., https://www.cs.toronto.edu/~graves/icml_2006.pdf
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Num, Shaped

AnyArray = Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class CtcAlignments:
  """Where labels stand, and the log probabilities that say so.

  `phi` is to be between labels, after so many of them; `emit` is to emit a
  label. `logalpha` is of a sequence up to a frame, `logbeta` from it on; both
  count the frame.
  """

  # How many labels have begun at each frame, of the best alignment, [B, T].
  alignment: Any
  # [T, B, N + 1], [T, B, N], and the same again.
  logalpha_phi: Any
  logalpha_emit: Any
  logbeta_phi: Any
  logbeta_emit: Any
  # Of each state, before the first label, within the first, ...: [T, B, N + 1].
  state_logprobs: Any


def ctc_loss_with_alignments(
  logits: Float[AnyArray, 'B T K'],
  logitpaddings: Num[AnyArray, 'B T'],
  labels: Int[AnyArray, 'B N'],
  labelpaddings: Num[AnyArray, 'B N'],
  blank_id: int = 0,
  logepsilon: float = -1e5,
) -> tuple[Float[Array, 'B'], CtcAlignments]:
  """Returns the loss of each sequence and the alignment of its labels.

  Args:
    logits: of each frame; they are normalised.
    logitpaddings: 1 where there is no frame.
    labels: what is to be emitted.
    labelpaddings: 1 where there is no label, at the end only.
    blank_id: the class that stands for no label.
    logepsilon: what is taken for the logarithm of 0.
  """
  padded = jnp.sum(labelpaddings, axis=1).astype(jnp.int32)

  def forward(
    logits: Array, paddings: Array, labels: Array
  ) -> tuple[Array, ...]:
    return optax.ctc_loss_with_forward_probs(
      logits,
      paddings,
      labels,
      labelpaddings,
      blank_id=blank_id,
      log_epsilon=logepsilon,
    )

  loss, alpha_phi, alpha_emit = forward(logits, logitpaddings, labels)
  # The same from the end: frames and labels reversed, the labels to the left.
  _, phi, emit = forward(
    jnp.flip(logits, 1),
    jnp.flip(logitpaddings, 1),
    _shift_left(jnp.flip(labels, 1), padded, 0),
  )
  beta_phi, beta_emit = (
    _shift_left(jnp.flip(x, (0, 2)), padded, logepsilon) for x in (phi, emit)
  )
  states = _of_states(alpha_phi, alpha_emit, logepsilon)
  states += _of_states(beta_phi, beta_emit, logepsilon)
  frames, count = (
    x.shape[1] - jnp.sum(x, axis=1).astype(jnp.int32)
    for x in (jnp.asarray(logitpaddings), jnp.asarray(labelpaddings))
  )
  alignment = _best_path(states, frames, count, logepsilon)
  return loss, CtcAlignments(
    alignment, alpha_phi, alpha_emit, beta_phi, beta_emit, states
  )


def is_valid_ctc_seq(
  logitpaddings: Num[AnyArray, 'B T'],
  labels: Int[AnyArray, 'B N'],
  labelpaddings: Num[AnyArray, 'B N'],
) -> Float[Array, 'B']:
  """Returns 1 where there are frames enough for the labels, else 0.

  Equal labels in a row need a blank between them. The loss of a sequence that
  is too short is a very large number, which should not be trained on.
  """
  valid = 1.0 - jnp.asarray(labelpaddings, jnp.float32)
  repeated = valid[:, 1:] * (labels[:, :-1] == labels[:, 1:])
  needed = jnp.sum(valid, -1) + jnp.sum(repeated, -1)
  frames = jnp.sum(1.0 - jnp.asarray(logitpaddings, jnp.float32), -1)
  return (needed <= frames).astype(jnp.float32)


def frame_alignment_to_label_alignment(
  frame_alignment: Int[AnyArray, 'B T'],
  frame_paddings: Num[AnyArray, 'B T'],
) -> tuple[Int[Array, 'B T'], Int[Array, 'B']]:
  """Returns at which frame each label begins, and how many labels there are.

  Args:
    frame_alignment: how many labels have begun at each frame; [0, 1, 1, 2] is
      two labels, which begin at frames 1 and 3.
    frame_paddings: 1 where there is no frame.

  Returns:
    The frames [1, 3, 0, 0], zeros at the end, and the count 2.
  """
  length = frame_alignment.shape[1]
  before = jnp.pad(frame_alignment[:, :-1], [(0, 0), (1, 0)])
  begins = (frame_alignment != before) & (frame_alignment != 0)
  begins &= frame_paddings == 0
  starts = jnp.sort(jnp.where(begins, jnp.arange(length), length), axis=-1)
  starts = jnp.where(starts == length, 0, starts)
  return starts, jnp.sum(begins, -1, dtype=jnp.int32)


def forced_alignment(
  logits: Float[AnyArray, 'B T K'],
  logitpaddings: Num[AnyArray, 'B T'],
  labels: Int[AnyArray, 'B N'],
  labelpaddings: Num[AnyArray, 'B N'],
  blank_id: int = 0,
) -> Int[Array, 'B N']:
  """Returns at which frame each label begins in the best alignment.

  -1 where a sequence is too short for its labels, 0 for padded labels. For the
  arguments see `ctc_loss_with_alignments`.
  """
  _, found = ctc_loss_with_alignments(
    logits, logitpaddings, labels, labelpaddings, blank_id
  )
  starts, _ = frame_alignment_to_label_alignment(found.alignment, logitpaddings)
  count = labels.shape[1]
  starts = starts[:, :count]
  starts = jnp.pad(starts, [(0, 0), (0, count - starts.shape[1])])
  valid = is_valid_ctc_seq(logitpaddings, labels, labelpaddings)
  return jnp.where(valid[:, None] > 0, starts, -1)


def _shift_left(
  values: Shaped[Array, '*T B N'], by: Int[Array, 'B'], fill: float | int
) -> Shaped[Array, '*T B N']:
  """Returns each row moved `by` places to the left, `fill` coming in."""
  source = jnp.arange(values.shape[-1]) + by[:, None]
  inside = jnp.broadcast_to(source < values.shape[-1], values.shape)
  source = jnp.broadcast_to(source, values.shape)
  moved = jnp.take_along_axis(values, jnp.where(inside, source, 0), axis=-1)
  return jnp.where(inside, moved, jnp.asarray(fill, values.dtype))


def _of_states(
  phi: Float[Array, 'T B S'], emit: Float[Array, 'T B N'], logepsilon: float
) -> Float[Array, 'T B S']:
  """Returns log probabilities to be within a label, or after it."""
  within = jnp.pad(emit, [(0, 0), (0, 0), (1, 0)], constant_values=logepsilon)
  return jnp.logaddexp(within, phi)


def _best_path(
  states: Float[Array, 'T B S'],
  frames: Int[Array, 'B'],
  labels: Int[Array, 'B'],
  logepsilon: float,
) -> Int[Array, 'B T']:
  """Returns the most probable states, none skipped and all of them reached."""
  length, batch, size = states.shape
  # So many must have begun for the rest to find room.
  least = jnp.arange(length)[:, None] - (frames - labels)
  least = jnp.clip(least, 0, labels)
  number = jnp.arange(size)

  def choose(last: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
    logprobs, least = at
    low, high = jnp.maximum(last, least)[:, None], last[:, None] + 1
    # The bounds one after the other: should they cross, the lowest wins.
    logprobs = jnp.where(number < low, logepsilon, logprobs)
    logprobs = jnp.where(number > high, logepsilon, logprobs)
    best = jnp.argmax(logprobs, axis=-1).astype(jnp.int32)
    return best, best

  start = jnp.zeros([batch], jnp.int32)
  return jax.lax.scan(choose, start, (states, least))[1].T
