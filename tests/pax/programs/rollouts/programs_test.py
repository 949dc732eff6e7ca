# SPDX-License-Identifier: Apache-2.0
"""Samples of the model, their batches and metrics."""

# bazel: size=medium
from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import partitioning, steps, tasks_lib
from pax.inputs.text import rewarded_prompts
from pax.programs.rollouts import programs, rollout_batches
from pax.programs.stopping import preemption
from praxis import optimizers, pax_fiddle, schedules
from praxis.layers import models, transformers
from praxis.nested_map import NestedMap
from tests.testing import nightly

_HERE = 'tests.pax.programs.rollouts.programs_test'
_SEQ_LEN, _MAX_PROMPT_LEN = 12, 4
_EOS = 257
# Of training and evaluation.
_KEYS = jax.random.key(0), jax.random.key(0)


def share_of_low_bytes(examples, responses):
  del examples
  return [sum(ord(c) < 64 for c in x) / max(len(x), 1) for x in responses]


def _task(learning_rate=0.0, **fields):
  model_p = models.LanguageModelGRPO.config(name='lm', beta=0.1, **fields)
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
  task_p.train.save_interval_steps = 4
  learner = task_p.train.learner
  learner.loss_name = 'total_loss'
  learner.optimizer = optimizers.Adam.config(
    learning_rate=learning_rate, lr_schedule=schedules.Constant.config()
  )
  return task_p.Instantiate()


def _program(tmp_path, task=None, options=None, **fields):
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
    **fields,
  ).Instantiate()
  task = task or _task()
  partitioner = partitioning.create_partitioner(task)
  spec = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inp.peek_padded()
  )
  partitioner.setup(task, _KEYS[0], partitioner.init_spec(spec))
  (tmp_path / 'job').mkdir(exist_ok=True)
  program = programs.RolloutTrainProgram(**options or {})
  program.setup(task, inp, partitioner, tmp_path / 'job', *_KEYS, 0, False)
  return program, partitioner, inp


@pytest.fixture(scope='module')
def sampling(tmp_path_factory):
  """(program, partitioner, input, folder); no test trains its state."""
  folder = tmp_path_factory.mktemp('sampling')
  return *_program(folder), folder


@pytest.fixture(scope='module')
def state(sampling):
  return sampling[1].initialize(jax.random.key(1))


def _normalized(rewards):
  """Returns the advantages of rewards, of four samples of each prompt."""
  groups = rewards.reshape(-1, 4)
  centered = groups - groups.mean(axis=1, keepdims=True)
  deviations = np.sqrt(np.sum(centered**2, axis=1, keepdims=True) / 3)
  return (centered / (deviations + 1e-4)).reshape(-1)


def test_a_step_learns_from_what_the_policy_has_sampled(
  sampling, state, monkeypatch
):
  program, partitioner, inp, folder = sampling
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
  output = program.run(jax.tree.map(jnp.copy, state), 0)
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
    batch.advantages, _normalized(rewards), rtol=1e-5, atol=1e-6
  )
  scalars = output.weighted_scalars
  deviations = np.std(rewards.reshape(2, 4), axis=1, ddof=1)
  np.testing.assert_allclose(
    scalars['reward_std'], [deviations.mean(), 2], rtol=1e-5
  )
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
  lines = (folder / 'job/rollouts/step_00000000.jsonl').read_text()
  records = [json.loads(line) for line in lines.splitlines()]
  assert [x['response'] for x in records] == responses
  np.testing.assert_allclose([x['reward'] for x in records], rewards, rtol=1e-5)
  assert [x['truncated'] for x in records] == (last != _EOS).tolist()
  prompts = ['ab'[: i % 2 + 1] + str(i) for i in samples.prompt_index]
  assert [x['prompt'] for x in records] == prompts
  shown = program.headline_metrics(output)
  assert shown == {'reward': scalars['reward'][0]}
  assert program.run_eval_train(output.state) is None


def test_samples_are_those_of_the_step_and_the_row(sampling, state):
  program, state = sampling[0], state.to_eval_state()
  prompts = program._next_prompts()
  assert prompts.row.tolist() == list(range(8))
  first, again = (program._sample(state, prompts) for _ in range(2))
  np.testing.assert_array_equal(first.ids, again.ids)
  reverse = prompts.Transform(lambda x: x[::-1])
  reversed_ids = program._sample(state, reverse).ids
  np.testing.assert_array_equal(reversed_ids, first.ids[::-1])
  next_state = state.replace(step=state.step + 1)
  other = program._sample(next_state, prompts)
  assert not np.array_equal(first.ids, other.ids)


