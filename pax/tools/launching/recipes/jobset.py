# SPDX-License-Identifier: Apache-2.0
"""A JobSet for Kubernetes: a Job for each slice, a pod for each process.

References:
  https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
  https://cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

from pax import exit_codes
from pax.tools.launching.job import Job, distributed_flags
from pax.tools.launching.launcher import MAX_RESTARTS, PORT
from pax.tools.launching.recipes import yaml_text

_FILE = string.Template("""\
# kubectl apply -f THIS_FILE
# If a pod is killed or evicted, or loses another, all start again from the
# newest checkpoint. Errors of the job itself, which would only repeat, end it.
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $name$annotations
spec:
  failurePolicy:
    maxRestarts: $restarts
    rules:
    - name: failed
      action: FailJobSet
      onJobFailureReasons:
      - PodFailurePolicy
  replicatedJobs:
  - name: slice
    replicas: $slices
    template:
      spec:
        backoffLimit: 0
        podFailurePolicy:
          rules:
          - action: FailJob
            onExitCodes:
              containerName: pax
              operator: In
              values: $permanent
        completionMode: Indexed
        completions: $pods
        parallelism: $pods
        template:
          spec:
            restartPolicy: Never
            # To finish the step and save.
            terminationGracePeriodSeconds: 300
$placement            containers:
            - name: pax
              image: $image
              env:
$environment
              ports:
$ports
              resources:
                limits:
                  $limit
              command:
              - bash
              - -c
              - $script
""")

# One slice has the nodes of one pool for itself.
_TPU_ANNOTATIONS = """
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool\
"""
_TPU_PLACEMENT = string.Template("""\
            hostNetwork: true
            dnsPolicy: ClusterFirstWithHostNet
            nodeSelector:
              cloud.google.com/gke-tpu-accelerator: $tpu
              cloud.google.com/gke-tpu-topology: $topology
""")
# In a value, Kubernetes replaces `$(NAME)` by a variable and `$$` by `$`.
_EXPANDED = re.compile(r'\$\$+|\$(?=\()')
# Between TPU hosts, and between slices.
_TPU_PORTS = (8471, 8080)


def text(job: Job) -> str:
  """Returns the JobSet, for TPUs if --tpu is set, else for GPUs.

  Raises:
    UsageError: --image or --topology is not set.
  """
  return _tpu(job) if job.tpu else _gpu(job)


def _tpu(job: Job) -> str:
  """GKE sets the variables by which processes find each other."""
  return _file(
    job,
    annotations=_TPU_ANNOTATIONS,
    placement=_TPU_PLACEMENT.substitute(
      tpu=yaml_text.scalar(job.tpu or ''),
      topology=yaml_text.scalar(job.required('topology', '4x4x4')),
    ),
    environment=_environment(job, {}),
    ports=_ports(_TPU_PORTS),
    limit=f'google.com/tpu: {job.chips_per_host}',
    script=f'exec {job.command()}',
  )


def _gpu(job: Job) -> str:
  """Indices of Job and pod give that of the process; pod 0 has a known name."""
  port = job.port or PORT
  per_slice = job.hosts_per_slice
  address = f'{job.name}-slice-0-0.{job.name}:{port}'
  lines = [f'at=$((SLICE * {per_slice} + JOB_COMPLETION_INDEX))']
  if job.slices > 1:
    lines.append('export JAX_PARTITION_INDEX=$SLICE')
  flags = ' '.join(distributed_flags(address, job.num_hosts, '$at'))
  lines.append(f'exec {job.command()} {flags}')
  count = job.gpus_per_host
  return _file(
    job,
    annotations='',
    placement='',
    environment=_environment(
      job, {'SLICE': "metadata.annotations['jobset.sigs.k8s.io/job-index']"}
    ),
    ports=_ports((port,)),
    limit=f'nvidia.com/gpu: {count}' if count else 'cpu: 8',
    script='\n'.join(lines),
  )


def _file(job: Job, *, script: str, **parts: str) -> str:
  return _FILE.substitute(
    parts,
    name=yaml_text.scalar(job.name),
    restarts=MAX_RESTARTS,
    permanent=sorted(exit_codes.PERMANENT),
    slices=job.slices,
    pods=job.hosts_per_slice,
    image=yaml_text.quoted(job.required('image', 'example.com/pax:1')),
    script=yaml_text.block(_literal(script), indent=16),
  )


def _environment(job: Job, fields: Mapping[str, str]) -> str:
  """The environment of a container: --env, and fields of its pod."""
  lines = []
  for name, value in {'PYTHONUNBUFFERED': '1', **job.environment}.items():
    lines += [
      f'- name: {yaml_text.scalar(name)}',
      f'  value: {yaml_text.quoted(_literal(value))}',
    ]
  for name, field in fields.items():
    lines += [
      f'- name: {name}',
      '  valueFrom:',
      '    fieldRef:',
      f'      fieldPath: {field}',
    ]
  return _indented(lines)


def _literal(value: str) -> str:
  """Escapes what Kubernetes would replace: `$(NAME)` and `$$`."""
  return _EXPANDED.sub(lambda match: 2 * match[0], value)


def _ports(numbers: Sequence[int]) -> str:
  return _indented([f'- containerPort: {number}' for number in numbers])


def _indented(lines: Sequence[str]) -> str:
  return '\n'.join(' ' * 14 + line for line in lines)
