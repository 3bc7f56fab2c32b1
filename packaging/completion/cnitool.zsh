#compdef cnitool
# cnitool: commands, then networks, then network namespaces.
_cnitool_second() {
  [[ $line[1] == completion ]] && compadd bash fish zsh && return
  local -a files=(${NETCONFPATH:-/etc/cni/net.d}/*.(conflist|conf|json)(N))
  compadd ${(f)"$(cat $files /dev/null 2>/dev/null | grep -o '"name" *: *"[A-Za-z0-9][A-Za-z0-9_.-]*"' | cut -d '"' -f 4)"}
}
_cnitool() {
  local -a line
  _arguments '(-i --ifname)'{-i,--ifname=}'[Interface name]:name:' --help \
    '1:command:(add check completion del gc help status)' '2:network:_cnitool_second' \
    '3:namespace:{ compadd /run/netns/*(N) || _files }'
}
if [[ $funcstack[1] == _cnitool ]]; then _cnitool "$@"; else compdef _cnitool cnitool; fi
