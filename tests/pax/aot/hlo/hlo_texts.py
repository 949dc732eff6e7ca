# SPDX-License-Identifier: Apache-2.0
"""Small HLO programs for tests."""

from __future__ import annotations

# Loops of 3 and 5 iterations: the first fills f32[3,8], the second reads it.
TWO_LOOPS = """\
HloModule jit_step, is_scheduled=true

%fused_slice (p0: f32[3,8], p1: s32[]) -> f32[1,8] {
  %p0 = f32[3,8]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %ds = f32[1,8]{1,0} dynamic-slice(%p0, %p1, %zero)
}

%check (c: (s32[], f32[3,8])) -> pred[] {
  %c = (s32[], /*index=1*/f32[3,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %limit = s32[]{:T(128)} constant(3)
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

%fill (b: (s32[], f32[3,8])) -> (s32[], f32[3,8]) {
  %b = (s32[], f32[3,8]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%j, %one)
  %stack = f32[3,8]{1,0} get-tuple-element(%b), index=1
  %row = f32[1,8]{1,0:T(8,128)S(1)} broadcast(%one)
  %filled = f32[3,8]{1,0} dynamic-update-slice(%stack, %row, %j, %one)
  ROOT %out = (s32[], f32[3,8]) tuple(%next, %filled)
}

%drain (d: (s32[], f32[3,8], bf16[4])) -> (s32[], f32[3,8], bf16[4]) {
  %d = (s32[], f32[3,8]{1,0}, bf16[4]{0}) parameter(0)
  %k = s32[] get-tuple-element(%d), index=0
  %read = f32[3,8]{1,0} get-tuple-element(%d), index=1
  %sum = bf16[4]{0} get-tuple-element(%d), index=2
  %part = f32[1,8]{1,0} fusion(%read, %k), kind=kLoop, calls=%fused_slice
  %new = bf16[4]{0} add(%sum, %sum), metadata={op_name="jit(step)/add"}
  ROOT %out2 = (s32[], f32[3,8], bf16[4]) tuple(%k, %read, %new)
}

%check2 (e: (s32[], f32[3,8], bf16[4])) -> pred[] {
  ROOT %never = pred[] constant(false)
}

ENTRY %main (x: bf16[4]) -> bf16[4] {
  %x = bf16[4]{0} parameter(0)
  %begin = s32[] constant(0)
  %empty = f32[3,8]{1,0} custom-call(), custom_call_target="AllocateBuffer"
  %init = (s32[], f32[3,8]) tuple(%begin, %empty)
  %loop = (s32[], f32[3,8]{1,0}) while(%init), \
condition=%check, body=%fill
  %kept = f32[3,8]{1,0} get-tuple-element(%loop), index=1
  %init2 = (s32[], f32[3,8], bf16[4]) tuple(%begin, %kept, %x)
  %loop2 = (s32[], f32[3,8]{1,0}, bf16[4]{0}) while(%init2), \
condition=%check2, body=%drain, \
backend_config={"known_trip_count":{"n":"5"}}
  ROOT %result = bf16[4]{0} get-tuple-element(%loop2), index=2
}
"""

# An all-gather of bf16[2,8] over four devices that a kernel overlaps with, in a
# loop of 5 iterations.
FUSED_ALL_GATHER = """\
HloModule jit_step, is_scheduled=true

%start (p0: bf16[2,8]) -> (bf16[2,8], bf16[8,8]) {
  %p0 = bf16[2,8]{1,0} parameter(0)
  %g0 = bf16[8,8]{1,0} all-gather(%p0), channel_id=7, \
replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %s = (bf16[2,8]{1,0}, bf16[8,8]{1,0}) custom-call(%g0), \
custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.1 (p1: bf16[2,8], p2: f32[8]) -> (bf16[2,8], f32[8]) {
  %p1 = bf16[2,8]{1,0} parameter(0)
  %p2 = f32[8]{0} parameter(1)
  %g1 = bf16[8,8]{1,0} all-gather(%p1), channel_id=7, \
replica_groups={{0,1,2,3}}, dimensions={0}
  %n = f32[8]{0} negate(%p2)
  ROOT %t = (bf16[2,8]{1,0}, f32[8]{0}) tuple(%p1, %n)
}

%done (p3: bf16[2,8]) -> bf16[8,8] {
  %p3 = bf16[2,8]{1,0} parameter(0)
  %g2 = bf16[8,8]{1,0} all-gather(%p3), channel_id=7, \
replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %d = bf16[8,8]{1,0} custom-call(%g2), \
custom_call_target="AsyncCollectiveDone"
}

%body (b: (s32[], bf16[2,8], f32[8])) -> (s32[], bf16[2,8], f32[8]) {
  %b = (s32[], bf16[2,8]{1,0}, f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = bf16[2,8]{1,0} get-tuple-element(%b), index=1
  %v = f32[8]{0} get-tuple-element(%b), index=2
  %f0 = (bf16[2,8]{1,0}, bf16[8,8]{1,0}) fusion(%x), kind=kCustom, calls=%start
  %x1 = bf16[2,8]{1,0} get-tuple-element(%f0), index=0
  %f1 = (bf16[2,8]{1,0}, f32[8]{0}) fusion(%x1, %v), kind=kOutput, \
calls=%async_collective_fusion.1, \
backend_config={"window_config":{"estimated_cycles":"50"}}
  %x2 = bf16[2,8]{1,0} get-tuple-element(%f1), index=0
  %w = f32[8]{0} get-tuple-element(%f1), index=1
  %f2 = bf16[8,8]{1,0} fusion(%x2), kind=kCustom, calls=%done
  ROOT %out = (s32[], bf16[2,8]{1,0}, f32[8]{0}) tuple(%i, %x2, %w)
}

%check (c: (s32[], bf16[2,8], f32[8])) -> pred[] {
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (a: bf16[2,8], e: f32[8]) -> f32[8] {
  %a = bf16[2,8]{1,0} parameter(0)
  %e = f32[8]{0} parameter(1)
  %zero = s32[] constant(0)
  %init = (s32[], bf16[2,8]{1,0}, f32[8]{0}) tuple(%zero, %a, %e)
  %loop = (s32[], bf16[2,8]{1,0}, f32[8]{0}) while(%init), condition=%check, \
body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %r = f32[8]{0} get-tuple-element(%loop), index=2
}
"""

# A reduce-scatter of bf16[8,8] over four devices that SparseCores run beside a
# kernel.
OFFLOADED_REDUCE_SCATTER = """\
HloModule jit_step, is_scheduled=true

%sum (p0: bf16[8,8], p1: token[]) -> bf16[2,8] {
  %p0 = bf16[8,8]{1,0} parameter(0)
  %p1 = token[] parameter(1)
  ROOT %rs = bf16[2,8]{1,0} reduce-scatter(%p0), channel_id=7, \
replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
}, execution_thread="sparsecore"

ENTRY %main (a: bf16[8,8], e: f32[8], t: token[]) -> (bf16[2,8], f32[8]) {
  %a = bf16[8,8]{1,0} parameter(0)
  %e = f32[8]{0} parameter(1)
  %t = token[] parameter(2)
  %s = ((bf16[8,8]{1,0}, token[]), bf16[2,8]{1,0}) call-start(%a, %t), \
async_execution_thread="sparsecore", to_apply=%sum
  %n = f32[8]{0} negate(%e), \
backend_config={"window_config":{"estimated_cycles":"50"}}
  %d = bf16[2,8]{1,0} call-done(%s)
  ROOT %r = (bf16[2,8]{1,0}, f32[8]{0}) tuple(%d, %n)
}
"""
