# cnitool: commands, then network namespaces.
complete -c cnitool -n __fish_use_subcommand -f -a "add check completion del gc help status"
complete -c cnitool -s i -l ifname -x -d "Interface name"
complete -c cnitool -n "not __fish_use_subcommand" -a "(printf '%s\n' /run/netns/*)"
