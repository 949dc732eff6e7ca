# SPDX-License-Identifier: Apache-2.0
"""The first step of GRPO, against transformers and torch."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from pax import main
from pax.programs import rollouts
from tests.compare import chat_models
from tests.integration import binary

# What its packages warn of is theirs.
pytestmark = pytest.mark.filterwarnings('ignore')

BETA = 0.2
NUM_SAMPLES = 4


def letters(examples, responses):
  """Rewards letters; other prompts than the first twice as much."""
  pairs = zip(examples, responses, strict=True)
  return [(1 + (x['n'] > 0)) * sum(c.isalpha() for c in r) for x, r in pairs]


def policy_loss(model, ref_model, batch, loss_mean):
  """Returns the loss of the paper of a batch of samples."""
  arrays = {k: torch.tensor(np.asarray(v)) for k, v in batch.items()}
  log_probs = []
  for network in (model, ref_model):
    mask = 1 - arrays['paddings'].long()
    logits = network(arrays['ids'].long(), attention_mask=mask).logits
    table = torch.log_softmax(logits, dim=-1)
    labels = arrays['labels'].long().unsqueeze(-1)
    log_probs.append(table.gather(-1, labels).squeeze(-1))
  policy, reference = log_probs[0], log_probs[1].detach()
  ratio = torch.exp(policy - policy.detach())
  clipped = torch.clamp(ratio, 0.8, 1.2)
  values = arrays['advantages'].unsqueeze(-1)
  gain = torch.minimum(ratio * values, clipped * values)
  kl = torch.exp(reference - policy) - (reference - policy) - 1
  losses = -(gain - BETA * kl)
  weights = arrays['weights']
  if loss_mean == 'tokens':
    return (losses * weights).sum() / weights.sum()
  return ((losses * weights).sum(1) / weights.sum(1)).mean()


@pytest.mark.parametrize('loss_mean', ['tokens', 'samples'])
def test_the_second_step_is_that_of_torch(tmp_path, monkeypatch, loss_mean):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  folder, job, updated = (tmp_path / x for x in ('model', 'job', 'updated'))
  chat_models.write_model(folder)
  lines = [
    {'prompt': [{'role': 'user', 'content': f'x = {i}'}], 'n': i}
    for i in range(3)
  ]
  (tmp_path / 'prompts.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  batches = []
  make_batch = rollouts.train_batch

  def recorded(*args):
    batches.append(make_batch(*args))
    return batches[-1]

  monkeypatch.setattr(rollouts, 'train_batch', recorded)
  words = [
    'pax',
    f'--exp={chat_models.EXP}',
    f'--job_log_dir={job}',
    f'--set=MODEL_DIR={folder}',
    f'--init_from=hf:{folder}',
    f'--set=TRAIN_FILES={tmp_path}/prompts.jsonl',
    '--set=OBJECTIVE=rewards',
    f'--set=REWARDS={__name__}:letters',
    f'--set=GRPO_BETA={BETA}',
    f'--set=GRPO_LOSS_MEAN={loss_mean}',
    f'--set=NUM_SAMPLES={NUM_SAMPLES}',
    '--set=FPROP_DTYPE=float32',
    '--set=HELD_OUT_PERCENT=0',
    '--set=EVAL_ON_TEST=False',
    '--set=BATCH_SIZE=8',
    '--set=MAX_SEQ_LEN=40',
    '--set=MAX_PROMPT_LEN=32',
    '--set=NUM_TRAIN_STEPS=2',
    '--set=WARMUP_STEPS=0',
    '--set=LEARNING_RATE=0.003',
    '--set=CHECKPOINT_EVERY_N_STEPS=1',
    '--set=task.train.summary_interval_steps=1',
  ]
  assert main.main(words) == 0
  convert = ['pax', 'convert', 'pax-to-hf', str(job), str(updated), '--step=1']
  assert main.main(convert) == 0
  record = [x for x in binary.records(job) if x['split'] == 'train'][1]
  reference, model = (
    transformers.LlamaForCausalLM.from_pretrained(x, dtype=torch.float32)
    for x in (folder, updated)
  )
  # The first update has changed the policy.
  assert record['Metrics/kl'] > 0.001
  loss = policy_loss(model, reference, batches[1], loss_mean)
  np.testing.assert_allclose(record['loss'], loss.item(), rtol=1e-4, atol=1e-6)
  loss.backward()
  squares = [torch.sum(x.grad**2) for x in model.parameters()]
  norm = torch.sqrt(torch.stack(squares).sum()).item()
  np.testing.assert_allclose(
    record['learning/raw_grad_norm_scalar'], norm, rtol=1e-4
  )
