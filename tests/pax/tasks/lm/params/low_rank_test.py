# SPDX-License-Identifier: Apache-2.0
"""Low-rank updates of models of Hugging Face, by the command line."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: deps=//tests/pax/tasks/lm/params:quantized_models
# bazel: size=large
from __future__ import annotations

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import main
from pax.checkpoints import checkpoint_reader, paths
from pax.huggingface import model_folder, safetensors
from pax.inputs.tokens import tokenizers
from pax.runner import overrides
from pax.tasks.lm.params import huggingface
from praxis import py_utils
from tests.integration import binary
from tests.pax.huggingface import job_runs, loaded_models, reference_models
from tests.pax.tasks.lm import tiny_training
from tests.testing import nightly

_WORDS = (
  '--set=LORA_RANK=3',
  '--set=LORA_ALPHA=6.0',
  '--set=EVAL_ON_TEST=False',
  '--set=WARMUP_STEPS=0',
  '--set=LEARNING_RATE=0.02',
  '--set=task.train.summary_interval_steps=1',
)
_PAIRS = [
  {'prompt': 'a b', 'chosen': f'c {i}', 'rejected': f'{i} d', 'completion': 'e'}
  for i in range(8)
]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return reference_models.write_byte_model(
    tmp_path_factory.mktemp('model') / 'model', 'qwen3', num_layers=1
  )


@pytest.fixture(scope='module')
def plain(tmp_path_factory, folder):
  """A job of two steps with updates, whose magnitudes are not learned."""
  job = tmp_path_factory.mktemp('plain') / 'job'
  assert _train(folder, job, '--set=NUM_TRAIN_STEPS=2') == 0
  return job


@pytest.fixture
def pairs(tmp_path):
  file = tmp_path / 'pairs.jsonl'
  file.write_text('\n'.join(map(json.dumps, _PAIRS)))
  return f'--set=TRAIN_FILES={file}'


def _train(folder, job, *words, exp='Qwen3'):
  """Trains a job; returns the exit code."""
  return job_runs.run(exp, folder, job, *_WORDS, *words)


def _export(job, output, *flags):
  words = ['pax', 'convert', 'pax-to-hf', str(job), str(output), *flags]
  return main.main(words)


def _infer(folder, job, *flags):
  return [
    'pax',
    '--exp=tasks.lm.params.huggingface.Qwen3',
    f'--job_log_dir={job}',
    '--set=FPROP_DTYPE=float32',
    *job_runs.decoder_words(folder),
    *flags,
  ]


def _is_factor(leaf):
  pattern = r'\.(\w+_)?lora_(a|b|magnitude_delta)$'
  return re.search(pattern, leaf) is not None


def _check_frozen(leaves, first):
  """Checks that all variables but factors are those of another checkpoint."""
  variables = [x for x in leaves if x.startswith('mdl_vars.')]
  changed = [x for x in variables if (leaves[x] != first[x]).any()]
  assert changed
  assert all(map(_is_factor, changed))
  states = [x for x in leaves if x.startswith('opt_states') and leaves[x].ndim]
  assert states
  assert all(map(_is_factor, states))


def _check_saved_once(job):
  """Checks that only the frozen checkpoint has variables of the model."""
  folder = job / 'checkpoints'
  steps = paths.steps(folder)
  assert len(steps) > 1
  (frozen,) = folder.glob('frozen_*')
  for path in steps.values():
    reader = checkpoint_reader.CheckpointReader(path)
    assert reader.frozen_checkpoint == frozen.name
    variables = {x for x in reader.shapes if x.startswith('mdl_vars.')}
    assert reader.frozen_leaves == {x for x in variables if not _is_factor(x)}


@pytest.mark.parametrize('use_dora', [False, *nightly.cases(True)])
def test_updates_alone_learn_continue_and_are_exported(
  tmp_path, folder, use_dora, capfd
):
  job, cut, output = (tmp_path / x for x in ('job', 'cut', 'output'))
  dora = f'--set=LORA_USE_DORA={use_dora}'
  words = ['--set=NUM_TRAIN_STEPS=20', '--set=LORA_DROPOUT=0.1', dora]
  words.append('--set=task.train.save_interval_steps=10')
  assert _train(folder, job, *words) == 0, capfd.readouterr().err
  whole = job_runs.read_leaves(job)
  # As if the job had been stopped after its half.
  shutil.copytree(job, cut)
  shutil.rmtree(cut / 'checkpoints/checkpoint_00000020')
  first = job_runs.read_leaves(cut)
  assert _train(folder, cut, *words) == 0
  resumed = job_runs.read_leaves(cut)
  for name, value in whole.items():
    np.testing.assert_array_equal(resumed[name], value, err_msg=name)
  _check_frozen(whole, first)
  _check_saved_once(cut)
  losses = list(binary.losses(job).values())
  assert losses[-1] < losses[0] - 0.5
  # The model with its updates writes the same texts.
  assert _export(job, output) == 0
  before, after = map(safetensors.read_folder, (folder, output))
  assert list(before) == list(after)
  adapter = tmp_path / 'adapter'
  assert _export(job, adapter, '--adapter') == 0
  texts = {name: _greedy_texts(name) for name in (folder, output)}
  for name, *flags in (
    ('job', *_WORDS),
    (
      'adapter',
      f'--init_from=hf:{folder}',
      '--set=LORA_RANK=4',
      '--set=LORA_ALPHA=1.0',
      f'--set=LORA_ADAPTER_DIR={adapter}',
    ),
  ):
    flags += [f'--set=MODEL_DIR={folder}', '--mode=infer', dora]
    words = _infer(folder, tmp_path / name, *flags)
    assert main.main(words) == 0, capfd.readouterr().err
    decoded = job_runs.decoded(tmp_path / name, 'infer')
    texts[name] = {prompt: text for prompt, (_, text) in decoded.items()}
  assert texts['job'] == texts[output] == texts['adapter']
  assert texts['job'] != texts[folder]


def _greedy_texts(folder):
  """Returns the likeliest text of a model by its prompt."""
  num_tokens = job_runs.DECODE_SEQ_LEN // 2
  model = loaded_models.LoadedModel(
    model_folder.ModelFolder.open(folder), num_tokens
  )
  texts = {}
  for prompt in job_runs.PROMPTS:
    ids = np.array([[256, *prompt.encode()]], np.int32)
    texts[prompt] = tokenizers.ByteTokenizer().decode(model.greedy(ids)[0])
  return texts


@pytest.mark.nightly
def test_magnitudes_are_not_lost(tmp_path, folder, plain, capfd):
  dora, other = tmp_path / 'dora', tmp_path / 'other'
  steps, on = '--set=NUM_TRAIN_STEPS=2', '--set=LORA_USE_DORA=True'
  assert _train(folder, dora, steps, on) == 0, capfd.readouterr().err
  # The first loss is that of the model.
  first = [binary.losses(job)[0] for job in (plain, dora)]
  assert first[0] == pytest.approx(first[1], abs=1e-3)
  magnitudes = {
    k: v for k, v in job_runs.read_leaves(dora).items() if 'magnitude' in k
  }
  learned = [v for k, v in magnitudes.items() if k.startswith('mdl_vars')]
  assert learned and all(v.any() for v in learned)
  assert any(k.startswith('opt_states') for k in magnitudes)
  for job, source, words, message in (
    (other, dora, [], 'set LORA_USE_DORA=True and'),
    (other, plain, [on], 'set LORA_USE_DORA=False, or write them'),
    (dora, None, [], 'set LORA_USE_DORA=True and'),
  ):
    init = [f'--init_from={source}'] if source else ['--set=NUM_TRAIN_STEPS=3']
    capfd.readouterr()
    assert _train(folder, job, *words, *init) == 1
    assert message in capfd.readouterr().err
  adapter = tmp_path / 'adapter'
  assert _export(dora, adapter, '--adapter') == 0
  assert _train(folder, other, f'--set=LORA_ADAPTER_DIR={adapter}') == 1
  assert 'LORA_USE_DORA must be True for' in capfd.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize(
  ('objective', 'use_dora'),
  [('responses', False), ('preferences', False), ('preferences', True)],
)
def test_a_job_continues_with_the_updates_of_another(
  tmp_path, folder, pairs, objective, use_dora, capfd
):
  first, second = tmp_path / 'first', tmp_path / 'second'
  common = [pairs, '--set=NUM_TRAIN_STEPS=3', f'--set=LORA_USE_DORA={use_dora}']
  objective = f'--set=OBJECTIVE={objective}'
  assert _train(folder, first, '--set=OBJECTIVE=responses', *common) == 0
  words = [*common, objective, f'--init_from={first}']
  assert _train(folder, second, *words) == 0, capfd.readouterr().err
  learned, leaves = map(job_runs.read_leaves, (first, second))
  for leaf, value in leaves.items():
    if '.ref_lora' in leaf:
      leaf_of_policy = leaf.replace('ref_', '').replace('.mdl.', '.lm.')
      np.testing.assert_array_equal(value, learned[leaf_of_policy])
  if 'preferences' in objective:
    assert any('.ref_lora_b' in leaf for leaf in leaves)
    assert not any('ref_mdl' in leaf for leaf in leaves)
    assert list(binary.losses(second).values())[0] == pytest.approx(np.log(2))
  else:
    assert not any('.ref_lora' in leaf for leaf in leaves)
  # It has what its model has besides variables.
  assert _export(second, tmp_path / 'output') == 0, capfd.readouterr().err
  for file in folder.iterdir():
    assert (tmp_path / 'output' / file.name).exists()


@pytest.mark.parametrize(
  'setting',
  [
    *nightly.cases('LORA_RANK=0'),
    'LORA_RANK=2',
    *nightly.cases('LORA_TARGET_LAYERS=mlp'),
  ],
)
def test_jobs_are_refused_without_the_same_updates(
  setting, tmp_path, folder, plain, capfd
):
  words = [f'--init_from={plain}', f'--set={setting}']
  assert _train(folder, tmp_path / 'job', *words) == 1
  message = capfd.readouterr().err
  assert 'must have the low-rank updates' in message
  assert 'set LORA_RANK=3' in message


def test_texts_need_the_updates_of_the_checkpoint(folder, plain, capfd):
  words = _infer(folder, plain, f'--set=MODEL_DIR={folder}', '--mode=infer')
  assert main.main(words) == 1
  assert 'set LORA_RANK=3 and' in capfd.readouterr().err


@pytest.mark.nightly
def test_meshes_and_repeated_layers_have_the_same_losses(
  tmp_path, folder, pairs, capfd
):
  losses = {}
  for name, flags in {
    'one': [],
    'sharded': ['ICI_MESH_SHAPE=[1,2,2]'],
    'repeated': ['USE_REPEATED_LAYER=True', 'ICI_MESH_SHAPE=[1,2,1]'],
    'replicas': ['ICI_MESH_SHAPE=None'],
  }.items():
    job = tmp_path / name
    words = [f'--set={x}' for x in (*flags, 'OBJECTIVE=preferences')]
    words.append('--set=BATCH_SIZE=8')
    steps = '--set=NUM_TRAIN_STEPS=3'
    assert _train(folder, job, pairs, *words, steps) == 0, (
      capfd.readouterr().err
    )
    losses[name] = list(binary.losses(job).values())
  # Factors of A are random, and those of a stack are other ones.
  for name in ('sharded', 'replicas'):
    np.testing.assert_allclose(losses[name], losses['one'], rtol=1e-5)
  np.testing.assert_allclose(losses['repeated'][0], losses['one'][0], rtol=1e-5)


@pytest.mark.parametrize('use_dora', [False, True])
def test_frozen_variables_are_declared_in_the_dtype_of_the_computation(
  folder, use_dora
):
  settings = ['FPROP_DTYPE=bfloat16', 'LORA_RANK=3', f'MODEL_DIR={folder}']
  settings.append(f'LORA_USE_DORA={use_dora}')
  constants = overrides.parse(settings)
  experiment = overrides.set_constants(huggingface.Qwen3, constants)()
  declared = (
    experiment.task()
    .model.Instantiate()
    .abstract_init_with_metadata(jax.eval_shape(tiny_training.batch))
  )
  names = set()
  for path, weight in py_utils.tree_paths(declared):
    *_, name = path.split('/')
    names.add(name)
    is_of_update = name.startswith('lora_')
    assert weight.dtype == (jnp.float32 if is_of_update else jnp.bfloat16), path
  assert {'w', 'lora_a', 'lora_b'} < names
  assert ('lora_magnitude_delta' in names) == use_dora


@pytest.mark.nightly
def test_frozen_variables_have_the_dtype_of_the_computation(
  tmp_path, folder, capfd
):
  job = tmp_path / 'job'
  words = ['--set=FPROP_DTYPE=bfloat16', '--set=NUM_TRAIN_STEPS=1']
  assert _train(folder, job, *words) == 0, capfd.readouterr().err
  for leaf, value in job_runs.read_leaves(job).items():
    if leaf.startswith('mdl_vars.'):
      is_of_update = '.lora_' in leaf
      assert value.dtype == (np.float32 if is_of_update else jnp.bfloat16), leaf


@pytest.mark.nightly
def test_experts_and_layers_that_are_selected(tmp_path, capfd):
  folder = reference_models.write_byte_model(
    tmp_path / 'experts', 'deepseek_v3'
  )
  factors = {}
  for targets in ('all', 'attention'):
    job = tmp_path / targets
    words = [
      f'--set=LORA_TARGET_LAYERS={targets}',
      '--set=NUM_TRAIN_STEPS=1',
      '--set=USE_REPEATED_LAYER=False',
    ]
    assert _train(folder, job, *words, exp='DeepSeekV3') == 0, (
      capfd.readouterr().err
    )
    leaves = job_runs.read_leaves(job)
    factors[targets] = {x for x in leaves if x.endswith('lora_a')}
    factors[targets] = {x for x in factors[targets] if 'mdl_vars' in x}
    biases = [x for x in leaves if x.endswith('choice_bias')]
    assert biases
  of_attention = {x for x in factors['all'] if '.self_attention.' in x}
  assert factors['attention'] == of_attention
  assert any(x.endswith('wi_0_lora_a') for x in factors['all'] - of_attention)
  assert _export(tmp_path / 'all', tmp_path / 'output') == 0
  assert _export(tmp_path / 'all', tmp_path / 'adapter', '--adapter') == 1
  assert 'LORA_TARGET_LAYERS=attention' in capfd.readouterr().err
  assert _export(tmp_path / 'attention', tmp_path / 'adapter', '--adapter') == 0
  config = json.loads((tmp_path / 'adapter/adapter_config.json').read_text())
  # Queries, and likewise keys and values, are one tensor of two projections.
  assert config['r'] == 6
  assert set(config['rank_pattern'].values()) == {3}
  assert 'q_b_proj' in config['target_modules']


@pytest.mark.nightly
def test_integers_stay_while_updates_learn(tmp_path, capfd):
  folder = reference_models.write_byte_model(tmp_path / 'model', 'qwen3')
  base, job = tmp_path / 'base', tmp_path / 'job'
  words = [
    'pax',
    '--exp=tests.pax.tasks.lm.params.quantized_models.Int4Qwen3',
    f'--set=MODEL_DIR={folder}',
    '--set=FPROP_DTYPE=float32',
    *job_runs.decoder_words(folder),
  ]
  quantize = ['--mode=quantize', f'--init_from=hf:{folder}']
  assert main.main([*words, f'--job_log_dir={base}', *quantize]) == 0
  words += [
    f'--job_log_dir={job}',
    f'--init_from={base}',
    *_WORDS,
    '--set=NUM_TRAIN_STEPS=20',
  ]
  # Without updates no variable learns.
  frozen = '--set=task.train.learner.bprop_variable_exclusion=.*'
  assert main.main([*words, '--set=LORA_RANK=0', frozen]) == 1
  assert 'must have a variable that learns' in capfd.readouterr().err
  assert main.main(words) == 0, capfd.readouterr().err
  first, *_, last = binary.losses(job).values()
  assert last < first - 0.2
  before, after = map(job_runs.read_leaves, (base, job))
  weights = [x for x in before if x.endswith('.self_attention.query.w')]
  assert len(weights) == 2
  for leaf in weights:
    assert before[leaf].dtype == np.int32
    np.testing.assert_array_equal(before[leaf], after[leaf])
  assert _export(job, tmp_path / 'output') == 1
  assert 'updates of LORA_RANK by --adapter' in capfd.readouterr().err
  shallow = reference_models.write_byte_model(
    tmp_path / 'shallow', 'qwen3', num_layers=1
  )
  flags = ['--adapter', f'--config={shallow}']
  assert _export(job, tmp_path / 'adapter', *flags) == 1
  assert 'must be of a weight by config.json, 7 are not' in (
    capfd.readouterr().err
  )
  assert _export(job, tmp_path / 'adapter', '--adapter') == 0
  tensors = safetensors.read_folder(tmp_path / 'adapter')
  name = 'model.layers.1.self_attn.k_proj.lora_B.weight'
  np.testing.assert_array_equal(
    tensors[f'base_model.model.{name}'].read(),
    after[
      'mdl_vars.params.lm.transformer.x_layers_1.self_attention.key.lora_b'
    ],
  )


def test_values_that_are_not_supported(tmp_path, folder, capfd):
  words = ['--set=LORA_TARGET_LAYERS=heads']
  assert _train(folder, tmp_path / 'job', *words) == 1
  wanted = "LORA_TARGET_LAYERS must be one of ['all', 'attention', 'mlp']"
  assert wanted in capfd.readouterr().err
  absent = f'--set=LORA_ADAPTER_DIR={tmp_path}'
  assert _train(folder, tmp_path / 'job', absent) == 1
  assert 'must be a folder of PEFT' in capfd.readouterr().err
  (tmp_path / 'adapter_config.json').write_text('{}')
  assert _train(folder, tmp_path / 'job', absent, '--set=LORA_RANK=0') == 1
  assert 'needs LORA_RANK > 0 and MODEL_DIR' in capfd.readouterr().err
  plain = tmp_path / 'plain'
  assert (
    _train(folder, plain, '--set=LORA_RANK=0', '--set=NUM_TRAIN_STEPS=1') == 0
  )
  assert _export(plain, tmp_path / 'adapter', '--adapter') == 1
  assert 'got a checkpoint without' in capfd.readouterr().err
  assert (
    _export(plain, tmp_path / 'adapter', '--adapter', '--dtype=float32') == 1
  )
  assert 'leave out --dtype' in capfd.readouterr().err
