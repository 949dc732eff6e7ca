# SPDX-License-Identifier: Apache-2.0
"""Students of teachers in folders of Hugging Face, by the command line."""

# bazel: deps=//pax:main_lib,//pax/tasks:experiments
# bazel: size=large
from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from pax import main
from pax.huggingface import safetensors
from pax.inputs.tokens import tokenizers
from pax.runner import overrides
from pax.tasks.lm.params import huggingface, huggingface_model
from tests.integration import binary
from tests.pax.huggingface import job_runs, reference_models

_WORDS = (
  '--set=EVAL_ON_TEST=False',
  '--set=WARMUP_STEPS=0',
  '--set=LEARNING_RATE=0.01',
  '--set=task.train.summary_interval_steps=1',
)


def _train(student, teacher, job, *words):
  """Trains the student on a job; returns the exit code."""
  words = [*_WORDS, f'--set=TEACHER_DIR={teacher}', *words]
  return job_runs.run('Qwen3', student, job, *words)


@pytest.fixture
def student(tmp_path):
  return reference_models.write_byte_model(
    tmp_path / 'student', 'qwen3', num_layers=1
  )


@pytest.fixture
def teacher(tmp_path):
  return reference_models.write_byte_model(tmp_path / 'teacher', 'gpt2')


def _records(job):
  return [x for x in binary.records(job) if x['split'] == 'train']


def _check_teacher(leaves, folder):
  """Checks that the teacher has its weights and no states of the optimizer."""
  weights = {
    'softmax.w': 'wte.weight',
    'position_emb.emb_var': 'wpe.weight',
    'transformer.x_layers_1.ff_layer.ffn_layer2.linear.w': (
      'h.1.mlp.c_proj.weight'
    ),
  }
  tensors = safetensors.read_folder(folder)
  for variable, name in weights.items():
    [tensor] = [x for x in tensors if x.endswith(name)]
    np.testing.assert_array_equal(
      leaves[f'mdl_vars.params.teacher_lm.{variable}'], tensors[tensor].read()
    )
  of_teacher = [x for x in leaves if 'teacher_lm' in x]
  assert len(of_teacher) == 28
  assert all(x.startswith('mdl_vars.params.') for x in of_teacher)


def test_the_student_alone_learns_continues_and_is_exported(
  tmp_path, student, teacher, capfd
):
  job, cut, output = (tmp_path / x for x in ('job', 'cut', 'output'))
  words = [
    '--set=DISTILLATION_WEIGHT=1.0',
    '--set=NUM_TRAIN_STEPS=40',
    '--set=task.train.save_interval_steps=20',
  ]
  assert _train(student, teacher, job, *words) == 0, capfd.readouterr().err
  first, *_, last = [x['Metrics/distillation_loss'] for x in _records(job)]
  assert last < 0.5 * first
  # As if the job had been stopped after its half.
  shutil.copytree(job, cut)
  shutil.rmtree(cut / 'checkpoints/checkpoint_00000040')
  # The teacher is in the checkpoint.
  weights = teacher / 'model.safetensors'
  weights.rename(tmp_path / 'weights')
  assert _train(student, teacher, cut, *words) == 0
  (tmp_path / 'weights').rename(weights)
  whole, resumed = map(job_runs.read_leaves, (job, cut))
  for name, value in whole.items():
    np.testing.assert_array_equal(resumed[name], value, err_msg=name)
  _check_teacher(whole, teacher)
  convert = ['pax', 'convert', 'pax-to-hf', str(job), str(output)]
  assert main.main(convert) == 0
  before, after = map(safetensors.read_folder, (student, output))
  assert list(before) == list(after)
  table = 'model.embed_tokens.weight'
  np.testing.assert_array_equal(
    after[table].read(), whole['mdl_vars.params.lm.embedding_lookup.emb_var']
  )
  assert np.abs(after[table].read() - before[table].read()).max() > 1e-3
  # An experiment without a teacher decodes the checkpoints.
  infer = [
    'pax',
    '--exp=tasks.lm.params.huggingface.Qwen3',
    f'--job_log_dir={job}',
    f'--set=MODEL_DIR={student}',
    '--set=FPROP_DTYPE=float32',
    *job_runs.decoder_words(student),
    '--mode=infer',
  ]
  assert main.main(infer) == 0, capfd.readouterr().err
  assert set(job_runs.decoded(job, 'infer')) == set(job_runs.PROMPTS)


@pytest.mark.nightly
def test_meshes_shard_both_and_have_the_same_losses(
  tmp_path, student, teacher, capfd
):
  model_p = _experiment(student, f'TEACHER_DIR={teacher}').task().model
  split = model_p.teacher_lm_tpl.softmax_tpl.weight_split_dims_mapping.wt
  assert split == ['data', 'mdl']
  losses = {}
  for shape in ('[1,1,1]', '[1,2,2]'):
    job = tmp_path / f'job{shape}'
    words = [f'--set=ICI_MESH_SHAPE={shape}', '--set=NUM_TRAIN_STEPS=3']
    assert _train(student, teacher, job, *words) == 0, capfd.readouterr().err
    losses[shape] = list(binary.losses(job).values())
    _check_teacher(job_runs.read_leaves(job), teacher)
  np.testing.assert_allclose(*losses.values(), rtol=1e-5)


