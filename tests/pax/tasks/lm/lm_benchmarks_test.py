# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""--set LM_EVAL_TASKS gives any language model experiment benchmarks."""

from __future__ import annotations

import importlib.util

import pytest

from pax import programs
from pax.runner import overrides
from pax.tasks.lm.params import huggingface, lm_cloud, quickstart

TASKS = "LM_EVAL_TASKS=['hellaswag', 'arc_easy']"


def set_installed(monkeypatch, *, is_installed: bool) -> None:
  """Sets whether the package of the harness is found."""
  find = importlib.util.find_spec

  def find_spec(name, *args):
    if name == 'lm_eval':
      return object() if is_installed else None
    return find(name, *args)

  monkeypatch.setattr(importlib.util, 'find_spec', find_spec)


def programs_of(experiment, *settings):
  parsed = overrides.parse(settings)
  return overrides.set_constants(experiment, parsed)().decode_programs()


def test_there_are_none_by_default():
  assert not any(
    isinstance(each, programs.LmEvalProgram)
    for each in programs_of(quickstart.TinyLm)
  )


@pytest.mark.parametrize(
  ('experiment', 'settings'),
  [
    (quickstart.TinyLm, ()),
    (huggingface.Llama3, ('LM_EVAL_SEQ_LEN=96', 'LM_EVAL_LIMIT=0.5')),
    (lm_cloud.LmCloudSpmd2B, ('TOKENIZER=bytes',)),
  ],
)
def test_decoding_evaluates_the_tasks(experiment, settings, monkeypatch):
  set_installed(monkeypatch, is_installed=True)
  *_, program = programs_of(experiment, TASKS, *settings)
  assert isinstance(program, programs.LmEvalProgram)
  assert list(program._settings.tasks) == ['hellaswag', 'arc_easy']
  is_short = 'LM_EVAL_SEQ_LEN=96' in settings
  assert program._input_p.seq_len == (
    96 if is_short else experiment.MAX_SEQ_LEN
  )
  assert program._settings.limit == (0.5 if is_short else None)


def test_a_tokenizer_that_learns_learns_the_training_text(monkeypatch):
  set_installed(monkeypatch, is_installed=True)
  settings = ('TRAIN_FILES=/data/*.txt', 'HELD_OUT_PERCENT=5')
  *_, program = programs_of(quickstart.TinyLm, TASKS, *settings)
  config = program._input_p
  assert config.files == '/data/*.txt' and config.held_out_percent == 5
  assert config.tokenizer == quickstart.TinyLm().datasets()[0].tokenizer


def test_the_package_is_named_if_it_is_missing(monkeypatch):
  set_installed(monkeypatch, is_installed=False)
  with pytest.raises(ValueError, match=r'pip install pax-jax\[lm_eval\]'):
    programs_of(quickstart.TinyLm, TASKS)


def test_prompts_are_chats_by_the_template_of_the_model(tmp_path, monkeypatch):
  set_installed(monkeypatch, is_installed=True)
  settings = (TASKS, 'LM_EVAL_APPLY_CHAT_TEMPLATE=True')
  *_, program = programs_of(
    huggingface.Llama3, *settings, f'MODEL_DIR={tmp_path}'
  )
  assert program._settings.chat_template.folder == str(tmp_path)
  for experiment in (huggingface.Llama3, quickstart.TinyLm):
    with pytest.raises(ValueError, match='CHAT_TEMPLATE needs a chat template'):
      programs_of(experiment, *settings)


def test_an_experiment_without_tokenizer_is_refused():
  with pytest.raises(ValueError, match='LM_EVAL_TASKS needs a tokenizer'):
    programs_of(lm_cloud.LmCloudSpmd2B, TASKS)
