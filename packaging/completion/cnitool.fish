# cnitool: commands, then networks, then network namespaces.
function __cnitool_is_at # PLACE: so many words are before the cursor, options and their values aside
    set -l place $argv[1]
    set -l words (commandline -opc)
    argparse -i i/ifname= -- $words 2>/dev/null
    and test (count $argv) = $place
end
function __cnitool_networks
    set -q NETCONFPATH; or set -l NETCONFPATH /etc/cni/net.d
    set -l files $NETCONFPATH/*.{conflist,conf,json}
    cat $files /dev/null 2>/dev/null | string match -rag '"name" *: *"([A-Za-z0-9][\w.-]*)"'
end
complete -c cnitool -f
complete -c cnitool -s i -l ifname -x -d "Interface name"
complete -c cnitool -l help
complete -c cnitool -n "__cnitool_is_at 1" -a "add check completion del gc help status"
complete -c cnitool -n "__cnitool_is_at 2; and __fish_seen_subcommand_from completion" -a "bash fish zsh"
complete -c cnitool -n "__cnitool_is_at 2; and not __fish_seen_subcommand_from completion" -a "(__cnitool_networks)"
complete -c cnitool -n "__cnitool_is_at 3" -F -a "(set -l all /run/netns/*; string join \n \$all)"
