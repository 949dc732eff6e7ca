# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
# bazel: data=//:all_files
"""The container file: images, users and commands; nothing builds it here."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shlex
import subprocess
import tomllib

import pytest

from tools.release import resolution

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / 'docs/containers/Dockerfile'
# The context of a build.
_CONTEXT = '/release'
# An exact version of Python, and the release of its system.
_BASE = re.compile(r'python:3\.\d+\.\d+-slim-(bookworm|trixie)')


@dataclasses.dataclass
class Stage:
  """A stage of the file: [(instruction, arguments)]."""

  image: str
  instructions: list[tuple[str, str]]

  def values(self, instruction: str) -> list[str]:
    return [value for name, value in self.instructions if name == instruction]


def stages() -> dict[str, Stage]:
  text = re.sub(r'(?m)^#.*\n', '', FILE.read_text()).replace('\\\n', ' ')
  found = {}
  for line in filter(str.strip, text.splitlines()):
    name, _, value = line.partition(' ')
    if name == 'FROM':
      image, _, stage = value.partition(' AS ')
      found[stage] = Stage(image, [])
    else:
      found[stage].instructions.append((name, value.strip()))
  return found


def commands(stage: Stage) -> list[list[str]]:
  """Returns the words of all commands that the stage runs."""
  found = []
  for value in stage.values('RUN'):
    words = shlex.split(value)
    while words and words[0].startswith('--'):
      words.pop(0)
    for part in ' '.join(words).split(' && '):
      found.append(part.split())
  return found


TARGETS = sorted(resolution.LOCKS)


def test_there_is_a_target_for_each_accelerator():
  assert sorted(stages()) == sorted(['base', *TARGETS])


def test_the_base_image_is_a_version_that_has_a_wheel():
  image = stages()['base'].image
  assert _BASE.fullmatch(image)
  version = '.'.join(image.removeprefix('python:').split('.')[:2])
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  classifier = f'Programming Language :: Python :: {version}'
  assert classifier in project['classifiers']


@pytest.mark.parametrize('target', TARGETS)
def test_no_target_runs_as_root(target):
  stage = stages()[target]
  assert stage.image == 'base'
  assert stage.instructions[-1] == ('USER', 'pax')
  (create,) = commands(stages()['base'])
  assert create[0] == 'useradd' and create[-1] == 'pax'


@pytest.mark.parametrize('target', TARGETS)
def test_targets_install_the_files_of_a_release(target):
  hashed, ours = commands(stages()[target])
  assert hashed == [
    *('pip', 'install', '--require-hashes'),
    f'--requirement={_CONTEXT}/requirements_{target}.txt',
  ]
  assert ours[:2] == ['pip', 'install'] and '--no-deps' in ours
  assert f'--find-links={_CONTEXT}' in ours
  assert ours[-1] == resolution.DISTRIBUTION
  (run,) = stages()[target].values('RUN')
  assert run.startswith(f'--mount=type=bind,target={_CONTEXT} ')


def test_the_entry_point_is_a_script_of_the_wheel():
  (text,) = stages()['base'].values('ENTRYPOINT')
  (program,) = json.loads(text)
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  assert program in project['scripts']


@pytest.mark.parametrize('target', ['base', *TARGETS])
def test_commands_are_valid_in_a_shell(target):
  for words in commands(stages()[target]):
    subprocess.run(['sh', '-nc', shlex.join(words)], check=True)
