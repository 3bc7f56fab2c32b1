# cnitool: commands, then networks, then network namespaces.
_cnitool() {
  local word=${COMP_WORDS[COMP_CWORD]} dir=${NETCONFPATH:-/etc/cni/net.d}
  case $COMP_CWORD in
    1) COMPREPLY=($(compgen -W "add check completion del gc help status" -- "$word")) ;;
    2) COMPREPLY=($(compgen -W "$(sed -n 's/.*"name" *: *"\([^"]*\)".*/\1/p' "$dir"/*.conflist "$dir"/*.conf "$dir"/*.json 2>/dev/null)" -- "$word")) ;;
    *) COMPREPLY=($(compgen -W "$(printf '%s\n' /run/netns/*)" -- "$word")) ;;
  esac
}
complete -o default -F _cnitool cnitool
