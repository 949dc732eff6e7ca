# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The log file of a job."""

from __future__ import annotations

import logging
import os

from pax.runner import job_log


def test_a_closed_log_leaves_the_files_of_others_alone(tmp_path, caplog):
  handler = job_log.LogFileHandler(tmp_path / 'train.log')
  record = logging.makeLogRecord({'msg': 'a line', 'levelno': logging.INFO})
  handler.handle(record)
  handler.close()
  # Gets the number of the descriptor.
  other = os.open(tmp_path / 'other', os.O_WRONLY | os.O_CREAT)
  # A thread that found the handler before it was removed, and `shutdown`.
  handler.handle(record)
  handler.close()
  os.write(other, b'intact')
  os.close(other)
  handler.handle(record)
  assert (tmp_path / 'other').read_text() == 'intact'
  assert (tmp_path / 'train.log').read_text().count('a line') == 1
  assert not caplog.text
