# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""CTC against the sum over all alignments, which are few here."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis.layers import ctc_objectives
from tests.praxis.layers.running import jit, normal

_CLASSES = 3  # 0 is the blank
_LENGTHS = (5, 4, 3, 2)
_LABELS = ((1, 2), (1, 1), (2,), (2, 2))


def _padded(lengths, size):
  return jnp.asarray(
    np.arange(size) >= np.asarray(lengths)[:, None], jnp.float32
  )


@pytest.fixture(scope='module')
def batch():
  labels = np.zeros((4, 3), np.int32)
  for row, sequence in zip(labels, _LABELS, strict=True):
    row[: len(sequence)] = sequence
  counts = [len(x) for x in _LABELS]
  return {
    'logits': 2 * normal(4, 5, _CLASSES),
    'logitpaddings': _padded(_LENGTHS, 5),
    'labels': jnp.asarray(labels),
    'labelpaddings': _padded(counts, 3),
  }


@pytest.fixture(scope='module')
def found(batch):
  """Losses, alignments and the gradient of the losses' weighted sum."""

  def run(logits):
    rest = {k: v for k, v in batch.items() if k != 'logits'}
    loss, aligned = ctc_objectives.ctc_loss_with_alignments(logits, **rest)
    return jnp.sum(loss[:3] * jnp.arange(1.0, 4.0)), (loss, aligned)

  (_, (loss, aligned)), grad = jit(jax.value_and_grad(run, has_aux=True))(
    batch['logits']
  )
  return loss, aligned, grad


def _paths(length, labels):
  """All sequences of classes that collapse to `labels`."""
  for path in itertools.product(range(_CLASSES), repeat=length):
    kept = [c for i, c in enumerate(path) if i == 0 or path[i - 1] != c]
    if tuple(c for c in kept if c) == tuple(labels):
      yield path


def _log_softmax(x):
  x = np.asarray(x, np.float64)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _loss(logits, length, labels):
  logprobs = _log_softmax(logits)[:length]
  totals = [
    np.sum(logprobs[np.arange(length), path])
    for path in map(list, _paths(length, labels))
  ]
  return -np.log(np.sum(np.exp(totals)))


def test_loss_is_the_sum_over_alignments(batch, found):
  loss, _, _ = found
  for i in range(3):
    want = _loss(batch['logits'][i], _LENGTHS[i], _LABELS[i])
    np.testing.assert_allclose(loss[i], want, rtol=1e-5)
  # Two equal labels do not fit into two frames.
  assert loss[3] > 1e4


def test_gradient(batch, found):
  _, _, grad = found
  for i in range(3):
    x = np.asarray(batch['logits'][i], np.float64)
    for at in np.ndindex(x.shape):
      step = np.zeros(x.shape)
      step[at] = 1e-5
      loss = lambda x, i=i: _loss(x, _LENGTHS[i], _LABELS[i])
      want = (i + 1) * (loss(x + step) - loss(x - step)) / 2e-5
      np.testing.assert_allclose(grad[i][at], want, atol=1e-3)


def _begun(path):
  """How many labels have begun at each frame of a path."""
  return np.cumsum(
    [c != 0 and (i == 0 or path[i - 1] != c) for i, c in enumerate(path)]
  )


def test_state_probabilities_are_those_of_the_paths(batch, found):
  _, aligned, _ = found
  for i in range(3):
    length, labels = _LENGTHS[i], _LABELS[i]
    logprobs = _log_softmax(batch['logits'][i])
    total = lambda paths, first, logprobs=logprobs: sum(
      np.exp(sum(logprobs[first + k, c] for k, c in enumerate(path)))
      for path in paths
    )
    for frame, state in itertools.product(
      range(length), range(len(labels) + 1)
    ):
      heads = list(_paths(frame + 1, labels[:state]))
      # From here on: blank, then the next labels, or the label itself first.
      rest = length - frame
      coming = list(_paths(rest, labels[state:]))
      tails = [p for p in coming if p[0] == 0]
      if state:
        again = _paths(rest, labels[state - 1 :])
        tails += [p for p in again if p[0] == labels[state - 1]]
      # optax counts a label at the outermost frames as one that is over, too.
      if frame == 4:
        heads += [p for p in heads if p[-1] != 0]
      if frame == 0:
        tails += [p for p in coming if p[0] != 0]
      want = total(heads, 0) * total(tails, frame)
      got = np.exp(np.asarray(aligned.state_logprobs[frame, i, state]))
      np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)


