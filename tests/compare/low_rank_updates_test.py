# SPDX-License-Identifier: Apache-2.0
"""Low-rank updates, against transformers and PEFT."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import peft
import pytest
import torch
import transformers

from pax import main
from pax.checkpoints import leaf_writer, paths
from pax.checkpoints.types import CheckpointType
from pax.huggingface import (
  adapter_leaves,
  conversion,
  model_folder,
  side_folder,
)
from pax.inputs.text import responses
from pax.tasks.lm import low_rank_tasks
from tests.compare import chat_models, preferences_test
from tests.compare import huggingface_references as references
from tests.integration import binary
from tests.pax.huggingface import loaded_models, reference_models

# What its packages warn of is theirs.
pytestmark = pytest.mark.filterwarnings('ignore')

_TOLERANCE = 1e-4
_RANK, _ALPHA = 3, 7.0
# Projections that are tensors of their own or parts of them, or experts.
_EXPERTS = ('deepseek_v3', 'gemma4_moe', 'gpt_oss', 'mixtral', 'qwen3_next')
_MODELS = (
  *(
    'gemma',
    'gemma4',
    'gemma4_e2b',
    'gpt2',
    'llama3',
    'phi3',
    'qwen3_5',
    't5',
    't5_1_1',
  ),
  *_EXPERTS,
)


def _random_updates(shapes):
  """Returns factors that are far from zero, and the scale, by path."""
  numbers = np.random.default_rng(0)

  def draw(path, x):
    name = path[-1].key
    if name == 'lora_scale':
      return jnp.full(x.shape, _ALPHA / _RANK, x.dtype)
    if 'lora_' not in name:
      return None
    if name.endswith('magnitude_delta'):
      return jnp.asarray(0.05 * numbers.uniform(size=x.shape), x.dtype)
    return jnp.asarray(0.15 * numbers.normal(size=x.shape), x.dtype)

  return jax.tree_util.tree_map_with_path(draw, shapes)


def _merge(tree, other):
  """Returns a tree with the leaves of two."""
  if other is None or not isinstance(tree, dict):
    return tree if other is None else other
  return {
    key: _merge(tree.get(key), other.get(key))
    for key in dict.fromkeys((*tree, *other))
  }


def _write_job(job, folder, variables):
  side_folder.write(folder, job)
  leaves = {'step': np.zeros((), np.uint32)}
  for path, x in jax.tree_util.tree_flatten_with_path(variables)[0]:
    name = '.'.join(str(key.key) for key in path)
    leaves[f'mdl_vars.{name}'] = np.asarray(x)
  name = paths.checkpoint_name(0, CheckpointType.GDA)
  leaf_writer.write_leaves(
    job / paths.CHECKPOINTS / name, leaves.items(), step=0
  )


class _AdaptedModel:
  """A model of transformers with random updates in a checkpoint."""

  def __init__(self, name, targets, tmp_path, *, use_dora=False):
    self.base = tmp_path / 'base'
    self.job = tmp_path / 'job'
    model = references.make_model(name)
    model.save_pretrained(self.base)
    folder = model_folder.ModelFolder.open(self.base)
    updates = low_rank_tasks.LowRankSettings(
      rank=_RANK, alpha=_ALPHA, targets=targets, use_dora=use_dora
    )
    ours = loaded_models.LoadedModel(
      folder, references.NUM_NEW_TOKENS, change=updates.add_to_model
    )
    ids = reference_models.input_ids(model.config.vocab_size)
    decoder_ids = None
    if not ours.is_decoder:
      decoder_ids = reference_models.decoder_ids(model.config.vocab_size)
    random = _random_updates(ours.abstract_variables(ids, decoder_ids))
    variables = _merge(ours.variables, random)
    _write_job(self.job, folder, variables)
    self.logits = np.asarray(ours.logits_of(variables, ids, decoder_ids))[:, -1]
    self.greedy = ours.greedy_of(variables, ids)
    plain = _merge(variables, jax.tree.map(jnp.zeros_like, random))
    plain_logits = np.asarray(ours.logits_of(plain, ids, decoder_ids))[:, -1]
    assert np.std(self.logits - plain_logits) > 100 * _TOLERANCE

  def check(self, model):
    """Compares the logits and tokens with those of transformers."""
    outputs = references.outputs(model)
    np.testing.assert_allclose(
      self.logits, outputs['logits'], rtol=0, atol=_TOLERANCE
    )
    np.testing.assert_array_equal(self.greedy, outputs['greedy'])


@pytest.mark.parametrize('use_dora', [False, True])
@pytest.mark.parametrize('name', _MODELS)
def test_an_exported_model_has_the_updates(name, use_dora, tmp_path):
  adapted = _AdaptedModel(name, 'all', tmp_path, use_dora=use_dora)
  conversion.to_huggingface(adapted.job, tmp_path / 'output')
  adapted.check(references.load_model(tmp_path / 'output'))


@pytest.mark.parametrize('use_dora', [False, True])
@pytest.mark.parametrize('name', _MODELS)
def test_peft_adds_an_exported_adapter(name, use_dora, tmp_path):
  targets = 'attention' if name in _EXPERTS else 'all'
  adapted = _AdaptedModel(name, targets, tmp_path, use_dora=use_dora)
  conversion.to_peft(adapted.job, tmp_path / 'adapter')
  base = references.load_model(adapted.base)
  model = peft.PeftModel.from_pretrained(base, tmp_path / 'adapter')
  adapted.check(model.merge_and_unload())


# Modules with updates, some of which have a scale of their own.
_TARGETS = {
  'gpt2': ['c_attn', 'c_proj'],
  'gpt_oss': ['q_proj', 'o_proj'],
  'llama3': ['q_proj', 'v_proj', 'down_proj'],
  'phi3': ['qkv_proj', 'gate_up_proj'],
  't5': ['q', 'v', 'wi'],
}


@pytest.mark.parametrize('use_dora', [False, True])
@pytest.mark.parametrize('name', _TARGETS)
def test_an_adapter_of_peft_gives_its_logits(name, use_dora, tmp_path):
  model = references.make_model(name)
  model.save_pretrained(tmp_path / 'base')
  lora = peft.LoraConfig(
    r=_RANK,
    lora_alpha=_ALPHA,
    target_modules=_TARGETS[name],
    alpha_pattern={_TARGETS[name][0]: 2 * _ALPHA},
    use_rslora=True,
    fan_in_fan_out=name == 'gpt2',
    use_dora=use_dora,
    # Random factors.
    init_lora_weights=False,
  )
  adapted = peft.get_peft_model(model, lora)
  for key, x in adapted.named_parameters():
    if 'magnitude' in key:
      # Initially it is the norm of the sum.
      x.data *= 1.0 + 0.2 * torch.rand(x.shape)
  adapted.save_pretrained(tmp_path / 'adapter')
  updates = low_rank_tasks.LowRankSettings(
    rank=_RANK,
    alpha=_ALPHA,
    targets='attention' if name in _EXPERTS else 'all',
    use_dora=use_dora,
  )
  ours = loaded_models.LoadedModel(
    model_folder.ModelFolder.open(tmp_path / 'base'),
    references.NUM_NEW_TOKENS,
    change=updates.add_to_model,
  )
  ids = reference_models.input_ids(model.config.vocab_size)
  decoder_ids = None
  if not ours.is_decoder:
    decoder_ids = reference_models.decoder_ids(model.config.vocab_size)
  fresh = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype),
    ours.abstract_variables(ids, decoder_ids),
  )
  leaf = lambda path: '.'.join(['mdl_vars', *(str(key.key) for key in path)])
  state = {
    leaf(path): x for path, x in jax.tree_util.tree_flatten_with_path(fresh)[0]
  }
  leaves = adapter_leaves.AdapterLeaves.open(
    tmp_path / 'adapter', tmp_path / 'base', state, state.__getitem__
  ).arrays
  variables = jax.tree_util.tree_map_with_path(
    lambda path, x: leaves.get(leaf(path), x), _merge(fresh, ours.variables)
  )
  logits = np.asarray(ours.logits_of(variables, ids, decoder_ids))[:, -1]
  outputs = references.outputs(adapted.merge_and_unload())
  np.testing.assert_allclose(logits, outputs['logits'], atol=_TOLERANCE)
  without = _merge(fresh, ours.variables)
  without = np.asarray(ours.logits_of(without, ids, decoder_ids))[:, -1]
  assert np.std(logits - without) > 100 * _TOLERANCE


def _mean_loss(model, batch):
  """Returns the mean loss of packed rows, whose texts are scored alone."""
  rows = []
  for row in range(len(batch.ids)):
    ids, labels, segments = (
      torch.tensor(np.asarray(x[row])).long()
      for x in (batch.ids, batch.labels, batch.segment_ids)
    )
    logits = [
      model(ids[segments == i][None]).logits[0]
      for i in dict.fromkeys(segments.tolist())
    ]
    rows.append(
      torch.nn.functional.cross_entropy(
        torch.cat(logits), labels, reduction='none'
      )
    )
  weights = torch.tensor(np.asarray(batch.weights))
  return (torch.stack(rows) * weights).sum() / weights.sum()


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  chat_models.write_model(tmp_path / 'model')
  return tmp_path / 'model'


@pytest.fixture
def batches(monkeypatch):
  """The batches of responses that a job has read."""
  read = []
  get_next = responses.ResponseInput.get_next

  def recorded(self):
    read.append(get_next(self))
    return read[-1]

  monkeypatch.setattr(responses.ResponseInput, 'get_next', recorded)
  return read


def _train(folder, job, lines, *words):
  """Trains two steps on JSON lines; returns their records."""
  file = job.with_suffix('.jsonl')
  file.write_text('\n'.join(map(json.dumps, lines)))
  command = [
    'pax',
    f'--exp={chat_models.EXP}',
    f'--job_log_dir={job}',
    f'--set=MODEL_DIR={folder}',
    f'--init_from=hf:{folder}',
    f'--set=LORA_RANK={_RANK}',
    f'--set=TRAIN_FILES={file}',
    '--set=FPROP_DTYPE=float32',
    '--set=HELD_OUT_PERCENT=0',
    '--set=EVAL_ON_TEST=False',
    '--set=BATCH_SIZE=2',
    '--set=MAX_SEQ_LEN=40',
    '--set=NUM_TRAIN_STEPS=2',
    '--set=WARMUP_STEPS=0',
    '--set=CHECKPOINT_EVERY_N_STEPS=1',
    '--set=task.train.summary_interval_steps=1',
    *words,
  ]
  assert main.main(command) == 0
  return [x for x in binary.records(job) if x['split'] == 'train']


def _export(job, name, *flags):
  output = job.with_name(name)
  command = ['pax', 'convert', 'pax-to-hf', str(job), str(output), *flags]
  assert main.main(command) == 0
  return output


@pytest.mark.parametrize(
  ('repeats_layers', 'use_dora'),
  [(False, False), (True, False), (False, True), (True, True)],
)
def test_the_second_step_is_that_of_peft(
  tmp_path, folder, batches, repeats_layers, use_dora
):
  job = tmp_path / 'job'
  lines = [
    {'prompt': f'x = {i} ' * (i % 3), 'completion': f'return {i} + y'}
    for i in range(12)
  ]
  first, second = _train(
    folder,
    job,
    lines,
    '--set=OBJECTIVE=responses',
    f'--set=USE_REPEATED_LAYER={repeats_layers}',
    f'--set=LORA_ALPHA={_ALPHA}',
    f'--set=LORA_USE_DORA={use_dora}',
    '--set=LEARNING_RATE=0.03',
  )
  updated = references.load_model(_export(job, 'updated', '--step=1'))
  adapter = _export(job, 'adapter', '--step=1', '--adapter')
  base = references.load_model(folder)
  # The first step has changed the model.
  base_loss = _mean_loss(base, batches[0]).item()
  np.testing.assert_allclose(first['loss'], base_loss, rtol=1e-5)
  assert abs(second['loss'] - first['loss']) > 0.01
  model = peft.PeftModel.from_pretrained(base, adapter, is_trainable=True)
  loss = _mean_loss(model, batches[1])
  np.testing.assert_allclose(second['loss'], loss.item(), rtol=1e-5)
  merged_loss = _mean_loss(updated, batches[1]).item()
  np.testing.assert_allclose(loss.item(), merged_loss, rtol=1e-5)
  loss.backward()
  learned = {k: x for k, x in model.named_parameters() if x.requires_grad}
  assert all('lora_' in name for name in learned)
  assert any('magnitude' in name for name in learned) == use_dora
  squares = [torch.sum(x.grad**2) for x in learned.values()]
  norm = torch.sqrt(torch.stack(squares).sum()).item()
  np.testing.assert_allclose(
    second['learning/raw_grad_norm_scalar'], norm, rtol=1e-4
  )


def test_preferences_compare_with_the_updates_at_the_start(tmp_path, folder):
  pair = {'prompt': 'x', 'completion': ' = y', **preferences_test.PAIR}
  first, second = tmp_path / 'first', tmp_path / 'second'
  words = ['--set=USE_REPEATED_LAYER=True', '--set=LEARNING_RATE=0.01']
  _train(folder, first, [pair] * 2, '--set=OBJECTIVE=responses', *words)
  words += ['--set=OBJECTIVE=preferences', f'--init_from={first}']
  _, record = _train(folder, second, [pair] * 2, *words)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  # The reference, and the policy before the second step.
  for name, output in (
    ('ref', _export(first, 'ref')),
    ('pi', _export(second, 'pi', '--step=1')),
  ):
    model = references.load_model(output)
    for ours, theirs in (('y_w', 'chosen'), ('y_l', 'rejected')):
      log_prob = preferences_test.log_prob(model, tokenizer, pair[theirs])
      np.testing.assert_allclose(
        record[f'dpo/{ours}_{name}_log_p_scalar'], log_prob.item(), rtol=1e-5
      )
  policy, reference = (
    record[f'dpo/y_w_{x}_log_p_scalar'] for x in ('pi', 'ref')
  )
  assert abs(policy - reference) > 1e-3
