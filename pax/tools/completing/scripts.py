# SPDX-License-Identifier: Apache-2.0
"""Completion scripts: they ask `pax completion --line=...` for candidates.

Each line of its answer is a word, a tab and a text. Without an answer the shell
completes file names.
"""

from __future__ import annotations

# COMP_WORDBREAKS has `=`, at which Readline splits words: of --exp=NAME it
# replaces NAME only.
_BASH = """\
_pax_complete() {
  local line="${COMP_LINE:0:COMP_POINT}" word
  COMPREPLY=()
  while IFS=$'\\t' read -r word _; do
    if [[ "$COMP_WORDBREAKS" == *=* && "$word" == --*=?* ]]; then
      word="${word#*=}"
    fi
    [[ "$word" == *= ]] && compopt -o nospace
    COMPREPLY+=("$word")
  done < <("${COMP_WORDS[0]}" completion "--line=$line" 2>/dev/null)
}
complete -o default -o nosort -F _pax_complete pax paxrun
"""

_ZSH = """\
#compdef pax paxrun
_pax_complete() {
  local word text line="${(j: :)words[1,CURRENT]}"
  local -a words_ texts_ open_ open_texts_
  while IFS=$'\\t' read -r word text; do
    if [[ "$word" == *= ]]; then
      open_+=("$word")
      open_texts_+=("$word  $text")
    else
      words_+=("$word")
      texts_+=("$word  $text")
    fi
  done < <("${words[1]}" completion "--line=$line" 2>/dev/null)
  if (( ! $#words_ && ! $#open_ )); then
    compset -P '*='
    _files
    return
  fi
  (( $#words_ )) && compadd -l -d texts_ -a words_
  (( $#open_ )) && compadd -S '' -l -d open_texts_ -a open_
  return 0
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _pax_complete pax paxrun
"""

_FISH = """\
function __pax_complete
  set -l words (commandline --current-process --tokenize --cut-at-cursor)
  set -l token (commandline --current-token --cut-at-cursor)
  $words[1] completion "--line=$words $token" 2>/dev/null
end
complete --command pax --arguments '(__pax_complete)'
complete --command paxrun --arguments '(__pax_complete)'
"""

SCRIPTS = {'bash': _BASH, 'zsh': _ZSH, 'fish': _FISH}
