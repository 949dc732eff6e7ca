# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""`--profile_steps` of the real program."""

from __future__ import annotations

from pax.files import storage
from tests.integration import binary


def test_steps_are_traced_and_summarized(tmp_path):
  completed = binary.run(
    'TinySpmd', tmp_path, '--profile_steps=2:5', '--noenable_checkpoint_saving'
  )
  assert completed.returncode == 0, completed.stderr
  assert len(list(tmp_path.glob('plugins/profile/*/*.xplane.pb'))) == 1
  page = tmp_path / 'profile_summary.md'
  title, *lines = page.read_text().splitlines()
  assert title.startswith('# profile of 3 steps: ')
  # The formula of the FLOPs is for tokens; these are points.
  assert 'MFU' not in title
  assert f'{title[2:]}; {page}' in completed.stderr
  rows = [line for line in lines if '| jit_train_step |' in line]
  # Names of layers, from the metadata of the compiled step.
  assert rows and any('/linear/' in row for row in rows)


def test_the_summary_of_a_job_in_a_bucket_is_named_there():
  # It is in the memory of the program, which ends.
  bucket = storage.to_path('memory://profiles/run')
  completed = binary.run(
    'TinyPmap', bucket, '--profile_steps=2:5', '--noenable_checkpoint_saving'
  )
  assert completed.returncode == 0, completed.stderr
  assert '; memory://profiles/run/profile_summary.md' in completed.stderr
