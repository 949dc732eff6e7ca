# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
"""Every mode through the real program, one job following another."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from pax import io_utils, main
from pax.checkpoints import reading
from pax.checkpoints.checkpoint_reader import CheckpointReader
from pax.files import tf_records
from tests.integration import binary
from tests.pax import tiny
from tests.testing import nightly

# So that a metric is certain.
QUIET = '--set=NOISE=0'
_NAMES = ('first.linear.w', 'first.bias.b', 'second.w')
SEEDS = {'held_out': (1, 2, 3), 'prompts': (1, 2)}


@pytest.fixture(scope='module')
def job(tmp_path_factory):
  """A training job and two jobs that evaluate it, started together."""
  directory = tmp_path_factory.mktemp('job')
  words = [
    ['--eval_on_test', '--decode_during_train'],
    ['--mode=eval'],
    ['--mode=eval'],
  ]
  started = [binary.start('TinySpmd', directory, QUIET, *w) for w in words]
  for process in started:
    ended = process.wait(binary.TIMEOUT_SECS)
    assert ended.returncode == 0, ended.stderr
  return directory


def _params(job, step, names=_NAMES):
  """Variables of a checkpoint as numpy, without a task."""
  checkpoint = CheckpointReader(reading.find_checkpoint(job, step)[1])
  wanted = {
    name: checkpoint.shapes[name]
    for name in (f'mdl_vars.params.{n}' for n in names)
  }
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  found = checkpoint.read(
    {
      name: jax.ShapeDtypeStruct(*about, sharding=device)
      for name, about in wanted.items()
    }
  )
  tree = {}
  for name, value in found.items():
    *folders, last = name.removeprefix('mdl_vars.params.').split('.')
    inner = tree
    for folder in folders:
      inner = inner.setdefault(folder, {})
    inner[last] = np.asarray(value)
  return tree


def _by_hand(params, seeds):
  """The mean loss over batches, and the guesses, by numpy alone."""
  errors, weights, guesses = [], [], []
  for seed in seeds:
    batch = tiny.batch(seed=seed)
    guess = tiny.guess(params, batch.x)
    guesses.append(guess)
    errors.append(np.square(guess - batch.y))
    weights.append(batch.weights)
  errors, weights = np.concatenate(errors), np.concatenate(weights)
  return (errors * weights).sum() / weights.sum(), np.concatenate(guesses)


def _evaluations(job):
  return [r for r in binary.records(job) if r['split'] == 'eval_test_held_out']


def test_metrics_of_every_evaluation_are_those_by_hand(job):
  found = _evaluations(job)
  # Training evaluated steps 10 and 20, and each job at least the last.
  assert {r['step'] for r in found} >= {10, 20}
  assert sum(r['step'] == 20 for r in found) == 3
  for record in found:
    loss, _ = _by_hand(_params(job, record['step']), SEEDS['held_out'])
    assert record['loss'] == pytest.approx(loss, rel=1e-5)
    assert record['Metrics/total_loss'] == pytest.approx(loss, rel=1e-5)
    assert record['Metrics/total_loss-weight'] == 21
  of_training = [r for r in binary.records(job) if r['split'] == 'eval_train']
  assert [r['step'] for r in of_training] == [10, 20]


def test_each_job_evaluates_a_checkpoint_once(job):
  log = (job / 'logs' / 'eval_0.log').read_text()
  assert 'Traceback' not in log
  times = [r['step'] for r in _evaluations(job)]
  assert max(times.count(step) for step in set(times)) <= 3
  assert not list((job / '_internal_artifacts').iterdir())


@pytest.mark.parametrize('mesh', ['[1,2,2]', *nightly.cases('None')])
def test_a_checkpoint_of_int8_is_evaluated(job, tmp_path, mesh):
  words = [QUIET, f'--set=ICI_MESH_SHAPE={mesh}', '--set=NUM_STEPS=10']
  source = [f'--restore_checkpoint_dir={job}', '--restore_checkpoint_step=10']
  for mode in (['--mode=quantize', *source], ['--mode=eval']):
    completed = binary.run('TinyInt8', tmp_path, *mode, *words, devices=4)
    assert completed.returncode == 0, completed.stderr
  floats = _params(job, 10)
  layers = ('first.linear', 'second')
  scales = [f'{layer}.w_quantized_scale' for layer in layers]
  found = _params(tmp_path, 10, [*_NAMES, *scales])
  for read in (
    lambda tree: tree['first']['linear'],
    lambda tree: tree['second'],
  ):
    got, want = read(found), read(floats)['w']
    np.testing.assert_allclose(
      got['w_quantized_scale'], np.abs(want).max(axis=0) / 127, rtol=1e-5
    )
    assert got['w'].dtype == np.int8
    read(floats)['w'] = rounded = got['w'] * got['w_quantized_scale']
    half = got['w_quantized_scale'] / 2 * 1.001
    assert (0 < np.abs(rounded - want).max(axis=0)).all()
    assert (np.abs(rounded - want) <= half).all()
  loss, _ = _by_hand(floats, SEEDS['held_out'])
  (record,) = _evaluations(tmp_path)
  assert record['loss'] == pytest.approx(loss, rel=1e-5)


def test_the_batch_evaluated_in_training_is_the_next_one(job):
  record = next(
    r
    for r in binary.records(job)
    if (r['split'], r['step']) == ('eval_train', 10)
  )
  loss, _ = _by_hand(_params(job, 10), [11])
  assert record['loss'] == pytest.approx(loss, rel=1e-5)


def _outputs(job, step):
  folder = job / 'decoder_out' / 'prompts'
  text = (folder / f'decoder_out_{step}_shard_0.jsonl').read_text()
  return [json.loads(line)['guess'] for line in text.splitlines()]


def test_decoding_while_training(job):
  for step in (10, 20):
    _, guesses = _by_hand(_params(job, step), SEEDS['prompts'])
    np.testing.assert_allclose(_outputs(job, step), guesses, rtol=1e-5)
  record = next(
    r for r in binary.records(job) if r['split'] == 'decode_test_prompts'
  )
  assert record['process_decode_metrics/rows'] == 8


@pytest.mark.nightly
def test_residuals_of_int8_are_trained(job, capfd, tmp_path):
  base, tuned = tmp_path / 'base', tmp_path / 'tuned'
  words = ['TinyInt8Lora', base, '--mode=quantize', f'--init_from={job}']
  code, err = _main(capfd, *words)
  assert code == 0, err
  words = [QUIET, '--set=NUM_STEPS=4', f'--init_from={base}']
  code, err = _main(capfd, 'TinyInt8Lora', tuned, *words)
  assert code == 0, err
  names = [f'second.{name}' for name in ('w', 'w_quantized_scale', 'w_right')]
  before, after = (
    _params(*at, names)['second'] for at in ((base, 0), (tuned, 4))
  )
  assert before['w'].dtype == np.int8
  for name in ('w', 'w_quantized_scale'):
    np.testing.assert_array_equal(before[name], after[name])
  assert not before['w_right'].any() and after['w_right'].all()


def test_quantized_checkpoints_are_not_mixed_with_others(job, capfd):
  source = f'--restore_checkpoint_dir={job}'
  code, err = _main(capfd, 'TinyInt8', job, '--mode=quantize', source)
  assert code == 1 and f'{job}/checkpoints has some; use a new' in err
  code, err = _main(capfd, 'TinyInt8', job, '--mode=decode_once')
  assert code == 1 and 'w_quantized_scale is not in it' in err
  assert 'Convert it to the quantized weights' in err


def test_decode_once(job, tmp_path):
  ended = binary.run(
    'TinySpmd',
    tmp_path,
    '--mode=decode_once',
    f'--restore_checkpoint_dir={job}',
    '--restore_checkpoint_step=10',
    '--restore_checkpoint_step=0',
    '--eval_during_decode',
    '--nodecode_output_pickle',
  )
  assert ended.returncode == 0, ended.stderr
  for step in (0, 10):
    _, guesses = _by_hand(_params(job, step), SEEDS['prompts'])
    np.testing.assert_allclose(_outputs(tmp_path, step), guesses, rtol=1e-5)
  assert not list(tmp_path.rglob('decoder_out_*.npz'))
  assert [r['step'] for r in _evaluations(tmp_path)] == [10, 0]
  assert (tmp_path / 'decode_once_model_params.txt').exists()


def test_following_from_an_earlier_step(job, tmp_path, capfd):
  code, err = _main(
    capfd,
    'TinySpmd',
    tmp_path,
    '--mode=eval',
    f'--restore_checkpoint_dir={job}',
    '--restore_checkpoint_step=10',
    QUIET,
  )
  assert code == 0, err
  assert [r['step'] for r in _evaluations(tmp_path)] == [10, 20]


def test_the_last_step_is_decoded_even_if_decoding_starts_later(
  job, tmp_path, capfd
):
  code, err = _main(
    capfd,
    'TinySpmd',
    tmp_path,
    '--mode=decode',
    f'--restore_checkpoint_dir={job}',
    '--first_checkpoint_timeout_secs=0',
    '--set=task.train.decode_start_after_n_steps=50',
    QUIET,
  )
  assert code == 0, err
  assert len(_outputs(tmp_path, 20)) == 16


def test_infer(job):
  ended = binary.run('TinySpmd', job, '--mode=infer')
  assert ended.returncode == 0, ended.stderr
  folder = job / 'output' / 'prompts'
  metadata = json.loads((folder / 'metadata.json').read_text())
  assert metadata['restore_checkpoint_step'] == 20
  features = json.loads((folder / 'features.json').read_text())
  assert features == {'guess': {'shape': [], 'dtype': 'float32'}}
  records = []
  for shard in range(2):
    with (folder / f'output.tfrecord-{shard:05d}-of-00002').open('rb') as file:
      records += tf_records.read(file)
  _, guesses = _by_hand(_params(job, 20), SEEDS['prompts'])
  wanted = [tf_records.example({'guess': x}) for x in guesses]
  assert len(records) == len(wanted)
  # A guess is the last four bytes of a record.
  found = [np.frombuffer(record[-4:], '<f4')[0] for record in records]
  np.testing.assert_allclose(found, guesses, rtol=1e-5)


def _main(capfd, exp, job, *words):
  """Runs in this process, on its eight simulated devices."""
  code = main.main(
    [
      'pax',
      f'--exp={binary.EXPERIMENTS}.{exp}',
      f'--job_log_dir={job}',
      binary.compilation_cache(),
      *words,
    ]
  )
  return code, capfd.readouterr().err


@pytest.mark.parametrize(
  ('exp', 'words'),
  [
    ('TinySpmd', ['--set=ICI_MESH_SHAPE=[1,2,2]']),
    ('TinyPmap', ['--pmap_use_tensorstore']),
    *nightly.cases(('TinyPmap', [])),
  ],
)
def test_many_devices(tmp_path, capfd, exp, words):
  words = [*words, QUIET, '--set=EMA_DECAY=0.5', '--set=NUM_STEPS=4']
  for mode in ('train', 'eval', 'decode', 'infer'):
    code, err = _main(capfd, exp, tmp_path, f'--mode={mode}', *words)
    assert code == 0, err
  params = _averages(tmp_path)
  loss, _ = _by_hand(params, SEEDS['held_out'])
  assert _evaluations(tmp_path)[-1]['loss'] == pytest.approx(loss, rel=1e-4)
  _, guesses = _by_hand(params, SEEDS['prompts'])
  np.testing.assert_allclose(_outputs(tmp_path, 4), guesses, rtol=1e-4)
  pairs = io_utils.load_outputs(tmp_path, 'prompts', 'decoder', 4)
  assert pairs[0][0] == 'prompts 0'


def _averages(job):
  """The averages that the optimizer kept, by the names of variables."""
  checkpoint = CheckpointReader(reading.find_checkpoint(job)[1])
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  wanted = {
    name: jax.ShapeDtypeStruct(*about, sharding=device)
    for name, about in checkpoint.shapes.items()
    if '.ema.params.' in name
  }
  found = {
    name.partition('.ema.params.')[2]: np.asarray(value)
    for name, value in checkpoint.read(wanted).items()
  }
  return {
    'first': {
      'linear': {'w': found['first.linear.w']},
      'bias': {'b': found['first.bias.b']},
    },
    'second': {'w': found['second.w']},
  }


@pytest.mark.parametrize('mode', ['eval', 'decode', 'train'])
def test_sigterm_and_the_next_start(job, tmp_path, capfd, mode):
  words = [f'--mode={mode}', f'--set=SENT={tmp_path / "sent"}']
  words += {
    'train': ['--eval_on_test', '--set=NUM_STEPS=20'],
    'decode': [f'--restore_checkpoint_dir={job}'],
    'eval': [],
  }[mode]
  directory = job if mode == 'eval' else tmp_path
  code, err = _main(capfd, 'TinySpmd', directory, *words)
  assert code == 75, err
  unit = 'step' if mode == 'train' else 'batch'
  assert f'pax: SIGTERM: finishing the {unit}, then' in err
  progress = list((directory / '_internal_artifacts').glob('*progress.json'))
  assert len(progress) == (mode != 'train')
  for file in progress:
    assert len(json.loads(file.read_text())['fingerprint']) == 64
  code, err = _main(capfd, 'TinySpmd', directory, *words)
  assert code == 0, err
  assert not list((directory / '_internal_artifacts').glob('*progress.json'))


def test_sigterm_while_inferring(job, tmp_path, capfd):
  """There are whole outputs of an input, or none."""
  words = ['--mode=infer', f'--set=SENT={tmp_path / "sent"}']
  words += [f'--set=task.infer_writer.restore_checkpoint_dir={job}']
  code, err = _main(capfd, 'TinySpmd', tmp_path, *words)
  assert code == 75, err
  assert not list((tmp_path / 'output' / 'prompts').iterdir())
  code, err = _main(capfd, 'TinySpmd', tmp_path, *words)
  assert code == 0, err
  names = {p.name for p in (tmp_path / 'output' / 'prompts').iterdir()}
  assert names == {
    'features.json',
    'metadata.json',
    'output.tfrecord-00000-of-00002',
    'output.tfrecord-00001-of-00002',
  }
  assert not list((tmp_path / '_internal_artifacts').glob('*progress.json'))


def test_a_hang_ends_with_the_stacks_of_all_threads(tmp_path):
  ended = binary.run('TinyHanging', tmp_path, '--hang_timeout_secs=2')
  assert ended.returncode == 124, ended.stderr
  log = (tmp_path / 'logs' / 'train_0.log').read_text()
  for text in (ended.stderr, log):
    assert 'pax: hang: no step for 2 s' in text
    assert 'in get_next' in text
  # It waited for its input: the state of the last step is saved.
  assert binary.checkpoint_names(tmp_path)[-1] == 'checkpoint_00000004'


def test_programs_of_the_experiment(tmp_path, capfd):
  code, err = _main(capfd, 'TinyOwn', tmp_path, '--eval_on_test')
  assert code == 0, err
  assert (tmp_path / 'note').read_text() == 'done'
  assert binary.checkpoint_names(tmp_path)[-1] == 'checkpoint_00000020'
  found = [(r['split'], r['step']) for r in binary.records(tmp_path)]
  assert ('eval_test_mine', 20) in found
  assert ('eval_test_mine', 10) not in found
  # Only the one device that its partitioner took was asked for.
  assert 'of 8 devices' not in err


def test_an_early_stop_ends_the_job_that_follows(tmp_path, capfd):
  words = ['--set=STOP_AT=12', '--eval_on_test']
  assert _main(capfd, 'TinySpmd', tmp_path, *words)[0] == 0
  assert binary.checkpoint_names(tmp_path)[-1] == 'checkpoint_00000012'
  code, err = _main(capfd, 'TinySpmd', tmp_path, '--mode=eval')
  assert code == 0, err
  assert _evaluations(tmp_path)[-1]['step'] == 12


def test_start_from_another_task(job, tmp_path, capfd):
  words = [f'--init_from={job}@10', QUIET]
  code, err = _main(capfd, 'TinySpmd', tmp_path, '--mode=eval', *words)
  assert code == 0, err
  assert 'mdl_vars.params.second.w' in err
  loss, _ = _by_hand(_params(job, 10), SEEDS['held_out'])
  assert _evaluations(tmp_path)[-1]['loss'] == pytest.approx(loss, rel=1e-5)
  code, err = _main(capfd, 'TinySpmd', tmp_path, '--set=NUM_STEPS=0', words[0])
  assert code == 0, err
  for name in ('first.linear.w', 'second.w'):
    found = _params(tmp_path, 0, [name])
    wanted = _params(job, 10, [name])
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
  provenance = (tmp_path / 'train_state_provenance.txt').read_text()
  assert f'mdl_vars.params.second.w: "{job}:10"' in provenance
  assert 'step: "random_init"' in provenance


@pytest.mark.parametrize(
  ('words', 'hint'),
  [
    (['--mode=train', '--restore_checkpoint_step=3'], '--init_from'),
    (['--mode=decode', '--first_checkpoint_timeout_secs=0'], 'within 0 s'),
    (['--mode=decode_once'], 'no checkpoint'),
    (['--init_from=/nowhere@x'], 'DIR@STEP'),
    (['--init_from=/nowhere'], 'no checkpoint'),
  ],
)
def test_one_clear_message(tmp_path, capfd, words, hint):
  code, err = _main(capfd, 'TinySpmd', tmp_path, *words)
  assert code == 1
  assert hint in err.splitlines()[-1]
