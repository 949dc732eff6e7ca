# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_seqio//seqio,//pax/contrib/gpu/scripts_gpu:configs
# bazel: size=enormous
# bazel: tags=nightly
"""Every family of experiments on TFDS trains and evaluates."""

from __future__ import annotations

import math

import pytest

from tests.integration import binary, tfds_experiments
from tests.testing import tfds_data

pytest.importorskip('seqio')
_CONFIGS = 'contrib.gpu.scripts_gpu.configs'
_C4 = 'tasks.lm.params.c4'
# "yes" and "no" of the small vocabulary.
_ANSWERS = {'TRUE_TOKEN': 7, 'FALSE_TOKEN': 8}


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data') / 'tfds'
  tfds_data.write(folder, tfds_experiments.SEQ_LEN, tfds_experiments.VOCAB_SIZE)
  return folder


def test_the_pile_is_trained_and_lambada_evaluated(data, tmp_path, capfd):
  job = tmp_path / 'job'
  code = tfds_experiments.run(
    f'{_CONFIGS}.Pile126M', job, data, '--eval_on_test'
  )
  assert code == 0, capfd.readouterr().err
  losses = binary.losses(job)
  ln_vocab = math.log(tfds_experiments.VOCAB_SIZE)
  assert losses[min(losses)] == pytest.approx(ln_vocab, rel=0.1)
  evaluations = {r['split']: r for r in binary.records(job)}
  loss = evaluations['eval_test_PileValidation']['loss']
  assert loss == pytest.approx(ln_vocab, rel=0.1)

  code = tfds_experiments.run(
    f'{_CONFIGS}.Lambada126M', job, data, '--mode=eval'
  )
  assert code == 0, capfd.readouterr().err
  (lambada,) = [
    r for r in binary.records(job) if 'LambadaValidation' in r['split']
  ]
  # Seven passages in two batches of four.
  assert lambada['Metrics/acc_strict-weight'] == 7


@pytest.mark.parametrize(
  ('name', 'settings', 'metric'),
  [
    (f'{_CONFIGS}.LLaMA7B', _ANSWERS, 'boolq_acc-weight'),
    (f'{_CONFIGS}.LLaMA13B', _ANSWERS, 'boolq_acc-weight'),
    (
      f'{_CONFIGS}.LLaMA70B',
      {**_ANSWERS, 'NUM_KV_HEADS': 1},
      'boolq_acc-weight',
    ),
    (f'{_CONFIGS}.Pile5B', {}, 'num_predictions'),
    (f'{_CONFIGS}.Pile175B', {}, 'num_predictions'),
    (f'{_C4}.C4SpmdAdam', {'DCN_MESH_SHAPE': None}, 'num_predictions'),
    (f'{_C4}.C4Spmd1BAdam4Replicas', {'DCN_MESH_SHAPE': None}, 'log_pplx'),
  ],
)
def test_an_experiment_trains_and_evaluates(
  name, settings, metric, data, tmp_path, capfd
):
  code = tfds_experiments.run(
    name, tmp_path, data, '--eval_on_test', **settings
  )
  assert code == 0, capfd.readouterr().err
  losses = binary.losses(tmp_path)
  ln_vocab = math.log(tfds_experiments.VOCAB_SIZE)
  assert losses[min(losses)] == pytest.approx(ln_vocab, rel=0.15)
  (held_out,) = [
    r for r in binary.records(tmp_path) if r['split'].startswith('eval_test_')
  ]
  assert held_out[f'Metrics/{metric}'] > 0
