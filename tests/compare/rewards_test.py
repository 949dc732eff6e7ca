# SPDX-License-Identifier: Apache-2.0
"""The first step of GRPO, against transformers and torch."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from pax import main
from pax.programs.rollouts import rollout_batches
from tests.compare import chat_models
from tests.integration import binary

# What its packages warn of is theirs.
pytestmark = pytest.mark.filterwarnings('ignore')

BETA = 0.2
CLIP_LOW, CLIP_HIGH = 0.01, 0.02
NUM_SAMPLES = 4
MAX_PROMPT_LEN, MAX_RESPONSE_LEN = 32, 8


def letters(examples, responses):
  """Rewards letters; other prompts than the first twice as much."""
  pairs = zip(examples, responses, strict=True)
  return [(1 + (x['n'] > 0)) * sum(c.isalpha() for c in r) for x, r in pairs]


def policy_loss(
  policy,
  reference,
  batch,
  *,
  loss_mean,
  old=None,
  level='token',
  temperature=1.0,
):
  """Returns the loss of the papers of a batch of samples.

  Args:
    policy: The model that learns.
    reference: The model at the start.
    batch: The samples.
    loss_mean: `GRPO_LOSS_MEAN`.
    old: The model that has sampled; None is the policy.
    level: `GRPO_RATIO_LEVEL`.
    temperature: That of the samples.
  """
  arrays = {k: torch.tensor(np.asarray(v)) for k, v in batch.items()}
  weights = arrays['weights']

  def log_probs(network):
    mask = 1 - arrays['paddings'].long()
    logits = network(arrays['ids'].long(), attention_mask=mask).logits
    table = torch.log_softmax(logits / temperature, dim=-1)
    labels = arrays['labels'].long().unsqueeze(-1)
    return table.gather(-1, labels).squeeze(-1) * weights

  new, ref = log_probs(policy), log_probs(reference).detach()
  log_ratio = new - (new if old is None else log_probs(old)).detach()
  if level == 'sequence':
    log_ratio = (log_ratio.sum(1) / weights.sum(1)).unsqueeze(-1)
  ratio = torch.exp(log_ratio).expand(new.shape)
  clipped = torch.clamp(ratio, 1 - CLIP_LOW, 1 + CLIP_HIGH)
  values = arrays['advantages'].unsqueeze(-1)
  gain = torch.minimum(ratio * values, clipped * values)
  kl = torch.exp(ref - new) - (ref - new) - 1
  losses = -(gain - BETA * kl)
  if loss_mean == 'tokens':
    return (losses * weights).sum() / weights.sum()
  if loss_mean == 'max_length':
    return (losses * weights).sum() / (len(weights) * MAX_RESPONSE_LEN)
  return ((losses * weights).sum(1) / weights.sum(1)).mean()


@pytest.fixture(name='folder')
def _folder(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  chat_models.write_model(tmp_path / 'model')
  lines = [
    {'prompt': [{'role': 'user', 'content': f'x = {i}'}], 'n': i}
    for i in range(3)
  ]
  (tmp_path / 'prompts.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  return tmp_path / 'model'


@pytest.fixture(name='batches')
def _batches(monkeypatch):
  """The batches of updates so far."""
  batches = []
  make_batch = rollout_batches.train_batch

  def recorded(*args):
    batches.append(make_batch(*args))
    return batches[-1]

  monkeypatch.setattr(rollout_batches, 'train_batch', recorded)
  return batches


def train(folder, job, *words):
  """Trains the model of a folder with rewards; returns records of its steps."""
  words = [
    'pax',
    f'--exp={chat_models.EXP}',
    f'--job_log_dir={job}',
    f'--set=MODEL_DIR={folder}',
    f'--init_from=hf:{folder}',
    f'--set=TRAIN_FILES={folder.parent}/prompts.jsonl',
    '--set=OBJECTIVE=rewards',
    f'--set=REWARDS={__name__}:letters',
    f'--set=GRPO_BETA={BETA}',
    f'--set=GRPO_CLIP_LOW={CLIP_LOW}',
    f'--set=GRPO_CLIP_HIGH={CLIP_HIGH}',
    f'--set=NUM_SAMPLES={NUM_SAMPLES}',
    '--set=FPROP_DTYPE=float32',
    '--set=HELD_OUT_PERCENT=0',
    '--set=EVAL_ON_TEST=False',
    '--set=BATCH_SIZE=8',
    f'--set=MAX_SEQ_LEN={MAX_PROMPT_LEN + MAX_RESPONSE_LEN}',
    f'--set=MAX_PROMPT_LEN={MAX_PROMPT_LEN}',
    '--set=WARMUP_STEPS=0',
    '--set=LEARNING_RATE=0.003',
    '--set=task.train.summary_interval_steps=1',
    *(f'--set={word}' for word in words),
  ]
  assert main.main(words) == 0
  return [x for x in binary.records(job) if x['split'] == 'train']


def exported(job, step):
  """Returns the policy of a job after a step, as transformers reads it."""
  folder = job.parent / f'{job.name}_{step}'
  words = ['pax', 'convert', 'pax-to-hf', str(job), str(folder)]
  assert main.main([*words, f'--step={step}']) == 0
  return read(folder)


def read(folder):
  return transformers.LlamaForCausalLM.from_pretrained(
    folder, dtype=torch.float32
  )


def check_step(record, policy, loss):
  """Compares loss and gradient norm of a step."""
  np.testing.assert_allclose(record['loss'], loss.item(), rtol=1e-4, atol=1e-6)
  loss.backward()
  squares = [torch.sum(x.grad**2) for x in policy.parameters()]
  norm = torch.sqrt(torch.stack(squares).sum()).item()
  np.testing.assert_allclose(
    record['learning/raw_grad_norm_scalar'], norm, rtol=1e-4
  )


@pytest.mark.parametrize(
  ('loss_mean', 'temperature'),
  [('tokens', 1.0), ('samples', 1.0), ('max_length', 1.0), ('tokens', 0.6)],
)
def test_the_second_step_is_that_of_torch(
  tmp_path, folder, batches, loss_mean, temperature
):
  job = tmp_path / 'job'
  records = train(
    folder,
    job,
    f'GRPO_LOSS_MEAN={loss_mean}',
    f'ROLLOUT_TEMPERATURE={temperature}',
    'NUM_TRAIN_STEPS=2',
    'CHECKPOINT_EVERY_N_STEPS=1',
  )
  # The first update has changed the policy.
  assert records[1]['Metrics/kl'] > 0.001
  policy = exported(job, 1)
  loss = policy_loss(
    policy,
    read(folder),
    batches[1],
    loss_mean=loss_mean,
    temperature=temperature,
  )
  check_step(records[1], policy, loss)


@pytest.mark.parametrize(
  ('level', 'temperature'),
  [('token', 1.0), ('sequence', 1.0), ('token', 1.5)],
)
def test_the_second_update_of_a_rollout_is_that_of_torch(
  tmp_path, folder, batches, level, temperature
):
  first_job = tmp_path / 'first'
  setting = f'ROLLOUT_TEMPERATURE={temperature}'
  steps = ['NUM_TRAIN_STEPS=1', 'CHECKPOINT_EVERY_N_STEPS=1']
  train(folder, first_job, setting, *steps)
  policy = exported(first_job, 1)
  batches.clear()
  records = train(
    folder,
    tmp_path / 'job',
    setting,
    f'GRPO_RATIO_LEVEL={level}',
    'ROLLOUT_EPOCHS=2',
    'NUM_TRAIN_STEPS=2',
    'CHECKPOINT_EVERY_N_STEPS=2',
  )
  assert len(batches) == 1
  assert records[0]['Metrics/clipped_fraction'] == 0.0
  assert 0.1 < records[1]['Metrics/clipped_fraction'] < 0.9
  start = read(folder)
  loss = policy_loss(
    policy,
    start,
    batches[0],
    loss_mean='tokens',
    old=start,
    level=level,
    temperature=temperature,
  )
  check_step(records[1], policy, loss)
