#compdef cnitool
# cnitool: commands, then network namespaces.
_arguments '(-i --ifname)'{-i,--ifname}'[Interface name]:name:' \
  '1:command:(add check completion del gc help status)' '2:network:' '3:namespace:_files -W /run/netns -P /run/netns/'