def test_log_probabilities_are_those_of_sampling(sampling, state):
  program, partitioner, _, _ = sampling
  state = state.to_eval_state()
  prompts = program._next_prompts()
  samples = program._sample(state, prompts)
  decoder = program._sample_step.decoder_tpl
  job_key = jax.random.key(0)

  def decode(settings, state, batch, key):
    # As samples are made.
    key = jax.random.fold_in(jax.random.fold_in(job_key, 1), state.step)
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(batch.row)
    prompts = NestedMap(
      ids=batch.ids[:, :_MAX_PROMPT_LEN],
      paddings=batch.paddings[:, :_MAX_PROMPT_LEN],
      gumbel_prng_key=jax.random.key_data(keys),
    )
    return steps.decode_step(settings, state, prompts, key, decoder)

  batch = partitioner.put_batch(prompts)
  step = partitioner.step_for(decode, batch)
  out = step(state, batch, job_key).per_example_out
  np.testing.assert_array_equal(out.output_ids[:, 0], samples.ids)
  columns = np.arange(_SEQ_LEN)
  is_response = columns >= samples.prompt_lengths[:, np.newaxis]
  is_response &= columns < samples.lengths[:, np.newaxis]
  rows = rollout_batches.train_batch(samples, np.zeros(8, np.float32))
  log_probs = program._log_probs(state, rows)
  # A label is at the position before its token.
  np.testing.assert_array_equal(rows.weights[:, :-1], is_response[:, 1:])
  np.testing.assert_allclose(
    log_probs[rows.weights > 0], out.logprobs[:, 0][is_response], rtol=1e-4
  )


def _logits(state, batch):
  """Returns those of the policy of a state for the rows of a batch."""
  plain = models.LanguageModel.config(name='lm', return_predictions=True)
  plain.lm_tpl = _task().model.lm_tpl
  params = jax.device_get(state.mdl_vars['params']['lm'])
  apply = jax.jit(functools.partial(plain.Instantiate().apply, mutable=True))
  (_, out), _ = apply({'params': {'lm': params}}, batch)
  return np.asarray(out.logits, np.float64)


def _sampled(tmp_path, temperature, **options):
  """Returns a program, its state, a batch of samples, and their logits."""
  task = _task(temperature=temperature)
  program, partitioner, inp = _program(tmp_path, task, options)
  state = partitioner.initialize(jax.random.key(1)).to_eval_state()
  samples = program._sample(state, program._next_prompts())
  batch = rollout_batches.train_batch(samples, np.zeros(8, np.float32))
  return program, state, batch, _logits(state, batch)


def _ranks(batch, logits):
  """Returns how many tokens are more probable than each sampled one."""
  labels = batch.labels[..., np.newaxis]
  own = np.take_along_axis(logits, labels, axis=-1)
  return np.sum(logits > own, axis=-1)[batch.weights > 0]


@pytest.mark.parametrize(
  ('temperature', 'options'),
  [
    *nightly.cases((1e-6, {}), (1.0, {'top_k': 1})),
    (1.0, {'top_p': 1e-6}),
  ],
)
def test_samples_are_greedy(tmp_path, temperature, options):
  _, _, batch, logits = _sampled(tmp_path, temperature, **options)
  assert not _ranks(batch, logits).any()


@pytest.mark.parametrize('temperature', [*nightly.cases(1.0), 0.05])
def test_samples_are_those_of_the_top_k(tmp_path, temperature):
  program, state, batch, logits = _sampled(tmp_path, temperature, top_k=3)
  ranks = _ranks(batch, logits)
  assert set(ranks) == {0, 1, 2}
  # Log-probabilities are those among all tokens.
  logits /= temperature
  log_z = np.log(np.exp(logits).sum(-1, keepdims=True))
  labels = batch.labels[..., np.newaxis]
  expected = np.take_along_axis(logits - log_z, labels, axis=-1)[..., 0]
  is_sampled = batch.weights > 0
  np.testing.assert_allclose(
    program._log_probs(state, batch)[is_sampled],
    expected[is_sampled],
    rtol=1e-4,
  )


def test_nothing_is_learned_from_truncated_samples(tmp_path, monkeypatch):
  task = _task()
  task.model.decoder_tpl.eos_id = list(range(40))
  options = {'masks_truncated': True, 'penalized_tokens': 4}
  program, partitioner, inp = _program(tmp_path, task, options)
  batches = _recorded_batches(program, partitioner, monkeypatch)
  output = program.run(partitioner.initialize(jax.random.key(1)), 0)
  [batch] = batches
  ends = np.max(np.arange(1, _SEQ_LEN + 1) * (batch.paddings == 0), axis=1)
  last = batch.ids[np.arange(8), ends - 1]
  is_truncated = last >= 40
  assert 0 < is_truncated.sum() < 8
  assert not batch.weights[is_truncated].any()
  assert np.all(batch.weights[~is_truncated].sum(axis=1) > 0)
  scalars = output.weighted_scalars
  np.testing.assert_allclose(
    scalars['truncated'][0], is_truncated.mean(), rtol=1e-6
  )
  # Their rewards count in the mean of the prompt.
  np.testing.assert_allclose(
    batch.advantages.reshape(2, 4).sum(axis=1), 0, atol=1e-5
  )
  assert batch.advantages[is_truncated].any()
  num_tokens = float(scalars['num_predictions'][0]) * len(partitioner.devices)
  assert num_tokens == batch.weights.sum()
  # Rewards fall over the last four possible tokens.
  prompt_lengths = batch.prompt_index % 2 + 3
  left = _SEQ_LEN - _MAX_PROMPT_LEN - (ends - prompt_lengths)
  penalties = -np.clip(1 - left / 4, 0, 1)
  assert -1 < penalties.mean() < 0
  np.testing.assert_allclose(
    scalars['length_penalty'][0], penalties.mean(), rtol=1e-6
  )
  parts = zip(batch.ids, prompt_lengths, ends, strict=True)
  responses = [row[start:end] for row, start, end in parts]
  width = max(map(len, responses))
  padded = np.stack([np.pad(x, (0, width - len(x))) for x in responses])
  texts = inp.ids_to_strings(padded, ends - prompt_lengths)
  rewards = np.array(share_of_low_bytes(None, texts)) + penalties
  np.testing.assert_allclose(scalars['reward'][0], rewards.mean(), rtol=1e-5)
  np.testing.assert_allclose(
    batch.advantages, _normalized(rewards), rtol=1e-4, atol=1e-6
  )


