# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities and gradients of preferences, against transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from tests.compare import chat_models
from tests.integration import binary

# What its packages warn of is theirs.
pytestmark = pytest.mark.filterwarnings('ignore')

BETA = 0.3
PAIR = {
  'chosen': [
    {'role': 'user', 'content': 'def f'},
    {'role': 'assistant', 'content': 'return x + y'},
  ],
  'rejected': [
    {'role': 'user', 'content': 'def f'},
    {'role': 'assistant', 'content': 'while 1'},
  ],
}


def log_prob(model, tokenizer, messages) -> torch.Tensor:
  """Returns the log-probability of the last message after the others."""
  prompt = tokenizer.apply_chat_template(
    messages[:-1], add_generation_prompt=True, return_dict=True
  )['input_ids']
  ids = tokenizer.apply_chat_template(messages, return_dict=True)['input_ids']
  # The space at the end of the prompt and the first letter are one token.
  assert ids[: len(prompt)] != prompt
  assert ids[: len(prompt) - 1] == prompt[:-1]
  logits = model(torch.tensor([ids])).logits[0, :-1]
  table = torch.log_softmax(logits, dim=-1)
  chosen = table[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
  return chosen[len(prompt) - 2 :].sum()


def test_the_first_step_is_that_of_torch(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  folder, job = tmp_path / 'model', tmp_path / 'job'
  chat_models.write_model(folder)
  (tmp_path / 'pairs.jsonl').write_text(f'{json.dumps(PAIR)}\n' * 2)
  completed = binary.run(
    chat_models.EXP,
    job,
    f'--set=MODEL_DIR={folder}',
    f'--init_from=hf:{folder}',
    f'--set=TRAIN_FILES={tmp_path}/pairs.jsonl',
    '--set=OBJECTIVE=preferences',
    f'--set=DPO_BETA={BETA}',
    '--set=FPROP_DTYPE=float32',
    '--set=HELD_OUT_PERCENT=0',
    '--set=EVAL_ON_TEST=False',
    '--set=BATCH_SIZE=2',
    '--set=MAX_SEQ_LEN=40',
    '--set=NUM_TRAIN_STEPS=1',
    '--set=task.train.summary_interval_steps=1',
  )
  assert completed.returncode == 0, completed.stderr
  [record] = [x for x in binary.records(job) if x['split'] == 'train']
  model = transformers.LlamaForCausalLM.from_pretrained(
    folder, dtype=torch.float32
  )
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  log_probs = {x: log_prob(model, tokenizer, PAIR[x]) for x in PAIR}
  for ours, theirs in (('y_w', 'chosen'), ('y_l', 'rejected')):
    for network in ('pi', 'ref'):
      np.testing.assert_allclose(
        record[f'dpo/{ours}_{network}_log_p_scalar'],
        log_probs[theirs].item(),
        rtol=1e-5,
      )
  # Those of the reference, which is equal at the first step.
  margins = {x: log_probs[x] - log_probs[x].detach() for x in PAIR}
  margin = BETA * (margins['chosen'] - margins['rejected'])
  loss = -torch.nn.functional.logsigmoid(margin)
  np.testing.assert_allclose(record['loss'], loss.item(), rtol=1e-6)
  loss.backward()
  squares = [torch.sum(x.grad**2) for x in model.parameters()]
  norm = torch.sqrt(torch.stack(squares).sum()).item()
  np.testing.assert_allclose(
    record['learning/raw_grad_norm_scalar'], norm, rtol=1e-4
  )
