# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The command from outside: help, errors, and where it stands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import pax
from pax import exit_codes, main
from pax.runner import console
from pax.tools import catalog
from tests.testing import nightly

EXPERIMENT = """
from pax import base_experiment, experiment_registry

@experiment_registry.register
class Mine(base_experiment.BaseExperiment):
  def validate(self):
    raise ValueError('found in ' + __file__)
  def datasets(self):
    return []
  def task(self):
    return None
"""


def test_help(capsys):
  assert main.main(['pax', '--help']) == 0
  shown = capsys.readouterr()
  assert shown.out.startswith('Trains the model')
  assert not shown.err


def test_without_words_it_says_what_to_type_first(capsys):
  assert main.main(['pax']) == exit_codes.DONE
  lines = capsys.readouterr().out.splitlines()
  commands_of = [line.split() for line in lines if line.startswith('  pax ')]
  assert commands_of[0][1] == '--exp=tasks.lm.params.quickstart.TinyLm'
  assert {words[1] for words in commands_of} >= {*catalog.TOOLS, 'tune'}
  assert 'docs/index.md' in '\n'.join(lines) and max(map(len, lines)) <= 80


def test_version(capsys):
  assert main.main(['pax', '--version']) == exit_codes.DONE
  assert capsys.readouterr().out == f'pax-jax {pax.__version__}\n'


@pytest.mark.parametrize(
  ('words', 'unbuffered'),
  [
    (['--help'], ''),
    (['completion', 'bash'], '1'),
    *nightly.cases(
      (['--help'], '1'),
      (['completion', 'bash'], ''),
      (['list-experiments', '--help'], ''),
      (['graph', '--help'], '1'),
    ),
  ],
)
def test_a_reader_may_stop_early(words, unbuffered):
  code = 'from pax import main; main.console()'
  read, write = os.pipe()
  # As `pax --help | head -0`: the pipe has no reader.
  os.close(read)
  ended = subprocess.run(
    [sys.executable, '-c', code, *words],
    env=os.environ
    | {
      'PYTHONPATH': os.pathsep.join(filter(None, sys.path)),
      'PYTHONUNBUFFERED': unbuffered,
    },
    stdout=write,
    stderr=subprocess.PIPE,
    text=True,
    timeout=60,
  )
  os.close(write)
  assert ended.returncode == exit_codes.DONE
  assert not ended.stderr


@pytest.mark.parametrize('name', ['stdout', 'stderr'])
def test_a_run_whose_reader_is_gone_fails_quietly(name, monkeypatch, capfd):
  def run(options):
    raise BrokenPipeError

  streams = {'stdout': sys.stdout, 'stderr': sys.stderr}
  monkeypatch.setattr(main, '_run', run)
  with pytest.raises(BrokenPipeError):
    main.main(['pax', '--exp=x'])
  read, write = os.pipe()
  os.close(read)
  with open(write, 'w') as stream:
    monkeypatch.setattr(sys, name, stream)
    stream.write('x')
    assert not console.flush_streams()
    assert console.flush_streams()
    monkeypatch.setattr(sys, name, streams[name])


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (['--exp=x'], 'pax: error: where to? e.g. --job_log_dir=/tmp/pax/tiny'),
    (['--job_log_dri=x'], 'pax: error: there is no flag --job_log_dri'),
  ],
)
def test_an_error_is_one_line_and_code_1(words, message, capsys):
  assert main.main(['pax', *words]) == exit_codes.ERROR
  error = capsys.readouterr().err
  assert error.startswith(message)
  assert error.count('\n') == 1


def test_a_traceback_is_shown_on_request(capsys):
  assert main.main(['pax', '--traceback', '--job_log_dir=']) == 1
  error = capsys.readouterr().err
  assert error.startswith('Traceback') and 'pax: error: where to?' in error


def test_files_are_found_where_bazel_run_was_typed(tmp_path):
  (tmp_path / 'my_experiment.py').write_text(EXPERIMENT)
  code = 'from pax import main; main.console()'
  words = ['--exp=my_experiment.Mine', '--job_log_dir=job', '--set=a.b=1']
  environment = {k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'}
  environment |= {
    'BUILD_WORKING_DIRECTORY': str(tmp_path),
    'PYTHONPATH': os.pathsep.join(filter(None, sys.path)),
  }
  ended = subprocess.run(
    [sys.executable, '-c', code, *words, '--compilation_cache_dir='],
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert ended.returncode == exit_codes.ERROR
  found = f'pax: error: found in {tmp_path}/my_experiment.py'
  assert found in ended.stderr, ended.stderr
  assert (tmp_path / 'job' / 'logs').is_dir()
