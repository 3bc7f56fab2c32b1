# cnitool: commands, then networks, then network namespaces. Names from files are never given to the shell to expand.
_cnitool_networks() {
  local dir=${NETCONFPATH:-/etc/cni/net.d}
  cat "$dir"/*.conflist "$dir"/*.conf "$dir"/*.json 2>/dev/null |
    grep -o '"name" *: *"[A-Za-z0-9][A-Za-z0-9_.-]*"' | sed 's/.*: *"\(.*\)"/\1/' | sort -u
}
_cnitool() {
  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} place=$COMP_CWORD index candidate
  local -a candidates=()
  for ((index = 2; index < COMP_CWORD; index++)); do # options and their values have no place among the arguments
    case ${COMP_WORDS[index]} in
      -i | --ifname) place=$((place - 2)) ;;
      -*) place=$((place - 1)) ;;
    esac
  done
  case $place:$command:$word in
    *:-*) candidates=(-i --ifname --help) ;;
    1:*) candidates=(add check completion del gc help status) ;;
    2:completion:*) candidates=(bash fish zsh) ;;
    2:*) mapfile -t candidates < <(_cnitool_networks) ;;
    3:*) candidates=(/run/netns/*) ;;
  esac
  COMPREPLY=()
  for candidate in "${candidates[@]}"; do
    [[ $candidate != "$word"* ]] || COMPREPLY+=("$candidate")
  done
}
complete -o default -F _cnitool cnitool