@pytest.mark.nightly
def test_layers_of_both_are_repeated_by_their_own_periods(
  tmp_path, student, capfd
):
  # Layers of gemma2 have two kinds of attention.
  teacher = reference_models.write_byte_model(
    tmp_path / 'gemma2', 'gemma2', num_layers=4
  )
  losses = {}
  for is_repeated in (False, True):
    job = tmp_path / f'job_{is_repeated}'
    words = [
      f'--set=USE_REPEATED_LAYER={is_repeated}',
      '--set=NUM_TRAIN_STEPS=2',
    ]
    assert _train(student, teacher, job, *words) == 0, capfd.readouterr().err
    losses[is_repeated] = list(binary.losses(job).values())
  blocks = {
    x.partition('.repeat.sub.')[2].partition('.')[0]
    for x in job_runs.read_leaves(job)
    if '.teacher_lm.transformer.' in x
  }
  assert blocks == {'x_layers_0', 'x_layers_1'}
  np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)
  convert = ['pax', 'convert', 'pax-to-hf', str(job), str(tmp_path / 'output')]
  assert main.main(convert) == 0


@pytest.mark.nightly
def test_a_student_starts_from_a_job_or_from_scratch(
  tmp_path, student, teacher, capfd
):
  # A teacher of another job has the same names and shapes.
  other = reference_models.write_byte_model(tmp_path / 'other', 'gpt2')
  file = other / 'model.safetensors'
  arrays = {
    name: entry.read() + np.float32(0.1)
    for name, entry in safetensors.read_folder(other).items()
  }
  reference_models.write_safetensors(file, arrays, 'F32')
  steps = '--set=NUM_TRAIN_STEPS=2'
  first, second, fresh = (tmp_path / x for x in ('first', 'second', 'fresh'))
  assert _train(student, other, first, steps) == 0, capfd.readouterr().err

  def run(job, *start):
    return main.main([
      'pax',
      '--exp=tasks.lm.params.huggingface.Qwen3',
      f'--job_log_dir={job}',
      f'--set=MODEL_DIR={student}',
      f'--set=TEACHER_DIR={teacher}',
      '--set=FPROP_DTYPE=bfloat16',
      *job_runs.decoder_words(student),
      *_WORDS,
      steps,
      '--set=LEARNING_RATE=0.0',
      *start,
    ])  # fmt: skip

  assert run(second, f'--init_from={first}') == 0, capfd.readouterr().err
  assert run(fresh) == 0, capfd.readouterr().err
  before, after, random = map(job_runs.read_leaves, (first, second, fresh))
  table = 'mdl_vars.params.lm.embedding_lookup.emb_var'
  np.testing.assert_array_equal(after[table], before[table])
  assert np.abs(random[table] - before[table]).max() > 0.1
  weights = safetensors.read_folder(teacher)
  [name] = [x for x in weights if x.endswith('wte.weight')]
  for leaves in (after, random):
    value = leaves['mdl_vars.params.teacher_lm.softmax.w']
    # The dtype of the computation.
    expected = weights[name].read().astype(reference_models.DTYPES['BF16'])
    np.testing.assert_array_equal(value, expected)
    assert value.dtype == expected.dtype
    assert leaves[table].dtype == np.float32


def _experiment(student, *settings):
  constants = overrides.parse([f'MODEL_DIR={student}', *settings])
  return overrides.set_constants(huggingface.Qwen3, constants)()


@pytest.mark.parametrize('objective', ['preferences', 'rewards'])
def test_a_teacher_is_for_the_tokens_of_texts(student, teacher, objective):
  experiment = _experiment(
    student, f'TEACHER_DIR={teacher}', f'OBJECTIVE={objective}'
  )
  with pytest.raises(ValueError, match=f"'responses'.*OBJECTIVE={objective}"):
    experiment.validate()


def _set_config(folder, **settings):
  file = folder / 'config.json'
  file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def test_teachers_that_do_not_fit(tmp_path, student, teacher, monkeypatch):
  def message(folder=teacher, *settings):
    experiment = _experiment(student, f'TEACHER_DIR={folder}', *settings)
    with pytest.raises(ValueError) as error:
      experiment.validate()
    return str(error.value)

  assert 'MAX_SEQ_LEN must be at most 64, the n_positions' in message(
    teacher, 'MAX_SEQ_LEN=65'
  )
  assert 'has no teacher' in message(tmp_path / 'absent')
  (tmp_path / 'job/checkpoints').mkdir(parents=True)
  assert 'run pax convert pax-to-hf' in message(tmp_path / 'job')
  t5 = reference_models.write_byte_model(tmp_path / 't5', 't5')
  assert 'must have a decoder, got a t5' in message(t5)
  own_tokenizer = tokenizers.ByteTokenizer.config()
  monkeypatch.setattr(
    huggingface_model, 'tokenizer_of', lambda _: own_tokenizer
  )
  monkeypatch.setattr(
    huggingface.Qwen3, '_tokenizer', lambda _: _Shifted.config()
  )
  assert "ids of 'Teacher 1" in message()
  monkeypatch.setattr(_Shifted, 'vocab_size', 260)
  error = message()
  assert 'number of ids' in error and ' 260, got 259;' in error
  _set_config(teacher, vocab_size=300)
  error = message()
  assert 'a vocab_size' in error and ' 264, got 300; use a teacher' in error


class _Shifted(tokenizers.ByteTokenizer):
  """Other ids of as many tokens."""

  def encode(self, document):
    return super().encode(document)[::-1]