def _recorded_batches(program, partitioner, monkeypatch):
  """Returns a list to which the batches of updates will be added."""
  batches = []
  put = partitioner.put_batch

  def recorded(batch):
    if 'advantages' in batch and np.any(batch.weights):
      batches.append(batch)
    return put(batch)

  monkeypatch.setattr(partitioner, 'put_batch', recorded)
  return batches


@pytest.mark.parametrize('temperature', [*nightly.cases(1.0), 0.7])
def test_a_rollout_is_learned_in_several_updates(
  tmp_path, monkeypatch, temperature
):
  task = _task(learning_rate=0.1, temperature=temperature)
  program, partitioner, inp = _program(
    tmp_path, task, rollout_batches=2, rollout_epochs=2
  )
  batches = _recorded_batches(program, partitioner, monkeypatch)
  state = partitioner.initialize(jax.random.key(1))
  expected_prompts = np.concatenate(
    [
      inp.read(inp.indices(x), x).prompt_index
      for x in (np.arange(0, 8), np.arange(8, 16))
    ]
  )
  outputs, resumable = [], []
  for step in range(4):
    resumable.append(program.is_resumable(step))
    outputs.append(program.run(state, step))
    state = outputs[-1].state
  assert resumable == [True, False, False, False]
  assert program.is_resumable(4)
  first, second, *again = batches
  np.testing.assert_array_equal(
    np.concatenate([first.prompt_index, second.prompt_index]), expected_prompts
  )
  assert again[0] is first
  assert again[1] is second
  scalars = [x.weighted_scalars for x in outputs]
  # The policy of the first update is that of the samples.
  assert float(scalars[0]['old_policy_kl'][0]) < 1e-10
  assert all(float(x['old_policy_kl'][0]) > 1e-6 for x in scalars[1:])
  assert len({float(x['reward'][0]) for x in scalars}) == 1
  next_state = program.run(state, 4)
  assert len(batches) == 5
  assert batches[4].prompt_index.tolist() != first.prompt_index.tolist()
  assert float(next_state.weighted_scalars['old_policy_kl'][0]) < 1e-10
  # A job that stopped within a rollout samples again.
  resumed = programs.RolloutTrainProgram()
  resumed.setup(task, inp, partitioner, tmp_path / 'job', *_KEYS, 5, False)
  output = resumed.run(next_state.state, 5)
  assert len(batches) == 6
  assert batches[5].ids.tolist() not in [x.ids.tolist() for x in batches[:5]]
  assert float(output.weighted_scalars['old_policy_kl'][0]) < 1e-10


def test_a_stop_between_the_batches_of_a_rollout_keeps_both(
  tmp_path, monkeypatch
):
  program, _, inp = _program(tmp_path, rollout_batches=2)
  read = inp.get_next_padded
  expected = inp.get_state()
  batches = iter([read])

  def interrupted():
    if next_read := next(batches, None):
      return next_read()
    raise preemption.PreemptedError

  monkeypatch.setattr(inp, 'get_next_padded', interrupted)
  with pytest.raises(preemption.PreemptedError):
    program._next_prompts()
  assert inp.get_state() == expected


def test_steps_that_end_within_a_rollout_are_refused(tmp_path):
  with pytest.raises(ValueError, match='num_train_steps must be a multiple'):
    _program(tmp_path, rollout_batches=3)
  task = _task()
  task.train.save_interval_steps = 3
  with pytest.raises(ValueError, match='save_interval_steps .* got 3'):
    _program(tmp_path, task, rollout_batches=2)


def test_the_step_that_samples_is_known_without_data(tmp_path):
  _, partitioner, _ = _program(tmp_path)
  input_p = pax_fiddle.Config(
    rewarded_prompts.RewardedPromptInput,
    max_prompt_len=_MAX_PROMPT_LEN,
    seq_len=_SEQ_LEN,
    rollout_batches=3,
  )
  program = programs.RolloutTrainProgram()
  [(name, step)] = program.steps_besides_update(partitioner, input_p).items()
  assert name == 'sampling'
  rows = step.lower().out_info.per_example_out
  assert {x.shape[0] for x in jax.tree.leaves(rows)} == {3 * 8}
