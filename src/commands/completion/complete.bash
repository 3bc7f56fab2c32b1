# Completion of @NAME@ in bash: `@NAME@ complete` prints what may follow.
_@FUNCTION@() {
  local line word=${COMP_WORDS[COMP_CWORD]}
  [[ $word != = ]] || word= # bash splits --option=value
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      :files) mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$word"); compopt -o filenames 2>/dev/null ;;
      :directories) mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -d -- "$word"); compopt -o filenames 2>/dev/null ;;
      *) COMPREPLY+=("${line%%$'\t'*}") ;;
    esac
  done < <(@NAME@ complete -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null)
}
complete -F _@FUNCTION@ @NAME@
