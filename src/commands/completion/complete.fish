# Completion of @NAME@ in fish: `@NAME@ complete` prints what may follow.
function __@FUNCTION@_offers
    set -l word (commandline -ct)
    for line in (@NAME@ complete -- (commandline -opc) "$word" 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path "$word"
            case :directories
                __fish_complete_directories "$word" ''
            case '*'
                printf '%s\n' $line
        end
    end
end
complete -c @NAME@ -f -a '(__@FUNCTION@_offers)'
