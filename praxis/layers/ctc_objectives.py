# SPDX-License-Identifier: Apache-2.0
"""Connectionist temporal classification (CTC) and forced alignment.

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

from praxis import py_utils
from praxis.alias_names import module_getattr

__getattr__ = module_getattr(__name__)

AnyArray = Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class CtcAlignments:
  """Forward and backward log-probabilities, and the best alignment.

  State `phi` n is the blank after n labels, state `emit` n emits label n.
  `logalpha` are forward probabilities up to a frame, `logbeta` backward
  probabilities from it on; both include the frame.
  """

  # Number of labels begun at each frame in the best alignment, [B, T]. Any, as
  # JAX also builds the pytree with leaves that are not arrays.
  alignment: Any
  # [T, B, N + 1], [T, B, N], and the same for the backward probabilities.
  logalpha_phi: Any
  logalpha_emit: Any
  logbeta_phi: Any
  logbeta_emit: Any
  # Log-probabilities of N + 1 states: before the first label, in or after each,
  # [T, B, N + 1].
  state_logprobs: Any


def ctc_loss_with_alignments(
  logits: Float[AnyArray, 'B T K'],
  logitpaddings: Num[AnyArray, 'B T'],
  labels: Int[AnyArray, 'B N'],
  labelpaddings: Num[AnyArray, 'B N'],
  blank_id: int = 0,
  logepsilon: float = -1e5,
) -> tuple[Float[Array, ' B'], CtcAlignments]:
  """Returns the loss of each sequence and the alignment of its labels.

  All is computed in float32.

  Args:
    logits: unnormalized logits of each frame.
    logitpaddings: 1 at padding frames.
    labels: the target sequences.
    labelpaddings: 1 at padding, at the end only.
    blank_id: the class of the blank.
    logepsilon: substitute for log(0).
  """
  # optax counts padding in the dtype of the paddings.
  logits, logitpaddings, labelpaddings = (
    jnp.asarray(x, jnp.float32) for x in (logits, logitpaddings, labelpaddings)
  )
  num_frames = py_utils.sequence_lengths(logitpaddings)
  num_labels = py_utils.sequence_lengths(labelpaddings)
  num_padding = labelpaddings.shape[1] - num_labels

  def forward(
    logits: AnyArray, paddings: AnyArray, labels: AnyArray
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
  # Backward probabilities are forward probabilities of the reversed sequences,
  # with labels aligned left.
  _, phi, emit = forward(
    jnp.flip(logits, 1),
    jnp.flip(logitpaddings, 1),
    _shift_left(jnp.flip(labels, 1), num_padding, 0),
  )
  beta_phi, beta_emit = (
    _shift_left(jnp.flip(x, (0, 2)), num_padding, logepsilon)
    for x in (phi, emit)
  )
  state_logprobs = _state_logprobs(alpha_phi, alpha_emit, logepsilon)
  state_logprobs += _state_logprobs(beta_phi, beta_emit, logepsilon)
  return loss, CtcAlignments(
    alignment=_best_path(state_logprobs, num_frames, num_labels, logepsilon),
    logalpha_phi=alpha_phi,
    logalpha_emit=alpha_emit,
    logbeta_phi=beta_phi,
    logbeta_emit=beta_emit,
    state_logprobs=state_logprobs,
  )


def is_valid_ctc_seq(
  logitpaddings: Num[AnyArray, 'B T'],
  labels: Int[AnyArray, 'B N'],
  labelpaddings: Num[AnyArray, 'B N'],
) -> Float[Array, ' B']:
  """Returns 1 for sequences with enough frames for their labels, else 0.

  Repeated labels need a blank between them. The loss of a sequence that is too
  short is a very large number and should be masked.

  Args:
    logitpaddings: 1 at padding frames.
    labels: the target sequences.
    labelpaddings: 1 at padding labels.
  """
  valid = 1.0 - jnp.asarray(labelpaddings, jnp.float32)
  repeated = valid[:, 1:] * (labels[:, :-1] == labels[:, 1:])
  needed = jnp.sum(valid, -1) + jnp.sum(repeated, -1)
  frames = jnp.sum(1.0 - jnp.asarray(logitpaddings, jnp.float32), -1)
  return (needed <= frames).astype(jnp.float32)


def frame_alignment_to_label_alignment(
  frame_alignment: Int[AnyArray, 'B T'],
  frame_paddings: Num[AnyArray, 'B T'],
) -> tuple[Int[Array, 'B T'], Int[Array, ' B']]:
  """Returns the first frame of each label, and the number of labels.

  Args:
    frame_alignment: number of labels begun at each frame; in [0, 1, 1, 2] two
      labels begin at frames 1 and 3.
    frame_paddings: 1 at padding frames.

  Returns:
    The frames, padded with zeros ([1, 3, 0, 0]), and the count (2).
  """
  length = frame_alignment.shape[1]
  previous = jnp.pad(frame_alignment[:, :-1], [(0, 0), (1, 0)])
  is_start = (frame_alignment != previous) & (frame_alignment != 0)
  is_start &= frame_paddings == 0
  starts = jnp.sort(jnp.where(is_start, jnp.arange(length), length), axis=-1)
  starts = jnp.where(starts == length, 0, starts)
  return starts, jnp.sum(is_start, -1, dtype=jnp.int32)


def forced_alignment(
  logits: Float[AnyArray, 'B T K'],
  logitpaddings: Num[AnyArray, 'B T'],
  labels: Int[AnyArray, 'B N'],
  labelpaddings: Num[AnyArray, 'B N'],
  blank_id: int = 0,
) -> Int[Array, 'B N']:
  """Returns the first frame of each label in the best alignment.

  Args:
    logits: see `ctc_loss_with_alignments`, as all arguments.
    logitpaddings: 1 at padding frames.
    labels: the target sequences.
    labelpaddings: 1 at padding labels.
    blank_id: the class of the blank.

  Returns:
    The frames; 0 for padding labels, -1 if a sequence is too short.
  """
  _, alignments = ctc_loss_with_alignments(
    logits, logitpaddings, labels, labelpaddings, blank_id
  )
  starts, _ = frame_alignment_to_label_alignment(
    alignments.alignment, logitpaddings
  )
  max_labels = labels.shape[1]
  starts = starts[:, :max_labels]
  starts = jnp.pad(starts, [(0, 0), (0, max_labels - starts.shape[1])])
  valid = is_valid_ctc_seq(logitpaddings, labels, labelpaddings)
  return jnp.where(valid[:, None] > 0, starts, -1)


def _shift_left(
  values: Shaped[Array, '*T B N'], offsets: Int[Array, ' B'], fill: float | int
) -> Shaped[Array, '*T B N']:
  """Returns each row shifted left by its offset, padded with `fill`."""
  source = jnp.arange(values.shape[-1]) + offsets[:, None]
  in_bounds = jnp.broadcast_to(source < values.shape[-1], values.shape)
  source = jnp.broadcast_to(source, values.shape)
  shifted = jnp.take_along_axis(
    values, jnp.where(in_bounds, source, 0), axis=-1
  )
  return jnp.where(in_bounds, shifted, jnp.asarray(fill, values.dtype))


def _state_logprobs(
  phi: Float[Array, 'T B S'], emit: Float[Array, 'T B N'], logepsilon: float
) -> Float[Array, 'T B S']:
  """Returns log-probabilities of being in a label or in the blank after it."""
  in_label = jnp.pad(emit, [(0, 0), (0, 0), (1, 0)], constant_values=logepsilon)
  return jnp.logaddexp(in_label, phi)


def _best_path(
  state_logprobs: Float[Array, 'T B S'],
  num_frames: Int[Array, ' B'],
  num_labels: Int[Array, ' B'],
  logepsilon: float,
) -> Int[Array, 'B T']:
  """Returns the greedy monotonic path that visits every state."""
  length, batch, num_states = state_logprobs.shape
  # The smallest state from which the remaining frames suffice.
  min_state = jnp.arange(length)[:, None] - (num_frames - num_labels)
  min_state = jnp.clip(min_state, 0, num_labels)
  state = jnp.arange(num_states)

  def advance(
    previous: Array, frame: tuple[Array, Array]
  ) -> tuple[Array, Array]:
    logprobs, min_state = frame
    low, high = jnp.maximum(previous, min_state)[:, None], previous[:, None] + 1
    # Two masks: if the bounds cross, argmax returns the lowest state.
    logprobs = jnp.where(state < low, logepsilon, logprobs)
    logprobs = jnp.where(state > high, logepsilon, logprobs)
    best = jnp.argmax(logprobs, axis=-1).astype(jnp.int32)
    return best, best

  first_state = jnp.zeros([batch], jnp.int32)
  return jax.lax.scan(advance, first_state, (state_logprobs, min_state))[1].T
