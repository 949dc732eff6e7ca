# SPDX-License-Identifier: Apache-2.0
"""The steps of distillation, against transformers and torch."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
import transformers

from pax import main
from pax.inputs.text import responses
from tests.compare import chat_models
from tests.integration import binary

# What its packages warn of is theirs.
pytestmark = pytest.mark.filterwarnings('ignore')

WEIGHT = 0.7
TEMPERATURE = 2.0


def write_teacher(folder, student):
  """Writes a random GPT-2 with the tokenizer of the student."""
  folder.mkdir()
  for file in student.glob('tokenizer*'):
    shutil.copy(file, folder)
  vocab_size = transformers.AutoConfig.from_pretrained(student).vocab_size
  config = transformers.GPT2Config(
    vocab_size=vocab_size,
    n_embd=48,
    n_layer=3,
    n_head=4,
    n_positions=chat_models.MAX_LENGTH,
    bos_token_id=0,
    eos_token_id=1,
    initializer_range=0.4,
  )
  transformers.set_seed(1)
  transformers.GPT2LMHeadModel(config).save_pretrained(folder)


def segment_logits(model, row):
  """Returns the logits [T, V] of a packed row, text by text."""
  ids = torch.tensor(row['ids']).long()
  parts = []
  for segment in dict.fromkeys(row['segment_ids'].tolist()):
    is_inside = torch.tensor(row['segment_ids'] == segment)
    parts.append(model(ids[is_inside][None]).logits[0])
  return torch.cat(parts)


def distillation_losses(student, teacher, batch):
  """Returns the loss, the mean of T^2 KL, and the share of equal tokens."""
  student_logits, teacher_logits = (
    torch.stack([
      segment_logits(model, {k: np.asarray(v[i]) for k, v in batch.items()})
      for i in range(len(batch['ids']))
    ])
    for model in (student, teacher)
  )  # fmt: skip
  labels = torch.tensor(np.asarray(batch['labels'])).long()
  weights = torch.tensor(np.asarray(batch['weights']))
  mean = lambda x: (x * weights).sum() / weights.sum()
  xent = torch.nn.functional.cross_entropy(
    student_logits.transpose(1, 2), labels, reduction='none'
  )
  kl = torch.nn.functional.kl_div(
    torch.log_softmax(student_logits / TEMPERATURE, dim=-1),
    torch.log_softmax(teacher_logits.detach() / TEMPERATURE, dim=-1),
    reduction='none',
    log_target=True,
  ).sum(-1)
  distillation = TEMPERATURE**2 * mean(kl)
  loss = (1 - WEIGHT) * mean(xent) + WEIGHT * distillation
  is_equal = student_logits.argmax(-1) == teacher_logits.argmax(-1)
  return loss, distillation, mean(is_equal.float())


def check_step(record, student, teacher, batch):
  """Compares the record of a step with that of two models on its batch."""
  model = transformers.LlamaForCausalLM.from_pretrained(
    student, dtype=torch.float32
  )
  teacher_model = transformers.GPT2LMHeadModel.from_pretrained(
    teacher, dtype=torch.float32
  )
  loss, distillation, agreement = distillation_losses(
    model, teacher_model, batch
  )
  loss.backward()
  squares = [torch.sum(x.grad**2) for x in model.parameters()]
  expected = {
    'loss': loss,
    'Metrics/distillation_loss': distillation,
    'Metrics/teacher_agreement': agreement,
    'learning/raw_grad_norm_scalar': torch.sqrt(torch.stack(squares).sum()),
  }
  for name, value in expected.items():
    np.testing.assert_allclose(
      record[name], value.item(), rtol=1e-4, err_msg=name
    )


@pytest.mark.parametrize('chunk_size', [16, 128])
def test_the_second_step_is_that_of_torch(tmp_path, monkeypatch, chunk_size):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  student, teacher, job, updated = (
    tmp_path / x for x in ('student', 'teacher', 'job', 'updated')
  )
  chat_models.write_model(student)
  write_teacher(teacher, student)
  lines = [
    {'prompt': f'x = {i} ' * (i % 3), 'completion': f'return {i} + y'}
    for i in range(12)
  ]
  (tmp_path / 'pairs.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  batches = []
  get_next = responses.ResponseInput.get_next

  def recorded(self):
    batches.append(get_next(self))
    return batches[-1]

  monkeypatch.setattr(responses.ResponseInput, 'get_next', recorded)
  words = [
    'pax',
    f'--exp={chat_models.EXP}',
    f'--job_log_dir={job}',
    f'--set=MODEL_DIR={student}',
    f'--init_from=hf:{student}',
    f'--set=TEACHER_DIR={teacher}',
    f'--set=DISTILLATION_WEIGHT={WEIGHT}',
    f'--set=DISTILLATION_TEMPERATURE={TEMPERATURE}',
    f'--set=task.model.chunk_size={chunk_size}',
    f'--set=TRAIN_FILES={tmp_path}/pairs.jsonl',
    '--set=OBJECTIVE=responses',
    '--set=FPROP_DTYPE=float32',
    '--set=HELD_OUT_PERCENT=0',
    '--set=EVAL_ON_TEST=False',
    '--set=BATCH_SIZE=2',
    '--set=MAX_SEQ_LEN=40',
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
  check_step(record, updated, teacher, batches[1])
