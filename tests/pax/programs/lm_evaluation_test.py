# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Scores and continuations of token ids, against single forward passes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import partitioning
from pax.programs.lm_evaluation import token_model
from pax.tasks.lm.params import quickstart
from praxis import base_layer, py_utils
from tests.testing import nightly

MAX_LENGTH = 80
Continuation = token_model.Continuation


class Small:
  """Constants of a model that is compiled fast."""

  MODEL_DIMS = 16
  HIDDEN_DIMS = 32
  NUM_LAYERS = 1
  NUM_PIECES = None
  VOCAB_SIZE = 259
  LM_EVAL_BATCH_SIZE = 8
  LM_EVAL_SEQ_LEN = MAX_LENGTH


class SmallLm(Small, quickstart.TinyLm):
  ICI_MESH_SHAPE = [1, 2, 1]


class SmallLmPmap(Small, quickstart.TinyLmPmap):
  pass


def create_model(experiment, **fields) -> token_model.TokenModel:
  task = experiment.task().Instantiate()
  partitioner = partitioning.create_partitioner(task)
  rows = py_utils.NestedMap(
    dict.fromkeys(('ids', 'labels', 'segment_ids', 'segment_pos'), np.int32)
    | dict.fromkeys(('paddings', 'weights'), np.float32)
  ).Transform(lambda dtype: np.zeros((8, MAX_LENGTH), dtype))
  spec = jax.eval_shape(lambda: rows)
  partitioner.setup(task, jax.random.key(0), partitioner.init_spec(spec))
  return token_model.TokenModel(
    partitioner=partitioner,
    state=partitioner.initialize(jax.random.key(3)).to_eval_state(),
    inp=experiment._benchmark_input(experiment._tokenizer()).Instantiate(),
    max_length=MAX_LENGTH,
    key=jax.random.key(0),
    **fields,
  )


@functools.cache
def forward(model: token_model.TokenModel):
  """Returns a function of a row [1, T] that returns its logits [1, T, V]."""
  variables = jax.device_get(model.state.mdl_vars)

  def apply(ids):
    hparams = base_layer.JaxContext.HParams(do_eval=True)
    with base_layer.JaxContext.new_context(hparams=hparams):
      return model.partitioner.task.model.apply(
        variables,
        ids,
        jnp.zeros(ids.shape),
        method=lambda module, *args: module.lm(*args).logits,
      )

  return jax.jit(apply)


def log_probs(model: token_model.TokenModel, ids) -> np.ndarray:
  """Returns the log-probabilities of the id after each one, [T, V]."""
  row = np.zeros((1, MAX_LENGTH), np.int32)
  row[0, : len(ids)] = ids
  logits = np.asarray(forward(model)(row)[0, : len(ids)], np.float64)
  return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


@pytest.fixture(
  scope='module',
  params=[SmallLm, *nightly.cases(SmallLmPmap)],
)
def model(request):
  return create_model(request.param())


def test_scores_are_those_of_each_row_alone(model):
  random = np.random.default_rng(0)

  def ids(count):
    return random.integers(0, 256, count).tolist()

  # Of two lengths when padded; the last ones are longer than a row.
  pairs = [(1, 1), (5, 3), (60, 9), (2, 70), (7, 1), (90, 4), (3, 80)]
  continuations = [Continuation(ids(a), ids(b)) for a, b in pairs]
  best = int(np.argmax(log_probs(model, continuations[1].context)[-1]))
  continuations.append(Continuation(continuations[1].context, [best]))
  scores = model.score(continuations)
  for each, score in zip(continuations, scores, strict=True):
    row = [*each.context, *each.ids][-MAX_LENGTH - 1 :]
    table = log_probs(model, row[:-1])[-len(each.ids) :]
    wanted = table[np.arange(len(each.ids)), each.ids].sum()
    assert score.log_prob == pytest.approx(wanted, rel=2e-5)
    assert score.is_greedy == np.array_equal(table.argmax(-1), each.ids)
  assert scores[-1].is_greedy and not scores[2].is_greedy


def test_continuations_are_greedy(model):
  prompts = ['def f', 'x', 'a long prompt ' * 7]
  ids = [[256, *prompt.encode()] for prompt in prompts]
  texts = model.generate(ids, 4)
  for prompt, text in zip(ids, texts, strict=True):
    row = prompt[-(MAX_LENGTH - 4) :]
    continuation = []
    for _ in range(4):
      continuation.append(int(np.argmax(log_probs(model, row)[-1])))
      row = [*row, continuation[-1]]
    wanted = model.inp.fitted_tokenizer.decode(continuation)
    assert text == wanted


def test_batches_are_compiled_once_and_announced():
  announced = []
  model = create_model(SmallLm(), before_batch=lambda: announced.append(1))
  for _ in range(2):
    model.score([Continuation([1], [2, 3])] * 10)
    model.generate([[1, 2]] * 3, 5)
  assert len(announced) == 6
  assert len(model.partitioner._steps) == 2


def test_rows_that_do_not_fit_are_refused(model):
  with pytest.raises(ValueError, match='at most 80 tokens.*got 81.*SEQ_LEN'):
    model.score([Continuation([1], [2] * 81)])
  with pytest.raises(ValueError, match='max_gen_toks.*than 80.*got 80'):
    model.generate([[1]], 80)
