# SPDX-License-Identifier: Apache-2.0
"""Rows, advantages and metrics of samples of the model."""

# bazel: size=medium
from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from pax import partitioning, steps, tasks_lib
from pax.inputs.text import rewarded_prompts
from pax.programs import rollouts
from praxis import optimizers, pax_fiddle, schedules
from praxis.layers import models, transformers
from praxis.nested_map import NestedMap

_HERE = 'tests.pax.programs.rollouts_test'
_SEQ_LEN, _MAX_PROMPT_LEN = 12, 4
_EOS = 257


def share_of_low_bytes(examples, responses):
  del examples
  return [sum(ord(c) < 64 for c in x) / max(len(x), 1) for x in responses]


def test_rows_have_the_responses_as_labels():
  ids = np.array([[7, 8, 1, 2, 3, 0], [9, 4, 5, 6, 0, 0]], np.int32)
  samples = rollouts.Samples(
    ids=ids,
    prompt_lengths=np.array([2, 1]),
    lengths=np.array([5, 4]),
    prompt_index=np.array([3, 1]),
  )
  np.testing.assert_array_equal(samples.response_lengths, [3, 3])
  np.testing.assert_array_equal(
    samples.responses()[:, :3], [[1, 2, 3], [4, 5, 6]]
  )
  batch = rollouts.train_batch(samples, np.array([0.5, -1.0], np.float32))
  learned = [batch.labels[i][batch.weights[i] == 1].tolist() for i in range(2)]
  assert learned == [[1, 2, 3], [4, 5, 6]]
  np.testing.assert_array_equal(batch.ids, ids)
  np.testing.assert_array_equal(
    batch.paddings, [[0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 1]]
  )
  np.testing.assert_array_equal(batch.segment_pos[0], [0, 1, 2, 3, 4, 0])
  np.testing.assert_array_equal(batch.advantages, [0.5, -1.0])


@pytest.mark.parametrize('normalizes', [False, True])
def test_advantages_compare_the_samples_of_a_prompt(normalizes):
  rewards = np.array([1, 0, 0, 1, 5, 5, 5, 5, 0, 3, 0, 1], np.float32)
  advantages = rollouts.advantages(rewards, 4, normalizes_deviation=normalizes)
  expected = []
  for group in np.split(rewards.astype(np.float64), 3):
    centered = group - group.mean()
    deviation = np.sqrt(np.sum(centered**2) / 3)
    expected += list(centered / (deviation + 1e-4) if normalizes else centered)
  np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-6)


def _task():
  model_p = models.LanguageModelGRPO.config(name='lm', beta=0.1)
  model_p.lm_tpl.set(
    model_dims=16,
    vocab_size=260,
    packed_input=True,
    stacked_transformer_tpl=transformers.StackedTransformer.config(
      num_layers=1, hidden_dims=16, num_heads=2
    ),
  )
  model_p.decoder_tpl.eos_id = _EOS
  task_p = tasks_lib.SingleTask.config(name='task', model=model_p)
  task_p.train.num_train_steps = 4
  learner = task_p.train.learner
  learner.loss_name = 'total_loss'
  learner.optimizer = optimizers.Adam.config(
    learning_rate=0.0, lr_schedule=schedules.Constant.config()
  )
  return task_p.Instantiate()


def _program(tmp_path):
  file = tmp_path / 'prompts.jsonl'
  lines = [{'prompt': 'ab'[: i % 2 + 1] + str(i)} for i in range(6)]
  file.write_text('\n'.join(map(json.dumps, lines)))
  inp = pax_fiddle.Config(
    rewarded_prompts.RewardedPromptInput,
    name='train',
    files=str(file),
    reward_functions={f'{_HERE}:share_of_low_bytes': 1.0},
    batch_size=8,
    num_samples=4,
    seq_len=_SEQ_LEN,
    max_prompt_len=_MAX_PROMPT_LEN,
    held_out_percent=0.0,
    is_training=True,
  ).Instantiate()
  task = _task()
  partitioner = partitioning.create_partitioner(task)
  spec = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inp.peek_padded()
  )
  key = jax.random.key(0)
  partitioner.setup(task, key, partitioner.init_spec(spec))
  program = rollouts.RolloutTrainProgram()
  program.setup(task, inp, partitioner, tmp_path / 'job', key, key, 0, False)
  return program, partitioner, inp


