// SPDX-License-Identifier: Apache-2.0
#ifndef PAX_CSRC_GLIBC_JUMP_H_
#define PAX_CSRC_GLIBC_JUMP_H_

// Defines `name`, hidden, as a jump to the symbol `target` that glibc has had
// since `version`. The return address stays that of the caller.
#define PAX_GLIBC_JUMP_TO(name, target, version)              \
  __asm__(                                                    \
      ".pushsection .text\n"                                  \
      ".symver pax_" #name ", " #target "@GLIBC_" version     \
      "\n"                                                    \
      ".globl " #name "\n.hidden " #name                      \
      "\n"                                                    \
      ".type " #name ", @function\n" #name ": jmp pax_" #name \
      "@PLT\n.popsection")

// The same of `name` itself.
#define PAX_GLIBC_JUMP(name, version) PAX_GLIBC_JUMP_TO(name, name, version)

#endif  // PAX_CSRC_GLIBC_JUMP_H_
