# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: data=//:all_files
# bazel: deps=//pax:main,//tests/integration:experiments
"""Runs what README.md and the docs tell people to write and to type."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shlex
import subprocess
import sys
import types

import pytest

from tests.pax.huggingface import reference_models
from tests.testing import programs

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
FENCE = re.compile(r'^```(\w+)\n(.*?)^```', re.MULTILINE | re.DOTALL)
TRAIN = './bazelw run //pax:main -- '
PAX = 'pax '
# Where documented commands write.
JOBS = '/tmp/pax'
# What makes a documented run short; it goes last, so it wins.
SHORT = ['--set=task.train.num_train_steps=2']
ONE_TRIAL = ['--num_trials=1']
# The first line of an experiment that commands name.
IS_FILE = re.compile(r'# (\w+\.py)\n')
# The models of the others are small as they stand there.
SMALL_QUICKSTART = [
  '--set=NUM_LAYERS=1',
  '--set=MODEL_DIMS=32',
  '--set=HIDDEN_DIMS=64',
  '--set=MAX_SEQ_LEN=32',
  '--set=NUM_PIECES=512',
  '--set=HELD_OUT_PERCENT=10',
  f'--set=TRAIN_FILES={ROOT}/pax',
]


@dataclasses.dataclass(frozen=True)
class Block:
  page: str
  language: str
  text: str


def blocks(language: str) -> list[Block]:
  return [
    Block(page.name, found, text)
    for page in PAGES
    for found, text in FENCE.findall(page.read_text())
    if found == language
  ]


def commands() -> list[str]:
  """Every command line of the `sh` blocks, continuation lines joined."""
  texts = (block.text.replace('\\\n', ' ') for block in blocks('sh'))
  lines = (line.strip() for text in texts for line in text.splitlines())
  return [line for line in lines if line and not line.startswith('#')]


def test_the_readme_begins_with_the_two_commands():
  assert commands()[:2] == [
    './bazelw run //pax:main -- --exp=tasks.lm.params.quickstart.TinyLm '
    '--job_log_dir=/tmp/pax/tiny',
    './bazelw test //...',
  ]


@pytest.mark.parametrize('page', sorted({b.page for b in blocks('python')}))
def test_python_blocks_run(page, monkeypatch):
  # Dataclasses and the registry look for the module a class is made in.
  module = types.ModuleType(f'docs_{page.removesuffix(".md")}')
  monkeypatch.setitem(sys.modules, module.__name__, module)
  ran = 0
  for block in blocks('python'):
    if block.page == page:
      exec(compile(block.text, page, 'exec'), vars(module))
      ran += 1
  assert ran


@pytest.fixture(scope='module')
def jobs(tmp_path_factory):
  """Where documented jobs write; those of one directory share it here too.

  Modules that pages show are there, and a model of Hugging Face.
  """
  folder = tmp_path_factory.mktemp('jobs')
  texts = [f'Text {i} of {i * i} about models.' for i in range(200)]
  reference_models.write_text_model(folder / 'qwen3', 'qwen3', texts)
  reference_models.write_text_model(folder / 't5', 't5', texts)
  lines = {
    'text': [{'text': text} for text in texts],
    'pairs': [{'input': text, 'target': text[:8]} for text in texts],
    'prompts': [{'prompt': text[:8]} for text in texts[:3]],
  }
  for name, objects in lines.items():
    content = '\n'.join(map(json.dumps, objects))
    (folder / f'{name}.jsonl').write_text(content)
  for block in blocks('python'):
    if named := IS_FILE.match(block.text):
      (folder / named[1]).write_text(block.text)
  return folder


@pytest.mark.parametrize(
  'line', [c for c in commands() if TRAIN in c or c.startswith(PAX)]
)
def test_commands_run(line, jobs):
  words = line.split(TRAIN, 1)[1] if TRAIN in line else line.removeprefix(PAX)
  arguments = [
    argument.replace(JOBS, f'{jobs}') for argument in shlex.split(words)
  ]
  # A tool's name comes first, and has no steps to save.
  is_ahead = '--mode=aot' in arguments
  trains = arguments[0].startswith('--') and not is_ahead
  short = SHORT if trains or '--aot_save' in line else []
  is_quickstart = any('.quickstart.' in argument for argument in arguments)
  is_study = any(argument.startswith('--study') for argument in arguments)
  if short and (is_quickstart or is_study):
    short = SHORT + SMALL_QUICKSTART + ONE_TRIAL * is_study
  done = subprocess.run(
    [sys.executable, '-m', 'pax.main', *arguments, *short],
    env=programs.environment() | {'HOME': str(jobs)},
    cwd=jobs,
    capture_output=True,
    text=True,
    timeout=240,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  for argument in arguments:
    if argument.startswith('--job_log_dir='):
      job = pathlib.Path(argument.partition('=')[2])
      wrote = 'study.txt' if is_study else 'metrics.jsonl'
      wrote = 'aot' if is_ahead else wrote
      wrote = 'output' if '--mode=infer' in arguments else wrote
      assert (job / wrote).exists()


def labels() -> list[str]:
  return sorted(
    {
      label
      for line in commands()
      if line.startswith('./bazelw')
      for label in re.findall(r'//[\w/.:-]+', line)
      if '...' not in label
    }
  )


@pytest.mark.parametrize('label', labels())
def test_labels_exist(label):
  package, _, name = label[2:].partition(':')
  build = (ROOT / package / 'BUILD').read_text()
  name = (name or package.rpartition('/')[2]).removesuffix('.par')
  assert f'name = "{name}"' in build
