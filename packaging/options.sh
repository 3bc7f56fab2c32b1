# shellcheck shell=sh
# packaging/options.sh: --help and unknown options, the same in every script. POSIX sh; sourced, never run.
#
# FILE is the script. The comment at its head is its help, and begins with its name.

print_help() { # print_help FILE
  sed -n '1d; /^# shellcheck/d; /^#/!q; s/^# \{0,1\}//p' "$1"
}

name_of() { # name_of FILE
  sed -n '2s/^# \([^ :]*\).*/\1/p' "$1"
}

# refuse_word FILE WORD CHOICE...: exits with 2, and names the choice that the unknown word resembles.
refuse_word() {
  _name=$(name_of "$1") _word=$2
  shift 2
  _near=$(nearest "${_word%%=*}" "$@" --help)
  case $_word in
    -*) _kind='is not an option' ;;
    *) _kind='is unknown' ;;
  esac
  if [ -n "$_near" ]; then
    printf '%s: %s %s; did you mean %s?\n' "$_name" "$_word" "$_kind" "$_near" >&2
  else
    printf '%s: %s %s; %s --help lists what is\n' "$_name" "$_word" "$_kind" "$_name" >&2
  fi
  exit 2
}

# words_only FILE WORD...: for a script that has positional arguments and no options but --help.
words_only() {
  case ${2:-} in
    -h | --help) print_help "$1"; exit 0 ;;
    -*) refuse_word "$1" "$2" ;;
  esac
}

# nearest WORD CHOICE...: the first choice that the word abbreviates, else the one with the fewest changed letters, at
# most two, and fewer than it has.
nearest() {
  printf '%s\n' "$@" | awk '
    function least(a, b, c) { if (b < a) a = b; return c < a ? c : a }
    function distance(a, b,    i, j, d) {
      for (i = 0; i <= length(a); i++) d[i, 0] = i
      for (j = 0; j <= length(b); j++) d[0, j] = j
      for (i = 1; i <= length(a); i++)
        for (j = 1; j <= length(b); j++)
          d[i, j] = least(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + (substr(a, i, 1) != substr(b, j, 1)))
      return d[length(a), length(b)]
    }
    function letters(word) { sub(/^-*/, "", word); return length(word) }
    NR == 1 { word = $0; best = 3; next }
    {
      far = letters(word) > 1 && index($0, word) == 1 ? 0 : distance(word, $0)
      if (far < best && far < letters($0)) { best = far; found = $0 }
    }
    END { print found }' 2>/dev/null || : # a machine without awk gets no advice
}