def test_a_step_learns_from_what_the_policy_has_sampled(tmp_path, monkeypatch):
  program, partitioner, inp = _program(tmp_path)
  seen = {}
  sample, put = program._sample, partitioner.put_batch

  def recorded_sample(*args):
    seen['samples'] = sample(*args)
    return seen['samples']

  def recorded_put(batch):
    if np.any(batch.weights):
      seen['batch'] = batch
    return put(batch)

  monkeypatch.setattr(program, '_sample', recorded_sample)
  monkeypatch.setattr(partitioner, 'put_batch', recorded_put)
  state = partitioner.initialize(jax.random.key(1))
  output = program.run(state, 0)
  samples, batch = seen['samples'], seen['batch']
  for row, index in enumerate(samples.prompt_index):
    tokens = samples.ids[row, : samples.prompt_lengths[row]]
    text = bytes(tokens[1:].tolist()).decode()
    assert text == 'ab'[: index % 2 + 1] + str(index)
  # Samples of a prompt differ, end with eos or are full.
  assert len({tuple(x) for x in samples.ids[:4]}) == 4
  assert samples.prompt_index[:4].tolist() == [samples.prompt_index[0]] * 4
  limits = samples.prompt_lengths + _SEQ_LEN - _MAX_PROMPT_LEN
  last = samples.ids[np.arange(8), samples.lengths - 1]
  assert np.all((last == _EOS) | (samples.lengths == limits))
  responses = inp.ids_to_strings(samples.responses(), samples.response_lengths)
  rewards = np.array(share_of_low_bytes(None, responses))
  np.testing.assert_allclose(
    batch.advantages,
    rollouts.advantages(rewards.astype(np.float32), 4),
    rtol=1e-5,
  )
  scalars = output.weighted_scalars
  np.testing.assert_allclose(scalars['reward'][0], rewards.mean(), rtol=1e-5)
  np.testing.assert_allclose(
    scalars['truncated'][0], np.mean(last != _EOS), rtol=1e-6
  )
  np.testing.assert_allclose(
    scalars['response_length'][0], samples.response_lengths.mean(), rtol=1e-6
  )
  # The mean over the replicas.
  num_tokens = float(scalars['num_predictions'][0]) * len(partitioner.devices)
  assert num_tokens == samples.response_lengths.sum()
  shown = program.headline_metrics(output)
  assert shown == {'reward': scalars['reward'][0]}
  assert program.run_eval_train(output.state) is None


def test_samples_are_those_of_the_step(tmp_path):
  program, partitioner, inp = _program(tmp_path)
  state = partitioner.initialize(jax.random.key(1))
  batch = partitioner.put_batch(inp.get_next())
  key = jax.random.key(2)
  first, again = (program._sample(state, batch, key) for _ in range(2))
  np.testing.assert_array_equal(first.ids, again.ids)
  next_state = state.replace(step=state.step + 1)
  other = program._sample(next_state, batch, key)
  assert not np.array_equal(first.ids, other.ids)


def test_weights_select_the_probabilities_of_the_sampled_tokens(tmp_path):
  program, partitioner, inp = _program(tmp_path)
  state = partitioner.initialize(jax.random.key(1)).to_eval_state()
  batch = partitioner.put_batch(inp.get_next())
  key = jax.random.key(2)
  samples = program._sample(state, batch, key)
  decoder = program._sample_step.keywords['decoder_tpl']

  def decode(settings, state, batch, key):
    prompts = NestedMap(
      ids=batch.ids[:, :_MAX_PROMPT_LEN],
      paddings=batch.paddings[:, :_MAX_PROMPT_LEN],
    )
    # As samples are made.
    key = jax.random.fold_in(key, 1)
    return steps.decode_step(settings, state, prompts, key, decoder)

  out = partitioner.step_for(decode, batch)(state, batch, key).per_example_out
  np.testing.assert_array_equal(out.output_ids[:, 0], samples.ids)
  columns = np.arange(_SEQ_LEN)
  is_response = columns >= samples.prompt_lengths[:, np.newaxis]
  is_response &= columns < samples.lengths[:, np.newaxis]
  expected = np.where(is_response, out.logprobs[:, 0], 0.0).sum(axis=1)
  rows = partitioner.put_batch(
    rollouts.train_batch(samples, np.zeros(8, np.float32))
  )
  score = partitioner.step_for(steps.score_step, rows)
  scored = score(state, rows, key).per_example_out
  np.testing.assert_allclose(scored.log_probs, expected, rtol=1e-4)
