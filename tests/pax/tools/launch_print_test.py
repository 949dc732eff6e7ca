# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Hostile words pass through the files of `pax launch --print` unchanged.

The files run with stand-ins in PATH that record what they receive.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

from pax.tools import commands
from pax.tools.launching.recipes import yaml_text

TEXTS = [
  "--a='x y'", '--b=$(touch pwned)', '`touch pwned`', '--c="q"',
  '--d=a\\b\\', '--e=first\nsecond\n', '--f=*', '--g=$HOME ${HOME}', '--h=é😀',
  '--i=$$(PATH) $(PATH) $$ $$$(PATH)', '', ' ', '--j=\u2028\x85', '# x',
  '--k=a: b', '--l=${x}', '-', '!!', '~', '--m=\t\x1b[31m', "'", '"', ';&|<>',
  '--n=\r\n', '- x',
]  # fmt: skip
WORDS = ['--exp=E', *(word for text in TEXTS for word in ('--set', text))]
# Of jobs that restart by themselves.
RESTARTING_WORDS = [*WORDS, '--on_corrupt_checkpoint=fallback']
VALUE = '$(touch pwned) `touch pwned` "\'\\ \n$HOME $$(PATH) é😀 #:{}[]\u2028'
LINE = '$(touch pwned) `touch pwned` "\'\\ ;&|<> é😀 #:{}[] $$(PATH) ${x}'

# Records its words and the variable A.
_RECORDER = """\
#!{python} -IS
import json, os, sys
with open({log!r}, 'a') as f:
  f.write(json.dumps([{name!r}, sys.argv[1:], os.environ.get('A')]) + '\\n')
"""
_RUN = {
  # The words after the options; the shell of the other machine.
  'srun': '  while [[ $1 == --* ]]; do shift; done\n  exec "$@"\n',
  'ssh': '  exec bash -c "${!#}" < /dev/null\n',
  'gcloud': (
    '  [[ "${!#}" == --command=* ]] || exit 0\n'
    '  last=${!#}; exec bash -c "${last#--command=}"\n'
  ),
}