def test_alignment_is_monotone_and_complete(found):
  _, aligned, _ = found
  for i in range(3):
    path = np.asarray(aligned.alignment[i, : _LENGTHS[i]])
    steps = np.diff(path, prepend=0)
    assert set(steps) <= {0, 1}
    assert path[-1] == len(_LABELS[i])


def test_alignment_follows_sure_logits():
  path = [0, 1, 1, 0, 2, 0]
  logits = 8.0 * jax.nn.one_hot(jnp.asarray([path]), _CLASSES)
  labels = jnp.asarray([[1, 2, 0, 0, 0, 0, 0]])
  paddings = _padded([2], 7)

  @jit
  def align(*args):
    _, aligned = ctc_objectives.ctc_loss_with_alignments(*args)
    return aligned, ctc_objectives.forced_alignment(*args)

  aligned, starts = align(logits, jnp.zeros([1, 6]), labels, paddings)
  np.testing.assert_array_equal(aligned.alignment[0], _begun(path))
  # As wide as the labels, though there are fewer frames.
  np.testing.assert_array_equal(starts[0], [1, 4, 0, 0, 0, 0, 0])


def test_forced_alignment_of_what_does_not_fit(batch):
  starts = jit(lambda b: ctc_objectives.forced_alignment(**b))(batch)
  assert starts.shape == (4, 3)
  np.testing.assert_array_equal(starts[3], [-1, -1, -1])
  assert (starts[:3] >= 0).all()


def test_more_than_256_paddings_are_counted_in_bfloat16():
  logits, labels = normal(1, 5, _CLASSES), jnp.asarray([[1, 2]])

  def align(extra):
    widths = [(0, 0), (0, extra)]
    return jax.jit(ctc_objectives.ctc_loss_with_alignments)(
      jnp.pad(logits, [*widths, (0, 0)]),
      _padded([5], 5 + extra).astype(jnp.bfloat16),
      jnp.pad(labels, widths),
      _padded([2], 2 + extra).astype(jnp.bfloat16),
    )

  (loss, got), (want_loss, want) = align(301), align(0)
  np.testing.assert_allclose(loss, want_loss, rtol=1e-6)
  np.testing.assert_array_equal(got.alignment[:, :5], want.alignment)
  np.testing.assert_allclose(
    got.logbeta_emit[:5, :, :2], want.logbeta_emit, rtol=1e-5
  )


def test_validity_counts_repeated_labels(batch):
  got = ctc_objectives.is_valid_ctc_seq(
    batch['logitpaddings'], batch['labels'], batch['labelpaddings']
  )
  want = [float(any(_paths(*x))) for x in zip(_LENGTHS, _LABELS, strict=True)]
  np.testing.assert_array_equal(got, want)


def test_frames_at_which_labels_begin():
  starts, counts = ctc_objectives.frame_alignment_to_label_alignment(
    np.asarray([[0, 0, 1, 1, 2, 3, 3, 3], [1, 1, 2, 2, 2, 2, 3, 4]]),
    np.asarray([[0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0, 1]]),
  )
  np.testing.assert_array_equal(starts[0], [2, 4, 5, 0, 0, 0, 0, 0])
  np.testing.assert_array_equal(starts[1], [0, 2, 6, 0, 0, 0, 0, 0])
  np.testing.assert_array_equal(counts, [3, 3])
