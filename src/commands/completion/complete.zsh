#compdef @NAME@
# Completion of @NAME@ in zsh: `@NAME@ complete` prints what may follow.
_@NAME@() {
  local line described
  local -a offers shown
  for line in ${(f)"$(@NAME@ complete -- "${(@Q)words[1,CURRENT-1]}" "$PREFIX" 2>/dev/null)"}; do
    case $line in
      :files) [[ $PREFIX != --*=* ]] || compset -P '*='; _files ;;
      :directories) [[ $PREFIX != --*=* ]] || compset -P '*='; _files -/ ;;
      *) offers+=("${line%%$'\t'*}") shown+=("${line/$'\t'/  -- }")
        [[ $line != *$'\t'* ]] || described=-l ;;
    esac
  done
  compadd $described -d shown -a offers
}
if [[ $funcstack[1] == _@NAME@ ]]; then _@NAME@ "$@"; else compdef _@NAME@ @NAME@; fi