class Machine:
  """A folder with the stand-ins, where the files run."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._log = folder / 'log'
    programs = folder / 'bin'
    programs.mkdir()
    for name in ('pax', *_RUN):
      self._write(programs / f'{name}_', name)
      script = f'#!/bin/bash\n{programs}/{name}_ "$@"\n{_RUN.get(name, "")}'
      (programs / name).write_text(script)
      (programs / name).chmod(0o755)
    (folder / 'pax.par').write_text(f'#!/bin/bash\n{programs}/pax "$@"\n')
    self.environment = os.environ | {
      'PATH': f'{programs}:{os.environ["PATH"]}',
      'PROJECT': 'p q',
      'ZONE': 'z',
    }

  def _write(self, path: pathlib.Path, name: str) -> None:
    text = _RECORDER.format(
      python=sys.executable, log=str(self._log), name=name
    )
    path.write_text(text)
    path.chmod(0o755)

  def run(self, *words: str, env=None) -> None:
    subprocess.run(
      words,
      cwd=self.folder,
      env=self.environment | (env or {}),
      check=True,
      timeout=60,
      stdin=subprocess.DEVNULL,
    )

  def calls(self, name: str) -> list[tuple[list[str], str | None]]:
    lines = [json.loads(line) for line in self._log.read_text().splitlines()]
    return [(words, a) for called, words, a in lines if called == name]


@pytest.fixture
def machine(tmp_path):
  machine = Machine(tmp_path)
  yield machine
  assert not list(tmp_path.rglob('pwned'))


@pytest.fixture
def launch(machine, capsys):
  """Prints a file for the hostile words; returns its path."""

  def make(*flags: str) -> pathlib.Path:
    command = ['pax', 'launch', *flags, f'--env=A={VALUE}', '--', *WORDS]
    assert commands.run(command) == 0, capsys.readouterr().err
    path = machine.folder / 'file'
    path.write_text(capsys.readouterr().out)
    if '--print=jobset' not in flags:
      subprocess.run(['bash', '-n', str(path)], check=True)
    return path

  return make


def test_slurm(machine, launch):
  file = launch('--print=slurm', f'--sbatch=--comment={LINE}', '--slices=1')
  assert f'#SBATCH --comment={LINE}\n' in file.read_text()
  machine.run('bash', str(file))
  assert machine.calls('pax') == [(RESTARTING_WORDS, VALUE)]


def test_the_policy_of_the_command_line_is_kept(machine, capsys):
  policy = '--on_corrupt_checkpoint=fail'
  assert commands.run(['pax', 'launch', '--print=slurm', '--', policy]) == 0
  assert policy in (text := capsys.readouterr().out)
  assert 'fallback' not in text


def test_slurm_with_slices(machine, launch):
  file = launch('--print=slurm', '--slices=2', '--program=pax --first="a b"')
  machine.run('bash', str(file), env={'SLURM_PROCID': '1'})
  assert machine.calls('pax') == [(['--first=a b', *RESTARTING_WORDS], VALUE)]


def test_ssh(machine, launch):
  file = launch('--print=ssh', '--ssh=alpha,me@beta')
  machine.run('bash', str(file))
  started = machine.calls('pax')
  assert len(started) == 2
  for words, value in started:
    assert (words[: len(WORDS)], value) == (WORDS, VALUE)
  machines = {words[-2] for words, _ in machine.calls('ssh')}
  assert machines == {'alpha', 'me@beta'}


def test_gcloud(machine, launch):
  flags = [f'--{name}={LINE}' for name in ('tpu', 'zone', 'project')]
  program = '-a $(touch pwned):b'
  file = launch(
    *('--print=gcloud', f'--program={program}'),
    *(*flags, f'--runtime_version={LINE}'),
  )
  for step in ('create', 'copy', 'run'):
    machine.run('bash', str(file), step)
  (create, _), (copy, _), (run, _) = machine.calls('gcloud')
  assert create[4:] == [
    *('pax', f'--project={LINE}', f'--zone={LINE}'),
    *(f'--accelerator-type={LINE}', f'--runtime-version={LINE}'),
    '--node-id=pax-0',
  ]
  assert copy[4:6] == [f'./{program}', 'pax-0:pax.par']
  assert run[5:7] == [f'--project={LINE}', f'--zone={LINE}']
  assert machine.calls('pax') == [(RESTARTING_WORDS, VALUE)]


def test_gcloud_takes_project_and_zone_from_the_shell(machine, launch):
  file = launch('--print=gcloud', '--tpu=v4-8', '--program=a.par')
  machine.run('bash', str(file), 'create')
  ((create, _),) = machine.calls('gcloud')
  assert create[5:7] == ['--project=p q', '--zone=z']


def expand(text: str, environment: dict[str, str]) -> str:
  """Replaces variables as Kubernetes does (third_party/forked/golang)."""
  return re.sub(
    r'\$(\$|\((.*?)\))',
    lambda m: '$' if m[1] == '$' else environment.get(m[2], m[0]),
    text,
    flags=re.DOTALL,
  )


@pytest.mark.parametrize(
  'flags',
  [
    ['--name=no'],
    ['--slices=2', '--gpus_per_host=8'],
    [f'--tpu={LINE}', f'--topology={LINE}'],
  ],
)
def test_jobset(machine, launch, flags):
  file = launch('--print=jobset', f'--image={LINE}', *flags)
  spec = yaml.safe_load(file.read_text())
  assert isinstance(spec['metadata']['name'], str)
  pod = spec['spec']['replicatedJobs'][0]['template']['spec']['template']
  (container,) = pod['spec']['containers']
  assert container['image'] == LINE
  for value in pod['spec'].get('nodeSelector', {}).values():
    assert value == LINE
  variables = {v['name']: v.get('value', '0') for v in container['env']}
  env = {k: expand(v, {'PATH': 'wrong'}) for k, v in variables.items()}
  assert env['A'] == VALUE
  command = [expand(word, {'PATH': 'wrong'}) for word in container['command']]
  machine.run(*command, env=env | {'JOB_COMPLETION_INDEX': '0'})
  ((words, value),) = machine.calls('pax')
  assert (words[: len(RESTARTING_WORDS)], value) == (RESTARTING_WORDS, VALUE)


@pytest.mark.parametrize(
  'text',
  [
    *TEXTS, VALUE, LINE, 'no', 'NULL', 'true', 'v4-128', '4x4x4', '0x10', '1e5',
    'a-', '2026-01-01', '12:30', 'x y', '=', '\x00\x7f\x9f\ufeff', 'a\n\n b\n',
  ],
)  # fmt: skip
def test_yaml_reads_every_text_back(text):
  for printed in (yaml_text.scalar(text), yaml_text.quoted(text)):
    assert yaml.safe_load(f'a:\n- {printed}\n') == {'a': [text]}
  printed = yaml_text.block(f'exec {text}', indent=4)
  (parsed,) = yaml.safe_load(f'a:\n  - {printed}\n')['a']
  assert parsed.rstrip('\n') == f'exec {text}'.rstrip('\n')


@pytest.mark.parametrize(
  'flag', ['tpu', 'zone', 'project', 'runtime_version', 'topology', 'image']
)
def test_a_line_break_is_refused_where_a_file_cannot_hold_it(flag, capsys):
  for text in ('a\nb', 'a\rb', 'a\u2028b', ''):
    command = ['pax', 'launch', f'--{flag}={text}', '--', '--exp=E']
    assert commands.run(command) == 1
    error = capsys.readouterr().err
    assert error.startswith(f'pax: error: --{flag} must be a text on one line')
    assert error.count('\n') == 1


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (['--sbatch=--a\n#SBATCH --b'], '--sbatch must be a text on one line'),
    (['--name=a\n'], '--name must be'),
    (['--env=é=1'], '--env must be NAME=VALUE'),
    (['--ssh=a$(b)'], '--ssh has a machine'),
    (["--program='x"], 'No closing quotation'),
    (['--port=0'], '--port must be an integer from 1 to 65535'),
    (['--', '--exp=\udcff'], 'must be valid in UTF-8'),
  ],
)
def test_wrong_words(words, message, capsys):
  assert commands.run(['pax', 'launch', *words, '--', '--exp=E']) == 1
  error = capsys.readouterr().err
  assert message in error and error.count('\n') == 1


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (
      ['--print=slurm', '--', '--job_logdir=/d'],
      'there is no flag --job_logdir; did you mean --job_log_dir?',
    ),
    (['--ssh=alpha', '--', '--mode=tran'], '--mode must be one of'),
    (['--print=ssh', '--ssh=a', '--', 'tune', '--no=1'], 'no flag --no'),
    (['--print=gcloud', '--program=d/a.par', '--', '--x'], 'no flag --x'),
    (
      ['--print=slurm', '--program=docker run i pax --y', '--', '--x'],
      'no flag --x',
    ),
  ],
)
def test_wrong_flags_of_the_run_are_found_before_it_starts(
  words, message, capsys
):
  assert commands.run(['pax', 'launch', *words]) == 1
  error = capsys.readouterr().err
  assert message in error and error.count('\n') == 1
  assert error.endswith('; it is among the flags of the run, after --\n')


@pytest.mark.parametrize(
  'words',
  [
    # The file is on the other machines.
    ['--', '--exp=nowhere.yaml'],
    ['--', 'validate_config', '--exp=E'],
    ['--program=python3 mine.py', '--', '--mine=1'],
    ['--', '--help'],
  ],
)
def test_words_that_only_the_other_machines_can_check(words, capsys):
  command = ['pax', 'launch', '--print=slurm', *words]
  assert commands.run(command) == 0
  assert words[-1] in capsys.readouterr().out
